"""`gpuedge.probe()`: every driver tried in its own process, once; answered from disk after that."""

from __future__ import annotations

import os
import time

from gpuedge import __version__, backends
from gpuedge.core import config
from gpuedge.core.driver import Candidate
from gpuedge.core.errors import ConfigError
from gpuedge.core.reasons import Reason
from gpuedge.core.text import plain
from gpuedge.probing import pins
from gpuedge.probing.report import HOW_TO_REFRESH, ProbeReport, ProbeRow, number
from gpuedge.probing.verdicts import Keys, Store, check_database
from gpuedge.safety import paths
from gpuedge.safety.interpreter import environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


NEWS = {"crashed", "timeout", "wrong"}
"""Statuses worth one WARNING line when they are found (not when they are read from the cache)."""

newest: ProbeReport | None = None
"""The newest report on all backends that this process has asked for."""


def probe(
    *,
    refresh: bool = False,
    deadline_s: float = 4.0,
    backends: Sequence[str] | None = None,
) -> ProbeReport:
    """Find the GPUs that can be trusted here, without trusting any driver.

    Every driver is opened in a disposable child process of its own, which builds and runs two
    kernels through the same code as everything else and compares the numbers with float64. A
    driver that crashes, hangs, ends the process, or reports success and writes nothing costs only
    that child. Verdicts are kept on disk; the next call starts no process and loads no driver.

    Parameters
    ----------
    refresh : bool
        Probe again whatever the cache says.
    deadline_s : float, unit: seconds
        Time for all drivers together, which run in parallel; what is not done by then is killed.
        4 s is the figure Firefox uses for its own GL probe process.
    backends : sequence of str, optional
        Only these backends, in this order. Default: the setting ``backends``, else all.

    Returns
    -------
    ProbeReport
        ``.devices`` (usable, best first), ``.best``, ``.tried`` (every driver, with its reason).

    Raises
    ------
    ConfigError (GE-101)
        An argument or a ``GPUEDGE_*`` variable cannot be used. Nothing was loaded.
    DatabaseError (GE-600)
        The capability database cannot be read. Nothing was loaded.
    UnknownDeviceError (GE-102)
        No backend has that name. Nothing was loaded.

    Notes
    -----
    Never raises for a driver's fault: that is a row of ``.tried``.

    Examples
    --------
    >>> import gpuedge
    >>> report = gpuedge.probe()
    >>> all(row.reason for row in report.tried)
    True
    """
    start, begin = time.perf_counter(), time.monotonic()
    config.check_environment()
    _check(deadline_s)
    check_database()
    pins.check_pins()
    environ = environment()
    listed = _listed(_names(backends), environ)
    store, now = Store(paths.cache_folder()), time.time()
    key: Keys | None = None
    verdicts: list[tuple[str, list[ProbeRow]]] = []
    new: dict[str, Candidate] = {}
    for one in listed:
        if isinstance(one, ProbeRow):
            verdicts.append(("", [one]))
            continue
        key = key or Keys(environ)
        name = key(one)
        if pins.is_barred(one.backend):
            verdicts.append((name, [pins.pinned_row(one)]))
            continue
        rows = None if refresh else store.find(name, deadline_s, now)
        if rows is None:
            new[name] = one
        verdicts.append((name, rows or []))
    found = _probe_new(new, deadline_s, begin) if new else {}
    lasting = {n: (new[n], rows) for n, rows in found.items() if all(map(_is_lasting, rows))}
    if lasting:
        store.save(lasting, deadline_s, now)
    numbered = number(_marked(row) for n, rows in verdicts for row in found.get(n, rows))
    shown = pins.apply(numbered)
    if shown is not numbered:  # what is left alone is not a route any more
        numbered = number(shown)
    report = ProbeReport(numbered, __version__, time.perf_counter() - start)
    if backends is None:
        global newest  # noqa: PLW0603
        newest = report
    return report


def _check(deadline_s: float) -> None:
    is_number = isinstance(deadline_s, (int, float)) and not isinstance(deadline_s, bool)
    if not is_number or not 0 < deadline_s < 1e6:
        raise ConfigError(
            f"A deadline of {deadline_s!r} seconds cannot be used.",
            asked_by="probe(deadline_s=...)",
            known="it must be a positive number of seconds, below a million",
        )


def _names(given: Sequence[str] | None) -> list[str]:
    if isinstance(given, str):
        given = given.replace(",", " ").split()
    is_list = given is None or hasattr(given, "__iter__")
    if not is_list or not all(isinstance(n, str) for n in given or ()):
        raise ConfigError(f"{given!r} is not a list of backends.", asked_by="probe(backends=...)")
    value = config.get("backends", call=tuple(given) if given else None).value
    return list(dict.fromkeys(value or backends.PROBED))


def _listed(names: list[str], environ: Mapping[str, str]) -> list[Candidate | ProbeRow]:
    """List the candidates of each backend; one without any has a row instead."""
    loaded = [backends.load(name) for name in names]  # every name is checked before any is used
    listed: list[Candidate | ProbeRow] = []
    for name, backend in zip(names, loaded, strict=True):
        status, why = "absent", Reason("no-candidates")
        found: Sequence[Candidate] = ()
        try:
            found = backend.candidates(environ)
        except Exception as error:  # a plug-in's
            text = plain(f"{type(error).__name__}: {error}", 300)
            status, why = "broken", Reason("open-failed", text)
        listed += found or [ProbeRow(name, name, status, why.code, why.sentence, name)]
    return listed


def latest(environ: Mapping[str, str] | None = None) -> tuple[ProbeRow, ...]:
    """Return the newest rows of every driver that this environment offers, numbered as in a report.

    For telling people about their devices: a verdict under another database, other ignored entries
    or another version of a driver is not a verdict, but the device that it is about is still there.
    Nothing is started and no driver is loaded. Statuses, reasons and restrictions are those of the
    time; identities are what may be relied on.

    Parameters
    ----------
    environ : mapping of str to str, optional
        By default the variables of this process.
    """
    environ = os.environ if environ is None else environ
    store = Store(paths.cache_folder())
    listed = _listed(list(config.get("backends").value or backends.PROBED), environ)
    return number(row for c in listed if isinstance(c, Candidate) for row in store.latest(c))


def _probe_new(
    new: Mapping[str, Candidate], deadline_s: float, begin: float
) -> dict[str, list[ProbeRow]]:
    import logging

    from gpuedge.probing.run import probe_all

    results = probe_all(list(new.values()), deadline_s, begin=begin)
    for row in (row for rows in results for row in rows):
        is_news = row.status in NEWS and not row.is_starved
        text = "%s driver %s: %s (%s)"
        logging.getLogger("gpuedge.probing").log(
            logging.WARNING if is_news else logging.INFO,
            text, row.backend, row.name, row.reason, plain(row.key, 300),
        )  # fmt: skip
    return dict(zip(new, results, strict=True))


def _is_lasting(row: ProbeRow) -> bool:
    """Say whether a verdict is about the driver, rather than about this attempt to probe it."""
    step = row.evidence.get("step")
    is_ours = row.code in {"no-token", "no-child"} or step in {"start", "prepare"}
    return not is_ours and not row.is_starved


def _marked(row: ProbeRow) -> ProbeRow:
    """Say of a cached crash or hang that it is cached, and how to try again."""
    if not row.is_cached or row.status not in {"crashed", "timeout"}:
        return row
    return row.replace(reason=f"{row.reason} ({HOW_TO_REFRESH})")
