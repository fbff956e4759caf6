"""What lowering an operation needs: the growing plan, layouts on demand, variants by shape."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import replace
from math import prod
from types import MappingProxyType
from typing import Any

from gpuedge.core.caps import Caps
from gpuedge.core.errors import UnsupportedOpError
from gpuedge.core.kernel import Extents, Number
from gpuedge.core.storage import Storage
from gpuedge.graph.ir import Array, Graph
from gpuedge.opset.digits import part_of
from gpuedge.opset.tensor import Constant, Given, Part, Tensor
from gpuedge.plan import layout as layouts
from gpuedge.plan.layout import Kind, Layout
from gpuedge.plan.library import Variant
from gpuedge.plan.plan import HostTensor, Pass, PlanTensor, Source, Texels, VariantChoice
from gpuedge.plan.select import (
    EXTENTS_BYTES,
    ONE,
    consider,
    groups_of,
    taken,
    too_many,
    workgroup,
)
from gpuedge.plan.storages import EXACT, StoragePrecision, Storages, bound_bytes
from gpuedge.plan.tuned import UNTUNED, Tunings, begun, key_of

MAX_TRIPS = 16384
"""Longest loop nest of one invocation. lavapipe 22.3 stops without an error after 65,535 iterations
summed over all loops (measured); other drivers kill long invocations. Longer sums are split."""
CHUNK = 1024
"""Elements one invocation reduces; longer reductions take several passes."""


def most_bindings(caps: Caps) -> int:
    """Return how many tensors one kernel may bind."""
    return min(caps.max_storage_buffers, caps.max_push_bytes // EXTENTS_BYTES)


def most_rows(nbytes: int, caps: Caps, unit: int = 1) -> int:
    """Return how many rows of so many bytes one binding holds: a multiple of `unit`, not 0."""
    return max(1, caps.max_storage_buffer_bytes // nbytes // unit) * unit


class Context:
    """The plan under construction for one segment on one device.

    A tensor may exist in several layouts; `have` records them by its number, `need` makes the
    missing one. `known` has the constants that computed tensors turned out to be, `choices` where
    several variants fitted.
    """

    def __init__(
        self,
        graph: Graph,
        caps: Caps,
        restricted: Collection[str] = (),
        precision: StoragePrecision = EXACT,
        tuned: Tunings = UNTUNED,
    ) -> None:
        self.graph = graph
        self.caps = caps
        self.restricted = restricted
        self.constants: dict[str, Array] = dict(graph.constants)
        self.dtypes = {name: kind.dtype for name, kind in graph.types.items()}
        self.storages = Storages(self.dtypes, self.constants, caps, precision)
        self.names: dict[int, str] = {}
        self.tensors: dict[str, PlanTensor] = {}
        self.passes: list[Pass] = []
        self.have: dict[int, dict[Kind, str]] = {}
        self.known: dict[int, Tensor] = {}
        self.ops: tuple[str, ...] = ()
        self.choices: dict[str, VariantChoice] = {}
        self.written: dict[Hashable, Any] = {}  # texts of `gpuedge.plan.alike`
        self._tuned, self._begun = tuned, begun(tuned)
        self._kept = "" if precision.kind == EXACT.kind else precision.kind
        self._views: dict[str, list[str]] = {}  # by memory
        self._count = 0

    # -- tensors ------------------------------------------------------------------------------

    def fresh(self, value: str) -> str:
        """Return a new tensor name."""
        self._count += 1
        return f"{value}@{self._count}"

    def value_of(self, tensor: Tensor) -> str:
        """Return the graph value that a tensor is; empty if it is part of an operator only."""
        source = tensor.source
        if isinstance(source, Given):
            return source.name
        if isinstance(source, Constant):
            return self._constant(tensor, source)
        return self.names.get(tensor.serial, "")

    def _constant(self, tensor: Tensor, source: Constant) -> str:
        """Return the name of a constant, which gets one if the graph does not have it."""
        name = source.name or self.names.get(tensor.serial, "")
        if name not in self.constants or self.constants[name] is not source.array:
            name = self.names[tensor.serial] = self.fresh("constant")
            self.constants[name] = source.array
            self.dtypes[name] = tensor.dtype
        return name

    def add(
        self,
        layout: Layout,
        value: str = "",
        host: HostTensor | None = None,
        storage: Storage | None = None,
    ) -> str:
        """Add a tensor with memory of its own and return its name.

        It is kept as graph value `value` is to be, or the values of `host`, unless `storage` says
        otherwise; what is no graph value (a part of a sum) is kept exactly.
        """
        name = self.fresh(value)
        constant = host is not None and all(s in self.constants for s in host.sources)
        if storage is None:
            storage = self.storages.of_all((value,) if host is None else host.sources)
        self.tensors[name] = PlanTensor(name, layout, name, host, constant, storage)
        return name

    def view(self, name: str, layout: Layout, start: int = 0) -> str:
        """Add a second tensor over the bytes of another, from one of its texels on."""
        base = self.tensors[name]
        other = self.fresh(name.partition("@")[0])
        self.tensors[other] = PlanTensor(
            other, layout, base.memory, None, base.is_constant, base.storage, base.start + start
        )
        self._views.setdefault(base.memory, []).append(other)
        return other

    def may_begin(self, name: str, start: int) -> bool:
        """Tell whether kernels may bind what begins at a texel of a tensor."""
        base = self.tensors[name]
        offset = base.offset + start * base.storage.texel_bytes
        return self.caps.has_suballocation and offset % self.caps.offset_alignment == 0

    def move(self, name: str, whole: str, start: int) -> bool:
        """Let a tensor and all its views lie in another, from a texel on; False if it may not.

        What is a part already, or written by the host, stays where it is.
        """
        base, home = self.tensors[name], self.tensors[whole]
        is_own = base.name == base.memory and base.host is None
        if not (is_own and base.storage == home.storage and self.may_begin(whole, start)):
            return False
        views = self._views.pop(name, [])
        self._views.setdefault(home.memory, []).extend((name, *views))
        for tensor in (self.tensors[n] for n in (name, *views)):
            moved = replace(tensor, memory=home.memory, start=home.start + start + tensor.start)
            self.tensors[tensor.name] = moved
        return True

    def define(self, tensor: Tensor, name: str) -> None:
        """Say that plan tensor `name` holds `tensor` in its layout."""
        self.have.setdefault(tensor.serial, {})[self.tensors[name].layout.kind] = name

    def alias(self, tensor: Tensor, other: Tensor) -> None:
        """Say that `tensor` has the elements of another, in the same order."""
        settled = self.known.get(other.serial)
        if settled is not None and settled.array is not None:
            self.settle(tensor, settled.array)
        elif tensor.shape == other.shape:
            self.have[tensor.serial] = self.have.setdefault(other.serial, {})
            if not self.have[tensor.serial]:
                self.need(other, "linear")
        else:
            flat = self.need(other, "linear")
            self.define(tensor, self.view(flat, layouts.linear(tensor.shape)))

    def settle(self, tensor: Tensor, array: Array) -> None:
        """Say that a computed tensor is the same whatever the inputs are."""
        shaped = Constant(array.reshape(tensor.shape))
        self.known[tensor.serial] = Tensor(tensor.shape, tensor.dtype, shaped)

    def host(self, tensor: Tensor) -> Tensor | None:
        """Return what the host knows a tensor as: a constant or an input; None if it does not."""
        tensor = self.known.get(tensor.serial, tensor)
        return tensor if self.is_host(tensor) else None

    def flatten(self, tensor: Tensor) -> None:
        """Keep what was computed in C order, and in no other layout."""
        flat = self.need(tensor, "linear")
        ready = self.have[tensor.serial]
        ready.clear()  # in place: other tensors may share it
        ready["linear"] = flat

    @staticmethod
    def is_host(tensor: Tensor) -> bool:
        """Tell whether the host knows the values: a constant or an input of the segment."""
        return isinstance(tensor.source, (Given, Constant))

    def need(self, tensor: Tensor, kind: Kind) -> str:
        """Return a plan tensor that holds `tensor` in the layout `kind`."""
        tensor = self.known.get(tensor.serial, tensor)
        ready = self.have.setdefault(tensor.serial, {})
        if kind in ready:
            return ready[kind]
        wanted = layouts.make(kind, tensor.shape)
        if not ready and self.is_host(tensor):
            is_constant = isinstance(tensor.source, Constant)
            self.define(tensor, self._from_host(tensor, wanted if is_constant else
                                                layouts.linear(tensor.shape)))  # fmt: skip
            return self.need(tensor, kind)
        flat = self._as_linear(tensor)
        value = self.value_of(tensor)
        if layouts.same_bytes(wanted):
            if self.storages.is_input(self.tensors[flat].storage, value):
                flat = self.copy(flat)
                self.define(tensor, flat)
            return self.view(flat, wanted)
        packed = self.add(wanted, value)
        self.repack("pack", flat, packed, wanted)
        self.define(tensor, packed)
        return packed

    def _from_host(self, tensor: Tensor, layout: Layout) -> str:
        def arrange(array: Texels) -> Texels:
            return layouts.to_texels(array.reshape(layout.shape), layout)

        name = self.value_of(tensor)
        if isinstance(tensor.source, Given) and tensor.source.part != "whole":
            return self._digit(name, tensor.source.part, layout)
        build = None if layout.kind == "linear" else arrange
        # Of constants only matrices are large; scales and shifts are few, and errors of theirs many
        is_few = isinstance(tensor.source, Constant) and layout.kind != "rows"
        storage = self.storages.exact_of((name,)) if is_few else None
        if isinstance(tensor.source, Given) or (
            layout.kind == "linear" and self.storages.keeps(tensor)
        ):
            storage = self.storages.of_input(name)
        elif layout.kind == "rows":
            storage = self.storages.of_weights(tensor)
        return self.add(layout, name, HostTensor((name,), build), storage)

    def _digit(self, name: str, part: Part, layout: Layout) -> str:
        def build(array: Array) -> Texels:
            return layouts.to_texels(part_of(array, part).reshape(layout.shape), layout)

        host = HostTensor((name,), build, is_raw=True)
        return self.add(layout, name, host, self.storages.exact)

    def _as_linear(self, tensor: Tensor) -> str:
        ready = self.have[tensor.serial]
        if "linear" not in ready:
            if not ready:
                raise TypeError(f"tensor {tensor.serial} of {tensor.label} has not been computed")
            name = next(iter(ready.values()))
            layout = self.tensors[name].layout
            flat = layouts.linear(layout.shape)
            if layouts.same_bytes(layout):
                ready["linear"] = self.view(name, flat)
            else:
                ready["linear"] = self.add(flat, self.value_of(tensor))
                self.repack("unpack", name, ready["linear"], layout)
        return ready["linear"]

    def repack(
        self,
        op: str,
        source: str,
        target: str,
        packed: Layout,
        *,
        epilogue: str | None = None,
        tensors: Mapping[str, str] = MappingProxyType({}),
        specs: Mapping[str, Number] = MappingProxyType({}),
    ) -> None:
        """Append a pass from C order to the layout `packed`, or back, and what follows in it."""
        own: dict[str, Number] = {"C": packed.packed, "INNER": packed.inner}
        is_whole = packed.kind == "channels" and packed.inner % 4 == 0
        facts = {"is_whole": int(is_whole), "channels_over": packed.packed % 4}
        bound = {"X": source, "O": target, **tensors}
        self.launch(op, bound, own | dict(specs), epilogue=epilogue, facts=facts)

    def copy(self, name: str) -> str:
        """Return a copy of a tensor in C order that a kernel writes: of bytes, in floats."""
        tensor = self.tensors[name]
        copy = self.add(tensor.layout, storage=self.storages.written(tensor.storage))
        text = "in tensor E0;\nvec4 epilogue(vec4 v, ivec4 p) { return load4(E0, p); }\n"
        self.launch("elementwise", {"O": copy, "E0": name}, epilogue=text)
        return copy

    # -- passes -------------------------------------------------------------------------------

    def launch(
        self,
        op: str | Variant,
        tensors: Mapping[str, str],
        specs: Mapping[str, Number] | None = None,
        *,
        epilogue: str | None = None,
        facts: Mapping[str, int] | None = None,
        parts: tuple[int, int] = (1, 1),
        is_half: bool = False,
    ) -> None:
        """Append one pass; its output is the tensor bound to ``O``.

        `op` is an operation, of which the best variant that fits is taken, or a variant. `parts`
        are those of `Variant.grid`.
        """
        out = self.tensors[tensors["O"]].layout.extents
        variant = op
        if isinstance(variant, str):
            variant = self.best(
                variant, facts or {}, len(tensors), is_half=is_half, out=out, parts=parts
            )
        grid = variant.grid(out, parts)
        is_group = variant.form == "group"
        local = (workgroup if is_group else _fitted)(variant, grid, self.caps)
        groups = groups_of(grid, local)
        self._check(tensors, groups)
        consts, along = tuple(variant.consts.items()), layouts.along(out, self.caps.map_texels)
        self.passes.append(
            Pass(
                source=Source(variant.kernel, epilogue, is_half, consts, along),
                variant=variant.id,
                tensors=dict(tensors),
                outputs=(tensors["O"],),
                specs={**dict(zip(("LX", "LY", "LZ"), local, strict=True)), **(specs or {})},
                groups=groups,
            )
        )

    def best(
        self,
        op: str,
        facts: Mapping[str, int],
        bindings: int,
        *,
        is_half: bool = False,
        out: Extents = ONE,
        parts: tuple[int, int] = (1, 1),
    ) -> Variant:
        """Return the best variant that fits, and note what else there was to choose from.

        Raises KernelLimitError (GE-303) if none does.
        """
        known = {**facts, "bindings": bindings}
        key = key_of(op, facts, out, parts, is_half=is_half, storage=self._kept)
        tuned = self._tuned.get(key)
        rows = consider(
            op, known, self.caps, self.restricted, is_half=is_half, out=out, parts=parts,
            tuned=tuned, left_out=self._begun,
        )  # fmt: skip
        fitting = tuple(row.variant.id for row in rows if row.fits)
        if len(fitting) > 1 or tuned is not None:
            before = self.choices[key].passes if key in self.choices else ()
            self.choices[key] = VariantChoice(op, fitting, (*before, len(self.passes)), tuned)
        return taken(op, rows)

    def allows(self, variant: Variant, out: Extents) -> bool:
        """Tell whether an output of these extents takes no more workgroups than there may be."""
        return not too_many(variant, out, (1, 1), self.caps)

    def offers(self, op: str, facts: Mapping[str, int]) -> bool:
        """Tell whether any variant of `op` fits the device and the shape."""
        rows = consider(op, facts, self.caps, self.restricted)
        return any(not row.why_not for row in rows)

    @property
    def bindings(self) -> int:
        """Tensors one kernel may bind."""
        return most_bindings(self.caps)

    def _check(self, tensors: Mapping[str, str], groups: tuple[int, ...]) -> None:
        limits = self.caps
        if len(tensors) > self.bindings:
            raise UnsupportedOpError(
                f"{'+'.join(self.ops)} binds {len(tensors)} tensors.",
                known=f"this device binds at most {self.bindings} (max_storage_buffers, "
                "max_push_bytes)",
            )
        for count, limit in zip(groups, limits.max_groups, strict=True):
            if count > limit:
                raise UnsupportedOpError(
                    f"{'+'.join(self.ops)} needs {count} workgroups along one axis.",
                    known=f"this device allows {limit}",
                )
        for name in tensors.values():
            tensor = self.tensors[name]
            nbytes = bound_bytes(tensor.layout.nbytes, tensor.storage)
            if nbytes > limits.max_storage_buffer_bytes:
                raise UnsupportedOpError(
                    f"{'+'.join(self.ops)} binds a tensor of {nbytes} bytes.",
                    known=f"this device binds at most {limits.max_storage_buffer_bytes} "
                    f"(max_storage_buffer_bytes{_texture(limits)})",
                )

    def scratch(self, kind: Kind, tensor: Tensor) -> str:
        """Add an uninitialised plan tensor for a tensor."""
        return self.add(layouts.make(kind, tensor.shape), self.value_of(tensor))


def _texture(caps: Caps) -> str:
    side = caps.max_texture_size
    return "" if side is None else f", textures of at most {side} by {side}"


def _fitted(variant: Variant, grid: tuple[int, int, int], caps: Caps) -> tuple[int, int, int]:
    """Fit a map kernel's workgroup to the grid: as many invocations, fewer of them idle."""
    left = prod(variant.local)
    local = []
    for size, preferred, limit in zip(
        grid, (variant.local[0], left, left), caps.max_local_size, strict=True
    ):
        local.append(min(1 << (max(size, 1) - 1).bit_length(), preferred, left, limit))
        left //= local[-1]
    return local[0], local[1], local[2]
