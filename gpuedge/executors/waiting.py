"""Submitting recorded work and waiting for it: what is slow, and what hangs."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter, process_time

from gpuedge.backends.base import DeviceImpl, Recording, Ticket
from gpuedge.core.errors import DeviceLostError, DeviceTimeoutError
from gpuedge.core.times import STOPPED_S
from gpuedge.safety.watchdog import Watchdog, is_active

AHEAD = 2
"""How many pieces are submitted at a time: the device has one to go on with while this process
notices that the one before is done."""


def submit_and_wait(
    impl: DeviceImpl, pieces: Sequence[Recording], watchdog: Watchdog
) -> list[float]:
    """Run recorded work piece after piece, for as long as the watchdog allows.

    Returns
    -------
    list of float, unit: seconds
        What each piece took, from the end of the one before.

    Raises
    ------
    DeviceError (GE-4xx)
    """
    limit_s, took = watchdog.limit_s, list[float]()
    start = since = perf_counter()
    tickets = list(map(impl.submit, pieces[:AHEAD]))
    for number, ticket in enumerate(tickets):  # which grow meanwhile
        _wait(impl, ticket, tickets[-1], limit_s, watchdog)
        now = perf_counter()
        took.append(now - since)
        since = now
        watchdog.pieces_done += 1
        if number + AHEAD < len(pieces):
            tickets.append(impl.submit(pieces[number + AHEAD]))
        if watchdog.is_fixed:  # for the run, however many pieces it has
            limit_s = max(0.0, watchdog.limit_s - (now - start))
    spent_s = since - start
    if spent_s > watchdog.quick_s:
        watchdog.note(spent_s, max(took))
    return took


def _wait(
    impl: DeviceImpl, ticket: Ticket, last: Ticket, limit_s: float, watchdog: Watchdog
) -> None:
    """Wait for a submission; `last` is the last one, with which everything will have ended."""
    given_s, is_software, late = 0.0, impl.caps.is_software, None
    while True:
        since, used_s = perf_counter(), process_time() if is_software else 0.0
        try:
            impl.wait(ticket, limit_s)
        except DeviceLostError as lost:  # of a run that was late, its host was ended for it
            raise late or lost from None
        except DeviceTimeoutError as error:
            error.ticket = last
            given_s += limit_s
            took_s = perf_counter() - since
            # A process that was stopped and continued: the device stood still as well.
            was_stopped = late is None and took_s >= limit_s + STOPPED_S
            late = late or error
            if not was_stopped and not _may_go_on(impl, watchdog, given_s, used_s, took_s):
                raise late from None
        else:
            return


def _may_go_on(
    impl: DeviceImpl, watchdog: Watchdog, spent_s: float, used_s: float, over_s: float
) -> bool:
    """Tell whether work that is not done after `spent_s` is slow, not hung.

    For the latest `over_s` the driver has worked if a software rasteriser used processor time in
    them, or the worker process of any driver did so in its first run, where drivers compile. In the
    application's own process a GPU's driver leaves no such trace.
    """
    if spent_s < watchdog.patience_s:
        return True
    if watchdog.is_fixed or spent_s >= watchdog.most_s:
        return False
    is_software = bool(impl.caps.is_software)
    was_alive: bool | None = getattr(impl, "was_alive", None)
    if was_alive is None:
        return is_software and is_active(used_s, over_s)
    return was_alive and (is_software or not watchdog.has_run)
