"""The GPU executor: planner plus any device behind the seam."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from math import ceil, prod
from types import MappingProxyType
from typing import Any, NamedTuple
from weakref import ref

import numpy as np

from gpuedge.backends.base import (
    Binding,
    Buffer,
    DeviceImpl,
    DeviceInfo,
    Dispatch,
    Program,
    Recording,
    Storage,
    Usage,
)
from gpuedge.capdb import Restrictions, classify, restrict
from gpuedge.core import debug
from gpuedge.core.caps import Caps
from gpuedge.core.dtypes import BYTES, WIDE, no_copy, require_exact, rounded
from gpuedge.core.errors import (
    ClosedError,
    DeviceError,
    DriverError,
    OutOfMemoryError,
    UsageError,
)
from gpuedge.core.storage import HALF_TEXELS, TEXELS
from gpuedge.executors.base import PlacementRow, Progress, StepTime
from gpuedge.executors.kernels import NO_KERNELS, fitting, key_of, listing, printed
from gpuedge.executors.opened import OpenedDevice
from gpuedge.executors.programs import Programs, RefusedPassError
from gpuedge.executors.resident import DeviceTensor, Resident, Residents, TensorMemory
from gpuedge.executors.timing import Stepper, alone
from gpuedge.executors.waiting import submit_and_wait
from gpuedge.graph.ir import Array, Graph, Node
from gpuedge.lang import BlobCache
from gpuedge.opset.digits import joined
from gpuedge.plan.arrange import Arrangement, arrange_on
from gpuedge.plan.plan import Pass, Plan, PlanTensor, Step
from gpuedge.plan.planner import plan, plan_or_refusals
from gpuedge.plan.storages import (
    EXACT,
    FIXED,
    StoragePrecision,
    kernel_kinds,
    require_finite,
)
from gpuedge.plan.tuned import UNTUNED, Tunings
from gpuedge.safety.blocklist import Marker
from gpuedge.safety.interrupts import held
from gpuedge.safety.paths import cache_dir
from gpuedge.safety.watchdog import Watchdog

POISON = 0xAB

PIECE_S = 0.25
"""What one submission is to take at the most. Systems reset a GPU that works on one for too long:
i915 after 0.64 s where another program waits (Linux, CONFIG_DRM_I915_PREEMPT_TIMEOUT), Windows
after 2 s (TdrDelay). A few hundred submissions a minute cost nothing beside such work."""

OTHER_PLACES = 8
"""Recordings of an executable over resident tensors; one more replaces the oldest.
Two of each operand and result, taken in turn, make as many."""

WORD = 4
TEXEL_BYTES = {TEXELS: 16, HALF_TEXELS: 8}
MORE_BYTES = 256
"""What a texel buffer may show beyond its tensor."""

log = logging.getLogger("gpuedge.gpu")


Bound = tuple[tuple[str, Buffer], ...]
"""Buffers that belong to others, by their names in an arrangement."""

NOBODYS: Mapping[str, Buffer] = MappingProxyType({})

_Judged = tuple[Callable[[], Graph | None], Plan | dict[int, str]]
_UNJUDGED: _Judged = (lambda: None), {}
"""What `plan_or_refusals` said of a graph, which is not kept alive for it; and before that."""


class _BufferPlace(NamedTuple):
    """A buffer by its name in an arrangement, which may be another's: how large, and kept how."""

    buffer: str
    nbytes: int
    storage: Storage


def _go_on(*_: object) -> None:
    """Go on at once."""


