"""Traces: what is written is read, and whatever was cut, edited or impossible is refused whole.

What each field may be, `tests/unit/test_records.py` tries.
"""

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

from gpuedge.bench import SCHEMA, trace
from gpuedge.core.errors import InputError
from gpuedge.core.record import plain
from gpuedge.safety.store import sealed_bytes

MADE = traced(np.random.default_rng(1), graphs=("relu-4k", "lenet-28"), windows=2)
GOOD = trace.dumped(MADE)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    made = traced(np.random.default_rng(2))
    path = tmp_path / "a.trace"
    trace.write(made, str(path))
    assert trace.read(path) == made
    assert [p.name for p in tmp_path.iterdir()] == ["a.trace"]


@given(st.integers(0, len(GOOD) - 1))
@settings(max_examples=400)
def test_every_truncation_is_refused(length: int) -> None:
    with pytest.raises(InputError, match=r"cut short or edited.*refused whole"):
        trace.parsed(GOOD[:length], "a trace")


@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
@settings(max_examples=400)
def test_every_changed_byte_is_refused(place: int, change: int) -> None:
    body = bytearray(GOOD)
    body[place] ^= change
    with pytest.raises(InputError, match=r"cut short or edited.*refused whole"):
        trace.parsed(bytes(body), "a trace")


@given(st.binary(max_size=200))
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(InputError, match="refused whole"):
        trace.parsed(data, "a trace")


def sealed(body: Any, schema: str = SCHEMA) -> bytes:
    """A seal that fits: what a tool that is wrong, not broken, would write."""
    text = body if isinstance(body, str) else json.dumps(body)
    return sealed_bytes(schema, text.encode())


def window(body: Any) -> Any:
    return body["series"][0]["windows"][0]


CORRUPTIONS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a host's name": (lambda b: b.update(engine="Bob's phone"), "engine"),
    "work that names someone": (lambda b: b["series"][0]["work"]["flops"].update(Bob=1), "flops"),
    "a clock that went backwards": (
        lambda b: window(b)["start_ns"].__setitem__(4, window(b)["start_ns"][2]), "backwards"
    ),
    "runs that overlap others": (
        lambda b: b["series"][1].update(windows=b["series"][0]["windows"]), "had ended"
    ),
    "a run too few": (lambda b: window(b)["took_ns"].pop(), "differ in number"),
    "no warm run": (lambda b: window(b).update(sides=window(b)["sides"].lower()), "lacks"),
    "no windows": (lambda b: b["series"][0].update(windows=[]), "no windows"),
    "a graph twice": (lambda b: b["series"].append(b["series"][0]), "comes twice"),
}  # fmt: skip


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_runs_that_no_thread_made_are_refused(name: str) -> None:
    change, words = CORRUPTIONS[name]
    body = plain(MADE)
    assert trace.parsed(sealed(body), "a trace") == MADE
    change(body)
    with pytest.raises(InputError, match=rf"{words}.*refused whole"):
        trace.parsed(sealed(body), "a trace")


@pytest.mark.parametrize("text", ["[1]", "[" * 100_000, "9" * 9999, '{"cores": NaN}'])
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="refused whole"):
        trace.parsed(sealed(text), "a trace")


def test_another_version_is_refused() -> None:
    with pytest.raises(InputError, match="another version"):
        trace.parsed(sealed(plain(MADE), "gpuedge.trace/1"), "a trace")


def test_what_cannot_be_read_or_written_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        trace.read(tmp_path / "none.trace")
    with pytest.raises(InputError, match="cannot be read"):
        trace.read(tmp_path)
    with pytest.raises(InputError, match="cannot be written"):
        trace.write(traced(np.random.default_rng(3)), str(tmp_path))
    assert not [*tmp_path.iterdir()]
