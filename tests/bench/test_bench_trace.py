"""Traces: what is written is read, and whatever was cut, edited or impossible is refused whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_fakes import traced

from gpuedge.bench import trace
from gpuedge.core.errors import InputError

GOOD = trace.dumped(traced(np.random.default_rng(1), graphs=("relu-4k", "lenet-28"), windows=2))
LINES = GOOD.splitlines(keepends=True)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    made = traced(np.random.default_rng(2))
    path = tmp_path / "a.jsonl"
    trace.write(made, str(path))
    assert trace.read(path) == made
    assert [p.name for p in tmp_path.iterdir()] == ["a.jsonl"]


@given(st.integers(0, len(GOOD) - 1))
@settings(max_examples=400)
def test_every_truncation_is_refused(length: int) -> None:
    with pytest.raises(InputError, match=r"line [0-9]+: .*refused whole"):
        trace.parsed(GOOD[:length], "a trace")


@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
@settings(max_examples=400)
def test_every_changed_byte_is_refused(place: int, change: int) -> None:
    body = bytearray(GOOD)
    body[place] ^= change
    with pytest.raises(InputError, match=r"line [0-9]+: .*refused whole"):
        trace.parsed(bytes(body), "a trace")


@given(st.integers(0, len(LINES) - 1), st.sampled_from(("drop", "double", "swap")))
def test_lines_that_are_missing_doubled_or_moved_are_refused(at: int, how: str) -> None:
    lines = list(LINES)
    if how == "drop":
        del lines[at]
    elif how == "double":
        lines.insert(at, lines[at])
    else:
        other = (at + 1) % len(lines)
        lines[at], lines[other] = lines[other], lines[at]
    with pytest.raises(InputError, match="refused whole"):
        trace.parsed(b"".join(lines), "a trace")


@given(st.binary(max_size=200))
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(InputError, match="refused whole"):
        trace.parsed(data, "a trace")


def sealed(rows: list[Any]) -> bytes:
    """Lines with a seal that fits them: what a tool that is wrong, not broken, would write."""
    body = "".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows).encode()
    return body + trace._seal(body)


def rows() -> list[Any]:
    return [json.loads(line) for line in LINES[:-1]]


def first(row: dict[str, Any]) -> dict[str, Any]:
    window: dict[str, Any] = row["windows"][0]
    return window


def set_took(value: Any) -> Callable[[list[Any]], None]:
    return lambda r: first(r[1])["took_ns"].__setitem__(3, value)


def test_the_helper_writes_what_is_read() -> None:
    assert sealed(rows()) == GOOD


CORRUPTIONS: dict[str, tuple[Callable[[list[Any]], Any], int, str]] = {
    "another version": (lambda r: r[0].update(schema="gpuedge.trace/2"), 1, "schema"),
    "no schema": (lambda r: r[0].pop("schema"), 1, "schema"),
    "a host's name": (lambda r: r[0].update({"class": "Bob's phone"}), 1, "class is no word"),
    "one key more": (lambda r: r[0].update(serial="R58M"), 1, "'serial' is not part of a trace"),
    "one key less": (lambda r: r[0].pop("cores"), 1, "cores is missing"),
    "fewer graphs": (lambda r: r[0].update(graphs=3), 4, "is missing"),
    "more graphs": (lambda r: r[0].update(graphs=1), 1, "promises"),
    "other runs": (lambda r: r[0].update(runs=r[0]["runs"] + 1), 1, "promises"),
    "opening in no time": (lambda r: r[0].update(opening_ns=0), 1, "opening_ns"),
    "a flag as a number": (lambda r: r[0].update(is_software=1), 1, "neither true nor false"),
    "zero time": (set_took(0), 2, "took_ns"),
    "negative time": (set_took(-5), 2, "took_ns"),
    "a time of 31 years": (set_took(10**18 + 1), 2, "took_ns"),
    "a fraction": (set_took(1.5), 2, "took_ns"),
    "a text": (set_took("12"), 2, "took_ns"),
    "a truth value": (set_took(True), 2, "took_ns"),
    "null": (set_took(None), 2, "took_ns"),
    "a negative start": (lambda r: first(r[1])["start_ns"].__setitem__(0, -1), 2, "start_ns"),
    "a clock that went backwards": (
        lambda r: first(r[1])["start_ns"].__setitem__(4, first(r[1])["start_ns"][2]), 2, "backwards"
    ),
    "runs that overlap others": (
        lambda r: r[2].update(windows=r[1]["windows"]), 3, "before another one had ended"
    ),
    "a run too few": (lambda r: first(r[1])["took_ns"].pop(), 2, "differ in number"),
    "an unknown side": (
        lambda r: first(r[1]).update(sides="x" + first(r[1])["sides"][1:]), 2, "sides"
    ),
    "no warm run": (lambda r: first(r[1]).update(sides=first(r[1])["sides"].lower()), 2, "lacks"),
    "no windows": (lambda r: r[1].update(windows=[]), 2, "no windows"),
    "an unknown graph": (lambda r: r[1].update(graph="bob-net"), 2, "unknown graph"),
    "a graph twice": (lambda r: r[2].update(graph=r[1]["graph"]), 3, "comes twice"),
    "work that is none": (lambda r: r[1]["work"].update(bytes_in=-1), 2, "bytes_in"),
    "work beyond a float": (lambda r: r[1]["work"]["flops"].update(map=10**400), 2, "map"),
    "launches of a fraction": (lambda r: r[1]["work"].update(launches=0.5), 2, "launches"),
    "compiled in no time": (lambda r: r[2]["compile_ns"].update(gpu=0), 3, "gpu"),
    "a list for a line": (lambda r: r.__setitem__(1, [1]), 2, "no JSON object"),
    "depth": (lambda r: r.__setitem__(1, "[" * 100_000), 2, "no JSON object"),
    "a key twice": (
        lambda r: r.__setitem__(1, json.dumps(r[1])[:-1] + ', "graph": "relu-4k"}'), 2, "twice"
    ),
    "not a number": (
        lambda r: r.__setitem__(2, json.dumps(r[2]).replace("1000000", "NaN", 1)), 3, "NaN"
    ),
    "infinity": (
        lambda r: r.__setitem__(2, json.dumps(r[2]).replace("1000000", "Infinity", 1)), 3, "Infin"
    ),
    "digits without end": (
        lambda r: r.__setitem__(2, json.dumps(r[2]).replace("1000000", "9" * 9999, 1)), 3, "number"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_an_impossible_field_is_refused_with_its_line(name: str) -> None:
    change, line, words = CORRUPTIONS[name]
    body = rows()
    change(body)
    with pytest.raises(InputError, match=rf"line {line}: .*({words}).*refused whole"):
        trace.parsed(sealed(body), "a trace")


def test_an_edit_that_is_possible_is_refused_by_the_seal() -> None:
    body = GOOD.replace(b'"cores": 8', b'"cores": 6')
    with pytest.raises(InputError, match="SHA-256"):
        trace.parsed(body, "a trace")


def test_what_cannot_be_read_or_written_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        trace.read(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="cannot be read"):
        trace.read(tmp_path)
    with pytest.raises(InputError, match="cannot be written"):
        trace.write(traced(np.random.default_rng(3)), str(tmp_path))
    assert not [*tmp_path.iterdir()]
