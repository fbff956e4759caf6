"""The small interface through which devices make and use OpenGL objects.

Two stacks serve it: `moderngl` where it can drive our context, and the bare entry points
everywhere. Reading back is not here: moderngl's ways of reading are wrong or crash on OpenGL ES.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Step = tuple[Callable[..., Any], tuple[Any, ...]]
"""A prepared call: a function and its arguments."""

Box = tuple[int, int, int, int]
"""Column, row, width, height of a part of a texture, in physical texels."""


@dataclass(frozen=True, slots=True)
class Format:
    """How texels lie in a texture and in the host's memory.

    Attributes
    ----------
    internal, layout, type : int
        Arguments of glTexImage2D.
    nbytes : int
        Bytes of one physical texel on the host, writing and reading.
    read_layout, read_type : int
        Arguments of glReadPixels.
    read_bytes : int
        Bytes of one physical texel as it is read; differs where halves are read as floats.
    """

    internal: int
    layout: int
    type: int
    nbytes: int
    read_layout: int
    read_type: int
    read_bytes: int


@dataclass(slots=True, eq=False)
class GlObject:
    """An OpenGL object: its kind (``Textures``, ``Programs``, ...), its name, its wrapper."""

    kind: str
    name: int
    thing: Any = None


class Stack(Protocol):
    """Makes and uses objects of the current context. Raises DriverError."""

    name: str

    def texture(self, form: Format, width: int, height: int) -> GlObject:
        """Make a texture, nearest texel, clamped at its edges; contents undefined."""

    def upload(self, texture: GlObject, form: Format, box: Box, data: Any) -> None:
        """Write a part of a texture from contiguous host memory."""

    def framebuffer(self, textures: Sequence[GlObject]) -> GlObject:
        """Make a framebuffer that renders to textures; it must be complete."""

    def program(self, vertex: str, fragment: str) -> GlObject:
        """Compile and link a vertex and a fragment shader."""

    def compute(self, text: str) -> GlObject:
        """Compile and link a compute shader."""

    def buffer(self, nbytes: int, usage: int) -> GlObject:
        """Make a buffer; contents undefined."""

    def draw(self, program: GlObject) -> Step:
        """Return the call that draws one triangle over the whole viewport."""

    def dispatch(self, program: GlObject, groups: tuple[int, int, int]) -> Step:
        """Return the call that launches workgroups."""

    def delete(self, thing: GlObject) -> None:
        """Delete an object."""

    def close(self) -> None:
        """Drop what the stack itself holds."""
