"""Results for other programs, read as those programs read them, and the schemas of our own."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import junitparser
import pytest
from lxml import etree
from test_conformance_results import HEADER, of, row, sample

import gpuedge.conformance
from gpuedge.conformance.about import header
from gpuedge.conformance.catalogue import everything
from gpuedge.conformance.formats import junit, lava, table, tap
from gpuedge.conformance.results import ResultSet

XSD = Path(__file__).parents[1] / "data" / "junit.xsd"
SCHEMA = Path(gpuedge.conformance.__file__).parent / "schemas" / "results.schema.json"
XFAIL = {"kind": "xfail", "reason": "issue 7", "link": "https://example.org/7"}
QUARANTINE = {"kind": "quarantine", "reason": "slow"}


def several() -> ResultSet:
    """Two devices, with every outcome there is."""
    second = of(
        row("add/1"), row("pow/1", "flake", reason="passes when run again alone", after="add/1"),
        row("pow/2", "failed", reason="2 # 3", expectation=XFAIL),
        row("pow/3", expectation=XFAIL), row("pow/4", "failed", expectation=QUARANTINE),
        row("pow/5", expectation=QUARANTINE), device="fake:1", host="h",
    )  # fmt: skip
    return ResultSet([sample(), second])


def test_junit_says_what_the_rows_say() -> None:
    part = sample()
    part.header["database"] = {"version": 3, "entries": [{"id": "x-1"}, {"id": "x-2"}]}
    root = ElementTree.fromstring(junit(ResultSet([part])))
    assert root.tag == "testsuites"
    (suite,) = root
    wanted = {"tests": "7", "failures": "1", "errors": "3", "skipped": "1", "time": "3.500"}
    assert {k: suite.get(k) for k in wanted} == wanted
    assert suite.get("timestamp") == "2026-01-02T03:04:05Z"
    properties = {p.get("name"): p.get("value") for p in suite.iter("property")}
    assert properties["identity.name"] == "Fake & Co"
    assert properties["caps.forms"] == "map group"
    assert properties["versions.gpuedge"] == "9.9"
    assert properties["database.entries.1.id"] == "x-2"
    found = {c.get("name"): c for c in suite.iter("testcase")}
    assert {c.get("classname") for c in found.values()} == {"add", "mul", "div"}
    assert [e.tag for e in found["add/1"]] == []
    assert found["mul/1"][0].tag == "failure" and found["mul/1"][0].text == "1 < 2"
    assert found["mul/2"][0].tag == "error" and found["mul/2"][0].get("message") == "bell  and "
    assert found["div/1"][0].get("type") == "GE-301"
    assert found["div/2"][0].tag == "skipped" and found["div/2"].get("time") == "0.5000"


def test_junit_is_what_others_read() -> None:
    etree.XMLSchema(etree.parse(XSD)).assertValid(etree.fromstring(junit(several())))
    suites = list(junitparser.JUnitXml.fromstring(junit(several())))
    assert [s.name for s in suites] == ["gpuedge.conformance.fake:0", "gpuedge.conformance.fake:1"]
    second = suites[1]
    assert (second.tests, second.failures, second.errors, second.skipped) == (6, 2, 0, 3)
    assert second.hostname == "h"
    came_to = {
        case.name: [type(each).__name__ for each in case.result] for case in second
    }  # fmt: skip
    assert came_to == {
        "add/1": [], "pow/1": ["Failure"], "pow/2": ["Skipped"], "pow/3": ["Failure"],
        "pow/4": ["Skipped"], "pow/5": ["Skipped"],
    }  # fmt: skip
    names = [(case.classname, case.name) for suite in suites for case in suite]
    assert len(set(names)) == len(names) and ("fake:1.add", "add/1") in names
    told = {case.name: case.result[0].message for case in second if case.result}
    assert told["pow/2"] == "expected to fail: issue 7 https://example.org/7 (2 # 3)"
    assert told["pow/3"] == "passed, though it was expected to fail: issue 7"
    assert told["pow/5"] == "in quarantine, passed: slow"


HARNESS = r"""
use TAP::Parser; use JSON::PP;
my $p = TAP::Parser->new({ source => $ARGV[0] });
my %c; my @seen;
while (my $r = $p->next) {
    $c{$r->type}++;
    push @seen, [$r->number, $r->is_ok ? 1 : 0, $r->is_actual_ok ? 1 : 0, $r->directive,
                 $r->explanation, $r->description] if $r->is_test;
}
print encode_json({ types => \%c, tests => \@seen, errors => [$p->parse_errors],
    plan => $p->plan, failed => [$p->failed], todo => [$p->todo], skipped => [$p->skipped],
    bonus => [$p->todo_passed] });
