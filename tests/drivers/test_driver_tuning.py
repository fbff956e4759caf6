"""The tuner on a real driver: what it picks, and what it leaves alone.

The times are those of a script, where a test is about the choice; the kernels are built and run by
lavapipe, and what they compute is compared with the CPU.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import daily
import numpy as np
import pytest
from onnx import helper
from onnx_models import model, value, weight

import gpuedge
from gpuedge.backends import load
from gpuedge.backends.base import Candidate
from gpuedge.cli.main import main
from gpuedge.core.errors import DeviceLostError, DriverError
from gpuedge.device import Device
from gpuedge.executors.cpu import CpuExecutor
from gpuedge.executors.gpu import GpuExecutor
from gpuedge.executors.programs import RefusedPassError
from gpuedge.graph.ir import Graph
from gpuedge.graph.reader import OnnxModel
from gpuedge.plan.plan import Pass
from gpuedge.plan.tuned import BEGUN, TunedKernel
from gpuedge.runtime import clock, tuner, tunings
from gpuedge.runtime.tuner import FAST_MOST, FAST_S, ROUNDS, Tuner

pytestmark = daily.day(1, of=4)

DRAW = np.random.default_rng(0)
X = DRAW.integers(-3, 4, (1, 8, 12, 12)).astype(np.float32)
W = DRAW.integers(-2, 3, (16, 8, 5, 5)).astype(np.float32)
V = DRAW.integers(-2, 3, (12, 16, 1, 1)).astype(np.float32)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")  # no cell of a table is broken
    return tmp_path / "cache"


@pytest.fixture
def gpu(lavapipe: Candidate, cache: Path) -> Iterator[GpuExecutor]:
    """Lavapipe, chosen for as a device that nobody measured."""
    executor = GpuExecutor(load("vulkan").open(load("vulkan").enumerate(lavapipe)[0]), "vulkan:0")
    executor.caps = replace(executor.caps, device_class="generic")
    yield executor
    executor.close()


def proto() -> Any:
    """Return two convolutions, of which the first takes 16 times as many operations."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], "first", pads=[2] * 4),
        helper.make_node("Relu", ["h"], ["r"], "between"),
        helper.make_node("Conv", ["r", "v"], ["y"], "second"),
    ]
    return model(nodes, [value("x", X.shape)], [value("y", None)], [weight("w", W), weight("v", V)])


