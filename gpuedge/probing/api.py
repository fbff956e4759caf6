"""`gpuedge.probe()`: every driver tried in its own process, once; answered from disk after that."""

from __future__ import annotations

import os
import time

from gpuedge import __version__, backends
from gpuedge.core import config
from gpuedge.core.driver import Candidate
from gpuedge.core.errors import BackendUnavailableError, ConfigError
from gpuedge.core.reasons import Reason
from gpuedge.core.text import named, plain, said
from gpuedge.core.times import LISTING_S
from gpuedge.probing import pins
from gpuedge.probing.report import (
    HOW_TO_REFRESH,
    ProbeProgress,
    ProbeReport,
    ProbeRow,
    driver_name,
    number,
)
from gpuedge.probing.verdicts import Keys, Store, check_database
from gpuedge.safety import paths
from gpuedge.safety.interpreter import environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpuedge.core.words import ProbeStatus
    from gpuedge.safety.future import Answer

    Drivers = Mapping[str, Candidate]
    Found = dict[str, list[ProbeRow]]
    Progress = Callable[[ProbeProgress], object]
    Verdicts = list[tuple[str, list[ProbeRow]]]


NEWS = {"crashed", "timeout", "wrong"}
"""Statuses worth one WARNING line when they are found (not when they are read from the cache)."""

MOST_LISTED = 256
"""Drivers that a plug-in may list: each takes a process of its own, and no machine has so many."""

_made: dict[tuple[str, ...], tuple[ProbeReport, Verdicts, Found, float]] = {}
"""The newest report of this process on each choice of backends, and what it was made of."""

_told: set[str] = set()
"""Cache folders of which it was said that they cannot be written."""