"""


def harness(data: bytes, folder: Path) -> dict[str, Any]:
    """What Perl's harness, which knows TAP up to 13, makes of a document."""
    if shutil.which("perl") is None:
        pytest.skip("there is no perl")
    file = folder / "r.tap"
    file.write_bytes(data)
    done = subprocess.run(
        ["perl", "-e", HARNESS, str(file)], capture_output=True, check=True, timeout=60
    )
    body: dict[str, Any] = json.loads(done.stdout)
    return body


def test_tap_is_what_a_harness_reads(tmp_path: Path) -> None:
    body = harness(tap(several()), tmp_path)
    assert len(body["errors"]) == 1 and "version" in body["errors"][0]  # 14, newer than Perl's 13
    assert body["plan"] == "1..13" and len(body["tests"]) == 13
    assert body["types"]["yaml"] == len(body["failed"]) == 6
    by_name = {each[5]: each for each in body["tests"]}
    assert by_name["- fake:0 add/1"][1:4] == [1, 1, ""]
    assert by_name["- fake:0 mul/1"][1:3] == [0, 0]
    assert by_name["- fake:0 div/2"][1:5] == [1, 1, "SKIP", "large"]
    assert by_name["- fake:1 pow/1"][1] == 0, "a flake is no pass"
    assert by_name["- fake:1 pow/2"][1:4] == [1, 0, "TODO"]
    assert by_name["- fake:1 pow/2"][4].endswith("(2 \\# 3)")
    assert by_name["- fake:1 pow/3"][1] == 0, "an unexpected pass fails"
    assert by_name["- fake:1 pow/4"][1:4] == [1, 0, "TODO"]
    assert by_name["- fake:1 pow/5"][1:4] == [1, 1, "TODO"]
    whole = harness(tap(several()).replace(b"version 14", b"version 13"), tmp_path)
    assert whole["errors"] == [] and whole["failed"] == body["failed"]


def test_tap_bails_out_where_cases_are_missing(tmp_path: Path) -> None:
    assert harness(tap(several(), not_run=5), tmp_path)["types"]["bailout"] == 1


def test_lava_takes_every_signal() -> None:
    lines = lava(several()).decode().splitlines()
    ids: list[str] = []
    results: Counter[str] = Counter()
    for line in lines:
        assert line.startswith("<LAVA_SIGNAL_") and line.endswith(">")
        name, *words = line.removeprefix("<LAVA_SIGNAL_").removesuffix(">").split()
        if name == "TESTCASE":
            said = dict(word.split("=") for word in words)  # exactly two parts, or LAVA refuses it
            ids.append(said["TEST_CASE_ID"])
            results[said["RESULT"]] += 1
            float(said["MEASUREMENT"])
    assert len(set(ids)) == len(ids) == 13
    assert results == {"pass": 3, "fail": 6, "skip": 2, "unknown": 2}
    assert lines[0] == "<LAVA_SIGNAL_TESTSET START fake_0>"


def test_names_of_cases_differ_in_what_lava_takes() -> None:
    many = of(*(row(case.id) for case in everything("full")))
    ids = [line.split()[1] for line in lava(ResultSet([many])).decode().splitlines()[1:-1]]
    assert len(set(ids)) == len(many.rows)


def test_csv_is_a_table() -> None:
    rows = list(csv.DictReader(io.StringIO(table(several()).decode())))
    assert len(rows) == 13
    told = {(r["device"], r["id"]): r for r in rows}
    assert told["fake:1", "pow/3"]["outcome"] == "xpassed"
    assert told["fake:1", "pow/1"]["after"] == "add/1"
    assert told["fake:0", "mul/2"]["reason"] == "bell  and "
    assert told["fake:0", "add/1"]["worst"] == "0.25" and told["fake:0", "mul/3"]["worst"] == ""


def test_lines_are_as_the_schema_says() -> None:
    valid = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))
    jsonschema.Draft202012Validator.check_schema(valid.schema)
    identity = {"api": "gles20", "name": "Fake", "os": "linux", "GL_VENDOR": "x"}
    top = header("fake:0", identity, profile="smoke", shard="1/2", labels={"a": "b"})
    made = of(*several().parts[1].rows.values(), **top)
    for line in made.lines().splitlines():
        valid.validate(json.loads(line))
    for wrong in ({**top, "device": ""}, {**top, "shard": "one"}, {**row("a"), "device": "d",
                  "status": "perfect"}, {**row("a"), "device": "d", "map": ["1x"]},
                  row("a"), HEADER):  # fmt: skip
        assert not valid.is_valid(wrong)
