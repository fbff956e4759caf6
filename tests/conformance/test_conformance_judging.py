"""What rows are judged and described by: expectations, redaction, and maps of errors."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import gpuedge.conformance
from gpuedge.conformance import expectations
from gpuedge.conformance.about import Redaction, header, secrets
from gpuedge.conformance.case import compare
from gpuedge.conformance.maps import error_map
from gpuedge.core.errors import InputError
from gpuedge.opset.bounds import Num

VALID = jsonschema.Draft202012Validator(
    json.loads(
        (Path(gpuedge.conformance.__file__).parent / "schemas/expectations.schema.json").read_text()
    )
)
LAVAPIPE = {
    "api": "vulkan", "name": "llvmpipe (LLVM 15.0.6, 256 bits)", "os": "linux", "vendorID": 65541,
    "deviceID": 0, "driverVersion": 1, "driverID": 13, "driverName": "llvmpipe",
    "driverInfo": "Mesa 22.3.6 (LLVM 15.0.6)",
}  # fmt: skip

GOOD = """
schema = "gpuedge.expectations/1"

[[expect]]
case = "softmax/*"
kind = "xfail"
reason = "rows of 10 are wrong"
link = "https://example.org/issues/1"
device = "vulkan*"
match = { driver = { scheme = "vk-mesa", intervals = [{ from = [22, 3], below = [22, 4] }] } }

[[expect]]
case = "*/float16/*"
kind = "unsupported"
reason = "there is no such arithmetic"

