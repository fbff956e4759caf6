"""Writes gpuedge/backends/wgpu/types.py: the part of wgpu-native's C interface that is used.

Reading the whole header, as the `wgpu` package does when it is imported, takes a quarter of a
second in every process. This reads it once, and has cffi write what it understood.

Usage: python tools/wgpu_types.py    (when the supported version of the `wgpu` package changes)
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from wgpu.backends.wgpu_native import ffi, lib

from gpuedge.backends.wgpu.api import TYPES

EXTRA = "wgpuDeviceDestroy"  # how a test loses a device
FOLDER = Path(__file__).resolve().parents[1] / "gpuedge" / "backends" / "wgpu"

HEAD = '''"""C interface of wgpu-native. Made by tools/wgpu_types.py; do not edit."""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

import _cffi_backend  # type: ignore[import-not-found,import-untyped,unused-ignore]

VERSION = {version:#010x}
"""Of wgpu-native, as `wgpuGetVersion` says it; structures of other versions may differ."""

ffi = _cffi_backend.FFI("gpuedge.backends.wgpu.types",
'''


def is_used(declaration: str, text: str) -> bool:
    """Say whether the backend, whose source is `text`, names what a declaration declares."""
    kind, _, name = declaration.partition(" ")
    if kind == "typedef":
        return name in TYPES
    made = re.fullmatch(r"wgpu(?:DeviceCreate)?([A-Z]\w+?)(?:Release)?", name)
    return kind == "function" and (name in text + EXTRA or bool(made and f'"{made[1]}"' in text))


def reached(kind: Any, seen: set[Any]) -> None:
    """Add a type and all that it is made of to `seen`."""
    if kind is not None and kind not in seen:
        seen.add(kind)
        inner = (getattr(kind, name, None) for name in ("totype", "item", "result"))
        for one in (*inner, *(getattr(kind, "args", ()) or ()), *(kind.fldtypes or ()
                    if hasattr(kind, "fldtypes") else ())):  # fmt: skip
            reached(one, seen)


def written() -> str:
    """Return the text of types.py."""
    sources = (p for p in FOLDER.glob("*.py") if p.name != "types.py")
    text = "".join(p.read_text(encoding="utf-8") for p in sources)
    declared: dict[str, tuple[Any, int]] = ffi._parser._declarations
    seen: set[Any] = set()
    for name, (kind, _) in declared.items():
        if is_used(name, text):
            reached(kind, seen)
    for name, (kind, _) in list(declared.items()):
        is_part = name.startswith(("struct ", "enum ")) and kind in seen
        if not is_part and not is_used(name, text):
            del declared[name]
        elif name.startswith("enum "):  # values that are used, and the one that gives the size
            pairs = zip(kind.enumerators, kind.enumvalues, strict=True)
            kept = [(n, v) for n, v in pairs if n in text or n.endswith("_Force32")]
            kind.enumerators, kind.enumvalues = zip(*kept, strict=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "types.py"
        ffi.emit_python_code(str(path))
        _, _, body = path.read_text(encoding="utf-8").partition("_cffi_backend.FFI(")
    return HEAD.format(version=lib.wgpuGetVersion()) + body.partition("\n")[2]


if __name__ == "__main__":
    (FOLDER / "types.py").write_text(written(), encoding="utf-8")
