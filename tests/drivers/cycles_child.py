"""Opens, uses and closes a device again and again, and counts what is left over.

Usage: python cycles_child.py ours|bare LEVEL CYCLES

``ours`` goes through gpuedge; ``bare`` makes a device and does the same work with the API alone,
which shows what the driver itself keeps. Prints one JSON document; the environment chooses the
driver, as for the tests.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

WARM_UP = 200
"""Cycles before the first count: pools of drivers and of the interpreter fill until then. Of fewer
cycles, half: memory is not judged by them.
"""

KINDS = ("Buffer", "Framebuffer", "Program", "Shader", "Texture")
"""Objects of OpenGL ES 2.0 and later that a name can belong to."""

NAMES = 64
"""Names of objects to ask for: drivers hand out small numbers first."""


def counts() -> dict[str, int]:
    """Return open files, threads and resident KiB of this process."""
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return {
        "files": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        "threads": sum(1 for _ in Path("/proc/self/task").iterdir()),
        "kib": resident // 1024,
    }


class GlObjects:
    """Asks the current OpenGL ES context, through its own library, what lives in it."""

    def __init__(self) -> None:
        named = os.environ.get("GPUEDGE_EGL", "").split(os.pathsep)[0]
        library = Path(named).with_name("libGLESv2.so") if named else "libGLESv2.so.2"
        self.gl = ctypes.CDLL(str(library))

    def alive(self) -> dict[str, int]:
        """Return how many objects of each kind there are.

        A program in use lives on after it was deleted, so none is in use any more.
        """
        self.gl.glUseProgram(0)
        found = {}
        for kind in KINDS:
            ask = getattr(self.gl, f"glIs{kind}")
            ask.restype = ctypes.c_ubyte
            found[kind] = sum(bool(ask(name)) for name in range(1, NAMES))
        return found

    def error(self) -> int:
        """Return the first error nobody asked for."""
        return int(self.gl.glGetError())


def gl_objects(device: Any, seen: dict[str, Any], when: str) -> None:
    """Note the objects and errors of a GL device, if they differ from those of the first cycle."""
    with device.entered():
        objects: GlObjects = seen.setdefault("_gl", GlObjects())
        found, error = objects.alive(), objects.error()
    if error:
        seen.setdefault("gl_errors", []).append(f"{when}: {error:#x}")
    first = seen.setdefault(when, found)
    if found != first:
        seen.setdefault("changed", []).append([when, first, found])


def ours(level: str, seen: dict[str, Any]) -> Callable[[], None]:
    """Return one cycle through gpuedge."""
    from gpuedge import backends
    from gpuedge.core.errors import BackendUnavailableError
    from gpuedge.executors.gpu import GpuExecutor
    from gpuedge.graph.ir import Graph, Node, TensorType

    backend = backends.load(level)
    infos = []
    for candidate in backend.candidates(os.environ):
        try:
            infos += backend.enumerate(candidate)
        except BackendUnavailableError as error:
            seen.setdefault("unavailable", []).append(str(error))
    kind = TensorType("float32", (2, 24))
    graph = Graph((Node("Relu", ("x",), ("y",)),), ("x",), ("y",), {"x": kind, "y": kind})
    x = np.linspace(-3, 3, 48, dtype=np.float32).reshape(2, 24)

    def once() -> None:
        impl = backend.open(infos[0])
        executor = GpuExecutor(impl, level)
        if level.startswith("gles"):
            gl_objects(impl, seen, "after open")
        executable = executor.compile(graph)
        np.testing.assert_array_equal(executable.run({"x": x})["y"], np.maximum(x, 0))
        executable.close()
        if level.startswith("gles"):
            gl_objects(impl, seen, "before close")
        executor.close()

    return once


def bare(level: str) -> Callable[[], None]:
    """Return one cycle with nothing but the API."""

    from bare import opened

    def once() -> None:
        made: Any = opened(level)
        assert made.work()() == np.arange(16, dtype=np.float32).tobytes()
        if level in ("gles30", "gles31"):
            moderngl_context(made)
        made.close()

    return once


def moderngl_context(bare: Any) -> None:
    """Make and release what moderngl keeps per context: the package does not free all of it."""
    import moderngl

    class Loader:
        def load_opengl_function(self, name: str) -> int:
            return int(bare.egl.eglGetProcAddress(name.encode()) or nothing)

        load = load_opengl_function

        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

        def release(self) -> None: ...

    function = ctypes.CFUNCTYPE(ctypes.c_size_t)(lambda: 0)
    nothing = ctypes.cast(function, ctypes.c_void_p).value
    loader: Any = Loader()
    moderngl.create_context(standalone=True, require=300, context=loader).release()


def main(who: str, level: str, cycles: int) -> None:
    """Run the cycles and print the counts."""
    seen: dict[str, Any] = {}
    warm_up = min(WARM_UP, cycles // 2)
    once = ours(level, seen) if who == "ours" else bare(level)
    for _ in range(warm_up):
        once()
    before = counts()
    for _ in range(cycles - warm_up):
        once()
    seen.pop("_gl", None)
    body = {"before": before, "after": counts(), "cycles": cycles - warm_up, "seen": seen}
    if level == "wgpu":
        import wgpu

        body["objects"] = wgpu.diagnostics.object_counts.get_dict()
    print(json.dumps(body))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
