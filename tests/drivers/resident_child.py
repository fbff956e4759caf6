"""Computes with arrays that stay on a device; run by test_device_arrays for each level.

``python resident_child.py DEVICE [STEPS]`` prints a JSON object: what each check found, "right"
where it is. STEPS is how many operations are chained to see whether memory grows.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

import gpuedge
from gpuedge.core.reasons import Reason
from gpuedge.executors.resident import KEPT_BYTES
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import TensorType
from gpuedge.graph.writer import to_bytes
from gpuedge.runtime.devices import POOL

DEVICE = sys.argv[1]
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 2000
rng = np.random.default_rng(29)


def whole(*shape: int, most: int = 5) -> Any:
    """Return small integers as float32: sums and products of theirs are exact."""
    return rng.integers(-most, most + 1, shape).astype(np.float32)


def on(x: Any) -> gpuedge.DeviceArray:
    return gpuedge.array(x, device=DEVICE)


def executor() -> Any:
    return POOL.executor(DEVICE)


def same(found: Any, wanted: Any) -> None:
    found = np.asarray(found)
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype), (found.dtype, found.shape)
    np.testing.assert_array_equal(found, wanted)


def operators() -> None:
    a, b = whole(3, 5), whole(3, 5)
    x, y = on(a), on(b)
    same(((x + y) * x - 2) * -y, ((a + b) * a - 2) * -b)
    same(2 - x, 2 - a)
    same(x / 4 + 1, a / 4 + 1)
    same(abs(x), np.abs(a))
    # exp2(y) errs by (3 + 2 y) ULP and y = 2 log2(5) = 4.7 by 3 ULP (Vulkan specification)
    powers = (abs(x) ** 2).numpy()
    np.testing.assert_allclose(powers, a**2, rtol=(3 + 2 * 4.7 + 3 * 4.7 * 0.7) * 2.0**-23)
    same(x @ on(b.T.copy()), a @ b.T)
    same(b + x, b + a)
    for found, want in ((x < y, a < b), (x >= 1, a >= 1), (x == y, a == b), (x != y, a != b)):
        same(found, want)
    same(gpuedge.where(x > y, x, y), np.maximum(a, b))
    assert bool(gpuedge.sum(x) == float(a.sum())) and float(gpuedge.sum(x)) == a.sum()
    same(x + on(b[0]), a + b[0])


def functions() -> None:
    image, w, bias = whole(2, 3, 9, 7), whole(5, 3, 3, 3, most=3), whole(5)
    x = on(image)
    plain = gpuedge.conv2d(image, w, bias, padding=1, activation="relu", device="cpu")
    kept = gpuedge.conv2d(x, w, on(bias), padding=1, activation="relu")
    same(kept, plain)
    same(gpuedge.max_pool2d(kept, 2), gpuedge.max_pool2d(plain, 2, device="cpu"))
    flat = gpuedge.reshape(gpuedge.transpose(kept, (0, 2, 3, 1)), (-1, 5))
    same(flat, plain.transpose(0, 2, 3, 1).reshape(-1, 5))
    same(gpuedge.flip(flat), np.flip(flat.numpy()))
    values, places = gpuedge.topk(flat, 2)
    order = np.argsort(-flat.numpy(), axis=1, kind="stable")[:, :2]
    same(places, order)
    same(values, np.take_along_axis(flat.numpy(), order, 1))
    same(gpuedge.argmax(flat, 1), flat.numpy().argmax(1))
    formula = gpuedge.elementwise("relu(a * b + c)")
    a, b = whole(4, 4), whole(4, 4)
    same(formula(on(a), b, c=2), np.maximum(a * b + 2, 0))
    places = gpuedge.nonzero(on(a))
    for found, want in zip(places, np.nonzero(a), strict=True):
        same(found, want.astype(np.int64))
    same(gpuedge.concat([on(a), b, on(a) + 1], axis=1), np.concatenate([a, b, a + 1], 1))
    ones = [whole(3) for _ in range(4)]
    normed = gpuedge.batch_norm(x, ones[0], ones[1], ones[2], np.float32([1, 4, 16]), epsilon=0.0)
    shaped = [v[:, None, None] for v in ones]
    wanted = (image - shaped[2]) / np.float32([1, 2, 4])[:, None, None] * shaped[0] + shaped[1]
    np.testing.assert_allclose(normed.numpy(), wanted, rtol=1e-6, atol=1e-5)


def dtypes() -> None:
    a = whole(3, 4)
    for dtype in (np.float16, np.float32):
        x = on(a.astype(dtype))
        same(x, a.astype(dtype))
        same(x * 2 + x, (a * 3).astype(dtype))
    same(on(a.astype(np.float16)) + on(a), a + a)
    bytes_ = np.arange(12, dtype=np.uint8).reshape(3, 4)
    same(gpuedge.maximum(on(bytes_), np.uint8(5)), np.maximum(bytes_, np.uint8(5)))
    same(gpuedge.to_float(on(bytes_), 2.0) + 1, bytes_.astype(np.float32) * 2 + 1)
    same(on(a > 0), a > 0)
    same(on(2.5), np.float32(2.5))
    same(on([[1, 2], [3, 4]]) * 2, np.float32([[2, 4], [6, 8]]))
    same(on(np.zeros((0, 3), np.float32)) + 1, np.zeros((0, 3), np.float32))


def awkward_memory() -> None:
    a = whole(6, 8)
    for view in (a[::-1], a.T, a[:, ::2], np.broadcast_to(a[0], (6, 8)), a.astype(">f4")):
        same(on(view) + 1, np.ascontiguousarray(view, np.float32) + 1)
    mine = a.copy()
    x = on(mine)
    y = x + mine
    mine[:] = 0
    same(y, a + a)
    looked = y.numpy()
    assert not looked.flags.writeable and looked is not None
    copied = np.array(y)
    copied[:] = 0
    same(y, a + a)
    same(np.from_dlpack(y), a + a)
    if sys.version_info >= (3, 12):
        same(np.frombuffer(y, np.float32).reshape(6, 8), a + a)


def fused_and_kept() -> None:
    a, b = whole(64, 64), whole(64, 64)
    x, y = on(a), on(b)
    z = gpuedge.relu(((x + y) * x - y) * y) + x
    text = z.explain()
    assert "6 recorded operations, 1 kernel:" in text or DEVICE == "cpu", text
    same(z.compute() * 1, np.maximum(((a + b) * a - b) * b, 0) + a)
    if DEVICE == "cpu":
        return
    impl = executor().impl
    for _ in range(3):
        ((x + y) * 3).compute()
    before = impl.counters.snapshot()
    for _ in range(20):
        ((x + y) * 3).compute()
    after = {n: v - before[n] for n, v in impl.counters.snapshot().items()}
    wanted = {"allocations": 0, "compilations": 0, "recordings": 0, "submits": 20}
    assert after == wanted, after
    compiled = impl.counters.compilations
    for i in range(20):  # a number that changes becomes an input
        same((x + y) * i, (a + b) * i)
    assert impl.counters.compilations - compiled <= 1, impl.counters.compilations - compiled


def shared_steps() -> None:
    a = whole(8, 8)
    x = on(a)
    h = gpuedge.relu(x * 2)
    left, right = h + 1, h - 1
    same(left, np.maximum(a * 2, 0) + 1)
    assert h.is_computed  # another needs it too
    same(right, np.maximum(a * 2, 0) - 1)
    same(h, np.maximum(a * 2, 0))
    p, q = on(whole(8, 8)), on(whole(8, 8))
    wanted = [p.numpy(), q.numpy()]
    for _ in range(12):  # as many ways as a Fibonacci number, but few nodes
        p, q = q, (p + q) / 2
        wanted = [wanted[1], (wanted[0] + wanted[1]) / 2]
    np.testing.assert_allclose(q.numpy(), wanted[1], rtol=1e-5, atol=1e-5)


def weights_go_up_once() -> None:
    if DEVICE == "cpu":
        return
    image, w = whole(1, 4, 8, 8), whole(8, 4, 3, 3, most=3)
    w.flags.writeable = False
    x = on(image)
    impl = executor().impl
    written = count_writes(impl)
    wanted = gpuedge.conv2d(image, w, device="cpu")
    for _ in range(3):
        same(gpuedge.conv2d(x, w), wanted)
    assert written[0] == 2, written  # the image and the filters
    before = written[0]
    loose = w.copy()
    same(gpuedge.conv2d(x, loose), wanted)
    loose[:] = 1
    same(gpuedge.conv2d(x, loose), gpuedge.conv2d(image, loose, device="cpu"))
    assert written[0] > before + 1, written


def count_writes(impl: Any) -> list[int]:
    written, write = [0], impl.write

    def noted(*args: Any) -> None:
        written[0] += 1
        write(*args)

    impl.write = noted
    return written


def refused() -> None:
    x = on(whole(2, 3))
    other = "cpu" if DEVICE != "cpu" else "auto"
    y = gpuedge.array(np.ones((2, 3), np.float32), device=other)
    for wrong, error, words in (
        (lambda: x + y, gpuedge.MixedDevicesError, (x.device, y.device)),
        (lambda: gpuedge.add(x, x, device=other), gpuedge.MixedDevicesError, (x.device, other)),
        (lambda: x + np.ones((4, 4), np.float32), gpuedge.ShapeError, ("add",)),
        (lambda: x + np.ones(3, np.int64), gpuedge.DTypeError, ("int64",)),
        (lambda: on(np.ones(3, np.float64)), gpuedge.DTypeError, ("float64",)),
        (lambda: on(np.ma.masked_array([1.0])), gpuedge.InputError, ("mask",)),
        (lambda: on([[1], [1, 2]]), gpuedge.InputError, ("array",)),
        (lambda: gpuedge.conv2d(on(whole(1, 1, 4, 4)), on(np.full((1, 1, 2, 2), np.nan, "f4"))),
         gpuedge.InputError, ("NaN",)),
    ):  # fmt: skip
        try:
            wrong()
        except error as raised:
            assert all(word in str(raised) for word in words), raised
        else:
            raise AssertionError(f"no {error.__name__}")
    assert gpuedge.MixedDevicesError.code == "GE-207"
    with gpuedge.open(DEVICE) as own:
        kept = gpuedge.array(np.ones(4, np.float32), device=own)
        there = (kept + 1).compute()
        same(there + 1, np.full(4, 3, np.float32))
        try:
            kept + on(np.ones(4, np.float32))
        except gpuedge.MixedDevicesError:
            pass
        else:
            raise AssertionError("a device of one's own is another one")
    same(kept, np.ones(4, np.float32))  # the host has it
    if DEVICE != "cpu":
        for late in (there, kept * 2):
            try:
                late.numpy()
            except gpuedge.ClosedError:
                pass
            else:
                raise AssertionError("the device was closed")


def lost() -> None:
    """The device is lost with what it had: all is computed from what the host has."""
    a, b = whole(5, 5), whole(5, 5)
    x, y = on(a), on(b)
    there = (x * y).compute()
    inner = there + x
    if DEVICE != "cpu":
        gone = executor()
        POOL.device(gone.device).fail(Reason("device-lost", "for a test"), gone)
        assert not there.is_computed
    same(inner - 1, a * b + a - 1)
    same(there, a * b)
    if DEVICE != "cpu":
        POOL.device(gone.device).wait(60)
    same(inner * y, (a * b + a) * b)


def long_chains() -> None:
    x = on(np.ones(10_000, np.float32))
    grown, made = [], []
    for _ in range(4):  # what is lost in each step is so every time; drivers and threads may grow
        gc.collect()
        before = resident_bytes(), allocations()
        for _ in range(STEPS // 8):
            x = (x + 1) * 0.5
        grown.append(resident_bytes() - before[0])
        made.append(allocations() - before[1])
    same(x, np.ones(10_000, np.float32))
    assert min(grown) < 4 << 20, f"{grown} bytes more"
    assert min(made) == 0, made


def allocations() -> int:
    return 0 if DEVICE == "cpu" else executor().impl.counters.allocations


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def freed_from_threads() -> None:
    a = np.ones(1 << 18, np.float32)
    x = on(a)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for i in range(10):
                y = (x + i).compute()
                same(y, a + i)
                del y
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    made = allocations()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    assert allocations() - made <= 20, allocations() - made
    if DEVICE == "cpu":
        return
    many = [(x + i).compute() for i in range(100)]  # 100 MiB
    memory, freed = executor().tensors, []
    free = executor().impl.free
    executor().impl.free = lambda buffer: (freed.append(buffer), free(buffer))
    thread = threading.Thread(target=many.clear)
    thread.start()
    thread.join()
    until = time.monotonic() + 30
    while not freed and time.monotonic() < until:
        time.sleep(0.01)
    assert freed, "nobody gave the memory back"
    (x + 1).compute()
    assert len(freed) > 20 and memory.unused_bytes <= KEPT_BYTES, (len(freed), memory.unused_bytes)


def forked() -> None:
    a = whole(4, 4)
    x = on(a)
    there = (x * 3).compute()
    child = os.fork()
    if not child:
        code = 1
        try:
            same(x, a)
            same(there + 1, a * 3 + 1)
            del x, there
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    same(there, a * 3)


def model(*shape: int, dtype: str = "float32") -> bytes:
    """Return y = relu(x) + b, and z = y * y."""
    builder = GraphBuilder()
    for name in "xb":
        builder.input(name, TensorType(dtype, shape))
    y = builder.add("Add", [builder.add("Relu", ["x"]), "b"], output="y")
    builder.output(y, builder.add("Mul", [y, y], output="z"))
    return to_bytes(builder.build())


def wanted_of(x: Any, b: Any) -> dict[str, Any]:
    y = np.maximum(x, 0) + b
    return {"y": y, "z": y * y}


def bound_sessions() -> None:
    a, b = whole(6, 10), whole(6, 10)
    with (
        gpuedge.Session(model(6, 10), device=DEVICE) as first,
        gpuedge.Session(model(6, 10), device=DEVICE) as second,
    ):
        x, y = first.input("x"), np.empty((6, 10), np.float32)
        there = on(b)
        one = first.bind({"x": x, "b": there}, {"y": y})
        for _ in range(3):
            x[:] = whole(6, 10)
            found = one.run()
            assert found["y"] is y
            same(y, wanted_of(x, b)["y"])
            same(found["z"], wanted_of(x, b)["z"])
        if DEVICE in ("vulkan", "gles31"):  # which share their memory with the host
            written = count_writes(executor().impl)
            x[:] = a
            same(one.run()["y"], wanted_of(a, b)["y"])
            del executor().impl.write
            assert written[0] == 0, written
        same(first.run({"x": x, "b": b})["y"], wanted_of(x, b)["y"])
        turned = np.empty((10, 6), np.float32).T  # not contiguous: copied
        first.bind({"x": a.T.copy().T, "b": b}, {"y": turned}).run()
        same(turned, wanted_of(a, b)["y"])
        alone = first.bind({"x": on(a), "b": there})
        other = second.bind({"x": alone.run()["y"], "b": there})
        if DEVICE != "cpu":
            impl = executor().impl
            for _ in range(8):  # the first result of a session is compared with the CPU's
                last = other.run({"x": alone.run()["y"]})["y"]
            written, before = count_writes(impl), impl.counters.snapshot()
            for _ in range(10):
                last = other.run({"x": alone.run()["y"]})["y"]
            counted = {n: v - before[n] for n, v in impl.counters.snapshot().items()}
            del impl.write
            assert written[0] == 0, written
            wanted = {"allocations": 0, "compilations": 0, "recordings": 0, "submits": 20}
            assert counted == wanted, counted
        last = other.run({"x": alone.run()["y"]})["y"]
        same(last - 1, wanted_of(wanted_of(a, b)["y"], b)["y"] - 1)
        same(other.run({"x": on(a) * 2})["y"], wanted_of(a * 2, b)["y"])
        same(first.run({"x": a, "b": b})["y"], wanted_of(a, b)["y"])
        same(first.run([on(a), there])["z"], wanted_of(a, b)["z"])
    half = a.astype(np.float16)
    with gpuedge.Session(model(6, 10, dtype="float16"), device=DEVICE) as session:
        found = session.bind({"x": on(half), "b": half}).run()
        same(found["y"], wanted_of(half, half)["y"])
        same(found["y"] + 1, wanted_of(half, half)["y"] + np.float16(1))
        policy = gpuedge.Policy(crosscheck=1.0)
    with gpuedge.Session(model(6, 10), device=DEVICE, policy=policy) as checked:
        same(checked.bind({"x": on(a), "b": b}).run()["z"], wanted_of(a, b)["z"])
        assert DEVICE == "cpu" or checked.health.crosschecks == 1


def shared_memory_is_used_again() -> None:
    """For operands, which are written there, and for results, which are read there."""
    a, b = whole(6, 10), whole(6, 10)
    there = on(a)
    same((there + 1).compute(), a + 1)
    with gpuedge.Session(model(6, 10), device=DEVICE) as session:
        for turn in range(3):
            x = session.input("x")
            x[:] = a + turn
            same(session.bind({"x": x, "b": b}).run()["y"], wanted_of(a + turn, b)["y"])
            del x
            gc.collect()
            same((there + turn).compute(), a + turn)
            operands = [on(a + i) for i in range(3)]
            sums = [(operand + 1).compute() for operand in operands]
            for i, (operand, found) in enumerate(zip(operands, sums, strict=True)):
                same(found, a + i + 1)
                same(operand * 2, (a + i) * 2)


def bytes_that_stay() -> None:
    """Results are taken as they lie, whatever they are kept as; what the host has goes up once."""
    for dtype in ("uint8", "int8"):
        about = np.iinfo(dtype)
        a = rng.integers(about.min, about.max + 1, (5, 7)).astype(dtype)
        least, wanted = dtype_of(9, dtype), np.maximum(a, dtype_of(9, dtype))
        x = on(a)
        y = gpuedge.maximum(x, least).compute()
        same(gpuedge.maximum(y, dtype_of(20, dtype)), np.maximum(wanted, dtype_of(20, dtype)))
        same(gpuedge.to_float(y, 2.0), wanted * np.float32(2))
        same(gpuedge.transpose(y), wanted.T)
        builder = GraphBuilder()
        known = builder.constant("c", np.full((), 9, dtype))
        given = builder.input("x", TensorType(dtype, (5, 7)))
        builder.output(builder.add("Max", [given, known], output="y"))
        with gpuedge.Session(to_bytes(builder.build()), device=DEVICE) as session:
            bound, again = session.bind({"x": x}), session.bind({"x": y})
            same(bound.run()["y"], wanted)
            if DEVICE == "cpu":
                continue
            for _ in range(8):  # the first result of a session is compared with the CPU's
                last = again.run({"x": bound.run()["y"]})["y"]
            impl = executor().impl
            written, before = count_writes(impl), impl.counters.snapshot()
            for _ in range(10):
                last = again.run({"x": bound.run()["y"]})["y"]
            counted = {n: v - before[n] for n, v in impl.counters.snapshot().items()}
            del impl.write
            assert written[0] == 0, written
            wanted_counts = {"allocations": 0, "compilations": 0, "recordings": 0, "submits": 20}
            assert counted == wanted_counts, counted
            same(last, wanted)


def dtype_of(value: int, dtype: str) -> Any:
    """Return a number of a dtype."""
    return np.array(value, dtype)[()]


def shared_memory_outlives_its_device() -> None:
    a, b = whole(6, 10), whole(6, 10)
    with gpuedge.open(DEVICE) as own, gpuedge.Session(model(6, 10), device=own) as session:
        x = session.input("x")
        bound = session.bind({"x": x, "b": b})
        x[:] = a
        same(bound.run()["y"], wanted_of(a, b)["y"])
        part = x[2:4]
    del bound, session, own
    x[:] = 7  # would be a segmentation fault
    del x
    gc.collect()
    part += 1
    same(part, np.full((2, 10), 8, np.float32))
    with gpuedge.Session(model(6, 10), device=DEVICE) as session:  # of a device that is lost
        x = session.input("x")
        bound = session.bind({"x": x, "b": b})
        x[:] = a
        same(bound.run()["y"], wanted_of(a, b)["y"])
        if DEVICE != "cpu":
            gone = executor()
            POOL.device(gone.device).fail(Reason("device-lost", "for a test"), gone)
        x[:] = a + 1
        same(bound.run()["y"], wanted_of(a + 1, b)["y"])
        if DEVICE != "cpu":
            assert POOL.device(gone.device).wait(60)
        x[:] = a + 2
        for _ in range(3):
            same(bound.run()["y"], wanted_of(a + 2, b)["y"])
            x[:] = a + 2


def bound_badly() -> None:
    a, b = whole(6, 10), whole(6, 10)
    read_only = np.empty((6, 10), np.float32)
    read_only.flags.writeable = False
    good = {"x": a, "b": b}
    two = np.empty((7, 10), np.float32)
    elsewhere = gpuedge.array(a, device="auto")
    with gpuedge.Session(model(6, 10), device=DEVICE) as session:
        for inputs, outputs, error, words in (
            ({"x": a}, None, gpuedge.InputError, "'b' is missing"),
            ({**good, "c": a}, None, gpuedge.InputError, "no input 'c'"),
            ([a, b], None, gpuedge.InputError, "dict by name"),
            ({**good, "x": a.tolist()}, None, gpuedge.InputError, "bound to list"),
            ({**good, "x": a[:3]}, None, gpuedge.ShapeError, "'x'"),
            ({**good, "x": on(a[:3])}, None, gpuedge.ShapeError, "'x'"),
            ({**good, "x": a.astype(np.float64)}, None, gpuedge.DTypeError, "float64"),
            ({**good, "x": on(a > 0)}, None, gpuedge.DTypeError, "bool"),
            ({**good, "x": elsewhere}, None, gpuedge.MixedDevicesError, "auto"),
            (good, {"w": a}, gpuedge.InputError, "no output"),
            (good, {"y": read_only}, gpuedge.InputError, "cannot be written"),
            (good, {"y": a.astype(np.float16)}, gpuedge.DTypeError, "float16"),
            (good, {"y": np.empty((6, 9), np.float32)}, gpuedge.ShapeError, "[6, 9]"),
            (good, {"y": two[:6], "z": two[1:]}, gpuedge.InputError, "share memory"),
            (good, {"y": a}, gpuedge.InputError, "share memory"),
            (good, {"y": np.broadcast_to(two[:1], (6, 10))}, gpuedge.InputError, "cannot be"),
            (good, {"y": as_strided(two, (6, 10), (0, 4))}, gpuedge.InputError, "share bytes"),
        ):
            try:
                session.bind(inputs, outputs)
            except error as raised:
                assert words in str(raised), raised
            else:
                raise AssertionError(f"no {error.__name__}: {words}")
        bound = session.bind(good)
        try:
            bound.run({"x": a[:2]})
        except gpuedge.ShapeError:
            same(bound.run()["y"], wanted_of(a, b)["y"])
        else:
            raise AssertionError("another shape")
        changed, into = a.copy(), np.empty((6, 10), np.float32)
        bound_again = session.bind({"x": changed, "b": b}, {"y": into})
        for change, undo, error in (
            (lambda: setattr(changed, "shape", (10, 6)), lambda: setattr(changed, "shape", (6, 10)),
             gpuedge.ShapeError),
            (lambda: into.setflags(write=False), lambda: into.setflags(write=True),
             gpuedge.InputError),
        ):  # fmt: skip
            change()
            try:
                bound_again.run()
            except error:
                undo()
                same(bound_again.run()["y"], wanted_of(a, b)["y"])
            else:
                raise AssertionError(f"no {error.__name__}")
        for wrong in (lambda: session.input("w"), lambda: session.input("x", (1, 2))):
            try:
                wrong()
            except gpuedge.UsageError:
                continue
            raise AssertionError("no such input")
    try:
        bound.run()
    except gpuedge.ClosedError:
        return
    raise AssertionError("the session was closed")


def in_a_worker() -> None:
    """The same where the driver is in a process of its own, and when that is killed."""
    if DEVICE == "cpu":
        return
    a = whole(5, 6)
    with gpuedge.config(isolation="process"):
        x = on(a)
        there = (x * 3).compute()
        same(there - x, a * 2)
        try:
            x + gpuedge.array(a, device=f"{DEVICE}:0")
            with gpuedge.config(isolation="inline"):
                x + on(a)
        except gpuedge.MixedDevicesError as error:
            assert "in process" in str(error), error
            assert "gpuedge.config(isolation='process')" in str(error.hint), error
        else:
            raise AssertionError("another process")
        os.kill(POOL.gpu(x.device, "process").impl.pid, signal.SIGKILL)
        time.sleep(0.2)
        same(there + 1, a * 3 + 1)
        same(there, a * 3)


CHECKS: tuple[Callable[[], None], ...] = (
    operators, functions, dtypes, awkward_memory, fused_and_kept, shared_steps, long_chains,
    bound_sessions, bound_badly, weights_go_up_once, freed_from_threads, refused, forked,
    in_a_worker, lost, shared_memory_is_used_again, bytes_that_stay,
    shared_memory_outlives_its_device,
)  # fmt: skip


def main() -> None:
    found = {}
    for check in CHECKS:
        try:
            check()
            found[check.__name__] = "right"
        except Exception as error:
            traceback.print_exc()
            found[check.__name__] = f"{type(error).__name__}: {error}"[:300]
    left = on(np.ones(8, np.float32)) + 1  # still there as the interpreter ends
    left.compute()
    print(json.dumps({"device": DEVICE, "found": found}))


if __name__ == "__main__":
    main()
