"""Operations that move elements without changing them. All are exact, and take bytes as well."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuedge.core.dtypes import BYTES, as_operand
from gpuedge.core.errors import InputError
from gpuedge.graph.build import GraphBuilder
from gpuedge.ops.arguments import integer, integers
from gpuedge.ops.call import Array, call, simple
from gpuedge.ops.warm import warm

if TYPE_CHECKING:
    from gpuedge.device import Device

MOST_ARRAYS = 4096
"""Arrays that `concat` joins; planning takes a millisecond each."""


@warm
def concat(arrays: Sequence[Any], axis: int = 0, *, device: str | Device | None = None) -> Array:
    """Join arrays along an existing axis.

    Parameters
    ----------
    arrays : sequence of array_like, float32 or float16, or all int8 or all uint8
        At least one; shapes equal except along `axis`.
    axis : int
        May count from the end.
    device : str or Device, optional

    Raises
    ------
    InputError (GE-203)
        There are no arrays, or more than `MOST_ARRAYS`.
    """
    if isinstance(arrays, (str, bytes)) or not hasattr(arrays, "__iter__"):
        raise InputError("concat takes a sequence of arrays.")
    inputs = [(f"array{i}", a) for i, a in enumerate(islice(arrays, MOST_ARRAYS + 1))]
    if not 1 <= len(inputs) <= MOST_ARRAYS:
        raise InputError(f"concat takes 1 to {MOST_ARRAYS} arrays.")
    return simple("concat", "Concat", inputs, device, also=BYTES, axis=integer("axis", axis))


@warm
def reshape(x: Any, shape: Sequence[int], *, device: str | Device | None = None) -> Array:
    """Give the same elements, in C order, another shape; one extent may be -1."""
    wanted = integers("shape", shape)

    def write(b: GraphBuilder, names: Sequence[str]) -> str:
        target = b.constant("shape", np.array(wanted, np.int64))
        return b.add("Reshape", [*names, target], {"allowzero": 1})

    return call("reshape", [("x", x)], write, device=device, key=wanted, also=BYTES)


@warm
def flatten(x: Any, axis: int = 1, *, device: str | Device | None = None) -> Array:
    """Join the axes before `axis`, and those from `axis` on, into a matrix."""
    return simple("flatten", "Flatten", [("x", x)], device, also=BYTES, axis=integer("axis", axis))


@warm
def transpose(
    x: Any, axes: Sequence[int] | None = None, *, device: str | Device | None = None
) -> Array:
    """Permute the axes: output axis i is input axis ``axes[i]``; by default they are reversed."""
    # A copy of a large array waits until its shape is known to be possible.
    rank = x.ndim if type(x) is np.ndarray else as_operand(x, "'x' of transpose", BYTES)[0].ndim
    given = None if axes is None else integers("axes", axes)
    perm = None if given is None else tuple(a + rank * (a < 0) for a in given)
    return simple("transpose", "Transpose", [("x", x)], device, also=BYTES, perm=perm)