class GpuExecutor(OpenedDevice):
    """Runs graph segments on one open device.

    Parameters
    ----------
    impl : DeviceImpl
        An open device; the executor closes it.
    name : str
        Device string, such as ``vulkan:0``.
    isolation : str
        ``inline``, or ``process`` where the driver lives in a process of its own.
    marker : Marker, optional
        What is told before and after the driver is at work, for the crash blocklist.
    restrictions : Restrictions, optional
        What the capability database forbids on this device.
    is_finite_only : bool, optional
        `Caps.is_finite_only` as known answers told it; by default as the device promises it.

    Attributes
    ----------
    programs : Programs
        Its kernels; entered under `lock`.
    tensors : TensorMemory
        The buffers of its resident tensors.
    """

    def __init__(
        self,
        impl: DeviceImpl,
        name: str,
        *,
        isolation: str = "inline",
        marker: Marker | None = None,
        restrictions: Restrictions | None = None,
        is_finite_only: bool | None = None,
    ) -> None:
        super().__init__(impl, name, isolation=isolation, marker=marker)
        self.impl = impl
        caps = replace(impl.caps, device_class=classify(impl.info.identity))
        self.caps: Caps = restrict.apply(caps, restrictions or Restrictions())
        if is_finite_only is not None:
            self.caps = replace(self.caps, is_finite_only=is_finite_only)
        self.programs = Programs(impl)
        self.tensors = TensorMemory(self)
        self.dropped: deque[GpuExecutable] = deque()  # the next compiling closes them
        self._restricted: set[str] = set()
        self._judged: _Judged = _UNJUDGED
        self._blobs = BlobCache(cache_dir() / "kernels.bin")

    def supports(self, node: Node, graph: Graph) -> str | None:
        """Return None if the planner can run `node` here, else one sentence saying why not."""
        known, judged = self._judged
        if known() is not graph:
            judged = plan_or_refusals(graph, self.caps)
            self._judged = ref(graph), judged
        return judged.get(id(node)) if isinstance(judged, dict) else None

    def compile(
        self, segment: Graph, precision: StoragePrecision = EXACT,
        watchdog_s: float | None = None, progress: Progress = _go_on, *, rewrites: bool = True,
        stays: bool = False, tuned: Tunings = UNTUNED, known: Mapping[str, bytes] = NO_KERNELS,
    ) -> GpuExecutable:  # fmt: skip
        """Plan, build and record a segment.

        A variant that the driver refuses is ruled out for this device and planned again without.

        Parameters
        ----------
        segment : Graph
        precision : StoragePrecision
            How tensors are to be kept, where the device offers it.
        watchdog_s : float, optional
            The watchdog of the policy, for a device in a process of its own: what its driver may
            spend in a call without answering or computing.
        progress : callable, optional
            Called between steps, while others may use the device and the processor.
        rewrites, tuned
            As for `gpuedge.plan.planner.plan`.
        stays : bool
            Whether operands and results stay on the device: buffers for those that come from the
            host or go there are made when one does.
        known : mapping of str to bytes
            Kernels that a packed model has (`gpuedge.executors.kernels`).

        Raises
        ------
        UnsupportedOpError (GE-501), KernelLimitError (GE-303), DeviceError (GE-4xx)
        NotFiniteError (GE-205)
            A constant holds what this device does not keep.
        """
        self.check_open()
        limit_idle = getattr(self.impl, "limit_idle", None)
        if self.isolation != "inline" and limit_idle is not None:
            with self.building():
                limit_idle(watchdog_s)
        while True:
            planned = self.planned(segment, precision, rewrites=rewrites, tuned=tuned)
            self._judged = _UNJUDGED
            progress("plan", 1, 1)
            try:
                return GpuExecutable(self, segment, planned, progress, stays=stays, known=known)
            except RefusedPassError as refused:
                if refused.launch.variant.removesuffix("_f16").endswith("_map"):
                    raise refused.error from None
                log.warning("%s: %s is ruled out: %s", self.device, refused.launch.variant,
                            refused.error.what)  # fmt: skip
                self._restricted.add(refused.launch.variant)

    def planned(
        self, segment: Graph, precision: StoragePrecision = EXACT, *, rewrites: bool = True,
        tuned: Tunings = UNTUNED,
    ) -> Plan:  # fmt: skip
        """Return the plan of a segment, without what its driver refused. Raises GpuEdgeError."""
        known, judged = self._judged
        is_plain = rewrites and precision == EXACT and not (self._restricted or tuned)
        if is_plain and known() is segment and isinstance(judged, Plan):
            return judged
        return plan(
            segment, self.caps, self._restricted, precision, rewrites=rewrites, tuned=tuned
        )  # fmt: skip

    @contextmanager
    def building(self) -> Iterator[None]:
        """Hold the device for one step of compiling. Raises ClosedError once it was closed."""
        self.check_open()
        with held, self.lock:
            self.check_open()
            while self.dropped:
                self.dropped.popleft().close()
            with self.compiling, self.impl.entered():
                yield

    def program(
        self, launch: Pass, kinds: Mapping[str, str], known: Mapping[str, bytes] = NO_KERNELS
    ) -> Program:
        """Print (or take from the cache) and build the kernel of a pass.

        `kinds` are the storage kinds of the kernel's tensors, by their names there; `known` is as
        for `compile`.
        """
        dialect = self.caps.dialect
        key = key_of(launch, kinds, dialect)
        blob = fitting(known, key, launch, kinds, dialect) or self._blobs.get(key)
        debug.say(3, f"{launch.variant} {dict(launch.specs)} groups {launch.groups}")
        debug.say(4, lambda: listing(launch))
        if blob is None:
            blob = printed(launch, kinds, dialect)
            self._blobs.put(key, blob)
        names = {s.name for s in blob.specs}
        try:
            specs = {k: v for k, v in launch.specs.items() if k in names}
            return self.programs.build(blob, specs, self.caps)
        except DriverError as error:
            raise RefusedPassError(launch, error) from error

    def flush(self) -> None:
        """Write printed kernels to the cache."""
        self._blobs.flush()

    @property
    def info(self) -> DeviceInfo:
        """Which device it is."""
        return self.impl.info

    @property
    def driver_pid(self) -> int | None:
        """The process whose work says that the driver works; None where none's does.

        That is the worker's, or this one where a software rasteriser computes in it.
        """
        worker: int | None = getattr(self.impl, "pid", None)
        return worker or (os.getpid() if self.caps.is_software else None)

    def has_come_back(self) -> bool:
        """Tell whether a device of this process that hung has ended its work since: it was slow."""
        late = self.late
        if late is None or self.isolation != "inline" or not self.lock.acquire(blocking=False):
            return False
        try:
            self.impl.wait(late, 0.0)
        except DeviceError:
            return False
        finally:
            self.lock.release()
        return True


