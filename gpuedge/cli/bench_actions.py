"""The actions of ``gpuedge bench``: run, compare, history, bisect, export."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuedge.bench.bisection import LEAST_ROUNDS, Bisection, FoundCommit, measure_commits
from gpuedge.bench.cases import BenchCase, SkippedCase, cases_of
from gpuedge.bench.checkouts import Repository
from gpuedge.bench.estimates import Ratio, as_json, rounds_needed
from gpuedge.bench.export import pytest_benchmark, write_asv
from gpuedge.bench.history import (
    RULE,
    STATISTIC,
    Histories,
    histories,
    iterations_needed,
    present,
    verdict,
)
from gpuedge.bench.interleave import MAX_ROUNDS, ROUNDS, measure_case
from gpuedge.bench.page import page
from gpuedge.bench.peers import PEERS
from gpuedge.bench.results import BenchResult, ratio
from gpuedge.bench.spec import SpecPlaces
from gpuedge.bench.store import SUFFIX, is_url, keep, kept
from gpuedge.bench.subjects import OWN, SubjectName, check_call, parse_subject
from gpuedge.bench.tables import MARKS, result_tables, shown_ratio
from gpuedge.cli.arguments import check_apart, check_writable, whole
from gpuedge.cli.check import add_shapes, read_shapes
from gpuedge.cli.devices import named_gpu
from gpuedge.cli.output import Output, blaming
from gpuedge.core.errors import InputError, UsageError
from gpuedge.core.text import Table, duration, shown
from gpuedge.runtime.strings import CPU
from gpuedge.safety.paths import save_named


def percent(text: str) -> float:
    """Return the fraction that a number of percent is, such as ``5`` or ``5%``."""
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        number = 0.0
    if not 0.01 <= number <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of percent from 0.01 to 1000")
    return number / 100


def add_actions(parser: argparse.ArgumentParser) -> None:
    """Add the actions and their arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION")

    def action(name: str, about: str) -> Callable[..., Any]:
        made = actions.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")
        return made.add_argument

    add = action("run", "time cases on devices and other runtimes, in turn")
    add("case", nargs="+", metavar="CASE", help=CASE)
    add("--on", metavar="S,...", default=CPU,
        help="what runs them: devices, runtimes, builds (cpu)")  # fmt: skip
    add("--peers", action="store_true", help=f"and every runtime known: {', '.join(PEERS)}")
    _add_measuring(add)
    add("--check", action="store_true",
        help="judge by the history in the first --store, run what is suspect once more; exit 1 if "
        "the level is slower than the one before")  # fmt: skip
    add = action("compare", "time cases on two subjects in turn, or compare saved results")
    add("a", metavar="A", help="a device, runtime or build, or a place of saved results")
    add("b", metavar="B", help="what is compared with it")
    add("case", nargs="*", metavar="CASE", help=CASE)
    _add_measuring(add)
    _add_effect(add)
    add = action("history", "judge a history of results: exit 1 if the latest level is slower")
    add("store", metavar="PLACE", help="a folder, file or fsspec URL of results")
    _add_effect(add)
    add = action("bisect", "find the commit that made a case slower")
    add("good", metavar="GOOD", help="a commit that is fast")
    add("bad", metavar="BAD", help="a commit that is slow")
    add("case", metavar="CASE", help=CASE)
    _add_builds(add)
    _add_files(add)
    _add_rounds(add, 5 * LEAST_ROUNDS)
    add = action("export", "write results in the formats of other tools")
    add("store", metavar="PLACE", help="a folder, file or fsspec URL of results")
    add("--pytest-benchmark", metavar="FILE", help="JSON of pytest-benchmark")
    add("--asv", metavar="FOLDER", help="a folder of results of asv")
    add("--html", metavar="FILE", help="a page with drawings")


CASE = (
    "a specification (.json, or .json#TEST), a model, MODULE:FUNCTION, or the name of a fixed graph"
)