def right() -> np.ndarray:
    """Return what it computes from X, which are whole numbers below 2^24."""
    padded = np.pad(X.astype(np.float64), ((0, 0), (0, 0), (2, 2), (2, 2)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (5, 5), (2, 3))
    first = np.maximum(np.einsum("nchwij,ocij->nohw", windows, W), 0)
    found: np.ndarray = np.einsum("nchw,oc->nohw", first, V[:, :, 0, 0])
    assert np.abs(found).max() < 2**24
    return found


def graph() -> Graph:
    return OnnxModel.load(proto().SerializeToString()).specialise({})


class Script:
    """Times of variants in microseconds, and which were asked for, in order."""

    def __init__(self, **times: float) -> None:
        self.times = defaultdict(lambda: 100.0, times)
        self.asked: list[str] = []
        self.spend: Callable[[], None] = lambda: None

    def __call__(self, variant: str, spent: Callable[[], int]) -> int:
        assert spent() > 0
        self.asked.append(variant)
        self.spend()
        return round(self.times[variant] * 1e3)


def tuned(gpu: GpuExecutor, script: Script, effort: str = "full", **how: Any) -> Tuner:
    made = Tuner(gpu, CpuExecutor(), effort, lambda *_: None, timer=script, **how)  # type: ignore[arg-type]
    made.tune(graph())
    return made


def convolutions(found: Tuner) -> dict[str, TunedKernel]:
    """Return what was found of the two convolutions, by their outputs in texels."""
    known = {key.split()[1]: found.known[key] for key in found.keys if key.startswith("conv2d")}
    assert known.keys() == {"12x12x4x1", "12x12x3x1"}
    return known


def usual(gpu: GpuExecutor) -> dict[str, tuple[str, ...]]:
    """Return what there is to choose from for each convolution; the usual one comes first."""
    choices = gpu.planned(graph()).choices
    return {k.split()[1]: c.variants for k, c in choices.items() if k.startswith("conv2d")}


def forgotten(gpu: GpuExecutor) -> None:
    """Have each kernel built anew."""
    (tunings.cache_dir() / tunings.FILE).unlink()


# -- which one is picked ---------------------------------------------------------------------------


def test_the_fastest_is_picked_and_numbers_stay_to_the_bit(gpu: GpuExecutor) -> None:
    before = usual(gpu)
    found = convolutions(tuned(gpu, Script(conv2d_tile4x8=50, conv2d_tile1x8=60)))
    for size, variants in before.items():
        kernel = found[size]
        assert kernel.usual == variants[0] != kernel.variant
        assert kernel.variant == "conv2d_tile4x8" and kernel.gain == 2.0
        assert (kernel.usual_ns, kernel.effort) == (100_000, "full")
    results = []
    for known in ({}, tunings.kept(gpu.impl.info.identity)):
        made = gpu.compile(graph(), tuned=known)
        (result,) = made.run({"x": X}).values()
        results.append((result, {launch.variant for launch in made.plan.passes}))
        np.testing.assert_array_equal(result, right())
    assert results[0][0].tobytes() == results[1][0].tobytes()
    assert {k.variant for k in found.values()} <= results[1][1]
    assert not {k.variant for k in found.values()} & results[0][1]


def test_each_variant_computes_the_same_whole_numbers(gpu: GpuExecutor) -> None:
    choices = gpu.planned(graph()).choices
    for key, choice in choices.items():
        for variant in choice.variants:
            made = gpu.compile(graph(), tuned={key: TunedKernel(variant, choice.variants[0])})
            assert made.plan.choices[key].variants[0] == variant
            (result,) = made.run({"x": X}).values()
            np.testing.assert_array_equal(result, right())
            made.close()


def test_a_tie_stays_with_what_the_class_has(gpu: GpuExecutor) -> None:
    found = tuned(gpu, Script(conv2d_tile4x8=97, conv2d_tile1x8=96))
    assert not any(found.known[key].is_other for key in found.keys)


def test_real_times_of_a_product_find_what_is_faster(gpu: GpuExecutor) -> None:
    """A rasteriser wants blocks; a device that nobody measured is given rows (1.5 times)."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    held = DRAW.integers(-2, 3, (256, 256)).astype(np.float32)
    made = model([node], [value("x", (256, 256))], [value("y", None)], [weight("w", held)])
    found = Tuner(gpu, CpuExecutor(), "full", lambda *_: None)
    found.tune(OnnxModel.load(made.SerializeToString()).specialise({}))
    kernel = next(found.known[key] for key in found.keys if key.startswith("matmul "))
    assert kernel.usual == "matmul_rows" and kernel.variant.startswith("matmul_block")
    assert kernel.gain > 1.5


def noisy(spread: float) -> list[float]:
    return [*np.exp(np.random.default_rng(1).normal(0, spread, 21))]


@pytest.mark.parametrize(("spread", "gain", "is_faster"), [
    (0.0, 1.04, False), (0.0, 1.06, True), (0.02, 1.1, True), (0.3, 1.1, False), (0.3, 2.0, True),
])  # fmt: skip
def test_the_margin_grows_with_the_noise(spread: float, gain: float, is_faster: bool) -> None:
    """The error of the median ratio is 1.25 x 0.3 / sqrt(21) = 8 %; three of these are 25 %."""
    slow = [round(1e6 * x * gain) for x in noisy(spread)]
    assert (tuner.margin(slow, [10**6] * 21) > 0) is is_faster
    assert tuner.margin([10**6] * 21, slow) <= 0


def test_what_slows_both_down_cancels() -> None:
    load = [10 ** (n % 3) for n in range(21)]
    assert tuner.margin([120_000 * x for x in load], [100_000 * x for x in load]) > 0


def test_ways_that_come_to_the_same_are_timed_once_and_new_choices_follow(
    gpu: GpuExecutor,
) -> None:
    """Whether tiles are transformed is one choice: all direct kernels are the same answer to it.

    Which of them is used is another one, that there is only where tiles are not transformed.
    """
    held = DRAW.integers(-2, 3, (16, 16, 3, 3)).astype(np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)
    made = model([node], [value("x", (1, 16, 16, 16))], [value("y", None)], [weight("w", held)])
    small = OnnxModel.load(made.SerializeToString()).specialise({})
    gpu.caps = replace(gpu.caps, device_class="cpu-llvm")  # of which tiles are the usual way
    for best, is_direct in (("conv2d_winograd", False), ("conv2d_tile1x8", True)):
        tiles = dict.fromkeys(("conv2d_winograd", "conv2d_winograd_map"), 1000.0)
        script = Script(**{**tiles, best: 10})
        Tuner(gpu, CpuExecutor(), "full", lambda *_: None, timer=script).tune(small)
        first = set(in_order(script)[0][: 2 * 4])
        direct = {variant for variant in first if "winograd" not in variant}
        assert len(direct) == 1 and len(first) > 1
        passes = gpu.planned(small, tuned=tunings.kept(gpu.impl.info.identity)).passes
        used = {launch.variant for launch in passes}
        assert best in used and any("winograd" in variant for variant in used) is not is_direct
        forgotten(gpu)


# -- how much is done ------------------------------------------------------------------------------


def in_order(script: Script) -> list[list[str]]:
    """Return what was asked for, kernel by kernel: of one all variants take turns."""
    kernels: list[list[str]] = []
    for op, variants in groupby(script.asked, lambda v: v.partition("_")[0]):
        kernels.append([op, *variants][1:])
    return kernels


def test_the_most_expensive_kernel_comes_first_and_repacking_last(gpu: GpuExecutor) -> None:
    script = Script()
    tuned(gpu, script)
    first, pack, second, *_ = in_order(script)
    assert set(first) == set(usual(gpu)["12x12x4x1"]) and "conv2d_unit4x8" not in first
    assert set(pack) == {"pack_map", "pack_quad"}
    assert set(second) == set(usual(gpu)["12x12x3x1"]) and "conv2d_unit4x8" in second


def test_fast_times_six_candidates_and_full_all_in_turns(gpu: GpuExecutor) -> None:
    variants = usual(gpu)["12x12x3x1"]
    assert len(variants) > FAST_MOST
    for effort, most in (("fast", FAST_MOST), ("full", len(variants))):
        script = Script()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(clock, "now_ns", lambda: 0)
            tuned(gpu, script, effort)
        asked, rounds = in_order(script)[2], ROUNDS[effort] + 1  # type: ignore[index]
        assert asked[:most] == asked[most : 2 * most][::-1] == asked[2 * most : 3 * most]
        assert set(asked) == set(variants[:most])
        assert {asked.count(v) for v in asked} == {rounds}
        forgotten(gpu)


def test_what_is_hopeless_is_not_timed_again(gpu: GpuExecutor) -> None:
    script = Script(conv2d_map=1000)
    tuned(gpu, script)
    assert script.asked.count("conv2d_map") == 2 * 3  # of two convolutions: once cold, two rounds


def test_fast_ends_in_time_and_does_not_begin_again(
    gpu: GpuExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(clock, "now_ns", lambda: round(now[0] * 1e9))
    script = Script()
    script.spend = lambda: now.__setitem__(0, now[0] + 1.5 * FAST_S / FAST_MOST / ROUNDS["fast"])
    found = convolutions(tuned(gpu, script, "fast"))
    assert now[0] <= FAST_S + 1.5 * FAST_S / ROUNDS["fast"]  # a round that is under way ends
    assert (found["12x12x4x1"].effort, found["12x12x3x1"].effort) == ("fast", "none")
    again = Script()
    tuned(gpu, again, "fast")
    assert again.asked == []
    tuned(gpu, again, "full")
    assert again.asked


def test_where_compiling_is_slow_fewer_are_compiled_and_these_are_timed(
    gpu: GpuExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, right = [0], gpu.program

    def program(launch: Pass, *given: Any) -> Any:
        now[0] += round(FAST_S * 1e8)  # a tenth of the time; a candidate has three passes
        return right(launch, *given)

    gpu.program = program  # type: ignore[method-assign]
    monkeypatch.setattr(clock, "now_ns", lambda: now[0])
    script = Script(conv2d_map=50)
    found = convolutions(tuned(gpu, script, "fast"))["12x12x4x1"]
    assert {*script.asked} == {*usual(gpu)["12x12x4x1"][:2]}
    assert (found.variant, found.effort) == ("conv2d_map", "fast")


def test_full_goes_on_where_it_was_interrupted(gpu: GpuExecutor) -> None:
    script, every = Script(), Script()
    tuned(gpu, every)
    forgotten(gpu)

    def stop() -> None:
        if len(script.asked) == len(every.asked) // 2:
            raise KeyboardInterrupt

    script.spend = stop
    with pytest.raises(KeyboardInterrupt):
        tuned(gpu, script)
    kept = tunings.kept(gpu.impl.info.identity)
    assert {kernel.effort for kernel in kept.values()} == {"full", "none"}
    rest = Script()
    found = tuned(gpu, rest)
    assert {found.known[key].effort for key in found.keys} == {"full"}
    assert 0 < len(rest.asked) < len(every.asked)
    tuned(gpu, rest := Script())
    assert rest.asked == []
    tuned(gpu, rest, is_anew=True)
    assert len(rest.asked) == len(every.asked)


def test_an_interruption_keeps_what_was_left_out(gpu: GpuExecutor) -> None:
    broken(gpu, FAST_LIAR, slide)
    before = convolutions(tuned(gpu, Script()))["12x12x4x1"].left_out
    assert before.keys() == {FAST_LIAR}
    script = Script()

    def stop() -> None:
        raise KeyboardInterrupt

    script.spend = stop
    (key,) = (k for k in tunings.kept(gpu.impl.info.identity) if k.startswith("conv2d 12x12x4x1"))
    for made in (  # one while it is timed, one between two candidates
        Tuner(gpu, CpuExecutor(), "full", lambda *_: None, timer=script, is_anew=True),
        Tuner(gpu, CpuExecutor(), "full", Stop(9), is_anew=True),
    ):
        with pytest.raises(KeyboardInterrupt):
            made.tune(graph())
        kernel = tunings.kept(gpu.impl.info.identity)[key]
        assert (kernel.effort, kernel.left_out.keys()) == ("full", {FAST_LIAR})
        assert made.known[key] == kernel


class Stop:
    """Stops at a step."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, *_: object) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt


# -- what is never picked --------------------------------------------------------------------------

FAST_LIAR = "conv2d_tile4x8"


def broken(gpu: GpuExecutor, variant: str, how: Callable[[Pass], Pass]) -> None:
    """Let a variant be built otherwise than it should."""
    right = gpu.program

    def program(launch: Pass, *given: Any) -> Any:
        return right(how(launch) if launch.variant == variant else launch, *given)

    gpu.program = program  # type: ignore[method-assign]


def refuse(launch: Pass) -> Pass:
    raise RefusedPassError(launch, DriverError("The compiler\x1b ran out of registers."))


def slide(launch: Pass) -> Pass:
    return replace(launch, specs={**launch.specs, "DX": 2})


@pytest.mark.parametrize(("how", "why"), [
    (refuse, r"the driver refused it: The compiler\x1b ran out"), (slide, "differ from the CPU"),
])  # fmt: skip
def test_a_broken_variant_is_noted_and_never_picked(
    how: Callable[[Pass], Pass], why: str, gpu: GpuExecutor
) -> None:
    broken(gpu, FAST_LIAR, how)
    found = tuned(gpu, Script(**{FAST_LIAR: 1}))
    kernel = convolutions(found)["12x12x4x1"]
    assert kernel.variant != FAST_LIAR and kernel.left_out.keys() == {FAST_LIAR}
    assert why in kernel.left_out[FAST_LIAR]
    assert tunings.kept(gpu.impl.info.identity) == found.known


def test_the_usual_variant_is_left_where_it_is_wrong(gpu: GpuExecutor) -> None:
    liar = usual(gpu)["12x12x4x1"][0]
    broken(gpu, liar, slide)
    found = convolutions(tuned(gpu, Script()))["12x12x4x1"]
    assert (found.usual, found.usual_ns, found.gain) == (liar, 0, 1.0)
    assert found.variant == usual(gpu)["12x12x4x1"][1] and liar in found.left_out
    made = gpu.compile(graph(), tuned=tunings.kept(gpu.impl.info.identity))
    np.testing.assert_array_equal(made.run({"x": X})["y"], right())


def test_where_all_are_wrong_the_usual_ones_stay_and_a_right_driver_is_tuned_anew(
    gpu: GpuExecutor,
) -> None:
    right_program, every = gpu.program, usual(gpu)["12x12x4x1"]

    def program(launch: Pass, *given: Any) -> Any:
        return right_program(slide(launch) if launch.variant in every else launch, *given)

    gpu.program = program  # type: ignore[method-assign]
    found = convolutions(tuned(gpu, Script()))["12x12x4x1"]
    assert found.is_wrong and found.left_out.keys() == {*every}
    table = tunings.kept(gpu.impl.info.identity)
    assert gpu.planned(graph(), tuned=table).passes == gpu.planned(graph()).passes
    gpu.program = right_program  # type: ignore[method-assign]
    again = convolutions(tuned(gpu, Script(conv2d_tile4x8=50), is_anew=True))["12x12x4x1"]
    assert not again.left_out and again.variant == "conv2d_tile4x8"
    assert again == convolutions(tuned(gpu, Script()))["12x12x4x1"]


def test_a_variant_that_ended_the_process_is_tried_for_no_kernel_again(
    gpu: GpuExecutor, cache: Path
) -> None:
    """What is on disk while the driver has it is what a process leaves that dies there."""
    right_program, left = gpu.program, list[bytes]()

    def program(launch: Pass, *given: Any) -> Any:
        if launch.variant == FAST_LIAR and not left:
            left.append((cache / tunings.FILE).read_bytes())
        return right_program(launch, *given)

    gpu.program = program  # type: ignore[method-assign]
    ended = tuned(gpu, Script())
    assert not any(kernel.left_out for kernel in ended.known.values())
    (cache / tunings.FILE).write_bytes(left[0])
    for effort in ("fast", "full"):
        script = Script()
        found = tuned(gpu, script, effort)
        assert FAST_LIAR not in script.asked
        assert convolutions(found)["12x12x4x1"].left_out == {FAST_LIAR: BEGUN}
        assert FAST_LIAR not in {p.variant for p in gpu.planned(graph(), tuned=found.known).passes}
    (second,) = (key for key in found.known if key.startswith("conv2d 12x12x3x1"))
    mark = TunedKernel("conv2d_map", "conv2d_map", left_out={FAST_LIAR: BEGUN})
    tunings.keep(gpu.impl.info.identity, {second: mark})
    tuned(gpu, script := Script(), is_anew=True)
    assert FAST_LIAR in in_order(script)[0] and FAST_LIAR in in_order(script)[2]
    assert not any(k.left_out for k in tunings.kept(gpu.impl.info.identity).values())


def test_a_variant_that_loses_the_device_is_not_tried_again(
    gpu: GpuExecutor, lavapipe: Candidate
) -> None:
    def lose(launch: Pass) -> Pass:
        raise DeviceLostError("The device was lost.")

    broken(gpu, FAST_LIAR, lose)
    with pytest.raises(DeviceLostError):
        tuned(gpu, Script())
    kept = tunings.kept(gpu.impl.info.identity)
    (kernel,) = (k for k in kept.values() if k.left_out)
    assert dict(kernel.left_out) == {FAST_LIAR: "The device was lost."}
    assert (kernel.effort, kernel.variant) == ("none", kernel.usual)


# -- in sessions, and on the command line ----------------------------------------------------------


def session(gpu: GpuExecutor, tune: str, **options: Any) -> gpuedge.Session:
    policy = gpuedge.Policy(tune=tune)
    made: Any = options.pop("model", None) or proto()
    return gpuedge.Session(made, device=Device(gpu, "test"), policy=policy, **options)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Have sessions take these times."""
    script = Script(conv2d_tile4x8=50, conv2d_tile1x8=60)
    monkeypatch.setattr(tuner, "Tuner", partial(Tuner, timer=script))
    monkeypatch.setattr(tuner, "FAST_S", 100.0)
    return script


def test_a_session_tunes_and_says_so_and_another_one_uses_it(
    gpu: GpuExecutor, scripted: Script
) -> None:
    told: list[tuple[str, int, int]] = []
    with session(gpu, "fast", progress=lambda *step: told.append(step)) as one:
        assert scripted.asked and {("tune", 0, 2), ("tune", 1, 2), ("tune", 2, 2)} <= {*told}
        np.testing.assert_array_equal(one.run({"x": X})["y"], right())
        kernels = {row.kernel for row in one.placement}
        words = str(one.explain()).replace("\n", " ")
    assert any("conv2d_tile4x8" in kernel for kernel in kernels)
    for part in ("tuned:", "conv2d 12x12x4x1", "2.00 times as fast", "by conv2d_tile4x8"):
        assert part in " ".join(words.split()), words
    count = len(scripted.asked)
    with session(gpu, "fast") as two:
        assert {row.kernel for row in two.placement} == kernels
    with session(gpu, "off") as three:
        assert {row.kernel for row in three.placement} != kernels
        assert "tuned" not in str(three.explain())
    assert len(scripted.asked) == count


def test_no_request_waits_for_a_tuner(gpu: GpuExecutor, scripted: Script) -> None:
    made = proto()
    for name, n in (("H", 2), ("W", 3)):
        made.graph.input[0].type.tensor_type.shape.dim[n].dim_param = name
    with session(gpu, "fast", model=made) as open_shapes:
        np.testing.assert_array_equal(open_shapes.run({"x": X})["y"], right())
        assert scripted.asked == []
        open_shapes.warm_up({"x": (1, 8, 10, 10)})  # whose turn a request or closing waits for
    gpuedge.conv2d(X, W, device=Device(gpu, "test", gpuedge.Policy(tune="fast")))
    assert scripted.asked == []


def test_what_is_told_is_what_the_plan_uses(gpu: GpuExecutor, scripted: Script) -> None:
    with session(gpu, "fast"):
        pass
    known = tunings.kept(gpu.impl.info.identity)
    keys = [key for key, kernel in known.items() if kernel.is_other]
    out = {"conv2d_tile4x8": "it was wrong"}
    tunings.keep(gpu.impl.info.identity, {k: replace(known[k], left_out=out) for k in keys})
    with session(gpu, "fast") as one:
        words = " ".join(str(one.explain()).split())
        kernels = " ".join(row.kernel for row in one.placement)
    assert "conv2d_tile4x8" not in kernels and "times as fast" not in words
    assert "tuned: " in words and "is computed by" not in words
    out |= {known[key].usual: "it was wrong" for key in keys}
    tunings.keep(gpu.impl.info.identity, {k: replace(known[k], left_out=out) for k in keys})
    with session(gpu, "fast") as two:
        words = " ".join(str(two.explain()).split())
    assert "conv2d 12x12x4x1 is computed by conv2d_" in words and "times as fast" not in words


def test_pauses_are_no_work(gpu: GpuExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the background a job rests between its steps for twelve times what they took."""
    now = [0]
    monkeypatch.setattr(clock, "now_ns", lambda: now[0])
    script = Script()
    script.spend = lambda: now.__setitem__(0, now[0] + 1000)

    def rest(*_: object) -> None:
        now[0] += round(FAST_S * 1e9)

    made = Tuner(gpu, CpuExecutor(), "fast", rest, timer=script)
    made.tune(graph())
    assert {made.known[key].effort for key in made.keys} == {"fast"}


@pytest.fixture
def name(lavapipe: Candidate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The file of a model, where lavapipe is the only driver."""
    monkeypatch.setenv("VK_DRIVER_FILES", lavapipe.key)
    monkeypatch.setenv("GPUEDGE_BACKENDS", "vulkan")
    path = tmp_path / "m.onnx"
    path.write_bytes(proto().SerializeToString())
    return str(path)


def test_a_model_is_tuned_on_the_command_line_and_passed_on(
    name: str, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = str(tmp_path / "fleet")
    assert main(["tune", name, "--device", "vulkan", "--full", "--out", fleet, "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["schema"], body["effort"], body["file"]) == ("gpuedge.tune/1", "full", fleet)
    kernels = {row["key"]: row for row in body["kernels"]}
    assert {key.split()[0] for key in kernels} >= {"conv2d"}
    for row in kernels.values():
        assert row["effort"] == "full" and row["ns"] > 0 and row["left_out"] == {}
    (cache / tunings.FILE).unlink()
    assert main(["tune", "--import", fleet, "--device", "vulkan", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["devices"]
    assert row["why_not"] == "" and row["kernels"] >= len(kernels)
    assert main(["tune", name, "--device", "vulkan", "--json"]) == 0  # all is known
    again = json.loads(capsys.readouterr().out)["kernels"]
    assert {row["key"]: row for row in again} == kernels
    assert main(["tune", name, "--device", "vulkan"]) == 0
    shown = capsys.readouterr().out
    assert "not timed" not in shown and "conv2d" in shown
    out = tmp_path / "again"
    (cache / tunings.FILE).unlink()
    (cache / tunings.FILE).mkdir()  # which cannot be written
    assert main(["tune", name, "--device", "vulkan", "--full", "--out", str(out)]) == 1
    told = capsys.readouterr()
    assert "The cache folder cannot be written" in told.err and "conv2d" in told.out
    assert out.stat().st_size > 1000


def test_a_driver_that_computes_wrong_ends_with_what_is_left_out(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    right_program = GpuExecutor.program

    def program(self: GpuExecutor, launch: Pass, *given: Any) -> Any:
        is_wrong = launch.variant.startswith("conv2d") and launch.specs.get("KH") == 5
        return right_program(self, slide(launch) if is_wrong else launch, *given)

    arguments = ["tune", name, "--device", "vulkan", "--full"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GpuExecutor, "program", program)
        assert main(arguments) == 1
    told = capsys.readouterr()
    assert "No variant is right of conv2d 12x12x4x1" in told.err and "none is right" in told.out
    assert "Left out on this device" in told.out and "differ from the CPU" in told.out
    assert main(arguments) == 1  # it is known
    capsys.readouterr()
    assert main([*arguments, "--refresh"]) == 0
    assert "Left out on this device" not in capsys.readouterr().out


def test_what_is_no_step_of_its_own_is_not_timed_alone(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where what a whole plan chooses between is not in the plans of single steps."""
    monkeypatch.setattr(Tuner, "_next", lambda *_: None)
    assert main(["tune", name, "--device", "vulkan", "--full"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("not timed alone") == shown.count("not timed") >= 2
    assert main(["tune", name, "--device", "vulkan"]) == 0
    assert "not timed alone" not in capsys.readouterr().out
