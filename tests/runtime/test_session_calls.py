"""Calls that people make of a session by habit: what is taken, and what the error shows else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper
from onnx_models import model, value

import gpuedge
from gpuedge.core.errors import InputError, ShapeError

X = np.float32([1, 2])
FEEDS = {"x": X, "y.1": X + 1}
W = np.ones((2, 3, 3, 3), np.float32)
IMAGE = np.zeros((1, 5, 6, 3), np.float32)


@pytest.fixture
def session() -> Iterator[gpuedge.Session]:
    """A session of two inputs, whose outputs are their sum and their difference."""
    nodes = [helper.make_node(op, ["x", "y.1"], [op]) for op in ("Add", "Sub")]
    inputs = [value(name, (2,)) for name in FEEDS]
    outputs = [value(name, (2,)) for name in ("Add", "Sub")]
    with gpuedge.Session(model(nodes, inputs, outputs), device="cpu") as made:
        yield made


def test_the_calls_of_onnxruntime_are_taken(session: gpuedge.Session) -> None:
    total, difference = session.run(None, FEEDS)
    assert total.tolist() == [3, 5] and difference.tolist() == [-1, -1]
    assert session.run(["Sub"], input_feed=FEEDS)[0].tolist() == [-1, -1]


@pytest.mark.parametrize(("keywords", "words", "hint"), [
    (FEEDS, "as one dict by name", "({'x': x, 'y.1': ...})"),
    ({"x": X}, "as one dict by name", "({'x': x, 'y.1': ...})"),
    ({"timeout": 3}, "no keyword 'timeout'", None),
    ({"output_names": None, "input_feed": FEEDS}, "no keyword 'output_names'", "(None, {...})"),
])  # fmt: skip
def test_keywords_are_refused_with_the_right_call(
    session: gpuedge.Session, keywords: dict[str, Any], words: str, hint: str | None
) -> None:
    asynchronous = {n: v for n, v in keywords.items() if n != "input_feed"}
    for name, call in {
        "run": lambda: session.run(**keywords),
        "run_async": lambda: session.run_async(**asynchronous).result(60),
        "bind": lambda: session.bind(**keywords),
    }.items():
        with pytest.raises(InputError, match=words) as caught:
            call()
        wanted = "run" if "output_names" in keywords else name
        begins = hint is not None and str(caught.value.hint).startswith(f"{wanted}{hint}")
        assert caught.value.hint is None if hint is None else begins


@pytest.mark.parametrize(("call", "hint"), [
    (lambda s: s.run(X, X), "run([x, y])"),
    (lambda s: s.run(FEEDS, ["Sub"]), "run(None, inputs)"),
    (lambda s: s.run(), None),
])  # fmt: skip
def test_arrays_one_after_another_are_refused_with_the_right_call(
    session: gpuedge.Session, call: Callable[[Any], Any], hint: str | None
) -> None:
    with pytest.raises(InputError) as caught:
        call(session)
    assert hint is None or hint in str(caught.value.hint)
    assert "x" in str(caught.value.known) or "outputs" in str(caught.value.known)


@pytest.mark.parametrize(("call", "name"), [
    (lambda s: s.run(None, FEEDS, "options"), "run"),
    (lambda s: s.run_async(None, FEEDS).result(60), "run_async"),
    (lambda s: s.bind(X, None, X), "bind"),
])  # fmt: skip
def test_more_arguments_are_refused_with_the_right_call(
    session: gpuedge.Session, call: Callable[[Any], Any], name: str
) -> None:
    with pytest.raises(InputError, match=f"{name} takes no more arguments") as caught:
        call(session)
    assert caught.value.hint == f"{name}({{'x': x, 'y.1': ...}})"
    with pytest.raises(InputError, match="as a dict by name, not as NoneType"):
        session.bind()


def test_a_session_is_awaited(session: gpuedge.Session) -> None:
    async def serve() -> list[Any]:
        ticks = 0

        async def other() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(other())
        first = await session.run_async(FEEDS)
        more = await asyncio.gather(*(session.run_async({**FEEDS, "x": X + i}) for i in range(5)))
        limited = await asyncio.wait_for(session.run_async(FEEDS), 60)
        with pytest.raises(InputError, match="is missing"):
            await session.run_async({"x": X})
        beside.cancel()
        assert ticks > 0  # the loop went on meanwhile
        return [first, *more, limited]

    first, *more, limited = asyncio.run(serve())
    assert first["Add"].tolist() == limited["Add"].tolist() == [3, 5]
    assert [m["Add"].tolist() for m in more] == [[3 + i, 5 + i] for i in range(5)]


def convolution(shape: tuple[Any, ...]) -> gpuedge.Session:
    """Return a session that convolves images of three channels."""
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    weights = [numpy_helper.from_array(W, "w")]
    output = [value("y", ("n", "c", "h", "w"))]
    return gpuedge.Session(model([node], [value("x", shape)], output, weights), device="cpu")


@pytest.mark.parametrize("shape", [(1, 3, 5, 6), ("N", 3, "H", "W"), ("N", "C", "H", "W")])
@pytest.mark.parametrize(("given", "order"), [
    (IMAGE, "NHWC"), (IMAGE[0], "HWC"), (IMAGE[0].transpose(2, 0, 1), "batch"),
    (IMAGE[..., :2], ""),
])  # fmt: skip
def test_the_other_order_of_axes_is_recognised(
    shape: tuple[Any, ...], given: Any, order: str
) -> None:
    with convolution(shape) as session, pytest.raises(ShapeError) as caught:
        session.run({"x": given})
    hint = caught.value.hint
    if not order:  # four values cannot be three channels in any order
        assert hint is None
    elif order == "HWC" and shape[1] == "C":  # nothing tells one axis from another
        assert "batch" in str(hint)
    else:
        assert order in str(hint)
        with convolution(shape) as session:  # what the hint says is right
            turned = eval(str(hint).rpartition(": ")[2], {"x": given})
            assert session.run({"x": turned})["y"].shape == (1, 2, 3, 4)


def test_images_with_their_channels_first_are_told_where_they_belong() -> None:
    node = helper.make_node("Identity", ["x"], ["y"])
    last = model([node], [value("x", (1, 5, 6, 3))], [value("y", (1, 5, 6, 3))])
    given = IMAGE.transpose(0, 3, 1, 2)
    with gpuedge.Session(last, device="cpu") as session:
        with pytest.raises(ShapeError) as caught:
            session.run([given])
        assert caught.value.hint == "the array is NCHW: x.transpose(0, 2, 3, 1)"
        with pytest.raises(ShapeError) as caught:
            session.run([given[0]])
        assert caught.value.hint == "the array is CHW: x.transpose(1, 2, 0)[None]"


def test_a_convolution_recognises_the_other_order() -> None:
    with pytest.raises(ShapeError) as caught:
        gpuedge.conv2d(IMAGE, W, device="cpu")
    assert caught.value.hint == "the array is NHWC: x.transpose(0, 3, 1, 2)"