def _add_rounds(add: Callable[..., Any], rounds: int) -> None:
    add("--rounds", type=whole(1, MAX_ROUNDS), default=rounds, metavar="N",
        help=f"rounds, each with new processes and two blocks on each side: 1 to {MAX_ROUNDS} "
        f"({rounds})")  # fmt: skip


def _add_files(add: Callable[..., Any]) -> None:
    add("--map", action="append", default=[], metavar="NAME=VALUE",
        help="replace {NAME} in specifications; repeatable")  # fmt: skip
    add("--root", metavar="FOLDER", help="where locations that begin with // lie")
    add("--fetch", action="store_true",
        help="download files of specifications, if their SHA-256 is known")  # fmt: skip
    add_shapes(add)


def _add_builds(add: Callable[..., Any]) -> None:
    add("--device", metavar="D", default=CPU, help="what builds and commits run on (cpu)")
    add("--setup", metavar="CMD", default="", help="a shell command that builds a checkout")
    add("--python", metavar="PATH", default="",
        help="the interpreter for a checkout, relative to it")  # fmt: skip
    add("--repository", metavar="FOLDER", default=".", help="where commits come from (here)")


def _add_measuring(add: Callable[..., Any]) -> None:
    _add_rounds(add, ROUNDS)
    _add_files(add)
    _add_builds(add)
    add("--store", action="append", default=[], metavar="PLACE",
        help="keep the results in a folder, or at a URL of fsspec; repeatable")  # fmt: skip
    add("--machine", metavar="NAME", default="", help="what results call this machine")
    add("--fresh-cache", action="store_true", help="cold means without gpuedge's own caches")
    add("--html", metavar="FILE", help="write a page with drawings")


def _add_effect(add: Callable[..., Any]) -> None:
    add("--effect", type=percent, default=RULE.effect, metavar="PERCENT",
        help=f"for which slow-down sample sizes are told ({RULE.effect:.0%})".replace("%", "%%")
    )  # fmt: skip


def run(options: argparse.Namespace, output: Output) -> int:
    """Do what was asked for."""
    with blaming():
        return {
            "run": _run, "compare": _compare, "history": _history, "bisect": _bisect,
            "export": _export,
        }[options.action](options, output)  # fmt: skip


def _cases(options: argparse.Namespace, given: Sequence[str]) -> list[BenchCase | SkippedCase]:
    strings = {}
    for pair in options.map:
        name, equal, value = pair.partition("=")
        if not name or not equal:
            raise UsageError(
                f"--map {pair!r} does not have the form NAME=VALUE.", asked_by="the command line",
                hint="--map MODEL_DIR=models",
            )  # fmt: skip
        strings[name] = value
    places = SpecPlaces(Path(options.root) if options.root else None, options.fetch)
    shapes = read_shapes(options.shape)
    found = [case for text in given for case in cases_of(text, places, strings, shapes)]
    names = [case.name for case in found if isinstance(case, BenchCase)]
    if double := [shown(name) for name in names if names.count(name) > 1]:
        raise InputError(f"Two cases are called {double[0]}.", asked_by="the command line",
                         known="by its name a case is found again")  # fmt: skip
    if shapes and not any(isinstance(case, BenchCase) and case.source for case in found):
        raise UsageError("--shape is for models, and none is to be timed.", asked_by="--shape")
    return found


def _check_places(options: argparse.Namespace, read: Sequence[str] = ()) -> None:
    """Check what will be written, before anything is measured; `read` are saved results."""
    check_writable(options.html, "--html")
    for place in (*options.store, *read):
        _check_no_result(options.html, "--html", place, is_read=place in read)
    for place in options.store:
        if is_url(place):
            if not place.partition("://")[2]:
                raise InputError(f"{place} names no folder.", asked_by="--store")
        else:
            check_writable(place, "--store", is_folder=True)


def _check_no_result(target: str | None, option: str, place: str, *, is_read: bool = True) -> None:
    """Refuse to write what is one of the results of a place, or would be read as one."""
    if not target or is_url(place):
        return
    at, held = (Path(os.path.realpath(path)) for path in (target, place))
    if (is_read and at == held) or (at.parent == held and at.name.endswith(SUFFIX)):
        raise UsageError(f"{target} is one of the results in {place}, or would be read as one.",
                         asked_by=option)  # fmt: skip


