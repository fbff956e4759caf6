"""The CPU executor: ONNX Runtime where it is installed, else numpy. Always there, always right."""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Literal

import numpy as np

from gpuedge.core.dtypes import is_numpys
from gpuedge.core.errors import (
    ClosedError,
    InputError,
    ModelError,
    OutOfMemoryError,
    PackError,
    ShapeError,
    UnsupportedOpError,
)
from gpuedge.executors.answers import Answers, answers
from gpuedge.executors.base import Executable, PlacementRow, StepTime
from gpuedge.executors.blocks import LEAST, blocks_of
from gpuedge.executors.products import moved, products
from gpuedge.executors.resident import Residents
from gpuedge.executors.timing import times_of
from gpuedge.graph import container, schema
from gpuedge.graph.expand import differs, expand, is_known, outside, program
from gpuedge.graph.ir import Array, Graph, Node
from gpuedge.graph.offenders import refusal
from gpuedge.graph.partition import outputs_of, part, partition
from gpuedge.graph.reader import is_keeping
from gpuedge.graph.reference import Reference
from gpuedge.graph.shaped import Serialised, ShapedModel
from gpuedge.graph.writer import reads
from gpuedge.opset import recurrent
from gpuedge.opset.evaluate import evaluate
from gpuedge.opset.tensor import Convolution, Pooling, Tensor
from gpuedge.safety.deadline import keep
from gpuedge.safety.interrupts import is_of_handler
from gpuedge.safety.packages import command, needed

Engine = Literal["onnxruntime", "numpy"]
REFERENCE = "onnx.reference"
"""What computes nodes that neither ONNX Runtime nor our descriptions know."""
Names = Sequence[str]
SOUGHT = "gpu_graph_id", "0"
"""What ONNX Runtime (seen with 1.32.0) looks for in each bound run, with an exception of 25
microseconds where it is not set; this is its default."""
SPIN_US = 1_000
"""How long threads of ONNX Runtime wait for the next run before they sleep. Runs back to back are
as fast as with its default, after which they keep all cores busy for 25 to 80 ms: that drains a
battery, and whatever runs next on two cores is up to four times as slow (docs/decisions/0059)."""
SPINS_FROM = (1, 26)
"""The first version of ONNX Runtime that can be told."""
QUIET = 4
"""ONNX Runtime's log level "fatal": its errors come as exceptions, not on stderr as well."""


def usable_cores() -> int:
    """Return how many cores this process may use: affinity, then the container's quota."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, -(-int(quota) // int(period)))
    except (OSError, ValueError, ZeroDivisionError):
        pass  # no control groups here, or an older layout: affinity is what is known
    return max(cores, 1)


def _rows(graph: Graph, kernel: str) -> tuple[PlacementRow, ...]:
    return tuple(
        PlacementRow((node.name or node.outputs[0],), (node.op,), "cpu", kernel)
        for node in graph.nodes
    )


class _OneStepExecutable:
    """Computes a graph on numpy arrays in one step."""

    def __init__(self, graph: Graph, kernel: str) -> None:
        self._kernel = kernel
        self._inputs = graph.inputs
        self._closed = False
        self.rows: tuple[PlacementRow, ...] = _rows(graph, kernel)

    def _computed(self, given: dict[str, Array]) -> dict[str, Array]:
        raise NotImplementedError

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        if self._closed:
            raise ClosedError("The executable was closed before this call.")
        try:
            return self._computed({name: inputs[name] for name in self._inputs})
        except MemoryError as error:
            raise OutOfMemoryError(f"The CPU ran out of memory: {error}") from error

    def timed(self, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], list[StepTime]]:
        """Compute the outputs; the graph is one step, because numpy fuses as it likes."""
        start = perf_counter_ns()
        results = self.run(inputs)
        spent = perf_counter_ns() - start
        nodes = tuple(name for row in self.rows for name in row.nodes)
        ops = tuple(name for row in self.rows for name in row.ops)
        row = PlacementRow(nodes, ops, "cpu", self._kernel)
        arrays = [inputs[name] for name in self._inputs] + list(results.values())
        return results, [StepTime(row, start, spent, sum(a.nbytes for a in arrays))]

    def close(self) -> None:
        self._closed = True


class _ReferenceExecutable(_OneStepExecutable):
    """Computes a graph in ONNX's reference evaluator. Raises UnsupportedOpError (GE-501)."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph, REFERENCE)
        self._types = graph.types
        self._reference = Reference(graph)

    def _computed(self, given: dict[str, Array]) -> dict[str, Array]:
        results = self._reference.run(given)
        return {name: self._typed(name, array) for name, array in results.items()}

    def _typed(self, name: str, array: Array) -> Array:
        """Return a result as the graph has it: text as objects, no axis of a scalar's own."""
        kind = self._types.get(name)
        if array.dtype.kind in "US":
            array = array.astype(object)
        if kind is None:
            return array
        if array.dtype != kind.dtype or array.size != kind.size:
            raise UnsupportedOpError(
                f"ONNX's reference evaluator makes {array.dtype}{list(array.shape)} of {name}, "
                f"which is to be {kind}."
            )
        return array.reshape(kind.shape)


