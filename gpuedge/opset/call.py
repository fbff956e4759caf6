"""An operator applied to tensors, as the descriptions of operators read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuedge.core.errors import ShapeError, UnsupportedOpError
from gpuedge.core.text import shown
from gpuedge.opset.tensor import Array, Shape, Tensor

MAX_LISTED = 16
"""Inputs of a node, and extents of a shape, that a message lists."""

OPEN_SIZE = "whose size only values tell"


def node_label(op: str, name: str, outputs: Sequence[str]) -> str:
    """Return how messages name a node: its operator and its name, or its first output."""
    known = name or next((o for o in outputs if o), "")
    return f"{shown(op)[1:-1]} node {shown(known)}"


@dataclass(frozen=True)
class OperatorCall:
    """One node: its operator, operator set version, inputs and attributes.

    Attributes
    ----------
    op : str
    inputs : tuple of (Tensor or None)
        None where an optional input is absent, or where its type is not known.
    names : tuple of str
        Names of the inputs, for messages; empty where absent.
    outputs : tuple of str
        Names of the outputs that are asked for; empty where one is not.
    attrs : mapping
        Attributes as the model gives them.
    version : int
        Operator set version that gives the node its meaning.
    name : str
        Name of the node.
    """

    op: str
    inputs: tuple[Tensor | None, ...]
    names: tuple[str, ...]
    outputs: tuple[str, ...] = ("",)
    attrs: Mapping[str, Any] = field(default_factory=dict)
    version: int = 21
    name: str = ""

    # -- inputs -----------------------------------------------------------------------------------

    def has(self, index: int) -> bool:
        """Return whether optional input `index` is given."""
        return index < len(self.names) and bool(self.names[index])

    def input(self, index: int) -> Tensor:
        """Return an input. Raises UnsupportedOpError (GE-501) if it or its type is unknown."""
        if not self.has(index):
            raise self.unsupported(f"lacks its input {index}")
        tensor = self.inputs[index]
        if tensor is None:
            raise self.unsupported(f"reads {shown(self.names[index])}, whose type is unknown")
        return tensor

    def optional(self, index: int) -> Tensor | None:
        """Return an input, or None where it is absent."""
        return self.input(index) if self.has(index) else None

    def shape(self, index: int) -> Shape:
        """Return the shape of an input."""
        return self.input(index).shape

    def constant(self, index: int, what: str) -> Array | None:
        """Return the value of an input that parametrises the node, None where it is absent.

        Raises
        ------
        UnsupportedOpError (GE-501)
            It is given, but only known while running.
        """
        if not self.has(index):
            return None
        array = self.input(index).array
        if array is None:
            name = shown(self.names[index])
            raise self.unsupported(f"takes its {what} from {name}, which is not constant")
        return array

    def constant_ints(self, index: int, what: str) -> tuple[int, ...] | None:
        """Return a constant input as integers, None where it is absent.

        Raises
        ------
        UnsupportedOpError (GE-501)
            It is only known while running, or holds something else than integers.
        """
        array = self.constant(index, what)
        if array is None:
            return None
        if array.dtype.kind not in "iu":
            raise self.unsupported(f"has {what} of dtype {array.dtype} instead of integers")
        return tuple(int(v) for v in array.reshape(-1))

    # -- attributes -------------------------------------------------------------------------------

    def ints(self, name: str, default: Sequence[int]) -> tuple[int, ...]:
        """Return an attribute that is a list of integers."""
        value = self.attrs.get(name)
        # an empty list stays a message while reading, since it would lose its element type
        values = value if isinstance(value, (list, tuple)) and value else default
        return tuple(int(v) for v in values)

    def integer(self, name: str, default: int) -> int:
        """Return an integer attribute."""
        return int(self.attrs.get(name, default))

    def number(self, name: str, default: float) -> float:
        """Return a floating-point attribute."""
        return float(self.attrs.get(name, default))

    def text(self, name: str, default: str) -> str:
        """Return a string attribute, which may be stored as bytes."""
        value: Any = self.attrs.get(name, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    def axis(self, given: int, rank: int) -> int:
        """Return an axis counted from the front. Raises ShapeError (GE-201) if it is beyond."""
        if not -rank <= given < rank:
            raise self.bad_shape(f"has axis {given}, outside a tensor of rank {rank}")
        return given % rank if rank else 0

    # -- errors -----------------------------------------------------------------------------------

    @property
    def label(self) -> str:
        """How messages name the node: its operator and its name, or its first output."""
        return node_label(self.op, self.name, self.outputs)

    def unsupported(self, why: str) -> UnsupportedOpError:
        """Return the error for a form that is not known; `why` completes a sentence."""
        return UnsupportedOpError(f"{self.label} {why}.")

    def bad_shape(self, why: str) -> ShapeError:
        """Return the error for shapes that do not fit; it names the node and its input shapes."""
        known = [
            f"{shown(name)[1:-1]}={_extents(tensor.shape)}"
            for name, tensor in zip(self.names, self.inputs, strict=True)
            if name and tensor is not None
        ]
        listed = [*known[:MAX_LISTED], "..."] if len(known) > MAX_LISTED else known
        shapes = ", ".join(listed)
        return ShapeError(f"{self.label} {why}.", known=f"inputs {shapes}" if shapes else None)


def _extents(shape: Sequence[int]) -> str:
    if len(shape) <= MAX_LISTED:
        return str(list(shape))
    return f"{list(shape[:MAX_LISTED])}"[:-1] + f", ...] of rank {len(shape)}"
