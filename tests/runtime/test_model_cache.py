"""The cache of compiled models: what it keeps, what makes room, when shortcuts are forgotten."""

from __future__ import annotations

from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest

import gpuedge
from gpuedge.ops import call as ops_call
from gpuedge.runtime.models import ModelCache, Shortcut
from gpuedge.runtime.shapes import BesideLate


def filled(most: int, *signatures: Any) -> tuple[ModelCache, dict[Any, Mock]]:
    cache, models = ModelCache(most), {signature: Mock() for signature in signatures}
    for signature, model in models.items():
        cache.add(signature, cast("Any", model))
    return cache, models


def test_the_least_recently_used_model_makes_room() -> None:
    cache, models = filled(3, (1,), (2,), (3,))
    assert cache.get((1,)) is models[1,] and cache.get((9,)) is None
    assert cache.make_room((4,)) == [models[2,]] and cache.dropped == 1
    models[2,].close.assert_called_once_with()
    assert [signature for signature, _ in cache.items()] == [(3,), (1,)]
    assert cache.make_room((4,)) == []


def test_what_answers_beside_a_late_request_takes_no_room_of_others() -> None:
    beside = BesideLate(((1,),))
    cache, models = filled(1, ((1,),), beside)
    assert cache.make_room(BesideLate(((2,),))) == [models[beside]]
    models[((1,),)].close.assert_not_called()


def test_taken_models_stay_open_and_closed_ones_go() -> None:
    cache, models = filled(9, (1,), (2,))
    assert cache.take(lambda signature, _: signature == (1,)) == [models[1,]]
    models[1,].close.assert_not_called()
    cache.close()
    models[2,].close.assert_called_once_with()
    assert cache.items() == []


@pytest.mark.parametrize("how", ["make_room", "take", "close"])
def test_shortcuts_are_forgotten_with_a_model(how: str) -> None:
    cache, models = filled(1, (1,))
    cache.shorten("key", Shortcut(cast("Any", models[1,]), (), ()))
    arguments = {"make_room": ((2,),), "take": (lambda *_: True,), "close": ()}
    getattr(cache, how)(*arguments[how])
    assert cache.shortcuts == {}


@pytest.mark.parametrize("how", ["make_room", "take"])
def test_shortcuts_stay_where_no_model_goes(how: str) -> None:
    cache, models = filled(2, (1,))
    cache.shorten("key", Shortcut(cast("Any", models[1,]), (), ()))
    arguments = {"make_room": ((2,),), "take": (lambda *_: False,)}
    assert getattr(cache, how)(*arguments[how]) == []
    assert list(cache.shortcuts) == ["key"]


def test_arrays_match_only_in_the_types_of_the_latest_call() -> None:
    cache, x = ModelCache(1), np.zeros((2, 3), np.float32)
    assert cache.match({"x": x}) is None
    cache.note("signature", {"x": ("float32", (2, 3))})
    assert cache.match({"x": x}) == "signature"
    others = (x[:1], x.astype(np.float64), np.asfortranarray(x), x.tolist())
    assert [cache.match({"x": other}) for other in others] == [None] * 4
    assert cache.match({"y": x}) is cache.match({"x": x, "y": x}) is cache.match([x]) is None


def test_one_more_operation_closes_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops_call, "models", ModelCache(2))
    for n in (1, 2, 3):
        np.testing.assert_array_equal(gpuedge.exp(np.zeros(n, np.float32), device="cpu"), 1)
    kept = [model.graph.types[model.graph.inputs[0]].shape for _, model in ops_call.models.items()]
    assert kept == [(2,), (3,)] and ops_call.models.dropped == 1
