"""What the GPU executor asks of a device that keeps tensors in textures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planrun import FLOAT_TEXTURES, TEXTURES, run_graph

from gpuedge.backends.base import Usage
from gpuedge.backends.null import NullBackend, NullDevice
from gpuedge.core.caps import VULKAN_MINIMUM, Caps
from gpuedge.core.errors import DriverError, NotFiniteError
from gpuedge.core.kernel import KernelBlob, TensorArg
from gpuedge.core.storage import Storage
from gpuedge.executors import gpu
from gpuedge.executors.gpu import GpuExecutable, GpuExecutor
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Graph, TensorType
from gpuedge.lang import BlobCache, Kernel
from gpuedge.plan.planner import plan
from gpuedge.plan.storages import StoragePrecision, fixed16
from gpuedge.runtime import segments

X = np.arange(2 * 3 * 4 * 4, dtype=np.float32).reshape(2, 3, 4, 4)


def graph(weights: Any = None) -> Graph:
    b = GraphBuilder()
    x = b.input("x", TensorType("float32", X.shape))
    w = b.constant("w", np.ones((3, 3, 3, 3), np.float32) if weights is None else weights)
    c = b.constant("c", np.float32([1, 2, 3]))
    conv = b.add("Conv", [x, w, c], {"pads": [1, 1, 1, 1]})
    b.output(b.add("MaxPool", [conv], {"kernel_shape": [2, 2]}))
    return b.build()


class Entered(NullDevice):
    """A null device that counts how often it is entered, and what happens outside."""

    depth = 0
    entries = 0
    outside: list[str]

    @contextmanager
    def entered(self) -> Iterator[None]:
        self.depth += 1
        self.entries += self.depth == 1
        try:
            yield
        finally:
            self.depth -= 1

    def _note(self, method: str, *args: Any) -> None:
        if not self.depth and method != "close":
            self.outside.append(method)
        super()._note(method, *args)


def opened(caps: Caps, fail: Any = None) -> tuple[GpuExecutor, Entered]:
    backend = NullBackend(caps)
    info = backend.enumerate(backend.candidates({})[0])[0]
    impl = Entered(info, caps, fail or {}, None)
    impl.outside = []
    return GpuExecutor(impl, "gles20:0"), impl


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, str]]:
    """Storages that kernels are printed with; the text itself does not matter here."""
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(tmp_path))  # so that nobody finds such kernels
    seen: list[dict[str, str]] = []

    def stand_in(kernel: Kernel, dialect: str, storage: Any, _along: str) -> KernelBlob:
        seen.append(dict(storage))
        tensors = tuple(
            TensorArg(t.name, t.access, t.binding, storage.get(t.name, "buffer"))
            for t in kernel.tensors
        )
        return KernelBlob(kernel.name, dialect, b"", "main", tensors, (), (), 0, f"{len(seen)}")

    monkeypatch.setattr("gpuedge.executors.kernels.print_kernel", stand_in)
    return seen


def allocated(impl: NullDevice) -> Counter[tuple[Usage, Storage]]:
    buffers = {id(b.buffer): b.buffer for call in impl.calls if call.method == "record"
               for d in call.args[0] for b in d.bindings}  # fmt: skip
    return Counter((b.usage, b.storage) for b in buffers.values())  # type: ignore[attr-defined]


def test_every_tensor_is_allocated_with_its_storage(printed: list[dict[str, str]]) -> None:
    executor, impl = opened(TEXTURES)
    made = executor.compile(graph())
    exact = Storage("rgba8_float")
    # x and its packed form, which pooling's smaller result takes over; weights; convolution and the
    # linear result
    assert allocated(impl) == {
        (Usage.INPUT, exact): 1, (Usage.CONSTANT, exact): 1,
        (Usage.SCRATCH, exact): 2, (Usage.OUTPUT, exact): 1,
    }  # fmt: skip
    held = {id(b): b for c in impl.calls if c.method == "record" for b in (*c.args[1], *c.args[2])}
    assert made.memory["input"] + made.memory["output"] == sum(b.nbytes for b in held.values())
    assert 0 < made.memory["most_alive"] <= made.memory["scratch"]
    assert segments.memory_of([made, made]) == {n: 2 * v for n, v in made.memory.items()}
    assert segments.memory_of([object()]) is None
    assert all(set(kinds.values()) == {"rgba8_float"} for kinds in printed)
    conv = next(kinds for kinds in printed if "K" in kinds)
    assert conv == {"X": "rgba8_float", "K": "rgba8_float", "O": "rgba8_float"}


def test_fixed_point_reaches_device_printer_and_placement(printed: list[dict[str, str]]) -> None:
    executor, impl = opened(TEXTURES)
    whole = graph()
    conv = whole.nodes[0].outputs[0]
    ranges = {"x": (0.0, 95.0), conv: (0.0, 900.0)}
    made = executor.compile(whole, StoragePrecision("fixed16", ranges))
    kept = allocated(impl)
    assert kept[(Usage.INPUT, fixed16(0, 95))] == 1  # type: ignore[index]
    assert kept[(Usage.CONSTANT, fixed16(1, 1))] == 1  # type: ignore[index]
    assert kept[(Usage.CONSTANT, Storage("rgba8_float"))] == 1  # the bias, on its own
    assert kept[(Usage.SCRATCH, fixed16(0, 900))] == 1  # type: ignore[index]
    assert kept[(Usage.OUTPUT, Storage("rgba8_float"))] == 1
    assert {"X": "rgba8_fixed16", "K": "rgba8_fixed16", "O": "rgba8_fixed16",
            "E0": "rgba8_float"} in printed  # fmt: skip
    assert [(r.ops, r.storage) for r in made.rows] == [
        (("Conv",), "rgba8_fixed16"), (("MaxPool",), "rgba8_float"),
    ]  # fmt: skip


def test_kernels_are_cached_for_each_storage(printed: list[dict[str, str]]) -> None:
    executor, _ = opened(TEXTURES)
    b = GraphBuilder()
    b.output(b.add("Relu", [b.input("x", TensorType("float32", (4,)))], output="y"))
    for ranges, count in (({}, 1), ({}, 1), ({"x": (0.0, 1.0)}, 2), ({"y": (0.0, 1.0)}, 3)):
        executor.compile(b.build(), StoragePrecision("fixed16", ranges))
        assert len(printed) == count


def test_cached_blobs_remember_their_storage(tmp_path: Path) -> None:
    tensors = (TensorArg("X", "read", 0, "rgba8_u8"), TensorArg("O", "write", 1, "rgba32f"))
    blob = KernelBlob("k", "essl300", b"text", "main", tensors, (), (), 0, "d")
    cache = BlobCache(tmp_path / "kernels.bin")
    cache.put("key", blob)
    assert cache.flush()
    assert BlobCache(tmp_path / "kernels.bin").get("key") == blob


def test_buffers_are_printed_as_ever(printed: list[dict[str, str]]) -> None:
    executor, impl = opened(VULKAN_MINIMUM)
    made = executor.compile(graph())
    assert printed and all(kinds == {} for kinds in printed)
    assert {storage for _, storage in allocated(impl)} == {Storage()}
    assert {r.storage for r in made.rows} == {"buffer"}


def test_sequences_of_calls_enter_the_device_once_for_each_step(
    printed: list[dict[str, str]],
) -> None:
    executor, impl = opened(TEXTURES)
    made = executor.compile(graph())
    steps = impl.entries  # of compiling: others use the device between them
    assert steps == 2 + len(made.plan.passes) + made_constants(made)
    made.run({"x": X})
    assert impl.entries == steps + 1
    made.poison()
    made.close()
    assert (impl.entries, impl.outside, impl.depth) == (steps + 3, [], 0)


def made_constants(made: GpuExecutable) -> int:
    """Count the tensors that compiling uploads."""
    return sum(t.is_constant and t.name == t.memory for t in made.plan.tensors.values())


def test_failures_leave_the_device(printed: list[dict[str, str]]) -> None:
    executor, impl = opened(TEXTURES, {"record": DriverError("No.")})
    with pytest.raises(DriverError):
        executor.compile(graph())
    assert impl.depth == 0
    assert Counter(c.method for c in impl.calls)["free"] == 5


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_before_upload(
    printed: list[dict[str, str]], bad: float
) -> None:
    executor, impl = opened(TEXTURES)
    made = executor.compile(graph())
    written = sum(c.method == "write" for c in impl.calls)
    x = X.copy()
    x[1, 2, 3, 3] = bad
    with pytest.raises(NotFiniteError, match="'x' holds NaN or infinity, which gles20:0") as caught:
        made.run({"x": x})
    assert "device='auto'" in str(caught.value.hint)
    assert sum(c.method == "write" for c in impl.calls) == written
    assert not any(c.method == "submit" for c in impl.calls)
    w = np.full((3, 3, 3, 3), bad, np.float32)
    with pytest.raises(NotFiniteError, match="'w' holds"):
        executor.compile(graph(w))
    odd, plain = graph(w), graph()
    why = executor.supports(odd.nodes[0], odd)
    assert why is not None and "constant 'w' holds NaN or infinity" in why
    assert executor.supports(plain.nodes[0], plain) is None


def test_the_plan_that_says_what_a_device_can_run_is_the_one_that_is_compiled(
    printed: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, for this graph, computed exactly; and kept no longer, for it holds the weights."""
    executor, _ = opened(VULKAN_MINIMUM)
    whole, made = graph(), list[object]()
    monkeypatch.setattr(gpu, "plan", lambda *a, **k: made.append(a[0]) or plan(*a, **k))
    for _ in range(2):
        assert all(executor.supports(node, whole) is None for node in whole.nodes)
    results = [executor.compile(whole) for _ in range(2)]
    assert made == [whole]
    assert results[0].plan is not results[1].plan
    assert results[0].rows == results[1].rows
    executor.supports(whole.nodes[0], whole)
    executor.compile(whole, rewrites=False)
    executor.supports(whole.nodes[0], whole)
    executor.compile(whole, StoragePrecision("float16"))
    executor.supports(whole.nodes[0], whole)
    executor.compile(graph())
    assert len(made) == 4


