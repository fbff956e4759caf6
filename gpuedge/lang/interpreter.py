"""Kernels run by numpy: all invocations in step, one float32 rounding per operation.

A scalar is an array over the invocations ("lanes"), or a numpy scalar where all lanes agree; a
vector has its components along the first axis. Branches run with a mask of the lanes inside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuedge.core.errors import InputError, KernelError
from gpuedge.core.kernel import Extents, Number
from gpuedge.lang import tree as t
from gpuedge.lang.numpy_ops import BINARY, DTYPES, MATH, UNARY, Value
from gpuedge.lang.races import Races

Frame = dict[int, Value]
"""Values of locals by their uid."""


class _Run:
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
        self.outs = {x.name: np.full((count, 4), np.nan, np.float32) for x in kernel.outs}
        self.out = self.outs[kernel.out.name]
        self.written = np.zeros(count, np.bool_)
        self.texels = {name: array.reshape(-1, 4) for name, array in tensors.items()}
        self.extents = {n: (a.shape[3], a.shape[2], a.shape[1], a.shape[0]) for n, a in
                        tensors.items()}  # fmt: skip
        self.extents |= dict.fromkeys(self.outs, out_extents)
        self.ids: dict[str, Value] = {}
        self.shared: dict[str, Value] = {}
        self.races: dict[str, Races] = {}
        self.mask: Value = np.True_
        self.lanes = 1
        self.group: Value = np.int32(0)
        self.expressions = self._table()

    def _table(self) -> dict[type, Callable[[Any, Frame], Value]]:
        """Return how each kind of expression is computed."""
        return {
            t.Literal: lambda e, _: DTYPES[e.type](e.value),
            t.SpecRef: lambda e, _: DTYPES[e.type](self.specs[e.spec.name]),
            t.ParamRef: lambda e, _: DTYPES[e.type](self.params[e.param.name]),
            t.LocalRef: lambda e, frame: frame[e.local.uid],
            t.Element: self._element,
            t.Swizzle: self._swizzle,
            t.Unary: lambda e, f: UNARY[e.op](self.value(e.value, f)),
            t.Binary: self._binary,
            t.Select: self._select,
            t.Construct: self._construct,
            t.Splat: self._splat,
            t.Cast: lambda e, f: self.value(e.value, f).astype(DTYPES[t.BASE[e.type]]),
            t.Builtin: lambda e, f: MATH[e.name](*(self.value(a, f) for a in e.args)),
            t.Load: self._load,
            t.Dims: lambda e, _: np.array(self.extents[e.tensor.name], np.int32)[:, None],
            t.Identifier: lambda e, _: self.ids[e.name],
            t.Call: self._call,
        }  # fmt: skip

    # --- expressions --------------------------------------------------------------------------
    def value(self, expr: t.Expr, frame: Frame) -> Value:
        """Compute an expression in all lanes."""
        return self.expressions[type(expr)](expr, frame)

    def _swizzle(self, expr: t.Swizzle, frame: Frame) -> Value:
        base = self.value(expr.base, frame)
        if len(expr.components) == 1:
            part = base[expr.components[0]]
            return part[0] if part.shape == (1,) else part
        return base[list(expr.components)]

    def _binary(self, expr: t.Binary, frame: Frame) -> Value:
        left, right = self.value(expr.left, frame), self.value(expr.right, frame)
        op = "//" if expr.op == "/" and t.BASE[expr.type] == "int" else expr.op
        return BINARY[op](left, right)

    def _select(self, expr: t.Select, frame: Frame) -> Value:
        condition = self.value(expr.condition, frame)
        yes, no = self.value(expr.yes, frame), self.value(expr.no, frame)
        return np.where(condition, yes, no)

    def _construct(self, expr: t.Construct, frame: Frame) -> Value:
        rows: list[Value] = []
        for arg in expr.args:
            part = self.value(arg, frame)
            rows.extend([part] if t.WIDTH[arg.type] == 1 else list(part))
        return self._rows(rows)

    @staticmethod
    def _rows(rows: list[Value]) -> Value:
        """Return a vector of these components, as wide as the widest of them."""
        lanes = max(np.size(row) for row in rows)
        return np.stack([np.broadcast_to(np.reshape(row, -1), (lanes,)) for row in rows])

    def _splat(self, expr: t.Splat, frame: Frame) -> Value:
        row = np.reshape(self.value(expr.value, frame), -1)
        return np.broadcast_to(row, (t.WIDTH[expr.type], len(row)))

    def _call(self, expr: t.Call, frame: Frame) -> Value:
        function = expr.function
        inner = {a.uid: self.value(v, frame) for a, v in zip(function.args, expr.args, strict=True)}
        self.block(function.body, inner)
        return self.value(function.value, inner)

    # --- memory -------------------------------------------------------------------------------
    def _every_lane(self, value: Value) -> Value:
        return np.broadcast_to(value, (self.lanes,))

    def _refuse(self, bad: Value, what: str) -> None:
        if np.any(bad & self.mask):
            raise KernelError(f"Kernel {self.kernel.name}: {what}.")

    def _load(self, expr: t.Load, frame: Frame) -> Value:
        position = self.value(expr.position, frame)
        texels = self.texels[expr.tensor.name]
        width, height, slices, batch = self.extents[expr.tensor.name]
        if expr.name in ("load4", "load4z"):
            x, y, s, n = position
            inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
            valid = (s >= 0) & (s < slices) & (n >= 0) & (n < batch)
            index = ((n * slices + s) * height + y) * width + x
            if expr.name == "load4":
                valid = valid & inside
        else:
            scale = 4 if expr.name == "load1" else 1
            index = position
            valid = (index >= 0) & (index < len(texels) * scale)
        if self.strict:
            self._refuse(~valid, f"{expr.name}({expr.tensor.name}, ...) reads outside the tensor")
        if expr.name == "load1":
            flat = texels.reshape(-1)
            return flat[self._clamped(index, len(flat))]
        value = texels[self._clamped(np.reshape(index, -1), len(texels))].T
        return np.where(inside, value, np.float32(0)) if expr.name == "load4z" else value

    @staticmethod
    def _clamped(index: Value, count: int) -> Value:
        """Clamp as the devices do: a negative index counts as a huge one."""
        return np.minimum(np.asarray(index).astype(np.uint32), np.uint32(count - 1)).astype(np.intp)

    def _index(self, array: t.Local | t.Shared, index: t.Expr, size: int, frame: Frame) -> Value:
        at = self.value(index, frame)
        self._refuse((at < 0) | (at >= size), f"an index of {array.name}[{size}] is out of range")
        return np.clip(at, 0, size - 1)

    def _element(self, expr: t.Element, frame: Frame) -> Value:
        array = expr.array
        if isinstance(array, t.Local):
            elements = frame[array.uid]
            at = self._index(array, expr.index, array.size, frame)
            if np.ndim(at) == 0:
                return elements[at]
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
            elif isinstance(stmt, t.Store) and stmt.name == "emit":
                self.outs[stmt.tensor.name][:] = self.value(stmt.value, frame).T
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
        if t.BASE[kind] == "float":
            return np.full(shape, np.nan, np.float32)
        return np.full(shape, np.iinfo(np.int32).min, np.int32)

    def _assign(self, stmt: t.Assign, frame: Frame) -> None:
        value, target = self.value(stmt.value, frame), stmt.target
        if isinstance(target, t.Local) and stmt.index is None:
            old = frame[target.uid]
            if stmt.component is not None:
                rows = list(old)
                rows[stmt.component] = np.where(self.mask, value, rows[stmt.component])
                frame[target.uid] = self._rows(rows)
            else:
                frame[target.uid] = np.where(self.mask, value, old)
        elif stmt.index is not None:
            self._assign_element(stmt, stmt.index, value, frame)

    def _assign_element(self, stmt: t.Assign, index: t.Expr, value: Value, frame: Frame) -> None:
        target, active = stmt.target, self._every_lane(self.mask)
        if isinstance(target, t.Shared):
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
        if np.ndim(at) == 0:
            part[at] = np.where(self.mask, value, part[at])
        else:
            value = np.broadcast_to(value, (*part.shape[1:-1], self.lanes))
            part[at[active], ..., np.flatnonzero(active)] = value[..., active].T

    def _if(self, stmt: t.If, frame: Frame) -> None:
        condition = self.value(stmt.condition, frame)
        outer = self.mask
        for body, inside in ((stmt.then, condition), (stmt.orelse, ~condition)):
            self.mask = outer & inside
            if body and np.any(self.mask):
                self.block(body, frame)
        self.mask = outer

    def _for(self, stmt: t.For, frame: Frame) -> None:
        index = self.value(stmt.start, frame)
        bound = self.value(stmt.bound, frame)
        step = self.value(stmt.step, frame)
        outer = self.mask
        while True:
            self.mask = outer & (index < bound)
            if not np.any(self.mask):
                break
            frame[stmt.index.uid] = index
            self.block(stmt.body, frame)
            index = index + step
        self.mask = outer

    def _store(self, stmt: t.Store, frame: Frame) -> None:
        position = self.value(stmt.position, frame)
        value = self.value(stmt.value, frame)
        width, height, slices, batch = self.extents[stmt.tensor.name]
        if stmt.name == "store4":
            x, y, s, n = position
            index = ((n * slices + s) * height + y) * width + x
            inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
            inside = inside & (s >= 0) & (s < slices) & (n >= 0) & (n < batch)
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

    def groups(self, groups: tuple[int, int, int]) -> None:
        """Run a group kernel: all invocations of all groups."""
        sizes = [int(self.value(size, {})) for size in self.kernel.local_size]
        per_group, count = int(np.prod(sizes)), int(np.prod(groups))
        self.lanes = per_group * count
        q = np.arange(self.lanes, dtype=np.int32)
        local, self.group = q % per_group, q // per_group
        for name, i, (a, b, _) in (("local_id", local, sizes), ("group_id", self.group, groups)):
            self.ids[name] = np.stack([i % a, i // a % b, i // (a * b)])
        for array in self.kernel.shared:
            size = int(self.value(array.size, {}))
            self.shared[array.name] = self._undefined(array.type, size, count, last=False)
            self.races[array.name] = Races(f"kernel {self.kernel.name}: {array.name}", count, size)
        self.block(self.kernel.main.body, {})


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


def run(
    kernel: t.Kernel,
    tensors: Mapping[str, npt.NDArray[np.float32]],
    out_extents: Extents,
    *,
    specs: Mapping[str, Number],
    params: Mapping[str, Number],
    groups: tuple[int, int, int] | None,
    strict: bool,
) -> dict[str, npt.NDArray[np.float32]]:
    """Run a kernel; see `gpuedge.lang.interpret_all`."""
    _check(kernel, tensors, specs, params, groups)
    width, height, slices, batch = out_extents
    job = _Run(kernel, tensors, out_extents, specs=specs, params=params, strict=strict)
    with np.errstate(all="ignore"):  # a lane that a mask or ?: discards may compute nonsense
        if groups is None:
            job.map(out_extents)
        else:
            job.groups(groups)
    shape = (batch, slices, height, width, 4)
    return {name: texels.reshape(shape) for name, texels in job.outs.items()}
