"""The patterns of names: the subset, equality with regular expressions, and linear time."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuedge.capdb import patterns

ATOMS = st.sampled_from(["a", "b", "B", "7", ".", "[ab]", "[^a]", "[a-c7]", r"\(", r"\.", " "])
ITEMS = st.tuples(ATOMS, st.sampled_from(["", "", "?", "*", "+"])).map("".join)
SEQUENCES = st.lists(ITEMS, min_size=1, max_size=4).map("".join)
GROUPS = st.tuples(
    st.lists(SEQUENCES, min_size=1, max_size=3).map("|".join), st.sampled_from(["", "?"])
).map(lambda pair: f"({pair[0]}){pair[1]}")
PATTERNS = st.lists(st.one_of(ITEMS, GROUPS), min_size=1, max_size=6).map("".join)
TEXTS = st.text(alphabet="abcAB7(. x", max_size=12)


@settings(max_examples=1500, deadline=None)
@given(PATTERNS, st.lists(TEXTS, min_size=4, max_size=8))
def test_matches_what_the_regular_expression_matches(inner: str, texts: list[str]) -> None:
    pattern = f"^{inner}$"
    if patterns.check(pattern) is not None:
        assert "two repeats" in str(patterns.check(pattern))
        return
    ours, theirs = patterns.compile(pattern), re.compile(inner, re.IGNORECASE | re.DOTALL)
    for text in texts:
        assert ours.matches(text) is (theirs.fullmatch(text) is not None), (pattern, text)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        (r"^adreno \(tm\) 6[0-9][0-9]$", "Adreno (TM) 630", "Adreno (TM) 730"),
        (r"^powervr sgx 54[0-9](mp)?$", "PowerVR SGX 544MP", "PowerVR SGX 544MP2"),
        (r"^mali-(t880|g7[126])( mc4)?$", "Mali-G72 MC4", "Mali-G7"),
        (r"^radeon pro 560$", "Radeon Pro 560", "Radeon Pro 5600M"),
        (r"^.*rogue.*$", "PowerVR Rogue GE8100", "PowerVR SGX"),
        (r"^a[\]\-b]c$", "a]c", "a\\c"),
        (r"^a[^b-d]+$", "axyz", "axc"),
        (r"^\^\$$", "^$", "$"),
    ],
)
def test_pattern_of_a_name(pattern: str, yes: str, no: str) -> None:
    made = patterns.compile(pattern)
    assert made.matches(yes)
    assert not made.matches(no)


@pytest.mark.parametrize(
    "pattern",
    [
        "adreno.*", "^adreno.*", "adreno.*$", r"^adreno\$", "^$", "^(a+)+$", "^(a|b)*$", "^((a))$",
        "^a**$", "^a+?$", "^.*.*$", "^[a]+a*$", "^(a|)$", "^()$", "^[$", "^[]$", "^[a$", "^(a$",
        "^a)$", "^*a$", "^a{3}$", r"^\d+$", r"^\w$", "^a|b$", "^[b-a]$", "^[[]$", r"^\$$x",
        "^a\nb$", "^" + "a" * 200 + "$", "^(?:a)$", "^(?=a)$", "^(a)\\1$",
    ],
)  # fmt: skip
def test_pattern_outside_the_subset_is_refused(pattern: str) -> None:
    assert patterns.check(pattern)
    with pytest.raises(ValueError, match=r"\w"):
        patterns.compile(pattern)


@settings(max_examples=500, deadline=None)
@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    why = patterns.check(f"^{text}$")
    if why is None:
        patterns.compile(f"^{text}$").matches(text)


@pytest.mark.parametrize(
    "pattern", ["^" + "a?b?" * 40 + "ab$", "^" + ".*a" * 60 + "$", "^" + "(a|ab)(c|bc)" * 12 + "$"]
)
def test_pattern_that_would_backtrack_takes_linear_time(pattern: str) -> None:
    made = patterns.Pattern(pattern)
    start = time.process_time()
    for text in ("ab" * 149, "a" * 299, "abc" * 99):
        made.matches(text + "x")
    assert time.process_time() - start < 1.0  # a backtracking one takes longer than the universe


def test_long_name_matches_nothing() -> None:
    everything = patterns.compile("^a.*$")
    assert everything.matches("a" * patterns.MAX_TEXT)
    assert not everything.matches("a" * (patterns.MAX_TEXT + 1))


def test_steps_that_are_remembered_are_bounded() -> None:
    made = patterns.Pattern("^.*a.?.?.?.?.?.?.?.?b$")
    for i in range(3000):
        made.matches("".join("ab"[(i >> j) & 1] for j in range(12)) + chr(0x4E00 + i))
    assert len(made._steps) <= patterns.MAX_STATES
