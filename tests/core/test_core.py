"""The ground floor: errors, records, files written whole, push blocks."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest

from gpuedge.core import errors
from gpuedge.core.caps import VULKAN_MINIMUM, Caps
from gpuedge.core.identity import Identity
from gpuedge.core.kernel import KernelBlob, PushArg, TensorArg
from gpuedge.core.reasons import SENTENCES, Reason
from gpuedge.core.record import Record
from gpuedge.safety import paths

CLASSES = [getattr(errors, name) for name in errors.__all__]


def test_codes_are_unique_and_drawn_in_the_tree() -> None:
    codes = [cls.code for cls in CLASSES]
    assert len(set(codes)) == len(codes)
    for cls in CLASSES:
        assert any(cls.__name__ in line and cls.code in line for line in errors.__doc__.split("\n"))


def test_message_has_four_parts_and_leaves_out_empty_ones() -> None:
    full = errors.ShapeError("It broke.", asked_by="x=3", known="y is 4", hint="try y=3")
    assert str(full).split("\n") == [
        "[GE-201] It broke.",
        "  requested by: x=3",
        "  known here:   y is 4",
        "  try:          try y=3",
    ]
    assert str(errors.ShapeError("It broke.")) == "[GE-201] It broke."
    assert isinstance(full, ValueError) and isinstance(errors.DTypeError("x"), TypeError)


def test_message_is_bounded_and_attributes_are_whole() -> None:
    error = errors.KernelError("w" * 50_000, known="\x1b" * 50_000, hint="h\n" * 50_000)
    assert len(str(error)) < 6000
    assert "\x1b" not in str(error)
    assert len(error.what) == 50_000


def test_error_survives_pickle_whole() -> None:
    lost = errors.DeviceLostError("Gone.", asked_by="me", known="it died", reason="deadline")
    lost.is_outside = True
    back = pickle.loads(pickle.dumps(lost))
    assert (str(back), back.reason, back.is_outside) == (str(lost), lost.reason, True)


class Point(Record):
    x: int
    y: int = 2
    more: dict[str, int] = {}  # noqa: RUF012  (copied for each record)


def test_record_is_a_frozen_dataclass_to_its_users() -> None:
    p = Point(1)
    assert (p.x, p.y, p.more) == (1, 2, {}) and p == Point(x=1, y=2)
    assert p != Point(2) and p != (1, 2, {})
    assert p.replace(y=5).as_dict() == {"x": 1, "y": 5, "more": {}}
    assert repr(p) == "Point(x=1, y=2, more={})"
    assert Point(1).more is not p.more
    with pytest.raises(AttributeError, match="frozen"):
        p.x = 3  # type: ignore[misc]
    with pytest.raises(AttributeError, match="frozen"):
        del p.x


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((1, 2, {}, 4), {}), ((1,), {"x": 2}), ((1,), {"z": 2})]
)
def test_record_refuses_wrong_arguments(args: tuple[int, ...], kwargs: dict[str, int]) -> None:
    with pytest.raises(TypeError, match="Point"):
        Point(*args, **kwargs)


def test_reasons_are_checked_and_joined() -> None:
    assert Reason("ok").sentence == SENTENCES["ok"]
    assert Reason("deadline", "4 s").sentence.endswith(": 4 s")
    with pytest.raises(ValueError, match="no-such"):
        Reason("no-such")


def test_caps_round_trip_through_json() -> None:
    assert Caps.from_dict(json.loads(json.dumps(VULKAN_MINIMUM.to_dict()))) == VULKAN_MINIMUM


def test_write_atomic_replaces_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    assert paths.write_atomic(path, b"one") and paths.write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert [p.name for p in path.parent.iterdir()] == ["file"]


def test_write_atomic_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    paths.write_atomic(path, b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert not paths.write_atomic(path, b"new")
    assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["file"]
    assert not paths.write_atomic(path / "below", b"a file is no folder")


def test_push_block_is_packed_by_offset() -> None:
    push = (PushArg("A", "ivec4", 0), PushArg("n", "int", 16), PushArg("f", "float", 20))
    tensors = (TensorArg("A", "read", 0), TensorArg("B", "write", 1))
    blob = KernelBlob("k", "spirv", b"", "main", tensors, (), push, 24, "")
    block = blob.pack_push([(1, 2, 3, 4), (9, 9, 9, 9)], {"n": -1, "f": 1.5})
    assert block == bytes.fromhex("01000000020000000300000004000000ffffffff0000c03f")


def test_identities_differ_only_in_what_both_sides_know() -> None:
    seen = Identity("gles30", "A", "linux", GL_VENDOR="V", GL_RENDERER="A")
    fields = ("GL_VENDOR", "GL_RENDERER", "deviceUUID")
    same = Identity("gles30", "A", "linux", GL_RENDERER="A", deviceUUID="6d")
    assert seen.differences(same, fields) == same.differences(seen, fields) == ""
    other = Identity("gles30", "B", "linux", GL_VENDOR="W", GL_RENDERER="A", deviceUUID="6e")
    assert seen.differences(other, fields) == "GL_VENDOR: expected 'V', found 'W'"
    assert same.differences(other, fields) == "deviceUUID: expected '6d', found '6e'"
