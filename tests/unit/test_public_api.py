"""The public surface: exactly the names of the contract, each documented, none heavy to import."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

import gpuedge
import gpuedge.core.words
import gpuedge.ops
from gpuedge import backends
from gpuedge.core.reasons import STATUSES
from gpuedge.ops.arguments import ACTIVATIONS
from gpuedge.runtime.opening import INLINE, PROCESS


def test_all_is_sorted_complete_and_resolvable() -> None:
    assert list(gpuedge.__all__) == sorted(gpuedge.__all__)
    assert set(gpuedge.__all__) == set(gpuedge._LAZY) | {"__version__"}
    for name in gpuedge.__all__:
        assert getattr(gpuedge, name) is not None
    assert dir(gpuedge) == sorted(gpuedge.__all__)


def test_ops_are_all_exported() -> None:
    assert set(gpuedge.ops.__all__) == set(gpuedge._OPS)


def test_misspelled_name_gets_a_suggestion() -> None:
    code = "import gpuedge; gpuedge.Sesion"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False
    )
    said = done.stderr.partition("no attribute 'Sesion'. Did you mean")[2]
    assert "Session'" in said  # each Python puts it in its own words


NAMES = [n for n in gpuedge.__all__ if n != "__version__" and n not in gpuedge._WORDS]


@pytest.mark.parametrize("name", NAMES)
def test_public_names_are_documented(name: str) -> None:
    text = inspect.getdoc(getattr(gpuedge, name))
    assert text and len(text) > 10


INNER = {"Belief", "Candidate", "DeviceCandidate", "DeviceInfo", "RestrictionFields"}
"""What records hold, and what the interface to backends does: for plug-ins and for replays."""


def of(thing: object) -> Iterator[str]:
    """Yield the types that a public name returns or holds, as they are written."""
    if inspect.isfunction(thing):
        yield str(inspect.unwrap(thing).__annotations__.get("return"))
    if inspect.isclass(thing):
        yield from (str(v) for k, v in getattr(thing, "__annotations__", {}).items() if k[0] != "_")
        for name, member in vars(thing).items():
            if name[0] != "_":
                read = member.fget if isinstance(member, property) else member
                yield from of(getattr(read, "__func__", read))


def test_every_type_of_a_result_is_public() -> None:
    """So that programs can annotate with it: whatever a public name leads to."""
    public = {n: getattr(gpuedge, n) for n in NAMES}
    ours = {
        "Shape",
        "Array",
        "Signature",
        "Count",
        "Line",
        "Any",
        "Literal",
    }  # other names of common types
    classes = {
        n for m in list(sys.modules.values()) if m.__name__.startswith("gpuedge.")
        for n, c in vars(m).items() if inspect.isclass(c) and c.__module__ == m.__name__
    }  # fmt: skip
    found = {
        word: name for name, thing in public.items() for text in of(thing)
        for word in re.findall(r"(?<![.\w])[A-Z]\w+", text)
        if word in classes - ours - INNER and word not in gpuedge.__all__
    }  # fmt: skip
    assert {"ProbeRow", "PlacementRow", "Answer"} <= classes
    assert found == {}


def test_fixed_words_are_those_that_are_taken() -> None:
    assert set(gpuedge.core.words.__all__) == set(gpuedge._WORDS)
    taken = {
        "Activation": ACTIVATIONS, "Fallback": ("cpu", "error"), "Isolation": (INLINE, PROCESS),
        "ProbeStatus": STATUSES,
    }  # fmt: skip
    for name, words in taken.items():
        assert set(get_args(getattr(gpuedge, name))) == set(words), name
    names, text = get_args(gpuedge.DeviceName)
    assert {"auto", "cpu", *backends.names()} >= set(get_args(names)) and text is str
    assert set(backends.BUILTIN) - {"null"} <= set(get_args(names))
    for word in get_args(gpuedge.Fallback):
        gpuedge.config(fallback=word)
    for word in get_args(gpuedge.Isolation):
        gpuedge.config(isolation=word)
    for name, field in (("StoragePrecision", "storage"), ("Arithmetic", "arithmetic"),
                        ("WhenToDecide", "decide"), ("Tuning", "tune")):  # fmt: skip
        for word in get_args(getattr(gpuedge, name)):
            gpuedge.Policy(**{field: word})


def test_every_op_takes_device() -> None:
    for name in gpuedge.ops.__all__:
        if name != "elementwise":
            parameter = inspect.signature(getattr(gpuedge, name)).parameters["device"]
            assert parameter.kind is inspect.Parameter.KEYWORD_ONLY and parameter.default is None


HEAVY = ("numpy", "onnx", "onnxruntime", "vulkan", "rich", "typing", "dataclasses", "logging")


def test_import_loads_nothing_heavy() -> None:
    code = f"import sys, gpuedge; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("module", ["gpuedge.session", "gpuedge.ops", "gpuedge.device"])
def test_using_the_api_loads_no_gpu_library_yet(module: str) -> None:
    code = f"import sys, {module}; print([m for m in ('vulkan', 'rich') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(sys.platform != "linux", reason="the short cut is taken on Linux only")
@pytest.mark.parametrize("value", [None, "", "/somewhere/else"])
def test_cache_folder_is_what_platformdirs_says(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from platformdirs import user_cache_dir

    from gpuedge.safety.paths import cache_dir

    monkeypatch.delenv("GPUEDGE_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if value is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", value)
    assert str(cache_dir()) == user_cache_dir("gpuedge")


SLOW = ("dataclasses", "typing", "pathlib", "contextlib", "inspect", "difflib", "platformdirs")


def test_cached_probe_imports_nothing_slow(tmp_path: Path) -> None:
    manifest = tmp_path / "driver.json"
    manifest.write_text("not a manifest")
    environment = {
        **os.environ,
        "VK_DRIVER_FILES": str(manifest),
        "__EGL_VENDOR_LIBRARY_FILENAMES": str(manifest),
        "GPUEDGE_BACKENDS": "vulkan gles31 gles30 gles20",
    }
    code = f"""
import sys, os; before = set(sys.modules)
import gpuedge
row, *_ = gpuedge.probe().tried
from gpuedge import backends
for name in backends.PROBED: backends.load(name).candidates(os.environ)
print(row.code, row.is_cached, [m for m in {(*SLOW, *HEAVY)!r} if m in set(sys.modules) - before])
"""
    said = [
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        ).stdout.split(" ", 2)
        for _ in range(2)
    ]
    assert [s[:2] for s in said] == [["bad-manifest", "False"], ["bad-manifest", "True"]]
    assert said[1][2].strip() == "[]"
