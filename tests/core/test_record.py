"""Records that are read back: what annotations allow, and that nothing else comes through."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest

from gpuedge.core.record import Record, UnfitError, plain, read


def _even(value: int) -> int:
    if value % 2:
        raise ValueError(f"{value} is odd")
    return value // 2


class Inner(Record):
    name: str
    size: Annotated[float, range(1, 10)] = 1.0


class Point(Record):
    IS_LIST = True
    x: int
    y: int = 0


@dataclass(frozen=True, slots=True)
class Outer:
    """A dataclass with a field of each kind."""

    SCHEMA = "outer/1"

    text: Annotated[str, re.compile("[a-z]+"), range(6)]
    whole: Annotated[int | None, range(-2, 100)]
    word: Annotated[str, ("on", "off")]
    either: int | str | None
    inner: Inner
    many: Annotated[tuple[Inner, ...], range(1, 3)]
    pair: tuple[int, bool]
    words: frozenset[str] = frozenset()
    by_name: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    facts: Annotated[Mapping[str, Any], Inner] = field(default_factory=dict)
    half: Annotated[int, _even] = 0
    side: Literal["left", "right"] = "left"
    point: Point = Point(1, 2)  # noqa: RUF009  (frozen)
    told: int = field(default=0, compare=False)


class Open(Record):
    IS_OPEN = True
    number: int = 3


GOOD: dict[str, Any] = {
    "schema": "outer/1", "text": "abc", "whole": 99, "word": "on", "either": "x",
    "inner": {"name": "é"}, "many": [{"name": "a", "size": 9.5}], "pair": [7, True],
    "words": ["b", "a"], "by_name": {"k": [1, 2]}, "facts": {"name": "f"}, "half": 4,
    "side": "right", "point": [3, -4],
}  # fmt: skip


def test_what_fits_is_read_into_the_types_of_the_fields() -> None:
    found = read(Outer, json.loads(json.dumps(GOOD)))
    assert found == Outer(
        "abc", 99, "on", "x", Inner("é"), (Inner("a", 9.5),), (7, True), frozenset("ab"),
        {"k": (1, 2)}, {"name": "f"}, 2, "right", Point(3, -4), 5,
    )  # fmt: skip
    assert plain(found) == {
        **GOOD, "words": ["a", "b"], "inner": {"name": "é", "size": 1.0}, "half": 2
    }  # fmt: skip
    optional = {"words", "by_name", "facts", "half", "side", "point"}
    least = {k: v for k, v in GOOD.items() if k not in optional}
    assert read(Outer, {**least, "whole": None, "either": None}).point == Point(1, 2)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("schema", "outer/2"), ("schema", None), ("text", ""), ("text", "A"), ("text", "abcdef"),
        ("text", None), ("whole", 100), ("whole", -3), ("whole", 1.0), ("whole", True),
        ("whole", 10**400), ("word", "in"), ("word", []), ("either", 1.5), ("either", True),
        ("either", 1 << 64), ("inner", None), ("inner", []), ("inner", {}),
        ("inner", {"name": 1}), ("inner", {"name": "a", "size": math.nan}),
        ("inner", {"name": "a", "size": 10}), ("inner", {"name": "a", "more": 1}),
        ("many", [{"name": "a"}] * 3), ("many", []), ("many", {}), ("pair", [7]), ("pair", [7, 1]),
        ("pair", [7, True, 1]), ("words", "ab"), ("words", [["a"]]), ("by_name", [1]),
        ("by_name", {"k": 1}), ("facts", {"size": 2}), ("facts", 1), ("half", 3), ("more", 1),
        ("side", "up"), ("side", None), ("side", ["left"]), ("told", 5), ("point", [1]),
        ("point", [1, 2, 3]), ("point", {"x": 1, "y": 2}), ("point", [1, 2.0]),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_and_the_field_named(name: str, value: Any) -> None:
    with pytest.raises(UnfitError) as caught:
        read(Outer, {**GOOD, name: value})
    assert caught.value.field in {name, f"'{name}'"}
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("name", ["schema", "text", "whole", "inner", "pair"])
def test_a_field_without_a_default_must_be_there(name: str) -> None:
    with pytest.raises(UnfitError, match=name):
        read(Outer, {k: v for k, v in GOOD.items() if k != name})


@pytest.mark.parametrize("saved", [None, [], "x", 1, math.nan])
def test_what_is_no_object_is_refused(saved: object) -> None:
    with pytest.raises(UnfitError, match="not an object"):
        read(Open, saved)


def test_an_open_record_passes_over_what_it_does_not_know() -> None:
    assert read(Open, {"other": [1], "schema": 2}) == Open(3)
    with pytest.raises(UnfitError, match="number"):
        read(Open, {"number": "3"})


def test_what_a_record_checks_itself_is_unfit_too() -> None:
    class Checked(Record):
        ratio: int

        def __post_init__(self) -> None:
            if 10 // self.ratio == 3:
                raise LookupError("three")

    assert read(Checked, {"ratio": 2}) == Checked(2)
    for ratio in (0, 3):
        with pytest.raises(UnfitError):
            read(Checked, {"ratio": ratio})
