"""Regular expressions of the tables: what may search for long is refused before it is used."""

from __future__ import annotations

import json
import random
import re
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuedge.capdb.identity import families, names, tame
from gpuedge.capdb.identity.subject import subject
from gpuedge.capdb.judgement import lookup
from gpuedge.core.errors import DatabaseError

DATABASE = Path(__file__).resolve().parents[2] / "capability_db"


def tables(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    document = json.loads((DATABASE / families.FILE).read_bytes())
    change(document)
    (folder / families.FILE).write_text(json.dumps(document))
    return folder


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(a+)+b", "repeats a group"), ("(?:a|a)*b", "repeats a group"),
        ("(?:a?){9}", "repeats a group"), ("(?:a?){0,1}?{2}", "may not"),
        (".*.*.*.*b", "more than"), (r"\w+\w+\S+\W+b", "more than"),
        ("[^a]*[^b]*[^c]*.*", "more than"), ("a+a+a+a+a+a+b", "more than"),
        ("a{2,}" * 6, "more than"),
        ("a?" * 30 + "a" * 30, "more than"), ("a{0,60}" * 6 + "b", "more than"),
        ("(?:a|a)?" * 20 + "b", "more than"), ("(?:a|a|b)" * 20 + "c", "more than"),
        ("(?:ab|a)(?:b|bc)?" * 12 + "d", "more than"), (".*?.??.*?x.{1,40}y", "more than"),
        (r"(a)\1", "refers"), ("(?P<x>a)(?P=x)", "refers"), ("(?i)a", "may not"),
        ("[^]a]*", "may not"), ("[[a]b", "may not"), ("[a--b]", "may not"), ("[a||b]", "may not"),
        ("[a&&b]", "may not"), ("[a~~b]", "may not"), ("a*+", "may not"), ("(?>a)", "may not"),
        ("(?=a*)b", "looks round"), ("a{301}", "300 times"), ("(" * 20 + ")" * 20, "may not"),
        ("a" * 401, "400"), ("(", "unterminated"), ("[a", "unterminated"), ("a\\", "unterminated"),
    ],
)  # fmt: skip
def test_pattern_that_might_search_for_long(tmp_path: Path, pattern: str, why: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert why in (tame.wildness(pattern) or "")
        tables(tmp_path, lambda d: d["names"][0].update(pattern=pattern))
        with pytest.raises(DatabaseError, match=why):
            families.load_families(tmp_path)
        rule = {"id": "odd", "pattern": pattern}
        rules = {"schema": "gpuedge.names/1", "layers": [], "noise": [rule]}
        (tmp_path / "names.json").write_text(json.dumps(rules))
        with pytest.raises(DatabaseError, match=why):
            names.load_names(tmp_path)


@pytest.mark.parametrize(
    "pattern",
    [
        "a.*b.+c", r"x\.+\(y+\)*", "[a-f.]+(?:b|c)?", r"a{2}\b", "[^,]*,[^,]*,[^,]*,[^,]*,x",
        "(?:a?b?c?d?e?f?)?g", "[0-9]+[a-z]+[0-9]+[a-z]+", "(?:skl|kbl|sk)x.*", "(?<=^x) y$",
        "[a-]b", r"[\]\[]",
    ],
)  # fmt: skip
def test_pattern_that_cannot(pattern: str) -> None:
    assert tame.wildness(pattern) is None
    assert tame.compile_tame(pattern, re.ASCII).pattern == pattern


ATOMS = ("a", "a", "b", " ", ".", "[ab]", "[^a]", "[^b ]", r"\w", r"\b", "[a-c]", r"\(")
TIMES = ("", "", "", "*", "+", "?", "*?", "+?", "??", "{0,3}", "{2}", "{1,}", "{0,40}", "{,7}")
TEXTS = ("a" * 300, "ab" * 150, "a" * 299 + "\n", "a " * 150, "a" * 150 + "b" * 150, " " * 300)


def made(chance: random.Random, depth: int = 2) -> str:
    """Return a random pattern."""
    text = ""
    for _ in range(chance.randint(1, 5)):
        if depth and chance.random() < 0.3:
            inner = "|".join(made(chance, depth - 1) for _ in range(chance.randint(1, 3)))
            text += f"(?:{inner}){chance.choice(['', '?', '??'])}"
        else:
            atom = chance.choice(ATOMS)
            text += atom + ("" if atom == r"\b" else chance.choice(TIMES))
    return text


def seconds(search: Callable[[str], object], text: str) -> float:
    start = time.process_time()
    search(text)
    return time.process_time() - start


def test_what_is_accepted_takes_less_than_ten_milliseconds() -> None:
    chance, accepted = random.Random(11), 0
    for _ in range(2500):
        pattern, is_search = made(chance), chance.random() < 0.3
        if tame.wildness(pattern, is_search=is_search) is not None:
            continue
        accepted += 1
        compiled = tame.compile_tame(pattern, re.RegexFlag(0), is_search=is_search)
        search = (lambda text: compiled.sub("", text)) if is_search else compiled.fullmatch  # noqa: B023
        for text in TEXTS:
            if seconds(search, text) > 0.01:  # not for something else on this machine
                assert min(seconds(search, text) for _ in range(5)) < 0.01, (pattern, text)
    assert 500 < accepted < 2400


def test_what_is_refused_would_have_taken_long() -> None:
    for pattern in (".*a.*a.*a.*b", "a{0,60}" * 4 + "b", "(?:a|a)?" * 12 + "b"):
        assert "steps" in (tame.wildness(pattern) or "")
        assert seconds(re.compile(pattern).fullmatch, "a" * 120 + "c") > 0.005


def test_texts_of_any_length_are_cut_first() -> None:
    found = families.load_families()
    long = "ANGLE (" + "a (0x1) Direct3D" * 10_000
    for ask in (found.named, found.driver_of, found.signed, found.marked, found.spelled):
        assert min(seconds(ask, long) for _ in range(5)) < 0.1


def test_form_of_a_spelling_that_cannot_be_made(tmp_path: Path) -> None:
    tables(tmp_path, lambda d: d["spellings"][0].update({"with": r"x\9"}))
    with pytest.raises(DatabaseError, match="group"):
        families.load_families(tmp_path)


def test_too_many_patterns_together(tmp_path: Path) -> None:
    tables(tmp_path, lambda d: d["signs"].extend([{"pattern": ".*a.*b", "driver": 3}] * 200))
    with pytest.raises(DatabaseError, match="together"):
        families.load_families(tmp_path)


@pytest.mark.parametrize("features", ["fp16", 7, True, 1.5, None, ["fp16"], 10**400, b"x"])
def test_features_of_any_kind(features: Any) -> None:
    record = {"api": "vulkan", "deviceName": "Adreno (TM) 620", "features": features}
    assert subject(record).features == {}
    json.dumps(lookup(record).to_dict(all=True))


@pytest.mark.parametrize("key", ["vendorID", "features", "android_sdk", "anything", "driverID"])
def test_number_that_cannot_be_printed(key: str) -> None:
    for value in (10**5000, -(10**5000)):
        who = subject({"api": "vulkan", key: value, "vendor": value})
        assert all(abs(v) < 2**64 for v in who.raw.values() if isinstance(v, int))
        json.dumps(lookup(who).to_dict(all=True))


def test_name_whose_number_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(document: dict[str, Any]) -> None:
        document["names"].insert(0, {"pattern": "odd (?P<model>.*)", "vendor": "arm"})

    found = families.load_families(tables(tmp_path, change))
    monkeypatch.setattr("gpuedge.capdb.identity.subject.load_families", lambda: found)
    for name in ("odd one", "odd " + "9" * 290, "odd ²"):
        assert subject({"api": "vulkan", "deviceName": name}).model is None
    assert subject({"api": "vulkan", "deviceName": "odd 12"}).model == 12


class _Text(str):
    """A text of which everything that it does goes wrong."""

    def _fail(self, *_: object) -> Any:
        raise RuntimeError

    __getitem__ = __eq__ = strip = casefold = lower = startswith = __str__ = _fail  # type: ignore[assignment]
    __hash__ = str.__hash__


class _Number(int):
    """A number of which everything that it does goes wrong."""

    def _fail(self, *_: object) -> Any:
        raise RuntimeError

    __lt__ = __le__ = __gt__ = __and__ = __rshift__ = __abs__ = __index__ = _fail  # type: ignore[assignment]


@pytest.mark.parametrize("key", ["api", "deviceName", "vendorID", "deviceID", "android_sdk", "os"])
def test_texts_and_numbers_of_a_callers_own_make(key: str) -> None:
    record = {"api": "vulkan", "os": "android", "deviceName": "Adreno (TM) 620"}
    for value, plain in ((_Text("vulkan"), "vulkan"), (_Number(5), 5)):
        found = subject({**record, key: value, "features": {_Text("fp16"): True}})
        assert found == subject({**record, key: plain, "features": {"fp16": True}})
