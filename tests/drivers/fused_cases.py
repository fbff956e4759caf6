"""Nodes of ONNX Runtime's own that its optimiser writes, and what they are computed on."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpuedge.graph.expand import infer
from gpuedge.graph.ir import Array, Graph, Node, type_of
from gpuedge.opset.nbits import MICROSOFT


@dataclass(frozen=True)
class Fused:
    """A node: shapes of normal numbers, arrays, or None for what is absent."""

    op: str
    operands: tuple[Any, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    held: tuple[int, ...] = ()

    def made(self) -> tuple[Graph, dict[str, Array]]:
        """Return the graph and its inputs."""
        rng = np.random.default_rng(zlib.crc32(repr((self.op, self.attrs)).encode()))
        arrays = {
            f"i{n}": rng.normal(0, 1, o).astype(np.float32) if isinstance(o, tuple) else o
            for n, o in enumerate(self.operands) if o is not None
        }  # fmt: skip
        names = tuple(f"i{n}" if o is not None else "" for n, o in enumerate(self.operands))
        outputs = tuple(f"y{n}" for n in range(self.outputs))
        if self.op.startswith("Skip") and self.outputs == 2:
            outputs = ("y0", "", "", "y1")
        node = Node(self.op, names, outputs, dict(self.attrs), "node", MICROSOFT)
        held = {f"i{n}": arrays[f"i{n}"] for n in self.held}
        feeds = {n: a for n, a in arrays.items() if n not in held}
        types = {n: type_of(a) for n, a in arrays.items()}
        real = tuple(o for o in outputs if o)
        graph = Graph((node,), tuple(feeds), real, types, held, {"": 17, MICROSOFT: 1})
        kinds = zip(outputs, infer(node, graph), strict=False)
        made = {o: kind for o, kind in kinds if o and kind is not None}
        return Graph((node,), tuple(feeds), real, {**types, **made}, held, graph.opset), feeds


def whole(*numbers: int) -> Array:
    return np.array(numbers, np.int32)


def places(*rows: list[int]) -> Array:
    return np.array(rows, np.int64)


TOTAL = np.int32
QKV = ((2, 5, 12),) * 3
CACHE = ((2, 3, 4, 4),) * 2
FEW = ((2, 5, 6),) * 2
ANGLES = (9, 2)
KEPT = np.array([[1, 1, 1, 0, 0], [1, 0, 1, 1, 1]], np.int32)
ALL_HIDDEN = np.array([[0, 0, 0, 0, 0], [1, 1, 1, 1, 1]], np.int32)
GQA: dict[str, Any] = {"num_heads": 4, "kv_num_heads": 2}
NOW, LATER = (2, 3, 64), ((2, 3, 32), (2, 3, 32))
ONE = ((2, 1, 64), (2, 1, 32), (2, 1, 32))
PAST = ((2, 2, 6, 16),) * 2
TURN = ((20, 8), (20, 8))

CASES = {
    "bias": Fused("BiasGelu", ((3, 4, 8), (8,))),
    "fast": Fused("FastGelu", ((3, 40), (40,))),
    "fast, no bias": Fused("FastGelu", ((3, 40),)),
    "quick": Fused("QuickGelu", ((3, 40),), {"alpha": 1.5}),
    "quick, as usual": Fused("QuickGelu", ((3, 40),)),
    "product": Fused("FusedMatMul", ((2, 5, 7), (7, 6)), {"alpha": 0.25}),
    "turned": Fused("FusedMatMul", ((2, 7, 5), (2, 6, 7)), {"transA": 1, "transB": 1}),
    "vector": Fused("FusedMatMul", ((7,), (2, 6, 7)), {"transA": 1, "transB": 1, "alpha": 2.0}),
    "norm": Fused("SkipLayerNormalization", ((2, 5, 16), (2, 5, 16), (16,), (16,), (16,)),
                  {"epsilon": 1e-5}, outputs=2),
    "norm of one skip": Fused("SkipLayerNormalization", ((2, 5, 16), (1, 5, 16), (16,))),
    "rms": Fused("SkipSimplifiedLayerNormalization", ((2, 5, 16), (2, 5, 16), (16,), (16,)),
                 {"epsilon": 1e-6}, outputs=2),
    "rms of (5, 16)": Fused("SkipSimplifiedLayerNormalization", ((2, 5, 16), (5, 16), (16,))),
    "rotary": Fused("RotaryEmbedding", ((2, 5, 12), places([0, 1, 2, 3, 4], [8, 1, 1, 0, 2]),
                                        ANGLES, ANGLES)),
    "rotary from 3": Fused("RotaryEmbedding", ((2, 5, 12), np.array([3]), ANGLES, ANGLES),
                           {"interleaved": 1}),
    "rotary of a part": Fused("RotaryEmbedding", ((2, 5, 12), np.array([0]), (9, 1), (9, 1)),
                              {"num_heads": 3, "rotary_embedding_dim": 2}),
    "rotary of heads": Fused("RotaryEmbedding", ((2, 3, 5, 4), np.array([1]), ANGLES, ANGLES)),
    "heads": Fused("MultiHeadAttention", QKV, {"num_heads": 3}),
    "heads with biases": Fused("MultiHeadAttention", (*QKV, (36,)), {"num_heads": 3, "scale": 0.4}),
    "heads, padded": Fused("MultiHeadAttention", (*QKV, None, KEPT), {"num_heads": 3}),
    "heads, hidden": Fused("MultiHeadAttention", (*QKV, None, ALL_HIDDEN), {"num_heads": 3}),
    "heads, biased": Fused("MultiHeadAttention", (*QKV, None, KEPT, (1, 3, 5, 5)),
                           {"num_heads": 3}),
    "heads, causal": Fused("MultiHeadAttention", QKV, {"num_heads": 3, "unidirectional": 1}),
    "heads with a past": Fused("MultiHeadAttention", (*QKV, None, None, None, *CACHE),
                               {"num_heads": 3, "unidirectional": 1}, outputs=3),
    **{f"heads, causal, {queries} of {keys}": Fused(
        "MultiHeadAttention", ((2, queries, 12), *((2, keys, 12),) * 2),
        {"num_heads": 3, "unidirectional": 1}) for queries, keys in ((1, 4), (2, 5), (5, 2))},
    "heads, causal, with a short past": Fused(
        "MultiHeadAttention", ((2, 2, 12), *((2, 4, 12),) * 2, None, None, None,
                               *((2, 3, 3, 4),) * 2),
        {"num_heads": 3, "unidirectional": 1}, outputs=3),
    "heads across": Fused("MultiHeadAttention", ((2, 5, 12), (2, 3, 7, 4), (2, 3, 7, 4)),
                          {"num_heads": 3}),
    "groups, first": Fused("GroupQueryAttention", (NOW, *LATER, None, None, whole(2, 2), TOTAL(3)),
                           GQA, 3, (6,)),
    "groups, next": Fused("GroupQueryAttention", (*ONE, *PAST,
                                                  whole(6, 6), TOTAL(7)), GQA, 3, (6,)),
    "groups, uneven": Fused("GroupQueryAttention", (*ONE, *PAST,
                                                    whole(4, 6), TOTAL(7)), GQA, 3, (6,)),
    "groups, turned": Fused("GroupQueryAttention", (*ONE, *PAST,
                                                    whole(4, 6), TOTAL(7), *TURN),
                            {**GQA, "do_rotary": 1}, 3, (6,)),
    "groups, padded": Fused("GroupQueryAttention", (NOW, *LATER, None, None, whole(1, 0), TOTAL(3)),
                            GQA, 3, (6,)),
    "groups, with room": Fused("GroupQueryAttention", (*ONE, *((2, 2, 9, 16),) * 2, whole(4, 1),
                                                       TOTAL(5)), GQA, 3, (6,)),
    "heads, less than kept": Fused("MultiHeadAttention", (*QKV, None, 1 - 2 * KEPT),
                                   {"num_heads": 3}),
    "groups, first turned": Fused(
        "GroupQueryAttention", (NOW, *LATER, None, None, whole(2, 2), TOTAL(3), *TURN),
        {**GQA, "do_rotary": 1, "rotary_interleaved": 1, "scale": 0.7}, 3, (6,)),
    "groups, capped": Fused("GroupQueryAttention", (NOW, *LATER, None, None, whole(2, 2), TOTAL(3)),
                            {**GQA, "softcap": 2.0}, 3, (6,)),
    "groups, biased": Fused(
        "GroupQueryAttention", (*ONE, *PAST, whole(6, 6), TOTAL(7),
                                None, None, None, (1, 4, 1, 7)), GQA, 3, (6,)),
    "groups, near": Fused("GroupQueryAttention", ((1, 6, 64), (1, 6, 32), (1, 6, 32), None, None,
                                                  whole(5), TOTAL(6)),
                          {**GQA, "local_window_size": 2}, 3, (6,)),
    "groups, many more": Fused(
        "GroupQueryAttention", ((1, 3, 64), (1, 3, 32), (1, 3, 32), (1, 2, 6, 16), (1, 2, 6, 16),
                                whole(8), TOTAL(9), *TURN), {**GQA, "do_rotary": 1}, 3, (6,)),
}  # fmt: skip