[[expect]]
case = "softmax/float16/3x10-axis1/*"
kind = "quarantine"
reason = "never reached: the first entry counts"
"""


def loaded(text: str, tmp_path: Path) -> expectations.Expectations:
    file = tmp_path / "known.toml"
    file.write_text(text, encoding="utf-8")
    return expectations.load(str(file))


def test_the_first_entry_about_a_case_counts(tmp_path: Path) -> None:
    VALID.validate(tomllib.loads(GOOD))
    found = loaded(GOOD, tmp_path).on("vulkan:0", LAVAPIPE)
    names = ["softmax/float32/a", "softmax/float16/3x10-axis1/b", "add/float16/c", "add/float32/d"]
    kinds = {name: each.kind for name, each in found.of(names).items()}
    assert kinds == {names[0]: "xfail", names[1]: "xfail", names[2]: "unsupported"}
    assert found.of(names)[names[0]].told() == {
        "kind": "xfail", "reason": "rows of 10 are wrong", "link": "https://example.org/issues/1",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("device", "changes", "applies"),
    [
        ("vulkan:0", {}, True),
        ("vulkan:1", {"driverInfo": "Mesa 22.3.0 (LLVM 15.0.6)"}, True),
        ("vulkan:0", {"driverInfo": "Mesa 22.4.0 (LLVM 15.0.6)"}, False),
        ("vulkan:0", {"driverInfo": "no version"}, False),
        ("gles20:0", {}, False),
    ],
)
def test_conditions_are_those_of_the_database(
    device: str, changes: dict[str, Any], applies: bool, tmp_path: Path
) -> None:
    found = loaded(GOOD, tmp_path).on(device, {**LAVAPIPE, **changes})
    assert ("softmax/float32/a" in found.of(["softmax/float32/a"])) == applies


@pytest.mark.parametrize(
    ("old", "new", "words", "is_by_schema"),
    [
        ("kind = ", "kind : ", "at line 6, column", False),
        ("xfail", "xpass", "expect number 1 (case 'softmax/*'): kind: 'xpass' is not one", True),
        (
            "link = ",
            "lnik = ",
            "expect number 1 (case 'softmax/*'): 'lnik': there is no such",
            True,
        ),
        ('link = "https://example.org/issues/1"', "", "link: an xfail needs it", True),
        ("match = {", "match_ = {", "'match_': there is no such field", True),
        ("vk-mesa", "vk-mesa\\\\q", "line 10", False),
        ("intervals = [{", "intervalls = [{", "driver must ask for intervals", False),
        (
            "[{ from = [22, 3], below = [22, 4] }]",
            "[]",
            "intervals must be one at least",
            False,
        ),
        ("driver =", "name = { exact = [1] }, driver =", "more than lower-case words", False),
        ("driver =", "drivers =", "there is no condition 'drivers'", False),
        ('reason = "there', 'raison = "there', "expect number 2 (case '*/float16/*')", True),
        ("expectations/1", "expectations/2", "schema: 'gpuedge.expectations/2' is not", True),
        ("[[expect]]", "[expect]", "Cannot", False),
        ('case = "softmax/*"', "case = 5", "expect number 1: case: 5 is not", True),
    ],
)
def test_what_is_wrong_with_a_file_is_named(
    old: str, new: str, words: str, is_by_schema: bool, tmp_path: Path
) -> None:
    text = GOOD.replace(old, new, 1)
    assert text != GOOD
    with pytest.raises(InputError) as caught:
        loaded(text.replace("vk-mesa\\\\q", "vk-mesa\\q"), tmp_path)
    assert words in str(caught.value)
    if is_by_schema:
        assert not VALID.is_valid(tomllib.loads(text))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        expectations.load(str(tmp_path))
    (tmp_path / "known.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="no file of expectations"):
        expectations.load(str(tmp_path / "known.toml"))


def test_redaction_hides_texts_wherever_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.node", lambda: "kitchen")
    monkeypatch.setattr("gpuedge.safety.machine.serial", lambda: "SN-77")
    hidden = Redaction(secrets([LAVAPIPE], {"owner": "Ann", "n": ""}))
    top = header("vulkan:0", LAVAPIPE, labels={"owner": "Ann"}, profile="smoke")
    assert (top["host"], top["serial"]) == ("kitchen", "SN-77")
    shown = hidden(top)
    text = json.dumps([shown, hidden({"reason": "on kitchen: llvmpipe (LLVM 15.0.6, 256 bits)!"})])
    for secret in ("kitchen", "SN-77", "Ann", LAVAPIPE["name"]):
        assert secret not in text
    assert shown["device"] == "vulkan:0" and shown["identity"]["driverInfo"]
    assert shown["labels"].keys() == {"owner"}
    again = Redaction(secrets([LAVAPIPE], {"owner": "Ann"}))
    assert again(top) == shown and again(shown) == shown
    assert str(Path.home()) not in hidden(f"it ended in {Path.home()}/drivers")
    words = {"shard": "1/1", "profile": "smoke", "dtype": "float32", "kind": "quarantine"}
    said = Redaction(secrets([], {**words, "odd": "\udcff"}))({**words, "labels": {"n": "smoke"}})
    assert said.items() >= words.items(), "results stay readable"
    assert said["labels"]["n"] != "smoke"
    named = Redaction(secrets([], {"device": "Annabel"}))
    for key in ("labels", "python"):
        assert named({key: {"device": "Annabel"}})[key]["device"] != "Annabel", "no word of ours"
    assert hidden("Annex") == "Annex", "a short text is only replaced where it stands alone"


def test_the_header_says_what_the_machine_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "gpuedge.safety.machine._read", lambda path: "unknown\0" if "dmi" in path else ""
    )
    assert header("vulkan:0", LAVAPIPE)["serial"] is None
    monkeypatch.setattr("gpuedge.safety.machine._read", lambda *_: "10000000abc\0")
    top = header("vulkan:0", LAVAPIPE)
    assert top["serial"] == "10000000abc"
    assert top["database"]["version"] > 0 and len(top["database"]["digest"]) == 64
    assert {"any-0003"} == {each["id"] for each in top["database"]["entries"]}


def test_a_map_shows_where_a_result_is_wrong() -> None:
    wanted = np.zeros((2, 3, 4))
    got = wanted.astype(np.float32)
    got[0, 1, 2], got[1, 0, 0], got[1, 2, 3], got[0, 0, 0] = 0.5, 1.5, np.nan, 2000.0
    verdict = compare(got, Num(wanted, np.ones((2, 3, 4))))
    assert not verdict.ok
    assert list(verdict.map) == ["5000", "0010", "0000", "2000", "0000", "0009"]
    assert compare(wanted.astype(np.float32), Num(wanted, np.ones_like(wanted))).map == ()


def test_a_map_is_small_and_keeps_the_worst() -> None:
    error = np.zeros((3, 50, 1000))
    error[2, 49, 999] = 30.0
    found = error_map(error, np.ones_like(error), error > 1)
    assert len(found) <= 64 and {len(line) for line in found} == {63}
    assert found[-1][-1] == "3" and sum(line.count("0") for line in found) == 63 * len(found) - 1
    assert error_map(np.array(2.0), np.zeros(()), np.array(True)) == ["9"]
    assert error_map(np.zeros((0, 3)), np.zeros((0, 3)), np.zeros((0, 3), bool)) == []
