"""The typed tree of a kernel: what the parser builds and what printers read.

Nothing here belongs to one API. Constants are folded, unrolled loops are written out, scalars mixed
with vectors are splatted and compound assignments spelled out, so a printer has one form to print.
Every expression carries its `type` and its binding `time`; expressions have no side effects.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal as OneOf
from typing import Union

from gpuedge.core.kernel import Number, ScalarType

CONST, SPEC, UNIFORM, VARYING = 0, 1, 2, 3
"""Binding times: known to the front end, when the pipeline is built, per dispatch, never."""

BASE = {
    name: {"f": "float", "v": "float", "h": "half", "i": "int", "b": "bool"}[name[0]]
    for name in (
        "float", "vec2", "vec3", "vec4", "half", "hvec2", "hvec3", "hvec4",
        "int", "ivec2", "ivec3", "ivec4", "bool",
    )
}  # fmt: skip
"""Base type of each type."""
WIDTH = {name: int(name[-1]) if name[-1].isdigit() else 1 for name in BASE}
"""Number of components of each type."""
VECTOR = {(base, WIDTH[name]): name for name, base in BASE.items()}
"""Type with a given base and width, for example ``VECTOR["int", 3] == "ivec3"``."""


# --- what a kernel declares -------------------------------------------------------------------
@dataclass(slots=True, eq=False)
class Tensor:
    """A tensor argument; its position among the tensors is its binding."""

    name: str
    access: OneOf["read", "write"]
    binding: int
    used: bool = False


@dataclass(slots=True, eq=False)
class Spec:
    """A value fixed when the pipeline is built; as an expression, that value."""

    name: str
    type: ScalarType
    spec_id: int
    default: Number
    time: int = SPEC


@dataclass(slots=True, eq=False)
class Param:
    """A value given with each dispatch; as an expression, that value."""

    name: str
    type: OneOf["int", "float"]
    time: int = UNIFORM


@dataclass(slots=True, eq=False)
class Shared:
    """An array shared by a workgroup; `size` is a const or spec expression."""

    name: str
    type: str
    size: Expr


@dataclass(slots=True, eq=False)
class Local:
    """A local variable, function parameter or loop index; `uid` is unique in the kernel.

    `size` is 0 unless it is an array. `assigned` is false if its first value is its only one.
    `frozen` says that its value was needed early (a loop bound, a constant index).
    """

    name: str
    type: str
    uid: int
    time: int = VARYING
    size: int = 0
    value: Expr | None = None
    assigned: bool = False
    frozen: bool = False
    read_only: str = ""


# --- expressions ------------------------------------------------------------------------------
@dataclass(slots=True, eq=False)
class Literal:
    """A constant: int, float (already rounded to float32), half (to float16) or bool."""

    type: str
    value: Number
    time: int = CONST


@dataclass(slots=True, eq=False)
class LocalRef:
    """The value of a local that is not an array."""

    type: str
    local: Local
    time: int


@dataclass(slots=True, eq=False)
class Element:
    """An element of a local or shared array."""

    type: str
    array: Local | Shared
    index: Expr
    time: int = VARYING


@dataclass(slots=True, eq=False)
class Swizzle:
    """Components of a vector, one or more, by position."""

    type: str
    base: Expr
    components: tuple[int, ...]
    time: int


@dataclass(slots=True, eq=False)
class Op:
    """An operator or built-in by name, applied to values.

    Binary operators have their own sign and two operands of equal type (``>>`` too); ``&&`` and
    ``||`` need not short-cut. The others:

    ``neg``, ``!``
        Minus on numbers and number vectors, not on bool.
    ``?:``
        Condition (a scalar), yes, no; all three may be evaluated.
    ``vector``, ``splat``
        A vector from parts of its base type whose widths add up, or from one scalar repeated.
    ``cast``
        int or half to float or back, scalar or vector; float to int only of integral values.
    the keys of `gpuedge.lang.builtins.BUILTINS`
        Built-ins; the arguments have the same type.
    """

    type: str
    name: str
    args: tuple[Expr, ...]
    time: int


@dataclass(slots=True, eq=False)
class Load:
    """``load4``, ``load4z`` (position ivec4), ``load1``, ``texel`` (position int).

    `component`, which only printers set, is the one component that is wanted, an int.
    """

    type: str
    name: str
    tensor: Tensor
    position: Expr
    time: int = VARYING
    component: Expr | None = None


@dataclass(slots=True, eq=False)
class Dims:
    """Extents (W, H, S, N) of a tensor."""

    type: str
    tensor: Tensor
    time: int = UNIFORM


@dataclass(slots=True, eq=False)
class Identifier:
    """``local_id`` or ``group_id`` of the invocation, ivec3; ``lane_id``, int."""

    type: str
    name: str
    time: int = VARYING


@dataclass(slots=True, eq=False)
class Lane:
    """What a value is in the invocation whose ``lane_id`` is `lane`, of the same subgroup."""

    type: str
    value: Expr
    lane: int
    time: int = VARYING


@dataclass(slots=True, eq=False)
class Call:
    """A call of a helper function."""

    type: str
    function: Function
    args: tuple[Expr, ...]
    time: int = VARYING


Expr = Union[  # noqa: UP007  (the names are defined further up only as strings)
    Literal, Spec, Param, LocalRef, Element, Swizzle, Op, Load, Dims, Identifier, Lane, Call
]


def children(expr: Expr) -> tuple[Expr, ...]:
    """Return the expressions directly inside an expression."""
    if isinstance(expr, Op | Call):
        return expr.args
    if isinstance(expr, Swizzle):
        return (expr.base,)
    if isinstance(expr, Load):
        return (expr.position,) if expr.component is None else (expr.position, expr.component)
    if isinstance(expr, Lane):
        return (expr.value,)
    return (expr.index,) if isinstance(expr, Element) else ()


# --- statements -------------------------------------------------------------------------------
@dataclass(slots=True, eq=False)
class Declare:
    """First value of a local; None for an array, whose elements start undefined."""

    local: Local
    value: Expr | None


@dataclass(slots=True, eq=False)
class Assign:
    """Assignment to a local, an array element (`index`) and, if not None, one component of it."""

    target: Local | Shared
    index: Expr | None
    component: int | None
    value: Expr


@dataclass(slots=True, eq=False)
class If:
    """A branch with a bool condition; `orelse` may be empty."""

    condition: Expr
    then: list[Stmt]
    orelse: list[Stmt]


@dataclass(slots=True, eq=False)
class For:
    """``for (index = start; index < bound; index += step)``; `bound` is UNIFORM or earlier."""

    index: Local
    start: Expr
    bound: Expr
    step: Expr
    body: list[Stmt]


@dataclass(slots=True, eq=False)
class Store:
    """``store4`` (position ivec4) or ``storet`` (position int); outside the tensor: nothing."""

    name: str
    tensor: Tensor
    position: Expr
    value: Expr


@dataclass(slots=True, eq=False)
class Barrier:
    """All invocations of the group arrive before any goes on; shared writes become visible."""


Stmt = Union[Declare, Assign, If, For, Store, Barrier]  # noqa: UP007


# --- functions and kernels --------------------------------------------------------------------
@dataclass(slots=True, eq=False)
class Function:
    """A function; `result` is the expression of its last statement, None for a group's main."""

    name: str
    type: str
    args: list[Local]
    body: list[Stmt]
    result: Expr | None

    @property
    def value(self) -> Expr:
        """The result of a function that has one: all but the main of a group kernel."""
        if self.result is None:
            raise TypeError(f"{self.name} has no result")
        return self.result