def _measured(
    options: argparse.Namespace, subjects: Sequence[SubjectName], cases: Sequence[BenchCase],
    output: Output,
) -> list[BenchResult]:  # fmt: skip
    """Probe the devices, check commits out, measure every case, and keep the results."""
    read = [Path(text.partition("#")[0]) for text in options.case]
    for case in cases:
        read += [*filter(None, [case.source]), *(case.inputs or {}).values()]
        read += (case.outputs or {}).values()
    stores = [("--store", place) for place in options.store if not is_url(place)]
    check_apart([*(("a case", str(p)) for p in read), ("--html", options.html), *stores])
    here = [s for s in subjects if not (s.python or s.tree or s.commit)]
    for call in dict.fromkeys(case.call for case in cases if case.call and here):
        check_call(call)
    for subject in here:
        if subject.peer == OWN and subject.device != CPU:
            named_gpu(subject.device, "bench run", output)
    repository = Repository(Path(options.repository), options.setup, options.python)
    results: list[BenchResult] = []
    with ExitStack() as stack, output.working("starting") as progress:
        ready = [stack.enter_context(repository.checked_out(subject)) for subject in subjects]
        for case in cases:
            found = measure_case(
                case, ready, rounds=options.rounds, machine=options.machine,
                is_fresh=options.fresh_cache, say=progress,
            )  # fmt: skip
            results += found
            for place in options.store:
                output.log(f"{case.name}: {keep(found, place)}")
    return results


def _run(options: argparse.Namespace, output: Output) -> int:
    _check_places(options)
    if options.check and not options.store:
        raise UsageError("--check needs a history.", asked_by="--check", hint="--store FOLDER")
    names = [*options.on.split(","), *(PEERS if options.peers else ())]
    subjects = [parse_subject(name, options.device) for name in dict.fromkeys(names)]
    cases = _cases(options, options.case)
    timed = [case for case in cases if isinstance(case, BenchCase)]
    skipped = [case for case in cases if isinstance(case, SkippedCase)]
    if not timed:
        raise InputError(f"No test of {options.case[0]} can run here.", known=skipped[0].why,
                         hint="a specification of an ONNX model")  # fmt: skip
    results = _measured(options, subjects, timed, output)
    parts: list[str | Table] = [*result_tables(results), MARKS, _not_run(skipped)]
    slower: list[str] = []
    verdicts: list[str] = []
    if options.check:
        judged, again = _checked(options, subjects, timed, results, output)
        for (case, subject, _), points in judged.items():
            state, sentence = verdict(points)
            verdicts.append(f"{case} on {subject}: {sentence}.")
            slower += [f"{case} on {subject}"] if state == "slower" else []
        if again:
            parts += ["Suspect, and run once more:", *result_tables(again)]
            results += again
        parts += verdicts
    if options.html:
        save_named(Path(options.html), page(results).encode(), "--html")
    body = {
        "schema": "gpuedge.bench.run/1", "results": [r.summary() for r in results],
        "skipped": [{"case": s.name, "why": s.why} for s in skipped], "slower": slower,
        "verdicts": verdicts,
    }  # fmt: skip
    output.show(body, parts)
    own = [r for r in results if r.failed and parse_subject(r.subject).peer == OWN]
    for result in own:
        output.log(f"{result.case} on {result.subject}: {result.failed}")
    return 1 if slower or own else 0


def _checked(
    options: argparse.Namespace, subjects: Sequence[SubjectName], cases: Sequence[BenchCase],
    results: Sequence[BenchResult], output: Output,
) -> tuple[Histories, list[BenchResult]]:  # fmt: skip
    """Judge what was measured by its history; run suspects once more."""
    states = _states(options.store[0], results)
    suspects = {case for (case, _, _), one in states.items() if one[-1].state == "suspect"}
    again: list[BenchResult] = []
    if suspects:
        output.log(f"Suspect, and run once more: {', '.join(sorted(suspects))}")
        again = _measured(options, subjects, [c for c in cases if c.name in suspects], output)
        states = _states(options.store[0], results)
    return states, again