class _NumpyExecutable(_OneStepExecutable):
    """Computes a graph in numpy, as the descriptions of its operators say."""

    def __init__(self, graph: Graph, kernel: str, threads: int = 1) -> None:
        super().__init__(graph, kernel)
        values = program(graph)
        tensors = {name: values.get(name) or outside(name, graph) for name in graph.outputs}
        self._outputs: dict[str, Tensor] = {n: t for n, t in tensors.items() if t is not None}
        only = [*self._outputs.values()] if len(graph.outputs) == 1 else []
        self.blocks = blocks_of(only[0], threads) if only else None

    def _computed(self, given: dict[str, Array]) -> dict[str, Array]:
        if self.blocks is not None:
            return dict.fromkeys(self._outputs, self.blocks.run(given))
        values = evaluate(list(self._outputs.values()), given)
        return {name: v.copy() for name, v in zip(self._outputs, values, strict=True)}

    def close(self) -> None:
        super().close()
        self._outputs, self.blocks = {}, None


def _for_ort(graph: Graph) -> Graph:
    """Return `graph` with known nodes written so that ONNX Runtime computes them right."""
    constants = dict(graph.constants)
    nodes = tuple(_settled(node, graph, constants) for node in graph.nodes)
    return replace(graph, nodes=nodes, constants=constants)


def _settled(node: Node, graph: Graph, constants: dict[str, Array]) -> Node:
    if is_keeping(node.op, node.inputs, node.attrs):
        return _with_names(node, 3)
    if "" in node.outputs:
        node = _with_named_outputs(node, graph)
    if node.op in recurrent.LAYERS and not node.domain:
        node = replace(node, attrs=recurrent.with_defaults(node.attrs))
    is_same = str(node.attrs.get("auto_pad", "")).startswith("SAME")
    left = graph.types.get(node.inputs[0]) if node.op == "Gemm" else None
    is_empty = left is not None and not left.size  # unknown after an operator of ONNX Runtime's own
    if not is_same and not is_empty:
        return node
    try:
        source = expand(node, graph)[0].source
    except (UnsupportedOpError, ShapeError):
        return node
    if is_empty:
        return _with_inner_one(node, graph, constants)
    if isinstance(source, (Convolution, Pooling)) and is_same and node.op != "ConvTranspose":
        return _explicit_pads(node, source)
    return node


def _with_names(node: Node, count: int) -> Node:
    """Return a node whose first outputs, so many, are named."""
    first = next(filter(None, node.outputs))
    given = [*node.outputs, *[""] * (count - len(node.outputs))]
    names = [name or f"{first}/output{i}" for i, name in enumerate(given[:count])]
    return replace(node, outputs=(*names, *given[count:]))


def _with_named_outputs(node: Node, graph: Graph) -> Node:
    """Return a node of which ONNX Runtime (seen with 1.32.0) can leave outputs out.

    It crashes on an empty name where as many outputs are made as a node names (Split), and on such
    names at the end of the list of others (BatchNormalization).
    """
    if schema.is_variadic(node, graph.opset):
        return _with_names(node, len(node.outputs))
    outputs = list(node.outputs)
    while not outputs[-1]:
        del outputs[-1]
    return replace(node, outputs=tuple(outputs))


