"""Kernels run by numpy: all invocations in step, one rounding to float32 or half per operation.

A scalar is an array over the invocations ("lanes"), or a numpy scalar where all lanes agree; a
vector has its components along the first axis. Branches run with a mask of the lanes inside; it is
the scalar ``np.True_`` where that is all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuedge.core.errors import InputError, KernelError
from gpuedge.core.kernel import Extents, Number
from gpuedge.lang import evaluate
from gpuedge.lang import tree as t

Value = Any
"""A numpy scalar or array of float32, float16, int32 or bool; vectors have components first."""
Frame = dict[int, Value]
"""Values of locals by their uid."""
Indices = npt.NDArray[np.signedinteger[Any]]

DTYPES: dict[str, type[np.generic]] = {
    "float": np.float32, "half": np.float16, "int": np.int32, "bool": np.bool_,
}  # fmt: skip


def _quotient(a: Value, b: Value) -> Value:
    """Divide; ints are truncated, as those of devices are."""
    if a.dtype != np.int32:
        return np.true_divide(a, b)
    return np.floor_divide(a - np.fmod(a, b), b)


def _dot4(a: Value, b: Value) -> Value:
    """Return the sum of the products of the four signed bytes of two ints."""

    def byte(value: Value, at: int) -> Value:
        return np.right_shift(np.left_shift(value, np.int32(24 - at)), np.int32(24))

    return np.asarray(sum(byte(a, at) * byte(b, at) for at in (0, 8, 16, 24)))


OPERATIONS: dict[str, Callable[..., Value]] = {
    **evaluate.OPERATIONS,
    "/": _quotient,
    "%": np.fmod,
    "&&": np.logical_and,
    "||": np.logical_or,
    ">>": np.right_shift,
    "!": np.logical_not,
    "?:": np.where,
    "min": np.minimum,
    "max": np.maximum,
    "clamp": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "abs": np.abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "sign": np.sign,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "roundeven": np.rint,
    "pow": np.power,
    "dot4": _dot4,
}
"""What operators and built-ins are in numpy, on float32, float16 and int32."""


_NOBODY, _SEVERAL = -1, -2


class Races:
    """Refuses accesses to one shared array whose result would depend on the order of lanes.

    It keeps who touched which element since the last barrier.

    Parameters
    ----------
    name : str
        What errors call the array.
    groups, size : int
        Number of workgroups, and of elements in each one's array.
    """

    def __init__(self, name: str, groups: int, size: int) -> None:
        self.name = name
        self.writer = np.full((groups, size), _NOBODY)
        self.reader = np.full((groups, size), _NOBODY)

    def forget(self) -> None:
        """Start anew: all lanes passed a barrier."""
        self.writer[...] = _NOBODY
        self.reader[...] = _NOBODY

    def _refuse(self, what: str) -> None:
        raise KernelError(
            f"In {self.name} {what}.", hint="put a barrier() between writing and reading"
        )

    def read(self, group: Indices, at: Indices, active: npt.NDArray[np.bool_]) -> None:
        """Note that each active lane reads element `at` of its group's array."""
        group, at, lane = group[active], at[active], np.flatnonzero(active)
        writer = self.writer[group, at]
        if np.any((writer != _NOBODY) & (writer != lane)):
            self._refuse("an invocation reads what another one wrote")
        old = self.reader[group, at]
        self.reader[group, at] = np.where((old == _NOBODY) | (old == lane), lane, _SEVERAL)
        # Of several lanes that read one element just now, the array kept one; the others see it.
        other = self.reader[group, at] != lane
        self.reader[group[other], at[other]] = _SEVERAL

    def write(self, group: Indices, at: Indices, active: npt.NDArray[np.bool_]) -> None:
        """Note that each active lane writes element `at` of its group's array."""
        group, at, lane = group[active], at[active], np.flatnonzero(active)
        for notes, verb in ((self.writer, "wrote"), (self.reader, "read")):
            old = notes[group, at]
            if np.any((old != _NOBODY) & (old != lane)):
                self._refuse(f"an invocation writes what another one {verb}")
        self.writer[group, at] = lane
        if np.any(self.writer[group, at] != lane):
            self._refuse("two invocations write one element")


