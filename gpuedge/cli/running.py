"""Running conformance cases on devices, one after the other, into one set of results."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gpuedge
from gpuedge.cli.arguments import seconds, whole
from gpuedge.cli.devices import PROBE_S, named_gpu
from gpuedge.cli.output import Output
from gpuedge.conformance.about import Redaction, header, secrets
from gpuedge.conformance.bench import PASSED, SKIPPED, Row
from gpuedge.conformance.case import Case
from gpuedge.conformance.expectations import Expectation, Expectations
from gpuedge.conformance.results import Results, ResultSet, check_same
from gpuedge.conformance.runner import CASE_S, Runner
from gpuedge.core.errors import GpuEdgeError, InputError, NoUsableDeviceError, UsageError
from gpuedge.runtime.strings import AUTO, wanted

UNSUPPORTED = "unsupported"
"""The kind of expectation whose cases are not run."""

HARMLESS = (PASSED, SKIPPED)

MAX_JOBS = 256


@dataclass
class Campaign:
    """Cases that run on one device after the other.

    Attributes
    ----------
    found : ResultSet
        What came of it, brought up to date case by case.
    notes : list of str
        What went wrong outside of any case.
    error : GpuEdgeError, optional
        The first error that ended the work on a device.
    """

    profile: str
    cases: Sequence[Case]
    jobs: int = 1
    case_s: float = CASE_S
    retry: bool = True
    expectations: Expectations = field(default_factory=Expectations)
    redact: Redaction | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    found: ResultSet = field(default_factory=ResultSet)
    notes: list[str] = field(default_factory=list)
    error: GpuEdgeError | None = None

    def __post_init__(self) -> None:
        self._expected: dict[str, dict[str, Expectation]] = {}
        self._cases = {case.id: case for case in self.cases}

    def enter(self, device: str, identity: Mapping[str, Any]) -> Results:
        """Take a device in, with a row for each case that is not to be run on it."""
        about = header(device, identity, profile=self.profile, **self.extra)
        if self.expectations.digest:
            about["expectations"] = self.expectations.digest
        part = Results(self._shown(about | ({"redacted": True} if self.redact else {})))
        self.found.parts.append(part)
        names = [case.id for case in self.cases]
        expected = self._expected[device] = self.expectations.on(device, identity).of(names)
        for name, each in expected.items():
            if each.kind == UNSUPPORTED:
                row = {**self._cases[name].described(), "seconds": 0.0}
                part.add(self._judged(device, {**row, "status": SKIPPED, "reason": each.reason}))
        return part

    def resume(self, old: ResultSet, path: str, rerun: Sequence[str]) -> int:
        """Take over what an earlier run found, but for statuses that are to run again.

        Returns how many rows were taken. Raises InputError (GE-203) where results are of another
        device, driver, profile or version of gpuedge.
        """
        for part in old:
            if self.found.of(part.device) is None:
                raise InputError(
                    f"{path} holds results of another device.",
                    asked_by="--resume",
                    known=f"there {part.device!r}, here "
                    + ", ".join(repr(each.device) for each in self.found),
                    hint="run without --resume; gpuedge conformance merge puts devices together",
                )
        taken = 0
        for part in self.found:
            before = old.of(part.device)
            if before is None:
                continue
            check_same(before, part.header, path)
            part.header |= {k: v for k, v in before.header.items() if k in ("caps", "seconds")}
            for name, row in before.rows.items():
                kind = (row.get("expectation") or {}).get("kind")
                is_open = row.get("is_due") or row["status"] in rerun or kind == UNSUPPORTED
                if name in self._cases and name not in part.rows and not is_open:
                    part.add(self._judged(part.device, row))
                    taken += 1
        return taken

    def left(self, part: Results) -> list[Case]:
        """Return the cases without a row."""
        return [case for case in self.cases if case.id not in part.rows]

    @property
    def not_run(self) -> list[tuple[str, str]]:
        """Devices and ids of all cases without a row."""
        return [(part.device, case.id) for part in self.found for case in self.left(part)]

    def run(self, output: Output) -> None:
        """Run what is left on each device; an error of one is kept, and the next one goes on."""
        total = len(self.cases) * len(self.found.parts)
        with output.progress("starting") as progress:
            for part in self.found:
                try:
                    self._run(part, output, lambda name: progress(
                        name, sum(len(each.rows) for each in self.found), total))  # fmt: skip
                except GpuEdgeError as error:
                    told = {"code": error.code, "what": error.what, "known": error.known}
                    part.header["error"] = self._shown(told)
                    self.error = self.error or error
                    if len(self.found.parts) > 1:
                        output.log(f"{part.device}: {error}")

    def _run(self, part: Results, output: Output, progress: Callable[[str], None]) -> None:
        expected = self._expected[part.device]
        runner = Runner(
            part.device, self.profile, self.left(part), self.jobs, self.case_s,
            retry=self.retry, final=expected.keys(),
        )  # fmt: skip
        start = time.monotonic() - (part.header.get("seconds") or 0)  # of what went on before, too
        progress(part.device)
        try:
            for row in runner.rows():
                row = self._shown(self._judged(part.device, row))  # noqa: PLW2901
                part.add(row)
                self.found.flush()
                progress(part.device)
                if row["status"] not in HARMLESS and row["id"] not in expected:
                    again = "; it runs once more at the end" if row.get("is_due") else ""
                    if again or "again" not in row:  # what came out as before was told
                        output.log(f"{row['status']}: {row['id']}: {row.get('reason', '')}{again}")
        finally:
            if runner.header is not None:
                part.header["caps"] = self._shown(runner.header["caps"])
            part.header["seconds"] = round(time.monotonic() - start, 2)
            self.notes += runner.notes

    def _judged(self, device: str, row: Row) -> Row:
        """Return a row with what is expected of its case."""
        each = self._expected[device].get(row["id"])
        bare = {key: value for key, value in row.items() if key != "expectation"}
        return bare if each is None else {**bare, "expectation": each.told()}

    def _shown(self, row: Row) -> Row:
        return row if self.redact is None else dict(self.redact(row))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the verbs that run cases take."""
    parser.add_argument(
        "--device", action="append", metavar="D",
        help="such as vulkan, gles20:1; never the CPU; repeatable (every usable GPU)",
    )  # fmt: skip
    parser.add_argument(
        "--label", action="append", type=label, default=[], metavar="KEY=VALUE",
        help="keep this in the header; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--redact", action="store_true",
        help="replace host, serial number, names of devices and labels by hashes",
    )  # fmt: skip
    add_limits(parser)


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Add how many processes run cases at once, and how long a case may take."""
    add_jobs(parser)
    parser.add_argument(
        "--case-timeout", type=seconds(0.1, 86_400), default=CASE_S, metavar="S",
        help=f"seconds after which a case is given up, 0.1 to 86400 ({CASE_S:g})",
    )  # fmt: skip


def add_jobs(parser: argparse.ArgumentParser) -> None:
    """Add how many processes run cases at once."""
    parser.add_argument(
        "--jobs", type=whole(1, MAX_JOBS), default=max(1, os.cpu_count() or 1), metavar="N",
        help=f"processes at once, 1 to {MAX_JOBS}; by default one for each core",
    )  # fmt: skip


def label(text: str) -> tuple[str, str]:
    """Return the key and the value of ``KEY=VALUE``."""
    key, equals, value = text.partition("=")
    if not equals or not text.isprintable() or not key.strip() or len(text) > 1000:
        why = "is not KEY=VALUE in at most 1000 characters that print"
        raise argparse.ArgumentTypeError(f"{text[:80]!r} {why}")
    return key, value


def devices(named: Sequence[str] | None, verb: str, output: Output) -> list[tuple[str, Any]]:
    """Return device strings and identities of usable GPUs, each once.

    Without names, that which settings name; else every GPU that works here, and software
    rasterisers where there is nothing else.

    Raises
    ------
    UsageError (GE-200)
        ``auto`` or the CPU was named, or one device twice.
    UnknownDeviceError (GE-102), NoUsableDeviceError (GE-103)
        There is no such device, or none that works.
    """
    asked: Sequence[str | None] = named or ()
    if not asked and wanted(None) != AUTO:
        asked = [None]  # the setting's
    if asked:
        rows = [named_gpu(each, verb, output) for each in asked]
        twice = [r.device for i, r in enumerate(rows) if r.device in {q.device for q in rows[:i]}]
        if twice:
            raise UsageError(f"The device {twice[0]} is named twice.", asked_by="--device")
    else:
        with output.working("looking for devices"):
            report = gpuedge.probe(deadline_s=PROBE_S)
        hardware = [row for row in report.devices if not row.is_software]
        rows = hardware or list(report.devices)
        aside = [row.device for row in report.devices if row not in rows]
        if aside:
            output.log(f"software rasterisers left aside: {', '.join(aside)}")
        if not rows:
            raise NoUsableDeviceError(
                "No usable GPU was found.", asked_by=verb, hint="gpuedge doctor says why"
            )
    return [(row.device, dict(row.identity)) for row in rows]


def selection(body: Mapping[str, Any]) -> str:
    """Return the profile of results, and which of its cases were asked for."""
    only = ", ".join(body.get("only") or ())
    return f"{body['profile']}, only {only}" if only else str(body["profile"])


def told(counts: Mapping[str, int], took: str = "") -> str:
    """Return how many cases passed of those executed, and how many others there are of each kind.

    `counts` are those of `Results`, with ``not_run``.
    """
    others = {
        "do not apply": "unsupported", "in quarantine": "quarantined",
        "expected failures": "xfailed", "unexpected passes": "xpassed", "flakes": "flake",
        "not run": "not_run",
    }  # fmt: skip
    passed = f"{counts.get('passed', 0)} of {counts.get('executed', 0)} cases passed{took}"
    kinds = ((counts.get(name), words) for words, name in others.items())
    return "; ".join([passed, *(f"{number} {words}" for number, words in kinds if number)])


def redaction(
    options: argparse.Namespace, found: Sequence[tuple[str, Mapping[str, Any]]]
) -> Redaction | None:
    """Return what hides names, if that was asked for."""
    if not options.redact:
        return None
    return Redaction(secrets((identity for _, identity in found), dict(options.label)))
