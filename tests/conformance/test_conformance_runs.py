"""Runs put together and set side by side."""

from __future__ import annotations

from typing import Any

import pytest
from test_conformance_results import HEADER, of, row

from gpuedge.conformance.catalogue import everything, shard_of
from gpuedge.conformance.comparing import compare
from gpuedge.conformance.merging import merge, merged_told
from gpuedge.conformance.results import Results, ResultSet
from gpuedge.core.errors import InputError

NAMES = [case.id for case in everything("smoke")]


def shard(part: int, parts: int, **changes: Any) -> ResultSet:
    names = [name for name in NAMES if shard_of(name, parts) == part]
    made = of(*map(row, names), shard=f"{part}/{parts}", seconds=2.0, **changes)
    return ResultSet([made])


def test_shards_of_devices_become_one_file() -> None:
    files = {f"{d}-{i}": shard(i, 3, device=d) for d in ("fake:0", "fake:1") for i in (1, 2, 3)}
    made = merge(files)
    assert [p.device for p in made.results] == ["fake:0", "fake:1"]
    for part in made.results:
        assert part.rows.keys() == set(NAMES) and part.header["shard"] == "1/1"
        assert part.header["seconds"] == 6.0
        assert {r["device"] for r in part.rows.values()} == {part.device}
    assert (made.conflicts, made.missing, made.absent) == ([], {}, {})
    assert merge({"again": made.results}).results.parts == made.results.parts


def test_what_is_missing_is_named() -> None:
    made = merge({"a": shard(1, 4), "b": shard(3, 4)})
    assert made.missing == {"fake:0": ["2/4", "4/4"]}
    assert made.absent == {"fake:0": sum(shard_of(n, 4) in (2, 4) for n in NAMES)}
    assert made.results.parts[0].header["shard"] == "1/4 3/4"
    # what two machines had divided otherwise may still be whole
    assert merge({"a": shard(1, 2), "b": shard(2, 2), "c": shard(1, 3)}).missing == {}
    torn = shard(1, 1)
    torn.parts[0].rows.popitem()
    assert merge({"a": torn}).absent == {"fake:0": 1}
    chosen = of(*(row(n) for n in NAMES if n.startswith("add/")), only=["add/*"])
    assert merge({"a": ResultSet([chosen])}).absent == {}
    others = [n for n in NAMES if shard_of(n, 2) == 2 and not n.startswith("add/")]
    made = merge({"a": ResultSet([chosen]), "b": shard(1, 2)})
    assert made.absent == {"fake:0": len(others)}


def test_what_contradicts_is_named_and_the_worse_is_kept() -> None:
    one = ResultSet([of(row("add/1"), row("add/2", "failed"), row("add/3", "flake"))])
    two = ResultSet([of(row("add/1", "crashed"), row("add/2"), row("add/3"))])
    for first, second in ((one, two), (two, one)):
        made = merge({"x": first, "y": second})
        kept = {n: r["status"] for n, r in made.results.parts[0].rows.items()}
        assert kept == {"add/1": "crashed", "add/2": "failed", "add/3": "flake"}
        assert len(made.conflicts) == 3
    made = merge({"x": one, "y": two})
    assert made.conflicts[0] == {
        "device": "fake:0", "id": "add/1", "said": {"x": "passed", "y": "crashed"},
    }  # fmt: skip
    assert merged_told(made)["conflicts"] == made.conflicts


@pytest.mark.parametrize("key", ["host", "serial", "identity"])
def test_devices_of_one_name_are_kept_apart(key: str) -> None:
    other = {"identity": {"name": "Other"}}.get(key, "other")
    parts = [of(row("add/1")), of(row("add/1", "failed"), **{key: other})]
    made = merge({"a": ResultSet(parts[:1]), "b": ResultSet(parts[1:])})
    assert [p.device for p in made.results] == ["fake:0", "fake:0~2"]
    assert made.results.parts[1].rows["add/1"]["device"] == "fake:0~2" and not made.conflicts
    again = merge({"b": ResultSet(parts[1:]), "m": made.results})
    assert [p.device for p in again.results] == ["fake:0", "fake:0~2"], "in any order"


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"profile": "full"}, "another profile"),
     ({"versions": {"gpuedge": "10"}}, "another version of gpuedge")],
)  # fmt: skip
def test_results_that_do_not_belong_together(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        merge({"a": ResultSet([of(row("add/1"))]), "b": ResultSet([of(row("add/2"), **changes)])})
    assert "b holds" in str(caught.value) and str(next(iter(changes)))[:7] in str(caught.value)


def told(body: dict[str, Any], name: str) -> list[str]:
    return [each["id"] for each in body[name]]


def test_two_runs_side_by_side() -> None:
    xfail = {"expectation": {"kind": "xfail", "reason": "known"}}
    before = of(
        row("a"), row("b", "failed"), row("c", worst=0.1), row("d", worst=0.1),
        row("e", worst=1e-5), row("f"), row("g", "failed"), row("h", "failed", **xfail), row("i"),
    )  # fmt: skip
    after = of(
        row("a", "flake"), row("b"), row("c", worst=0.3), row("d", worst=0.15),
        row("e", worst=9e-3), row("f", "skipped"), row("g", "crashed"), row("h", **xfail),
        row("j"), row("k", "failed"), versions={"gpuedge": "10"}, device="fake:7",
    )  # fmt: skip
    body = compare(ResultSet([before]), ResultSet([after]), 2.0)
    assert told(body, "new_failures") == ["a", "h", "k"]
    assert told(body, "fixed") == ["b"]
    assert told(body, "changed") == ["f", "g"]
    assert told(body, "errors") == ["c"]
    assert (told(body, "only_in_baseline"), told(body, "only_in_new")) == (["i"], ["j", "k"])
    assert body["counts"] == {
        "new_failures": 3, "fixed": 1, "changed": 2, "errors": 1, "only_in_baseline": 1,
        "only_in_new": 2,
    }  # fmt: skip
    assert body["devices"][0]["header"] == {"versions.gpuedge": ["9.9", "10"]}
    assert body["errors"][0]["new"] == {"status": "passed", "outcome": "passed", "why": "",
                                        "worst": 0.3}  # fmt: skip
    assert told(compare(ResultSet([before]), ResultSet([after]), 1.2), "errors") == ["c", "d"]
    assert told(compare(ResultSet([after]), ResultSet([before]), 2.0), "errors") == ["c"]


def test_devices_are_paired_by_name() -> None:
    def both(*statuses: str) -> ResultSet:
        parts = [of(row("a", s), device=f"fake:{i}") for i, s in enumerate(statuses)]
        return ResultSet(parts)

    body = compare(both("passed", "failed"), both("failed", "passed", "passed"), 2.0)
    assert [each["device"] for each in body["new_failures"]] == ["fake:0"]
    assert [each["device"] for each in body["fixed"]] == ["fake:1"]
    assert [each["device"] for each in body["only_in_new"]] == ["fake:2"]
    assert len(body["devices"]) == 2
    nothing = compare(ResultSet([Results(HEADER)]), ResultSet([Results(HEADER)]), 2.0)
    assert not any(nothing["counts"].values())
