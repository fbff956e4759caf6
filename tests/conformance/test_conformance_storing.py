"""What coarser storages do to numbers: bounds that hold, are not empty, and carry through."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gpuedge.conformance.case import compare
from gpuedge.conformance.storing import KEEPERS, Keeper
from gpuedge.core.texels import decode, encode
from gpuedge.opset.bounds import Array, Num
from gpuedge.oracle import layers
from gpuedge.oracle.functions import elementwise
from gpuedge.plan.storages import fixed16

RNG = np.random.default_rng(9)
SPREAD = np.float32(RNG.standard_normal((4, 500)) * np.exp2(RNG.uniform(-10, 10, (4, 500))))


def nearest(x: Array) -> Array:
    return np.asarray(x.astype(np.float16).astype(np.float32))


def truncated(x: Array) -> Array:
    half = x.astype(np.float16)
    over = np.abs(half.astype(np.float64)) > np.abs(x)
    return np.asarray(np.where(over, np.nextafter(half, np.float16(0)), half).astype(np.float32))


def fixed(x: Array) -> Array:
    storage = fixed16(float(x.min()), float(x.max()))
    assert storage is not None
    flat = np.zeros(-(-x.size // 4) * 4, np.float32)
    flat[: x.size] = x.ravel()
    back = np.asarray(decode(encode(flat, storage), storage))
    return np.asarray(back[: x.size].reshape(x.shape), np.float32)


STORES: dict[str, tuple[str, Callable[[Array], Array]]] = {
    "nearest": ("float16", nearest),
    "truncated": ("float16", truncated),
    "fixed": ("fixed16", fixed),
}


@pytest.mark.parametrize("name", STORES)
def test_bound_of_one_store_holds_and_is_not_empty(name: str) -> None:
    keeper, store = KEEPERS[STORES[name][0]], STORES[name][1]
    for x in (SPREAD, SPREAD[0, :1], np.float32([0, 0]), np.float32([-3, 7, 2.5])):
        kept = keeper(x)
        error = np.abs(store(x) - kept.v)
        assert (error <= kept.e).all()
    error, bound = np.abs(store(SPREAD) - SPREAD), keeper(SPREAD).e
    assert (error > bound / 3).any()


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("name", ["nearest", "truncated"])
def test_what_float16_cannot_hold_is_infinite_or_the_largest_number(name: str) -> None:
    x = np.float32([65504, 65536, -3e38, 1])
    kept, store = KEEPERS["float16"](x), STORES[name][1]
    assert compare(store(x), kept).ok
    assert not compare(np.float32([65472, 65536, -3e38, 1]), kept).ok
    assert not compare(np.float32([65504, 65536, -3e38, 2]), kept).ok


@pytest.mark.parametrize("name", STORES)
def test_bounds_carry_through_a_layer(name: str) -> None:
    keeper, store = KEEPERS[STORES[name][0]], STORES[name][1]
    x = np.float32(RNG.standard_normal((2, 5, 6, 7)))
    w = np.float32(RNG.standard_normal((4, 5, 3, 3)))
    wanted = keeper(layers.conv2d(keeper(x), keeper(w), pads=(1, 1, 1, 1)))
    exact = layers.conv2d(store(x), store(w), pads=(1, 1, 1, 1)).v
    got = store(exact.astype(np.float32))
    verdict = compare(got, wanted)
    assert verdict.ok and verdict.worst is not None and verdict.worst > 0.05
    twice = store(w + np.float32(0.02))
    assert not compare(layers.conv2d(store(x), twice, pads=(1, 1, 1, 1)).v.astype("f4"), wanted).ok


def stored_softmax(x: Array, store: Callable[[Array], Array]) -> Array:
    return store(np.float32(layers.softmax(store(x), -1).v))


@pytest.mark.parametrize("name", STORES)
def test_bounds_carry_through_rows_and_functions(name: str) -> None:
    keeper, store = KEEPERS[STORES[name][0]], STORES[name][1]
    x = np.float32(RNG.standard_normal((6, 40)) * 2)
    assert compare(stored_softmax(x, store), keeper(layers.softmax(keeper(x), -1))).ok
    for function in ("exp", "tanh", "relu", "floor", "gelu", "sqrt", "abs"):
        y = np.abs(x) if function == "sqrt" else x
        got = store(np.float32(elementwise(function, store(y)).v))
        wanted = keeper(elementwise(function, keeper(y)))
        verdict = compare(got, wanted)
        assert verdict.ok, (function, verdict.message)


def test_float32_is_exact() -> None:
    keeper = KEEPERS["float32"]
    assert not keeper(SPREAD).e.any()
    kept = keeper(Num(np.ones(2), np.zeros(2)))
    assert not kept.e.any()


def test_whole_numbers_up_to_2048_are_exact_in_float16() -> None:
    keeper: Keeper = KEEPERS["float16"]
    assert not keeper(np.float32([0, 1, -2048, 1027])).e.any()
    assert keeper(np.float32([2049])).e.all()
