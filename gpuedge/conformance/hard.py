"""Shapes picked by hand: each is where some kernel, layout or driver has reason to go wrong."""

from __future__ import annotations

from gpuedge.conformance.case import Geometry
from gpuedge.conformance.layers import Conv, ConvTranspose, Gemm, MatMul
from gpuedge.conformance.shaping import BatchNorm, Concat, GlobalPool, Move, Pool, Softmax

CONVOLUTIONS: tuple[Conv, ...] = (
    Conv(3, (6, 7), 5, pads=(1, 1, 1, 1), bias=True),
    Conv(7, (11, 13), 9, stride=(2, 2), pads=(1, 1, 1, 1), act="relu"),
    Conv(8, (5, 9), 12, (1, 1), bias=True),
    Conv(5, (6, 8), 6, pads=(2, 0, 1, 3), dilation=(2, 1)),
    Conv(6, (7, 8), 4, (3, 3), pads=(1, 1, 1, 1), groups=2),
    Conv(9, (5, 6), 12, (2, 3), (1, 2), (0, 1, 1, 0), groups=3, bias=True),
    Conv(13, (7, 9), 13, pads=(1, 1, 1, 1), groups=13, bias=True, act="relu6"),  # depthwise
    Conv(8, (9, 7), 8, (5, 5), (2, 1), (2, 2, 2, 2), groups=8),
    Conv(4, (8, 8), 8, (3, 3), groups=4),  # two filters for each channel
    Conv(1, (1, 1), 1, (1, 1)),
    Conv(1, (1, 17), 3, (1, 5), pads=(0, 2, 0, 2)),
    Conv(1, (17, 1), 3, (5, 1), pads=(2, 0, 2, 0)),
    Conv(2, (3, 3), 3, (3, 3), pads=(4, 4, 4, 4)),  # windows that see padding only
    Conv(5, (9, 9), 3, (3, 3), stride=(5, 3), dilation=(3, 3), pads=(0, 0, 0, 0)),
    Conv(10, (4, 5), 2, (4, 5)),  # the window is the image
    Conv(31, (3, 4), 17, (1, 1), n=2, act="sigmoid"),
    Conv(4, (5, 6), 7, (2, 2), stride=(2, 2), mode="same", bias=True),
    Conv(4, (6, 5), 4, (3, 2), stride=(2, 1), mode="same"),
    Conv(3, (5, 5), 4, (3, 3), mode="valid", n=3),
    Conv(64, (2, 3), 3, (3, 3), pads=(1, 1, 1, 1)),  # a long sum
    Conv(3, (4, 21), 8, (3, 3), pads=(1, 1, 1, 1), act="hard_swish", bias=True),
    Conv(4, (5, 5), 4, (3, 3), pads=(1, 1, 1, 1), act="gelu"),
    Conv(4, (5, 5), 5, (1, 1), act="silu", bias=True),
    Conv(4, (5, 5), 5, (1, 1), act="leaky_relu"),
    Conv(4, (5, 5), 5, (2, 2), act="tanh"),
    Conv(4, (5, 5), 5, (2, 2), act="elu"),
)

TRANSPOSED: tuple[ConvTranspose, ...] = (
    ConvTranspose(3, (3, 4), 5, bias=True),
    ConvTranspose(5, (4, 3), 3, (4, 4), pads=(1, 1, 1, 1), act="relu"),
    ConvTranspose(4, (3, 3), 6, (2, 2), groups=2),
    ConvTranspose(6, (2, 5), 6, (3, 3), (3, 2), (1, 0, 2, 1), (1, 1), groups=6),
    ConvTranspose(2, (3, 3), 2, (2, 3), (1, 1), dilation=(2, 2), n=2),
    ConvTranspose(9, (1, 1), 7, (3, 5), (2, 2)),
    ConvTranspose(2, (2, 2), 3, (1, 1), (3, 3)),  # most outputs meet no input
)

