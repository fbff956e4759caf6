"""Operators of ONNX Runtime's own that its optimiser writes, against ONNX Runtime.

What differs must lie within the running error of the composition, for both sides.
"""

from __future__ import annotations

from dataclasses import replace

import daily
import numpy as np
import pytest
from fused_cases import ANGLES, CASES, GQA, LATER, NOW, ONE, PAST, QKV, TOTAL, Fused, whole
from operators import CAPS, run_on

from gpuedge.core.errors import GpuEdgeError, InputError, UnsupportedOpError
from gpuedge.executors.cpu import CpuExecutor
from gpuedge.graph.checks import check_values, checks_of
from gpuedge.opset.bounds import Num
from gpuedge.opset.errors import allowed
from gpuedge.oracle.nodes import evaluate
from gpuedge.runtime.crosscheck import RunningErrors

BINDING = [level for level, caps in CAPS.items() if caps.max_storage_buffers != 4]
"""Levels that bind five tensors at once: turning has two of angles and one of places."""


@pytest.mark.parametrize("level", daily.some(BINDING, len(BINDING)))
@pytest.mark.parametrize("name", CASES)
def test_it_computes_what_onnx_runtime_does(name: str, level: str) -> None:
    case = CASES[name]
    graph, feeds = case.made()
    theirs = run_on("onnxruntime", graph, feeds)
    check_values(checks_of(graph), feeds)
    bounds = RunningErrors(graph, feeds, CpuExecutor(engine="numpy"))
    assert bounds.unknown == ""
    is_padded = case.op == "MultiHeadAttention" and len(case.operands) > 4
    for engine in ("numpy", level):
        ours = run_on(engine, graph, feeds)
        for output in graph.outputs:
            want, got = theirs[output], ours[output]
            assert got.shape == want.shape
            most = np.broadcast_to(allowed(bounds.values[output], is_whole=False), want.shape)
            off = np.abs(got.astype(np.float64) - want)
            assert (off - 2 * most).max() <= 0, (engine, output, off.max())
            if not is_padded:  # scores less 10,000 have errors of 10,000 ULP, if they count at all
                assert most.max() < 1e-3 * max(1, np.abs(want).max())
            elif not name.endswith("hidden"):
                assert off.max() < 1e-5


@pytest.mark.parametrize("name", sorted(CASES.keys() - {"heads, hidden"}))
def test_the_oracle_says_what_onnx_runtime_computes(name: str) -> None:
    case = CASES[name]
    graph, feeds = case.made()
    theirs, wanted = run_on("onnxruntime", graph, feeds), evaluate(graph, feeds)
    for output in graph.outputs:
        value, error = Num.of(wanted[output])
        assert value.shape == theirs[output].shape
        assert (np.abs(theirs[output] - value) - error).max() <= 0
        assert error.max() < 1e-3


@pytest.mark.parametrize(("case", "why"), [
    (Fused("MultiHeadAttention", ((2, 5, 3, 3, 4),), {"num_heads": 3}), "in one tensor"),
    (Fused("MultiHeadAttention", (*QKV, None, whole(3, 5)), {"num_heads": 3}), "key_padding_mask"),
    (Fused("MultiHeadAttention", (QKV[0], *((2, 3, 7, 4),) * 2, None, None, None,
                                  *((2, 3, 4, 4),) * 2), {"num_heads": 3}), "a past themselves"),
    (Fused("GroupQueryAttention", (NOW, *LATER, None, None, whole(2, 2), TOTAL(3)), GQA),
     "total sequence length"),
    (Fused("GroupQueryAttention", (NOW, *LATER, None, None, whole(2, 2), TOTAL(3)),
           {**GQA, "smooth_softmax": 1}, held=(6,)), "smooth_softmax=1"),
    (Fused("RotaryEmbedding", ((2, 5, 12), np.array([0]), ANGLES, ANGLES), {"scale": 2.0}),
     "scale"),
    (Fused("FusedMatMul", ((2, 5, 7), (2, 7, 6)), {"transBatchA": 1}), "transBatchA=1"),
    (Fused("SkipLayerNormalization", ((5, 4), (5, 4), (4,)), outputs=3), "means"),
])  # fmt: skip
def test_what_is_left_out_is_refused_with_the_reason(case: Fused, why: str) -> None:
    with pytest.raises(UnsupportedOpError, match=why):
        case.made()


@pytest.mark.parametrize("shape", [(4, 5), (3, 4, 5), (2, 3, 4, 4)])
def test_a_turned_matrix_is_multiplied_by_a_vector_on_the_cpu_too(shape: tuple[int, ...]) -> None:
    graph, feeds = Fused("FusedMatMul", (shape, (4,)), {"transA": 1}).made()
    feeds = {name: np.rint(array) for name, array in feeds.items()}
    (found,) = CpuExecutor().compile(graph).run(feeds).values()
    np.testing.assert_array_equal(found, feeds["i0"].swapaxes(-1, -2) @ feeds["i1"])


@pytest.mark.parametrize("name", ["heads with a past", "groups, next", "groups, turned"])
def test_a_past_counts_on_the_cpu_where_no_present_is_asked_for(name: str) -> None:
    whole_one, alone = (replace(CASES[name], outputs=count).made() for count in (3, 1))
    wanted = CpuExecutor().compile(whole_one[0]).run(whole_one[1])["y0"]
    found = CpuExecutor().compile(alone[0]).run(alone[1])["y0"]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("case", "name"), [
    (Fused("RotaryEmbedding", ((2, 5, 12), np.array([5]), ANGLES, ANGLES)), "i1"),
    (Fused("GroupQueryAttention", (*ONE, *PAST, whole(7, 6), TOTAL(7)),
           GQA, 3, (6,)), "i5"),
    (Fused("GatherBlockQuantized", (np.ones((4, 8), np.uint8), np.array([3, 4]),
                                    np.ones((4, 1), np.float32)), {"block_size": 16}, held=(0, 2)),
     "i1"),
])  # fmt: skip
def test_places_beyond_the_end_are_refused(case: Fused, name: str) -> None:
    graph, feeds = case.made()
    with pytest.raises(InputError, match=f"'{name}' holds"):
        check_values(checks_of(graph), feeds)


@pytest.mark.parametrize("op", ["MultiHeadAttention", "GroupQueryAttention", "FusedMatMul",
                                "SkipLayerNormalization", "RotaryEmbedding"])  # fmt: skip
def test_shapes_that_do_not_fit_are_errors_of_ours(op: str) -> None:
    rng = np.random.default_rng(4)
    refused = 0
    for _ in range(200):
        shapes = [tuple(map(int, rng.integers(0, 4, rng.integers(0, 5)))) for _ in range(4)]
        whole_ones = [np.ones(rng.integers(0, 3), np.int32), np.int32(rng.integers(0, 4))]
        operands = [*shapes[:3], shapes[3], shapes[3], *whole_ones][: rng.integers(1, 8)]
        attrs = {"num_heads": int(rng.integers(0, 3)), "kv_num_heads": int(rng.integers(0, 3))}
        try:
            Fused(op, tuple(operands), attrs, held=(6,) if len(operands) > 6 else ()).made()
        except GpuEdgeError:
            refused += 1
    assert refused > 50