class GpuExecutable:
    """A recorded segment: write inputs, submit, wait, read outputs.

    Inputs and outputs that are resident tensors (`Residents`) lie in buffers of their own: then the
    segment is recorded over these once more.
    """

    def __init__(
        self, executor: GpuExecutor, graph: Graph, plan: Plan, progress: Progress, *, stays: bool,
        known: Mapping[str, bytes] = NO_KERNELS,
    ) -> None:  # fmt: skip
        self.executor = executor
        self.graph = graph
        self.plan = plan
        self.rows = tuple(_row(executor.device, s) for s in plan.steps)
        self._buffers: dict[str, Buffer] = {}
        self._programs: list[Program] = []
        self._recorded: dict[Bound, list[Recording]] = {}
        self._ends: list[int] = []  # of each recording in a list, the pass after its last
        self._took: list[float] = []  # what they took in the run before
        self.watchdog = Watchdog(executor.slowness)
        self._running = executor.running_first
        self._inputs: list[PlanTensor] = []
        self._inputs_there: list[tuple[PlanTensor, str, _BufferPlace]] = []
        self._packed: list[PlanTensor] = []  # the other inputs: by the host, or of two digits
        self._bytes_there: list[tuple[PlanTensor, str, _BufferPlace]] = []
        self._outputs_there: dict[str, _BufferPlace] = {}
        self._filled: dict[str, list[Any]] = {}  # own buffers, and the residents that they hold
        self._others: dict[tuple[tuple[str, Storage], ...], GpuExecutable | None] = {}
        self._is_closed = False
        self._where: Arrangement = arrange_on(plan, executor.caps)
        try:
            self._build(progress, known, stays=stays)
        except BaseException:
            self.close()
            raise
        executor.tensors.executables.add(self)

    @property
    def recordings(self) -> list[Recording]:
        """What is submitted for a run: one, or several where it takes longer than `PIECE_S`."""
        return self._recorded.get((), [])

    @property
    def memory(self) -> dict[str, int]:
        """Bytes of device memory by what they are for.

        ``most_alive`` is the part of ``scratch`` that no plan could do without.
        """
        return {**self._where.memory, "most_alive": self._where.most_alive}

    def _build(self, progress: Progress, known: Mapping[str, bytes], *, stays: bool) -> None:
        where, building = self._where, self.executor.building
        tensors = self.plan.tensors
        # one by one, so that `close` finds what was made before a failure
        for number, launch in enumerate(self.plan.passes, 1):
            kinds = kernel_kinds(launch, tensors, self.executor.caps)
            with building():
                self._programs.append(self.executor.program(launch, kinds, known))
            progress("compile", number, len(self.plan.passes))
        self.executor.flush()
        with building():
            for name in where.buffers:
                if not (stays and name in (*where.inputs, *where.outputs)):
                    self._own(name)
        kept = [t for t in tensors.values() if t.is_constant and t.name == t.memory]
        for number, tensor in enumerate(kept, 1):
            with building():
                self._upload(tensor, self.plan.constants)
            progress("upload", number, len(kept))
        self._inputs = [tensors[name] for name in where.inputs]
        if self.plan.passes:
            self._find_places()
        self._ends = [len(self.plan.passes)]
        if not stays:
            with building():
                self._recordings(())

    def _own(self, name: str) -> Buffer:
        """Return a buffer of this executable, made now if it is not there yet."""
        if name not in self._buffers:
            home = self._where.buffers[name]
            buffer = self.executor.impl.alloc(home.nbytes, Usage(home.role), home.storage)
            self._buffers[name] = buffer
        return self._buffers[name]

    def _recordings(self, bound: Bound) -> list[Recording]:
        """Return the passes recorded over buffers of others, and for the rest over its own."""
        if bound in self._recorded:
            return self._recorded[bound]
        others = [key for key in self._recorded if key]
        for key in others[: max(len(others) + 1 - OTHER_PLACES, 0)]:
            self._drop(key)
        self._recorded[bound] = recordings = self._pieces(bound, self._ends)
        return recordings

    def _pieces(self, bound: Bound, ends: Sequence[int]) -> list[Recording]:
        """Record the passes in pieces, which end before the passes `ends`."""
        where, theirs = self._where, dict(bound)
        inputs, outputs = (
            [self._own(n) for n in names if n not in theirs]
            for names in (where.inputs, where.outputs)
        )
        work, pieces = self._dispatches(theirs), list[Recording]()
        for first, end in zip([0, *ends], ends, strict=False):
            some = work[first:end]
            if first:  # it sees what the pieces before it wrote
                some[0] = replace(some[0], depends=True)
            ins, outs = () if first else inputs, outputs if end == len(work) else ()
            pieces.append(self.executor.impl.record(some, ins, outs))
        return pieces

    def _record(self, ends: list[int]) -> None:
        """Record everything anew in pieces that end before the passes `ends`."""
        before = list(self._recorded)
        pieces = {key: self._pieces(key, ends) for key in before}
        for key in before:
            self._drop(key)
        self._recorded, self._ends, self._took = pieces, ends, []
        self.watchdog.pieces = len(ends)

    def _drop(self, bound: Bound) -> None:
        for recording in self._recorded.pop(bound):
            self.executor.impl.release(recording)

    def forget(self, buffer: Buffer) -> None:
        """Drop what is recorded over a buffer that is about to be freed."""
        for bound in [b for b in self._recorded if any(mine is buffer for _, mine in b)]:
            self._drop(bound)

    def _cut(self, seconds: Sequence[float]) -> None:
        """Record pieces that take so long in parts of about `PIECE_S`; in one if all are short."""
        now, ends = self._ends, list[int]()
        if sum(seconds) < PIECE_S / 2:
            now, seconds = now[-1:], [0.0]
        for first, end, one_s in zip([0, *now], now, seconds, strict=False):
            parts = max(1, min(end - first, ceil(one_s / PIECE_S)))
            ends += [first + (end - first) * i // parts for i in range(1, parts + 1)]
        if ends != self._ends:
            self._record(ends)

    def _dispatches(self, theirs: Mapping[str, Buffer] = NOBODYS) -> list[Dispatch]:
        dispatches = []
        for launch, program, depends in zip(
            self.plan.passes, self._programs, self._where.depends, strict=True
        ):
            names = [launch.tensors[t.name] for t in program.blob.tensors]
            extents = [self.plan.tensors[n].layout.extents for n in names]
            params = {p.name: launch.specs[p.name] for p in program.blob.push if p.type != "ivec4"}
            push = program.blob.pack_push(extents, params)
            kinds = [t.storage for t in program.blob.tensors]
            pairs = zip(names, kinds, strict=True)
            bindings = tuple(self._bound(n, k, theirs) for n, k in pairs)
            dispatches.append(Dispatch(program, bindings, push, launch.groups, depends))
        return dispatches

    def _bound(self, name: str, kind: str, theirs: Mapping[str, Buffer]) -> Binding:
        """Return what a kernel gets of a tensor; of a texel buffer some more where there is room.

        Kernels clamp their reads, so that this is never read. Mesa 22.3 compiles a kernel once for
        sizes whose bits 8 to 15 are 0, and once for all others: it takes them for a level of an
        image (`level_zero_only` in `lp_sampler_static_texture_state`).
        """
        binding, texel = self._binding(name, theirs), TEXEL_BYTES.get(kind, 0)
        more = binding.nbytes + MORE_BYTES
        is_usual = not texel or binding.nbytes & 0xFF00
        if is_usual or more > texel * self.executor.caps.max_texel_elements:
            return binding
        has_room = binding.offset + more <= binding.buffer.nbytes
        return replace(binding, nbytes=more) if has_room else binding

    def _binding(self, name: str, theirs: Mapping[str, Buffer] = NOBODYS) -> Binding:
        region = self._where.regions[name]
        buffer = theirs.get(region.buffer) or self._own(region.buffer)
        return Binding(buffer, region.offset, region.nbytes)

    def _upload(
        self, tensor: PlanTensor, values: Mapping[str, Array], there: Buffer | None = None
    ) -> None:
        """Write what the host has of a tensor to its place, or to a buffer of its own."""
        region, host = self._where.regions.get(tensor.name), tensor.host
        if region is None or host is None:
            return
        # a call of `_own` less in warm runs
        buffer = there or self._buffers.get(region.buffer) or self._own(region.buffer)
        try:
            sources = [values[s] if s in values else self.plan.constants[s] for s in host.sources]
            kept = tensor.storage.dtype
            dtype = None if host.is_raw else kept if kept in BYTES else np.float32
            arrays = [np.asarray(a, dtype) for a in sources]
        except MemoryError as error:
            raise no_copy(f"'{tensor.name}'", error) from None
        for source, array in zip(host.sources, sources, strict=True):
            if array.dtype.kind in "iu" and array.dtype.name in WIDE and not host.is_raw:
                most = None if tensor.is_constant else self.plan.most_integer
                require_exact(source, array, self.executor.device, most)
        if self.executor.caps.is_finite_only or tensor.storage.kind == FIXED:
            require_finite(self.executor.device, host.sources, arrays)
        data = arrays[0] if host.build is None else host.build(*arrays)
        if data.dtype != tensor.storage.dtype:
            with np.errstate(over="ignore"):  # to infinity, as on the device
                data = data.astype(tensor.storage.dtype)
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        if flat.nbytes % WORD:  # WebGPU writes whole words; nobody reads the rest of the last one
            flat = np.concatenate((flat, np.zeros(-flat.nbytes % WORD, np.uint8)))
        if flat.nbytes:
            self.executor.impl.write(buffer, flat.data, 0 if there else region.offset)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute the outputs; one submit. Raises DeviceError (GE-4xx).

        Those of `Residents` stay on the device: they are `Resident`, as far as it keeps them so.
        """
        executor = self.executor
        if executor.closed or executor.is_inherited:
            executor.check_open()
        if self._bytes_there and isinstance(inputs, Residents):
            other = self._taking(inputs)
            if other is not None:
                return other.run(inputs)
        with held, executor.lock, self._running, executor.impl.entered():
            if isinstance(inputs, Residents):
                results = self._run_there(inputs)
            else:
                self._compute(inputs)
                results = self._results()
            self._running = executor.running
            return results

    def _taking(self, inputs: Residents) -> GpuExecutable | None:
        """Return what takes bytes as they lie here: as floats, where a kernel computed them.

        None where none lie so, or the driver refuses its kernels. It is the same plan.
        """
        kept = dict[str, Storage]()
        executor, graph = self.executor, self.graph
        for tensor, source, place in self._bytes_there:
            value = inputs.values_there[source]
            found = value.kept_on(executor) if isinstance(value, Resident) else None
            if found is not None and found != place.storage:
                kept[tensor.name] = found
        if not kept:
            return None
        key = tuple(kept.items())
        with held, executor.lock:
            if key not in self._others:
                plan, self._others[key] = self.plan.with_inputs(kept), None
                with suppress(RefusedPassError):
                    self._others[key] = GpuExecutable(executor, graph, plan, _go_on, stays=True)
            return self._others[key]

    def _run_there(self, inputs: Residents) -> dict[str, Any]:
        """Compute from what lies on the device, and leave results there."""
        there, tensors = list[tuple[str, Buffer]](), dict[str, DeviceTensor]()
        given = list[PlanTensor]()
        for tensor, source, place in self._inputs_there:
            value = inputs.values_there[source]
            if isinstance(value, Resident):
                known = value.on(self.executor, place.nbytes, place.storage)
                if known is None:
                    known = self._placed(tensor, value, place, inputs)
                there.append((place.buffer, known.buffer))
            else:
                given.append(tensor)
        for name, place in self._outputs_there.items():
            if name not in inputs.into:
                tensors[name] = made = DeviceTensor(self.executor, place.nbytes, place.storage)
                there.append((place.buffer, made.buffer))
        try:
            self._compute(inputs, tuple(there), given)
        except BaseException:  # the device may still be writing to them
            for made in tensors.values():
                made.abandon()
            raise
        results, types = dict[str, Any](), self.graph.types
        for name in self.graph.outputs:
            if name in tensors:
                kind = types[name]
                results[name] = Resident(kind.dtype, kind.shape, tensor=tensors[name])
            else:
                results[name] = self._result(name, inputs.into.get(name))
        return results

    def _placed(
        self, tensor: PlanTensor, value: Resident, place: _BufferPlace, inputs: Residents
    ) -> DeviceTensor:
        """Write what only the host has of a resident to the device, where it stays."""
        made = DeviceTensor(self.executor, place.nbytes, place.storage)
        self._upload(tensor, inputs, made.buffer)
        value.place(made)
        return made

    def _find_places(self) -> None:
        """Find out which inputs and outputs can lie in buffers of others: those alone in theirs."""
        plan, where = self.plan, self._where
        for tensor in self._inputs:
            region, host = where.regions[tensor.name], tensor.host
            if host is not None and host.build is None and not host.is_raw:
                place = _BufferPlace(region.buffer, region.nbytes, tensor.storage)
                self._inputs_there.append((tensor, host.sources[0], place))
            else:
                self._packed.append(tensor)
        self._bytes_there = [i for i in self._inputs_there if i[0].storage.dtype in BYTES]
        taken = set[str]()
        for name in self.graph.outputs:
            if any(name in some for some in (plan.fixed, plan.lows, plan.open)):
                continue
            region = where.regions[plan.outputs[name]]
            home = where.buffers[region.buffer]
            is_own = home.role == "output" and region.nbytes == home.nbytes
            if is_own and region.buffer not in taken:
                taken.add(region.buffer)
                self._outputs_there[name] = _BufferPlace(region.buffer, home.nbytes, home.storage)

    def timed(self, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], list[StepTime]]:
        """Compute the outputs with a submission for each step; return what each took as well.

        The first two rows are an empty submission and the upload, the last is the download.
        Raises DeviceError (GE-4xx).
        """
        executor = self.executor
        executor.check_open()
        with held, executor.lock, executor.running_first, executor.impl.entered():
            self._compute(inputs)  # the first time may take longer
            return self._by_step(inputs) if self.plan.passes else (self._results(), [])

    def _by_step(self, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], list[StepTime]]:
        impl, where, outputs = self.executor.impl, self._where, dict[str, Array]()
        ends = [[self._own(n) for n in names] for names in (where.inputs, where.outputs)]
        sizes = [sum(buffer.nbytes for buffer in buffers) for buffers in ends]
        step = Stepper(
            impl, self.executor.device, lambda r: submit_and_wait(impl, [r], self.watchdog)
        )
        step("submit", 0, impl.record(()))
        step("upload", sizes[0], impl.record((), ends[0]), before=lambda: self._upload_all(inputs))
        work, passes = self._dispatches(), self.plan.passes
        for owner, some in self.plan.runs():
            names = [n for i in some for n in dict.fromkeys(passes[i].tensors.values())]
            first, *rest = (work[i] for i in some)
            recording = impl.record([replace(first, depends=True), *rest])
            row = "layout" if owner is None else self.rows[owner]
            step(row, sum(where.regions[n].nbytes for n in names), recording)
        end = impl.record((), (), ends[1])
        step("download", sizes[1], end, after=lambda: outputs.update(self._results()))
        return outputs, step.times

    def alone(self, passes: Sequence[int]) -> AbstractContextManager[Callable[[], int]]:
        """Record some passes by themselves (`gpuedge.executors.timing.alone`).

        They read what the latest run left, which need not be what they read in one: only the time
        means anything.
        """

        def record() -> Recording:
            work = self._dispatches()
            return self.executor.impl.record([replace(work[i], depends=True) for i in passes])

        return alone(self.executor, record, self.watchdog)

    def run_there(self, inputs: Mapping[str, Array], use: Callable[[str, Binding], None]) -> None:
        """Compute the outputs and leave them on the device.

        Parameters
        ----------
        inputs : mapping
        use : callable
            Called with the name and place of every output, while the device is held. Places hold
            float32 values in C order; the next run overwrites them.
        """
        executor = self.executor
        executor.check_open()
        with held, executor.lock, self._running, executor.impl.entered():
            self._compute(inputs)
            for name in self.graph.outputs:
                if name in self.plan.fixed:
                    raise UsageError(f"The output '{name}' is a constant; it lies on no device.")
                if name in self.plan.lows:
                    raise UsageError(f"The output '{name}' is kept in two digits, as no float is.")
                if name in self.plan.open:
                    raise UsageError(f"The output '{name}' has a size that only values tell.")
                kept = self.plan.tensors[self.plan.outputs[name]].storage.dtype
                if kept != "float32":
                    raise UsageError(f"The output '{name}' is kept as {kept}, by the policy.")
                place = self._binding(self.plan.outputs[name])
                use(name, replace(place, nbytes=4 * prod(self.graph.types[name].shape)))
            self._running = executor.running

    def _compute(
        self, inputs: Mapping[str, Array], bound: Bound = (), given: Sequence[PlanTensor] = ()
    ) -> None:
        if self.executor.closed:  # while this waited for the lock
            self.executor.check_open()
        if self._is_closed:
            raise ClosedError("The executable was closed before this call.")
        if not self.plan.passes:
            return
        if self._running is self.executor.running_first and len(self._ends) == 1:
            self._cut([self.watchdog.predicted_s])
        recordings = self._recorded.get(bound) or self._recordings(bound)
        self._upload_all(inputs, given)
        self.executor.at_work = self.watchdog
        took = submit_and_wait(self.executor.impl, recordings, self.watchdog)
        before, self._took = self._took, took if len(took) > 1 or took[0] > PIECE_S else []
        if before and self._took:  # no pause of the machine, nor a driver that compiled
            self._cut([min(two) for two in zip(before, took, strict=True)])

    def _upload_all(self, inputs: Mapping[str, Array], given: Sequence[PlanTensor] = ()) -> None:
        """Write inputs; of `Residents` those `given` on the host, and what the host packs."""
        if not isinstance(inputs, Residents):
            self._filled.clear()
            given = self._inputs
        for tensor in given:
            self._upload(tensor, inputs)
        if isinstance(inputs, Residents):
            for tensor in self._packed:
                self._fill(tensor, inputs)

    def _fill(self, tensor: PlanTensor, inputs: Residents) -> None:
        """Upload a tensor unless it was made of the same residents before, which never change."""
        sources = tensor.host.sources if tensor.host else ()
        values = [inputs.values_there[s] for s in sources if s in inputs.values_there]
        before = self._filled.pop(tensor.name, None)
        known = [ref(v) for v in values if isinstance(v, Resident)]
        if len(known) < len(values) or known != before:
            self._upload(tensor, inputs)
        if len(known) == len(values):
            self._filled[tensor.name] = known

    def _results(self) -> dict[str, Array]:
        return {name: self._result(name) for name in self.graph.outputs}

    def _result(self, name: str, memory: Array | None = None) -> Array:
        """Return an output on the host, in `memory` if it can be read into that."""
        open_size = self.plan.open.get(name)
        try:
            if open_size is None:
                if name in self.plan.fixed:
                    return np.array(self.plan.fixed[name])
                kind = self.graph.types[name]
                return self._numbers(name, kind.dtype, kind.shape, memory)
            count = int(self._known_or_read(open_size.count, "int64", (1,))[0])
            if open_size.axis == 0 and name not in self.plan.fixed:
                return self._numbers(name, open_size.dtype, (count, *open_size.shape[1:]))
            whole = self._known_or_read(name, open_size.dtype, open_size.shape)
            return np.ascontiguousarray(whole[(slice(None),) * open_size.axis + (slice(count),)])
        except MemoryError as error:
            raise OutOfMemoryError(f"No memory for the output '{name}': {error}") from error

    def _known_or_read(self, name: str, dtype: str, shape: tuple[int, ...]) -> Array:
        known = self.plan.fixed.get(name)
        if known is None:
            return self._numbers(name, dtype, shape)
        return np.asarray(known, dtype).reshape(shape)

    def _numbers(
        self, name: str, dtype: str, shape: tuple[int, ...], memory: Array | None = None
    ) -> Array:
        """Return what the place of an output begins with."""
        out = self._read(self.plan.outputs[name], shape, memory)
        low = self.plan.lows.get(name)
        if low is not None:
            return joined(out, self._read(low, shape), dtype)
        if dtype in WIDE:
            require_exact(name, out, self.executor.device, dtype=dtype)
        return out if out.dtype == dtype else rounded(out, dtype)

    def _read(self, tensor: str, shape: tuple[int, ...], memory: Array | None = None) -> Array:
        dtype = np.dtype(self.plan.tensors[tensor].storage.dtype)
        fits = memory is not None and (memory.shape, memory.dtype) == (shape, dtype)
        is_plain = fits and memory is not None and memory.flags.c_contiguous
        out = memory if is_plain and memory is not None else np.empty(shape, dtype)
        region = self._where.regions[tensor]
        view = out.reshape(-1).view(np.uint8)
        if view.size:
            buffer = self._buffers.get(region.buffer) or self._own(region.buffer)
            self.executor.impl.read(buffer, view.data, region.offset)
        return out

    def poison(self) -> None:
        """Fill the output buffers with 0xAB, so that a driver that writes nothing is caught."""
        with held, self.executor.lock, self.executor.impl.entered():
            for name in self._where.outputs:
                fill = bytes([POISON]) * self._where.buffers[name].nbytes
                self.executor.impl.write(self._own(name), memoryview(fill))

    def __del__(self) -> None:
        """Leave `close` to the next that is compiled: a call of the driver may be under way."""
        if not getattr(self, "_is_closed", True):
            self.executor.dropped.append(self)

    def close(self) -> None:
        """Give programs and memory back to the device."""
        if self.executor.is_inherited or self.executor.closed:
            return
        with held, self.executor.lock:
            if self.executor.closed:
                return
            for other in filter(None, self._others.values()):
                other.close()
            with self.executor.impl.entered():
                self._release(self.executor.impl)

    def _release(self, impl: DeviceImpl) -> None:
        self._is_closed = True
        for bound in list(self._recorded):
            self._drop(bound)
        for program in self._programs:
            self.executor.programs.release(program)
        for buffer in self._buffers.values():
            impl.free(buffer)
        self._programs, self._buffers = [], {}


def _row(device: str, step: Step) -> PlacementRow:
    kernel, storage = step.kernel, "+".join(step.storages)
    return PlacementRow(step.nodes, step.ops, device, kernel, storage)