def test_what_nodes_make_of_constants_is_refused_where_it_is_infinite() -> None:
    """A causal mask that nodes make, as exporters write it: those, and the one that adds it."""
    b = GraphBuilder()
    x = b.input("x", TensorType("float32", (6, 6)))
    size, one = b.constant("size", np.array([6, 6])), b.constant("one", np.array(1))
    filled = b.add("ConstantOfShape", [size], {"value": np.float32([-np.inf])})
    made = b.add("Add", [x, b.add("Trilu", [filled, one], {"upper": 1})])
    b.output(b.add("Relu", [made]))
    whole = b.build()
    bare, _ = opened(TEXTURES)
    *masked, relu = whole.nodes
    for node in masked:
        why = bare.supports(node, whole)
        assert why is not None and "holds NaN or infinity" in why, node.op
    assert bare.supports(relu, whole) is None
    feed = np.arange(36, dtype=np.float32).reshape(6, 6)
    want = np.maximum(feed + np.triu(np.full((6, 6), -np.inf, np.float32), 1), 0)
    for caps in (VULKAN_MINIMUM, FLOAT_TEXTURES):
        (got,) = run_graph(whole, {"x": feed}, caps).values()
        np.testing.assert_array_equal(got, want)


def test_float_textures_take_what_is_not_finite(printed: list[dict[str, str]]) -> None:
    executor, _ = opened(FLOAT_TEXTURES)
    x = np.full_like(X, np.nan)
    executor.compile(graph()).run({"x": x})
    with pytest.raises(NotFiniteError):
        executor.compile(graph(), StoragePrecision("fixed16", {"x": (0.0, 1.0)})).run({"x": x})


