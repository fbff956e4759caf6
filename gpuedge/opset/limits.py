"""What values of integers an operator can do with: where an index leads nowhere, a divisor is zero.

Kernels answer whatever they are given, ONNX Runtime refuses or worse. Values that the host knows
are compared with these limits before either sees them; constants already while a node is composed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuedge.core.dtypes import INTEGERS
from gpuedge.opset.call import OperatorCall
from gpuedge.opset.tensor import Array


@dataclass(frozen=True)
class Limit:
    """The least and the most that an input of a node may hold, or that it may not hold zero.

    Attributes
    ----------
    position : int
        Of the input among those of the node.
    what : str
        Such as ``indices``.
    low, high : tuple of int
        The same for all elements, or one for each place along the last axis.
    """

    position: int
    what: str
    low: tuple[int, ...] = ()
    high: tuple[int, ...] = ()

    @property
    def said(self) -> str:
        """What is wrong where it is not kept: ``indices outside of [-3, 2]``."""
        if not self.low:
            return f"{self.what} of 0"
        ends = [f"[{a}, {b}]" for a, b in zip(self.low, self.high, strict=True)]
        return f"{self.what} outside of {', '.join(ends)}"

    def wrong(self, array: Array) -> Array:
        """Return the elements of an array that are not within the limits."""
        is_wrong = np.equal(array, 0)
        if self.low:
            low, high = (np.array(ends) if ends[1:] else ends[0] for ends in (self.low, self.high))
            is_wrong = (array < low) | (array > high)
        return np.extract(is_wrong, array)


def by_axis(call: OperatorCall, named: str = "axis") -> tuple[Limit, ...]:
    """Return the limits of indices along an axis; negative ones count from its end."""
    x = call.input(0)
    extent = x.shape[call.axis(call.integer(named, 0), x.rank)]
    return (Limit(1, "indices", (-extent,), (extent - 1,)),)


def by_row(call: OperatorCall) -> tuple[Limit, ...]:
    """Return the limits of indices whose last axis has one for each axis of the data."""
    x, indices, batch = call.input(0), call.input(1), call.integer("batch_dims", 0)
    extents = x.shape[batch : batch + indices.shape[-1]]
    return (Limit(1, "indices", tuple(-n for n in extents), tuple(n - 1 for n in extents)),)


def divisor(call: OperatorCall) -> tuple[Limit, ...]:
    """Return that nothing is divided by the integer zero."""
    is_integer = call.input(1).dtype in INTEGERS
    return (Limit(1, "a divisor"),) if is_integer and call.input(0).size else ()


def lengths(call: OperatorCall) -> tuple[Limit, ...]:
    """Return the limits of the lengths of sequences."""
    most = call.input(0).shape[call.integer("time_axis", 0)]
    return (Limit(1, "lengths", (0,), (most,)),)


def images(call: OperatorCall) -> tuple[Limit, ...]:
    """Return the limits of the numbers of images that regions are of."""
    return (Limit(2, "images", (0,), (call.input(0).shape[0] - 1,)),)