@dataclass(slots=True, eq=False)
class Kernel:
    """A kernel ready to print.

    Attributes
    ----------
    form : {"map", "group"}
        One invocation per output texel, or workgroups with shared memory.
    tensors : list of Tensor
        In binding order; one has access ``write``.
    specs : list of Spec
        LX, LY, LZ (ids 0, 1, 2: workgroup size) first, then the text's own in order.
    functions : list of Function
        Helpers, callees first.
    local_size : tuple of Expr
        Three const or spec expressions.
    is_half : bool
        Whether anything in it is computed in float16.
    has_lanes : bool
        Whether it asks for lanes of its subgroup, which its workgroup must be then.
    """

    name: str = ""
    form: OneOf["map", "group"] = "map"
    tensors: list[Tensor] = field(default_factory=list)
    specs: list[Spec] = field(default_factory=list)
    params: list[Param] = field(default_factory=list)
    shared: list[Shared] = field(default_factory=list)
    functions: list[Function] = field(default_factory=list)
    main: Function = field(default_factory=lambda: Function("main", "void", [], [], None))
    local_size: tuple[Expr, Expr, Expr] = field(
        default_factory=lambda: (Literal("int", 1), Literal("int", 1), Literal("int", 1))
    )
    is_half: bool = False
    has_lanes: bool = False

    @property
    def out(self) -> Tensor:
        """The tensor that the kernel writes."""
        return next(t for t in self.tensors if t.access == "write")
