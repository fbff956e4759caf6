"""What lowering an operation needs: the growing plan, layouts on demand, variants by shape."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod

from gpuedge.core.caps import Caps
from gpuedge.core.errors import UnsupportedOpError
from gpuedge.core.kernel import Number
from gpuedge.core.storage import Storage
from gpuedge.graph.ir import Graph
from gpuedge.kernels import layout as layouts
from gpuedge.kernels.layout import Kind, Layout
from gpuedge.kernels.library import Variant
from gpuedge.kernels.plan import HostTensor, Pass, PlanTensor, Source, Texels
from gpuedge.kernels.select import consider, select
from gpuedge.kernels.storages import EXACT, Keeping, Storages

MAX_TRIPS = 16384
"""Longest loop nest of one invocation. lavapipe 22.3 stops without an error after 65,535 iterations
summed over all loops (measured); other drivers kill long invocations. Longer sums are split."""

CHUNK = 1024
"""Elements one invocation reduces; longer reductions take several passes."""


PUSH_BYTES = 16
"""Push-constant bytes that each tensor of a kernel takes for its extents."""


def most_bindings(caps: Caps) -> int:
    """Return how many tensors one kernel may bind."""
    return min(caps.max_storage_buffers, caps.max_push_bytes // PUSH_BYTES)


class Context:
    """The plan under construction for one segment on one device.

    A graph value may exist in several layouts; `have` records them, `need` makes the missing one.
    """

    def __init__(
        self,
        graph: Graph,
        caps: Caps,
        restricted: Collection[str] = (),
        keeping: Keeping = EXACT,
    ) -> None:
        self.graph = graph
        self.caps = caps
        self.restricted = restricted
        self.storages = Storages(graph, caps, keeping)
        self.tensors: dict[str, PlanTensor] = {}
        self.passes: list[Pass] = []
        self.have: dict[str, dict[Kind, str]] = {}
        self.ops: tuple[str, ...] = ()
        self._count = 0

    # -- tensors ------------------------------------------------------------------------------

    def fresh(self, value: str) -> str:
        """Return a new tensor name."""
        self._count += 1
        return f"{value}@{self._count}"

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
        constant = host is not None and all(s in self.graph.constants for s in host.sources)
        if storage is None:
            storage = self.storages.of_all((value,) if host is None else host.sources)
        self.tensors[name] = PlanTensor(name, layout, name, host, constant, storage)
        return name

    def view(self, name: str, layout: Layout) -> str:
        """Add a second tensor over the bytes of another."""
        base = self.tensors[name]
        other = self.fresh(name.partition("@")[0])
        self.tensors[other] = PlanTensor(
            other, layout, base.memory, None, base.is_constant, base.storage
        )
        return other

    def define(self, value: str, name: str) -> None:
        """Say that tensor `name` holds graph value `value` in its layout."""
        self.have.setdefault(value, {})[self.tensors[name].layout.kind] = name

    def is_host(self, value: str) -> bool:
        """Tell whether the host knows the value: a constant or an input of the segment."""
        return value in self.graph.constants or value in self.graph.inputs

    def need(self, value: str, kind: Kind, shape: tuple[int, ...] | None = None) -> str:
        """Return a tensor that holds `value` in the layout `kind`, seen with `shape`."""
        wanted = layouts.make(kind, self.graph.shape(value) if shape is None else shape)
        ready = self.have.get(value, {})
        if kind in ready:
            return self._seen_as(ready[kind], wanted)
        if self.is_host(value) and (value in self.graph.constants or not ready):
            host_kind = kind if value in self.graph.constants else "linear"
            self.define(value, self._from_host(value, layouts.make(host_kind, wanted.shape)))
            return self.need(value, kind, shape)
        flat = self._as_linear(value)
        if layouts.same_bytes(wanted):
            return self.view(flat, wanted)
        packed = self.add(wanted, value)
        self._repack("pack", flat, packed, wanted)
        self.define(value, packed)
        return packed

    def _seen_as(self, name: str, wanted: Layout) -> str:
        return name if self.tensors[name].layout == wanted else self.view(name, wanted)

    def _from_host(self, value: str, layout: Layout) -> str:
        def arrange(array: Texels) -> Texels:
            return layouts.to_texels(array.reshape(layout.shape), layout)

        build = None if layout.kind == "linear" else arrange
        # Of constants only matrices are large; scales and shifts are few, and errors of theirs many
        is_few = value in self.graph.constants and layout.kind != "rows"
        storage = self.storages.exact_of((value,)) if is_few else None
        return self.add(layout, value, HostTensor((value,), build), storage)

    def _as_linear(self, value: str) -> str:
        ready = self.have[value]
        if "linear" not in ready:
            name = next(iter(ready.values()))
            layout = self.tensors[name].layout
            flat = layouts.linear(layout.shape)
            if layouts.same_bytes(layout):
                ready["linear"] = self.view(name, flat)
            else:
                ready["linear"] = self.add(flat, value)
                self._repack("unpack", name, ready["linear"], layout)
        return ready["linear"]

    def _repack(self, op: str, source: str, target: str, packed: Layout) -> None:
        specs: dict[str, Number] = {"C": packed.packed, "INNER": packed.inner}
        self.launch(op, {"X": source, "O": target}, specs)

    # -- passes -------------------------------------------------------------------------------

    def launch(
        self,
        op: str,
        tensors: Mapping[str, str],
        specs: Mapping[str, Number] | None = None,
        *,
        epilogue: str | None = None,
        facts: Mapping[str, int] | None = None,
        also: tuple[str, ...] = (),
    ) -> None:
        """Append one pass of operation `op`.

        Its output is the tensor bound to ``O``; `also` names the kernel's further out tensors.
        """
        variant = select(op, facts or {}, self.caps, self.restricted)
        width, height, slices, batch = self.tensors[tensors["O"]].layout.extents
        across, down = variant.outputs
        grid = (-(-width // across), -(-height // down), slices * batch)
        local = variant.local if variant.form == "group" else self._workgroup(variant, grid)
        groups = tuple(-(-size // of) for size, of in zip(grid, local, strict=True))
        self._check(tensors, groups)
        self.passes.append(
            Pass(
                source=Source(variant.kernel, epilogue),
                variant=variant.id,
                tensors=dict(tensors),
                outputs=tuple(tensors[name] for name in ("O", *also)),
                specs={**dict(zip(("LX", "LY", "LZ"), local, strict=True)), **(specs or {})},
                groups=(groups[0], groups[1], groups[2]),
            )
        )

    def offers(self, op: str, facts: Mapping[str, int]) -> bool:
        """Tell whether any variant of `op` fits the device and the shape."""
        rows = consider(op, facts, self.caps, self.restricted)
        return any(not row.why_not for row in rows)

    def _workgroup(self, variant: Variant, grid: tuple[int, int, int]) -> tuple[int, ...]:
        """Fit a map kernel's workgroup to the grid: as many invocations, fewer of them idle."""
        left = prod(variant.local)
        local = []
        for size, preferred, limit in zip(
            grid, (variant.local[0], left, left), self.caps.max_local_size, strict=True
        ):
            local.append(min(1 << (max(size, 1) - 1).bit_length(), preferred, left, limit))
            left //= local[-1]
        return tuple(local)

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
            nbytes = self.tensors[name].layout.nbytes
            if nbytes > limits.max_storage_buffer_bytes:
                raise UnsupportedOpError(
                    f"{'+'.join(self.ops)} binds a tensor of {nbytes} bytes.",
                    known=f"this device binds at most {limits.max_storage_buffer_bytes} "
                    f"(max_storage_buffer_bytes{_texture(limits)})",
                )

    def scratch(self, kind: Kind, shape: tuple[int, ...], value: str = "") -> str:
        """Add an uninitialised tensor."""
        return self.add(layouts.make(kind, shape), value)

    def size(self, value: str) -> int:
        """Return the number of elements of a graph value."""
        return prod(self.graph.shape(value))


def _texture(caps: Caps) -> str:
    side = caps.max_texture_size
    return "" if side is None else f", textures of at most {side} by {side}"