def _with_inner_one(node: Node, graph: Graph, constants: dict[str, Array]) -> Node:
    """Return a product over nothing as one over a single zero, which has the same value.

    ONNX Runtime forgets to scale the third input by beta in the former (seen with 1.31.1).
    """
    m, n = graph.shape(node.outputs[0])
    dtype = graph.types[node.inputs[0]].dtype
    names = tuple(f"{node.outputs[0]}/zeros{i}" for i in (0, 1))
    shapes = ((m, 1), (1, n))
    constants.update((n, np.zeros(s, dtype)) for n, s in zip(names, shapes, strict=True))
    attrs = {k: v for k, v in node.attrs.items() if k not in ("transA", "transB")}
    return replace(node, inputs=(*names, *node.inputs[2:]), attrs=attrs)


def _explicit_pads(node: Node, source: Convolution | Pooling) -> Node:
    """Write automatic "same" padding out.

    ONNX Runtime refuses, or computes wrongly, "same" padding of dilated windows and of windows
    smaller than their stride (seen with 1.31.1); with explicit pads it does both right.
    """
    pads = source.window.pads if source.x.rank == 4 else source.window.pads[1::2]
    attrs = {k: v for k, v in node.attrs.items() if k not in ("auto_pad", "ceil_mode")}
    return replace(node, attrs={**attrs, "pads": pads})


class _OrtExecutable:
    """Runs a model in one ONNX Runtime session; outputs that nothing computes are copied.

    Parameters
    ----------
    model : ShapedModel
    kernel : str
    session : onnxruntime.InferenceSession or None
        None where all outputs are copied.
    inputs, outputs : sequence of str
    profiled : callable
        Returns another such session, which writes a profile to a file of this beginning.
    """

    def __init__(
        self, model: ShapedModel, kernel: str, session: Any, inputs: Names, outputs: Names,
        *, profiled: Callable[[str], Any],
    ) -> None:  # fmt: skip
        self._model, self._kernel, self._session = model, kernel, session
        self._profiled = profiled
        self._inputs, self._order = inputs, outputs
        computed = [] if session is None else [each.name for each in session.get_outputs()]
        self._computed = [name for name in outputs if name in computed]
        self._copied = [name for name in outputs if name not in computed]
        self._constants = model.graph.constants if self._copied else {}
        self._closed = False
        self._options: Any = the_runtime().RunOptions
        self._under_way: Any = None
        self._shapes = {} if session is None else {o.name: o.shape for o in session.get_outputs()}
        self._bound: tuple[list[Any], Any] = [], None  # arrays, and what binds their memory
        _sessions.add(self)

    @property
    def rows(self) -> tuple[PlacementRow, ...]:
        return _rows(self._model.graph, self._kernel)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        if self._closed:
            raise ClosedError("The executable was closed before this call.")
        feeds = {n: inputs[n] for n in self._inputs}
        if self._session is not None and not self._copied:
            if isinstance(inputs, Residents) and (binding := self._binding(feeds, inputs.into)):
                self._call(feeds, binding)
                return {name: inputs.into[name] for name in self._computed}
            return dict(zip(self._computed, self._call(feeds), strict=True))
        results = {
            n: (self._constants[n] if n in self._constants else inputs[n]).copy()
            for n in self._copied
        }
        if self._session is not None:
            results.update(zip(self._computed, self._call(feeds), strict=True))
        return {name: results[name] for name in self._order}

    def _binding(self, feeds: Mapping[str, Array], into: Mapping[str, Array]) -> Any:
        """Return ONNX Runtime's binding of arrays where it can write every output to its memory.

        It is made for those that come a second time: that takes ten times as long as a small run.
        """
        if len(into) != len(self._computed) or not all(
            list(memory.shape) == self._shapes[name] and memory.size and memory.flags.carray
            for name, memory in into.items()
        ):
            return None
        arrays = [*feeds.values(), *(into[name] for name in self._computed)]
        before, binding = self._bound
        is_same = len(before) == len(arrays) and all(
            b() is a for b, a in zip(before, arrays, strict=True)
        )
        if not is_same:
            self._bound = [weakref.ref(array) for array in arrays], None
            return None
        if binding is not None:
            return binding
        binding = self._session.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        for name, memory in into.items():
            place = memory.ctypes.data
            binding.bind_output(name, "cpu", 0, memory.dtype.type, memory.shape, place)
        self._bound = before, binding
        return binding

    def timed(self, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], list[StepTime]]:
        """Compute the outputs; return what each node took, as ONNX Runtime has fused them."""
        if self._session is None or self._closed:
            return self.run(inputs), []
        feeds = {n: inputs[n] for n in self._inputs}
        outputs, computed = self.run(inputs), self._computed
        _, times = times_of(
            self._profiled, lambda session: session.run(computed, feeds), self._kernel
        )
        return outputs, times

    def cancel(self) -> None:
        """End a run of another thread at its next node; that run raises ModelError."""
        options = self._under_way
        if options is not None:
            options.terminate = True

    def _call(self, feeds: dict[str, Array], binding: Any = None) -> list[Array]:
        self._under_way = options = self._options()
        try:
            if binding is not None:
                options.add_run_config_entry(*SOUGHT)
                self._session.run_with_iobinding(binding, options)
                return []
            results: list[Array] = self._session.run(self._computed, feeds, options)
            return results
        except Exception as error:  # its exception classes have no common base of their own
            if is_of_handler(error):
                raise
            if not options.terminate:
                with suppress(MemoryError):
                    _ = self._model.graph  # where it cannot be made, that says what is wrong
            text = str(error)
            _check_memory(error)
            kind = InputError if "INVALID_ARGUMENT" in text else ModelError
            raise kind(
                f"ONNX Runtime cannot run the model on these inputs: {text}",
                hint="check the values and shapes that reach the node it names",
            ) from error

    def close(self) -> None:
        self._session, self._closed, self._bound = None, True, ([], None)

    def keep(self) -> None:
        """Never destroy what ONNX Runtime has here."""
        if self._session is not None:
            keep(self._session)


