"""Why an operation runs where it runs: `gpuedge.explain`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpuedge.core.errors import InputError
from gpuedge.ops.array import DeviceArray
from gpuedge.ops.call import answered
from gpuedge.ops.chain import Chain
from gpuedge.runtime.inputs import brief
from gpuedge.safety.interrupts import whole

if TYPE_CHECKING:
    from gpuedge.decide.decision import Decision


@whole
def explain(operation: Callable[..., Any], /, *operands: Any, **options: Any) -> Decision:
    """Call an operation, and return why it runs where it runs: `Session.explain` for operations.

    Parameters
    ----------
    operation : callable
        Such as `gpuedge.conv2d`, or what `gpuedge.elementwise` returned.
    *operands, **options
        What it is called with. It is computed once, but on arrays of a device only recorded.

    Returns
    -------
    Decision
        Prints as a sentence and a table. Under ``auto`` it is what will answer the next call of
        this kind.

    Raises
    ------
    InputError (GE-203)
        It is no operation of gpuedge.
    GpuEdgeError
        What the operation raises.

    Examples
    --------
    >>> import gpuedge, numpy as np
    >>> print(gpuedge.explain(gpuedge.relu, np.ones(4, "f4"), device="cpu").reason)
    Runs on cpu: asked for by name.
    """
    if not callable(operation):
        raise InputError(
            f"explain() was given {brief(operation)}, which is no operation.",
            hint="explain(gpuedge.relu, x); sessions and arrays of a device have explain()",
        )
    result, models = answered(lambda: operation(*operands, **options))
    first = result[0] if isinstance(result, tuple) and result else result
    if isinstance(first, DeviceArray) and not first.is_computed:
        lazy_array = first._lazy
        models = [Chain(lazy_array).compiled(lazy_array.request)[0]]
    if not models:
        raise InputError(
            f"{brief(operation)} is no operation of gpuedge: nothing was computed by one.",
            hint="explain(gpuedge.relu, x)",
        )
    return models[-1].decision