def probe(
    *,
    refresh: bool = False,
    deadline_s: float = 4.0,
    backends: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> ProbeReport:
    """Find the GPUs that can be trusted here, without trusting any driver.

    Every driver is opened in a disposable child process of its own, which builds and runs two
    kernels through the same code as everything else and compares the numbers with float64. A
    driver that crashes, hangs, ends the process, or reports success and writes nothing costs only
    that child. Verdicts are kept on disk; the next call starts no process and loads no driver.
    Where the disk cannot be written they are kept for the life of this process.

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
    progress : callable, optional
        Called with a `ProbeProgress` when a driver is begun with, and when its verdict is in. What
        it raises ends the probe.

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
    begin = time.monotonic()
    names = _checked(deadline_s, backends, progress)
    return _probe(names, deadline_s, begin, progress, refresh=refresh)


def probe_async(
    *,
    refresh: bool = False,
    deadline_s: float = 4.0,
    backends: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Answer[ProbeReport]:
    """Begin to find the GPUs that can be trusted here, and return at once.

    Meanwhile operations and sessions under ``auto`` run on the CPU, and those on a device that is
    named wait for this probe: no driver is tried twice.

    Parameters
    ----------
    refresh, deadline_s, backends
        As for `probe`.
    progress : callable, optional
        As for `probe`; called on another thread.

    Returns
    -------
    concurrent.futures.Future
        Of the report: ``.result(timeout)``, ``.add_done_callback(function)``, and in asyncio
        ``await``. It has begun, so that it cannot be cancelled.

    Raises
    ------
    ConfigError (GE-101), UnknownDeviceError (GE-102), DatabaseError (GE-600)
        As `probe` does; what is wrong inside of a database is an error of the future.

    Examples
    --------
    >>> import gpuedge
    >>> future = gpuedge.probe_async()
    >>> future.result(timeout=60).devices == gpuedge.probe().devices
    True
    """
    from gpuedge.probing.background import BackgroundProbe
    from gpuedge.safety.future import Answer, settle

    begin = time.monotonic()
    names = _checked(deadline_s, backends, progress)
    answer: Answer[ProbeReport] = Answer()

    def work(stop: Callable[[], bool]) -> None:
        settle(answer, lambda: _probe(names, deadline_s, begin, progress, stop, refresh=refresh))

    try:
        BackgroundProbe(work)
    except RuntimeError:  # no more threads
        work(lambda: False)
    return answer


def _checked(
    deadline_s: float, backends: Sequence[str] | None, progress: Progress | None
) -> tuple[str, ...]:
    """Check arguments and settings, and return the names of the backends to look at."""
    config.check_environment()
    _check(deadline_s)
    if progress is not None and not callable(progress):
        text = f"progress must be callable, not {type(progress).__name__}."
        raise ConfigError(text, asked_by="probe(progress=...)")
    check_database()
    pins.check_pins()
    return _names(backends)


def _probe(
    names: tuple[str, ...],
    deadline_s: float,
    begin: float,
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
    *,
    refresh: bool = False,
) -> ProbeReport:
    start = time.perf_counter()
    environ = environment()
    store = Store(paths.cache_folder())
    verdicts, new = _stored(store, _listed(names, environ), environ, 0.0 if refresh else deadline_s)
    teller = ProgressTeller(progress, len(verdicts))
    for name, rows in verdicts:
        if name not in new:
            teller.verdict(name, rows)
    if new:  # as with any change of the setting ``ignore``
        warn_of_ids()
    rows_of = _looked_at(new, store, deadline_s, begin, teller, stop=stop) if new else {}
    _renew({n: rows_of.get(n, rows) for n, rows in verdicts})
    report = _report(verdicts, rows_of, start)
    _made[names] = report, verdicts, rows_of, start
    return report


def warn_of_ids() -> None:
    """Warn of ids of entries that are to be ignored, and that no entry has."""
    variable = config.SETTINGS["ignore"].variable
    if not config.get("ignore").value:
        return
    from gpuedge.capdb.judgement import unknown_ids

    for name, hint in unknown_ids().items():
        about = f"{variable} {name}"
        config.warn_once(about, f"{variable} names {name!r}, which is no entry of the capability "
                         f"database; {hint}")  # fmt: skip


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


def _looked_at(
    new: Drivers,
    store: Store,
    deadline_s: float,
    begin: float,
    teller: ProgressTeller,
    *,
    stop: Callable[[], bool],
) -> Found:
    """Return what is found of new drivers; those that another thread looks at are waited for."""
    from gpuedge.probing.background import Look, marked, other_look
    from gpuedge.probing.judge import without_child
    from gpuedge.safety.child import Ending

    late = Ending("deadline")
    rows_of: Found = {}
    while missing := {n: driver for n, driver in new.items() if n not in rows_of}:
        look = Look(missing, begin + deadline_s)
        found: Found = {}
        try:
            if look.drivers:
                found = _probe_new(look.drivers, deadline_s, begin, teller, stop)
                _keep(store, look.drivers, found, deadline_s)
        finally:
            look.end(found)
        rows_of |= found
        other = None if found else other_look(missing)
        if other is not None:
            found = other.wait(missing, begin + deadline_s - time.monotonic())
            rows_of |= {
                n: rows or without_child(new[n], late, deadline_s) for n, rows in found.items()
            }
    cut = {n for n, rows in rows_of.items() if any(row.is_starved for row in rows)}
    if cut and not stop():
        _look_again({n: new[n] for n in cut}, {n: rows_of[n] for n in cut}, store)
    rows_of |= {n: marked(rows_of[n]) for n in cut}
    for name, rows in rows_of.items():
        teller.verdict(name, rows)
    return rows_of


def _look_again(cut: Drivers, meanwhile: Found, store: Store) -> None:
    """Have drivers that the deadline cut off looked at in the background."""
    from gpuedge.probing.background import DEADLINE_S, BackgroundProbe, Look

    look = Look(cut, time.monotonic() + DEADLINE_S, meanwhile)

    def work(stop: Callable[[], bool]) -> None:
        found: Found = {}
        try:
            teller = ProgressTeller(None, 0)
            found = _probe_new(look.drivers, DEADLINE_S, time.monotonic(), teller, stop)
            if not stop():
                _keep(store, look.drivers, found, DEADLINE_S)
                _renew(found)
        finally:
            look.end(found)

    try:
        if look.drivers:
            BackgroundProbe(work)
    except RuntimeError:  # no more threads: the next start looks at them
        look.end({})


def _renew(later: Found) -> None:
    """Put what was found of drivers into the reports that know less of them."""
    for names, (report, verdicts, rows_of, start) in list(_made.items()):
        own = {n: rows_of.get(n, rows) for n, rows in verdicts}
        better = {n for n in later.keys() & own if _doubt(later[n]) < _doubt(own[n])}
        if better and _made[names][0] is report:
            known = {**rows_of, **{n: later[n] for n in better}}
            _made[names] = _report(verdicts, known, start), verdicts, known, start


def _doubt(rows: Sequence[ProbeRow]) -> int:
    """Return 2 for a driver that was cut off, 1 where more time may change what is said of it."""
    return max(row.is_open + row.is_starved for row in rows)


def newest(names: tuple[str, ...]) -> ProbeReport | None:
    """Return the newest report of this process on these backends."""
    made = _made.get(names)
    return None if made is None else made[0]


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


def _names(given: Sequence[str] | None) -> tuple[str, ...]:
    """Return the backends that are named, else those of the settings, each once."""
    if isinstance(given, str):
        given = given.replace(",", " ").split()
    is_list = given is None or hasattr(given, "__iter__")
    if not is_list or not all(isinstance(n, str) for n in given or ()):
        raise ConfigError(f"{given!r} is not a list of backends.", asked_by="probe(backends=...)")
    names = tuple(dict.fromkeys(given or ())) or chosen()
    for name in names:  # every one is checked before any is used
        backends.target(name)
    return names


def chosen() -> tuple[str, ...]:
    """Return the backends that the settings leave in use."""
    return tuple(dict.fromkeys(config.get("backends").value)) or backends.PROBED


def everything() -> tuple[str, ...]:
    """Return the backends that the settings name; where they name none, all, plug-ins too."""
    return tuple(dict.fromkeys(config.get("backends").value)) or backends.installed()


def _listed(names: Sequence[str], environ: Mapping[str, str]) -> list[Candidate | ProbeRow]:
    """List the candidates of each backend; one without any has a row instead."""
    return [one for name in names for one in candidates(name, environ)]


def candidates(name: str, environ: Mapping[str, str]) -> Sequence[Candidate] | Sequence[ProbeRow]:
    """Return what a backend lists, or one row that says why that is nothing."""
    status: ProbeStatus = "absent"
    why = Reason("no-candidates")
    try:
        if found := _candidates(name, environ):
            return found
    except BackendUnavailableError as error:  # its package is missing: no driver is tried
        why = error.reason or why
    except TimeoutError as error:
        status, why = "timeout", Reason("deadline", f"listing its drivers, {said(error)}")
    except BaseException as error:  # a plug-in's
        from gpuedge.safety.interrupts import is_of_handler

        if is_of_handler(error):
            raise
        status, why = "broken", Reason("open-failed", named(error))
    return [ProbeRow(name, name, status, why.code, why.sentence, name)]


def _candidates(name: str, environ: Mapping[str, str]) -> list[Candidate]:
    """Return what a backend lists; a plug-in, which may hang, has `LISTING_S` for it."""
    if name in backends.BUILTIN:
        return list(backends.load(name).candidates(environ))
    from gpuedge.safety.deadline import call_within

    return call_within(LISTING_S, lambda: _candidates_of_plugin(name, environ))


def _candidates_of_plugin(name: str, environ: Mapping[str, str]) -> list[Candidate]:
    from itertools import islice

    from gpuedge.core import record

    found = list(islice(backends.load(name).candidates(environ), MOST_LISTED + 1))
    if len(found) > MOST_LISTED:
        raise ValueError(f"it lists more than {MOST_LISTED} drivers")
    for candidate in found:
        if not isinstance(candidate, Candidate) or candidate.backend != name:
            raise TypeError(f"it lists {candidate!r}, which is no candidate of {name!r}")
    return [record.read(Candidate, record.plain(candidate)) for candidate in found]


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
    listed = _listed(everything(), environ)
    return number(row for c in listed if isinstance(c, Candidate) for row in store.latest(c))


def _probe_new(
    new: Drivers,
    deadline_s: float,
    begin: float,
    teller: ProgressTeller,
    stop: Callable[[], bool],
) -> Found:
    import logging

    from gpuedge.probing.run import probe_all

    names, drivers = list(new), list(new.values())

    def tell(at: int, rows: list[ProbeRow]) -> None:
        if rows:
            teller.verdict(names[at], rows)
        else:
            teller.started(drivers[at])

    results = probe_all(drivers, deadline_s, begin=begin, stop=stop, tell=tell)
    for row in (row for rows in results for row in rows):
        is_news = row.status in NEWS and not row.is_starved
        text = "%s driver %s: %s (%s)"
        logging.getLogger("gpuedge.probing").log(
            logging.WARNING if is_news else logging.INFO,
            text, row.backend, row.name, row.reason, plain(row.key, 300),
        )  # fmt: skip
    return dict(zip(names, results, strict=True))


class ProgressTeller:
    """Tells the caller of a probe how far it is; of each driver's verdict once."""

    def __init__(self, tell: Progress | None, total: int) -> None:
        self._tell = tell
        self._total = total
        self._told: set[str] = set()
        self._done = 0

    def started(self, driver: Candidate) -> None:
        """Tell that a driver is begun with."""
        if self._tell is not None:
            name = driver_name(driver.key)
            step = ProbeProgress("started", driver.backend, name, (), self._done, self._total)
            self._tell(step)

    def verdict(self, key: str, rows: Sequence[ProbeRow]) -> None:
        """Tell what was found of a driver, by the key of its verdict; "" where there is none."""
        if self._tell is None or key in self._told:
            return
        self._told |= {key} - {""}
        self._done += 1
        name = driver_name(rows[0].key) or rows[0].backend
        step = ProbeProgress(
            "verdict", rows[0].backend, name, tuple(rows), self._done, self._total
        )  # fmt: skip
        self._tell(step)


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
