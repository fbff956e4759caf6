"""Run a plan without any device: real byte buffers, the interpreter for every pass.

Proves what drivers would hide: layouts, offsets, lifetimes in the shared arena, buffers that one
tensor takes over from another, unused lanes, what each storage makes of the numbers, and which
passes must wait for which. Nothing is a skip: buffers start as NaN, every read of the interpreter
is checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from kernel_interpreter import interpret
from kernel_needs import trip_count

from gpuedge.core.caps import VULKAN_MINIMUM, Caps
from gpuedge.core.dtypes import BYTES, rounded
from gpuedge.core.errors import NotFiniteError
from gpuedge.core.storage import BUFFER, BYTE_BUFFERS, HALF_BUFFER, Storage
from gpuedge.core.texels import decode, encode
from gpuedge.device import Device
from gpuedge.executors.base import PlacementRow, Work
from gpuedge.graph.ir import Graph, Node
from gpuedge.lang import Kernel, load
from gpuedge.plan.arrange import Arrangement, Region, arrange
from gpuedge.plan.layout import Layout
from gpuedge.plan.library import texts
from gpuedge.plan.plan import Pass, Plan, PlanTensor, Source
from gpuedge.plan.planner import plan, plan_or_refusals
from gpuedge.plan.storages import EXACT, StoragePrecision

Array = npt.NDArray[Any]

POISON = 0x7FC0DEAD
"""A NaN that no computation makes."""

LOOP_LIMIT = 65_535
"""lavapipe silently ends an invocation's loops after as many iterations, summed over all."""


CLAMPING = frozenset(f"map/{name}" for name in (
    "elementwise", "pack", "unpack"
))  # fmt: skip
"""Kernels that count elements: where the last texel is partly used they address elements that do
not exist, which the language clamps into range. All others must stay inside their tensors."""


@lru_cache(maxsize=512)
def kernel_of(source: Source) -> Kernel:
    """Parse a library kernel as a pass has it."""
    return load(
        texts()[source.kernel], filename=f"{source.kernel}.kern", consts=dict(source.consts),
        epilogue=source.epilogue, is_half=source.is_half,
    )  # fmt: skip


@dataclass
class Seen:
    """What the plans run so far made use of."""

    variants: set[str] = field(default_factory=set)
    most_trips: int = 0
    passes: int = 0
    most_bindings: int = 0
    storages: set[str] = field(default_factory=set)


def kept(values: Array, storage: Storage) -> Array:
    """Return numbers as they come back from a storage."""
    if storage.dtype in BYTES:  # only what is one is kept so, as it is
        assert values.dtype == storage.dtype
        return values
    back = decode(encode(values, storage), storage).reshape(values.shape)
    if storage.kind == "rgba8_float":  # kernels lose denormals, and the sign of zero
        return np.where(np.abs(back) < np.finfo(np.float32).tiny, np.float32(0), back)
    return back