def _not_run(skipped: Sequence[SkippedCase]) -> Table:
    return Table("Not run", ("test", "why"), [(one.name, one.why) for one in skipped])


def _states(place: str, results: Sequence[BenchResult]) -> Histories:
    """Return the judged histories of everything that was measured."""
    known = {(r.case, r.subject, r.machine) for r in results}
    return {key: one for key, one in histories(kept(place)).items() if key in known}


def _compare(options: argparse.Namespace, output: Output) -> int:
    sides = options.a, options.b
    _check_places(options, sides)
    saved = [is_url(s) or Path(s).exists() for s in sides]
    if any(saved) and not all(saved):
        raise UsageError(
            "Saved results are compared with saved results.", asked_by="the command line",
            known=f"there are results at {sides[saved.index(True)]}, none at "
            f"{sides[saved.index(False)]}",
            hint="a saved result takes no part in interleaving: measure both, or save both",
        )  # fmt: skip
    skipped: list[SkippedCase] = []
    if all(saved):
        pairs = list(_pairs(*(kept(side) for side in sides)))
        how = "saved results, not interleaved: drift between them counts as a difference"
    else:
        cases = _cases(options, options.case)
        timed = [case for case in cases if isinstance(case, BenchCase)]
        skipped = [case for case in cases if isinstance(case, SkippedCase)]
        if not timed:
            raise UsageError("There is no case to compare by.", asked_by="the command line",
                             known=skipped[0].why if skipped
                             else f"there are no results at {sides[0]} or {sides[1]}",
                             hint=f"gpuedge bench compare {sides[0]} {sides[1]} net.onnx"
                             )  # fmt: skip
        subjects = [parse_subject(side, options.device) for side in sides]
        found = _measured(options, subjects, timed, output)
        pairs = list(zip(found[::2], found[1::2], strict=True))
        how = "interleaved A B B A"
    if not pairs:
        raise InputError("These results have no case in common.", asked_by="the command line")
    ratios = [None if a.failed or b.failed else ratio(a, b) for a, b in pairs]
    rows = [
        _compared(a, b, found, options.effect) for (a, b), found in zip(pairs, ratios, strict=True)
    ]
    body = {"schema": "gpuedge.bench.compare/1", "a": sides[0], "b": sides[1], "how": how,
            "effect": options.effect, "cases": rows}  # fmt: skip
    tables = list(_compare_tables(body, ratios, skipped))
    if options.html:
        text = page(list(_apart(pairs, sides)), tables)
        save_named(Path(options.html), text.encode(), "--html")
    output.show(body, tables)
    return 1 if None in ratios else 0


def _apart(
    pairs: Iterable[tuple[BenchResult, BenchResult]], sides: tuple[str, str]
) -> Iterator[BenchResult]:
    """Yield the results of pairs; those of one subject are a case of their own, by their sides."""
    for pair in pairs:
        case = _title(pair[0].case, *(result.subject for result in pair))
        for side, result in zip(sides, pair, strict=True):
            is_one = case != result.case
            yield replace(result, case=case, subject=side) if is_one else result


def _title(case: str, a: str, b: str) -> str:
    """Return what a comparison is of: a case, and the subject where that is one."""
    return f"{case} on {a}" if a == b else case


def _pairs(
    before: Sequence[BenchResult], after: Sequence[BenchResult]
) -> Iterator[tuple[BenchResult, BenchResult]]:
    """Yield the latest results of the same case and subject; of the case, where it has one only."""
    first, second = ({(r.case, r.subject): r for r in side if r.blocks} for side in (before, after))
    for (case, subject), one in first.items():
        others = [r for (name, _), r in second.items() if name == case]
        is_alone = len(others) == sum(name == case for name, _ in first) == 1
        other = others[0] if is_alone else second.get((case, subject))
        if other is not None:
            yield one, other