class _PartsExecutable:
    """Runs a graph in parts, one after another, each by one of the engines."""

    def __init__(self, graph: Graph, parts: Sequence[tuple[Graph, Executable]]) -> None:
        self._graph, self._parts = graph, parts
        self.rows: tuple[PlacementRow, ...] = tuple(r for _, each in parts for r in each.rows)
        self._under_way: Executable | None = None

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return self._each(inputs, lambda executable, feed: executable.run(feed))

    def timed(self, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], list[StepTime]]:
        """Compute the outputs; return what each part says that its nodes took."""
        times: list[StepTime] = []

        def run(executable: Executable, feed: Mapping[str, Array]) -> dict[str, Array]:
            results, spent = executable.timed(feed)
            times.extend(spent)
            return results

        return self._each(inputs, run), times

    def _each(
        self, inputs: Mapping[str, Array],
        run: Callable[[Executable, Mapping[str, Array]], dict[str, Array]],
    ) -> dict[str, Array]:  # fmt: skip
        values: dict[str, Array] = dict(inputs)
        for graph, executable in self._parts:
            self._under_way = executable
            values |= run(executable, {name: values[name] for name in graph.inputs})
        return outputs_of(self._graph, values)

    def cancel(self) -> None:
        """End a run of another thread at its next node, if ONNX Runtime is at work."""
        stop = getattr(self._under_way, "cancel", None)
        if stop is not None:
            stop()

    def close(self) -> None:
        for _, executable in self._parts:
            executable.close()


_sessions: weakref.WeakSet[_OrtExecutable] = weakref.WeakSet()


