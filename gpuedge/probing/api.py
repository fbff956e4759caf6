"""`gpuedge.probe()`: every driver tried in its own process, once; answered from disk after that."""

from __future__ import annotations

import os
import time

from gpuedge import __version__, backends
from gpuedge.core import config
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

    from gpuedge.core.driver import Candidate

NEWS = {"crashed", "timeout", "wrong"}
"""Statuses worth one WARNING line when they are found (not when they are read from the cache)."""


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
    candidates, without = _candidates(_names(backends), environ)
    keys = _keys(candidates, environ)
    store = Store(paths.cache_folder())
    now = time.time()
    known: dict[str, list[ProbeRow]] = {}
    if not refresh:
        for key in keys.values():
            rows = store.find(key, deadline_s, now)
            if rows is not None:
                known[key] = rows
    barred = [(n, c) for n, c in candidates if c is not None and pins.is_barred(n)]
    known |= {keys[n, c.key]: [pins.pinned_row(c)] for n, c in barred}
    new = [(k, c) for n, c in candidates if c is not None and (k := keys[n, c.key]) not in known]
    if new:
        found = _probe_new(new, deadline_s, begin)
        known |= {key: rows for key, (_, rows) in found.items()}
        lasting = {key: f for key, f in found.items() if all(map(_is_lasting, f[1]))}
        if lasting:
            store.save(lasting, deadline_s, now)
    tried: list[ProbeRow] = []
    for name, candidate in candidates:
        verdict = [without[name]] if candidate is None else known[keys[name, candidate.key]]
        tried += map(_marked, verdict)
    numbered = number(tried)
    shown = pins.apply(numbered)
    if shown is not numbered:  # what is left alone is not a route any more
        numbered = number(shown)
    return ProbeReport(numbered, __version__, time.perf_counter() - start)


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
    if given is not None and not all(isinstance(n, str) for n in given):
        raise ConfigError(f"{given!r} is not a list of backends.", asked_by="probe(backends=...)")
    value = config.get("backends", call=tuple(given) if given else None).value
    return list(dict.fromkeys(value or backends.PROBED))


def _candidates(
    names: list[str], environ: Mapping[str, str]
) -> tuple[list[tuple[str, Candidate | None]], dict[str, ProbeRow]]:
    """List the candidates of each backend; one without any stands as None, and has a row."""
    loaded = [backends.load(name) for name in names]  # every name is checked before any is used
    found: list[tuple[str, Candidate | None]] = []
    rows: dict[str, ProbeRow] = {}
    for name, backend in zip(names, loaded, strict=True):
        listed: Sequence[Candidate] = ()
        try:
            listed = backend.candidates(environ)
        except Exception as error:  # a plug-in's
            why = Reason("open-failed", plain(f"{type(error).__name__}: {error}", 300)).sentence
            rows[name] = ProbeRow(name, name, "broken", "open-failed", why)
        if not listed:
            why = Reason("no-candidates").sentence
            rows.setdefault(name, ProbeRow(name, name, "absent", "no-candidates", why))
        found += [(name, c) for c in listed] or [(name, None)]
    return found, rows


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
    candidates, _ = _candidates(list(config.get("backends").value or backends.PROBED), environ)
    return number(row for _, c in candidates if c is not None for row in store.latest(c))


def _keys(
    candidates: list[tuple[str, Candidate | None]], environ: Mapping[str, str]
) -> dict[tuple[str, str], str]:
    present = [(name, c) for name, c in candidates if c is not None]
    if not present:
        return {}
    key = Keys(environ)
    return {(name, c.key): key(c) for name, c in present}


def _probe_new(
    new: list[tuple[str, Candidate]], deadline_s: float, begin: float
) -> dict[str, tuple[Candidate, list[ProbeRow]]]:
    import logging

    from gpuedge.probing.judge import is_starved
    from gpuedge.probing.run import probe_all

    results = probe_all([c for _, c in new], deadline_s, begin=begin)
    for row in (row for rows in results for row in rows):
        is_news = row.status in NEWS and not is_starved(row)
        text = "%s driver %s: %s (%s)"
        logging.getLogger("gpuedge.probing").log(
            logging.WARNING if is_news else logging.INFO,
            text, row.backend, row.name, row.reason, plain(row.key, 300),
        )  # fmt: skip
    return {key: (c, rows) for (key, c), rows in zip(new, results, strict=True)}


def _is_lasting(row: ProbeRow) -> bool:
    """Say whether a verdict is about the driver, rather than about this attempt to probe it."""
    is_ours = row.code in {"no-token", "no-child"} or row.evidence.get("step") in {
        "start",
        "prepare",
    }
    return not is_ours and not (row.status == "timeout" and row.evidence.get("is_unfinished"))


def _marked(row: ProbeRow) -> ProbeRow:
    """Say of a cached crash or hang that it is cached, and how to try again."""
    if not row.is_cached or row.status not in {"crashed", "timeout"}:
        return row

    return row.replace(reason=f"{row.reason} ({HOW_TO_REFRESH})")
