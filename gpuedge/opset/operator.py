"""What an operator is: one description from which everything else about it follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuedge.core.dtypes import ACCEPTED, INTEGERS
from gpuedge.opset.call import OperatorCall
from gpuedge.opset.following import followed
from gpuedge.opset.limits import Limit
from gpuedge.opset.tensor import Constant, Given, Tensor

FLOATS: Final = ACCEPTED
INDICES: Final = ("int32", "int64")
ANY: Final = ("bool", *INTEGERS)
"""What kernels move, compare and count besides floats."""

Build = Callable[[OperatorCall], "Tensor | Sequence[Tensor]"]


@dataclass(frozen=True)
class Facts:
    """What is known even of operators whose meaning is not described.

    Attributes
    ----------
    grows : bool
        Whether results are of any size, or empty, whatever the size of what it reads.
    picks : bool
        Whether no inference knows the size of its result, which cannot exceed the inputs.
    is_random : bool
        Whether it may give another result each time.
    keeps : bool
        Whether the first output holds every element of the first input, and no others.
    """

    grows: bool = False
    picks: bool = False
    is_random: bool = False
    keeps: bool = False


GROWS: Final = Facts(grows=True)
PICKS: Final = Facts(picks=True)
RANDOM: Final = Facts(is_random=True)
KEEPS: Final = Facts(keeps=True)


@dataclass(frozen=True)
class Operator:
    """An operator of ONNX, or of ONNX Runtime's own.

    Shapes, dtypes, cost, numpy meaning, kernels and error bounds all follow from `build`.

    Attributes
    ----------
    name : str
        Its ONNX name.
    build : callable
        Composes the outputs from the inputs of an `OperatorCall`. Raises UnsupportedOpError
        (GE-501) for forms that are not known, and ShapeError (GE-201) for shapes that do not fit.
    parameters : tuple of int
        Inputs that only parametrise the node (a shape, axes, bounds); the others carry tensors.
    dtypes : tuple of str
        What it takes besides float32 and float16.
    moves : bool
        Whether it only moves elements, of whatever dtype.
    others : tuple of int
        Inputs whose dtype need not be that of the rest (indices, conditions).
    remark : str
        What a reader of the operator table should know.
    check : callable, optional
        Refuses before anything else what ONNX Runtime must not be asked either.
    differs : callable, optional
        Tells of which nodes ONNX Runtime (seen with 1.32.0) makes nothing, or something else than
        ONNX's reference does. On the CPU numpy computes these.
    limits : callable, optional
        What values integer inputs must have, of a node that can be composed.
    is_open_beyond : bool
        Whether ONNX leaves open what NaN, and floats beyond an integer type, become in that.
    is_view : bool
        Whether the result is the same bytes under another shape.
    cuts : bool
        Whether it takes what there is where there is less than it asks for.
    is_quantised : bool
        Whether it computes with integers of quantised models.
    facts : Facts
        What holds whether or not its meaning is described.
    domain : str
        Empty for ONNX's own.
    """

    name: str
    build: Build
    parameters: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = ()
    moves: bool = False
    others: tuple[int, ...] = ()
    remark: str = ""
    check: Callable[[OperatorCall], None] | None = None
    differs: Callable[[OperatorCall], bool] | None = None
    limits: Callable[[OperatorCall], tuple[Limit, ...]] | None = None
    is_open_beyond: bool = False
    is_view: bool = False
    cuts: bool = False
    is_quantised: bool = False
    facts: Facts = Facts()
    domain: str = ""

    def outputs(self, call: OperatorCall) -> tuple[Tensor, ...]:
        """Return what a node computes.

        Raises
        ------
        UnsupportedOpError (GE-501)
            A form, dtype or parameter that is not known.
        ShapeError (GE-201)
            Shapes that do not fit.
        """
        if self.check is not None:
            self.check(call)
        if not self.moves:
            self._check_dtypes(call)
        if any(tensor is not None and tensor.length is not None for tensor in call.inputs):
            outputs = followed(call, self._built, cuts=self.cuts)
        else:
            outputs = self._built(call)
        for limit in () if self.limits is None else self.limits(call):
            array = call.input(limit.position).array
            if array is not None and limit.wrong(array).size:
                raise call.bad_shape(f"has {limit.said}")
        lengths = [t.length.count for t in outputs if t.length is not None]
        _label([*outputs, *lengths], call.name or call.outputs[0])
        return outputs

    def _built(self, call: OperatorCall) -> tuple[Tensor, ...]:
        result = self.build(call)
        return (result,) if isinstance(result, Tensor) else tuple(result)

    def carries(self, position: int) -> bool:
        """Return whether the input at a position carries a tensor rather than a parameter."""
        return position not in self.parameters

    def _check_dtypes(self, call: OperatorCall) -> None:
        dtypes = {
            tensor.dtype
            for i, tensor in enumerate(call.inputs)
            if tensor is not None and self.carries(i) and i not in self.others
        }
        if len(dtypes) > 1:
            raise call.unsupported(f"mixes the dtypes {', '.join(sorted(dtypes))}")
        allowed = (*FLOATS, *self.dtypes)
        for dtype in dtypes - set(allowed):
            listed = f"{', '.join(allowed[:-1])} and {allowed[-1]}"
            raise call.unsupported(f"computes in {dtype}; only {listed} are known")


def _label(outputs: Sequence[Tensor], label: str) -> None:
    """Name everything that a node computes after it; what it reads is named already."""
    stack = list(outputs)
    while stack:
        tensor = stack.pop()
        if not tensor.label and not isinstance(tensor.source, (Given, Constant)):
            tensor.label = label
            stack.extend(tensor.reads)
            if tensor.digits is not None:
                stack += (tensor.digits.high, tensor.digits.low, tensor.digits.rounded)


@dataclass(frozen=True)
class Function:
    """A public function on numpy arrays that is one operator.

    Attributes
    ----------
    name : str
        As in ``gpuedge.relu``.
    op : str
        The ONNX operator.
    summary : str
        First sentence of its documentation, without the full stop.
    bound : str
        How far results may be from the exact ones, in words.
    operands : tuple of str
        Names of the arrays it takes.
    numbers : mapping
        Further arguments, finite numbers with their defaults, passed as attributes.
    dtypes : tuple of str
        What it takes besides float32 and float16.
    domain : (float, float)
        Where conformance cases draw operands from.
    narrow : (float, float)
        The same for float16 and for tensors with few distinct values.
    """

    name: str
    op: str
    summary: str
    bound: str
    operands: tuple[str, ...] = ("x",)
    numbers: Mapping[str, float] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ()
    domain: tuple[float, float] = (-50.0, 50.0)
    narrow: tuple[float, float] | None = None


__all__ = ["ANY", "FLOATS", "INDICES", "Build", "Function", "Operator"]
