"""The stack of `moderngl`, driven on our own OpenGL ES context.

Objects are made and kernels launched through it; reading back is not, because its ways of reading
call functions that OpenGL ES lacks. What it looks for and the driver lacks becomes a function that
does nothing: it is written for desktop OpenGL and asks for many such.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from gpuedge.backends.gles import names, shaders
from gpuedge.backends.gles.gl import MAX_EXTENSIONS, Gl, Lookup
from gpuedge.backends.gles.names import error_for
from gpuedge.backends.gles.stack import Box, Format, GlObject, Step
from gpuedge.backends.gles.stack_raw import draw_to
from gpuedge.core.errors import DriverError

DTYPES = {
    names.FLOAT: "f4",
    names.HALF_FLOAT: "f2",
    names.UNSIGNED_INT: "u4",
    names.UNSIGNED_BYTE: "f1",
}
"""How moderngl names the types of texels."""


_nothing = ctypes.CFUNCTYPE(ctypes.c_size_t)(lambda: 0)
_NOTHING = ctypes.cast(_nothing, ctypes.c_void_p).value or 0
"""Stands in for functions that the driver lacks: callers clean up their own arguments."""


_idle: dict[tuple[str, tuple[int, int]], list[Any]] = {}
"""Contexts of moderngl whose device was closed, by driver and version. One holds functions and
limits, nothing of ours, so it serves the next device; and moderngl 5.13 loses 32 KiB with each."""


class _Loader:
    """What moderngl asks of a context: functions by name; making it current is our own affair."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup

    def load_opengl_function(self, name: str) -> int:
        return self._lookup(name) or _NOTHING

    load = load_opengl_function

    def __enter__(self) -> _Loader:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def release(self) -> None:
        return None


def _check_extensions(gl: Gl) -> None:
    """Refuse a list of extensions that moderngl would not survive: it reads all, and copies each.

    Raises DriverError if there is no end to them, or one of them is NULL.
    """
    count = gl.integer(names.NUM_EXTENSIONS)
    if count > MAX_EXTENSIONS:
        raise DriverError("The driver's extensions cannot be.", known=f"there are {count} of them")
    if any(gl.GetStringi(names.GL_EXTENSIONS, i) is None for i in range(count)):
        raise DriverError("The driver's extensions cannot be.", known="one of them has no name")