def _after_fork() -> None:
    """Keep the sessions of the parent in a forked child, for good.

    Destroying one joins its threads, which did not come along: a child that ended by ``sys.exit``
    would hang there.
    """
    for session in list(_sessions):
        session.keep()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def the_runtime() -> Any:
    """Return ONNX Runtime, without what it tells its makers unless the user asked for that.

    Version 1.32 starts a thread for it when it is imported, behind which every child that is forked
    off hangs at its end.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    with needed("onnxruntime", "ONNX Runtime on the CPU"):
        import onnxruntime

    return onnxruntime


def spinning(version: str) -> tuple[str, str]:
    """Return the setting of a version of ONNX Runtime that ends the waiting after a run."""
    major, minor = map(int, version.split(".")[:2])
    if (major, minor) < SPINS_FROM:
        return "session.force_spinning_stop", "1"
    return "session.intra_op.spin_duration_us", str(SPIN_US)


def _session(data: bytes, threads: int, profile: str = "") -> Any:
    """Load a serialised model into ONNX Runtime, which writes `profile` if that is given."""
    onnxruntime = the_runtime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = QUIET
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.enable_profiling, options.profile_file_prefix = bool(profile), profile
    options.add_session_config_entry(*spinning(onnxruntime.__version__))
    # What it fuses with DequantizeLinear and QuantizeLinear is rounded otherwise than it is
    # written, and otherwise from processor to processor; parts in integers are made by the reader.
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    try:
        # With its fallback it would try the same once more, and say so on standard output.
        return onnxruntime.InferenceSession(
            data, options, providers=["CPUExecutionProvider"], enable_fallback=0
        )
    except Exception as error:  # its exception classes have no common base of their own
        if is_of_handler(error):
            raise
        if threads != 1 and NO_THREADS in str(error):
            return _session(data, 1, profile)
        _check_memory(error)
        kind = UnsupportedOpError if NO_KERNEL.search(str(error)) else ModelError
        raise kind(
            f"ONNX Runtime cannot load this part of the model: {error}",
            hint="a newer onnxruntime may know the operator",
        ) from error


def _check_names(session: Any, given: Serialised) -> None:
    """Raise PackError (GE-502) where a packed model names other values than its original."""
    sides = (session.get_inputs(), given.inputs), (session.get_outputs(), given.outputs)
    if any({each.name for each in there} != {*names} for there, names in sides):
        raise PackError(
            "The packed model is damaged: its original has other inputs or outputs.",
            hint=container.REMEDY,
        )


def _asked(data: bytes) -> Any:
    return _session(data, threads=1)


def known_answers() -> Answers:
    """Return what the installed ONNX Runtime makes of 8-bit products on this processor."""
    return answers(_kernel(), _asked)


def _kernel() -> str:
    return f"onnxruntime {the_runtime().__version__}"


NO_KERNEL = re.compile(r"(?:implementation for |Fatal error: (?:[\w.]+:)?)(\w+)\(")
"""What ONNX Runtime says of an operator that it has no kernel for, or does not know."""

NO_START = "Exception during initialization"
"""What it says where a kernel cannot be made: of attributes, or of what this machine lacks."""

NO_MEMORY = ("Failed to allocate memory", "bad allocation", "std::bad_alloc")
"""What ONNX Runtime says where memory is short."""

NO_THREADS = "pthread_create failed"
"""What it says where no thread can be started; with one thread it starts none."""


def _check_memory(error: Exception) -> None:
    """Raise OutOfMemoryError (GE-402) where that is what an error of ONNX Runtime's is about."""
    if isinstance(error, MemoryError) or any(said in str(error) for said in NO_MEMORY):
        raise OutOfMemoryError(f"ONNX Runtime ran out of memory: {error}") from error


def _unknown(node: Node, graph: Graph) -> str | None:
    """Return None if numpy can run `node`, else one sentence."""
    try:
        expand(node, graph)
    except (UnsupportedOpError, ShapeError) as error:
        return error.what
    return None


def _other(node: Node, graph: Graph) -> str:
    """Return what computes a node that is not for ONNX Runtime."""
    return "numpy" if _unknown(node, graph) is None else REFERENCE


def _keep_inside(graph: Graph, engines: dict[int, str]) -> None:
    """Give nodes to the reference so that no dtype unknown to numpy enters or leaves another."""
    kinds = {name: graph.types.get(name) for n in graph.nodes for name in (*reads(n), *n.outputs)}
    plain = {name for name, kind in kinds.items() if kind is not None and is_numpys(kind.dtype)}
    odd = kinds.keys() - plain - graph.constants.keys()  # of unknown types as well
    handed = {name for name in (*graph.inputs, *graph.outputs) if name in odd and kinds[name]}
    touching = {id(n): odd.intersection((*reads(n), *n.outputs)) for n in graph.nodes}
    while True:
        engines.update((k, REFERENCE) for k, names in touching.items() if names & handed)
        more = {
            name for key, names in touching.items() if engines.get(key) == REFERENCE
            for name in names if name
        } - handed  # fmt: skip
        if not more:
            return
        handed |= more


