"""Plain text tables: aligned, within the width, nothing lost, no trailing space."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuedge.core import text

HEAD = ("device", "note", "reason")


def test_golden_table() -> None:
    words = "all is well here, and in all the other places too"
    rows = [HEAD, ("cpu", "", words), ("vulkan:0", "", "no")]
    assert text.table(rows, 44) == [
        "device    reason",
        "cpu       all is well here, and in all the",
        "          other places too",
        "vulkan:0  no",
    ]


def test_prose_goes_below_its_row_where_the_terminal_is_narrow() -> None:
    rows = [HEAD, ("vulkan:0", "a long note, never broken", "one reason after another")]
    assert text.table(rows, 60) == [
        "device    note",
        "vulkan:0  a long note, never broken",
        "    one reason after another",
    ]
    path = [HEAD, ("cpu", "", "see /a/path/that/is/longer/than/forty/columns")]
    assert text.table(path, 48) == ["device", "cpu", "    see", f"    {path[1][2][4:]}"]
    assert text.table(path, 49)[0] == "device  reason"


def test_short_prose_stays_in_its_row_and_breaks_only_where_it_says() -> None:
    rows = [HEAD, ("a name of twenty four ch", "", "one\ntwo")]
    assert text.table(rows, 32) == [
        "device                    reason",
        "a name of twenty four ch  one",
        "                          two",
    ]


def test_paint_sees_every_cell_but_the_last() -> None:
    seen = []

    def paint(cell: str, padded: str) -> str:
        seen.append((cell, padded))
        return f"<{padded}>"

    assert text.table([HEAD, ("a", "bc", "d")], 80, paint)[1] == "<a     >  <bc  >  d"
    assert seen == [("device", "device"), ("note", "note"), ("a", "a     "), ("bc", "bc  ")]


words = st.text("abc-_:é", min_size=1, max_size=12)
cells = st.sampled_from(["", "-", "ok", "x y"])
prose = st.lists(words, max_size=12).map(" ".join)
names = st.text("abc:é", min_size=1, max_size=12)
bodies = st.lists(st.tuples(names, cells, prose), min_size=1, max_size=5)


@given(bodies, st.integers(20, 140))
def test_lines_fit_and_nothing_is_lost(body: list[tuple[str, str, str]], columns: int) -> None:
    lines = text.table([HEAD, *body], columns)
    assert all(line == line.rstrip() for line in lines)
    fixed = max(len(a) + 2 + len(b) + 2 for a, b, _ in [HEAD, *body])
    assert max(map(len, lines)) <= max(columns, fixed, text.INDENT + text.MIN_LAST)
    found = " ".join(" ".join(lines).split())
    for first, _, last in body:
        assert first in found
        assert last in found
    assert ("note" in lines[0].split()) == any(b not in {"", "-"} for _, b, _ in body)


@pytest.mark.parametrize(("columns", "wanted"), [("80", 80), ("0", 100), ("many", 100), ("", 100)])
def test_width_is_that_of_columns_else_a_hundred(
    columns: str, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr("os.get_terminal_size", lambda *_: (_ for _ in ()).throw(OSError()))
    assert text.width() == wanted


def test_counting() -> None:
    assert [text.counted(n, "row") for n in (0, 1, 2)] == ["0 rows", "1 row", "2 rows"]


@pytest.mark.parametrize(
    ("foreign", "shown"),
    [
        ("Mali\x1b[2J", "Mali\\x1b[2J"),
        ("caf\u00e9 \u4e2d", "caf\u00e9 \u4e2d"),
        ("turned \u202e round", "turned \\u202e round"),
        ("half \ud800", "half \\ud800"),
        ("one\r\ntwo\tthree", "one\\r\\ntwo\\tthree"),
        ("back\\slash", "back\\slash"),
    ],
)
def test_foreign_names_are_escaped_only_where_they_do_not_print(foreign: str, shown: str) -> None:
    assert text.plain(foreign) == shown
    assert text.plain(shown) == shown


def test_lines_are_kept_where_they_are_wanted() -> None:
    assert text.plain("one\r\ntwo\t\x07", lines=True) == "one\ntwo\t\\x07"


@given(st.text(), st.integers(8, 200))
def test_foreign_text_is_bounded_and_printable(foreign: str, most: int) -> None:
    shown = text.plain(foreign, most)
    assert shown.isprintable()
    assert len(shown) <= 2 * most + 3
    assert text.plain(foreign, None, lines=True).replace("\n", "").replace("\t", "").isprintable()
