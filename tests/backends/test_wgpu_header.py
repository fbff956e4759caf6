"""What is read of wgpu-native's declarations means the same as all of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import gpuedge.backends.wgpu as room
from gpuedge.backends.wgpu import api, constants

cffi = pytest.importorskip("cffi")

NAMES = [*api._NEEDED, *constants.FUNCTIONS, *constants.CONSTANTS]


@pytest.fixture(scope="module")
def text() -> str:
    place = api._resources()
    assert place is not None, "the package wgpu is required, so its header is here"
    return (place / api.HEADER).read_text(encoding="utf-8")


def test_every_function_that_is_called_is_listed() -> None:
    files = Path(room.__file__).parent.glob("*.py")
    called = {n for f in files for n in re.findall(r"\blib\.(wgpu\w+)", f.read_text())}
    assert called == set(constants.FUNCTIONS) - {"wgpuDeviceDestroy"}  # which tests call


def test_types_and_functions_are_those_of_the_whole_header(text: str) -> None:
    few, every = cffi.FFI(), cffi.FFI()
    short = api.needed(text, NAMES)
    few.cdef(short)
    every.cdef(text)
    assert len(short) < len(text) / 4
    place = api._resources()
    assert place is not None
    one, two = (ffi.dlopen(api._library_file(place)) for ffi in (few, every))
    seen: set[str] = set()
    for name in api._NEEDED:
        compare(few.typeof(name), every.typeof(name), (few, every), seen)
    for name in constants.FUNCTIONS:
        types = [ffi.typeof(getattr(lib, name)) for ffi, lib in ((few, one), (every, two))]
        compare(types[0], types[1], (few, every), seen)
    for name in constants.CONSTANTS:
        assert getattr(one, name) == getattr(two, name)
    assert len(seen) > 100


def compare(a: Any, b: Any, interfaces: tuple[Any, Any], seen: set[str]) -> None:
    """Walk two types side by side; only enumerations may lack names, and keep their size."""
    if a.cname in seen:
        return
    seen.add(a.cname)
    assert (a.kind, a.cname) == (b.kind, b.cname)
    if a.kind in ("struct", "enum", "primitive"):
        one, two = interfaces
        is_open = a.kind == "struct" and a.fields is None
        assert is_open or one.sizeof(a) == two.sizeof(b)
    if a.kind == "struct":
        pairs = list(zip(a.fields or (), b.fields or (), strict=True))
        for (name, field), (other, there) in pairs:
            assert (name, field.offset) == (other, there.offset)
            compare(field.type, there.type, interfaces, seen)
    elif a.kind in ("pointer", "array"):
        compare(a.item, b.item, interfaces, seen)
    elif a.kind == "function":
        for x, y in zip((a.result, *a.args), (b.result, *b.args), strict=True):
            compare(x, y, interfaces, seen)


def test_a_name_that_is_not_declared_is_said(text: str) -> None:
    with pytest.raises(KeyError, match="wgpuOfTomorrow"):
        api.needed(text, [*NAMES, "wgpuOfTomorrow"])
    assert api.open_library([*NAMES, "wgpuOfTomorrow"]) is None


def test_a_library_in_another_place_is_opened_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WGPU_LIB_PATH", str(tmp_path / "none.so"))
    assert api.open_library(NAMES) is None


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        (["WGPUA"], "struct WGPUA;\ntypedef uint32_t WGPUFlag;\n"
                    "typedef struct WGPUA { WGPUFlag f; } WGPUA;"),
        (["wgpuGo"], "typedef void (*WGPUCall)(WGPUKind k);\n"
                     "typedef enum WGPUKind {WGPUKind_Force32 = 0x7FFFFFFF} WGPUKind;\n"
                     "void wgpuGo(WGPUCall call);"),
        (["WGPUKind_B"],
         "typedef enum WGPUKind {WGPUKind_B = 2, WGPUKind_Force32 = 0x7FFFFFFF} WGPUKind;"),
    ],
)  # fmt: skip
def test_what_is_kept_of_a_small_header(names: list[str], kept: str) -> None:
    small = """// A comment; with a semicolon
        #define WGPU_X 1
        struct WGPUA; typedef uint32_t WGPUFlag;
        typedef struct WGPUA { WGPUFlag f; } WGPUA;
        typedef void (*WGPUCall)(WGPUKind k);
        typedef enum WGPUKind { WGPUKind_A = 1, WGPUKind_B = 2, WGPUKind_Force32 = 0x7FFFFFFF
        } WGPUKind;
        static const WGPUFlag WGPUFlag_None = 0x0;
        void wgpuGo(WGPUCall call);"""
    assert api.needed(small, names) == kept