class CpuExecutor:
    """Runs graphs on the CPU.

    Parameters
    ----------
    threads : int, optional
        Threads that one operator may use; by default all usable cores.
    engine : {"onnxruntime", "numpy"}, optional
        By default ONNX Runtime where it is installed, else numpy (known operators only, slower).
    """

    device = "cpu"

    def __init__(self, threads: int | None = None, engine: Engine | None = None) -> None:
        self._may_change = engine is None
        if engine is None:
            engine = "onnxruntime" if find_spec("onnxruntime") else "numpy"
        self.engine: Engine = engine
        self._writes = engine == "onnxruntime" and find_spec("onnx") is not None
        self.threads = threads or usable_cores()
        self._loaded: weakref.WeakValueDictionary[tuple[int, Serialised], Any]
        self._loaded = weakref.WeakValueDictionary()

    @property
    def kernel(self) -> str:
        """What computes, with its version: ``onnxruntime 1.20.1`` or ``numpy``."""
        if self.engine == "numpy":
            return "numpy"
        return _kernel()

    def supports(self, node: Node, graph: Graph) -> str | None:
        """Return None if `node` can run here, else one sentence saying why not.

        ONNX Runtime is asked for every operator that has a schema; whether it has a kernel for the
        dtypes at hand shows when the segment is compiled. Without the onnx package, numpy is asked.
        """
        if self._writes:
            from gpuedge.graph.schema import schema_reason

            return schema_reason(node, graph.opset)
        return _unknown(node, graph)

    def load(self, model: ShapedModel) -> Executable:
        """Return a whole model for ONNX Runtime as it came; where that will not do, as a graph.

        ONNX Runtime has one session for all shapes of a model, which goes with the last of them.

        Raises
        ------
        ModelError (GE-500), UnsupportedOpError (GE-501)
            Neither will do.
        """
        given = model.serialised
        if given is not None and self.engine == "onnxruntime":
            session = None
            with suppress(ModelError):  # the graph says what is wrong, or does without that
                session = self._shared(given)
            if session is not None:
                _check_names(session, given)
                return _OrtExecutable(
                    model, self.kernel, session, given.inputs, given.outputs,
                    profiled=lambda profile: _session(given.read(), self.threads, profile),
                )  # fmt: skip
        graph = model.graph
        whys = {id(n): why for n in graph.nodes if (why := self.supports(n, graph)) is not None}
        if whys:
            raise refusal(graph, whys, "can be run by nothing here")
        return self.compile(graph)

    def _shared(self, given: Serialised) -> Any:
        key = os.getpid(), given  # in a forked child the threads of the parent's are missing
        session = self._loaded.get(key)
        if session is None:
            session = self._loaded[key] = _session(given.read(), self.threads)
        return session

    def compile(self, segment: Graph) -> Executable:
        """Compile a segment.

        Nodes that ONNX Runtime has no kernel for, or computes otherwise than ONNX has it, go to
        numpy (8-bit products as `gpuedge.executors.answers` found on this processor). So does all
        of it where ONNX Runtime refuses it for another reason (operator sets before 7), if numpy
        knows every operator in it, and where there is no onnx package to write it with. What numpy
        does not know goes to ONNX's reference evaluator, and so do nodes that hand over dtypes that
        ONNX Runtime has no numpy arrays of.

        Raises
        ------
        ModelError (GE-500), UnsupportedOpError (GE-501)
            ONNX Runtime refuses it; the message is its own.
        """
        if self._may_change:
            in_blocks = self._in_blocks(segment)
            if in_blocks is not None:
                return in_blocks
        refused: ModelError | None = None
        if self._writes:
            try:
                return self._shared_out(segment)
            except ModelError as error:
                nodes = ", ".join(node.name or node.op for node in segment.nodes[:8])
                error.known = error.known or f"{self.kernel}, nodes {nodes}"
                refused = error
        whys = {id(n): why for n in segment.nodes if (why := _unknown(n, segment)) is not None}
        if refused is not None and (whys or not self._may_change):
            raise refused
        if whys:
            hint = command("onnxruntime")
            raise refusal(segment, whys, "cannot be computed by numpy", hint=hint)
        return _NumpyExecutable(segment, "numpy")

    def _in_blocks(self, graph: Graph) -> Executable | None:
        """Return what computes a large formula as fast as memory; None for any other graph."""
        outputs = [graph.types.get(name) for name in graph.outputs]
        if len(outputs) != 1 or outputs[0] is None or outputs[0].size < LEAST:
            return None
        inner = [graph.types.get(name) for node in graph.nodes for name in node.outputs]
        if any(t is None or t.size not in (1, outputs[0].size) for t in inner):
            return None
        with suppress(UnsupportedOpError, ShapeError):
            executable = _NumpyExecutable(graph, "numpy", self.threads)
            return executable if executable.blocks is not None else None
        return None

    def _shared_out(self, graph: Graph) -> Executable:
        """Compile for ONNX Runtime, but for nodes that are numpy's. Raises ModelError."""
        engines: dict[int, str] = {}
        graph, wrong = self._mended(graph)
        if self._may_change:
            odd = {id(n) for n in graph.nodes if id(n) in wrong or differs(n, graph)}
            engines = {id(n): _other(n, graph) for n in graph.nodes if id(n) in odd}
            _keep_inside(graph, engines)
        while True:
            try:
                return self._in_parts(graph, engines)
            except ModelError as error:
                left = [n for n in graph.nodes if id(n) not in engines]
                lacking = self._lacking(error, left, graph) if self._may_change else []
                if not lacking:
                    raise
                engines.update((id(n), _other(n, graph)) for n in lacking)
                _keep_inside(graph, engines)

    def _lacking(self, error: ModelError, nodes: Sequence[Node], graph: Graph) -> list[Node]:
        """Return the nodes that an error of ONNX Runtime's is about, if it has no kernel for them.

        It names operators that others are made of, and none where a kernel cannot be made.
        """
        lacks = NO_KERNEL.search(error.what)
        named = [n for n in nodes if lacks is not None and n.op == lacks[1]]
        if named or (lacks is None and NO_START not in error.what):
            return named
        nodes = [n for n in nodes if lacks is not None or not is_known(n)]
        return [n for n in nodes if self._is_refused(n, graph)]

    def _is_refused(self, node: Node, graph: Graph) -> bool:
        try:
            self._written(part(graph, [node]))
        except ModelError as error:
            return NO_START in error.what or NO_KERNEL.search(error.what) is not None
        return False

    def _mended(self, graph: Graph) -> tuple[Graph, frozenset[int]]:
        """Return a graph whose 8-bit products come out right, but for nodes that are numpy's."""
        by_node = products(graph)
        wrong = known_answers().wrong if by_node else frozenset()
        if not wrong:
            return graph, frozenset()
        graph, left = moved(graph, by_node, wrong)
        for node in graph.nodes if self._may_change else ():
            why = _unknown(node, graph) if id(node) in left else None
            if why is not None:
                raise UnsupportedOpError(
                    f"{by_node[id(node)]} comes out wrong on this processor, and numpy does not "
                    f"know it: {why}",
                    known=f"{self.kernel}, node {node.name or node.op}",
                    hint="uint8 by uint8 comes out right",
                )
        return graph, left

    def _in_parts(self, graph: Graph, engines: Mapping[int, str]) -> Executable:
        parts = partition(graph, lambda n: engines.get(id(n), "onnxruntime"))
        made = [(each.graph, self._made(each.graph, each.device)) for each in parts]
        if len(made) > 1:
            return _PartsExecutable(graph, made)
        return made[0][1] if made else self._written(graph)

    def _made(self, graph: Graph, engine: str) -> Executable:
        if engine == REFERENCE:
            return _ReferenceExecutable(graph)
        return _NumpyExecutable(graph, "numpy") if engine == "numpy" else self._written(graph)

    def _written(self, graph: Graph) -> Executable:
        from gpuedge.graph.writer import to_bytes

        inner = {name for node in graph.nodes for name in node.outputs}
        computed = [name for name in graph.outputs if name in inner]

        def load(profile: str = "") -> Any:
            written = _for_ort(graph)
            # An output that is none of the model's may be written into the memory of an input.
            keeping = (n for n in written.nodes if is_keeping(n.op, n.inputs, n.attrs))
            more = [name for n in keeping for name in n.outputs if name and name not in computed]
            data = to_bytes(written, [*computed, *more], is_guarded=True)
            return _session(data, self.threads, profile)

        session = load() if computed else None
        model = ShapedModel(lambda: graph)
        return _OrtExecutable(
            model, self.kernel, session, graph.inputs, graph.outputs, profiled=load
        )

    def close(self) -> None:
        """Do nothing; executables hold everything."""