def _compared(a: BenchResult, b: BenchResult, found: Ratio | None, effect: float) -> dict[str, Any]:
    return {
        "case": a.case, "failed": a.failed or b.failed or None,
        "ratio": None if found is None else as_json(found),
        "is_different": None if found is None else found.is_different,
        "needed": None if found is None else rounds_needed(found.spread, effect),
        "a": a.summary(), "b": b.summary(),
    }  # fmt: skip


def _compare_tables(
    body: dict[str, Any], ratios: Sequence[Ratio | None], skipped: Sequence[SkippedCase]
) -> Iterator[str | Table]:
    rows: list[tuple[str | None, ...]] = []
    for row, found in zip(body["cases"], ratios, strict=True):
        case = _title(row["case"], row["a"]["subject"], row["b"]["subject"])
        if found is None:
            rows.append((case, *[None] * 5, row["failed"]))
            continue
        p50 = [duration(row[side]["latency_ns"]["p50"]["value"]) for side in ("a", "b")]
        rows.append((case, *p50, shown_ratio(found), f"{found.p:.2g}", str(found.n),
                     f"{row['needed']} to find {100 * body['effect']:.3g} %"))  # fmt: skip
    title = f"{body['b']} against {body['a']} ({body['how']})"
    columns = ("case", "A p50", "B p50", "B / A", "p", "n", "n needed")
    yield Table(title, columns, rows)
    test = next((found.test for found in ratios if found), "")
    yield f"{test}; ratio of medians by Hodges and Lehmann, with its 95 % interval; {MARKS}"
    yield _not_run(skipped)


def _history(options: argparse.Namespace, output: Output) -> int:
    rule = replace(RULE, effect=options.effect)
    rows = []
    for (case, subject, machine), judged in histories(kept(options.store), rule).items():
        changes = [
            {"state": one.state, "ratio": one.ratio, "when": judged[one.since].point.when,
             "commit": judged[one.since].point.commit or None}
            for one in judged if one.since is not None
        ]  # fmt: skip
        last = judged[-1]
        rows.append({
            "case": case, "subject": subject, "machine": machine, "runs": len(judged),
            "state": last.state, "ratio": last.ratio, "limit": last.limit, "changes": changes,
            "is_slower": verdict(judged)[0] == "slower", "iterations": last.point.runs,
            "iterations_needed": iterations_needed(present(judged), rule),
        })  # fmt: skip
    if not rows:
        raise InputError(f"{options.store} holds no results.", hint="gpuedge bench run --store")
    body = {"schema": "gpuedge.bench.history/1", "statistic": STATISTIC, "effect": rule.effect,
            "least_runs": rule.least, "window": rule.window, "histories": rows}  # fmt: skip
    output.show(body, _history_tables(body))
    return 1 if any(row["is_slower"] for row in rows) else 0


def _history_tables(body: dict[str, Any]) -> Iterator[str | Table]:
    rows = []
    for row in body["histories"]:
        needed = row["iterations_needed"]
        change = row["changes"][-1] if row["changes"] else None
        rows.append((
            row["case"], row["subject"], str(row["runs"]), row["state"],
            None if row["ratio"] is None else f"{row['ratio']:.3f} ({row['limit']:.3f})",
            f"{row['iterations']}" + (f" of {needed}" if needed else " (no number suffices)"),
            "" if change is None else
            f"{change['state']} {change['ratio']:.2f}x since {change['when'][:19]} "
            f"{(change['commit'] or '')[:12]}",
        ))  # fmt: skip
    columns = ("case", "subject", "runs", "latest", "ratio (limit)", "iterations of needed",
               "last change")  # fmt: skip
    yield Table("Histories", columns, rows)
    yield (f"{body['statistic']}; at least {body['least_runs']} runs before. Iterations needed for "
           f"a slow-down by {body['effect']:.0%} with 95 %.")  # fmt: skip