MATMULS: tuple[MatMul, ...] = (
    MatMul((5, 7), (7, 9)),
    MatMul((33, 31), (31, 13)),
    MatMul((2, 3, 5, 4), (3, 4, 6)),
    MatMul((1, 1), (1, 1)),
    MatMul((1, 67), (67, 1)),
    MatMul((64, 1), (1, 5)),
    MatMul((17,), (17,)),
    MatMul((17,), (17, 6)),
    MatMul((6, 17), (17,)),
    MatMul((2, 1, 3, 4), (5, 4, 2)),
    MatMul((4,), (3, 4, 5)),
    MatMul((3, 2, 4), (4,)),
    MatMul((40, 40), (40, 40)),
)

DEEP: tuple[MatMul, ...] = (
    MatMul((33, 32), (32, 33)),
    MatMul((40, 41), (41, 35)),
    MatMul((2, 32, 33), (33, 36)),
    MatMul((3, 35, 32), (3, 32, 32)),
    MatMul((4, 5), (5, 4)),
    MatMul((1, 9), (9, 7)),
)
"""Products with rows, depth and columns enough for tiles in shared memory, and too few for them."""

GEMMS: tuple[Gemm, ...] = (
    Gemm(5, 7, 9, (9,)),
    Gemm(4, 6, 5, (4, 1), 2.0, -0.5, True, True),
    Gemm(3, 8, 4, None, -0.5, 1.0, False, True),
    Gemm(1, 13, 6, (), 1.0, 2.0, True, False),
    Gemm(7, 5, 3, (7, 3), 1.0, 0.0),
)

POOLS: tuple[Pool, ...] = (
    Pool("max", 5, (7, 9), (3, 3), (2, 2), (1, 1, 1, 1)),
    Pool("avg", 5, (7, 9), (3, 3), (2, 2), (1, 1, 1, 1)),
    Pool("max", 3, (6, 5), (2, 3), (1, 2), (1, 0, 0, 2), ceil=True),
    Pool("avg", 3, (6, 5), (2, 3), (1, 2), (1, 0, 0, 2), ceil=True, include=True),
    Pool("max", 4, (8, 8), (2, 2), (2, 2)),
    Pool("max", 1, (9, 9), (3, 3), (1, 1), (2, 2, 2, 2), (2, 2), n=2),
    Pool("avg", 9, (4, 4), (4, 4), (4, 4)),
    Pool("avg", 2, (5, 6), (3, 3), (1, 1), (2, 2, 2, 2)),
    Pool("max", 8, (1, 1), (1, 1), (1, 1)),
    Pool("avg", 6, (7, 7), (2, 2), (3, 3), ceil=True),
)

ROWS: tuple[Geometry, ...] = (
    Softmax((3, 10)),
    Softmax((2, 5, 4), 1),
    GlobalPool("avg", (2, 5, 4, 6)),
    GlobalPool("max", (1, 9, 7, 5)),
    Softmax((7, 3, 2), 0, log=True),
    Softmax((2, 3, 4, 5), -2),
    Softmax((1, 300), -1, scale=5.0),
    Softmax((4, 1)),
    Softmax((3, 17), -1, log=True, scale=30.0, offset=1000.0),
    GlobalPool("avg", (1, 3, 16, 17)),
    GlobalPool("max", (2, 4, 1, 1)),
    BatchNorm((2, 5, 3, 4)),
    BatchNorm((3, 7)),
)

ARRANGED: tuple[Geometry, ...] = (
    Concat(((2, 3, 4, 5), (2, 5, 4, 5)), 1),
    Move("transpose", (2, 3, 4, 5), (0, 2, 3, 1)),
    Concat(((3, 1), (3, 4), (3, 2)), -1),
    Move("transpose", (7, 9)),
    Move("reshape", (3, 8, 5), (5, -1)),
    Concat(((1, 4, 3, 3), (1, 4, 3, 3), (1, 8, 3, 3)), 1),
    Concat(((2, 0, 3), (2, 5, 3)), 1),
    Concat(((5,), (1,), (2,), (7,), (3,), (4,)), 0),
    Move("transpose", (1, 5, 1, 7), (3, 1, 0, 2)),
    Move("transpose", (3, 4, 2, 3, 2), (4, 1, 3, 0, 2), "strided"),
    Move("flatten", (2, 3, 4, 5), (2,)),
    Move("reshape", (4, 6), (2, 3, 2, 2)),
)