class PlanRun:
    """One plan with its memory."""

    def __init__(
        self,
        made: Plan,
        alignment: int,
        seen: Seen,
        *,
        has_suballocation: bool = True,
        most_bytes: int | None = None,
    ) -> None:
        self.plan = made
        self.seen = seen
        self.where: Arrangement = arrange(
            made, alignment, has_suballocation=has_suballocation, most_bytes=most_bytes
        )
        self.owners: dict[str, str] | None = None if has_suballocation else {}
        self.buffers: dict[str, Array] = {}
        for name, home in self.where.buffers.items():
            if home.nbytes % 4:
                raise AssertionError(f"buffer {name} has {home.nbytes} bytes")
            self.buffers[name] = np.full(home.nbytes // 4, POISON, np.uint32).view(np.float32)
        self._check_arrangement(alignment)
        for tensor in made.tensors.values():
            if tensor.is_constant and tensor.name == tensor.memory:
                self._fill(tensor, made.constants)

    def _check_arrangement(self, alignment: int) -> None:
        for name, region in self.where.regions.items():
            assert region.offset % alignment == 0, name
            home, tensor = self.where.buffers[region.buffer], self.plan.tensors[name]
            assert region.offset + region.nbytes <= home.nbytes, name
            is_small = tensor.storage.kind in (HALF_BUFFER, *BYTE_BUFFERS)
            is_buffer = is_small and home.storage.kind == BUFFER
            assert tensor.storage == home.storage or is_buffer, f"{name} is kept in two ways"
        for one in self.plan.passes:
            buffers = {n: self.where.regions[n].buffer for n in one.tensors.values()}
            outs = {buffers.pop(n) for n in one.outputs}
            read = set(buffers.values())
            assert self.owners is None or not outs & read, "read and written at once"
            assert self.owners is None or len(outs) == len(one.outputs), "written twice at once"

    def _texels(self, region: Region, storage: Storage) -> Array:
        raw = self.buffers[region.buffer].view(np.uint8)
        return raw[region.offset : region.offset + region.nbytes].view(storage.dtype)

    def _fill(self, tensor: PlanTensor, values: Mapping[str, Array]) -> None:
        region = self.where.regions.get(tensor.name)
        if region is None:
            return
        assert tensor.host is not None
        known = {**self.plan.constants, **values}
        wanted = tensor.storage.dtype if tensor.storage.dtype in BYTES else "float32"
        dtype = None if tensor.host.is_raw else wanted
        arrays = [np.asarray(known[s], dtype) for s in tensor.host.sources]
        data = arrays[0].ravel() if tensor.host.build is None else tensor.host.build(*arrays)
        if data.dtype != wanted:  # the executor converts, too
            assert np.array_equal(data.astype(wanted), data)
            data = data.astype(wanted)
        assert data.astype(tensor.storage.dtype).nbytes <= region.nbytes
        self._put(tensor.name, data)

    def _put(self, name: str, values: Array) -> None:
        """Store values as the tensor's storage keeps them."""
        region, tensor = self.where.regions[name], self.plan.tensors[name]
        self._texels(region, tensor.storage)[: values.size] = kept(values, tensor.storage)
        self.seen.storages.add(tensor.storage.kind)
        if self.owners is not None:
            self.owners[region.buffer] = tensor.memory

    def _read(self, name: str) -> Array:
        """Return the values of a tensor that nothing else has overwritten."""
        region, tensor = self.where.regions[name], self.plan.tensors[name]
        if self.owners is not None:
            owner = self.owners.get(region.buffer)
            assert owner == tensor.memory, f"{name} is read from the buffer of {owner}"
        return self._texels(region, tensor.storage).astype(np.float32, copy=False)

    def run(self, inputs: Mapping[str, Array], order: str = "forward") -> dict[str, Array]:
        """Run all passes and return the outputs.

        Passes between two barriers may run in any order and see each other's writes or not. With
        `order` "late" their writes become visible at the next barrier, with "backward" they run in
        reverse order: the same results three times prove that `depends` misses nothing.
        """
        for name in self.where.inputs:
            self._fill(self.plan.tensors[name], inputs)
        for window in self._windows():
            waiting = []
            for one in reversed(window) if order == "backward" else window:
                for name, result in self._compute(one).items():
                    out = self.plan.tensors[name]
                    self._check_lanes(out.layout, kept(result, out.storage))
                    waiting.append((name, result.ravel()))
                if order != "late":
                    self._land(waiting)
            self._land(waiting)
        found = {name: self._output(name) for name in (*self.plan.outputs, *self.plan.fixed)}
        counts = {name: found.pop(one.count) for name, one in self.plan.open.items()}
        for name, count in counts.items():
            one = self.plan.open[name]
            whole = np.moveaxis(found[name].reshape(one.shape), one.axis, 0)
            found[name] = np.moveaxis(whole[: int(count[0])], 0, one.axis)
        return found

    def _windows(self) -> list[list[Pass]]:
        """Return the passes between barriers."""
        windows: list[list[Pass]] = [[]]
        for one, depends in zip(self.plan.passes, self.where.depends, strict=True):
            if depends:
                windows.append([])
            windows[-1].append(one)
        return windows

    def _land(self, waiting: list[tuple[str, Array]]) -> None:
        for name, values in waiting:
            self._put(name, values)
        waiting.clear()

    def _compute(self, one: Pass) -> dict[str, Array]:
        """Return what one pass writes, by plan tensor."""
        kernel = kernel_of(one.source)
        tensors = {}
        for name, tensor in one.tensors.items():
            width, height, slices, batch = self.plan.tensors[tensor].layout.extents
            if tensor not in one.outputs:
                values = self._read(tensor)[: width * height * slices * batch * 4]
                tensors[name] = values.reshape(batch, slices, height, width, 4).copy()
        known = {s.name for s in kernel.specs}
        specs = {k: v for k, v in one.specs.items() if k in known}
        self._note(one)
        groups = one.groups if kernel.form == "group" else None
        out_extents = self.plan.tensors[one.outputs[0]].layout.extents
        strict = one.source.kernel not in CLAMPING
        params = {p.name: one.specs[p.name] for p in kernel.params}
        found = interpret(kernel, tensors, out_extents, specs, params, groups=groups, strict=strict)
        return {one.outputs[0]: found}

    def _note(self, one: Pass) -> None:
        self.seen.variants.add(one.variant)
        self.seen.passes += 1
        self.seen.most_trips = max(self.seen.most_trips, trips_of(self.plan, one))
        self.seen.most_bindings = max(self.seen.most_bindings, len(one.tensors))

    @staticmethod
    def _check_lanes(layout: Layout, result: Array) -> None:
        """Assert that all texels were written and that unused lanes of packed layouts are zero."""
        width, height, slices, batch = layout.extents
        if layout.kind == "linear":
            return
        used = layout.packed % 4
        if used:
            texels = result.reshape(batch, slices, height, width, 4)
            last = texels[:, -1] if layout.kind == "channels" else texels[:, :, :, -1]
            np.testing.assert_array_equal(last[..., used:], 0)

    def _output(self, name: str) -> Array:
        if name in self.plan.fixed:
            return np.asarray(self.plan.fixed[name])
        high = self._values(self.plan.outputs[name])
        low = self.plan.lows.get(name)
        return high if low is None else high * np.int64(65536) + self._values(low).astype(np.int64)

    def _values(self, name: str) -> Array:
        tensor = self.plan.tensors[name]
        assert tensor.layout.kind == "linear"
        values = self._read(name)
        return values[: int(np.prod(tensor.layout.shape))].reshape(tensor.layout.shape).copy()


WIDE = replace(
    VULKAN_MINIMUM, max_storage_buffers=8, subgroup_lanes=8, map_texels=4, dot_products=2
)

TEXTURES = replace(
    VULKAN_MINIMUM,
    level="gles20",
    dialect="essl100",
    forms=frozenset({"map"}),
    max_storage_buffers=8,
    max_storage_buffer_bytes=1 << 26,
    storages=("rgba8_float", "rgba8_fixed16", "rgba8_u8", "rgba8_s8"),
    has_suballocation=False,
    max_texture_size=4096,
    is_finite_only=True,
)
"""A fragment level with nothing but textures of bytes."""

FLOAT_TEXTURES = replace(
    TEXTURES, level="gles30", dialect="essl300", is_finite_only=False, map_texels=4,
    storages=("rgba32f", "rgba32ui", "rgba16f", *TEXTURES.storages),
)  # fmt: skip
"""A fragment level with float textures as well."""


def run_graph(
    graph: Graph,
    inputs: Mapping[str, Array],
    caps: Caps = VULKAN_MINIMUM,
    restricted: tuple[str, ...] = (),
    seen: Seen | None = None,
    precision: StoragePrecision = EXACT,
    *,
    rewrites: bool = True,
) -> dict[str, Array]:
    """Plan a graph, check what the planner promises, and run it in every order it allows."""
    made = plan(graph, caps, restricted, precision, rewrites=rewrites)
    check_limits(made, caps)
    assert not {one.variant for one in made.passes} & set(restricted)
    seen = seen or Seen()
    shares, alignment = caps.has_suballocation, caps.offset_alignment
    first = PlanRun(made, alignment, seen, has_suballocation=shares).run(inputs)
    for order in ("late", "backward") if len(made.passes) > 1 else ():
        again = PlanRun(made, alignment, Seen(), has_suballocation=shares).run(inputs, order)
        for name, value in first.items():
            np.testing.assert_array_equal(value, again[name], err_msg="a barrier is missing")
    dtypes = {n: k.dtype for n, k in (graph.types | made.open).items()}
    return {n: rounded(v, dtypes[n]) for n, v in first.items()}


def check_limits(made: Plan, caps: Caps) -> None:
    """Assert that no pass exceeds a limit of the device."""
    for one in made.passes:
        assert len(one.tensors) <= caps.max_storage_buffers, one.variant
        assert {made.tensors[t].storage.kind for t in one.tensors.values()} <= set(caps.storages)
        assert all(g <= m for g, m in zip(one.groups, caps.max_groups, strict=True))
        local = [int(one.specs[axis]) for axis in ("LX", "LY", "LZ")]
        assert all(1 <= s <= m for s, m in zip(local, caps.max_local_size, strict=True))
        assert int(np.prod(local)) <= caps.max_invocations
        for name in one.tensors.values():
            tensor = made.tensors[name]
            nbytes = tensor.nbytes if tensor.storage.kind in BYTE_BUFFERS else tensor.layout.nbytes
            assert nbytes <= caps.max_storage_buffer_bytes
        assert trips_of(made, one) < LOOP_LIMIT, one.variant


def trips_of(made: Plan, one: Pass) -> int:
    """Return the most loop iterations that one invocation of a pass makes."""
    kernel = kernel_of(one.source)
    extents = {name: made.tensors[t].layout.extents for name, t in one.tensors.items()}
    known = {s.name for s in kernel.specs}
    return trip_count(
        kernel, extents=extents, specs={k: v for k, v in one.specs.items() if k in known},
        params={p.name: one.specs[p.name] for p in kernel.params},
    )  # fmt: skip


class PlanExecutable:
    """A segment run by the interpreter; see `PlanRun`."""

    def __init__(
        self, graph: Graph, executor: PlanExecutor, precision: StoragePrecision, rewrites: bool
    ) -> None:
        self.graph = graph
        self.rewrites = rewrites
        self.executor = executor
        self.precision = precision
        self.work = Work()
        self.rows: tuple[PlacementRow, ...] = ()

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute the outputs."""
        owner = self.executor
        if owner.caps.is_finite_only and not all(np.isfinite(a).all() for a in inputs.values()):
            raise NotFiniteError("An input is not finite.")
        return run_graph(
            self.graph, inputs, owner.caps, owner.restricted, owner.seen, self.precision,
            rewrites=self.rewrites,
        )  # fmt: skip

    def close(self) -> None:
        """Nothing is held."""


class PlanExecutor:
    """An executor without a device: what it is given as `device=` runs through `run_graph`."""

    device = "plan"

    def __init__(self, caps: Caps = VULKAN_MINIMUM, restricted: tuple[str, ...] = ()) -> None:
        self.caps = caps
        self.restricted = restricted
        self.seen = Seen()
        self.compiled: list[StoragePrecision] = []

    def supports(self, node: Node, graph: Graph) -> str | None:
        """Ask the planner."""
        judged = plan_or_refusals(graph, self.caps)
        return judged.get(id(node)) if isinstance(judged, dict) else None

    def compile(
        self,
        segment: Graph,
        precision: StoragePrecision = EXACT,
        *,
        rewrites: bool = True,
        **_: object,
    ) -> PlanExecutable:
        """Plans are made anew by every run."""
        self.compiled.append(precision)
        return PlanExecutable(segment, self, precision, rewrites)

    def close(self) -> None:
        """Nothing is held."""


def plan_device(caps: Caps = VULKAN_MINIMUM, restricted: tuple[str, ...] = ()) -> Device:
    """Return something to give as `device=`."""
    return Device(PlanExecutor(caps, restricted), "for planning tests")


def seen_by(device: Device) -> Seen:
    """Return what the plans of a `plan_device` made use of."""
    executor = device.executor
    assert isinstance(executor, PlanExecutor)
    return executor.seen