class ModernglStack:
    """See `gpuedge.backends.gles.stack.Stack`.

    Parameters
    ----------
    gl : Gl
    lookup : callable
        As for `Gl`.
    version : tuple of int
        The context's (major, minor).
    driver : str
        What tells this driver and its library from others.
    draws : bool
        Whether triangles are to be drawn.

    Raises
    ------
    DriverError (GE-405)
        moderngl is not installed, refuses the context, or would not survive this driver.
    """

    name = "moderngl"

    def __init__(
        self, gl: Gl, lookup: Lookup, version: tuple[int, int], driver: str, draws: bool
    ) -> None:
        self._gl = gl
        self._key = (driver, version)
        try:
            import moderngl
        except ImportError as error:
            raise DriverError("moderngl is not installed.", known=str(error)) from None
        self._moderngl = moderngl
        self._corners: Any = None
        self._arrays: dict[int, Any] = {}
        idle = _idle.get(self._key)
        if not idle:
            _check_extensions(gl)
        try:
            self._context = idle.pop() if idle else self._new(lookup, version)
            if draws:
                corners = (ctypes.c_float * len(shaders.TRIANGLE))(*shaders.TRIANGLE)
                self._corners = self._context.buffer(bytes(corners))
        except Exception as error:
            raise DriverError("moderngl refuses the context.", known=str(error)) from error
        for state in names.STATES_OFF:
            gl.Disable(state)
        gl.error()  # what it probed on the way

    def _new(self, lookup: Lookup, version: tuple[int, int]) -> Any:
        """Return a new context of moderngl; what the application made stays its default one."""
        store = getattr(self._moderngl, "_store", None)
        before = getattr(store, "default_context", None)
        loader: Any = _Loader(lookup)
        try:
            require = version[0] * 100 + version[1] * 10
            return self._moderngl.create_context(require=require, standalone=True, context=loader)
        finally:
            if store is not None:
                store.default_context = before

    def _tried(self, what: str, call: Callable[[], Any]) -> Any:
        """Return what `call` makes; its failure is the driver's."""
        self._gl.error()
        try:
            made = call()
        except Exception as error:
            failed = self._gl.error()
            if failed:
                raise error_for(failed, what) from error
            raise DriverError(f"The driver refuses {what}.", known=str(error).strip()) from error
        return made

    def texture(self, form: Format, width: int, height: int) -> GlObject:
        """Make a texture."""
        context, kind = self._context, DTYPES[form.type]
        what = f"a texture of {width} x {height}"
        made = self._tried(what, lambda: context.texture((width, height), 4, dtype=kind))
        failed = self._gl.error()
        if failed:
            made.release()
            raise error_for(failed, what)
        made.filter = (self._moderngl.NEAREST, self._moderngl.NEAREST)
        made.repeat_x = made.repeat_y = False
        self._gl.error()
        return GlObject("Textures", made.glo, made)

    def upload(self, texture: GlObject, form: Format, box: Box, data: Any) -> None:
        """Write a part of a texture."""
        texture.thing.write(data, viewport=box)

    def framebuffer(self, textures: Sequence[GlObject]) -> GlObject:
        """Make a framebuffer."""
        things = [t.thing for t in textures]
        made = self._tried("a framebuffer", lambda: self._context.framebuffer(things))
        if len(things) > 1:
            draw_to(self._gl, made.glo, len(things))
        self._gl.error()
        return GlObject("Framebuffers", made.glo, made)

    def program(self, vertex: str, fragment: str) -> GlObject:
        """Compile and link two shaders."""
        context = self._context
        made = self._tried(
            "a program",
            lambda: context.program(vertex_shader=vertex, fragment_shader=fragment),
        )
        self._gl.error()
        return GlObject("Programs", made.glo, made)

    def compute(self, text: str) -> GlObject:
        """Compile and link a compute shader."""
        made = self._tried("a program", lambda: self._context.compute_shader(text))
        self._gl.error()
        return GlObject("Programs", made.glo, made)

    def buffer(self, nbytes: int, usage: int) -> GlObject:
        """Make a buffer."""
        context, what = self._context, f"a buffer of {nbytes} bytes"
        made = self._tried(what, lambda: context.buffer(reserve=nbytes, dynamic=True))
        failed = self._gl.error()
        if failed:
            made.release()
            raise error_for(failed, what)
        return GlObject("Buffers", made.glo, made)

    def draw(self, program: GlObject) -> Step:
        """Return the call that draws; the program is in use."""
        array = self._arrays.get(program.name)
        if array is None:
            content = [(self._corners, "2f", shaders.POSITION)]
            made = self._tried(
                "a vertex array", lambda: self._context.vertex_array(program.thing, content)
            )
            array = self._arrays[program.name] = made
            self._gl.error()
        return array.render, (self._moderngl.TRIANGLES, 3)

    def dispatch(self, program: GlObject, groups: tuple[int, int, int]) -> Step:
        """Return the call that launches workgroups; the program is in use."""
        return program.thing.run, groups

    def delete(self, thing: GlObject) -> None:
        """Delete an object."""
        array = self._arrays.pop(thing.name, None) if thing.kind == "Programs" else None
        if array is not None:
            array.release()
        thing.thing.release()

    def close(self) -> None:
        """Delete what the stack itself holds, and keep moderngl's context for the next device."""
        for array in self._arrays.values():
            array.release()
        self._arrays.clear()
        if self._corners is not None:
            self._corners.release()
            self._corners = None
        _idle.setdefault(self._key, []).append(self._context)
