"""Checks of running beside an application that draws with moderngl; see `gles_child`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import moderngl
import numpy as np
from gles_life import application
from onnx import TensorProto, helper

import gpuedge
from gpuedge.backends.gles import api
from gpuedge.core.errors import GpuEdgeError, UsageError

RNG = np.random.default_rng(5)
DOUBLE = """#version 430
layout(local_size_x = 1) in;
layout(std430, binding = 3) readonly buffer Y { float y[]; };
layout(std430, binding = 4) writeonly buffer Z { float z[]; };
void main() { z[gl_GlobalInvocationID.x] = 2.0 * y[gl_GlobalInvocationID.x]; }
"""


def model() -> bytes:
    """Return y = relu(x @ w) and z = -x, for any number of rows, with w of the numbers 0 to 14."""
    w = np.arange(15, dtype=np.float32).reshape(5, 3) - 7
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["t"]), helper.make_node("Relu", ["t"], ["y"]),
        helper.make_node("Neg", ["x"], ["z"]),
    ]  # fmt: skip
    kinds = {"x": ["n", 5], "y": ["n", 3], "z": ["n", 5]}
    x, y, z = (helper.make_tensor_value_info(k, TensorProto.FLOAT, s) for k, s in kinds.items())
    weights = [helper.make_tensor("w", TensorProto.FLOAT, w.shape, w.tobytes(), raw=True)]
    graph = helper.make_graph(nodes, "g", [x], [y, z], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    made.ir_version = 8
    return bytes(made.SerializeToString())


def expected(x: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Return what the model computes."""
    w = np.arange(15, dtype=np.float32).reshape(5, 3) - 7
    return {"y": np.maximum(x @ w, 0), "z": -x}


def triangle(context: moderngl.Context) -> Callable[[], bytes]:
    """Set up an application's drawing; the function draws once more and returns the pixels."""
    program = context.program(
        vertex_shader="#version 300 es\nin vec2 at; void main() { gl_Position = vec4(at, 0, 1); }",
        fragment_shader="#version 300 es\nprecision highp float; out vec4 c;"
        "void main() { c = vec4(gl_FragCoord.xy / 8.0, 0.25, 1.0); }",
    )
    corners = context.buffer(np.float32([-1, -1, 1, -1, -1, 1]).tobytes())
    array = context.vertex_array(program, [(corners, "2f", "at")])
    target = context.framebuffer([context.texture((8, 8), 4)])
    target.use()

    def draw() -> bytes:
        context.clear(0.5, 0.0, 0.0, 1.0)
        array.render()
        return bytes(target.read(components=4))

    return draw


def beside_desktop(level: str) -> None:
    """With moderngl's own kind of context: results are buffers that its shaders read."""
    context = moderngl.create_context(standalone=True, backend="egl")
    draw = triangle(context)
    picture = draw()
    assert len(set(picture)) > 5
    double = context.compute_shader(DOUBLE)
    with gpuedge.open(level, context=context) as device:
        assert device.name == f"{level}:0"
        x = RNG.integers(-9, 9, (7, 5)).astype(np.float32)
        np.testing.assert_array_equal(gpuedge.relu(x, device=device), np.maximum(x, 0))
        assert draw() == picture
        with gpuedge.SharedModel(model(), device) as shared:
            names = set()
            for rows in (7, 7, 2):
                x = RNG.integers(-9, 9, (rows, 5)).astype(np.float32)
                found, wanted = shared.run({"x": x}), expected(x)
                assert draw() == picture, "our kernels changed what the application had set"
                for name, values in wanted.items():
                    buffer = found[name]
                    assert isinstance(buffer, moderngl.Buffer) and buffer.size == values.nbytes
                    assert buffer.read() == values.tobytes(), "moderngl reads what we computed"
                    target = context.buffer(reserve=values.nbytes)
                    buffer.bind_to_storage_buffer(3)
                    target.bind_to_storage_buffer(4)
                    double.run(values.size)
                    assert target.read() == (2 * values).tobytes(), "and so do its shaders"
                    target.release()
                    buffer.release()  # which leaves it to us
                names.add((rows, found["y"].glo))
            assert len(names) == 2, "the same buffer for the same shapes"
    assert draw() == picture
    context.release()


class Loader:
    """Gives moderngl the functions of a context that is current; what is not there does nothing."""

    def __init__(self, library: api.Library) -> None:
        self._library = library
        self._nothing = ctypes.CFUNCTYPE(ctypes.c_size_t)(lambda: 0)

    def load_opengl_function(self, name: str) -> int:
        return self._library.lookup(name) or ctypes.cast(self._nothing, ctypes.c_void_p).value or 0

    load = load_opengl_function

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def release(self) -> None:
        return None


def beside_es(level: str) -> None:
    """With a context of OpenGL ES, as boards and phones have: textures at the fragment levels."""
    with application(level, is_desktop=False) as state:
        before = state()
        loader: Any = Loader(next(iter(api._libraries.values())))
        context = moderngl.create_context(standalone=True, require=300, context=loader)
        draw = triangle(context)
        picture = draw()
        with (
            gpuedge.open(level, context=context) as device,
            gpuedge.SharedModel(model(), device) as shared,
        ):
            for rows in (3, 1000):
                x = RNG.integers(-9, 9, (rows, 5)).astype(np.float32)
                found = shared.run({"x": x})
                assert state() == before
                assert draw() == picture
                for name, values in expected(x).items():
                    got = read(context, found[name])[: values.size]
                    np.testing.assert_array_equal(got.reshape(values.shape), values)
        assert state() == before
        assert draw() == picture


def read(context: moderngl.Context, thing: Any) -> np.ndarray[Any, Any]:
    """Return the float32 values of a result as the application reads them."""
    if isinstance(thing, moderngl.Buffer):
        return np.frombuffer(thing.read(), np.float32)
    assert (thing.components, thing.dtype) == (4, "f4")
    frame = context.framebuffer([thing])
    return np.frombuffer(frame.read(components=4, dtype="f4"), np.float32)


def refusals_of_contexts(level: str) -> None:
    """What cannot be shared with is refused in words."""

    def refused(words: str, device: str, **options: Any) -> None:
        try:
            gpuedge.open(device, **options).close()
        except GpuEdgeError as error:
            assert isinstance(error, UsageError) and words in str(error), error
        else:
            raise AssertionError(words)

    refused("not a moderngl context", level, context="nonsense")
    refused("in this process", level, context="nonsense", isolation="process")
    context = moderngl.create_context(standalone=True, backend="egl")
    with gpuedge.open(level) as device:
        try:
            gpuedge.SharedModel(model(), device)
        except UsageError as error:
            assert "context=" in str(error)
        else:
            raise AssertionError("it shares")
    with gpuedge.open(level, context=context) as device:
        shared = gpuedge.SharedModel(model(), device)
        shared.close()
        shared.close()
        try:
            shared.run({"x": np.zeros((1, 5), np.float32)})
        except gpuedge.ClosedError:
            pass
        else:
            raise AssertionError("it runs")
    context.__exit__(None, None, None)  # nothing is current any more
    refused("No EGL context is current", level, context=context)
