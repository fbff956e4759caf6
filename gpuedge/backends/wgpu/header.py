"""wgpu-native opened with the few declarations that are used here, without the `wgpu` package.

Importing the package reads all 2,100 lines of C declarations and what it builds upon them, which
takes a fifth of a second in every process. What is needed of them is found by name, and read in a
tenth of that. Says None wherever the package is not as it is expected to be.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

LIBRARIES = {"win32": "wgpu_native{}.dll", "darwin": "libwgpu_native{}.dylib"}
LIBRARY = "libwgpu_native{}.so"
HEADER = "combined_header.h"

_NAME = re.compile(r"\b(?:WGPU|wgpu)\w+")
_ENUM = re.compile(r"(?:typedef\s+)?enum\b")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|^\s*#[^\n]*", re.DOTALL | re.MULTILINE)


def open_library(names: Iterable[str]) -> tuple[Any, Any] | None:
    """Return the cffi interface with `names` declared, and the library opened with it.

    None where the package, its library or one of the names is not found, or cannot be read; the
    package itself then says why.
    """
    place = _resources()
    if place is None:
        return None
    try:
        from cffi import FFI, FFIError  # type: ignore[import-untyped]

        ffi = FFI()
        ffi.cdef(needed((place / HEADER).read_text(encoding="utf-8"), names))
        return ffi, ffi.dlopen(_library(place))
    except (ImportError, OSError, ValueError, KeyError, FFIError):
        return None


def _resources() -> Path | None:
    try:
        spec = find_spec("wgpu")
    except (ImportError, ValueError):
        return None
    places = spec.submodule_search_locations if spec is not None else None
    return Path(next(iter(places))) / "resources" if places else None


def _library(place: Path) -> str:
    """Return the file that the package would load; OSError where it is somewhere else."""
    override = os.environ.get("WGPU_LIB_PATH", "").strip()
    if override:
        return override
    is_debug = os.environ.get("WGPU_DEBUG", "").strip() == "1"
    for build in ["-debug"] if is_debug else ["-release", ""]:
        path = place / LIBRARIES.get(sys.platform, LIBRARY).format(build)
        if path.exists():
            return str(path)
    raise FileNotFoundError(place)


def needed(header: str, names: Iterable[str]) -> str:
    """Return the declarations that define `names` and what these refer to, in their order.

    Raises
    ------
    KeyError
        A name is not declared.
    """
    declared = list(_declarations(_COMMENT.sub("", header)))
    by_name: dict[str, list[int]] = {}
    for i, text in enumerate(declared):
        for name in _defined(text):
            by_name.setdefault(name, []).append(i)
    wanted = list(names)
    missing = next((name for name in wanted if name not in by_name), None)
    if missing is not None:
        raise KeyError(missing)
    seen: set[str] = set()
    kept: set[int] = set()
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        seen.add(name)
        for i in by_name.get(name, ()):
            if i not in kept:
                kept.add(i)
                wanted += [] if _ENUM.match(declared[i]) else _NAME.findall(declared[i])
    return "\n".join(_without_idle(declared[i], seen) for i in sorted(kept))


def _without_idle(text: str, names: set[str]) -> str:
    """Return a declaration; of an enumeration only what is named, and the last, for its size."""
    head, brace, rest = text.partition("{")
    if not brace or not _ENUM.match(head):
        return text
    body, _, tail = rest.rpartition("}")
    *others, last = [one.strip() for one in body.split(",") if one.strip()]
    kept = [one for one in others if one.partition("=")[0].strip() in names]
    return f"{head}{{{', '.join([*kept, last])}}}{tail}"


def _declarations(text: str) -> Iterator[str]:
    """Yield what stands between semicolons that are in no braces."""
    depth, begin = 0, 0
    for match in re.finditer(r"[{};]", text):
        if match[0] == ";" and depth == 0:
            yield text[begin : match.end()].strip()
            begin = match.end()
        elif match[0] != ";":
            depth += 1 if match[0] == "{" else -1


def _defined(text: str) -> set[str]:
    """Return the names that one declaration gives a meaning to."""
    head, brace, rest = text.partition("{")
    body, _, tail = rest.rpartition("}")
    found = set(re.findall(r"\b(?:struct|enum)\s+(\w+)\s*$", head.rstrip("; \n")))
    if brace:
        found |= set(_NAME.findall(tail))
        if _ENUM.match(head):
            found |= set(re.findall(r"\b(\w+)\s*=", body))
    elif head.startswith("typedef"):
        pointer = re.search(r"\(\s*\*\s*(\w+)\s*\)", head)
        found.add(pointer[1] if pointer else re.findall(r"\w+", head)[-1])
    elif "(" in head:
        found.add(re.findall(r"\w+", head.partition("(")[0])[-1])
    elif "=" in head:
        found.add(re.findall(r"\w+", head.partition("=")[0])[-1])
    return found
