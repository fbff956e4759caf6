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
    from collections.abc import Callable, Mapping, Sequence

    from gpuedge.probing.background import BackgroundProbe

    Drivers = Mapping[str, Candidate]
    Found = dict[str, list[ProbeRow]]
    Verdicts = list[tuple[str, list[ProbeRow]]]


NEWS = {"crashed", "timeout", "wrong"}
"""Statuses worth one WARNING line when they are found (not when they are read from the cache)."""

newest: ProbeReport | None = None
"""The newest report on all backends that this process has asked for."""

_background: BackgroundProbe | None = None
"""What the newest deadline cut off, being looked at again."""

_parts: tuple[Verdicts, Found, float] | None = None
"""What `newest` was made of."""

_told: set[str] = set()
"""Cache folders of which it was said that they cannot be written."""


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
        Time for all drivers together, which run in parallel; what is not done by then is killed,
        and looked at again in the background. 4 s is the figure Firefox uses for its own GL probe
        process.
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
    store = Store(paths.cache_folder())
    listed = _listed(_names(backends), environ)
    verdicts, new = _stored(store, listed, environ, 0.0 if refresh else deadline_s)
    rows_of = {} if refresh or not new else _looked_at(new, deadline_s + begin - time.monotonic())
    unknown = {n: driver for n, driver in new.items() if n not in rows_of}
    if unknown:
        rows_of |= _probe_new(unknown, deadline_s, begin)
        _keep(store, unknown, rows_of, deadline_s)
        cut = {n: c for n, c in unknown.items() if any(row.is_starved for row in rows_of[n])}
        if cut:
            _look_again(cut, rows_of, store)
    report = _report(verdicts, rows_of, start)
    if backends is None:
        global newest, _parts
        newest, _parts = report, (verdicts, rows_of, start)
    return report


def _stored(
    store: Store,
    listed: Sequence[Candidate | ProbeRow],
    environ: Mapping[str, str],
    deadline_s: float,
) -> tuple[Verdicts, dict[str, Candidate]]:
    """Return what is known of each driver, by key, and those of which nothing is.

    With a deadline of 0 nothing that is stored is believed.
    """
    verdicts: Verdicts = []
    new: dict[str, Candidate] = {}
    key: Keys | None = None
    now = time.time()
    for entry in listed:
        if isinstance(entry, ProbeRow):
            verdicts.append(("", [entry]))
            continue
        key = key or Keys(environ)
        name = key(entry)
        if pins.is_barred(entry.backend):
            verdicts.append((name, [pins.pinned_row(entry)]))
            continue
        rows = store.find(name, deadline_s, now) if deadline_s else None
        if rows is None:
            new[name] = entry
        verdicts.append((name, rows or []))
    return verdicts, new


def _looked_at(new: Drivers, seconds: float) -> Found:
    """Return what a look in the background has found of drivers, waiting for it if need be."""
    return {} if _background is None else _background.wait(new, seconds)


def wait_for_look(seconds: float) -> bool:
    """Wait for the look in the background that is under way; tell whether one has ended."""
    return _background is not None and _background.has_ended_in(seconds)


def _look_again(cut: Drivers, rows_of: Found, store: Store) -> None:
    """Have drivers that the deadline cut off looked at in the background; say so in their rows."""
    from gpuedge.probing.background import DEADLINE_S, BackgroundProbe, marked

    global _background  # noqa: PLW0603
    rows_of |= {n: marked(rows_of[n]) for n in cut}

    def keep(later: Found) -> None:
        global newest  # noqa: PLW0603
        _keep(store, cut, later, DEADLINE_S)
        if _parts is not None and newest is not None and any(r.is_starved for r in newest.tried):
            verdicts, before, start = _parts
            newest = _report(verdicts, before | {n: later[n] for n in later.keys() & before}, start)

    if _background is None or _background.is_over:
        try:
            _background = BackgroundProbe(cut, {n: rows_of[n] for n in cut}, _probe_new, keep)
        except RuntimeError:  # no more threads: the next start looks at them
            return


def _report(verdicts: Verdicts, rows_of: Found, start: float) -> ProbeReport:
    """Return the report of what is stored and what was found, numbered."""
    numbered = number(_marked(row) for n, rows in verdicts for row in rows_of.get(n, rows))
    shown = pins.apply(numbered)
    if shown is not numbered:  # what is left alone is not a route any more
        numbered = number(shown)
    return ProbeReport(numbered, __version__, time.perf_counter() - start)


def _keep(store: Store, drivers: Drivers, rows_of: Found, deadline_s: float) -> None:
    """Store what was found of drivers, but for what says nothing of them."""
    lasting = {n: (drivers[n], rows_of[n]) for n in drivers if all(map(_is_lasting, rows_of[n]))}
    if not lasting or store.save(lasting, deadline_s, time.time()):
        return
    folder = store.folder
    if folder not in _told:
        _told.add(folder)
        import logging

        text = "the cache folder %s cannot be written, so every start tries all drivers anew: %s"
        hint = "set GPUEDGE_CACHE_DIR to a folder that can be written"
        logging.getLogger("gpuedge.probing").warning(text, plain(folder, 300), hint)


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
        candidates: Sequence[Candidate] = ()
        try:
            candidates = backend.candidates(environ)
        except Exception as error:  # a plug-in's
            text = plain(f"{type(error).__name__}: {error}", 300)
            status, why = "broken", Reason("open-failed", text)
        listed += candidates or [ProbeRow(name, name, status, why.code, why.sentence, name)]
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
    new: Drivers, deadline_s: float, begin: float, stop: Callable[[], bool] = lambda: False
) -> Found:
    import logging

    from gpuedge.probing.run import probe_all

    results = probe_all(list(new.values()), deadline_s, begin=begin, stop=stop)
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