def _bisect(options: argparse.Namespace, output: Output) -> int:
    if options.rounds < LEAST_ROUNDS:
        raise UsageError(f"bisect needs at least {LEAST_ROUNDS} rounds.", asked_by="--rounds",
                         known="fewer bound no ratio at 99 %")  # fmt: skip
    cases = [c for c in _cases(options, [options.case]) if isinstance(c, BenchCase)]
    if len(cases) != 1:
        raise UsageError("bisect takes one case.", asked_by="the command line",
                         known=f"{options.case} names {len(cases)}", hint="SPEC.json#TEST"
                         )  # fmt: skip
    repository = Repository(Path(options.repository), options.setup, options.python)
    commits = repository.between(options.good, options.bad)
    subject = parse_subject(f"{options.device}@commit={commits[0]}")
    begin = time.perf_counter()
    with output.working("bisecting", lines=True) as progress:
        measure = measure_commits(
            cases[0], repository, subject.device, options.rounds, lambda _: None
        )
        found = Bisection(commits, measure, progress).run()
    body = _bisect_body(found, commits, repository, time.perf_counter() - begin)
    output.show(body, _bisect_tables(body))
    return 0 if found.is_confirmed else 1


def _bisect_body(
    found: FoundCommit, commits: Sequence[str], repository: Repository, seconds: float
) -> dict[str, Any]:
    return {
        "schema": "gpuedge.bench.bisect/1", "commit": found.commit, "before": found.before,
        "message": repository.subject_line(found.commit), "commits": len(commits) - 1,
        "ratio": as_json(found.total), "is_confirmed": found.is_confirmed,
        "seconds": round(seconds, 1), "untestable": list(found.untestable),
        "steps": [{"commit": s.commit, "against": s.against, "ratio": as_json(s.ratio),
                   "is_slow": s.is_slow, "is_sure": s.is_sure} for s in found.steps],
    }  # fmt: skip


def _bisect_tables(body: dict[str, Any]) -> Iterator[str | Table]:
    rows = [(s["commit"][:12], s["against"][:12], f"{s['ratio']['value']:.3f}",
             str(s["ratio"]["n"]), "slow" if s["is_slow"] else "fast",
             "" if s["is_sure"] else "not sure") for s in body["steps"]]  # fmt: skip
    title = f"{len(rows)} steps for {body['commits']} commits, in {body['seconds']:.0f} s"
    yield Table(title, ("commit", "against", "ratio", "rounds", "side", ""), rows)
    if body["untestable"]:
        yield f"do not run: {' '.join(c[:12] for c in body['untestable'])}"
    sure = "is the first slow commit" if body["is_confirmed"] else "is not confirmed"
    yield f"{body['commit'][:12]} {sure}: {body['message']}"


def _export(options: argparse.Namespace, output: Output) -> int:
    targets = {"--pytest-benchmark": options.pytest_benchmark, "--html": options.html}
    if not any((*targets.values(), options.asv)):
        raise UsageError("Nothing is to be written.", asked_by="the command line",
                         hint="--pytest-benchmark FILE, --asv FOLDER, --html FILE")  # fmt: skip
    for option, target in targets.items():
        check_writable(target, option)
    check_writable(options.asv, "--asv", is_folder=True)
    place, asv = Path(options.store), options.asv and str(Path(options.asv) / "benchmarks.json")
    read = place.glob(f"*{SUFFIX}") if place.is_dir() else [place]
    written = [*targets.items(), ("--asv", options.asv), ("--asv", asv)]
    check_apart([*(("PLACE", str(path)) for path in read), *written])
    for option, target in targets.items():
        _check_no_result(target, option, options.store)
    results = kept(options.store)
    if not any(result.blocks for result in results):
        raise InputError(f"{options.store} holds no results with times.")
    if options.pytest_benchmark:
        import json

        text = json.dumps(pytest_benchmark(results), indent=1) + "\n"
        save_named(Path(options.pytest_benchmark), text.encode(), "--pytest-benchmark")
    if options.asv:
        write_asv(results, Path(options.asv), "--asv")
    if options.html:
        save_named(Path(options.html), page(results).encode(), "--html")
    files = [t for t in (*targets.values(), options.asv) if t]
    body = {"schema": "gpuedge.bench.export/1", "results": len(results), "files": files}
    output.show(body, [f"{len(results)} results: {', '.join(files)}"])
    return 0