class Run:
    """One run of a kernel over all its invocations."""

    def __init__(
        self,
        kernel: t.Kernel,
        tensors: Mapping[str, npt.NDArray[np.float32]],
        out_extents: Extents,
        *,
        specs: Mapping[str, Number],
        params: Mapping[str, Number],
        strict: bool,
    ) -> None:
        self.kernel = kernel
        self.strict = strict
        self.specs = {s.name: s.default for s in kernel.specs} | dict(specs)
        self.params = params
        width, height, slices, batch = out_extents
        count = batch * slices * height * width
        self.out = np.full((count, 4), np.nan, np.float32)
        self.written = np.zeros(count, np.bool_)
        self.texels = {name: array.reshape(-1, 4) for name, array in tensors.items()}
        self.extents = {n: (a.shape[3], a.shape[2], a.shape[1], a.shape[0]) for n, a in
                        tensors.items()}  # fmt: skip
        self.extents[kernel.out.name] = out_extents
        self.columns = {name: _columns(extents) for name, extents in self.extents.items()}
        self.constants: dict[int, Value] = {}  # of literals and the like, by their id
        self.ids: dict[str, Value] = {}
        self.shared: dict[str, Value] = {}
        self.races: dict[str, Races] = {}
        self.mask: Value = np.True_
        self.lanes = self.groups = 1
        self.group: Value = np.int32(0)
        self.expressions = self._table()

    def _table(self) -> dict[type, Callable[[Any, Frame], Value]]:
        """Return how each kind of expression is computed."""
        return {
            t.Literal: self._constant,
            t.Spec: self._constant,
            t.Param: self._constant,
            t.LocalRef: lambda e, frame: frame[e.local.uid],
            t.Element: self._element,
            t.Swizzle: self._swizzle,
            t.Op: self._op,
            t.Load: self._load,
            t.Dims: lambda e, _: self.columns[e.tensor.name][0],
            t.Identifier: lambda e, _: self.ids[e.name],
            t.Lane: self._lane,
            t.Call: self._call,
        }  # fmt: skip

    # --- expressions --------------------------------------------------------------------------
    def value(self, expr: t.Expr, frame: Frame) -> Value:
        """Compute an expression in all lanes."""
        return self.expressions[type(expr)](expr, frame)

    def _constant(self, expr: t.Literal | t.Spec | t.Param, _: Frame) -> Value:
        constant = self.constants.get(id(expr))
        if constant is None:
            if isinstance(expr, t.Literal):
                number = expr.value
            else:
                number = (self.specs if isinstance(expr, t.Spec) else self.params)[expr.name]
            constant = self.constants[id(expr)] = DTYPES[expr.type](number)
        return constant

    def _swizzle(self, expr: t.Swizzle, frame: Frame) -> Value:
        base = self.value(expr.base, frame)
        if len(expr.components) == 1:
            part = base[expr.components[0]]
            return part[0] if part.shape == (1,) else part
        return base[list(expr.components)]

    def _op(self, expr: t.Op, frame: Frame) -> Value:
        table = self.expressions
        values = [table[type(arg)](arg, frame) for arg in expr.args]
        operation = OPERATIONS.get(expr.name)
        if operation is not None:
            return operation(*values)
        if expr.name == "cast":
            return values[0].astype(DTYPES[t.BASE[expr.type]])
        if expr.name == "splat":
            return values[0].reshape(1, -1).repeat(t.WIDTH[expr.type], axis=0)
        rows: list[Value] = []
        for arg, part in zip(expr.args, values, strict=True):
            rows.extend([part] if t.WIDTH[arg.type] == 1 else list(part))
        return self._rows(rows)

    @staticmethod
    def _rows(rows: list[Value]) -> Value:
        """Return a vector of these components, as wide as the widest of them."""
        whole = np.empty((len(rows), max([row.size for row in rows])), rows[0].dtype)
        for at, row in enumerate(rows):
            whole[at] = row
        return whole

    def _call(self, expr: t.Call, frame: Frame) -> Value:
        function = expr.function
        inner = {a.uid: self.value(v, frame) for a, v in zip(function.args, expr.args, strict=True)}
        self.block(function.body, inner)
        return self.value(function.value, inner)

    def _lane(self, expr: t.Lane, frame: Frame) -> Value:
        """Take a value from one invocation of each workgroup, which is one subgroup."""
        per_group = self.lanes // self.groups
        if expr.lane >= per_group:
            raise KernelError(
                f"Kernel {self.kernel.name}: lane {expr.lane} of a workgroup of {per_group}.",
                known="the workgroup is the subgroup",
            )
        value = np.asarray(self.value(expr.value, frame))
        every = np.broadcast_to(value, (*value.shape[:-1], self.lanes))
        return every[..., self.group * per_group + expr.lane]

    # --- memory -------------------------------------------------------------------------------
    def _every_lane(self, value: Value) -> Value:
        return np.broadcast_to(value, (self.lanes,))

    def _refuse(self, bad: Value, what: str) -> None:
        if (bad & self.mask).any():
            raise KernelError(f"Kernel {self.kernel.name}: {what}.")

    def _load(self, expr: t.Load, frame: Frame) -> Value:
        position = self.value(expr.position, frame)
        texels: Value = self.texels[expr.tensor.name]
        inside: Value = np.True_
        if expr.name in ("load4", "load4z"):
            valid, index = self._place(expr.tensor, position)
            if expr.name == "load4z":
                inside, valid = valid[0] & valid[1], valid[2:]
            valid = np.logical_and.reduce(valid)
        else:
            index = position
            texels = texels.reshape(-1) if expr.name == "load1" else texels
            valid = index.astype(np.uint32) < len(texels)
        if self.strict:
            self._refuse(~valid, f"{expr.name}({expr.tensor.name}, ...) reads outside the tensor")
        # Devices clamp so, too: a negative index counts as a huge one.
        at = index.astype(np.uint32)
        if expr.name == "load1":
            return texels.take(at, mode="clip")
        value = texels.take(at.reshape(-1), axis=0, mode="clip").T
        return value if inside.all() else np.where(inside, value, np.float32(0))

    def _place(self, tensor: t.Tensor, position: Value) -> tuple[Value, Value]:
        """Return in which axes a position lies in a tensor, and the number of its texel."""
        extents, strides = self.columns[tensor.name]
        index = np.add.reduce(position * strides, axis=0, dtype=np.int32)
        # As unsigned numbers, so that a negative coordinate is out of range too.
        return position.astype(np.uint32) < extents.astype(np.uint32), index

    def _index(self, array: t.Local | t.Shared, index: t.Expr, size: int, frame: Frame) -> Value:
        at = self.value(index, frame)
        if at.ndim == 0 and 0 <= at < size:
            return at
        self._refuse((at < 0) | (at >= size), f"an index of {array.name}[{size}] is out of range")
        return np.clip(at, 0, size - 1)

    def _element(self, expr: t.Element, frame: Frame) -> Value:
        array = expr.array
        if isinstance(array, t.Local):
            elements = frame[array.uid]
            at = self._index(array, expr.index, array.size, frame)
            if at.ndim == 0:
                return elements[at].copy()  # it is a value, whatever the element becomes
            picked = elements[at, ..., np.arange(self.lanes)]
            return picked.T if picked.ndim == 2 else picked
        memory = self.shared[array.name]
        at = self._every_lane(self._index(array, expr.index, memory.shape[1], frame))
        if self.strict:
            self.races[array.name].read(self.group, at, self._every_lane(self.mask))
        picked = memory[self.group, at]
        return picked.T if picked.ndim == 2 else picked

    # --- statements ---------------------------------------------------------------------------
    def block(self, body: list[t.Stmt], frame: Frame) -> None:
        """Run statements in the lanes of the current mask."""
        for stmt in body:
            if isinstance(stmt, t.Declare):
                frame[stmt.local.uid] = self._first_value(stmt, frame)
            elif isinstance(stmt, t.Assign):
                self._assign(stmt, frame)
            elif isinstance(stmt, t.If):
                self._if(stmt, frame)
            elif isinstance(stmt, t.For):
                self._for(stmt, frame)
            elif isinstance(stmt, t.Store):
                self._store(stmt, frame)
            else:
                for races in self.races.values():
                    races.forget()

    def _first_value(self, stmt: t.Declare, frame: Frame) -> Value:
        if stmt.value is not None:
            return self.value(stmt.value, frame)
        return self._undefined(stmt.local.type, stmt.local.size, self.lanes, last=True)

    @staticmethod
    def _undefined(kind: str, size: int, lanes: int, *, last: bool) -> Value:
        """Return an array nobody wrote yet: NaN, or the least int, so that using it shows."""
        vector = () if t.WIDTH[kind] == 1 else (t.WIDTH[kind],)
        shape = (size, *vector, lanes) if last else (lanes, size, *vector)
        if t.BASE[kind] != "int":
            return np.full(shape, np.nan, DTYPES[t.BASE[kind]])
        return np.full(shape, np.iinfo(np.int32).min, np.int32)

    def _assign(self, stmt: t.Assign, frame: Frame) -> None:
        value, target = self.value(stmt.value, frame), stmt.target
        if isinstance(target, t.Local) and stmt.index is None:
            old = frame[target.uid]
            if stmt.component is not None:
                rows = list(old)
                rows[stmt.component] = self._masked(value, rows[stmt.component])
                frame[target.uid] = self._rows(rows)
            else:
                frame[target.uid] = self._masked(value, old)
        elif stmt.index is not None:
            self._assign_element(stmt, stmt.index, value, frame)

    def _masked(self, value: Value, old: Value) -> Value:
        """Return a value in the lanes of the current mask, and an older one in the others."""
        return value if self.mask is np.True_ else np.where(self.mask, value, old)

    def _assign_element(self, stmt: t.Assign, index: t.Expr, value: Value, frame: Frame) -> None:
        target = stmt.target
        if isinstance(target, t.Shared):
            active = self._every_lane(self.mask)
            memory = self.shared[target.name]  # (groups, size[, components])
            at = self._every_lane(self._index(target, index, memory.shape[1], frame))
            if self.strict:
                self.races[target.name].write(self.group, at, active)
            part = memory if stmt.component is None else memory[..., stmt.component]
            value = np.broadcast_to(value, (*part.shape[2:], self.lanes))
            part[self.group[active], at[active]] = value[..., active].T
            return
        at = self._index(target, index, target.size, frame)
        elements = frame[target.uid]  # (size[, components], lanes)
        part = elements if stmt.component is None else elements[:, stmt.component]
        if at.ndim == 0:
            part[at] = self._masked(value, part[at])
        else:
            active = self._every_lane(self.mask)
            value = np.broadcast_to(value, (*part.shape[1:-1], self.lanes))
            part[at[active], ..., np.flatnonzero(active)] = value[..., active].T

    def _if(self, stmt: t.If, frame: Frame) -> None:
        condition = self.value(stmt.condition, frame)
        outer = self.mask
        for body, inside in ((stmt.then, condition), (stmt.orelse, ~condition)):
            if body and self._enter(outer & inside):
                self.block(body, frame)
        self.mask = outer

    def _enter(self, mask: Value) -> bool:
        """Run what follows in the lanes of a mask; False if there are none."""
        self.mask = np.True_ if mask.all() else mask
        return bool(mask.any())

    def _for(self, stmt: t.For, frame: Frame) -> None:
        index = self.value(stmt.start, frame)
        bound = self.value(stmt.bound, frame)
        step = self.value(stmt.step, frame)
        outer = self.mask
        while self._enter(outer & (index < bound)):
            frame[stmt.index.uid] = index
            self.block(stmt.body, frame)
            index = index + step
        self.mask = outer

    def _store(self, stmt: t.Store, frame: Frame) -> None:
        position = self.value(stmt.position, frame)
        value = self.value(stmt.value, frame)
        if stmt.name == "store4":
            inside, index = self._place(stmt.tensor, position)
            inside = np.logical_and.reduce(inside)
        else:
            index = position
            inside = (index >= 0) & (index < len(self.out))
        active = self._every_lane(self.mask & inside)
        index = np.broadcast_to(np.reshape(index, -1), (self.lanes,))[active]
        if self.strict and (self.written[index].any() or len(np.unique(index)) < len(index)):
            raise KernelError(f"Kernel {self.kernel.name}: a texel of the output is written twice.")
        self.written[index] = True
        self.out[index] = np.broadcast_to(value, (4, self.lanes))[:, active].T

    # --- whole kernels ------------------------------------------------------------------------
    def map(self, out_extents: Extents) -> None:
        """Run a map kernel: one lane per texel."""
        width, height, slices, _ = out_extents
        q = np.arange(len(self.out), dtype=np.int32)
        x, row = q % width, q // width
        y, plane = row % height, row // height
        self.lanes = len(q)
        main = self.kernel.main
        frame = {main.args[0].uid: np.stack([x, y, plane % slices, plane // slices])}
        self.block(main.body, frame)
        self.out[:] = self.value(main.value, frame).T

    def workgroups(self, groups: tuple[int, int, int]) -> None:
        """Run a group kernel: all invocations of all groups."""
        sizes = [int(self.value(size, {})) for size in self.kernel.local_size]
        per_group, count = int(np.prod(sizes)), int(np.prod(groups))
        self.lanes, self.groups = per_group * count, count
        q = np.arange(self.lanes, dtype=np.int32)
        local, self.group = q % per_group, q // per_group
        self.ids["lane_id"] = local
        for name, i, (a, b, _) in (("local_id", local, sizes), ("group_id", self.group, groups)):
            self.ids[name] = np.stack([i % a, i // a % b, i // (a * b)])
        for array in self.kernel.shared:
            size = int(self.value(array.size, {}))
            self.shared[array.name] = self._undefined(array.type, size, count, last=False)
            self.races[array.name] = Races(f"kernel {self.kernel.name}: {array.name}", count, size)
        self.block(self.kernel.main.body, {})


def _columns(extents: Extents) -> tuple[Value, Value]:
    """Return the extents of a tensor and how many texels a step along each axis is, int32."""
    width, height, slices, _ = extents
    strides = [1, width, width * height, width * height * slices]
    return tuple([np.array(column, np.int32)[:, None] for column in (extents, strides)])  # type: ignore[return-value]


def _check(
    kernel: t.Kernel,
    tensors: Mapping[str, npt.NDArray[np.float32]],
    specs: Mapping[str, Number],
    params: Mapping[str, Number],
    groups: tuple[int, int, int] | None,
) -> None:
    def same(what: str, given: set[str], wanted: set[str], *, all_of: bool = True) -> None:
        wrong = (given ^ wanted) if all_of else (given - wanted)
        if wrong:
            raise InputError(
                f"Kernel {kernel.name}: {what} missing or unknown: {', '.join(sorted(wrong))}.",
                known=f"it has {', '.join(sorted(wanted)) or 'none'}",
            )

    same("tensors", set(tensors), {x.name for x in kernel.tensors if x.access == "read"})
    same("params", set(params), {p.name for p in kernel.params})
    same("specs", set(specs), {s.name for s in kernel.specs}, all_of=False)
    for name, array in tensors.items():
        if array.dtype != np.float32 or array.ndim != 5 or array.shape[4] != 4 or not array.size:
            raise InputError(
                f"Tensor {name} is {array.dtype} of shape {array.shape}.",
                known="the interpreter takes float32 of shape (N, S, H, W, 4), not empty",
            )
    if (groups is None) != (kernel.form == "map"):
        raise InputError(
            f"Kernel {kernel.name} is a {kernel.form} kernel: "
            f"groups {'must' if groups is None else 'cannot'} be given."
        )


def interpret(
    kernel: t.Kernel,
    tensors: Mapping[str, npt.NDArray[np.float32]],
    out_extents: Extents,
    specs: Mapping[str, Number] | None = None,
    params: Mapping[str, Number] | None = None,
    groups: tuple[int, int, int] | None = None,
    *,
    strict: bool = False,
) -> npt.NDArray[np.float32]:
    """Run a kernel with numpy, all invocations in step, each operation rounded to float32.

    Those of halves are rounded to float16.

    Parameters
    ----------
    tensors : mapping
        The in tensors by name, float32 of shape (N, S, H, W, 4).
    out_extents : tuple
        (W, H, S, N) of the out tensor.
    specs, params : mapping, optional
        Values by name; specs have defaults, params do not.
    groups : tuple, optional
        Workgroups in x, y, z; needed by and only by group kernels.
    strict : bool
        Also refuse what devices tolerate but no kernel should do: loads clamped into range, data
        races in shared memory and texels written twice.

    Returns
    -------
    ndarray
        float32 of shape (N, S, H, W, 4); what a group kernel did not write is NaN.

    Raises
    ------
    InputError (GE-203)
        A tensor, param or `groups` is missing, unknown or has the wrong shape.
    KernelError (GE-300)
        An array index is out of range, or one of the strict rules is broken.
    """
    specs, params = specs or {}, params or {}
    _check(kernel, tensors, specs, params, groups)
    width, height, slices, batch = out_extents
    job = Run(kernel, tensors, out_extents, specs=specs, params=params, strict=strict)
    with np.errstate(all="ignore"):  # a lane that a mask or ?: discards may compute nonsense
        if groups is None:
            job.map(out_extents)
        else:
            job.workgroups(groups)
    return job.out.reshape(batch, slices, height, width, 4)