def test_bytes_come_back_in_their_dtype(printed: list[dict[str, str]]) -> None:
    b = GraphBuilder()
    x = b.input("x", TensorType("uint8", (1, 3, 4, 4)))
    b.output(b.add("MaxPool", [x], {"kernel_shape": [2, 2]}))
    executor, impl = opened(replace(TEXTURES, is_finite_only=False))
    (got,) = executor.compile(b.build()).run({"x": np.ones((1, 3, 4, 4), np.uint8)}).values()
    assert got.dtype == np.uint8
    assert {storage.kind for _, storage in allocated(impl)} == {"rgba8_u8"}


@pytest.mark.parametrize(
    ("most", "columns", "wanted"),
    [
        (1 << 16, 256, [65536, 65536 + 256]),  # bits 8 to 15 of that are not 0 any more
        (1 << 12, 256, [65536, 65536]),  # as large as a texel buffer may be
        (1 << 16, 4, [1024, 1024]),
    ],
)
def test_texel_buffers_show_more_where_a_driver_would_compile_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, most: int, columns: int, wanted: list[int]
) -> None:
    """Constants lie one after the other in a buffer: there is room behind all but the last."""
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(tmp_path))
    b = GraphBuilder()
    x = b.input("x", TensorType("float32", (64, columns)))
    c, d = (b.constant(n, np.full((64, columns), v, np.float32)) for n, v in (("c", 2), ("d", 3)))
    b.output(b.add("Add", [b.add("Mul", [x, c]), d]))
    executor, impl = opened(replace(VULKAN_MINIMUM, max_texel_buffers=16, max_texel_elements=most))
    executor.caps = replace(executor.caps, device_class="cpu-llvm")
    executor.compile(b.build())
    (record,) = (call for call in impl.calls if call.method == "record")
    (dispatch,) = record.args[0]
    seen = list(zip(dispatch.program.blob.tensors, dispatch.bindings, strict=True))
    for tensor, one in seen:
        assert one.offset + one.nbytes <= one.buffer.nbytes
        assert (tensor.storage == "texels") == (tensor.access != "write")
    shared = [one for _, one in seen if one.buffer.nbytes > one.nbytes]
    assert sorted(one.nbytes for one in shared) == wanted
    assert {one.nbytes for _, one in seen if one not in shared} == {wanted[0]}
