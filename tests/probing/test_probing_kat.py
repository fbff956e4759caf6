"""Known-answer tests: references, every kind of wrong output, and what entries can ask for."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import daily
import kernel_interpreter
import numpy as np
import planrun
import pytest
from mutants import HALF_MUTANTS, mutated
from planrun import FLOAT_TEXTURES, TEXTURES, PlanExecutor, check_limits
from quirk_fakes import be_quick

from gpuedge.capdb import restrict
from gpuedge.capdb.entries import TESTS
from gpuedge.core.caps import VULKAN_MINIMUM, Caps
from gpuedge.core.errors import KernelLimitError
from gpuedge.core.storage import KINDS
from gpuedge.oracle.layers import conv2d
from gpuedge.plan import library
from gpuedge.plan.planner import plan
from gpuedge.plan.select import select
from gpuedge.plan.storages import Storages
from gpuedge.probing import kat
from gpuedge.probing.trials import CaseTrial

RNG = np.random.default_rng(1)


def judge_runs(
    case: kat.KnownAnswer, runs: list[Any]
) -> tuple[kat.AnswerFinding | None, dict[str, Any]]:
    """Return what a trial says of outputs one after the other, up to the first that is wrong."""
    trial = CaseTrial(case)
    findings = (trial.judge(run) for run in runs)
    return next((found for found in findings if found is not None), None), trial.check


def test_cases_are_awkward_and_repeatable() -> None:
    first, second = kat.cases(), kat.cases()
    assert [c.name for c in first] == [
        "elementwise integers",
        "elementwise random",
        "every exponent",
        "convolution integers",
        "convolution random",
        "every place",
        "every byte",
        "bytes from the host",
    ]
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a.expected, b.expected)
        assert a.graph.shape(a.output) == a.expected.shape
        assert (a.expected > 0).any()
    for case in first[:3]:
        assert (case.expected < 0).any()
    for case in first[3:5]:
        assert (case.expected == 0).any()  # the activation did something
    conv = first[3]
    assert conv.inputs["x"].shape[1] % 4 != 0
    assert conv.expected.shape[1] % 4 != 0
    assert not conv.bound.any()
    assert first[0].graph is first[1].graph is first[2].graph
    assert all(extent % 4 for extent in first[0].expected.shape)
    assert conv.graph is first[4].graph


def test_weights_need_more_bits_than_half_floats_have() -> None:
    """A device that computes the convolution in float16 gets the integers wrong."""
    case = kat.cases()[3]
    w, b = case.graph.constants["w"], case.graph.constants["b"]
    half = w.astype(np.float16).astype(np.float32)
    assert (half != w).any()
    exact = conv2d(case.inputs["x"], half, b, pads=(1, 0, 2, 1)).v
    finding, _ = judge_runs(case, [np.maximum(exact, 0).astype(np.float32)])
    assert finding is not None


def test_every_exponent_and_both_signs_are_there() -> None:
    case = kat.cases()[2]
    words = case.inputs["a"].view(np.uint32)
    heads = set((words >> 23).ravel().tolist())
    assert heads == {sign << 8 | exponent for sign in (0, 1) for exponent in range(1, 255)}
    assert all(len(set(words[words >> 23 == head].tolist())) == 8 for head in heads)
    np.testing.assert_array_equal(case.expected, -case.inputs["a"].astype(np.float64))


def test_bytes_are_tested_where_they_are_kept_as_bytes() -> None:
    """Elsewhere they are float32, and the kernel would be the one of the places once more."""
    textures = ("rgba8_float", "rgba16f", "rgba8_u8", "rgba8_s8")
    for storages, case, is_written in (
        (("buffer",), None, False),
        (("buffer", "buffer_f16", "buffer_u8"), "bytes from the host", False),
        (("rgba32f", "rgba8_float", "rgba8_u8"), "bytes from the host", False),
        (("rgba8_float", "rgba16f"), None, False),
        (textures, "every byte", True),
    ):
        caps = replace(VULKAN_MINIMUM, storages=storages)
        names = [c.name for c in kat.cases(caps)]
        assert [name for name in names if "byte" in name] == [case] * (case is not None)
        kind = Storages({"x": "uint8"}, {}, caps).of("x").kind
        assert (kind == "rgba8_u8") is is_written


def numbers_read(word: Any, shift: Any, dtype: str) -> Any:
    """Return the bytes of words from a bit on, as kernels shift them out."""
    if dtype == "uint8":
        return word >> shift & 255
    return (word << 24 - shift).astype(np.uint32).view(np.int32) >> 24


MISREAD: dict[str, Any] = {
    "the bytes of a word turned round": lambda w, s, d: numbers_read(w, 24 - s, d),
    "one bit less": lambda w, s, d: numbers_read(w, s, d) & ~1,
    "the highest bit lost": lambda w, s, d: numbers_read(w & 0x7F7F7F7F, s, d),
    "no sign, or a sign": lambda w, s, d: numbers_read(w, s, {"uint8": "int8"}.get(d, "uint8")),
    "the last byte with those before it": lambda w, s, d: numbers_read(w, s, d) | (s == 24) * 256,
    "by rows of four": lambda w, s, d: numbers_read(w, s * 0, d),
}


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("name", MISREAD)
def test_bytes_that_are_read_wrongly_are_noticed(dtype: str, name: str) -> None:
    """As part of a texel or alone, each on its own."""
    case = kat._bytes_read(dtype, "bytes")
    x = case.inputs["x"]
    places = [set(x.ravel()[lane::4].tolist()) for lane in range(4)]
    assert all(len(place) == 256 for place in places)
    words = x.ravel().view(np.uint32).repeat(4).astype(np.int64)
    shifts = np.tile([0, 8, 16, 24], x.size // 4)
    right, wrong = (
        read(words, shifts, dtype).astype(np.int64).reshape(x.shape)
        for read in (numbers_read, MISREAD[name])
    )
    for whole, alone, is_right in ((right, right, True), (wrong, right, False),
                                   (right, wrong, False)):  # fmt: skip
        run = (256 * whole + alone.T).astype(np.float32)
        assert (judge_runs(case, [run])[0] is None) is is_right


def test_products_of_bytes_are_tested_before_they_are_used() -> None:
    """Every pair of places and each byte; the other kernels are those of other devices."""
    names = [[c.name for c in kat.cases(replace(VULKAN_MINIMUM, dot_products=n))] for n in range(3)]
    ours = ("product of bytes", "convolution of bytes")
    assert names[0] == names[1] == [name for name in names[2] if name not in ours]
    caps = replace(VULKAN_MINIMUM, dot_products=2)
    (case,) = (c for c in kat.cases(caps) if c.name == "product of bytes")
    assert variants(case, caps) >= {"matmul_bytes"}
    (of_images,) = (c for c in kat.cases(caps) if c.name == "convolution of bytes")
    assert variants(of_images, caps) >= {"conv2d_bytes"}
    a, b = case.inputs["a"], case.inputs["b"].T
    for side in (a, b):
        assert all(len(np.unique(side[:, place::4])) == 256 for place in range(4))
    assert judge_runs(case, [case.expected.astype(np.int32)])[0] is None
    assert abs(case.expected).max() < 2**24


def test_every_byte_is_in_every_place_of_a_texel() -> None:
    case = kat.cases()[6]
    x = case.inputs["x"]
    assert case.dtype == x.dtype == "uint8"
    for channel in range(4):
        assert sorted(x[0, channel].ravel().tolist()) == list(range(256))
    assert len({x[0, c].tobytes() for c in range(4)}) == 4
    right = case.expected.astype(np.uint8)
    assert judge_runs(case, [right, right])[0] is None
    wrong = right.copy()
    wrong[0, 2, 3, 4] += 1
    assert judge_runs(case, [right, wrong])[0] == kat.AnswerFinding(
        "wrong-numbers", "every byte: 1 of 1024 elements"
    )


def test_places_reach_far_and_keep_to_the_device() -> None:
    case = kat.cases()[5]
    x = case.inputs["x"]
    assert len(set(x.ravel().tolist())) == x.size  # each value says where it comes from
    np.testing.assert_array_equal(case.expected, x[..., ::2])
    assert x.size > 1 << 19  # with a texel of its own for each value: over a hundred rows of 4096
    small = kat.cases(replace(VULKAN_MINIMUM, max_storage_buffer_bytes=1 << 16))[5]
    assert 1 << 14 < small.inputs["x"].nbytes <= 1 << 16


@pytest.mark.parametrize("index", range(7))
def test_right_numbers_pass(index: int) -> None:
    case = kat.cases()[index]
    right = case.expected.astype(case.dtype)
    finding, evidence = judge_runs(case, [right, right.copy()])
    assert finding is None
    assert evidence["max_error"] <= evidence["bound"]


def _poison(x: Any) -> None:
    x.view(np.uint8)[...] = kat.POISON


def _one_unit(x: Any) -> None:
    x.flat[x.argmax()] = np.nextafter(x.max(), np.float32(0))


def _nan(x: Any) -> None:
    x.flat[7] = np.nan


def _part_poison(x: Any) -> None:
    x.reshape(-1)[-1:].view(np.uint8)[...] = kat.POISON


def _shift(x: Any) -> None:
    x[...] = np.roll(x, 1, axis=-1)


def _swap_channels(x: Any) -> None:
    x[:, [0, 1]] = x[:, [1, 0]]


@pytest.mark.parametrize("index", [0, 1, 3, 4])
@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (_poison, "untouched-output"),
        (_part_poison, "wrong-numbers"),
        (_nan, "wrong-numbers"),
        (_shift, "wrong-numbers"),
        (_swap_channels, "wrong-numbers"),
        (lambda x: x.fill(0), "wrong-numbers"),
        (lambda x: x.fill(np.inf), "wrong-numbers"),
    ],
)
def test_wrong_numbers_are_caught_in_either_run(
    index: int, spoil: Callable[[Any], None], code: str
) -> None:
    case = kat.cases()[index]
    for place in (0, 1):
        runs = [case.expected.astype(np.float32) for _ in range(2)]
        spoil(runs[place])
        finding, _ = judge_runs(case, runs)
        assert finding is not None
        assert finding.code == code


@pytest.mark.parametrize("index", [3, 4])
def test_a_missing_activation_is_caught(index: int) -> None:
    case = kat.cases()[index]
    run = case.expected.astype(np.float32)
    run[run == 0] = -1
    finding, _ = judge_runs(case, [run])
    assert finding is not None
    assert finding.code == "wrong-numbers"


@pytest.mark.parametrize("index", [0, 2, 3, 5])
def test_integers_must_be_exact(index: int) -> None:
    case = kat.cases()[index]
    run = case.expected.astype(np.float32)
    _one_unit(run)
    finding, _ = judge_runs(case, [run])
    assert finding is not None
    assert finding.code == "wrong-numbers"


@pytest.mark.parametrize("index", [1, 4])
def test_two_different_answers_within_the_bound_are_unstable(index: int) -> None:
    case = kat.cases()[index]
    runs = [case.expected.astype(np.float32) for _ in range(2)]
    _one_unit(runs[1])
    finding, _ = judge_runs(case, runs)
    assert finding == kat.AnswerFinding("unstable-numbers", case.name)


def test_wrong_shape_is_wrong() -> None:
    case = kat.cases()[0]
    finding, _ = judge_runs(case, [case.expected.astype(np.float32)[:1]])
    assert finding is not None
    assert finding.code == "wrong-numbers"


@pytest.mark.parametrize("index", [1, 4])
def test_float32_in_any_order_meets_the_bound(index: int) -> None:
    """A plain float32 computation, summed backwards, is a right answer."""
    case = kat.cases()[index]
    if index == 1:
        a, b, c = (case.inputs[k] for k in "abc")
        run = a * b + c
    else:
        run = _backwards(case)
    assert run.dtype == np.float32
    assert judge_runs(case, [run])[0] is None


def _backwards(case: kat.KnownAnswer) -> Any:
    w, b = case.graph.constants["w"], case.graph.constants["b"]
    top, left, bottom, right = case.graph.nodes[0].attrs["pads"]
    x = np.pad(case.inputs["x"], ((0, 0), (0, 0), (top, bottom), (left, right)))
    _, filters, height, width = case.expected.shape
    total = np.zeros((1, filters, height, width), np.float32)
    for i, j, c in itertools.product((2, 1, 0), (2, 1, 0), range(w.shape[1] - 1, -1, -1)):
        window = x[:, c : c + 1, i : i + height, j : j + width]
        total += window * w[None, :, c, i, j, None, None]
    return np.maximum(total + b[None, :, None, None], np.float32(0))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let the interpreter do with smaller tensors."""
    be_quick(monkeypatch, tmp_path)


LEVELS = {
    "vulkan": VULKAN_MINIMUM,
    "one output": replace(VULKAN_MINIMUM, max_outputs=1),
    "float16": replace(VULKAN_MINIMUM, has_fp16_arithmetic=True),
    "discrete float16": replace(
        VULKAN_MINIMUM, device_class="nvidia", max_invocations=256, has_fp16_arithmetic=True
    ),
    "discrete": replace(VULKAN_MINIMUM, device_class="nvidia", max_invocations=256),
    "rasteriser": replace(VULKAN_MINIMUM, device_class="cpu-llvm"),
    "rasteriser float16": replace(
        VULKAN_MINIMUM, device_class="cpu-llvm", has_fp16_arithmetic=True
    ),
    "subgroups": replace(VULKAN_MINIMUM, device_class="cpu-llvm", subgroup_lanes=8),
    "subgroups float16": replace(
        VULKAN_MINIMUM, device_class="cpu-llvm", subgroup_lanes=8, has_fp16_arithmetic=True
    ),
    "bytes": replace(VULKAN_MINIMUM, dot_products=2),
    "gles30": FLOAT_TEXTURES,
    "gles30 rasteriser": replace(FLOAT_TEXTURES, device_class="cpu-llvm"),
    "gles20": TEXTURES,
}


def planned_for(case: kat.KnownAnswer, caps: Caps) -> Caps:
    """Return the capabilities that a case is planned with: its own storage comes first."""
    if not case.storage or case.storage == caps.storages[0]:
        return caps
    others = tuple(kind for kind in caps.storages if kind != case.storage)
    return restrict.with_storages(caps, (case.storage, *others))


def computed(case: kat.KnownAnswer, caps: Caps) -> Any:
    """Run a case in the interpreter, which shares nothing with its reference."""
    caps = planned_for(case, caps)
    return PlanExecutor(caps).compile(case.graph, case.precision).run(case.inputs)[case.output]


COMPUTED: dict[str, Any] = {}


def computed_once(case: kat.KnownAnswer, caps: Caps) -> Any:
    """Run a case, unless it was planned to the same passes over the same inputs on another level.

    With arithmetic in float16, for one, a level has all cases of the level without it.
    """
    given = planned_for(case, caps)
    made = plan(case.graph, given, (), case.precision)
    check_limits(made, given)
    tensors = [(t.name, t.memory, t.layout, t.storage) for t in made.tensors.values()]
    planned = repr((case.name, case.storage, made.passes, tensors, caps.has_suballocation))
    held = {**case.inputs, **case.graph.constants}
    key = planned + "".join(sha256(held[name].tobytes()).hexdigest() for name in sorted(held))
    if key not in COMPUTED:
        COMPUTED[key] = computed(case, caps)
    return COMPUTED[key]


def variants(case: kat.KnownAnswer, caps: Caps) -> set[str]:
    """Return the kernel variants that a case is planned to use."""
    return {one.variant for one in plan(case.graph, caps, (), case.precision).passes}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", daily.some(LEVELS, 4))
@pytest.mark.parametrize("test", TESTS)
def test_required_cases_are_right_and_notice_a_wrong_element(test: str, name: str) -> None:
    for case in kat.cases(LEVELS[name], test):
        found = computed_once(case, LEVELS[name])
        finding, _ = judge_runs(case, [found])
        assert finding is None, (case.name, finding)
        worse = found.copy()
        flat = worse.reshape(-1)
        flat[0] = flat[0] + 1 if flat.dtype.kind == "f" else flat[0] ^ 1
        finding, _ = judge_runs(case, [worse])
        assert finding is not None, case.name


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", daily.some(LEVELS))
def test_every_kernel_that_selection_can_use_is_run(name: str) -> None:
    caps = LEVELS[name]
    every = [*kat.cases(caps), *kat.cases(caps, "kernels")]
    used = {v for case in every for v in variants(case, caps)}
    assert used == selectable(caps)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", LEVELS)
def test_required_kernels_share_with_the_standard_ones_what_packs_alone(name: str) -> None:
    """Compiling is what they cost: of the standard kernels only those of the same shapes."""
    caps = LEVELS[name]
    (standard,) = (c for c in kat.cases(caps) if c.name == "convolution integers")
    (chain,) = (c for c in kat.cases(caps, "kernels") if c.name == "convolutions")
    assert chain.inputs["x"].shape == standard.inputs["x"].shape
    shapes = [case.graph.types[case.output].shape for case in (chain, standard)]
    assert shapes[0] == shapes[1]
    assert variants(chain, caps) & variants(standard, caps) == {"pack_map", "unpack_map"}


FEW = 16
"""How many combinations of bounds are tried of each kind."""

IN_HALF = ("elementwise", "reduce", "conv2d", "dwconv2d", "conv_transpose2d", "matmul")
"""Operations with a kernel that computes in float16; the others move numbers, or integers."""


def corners(op: str) -> Iterator[dict[str, int]]:
    """Return shapes at the bounds of an operation's variants.

    All combinations are billions. So each variant gets shapes that it serves: its own bounds in all
    combinations of at most `FEW`, each with other facts on either side of the others' bounds.
    """
    known = [v for v in library.variants() if v.op == op]
    sides: dict[str, set[int]] = {}
    for name, (low, high) in (item for v in known for item in v.when.items()):
        sides.setdefault(name, set()).update((low - 1, low, min(high, 4096)))
    choices = {name: sorted(values) for name, values in sides.items()}
    rng = random.Random(op)
    for variant in known:
        own = {n: sorted({low, min(high, 4096)}) for n, (low, high) in variant.when.items()}
        mine = list(itertools.islice(itertools.product(*own.values()), FEW))
        for values in mine:
            for _ in range(FEW):
                others = {name: rng.choice(values) for name, values in choices.items()}
                yield {**others, **dict(zip(own, values, strict=True))}


def selectable(caps: Caps) -> set[str]:
    """Ask selection for every operation at shapes on both sides of every bound."""
    found = set()
    for op in {variant.op for variant in library.variants()}:
        for shape in corners(op):
            with contextlib.suppress(KernelLimitError):  # softstats, where sumexp serves instead
                found.add(select(op, shape, caps).id)
                if caps.has_fp16_arithmetic and op in IN_HALF:
                    found.add(select(op, shape, caps, is_half=True).id)
    return found


def in_half(name: str) -> list[kat.KnownAnswer]:
    cases = kat.cases(LEVELS[name], "kernels")
    return [case for case in cases if case.precision.arithmetic == "float16"]


def is_caught(name: str) -> bool:
    """Say whether the interpreter, as it is now, gets a case in float16 wrong."""
    planrun.kernel_of.cache_clear()
    found = (judge_runs(case, [computed(case, LEVELS[name])])[0] for case in in_half(name))
    caught = any(finding is not None for finding in found)
    planrun.kernel_of.cache_clear()
    return caught


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("mutant", daily.some(HALF_MUTANTS))
def test_sums_in_float16_are_caught(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = mutated(library.texts(), mutant)
    monkeypatch.setattr(planrun, "texts", lambda: texts)
    kernel = HALF_MUTANTS[mutant][0]
    is_tile = any(part in mutant for part in ("tile", "unit", "block", "_row:"))
    where = "discrete " if kernel == "group/matmul_tile" else "rasteriser " if is_tile else ""
    where = "subgroups " if kernel == "group/conv2d_run" else where
    assert is_caught(f"{where}float16")


def _bits(count: int) -> Callable[[Any], Any]:
    """Return what keeps so many bits of a number."""

    def kept(x: Any) -> Any:
        mantissa, exponent = np.frexp(np.asarray(x, np.float32))
        return np.ldexp(np.rint(mantissa * 2**count) / 2**count, exponent).astype(np.float16)

    return kept


WRONG_HALVES: dict[str, Callable[[Any], Any]] = {
    "ten bits": _bits(10),
    "bfloat16": _bits(8),
    "saturated": lambda x: np.clip(x, np.float16(-1024), np.float16(1024)),
    "fixed point": lambda x: np.rint(x * np.float16(256)).astype(np.float16) / np.float16(256),
    "flushed": lambda x: np.where(np.abs(x) < 0.01, np.float16(0), x),
    "no sign": np.abs,
    "nothing": lambda x: x * np.float16(0),
}
"""What a driver may make of each step in float16."""


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", WRONG_HALVES)
def test_wrong_steps_in_float16_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right, spoil = kernel_interpreter.Run._op, WRONG_HALVES[name]

    def spoilt(self: Any, expr: Any, frame: Any) -> Any:
        value = right(self, expr, frame)
        is_step = expr.type[0] == "h" and expr.name in ("+", "-", "*")
        return spoil(value) if is_step else value

    monkeypatch.setattr(kernel_interpreter.Run, "_op", spoilt)
    assert is_caught("float16")


@pytest.mark.usefixtures("quick")
def test_each_storage_on_offer_is_tested_and_no_other() -> None:
    kinds = {case.storage for case in kat.cases(FLOAT_TEXTURES, "storages") if case.storage}
    exact = {k for k in FLOAT_TEXTURES.storages if KINDS[k].is_exact and KINDS[k].low is None}
    assert kinds == exact
    precision = {case.precision.kind for case in kat.cases(FLOAT_TEXTURES, "storages")}
    assert precision == {"float32", "float16", "fixed16"}
    found = kat.cases(VULKAN_MINIMUM, "storages")
    assert {c.storage for c in found if c.storage} == {"buffer"}
    assert {c.precision.kind for c in found} == {"float32", "float16"}


def test_large_is_as_large_as_the_device_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kat, "LARGE", 1 << 25)
    for most in (1 << 12, 1 << 20, 1 << 27):
        caps = replace(VULKAN_MINIMUM, max_storage_buffer_bytes=most)
        (case,) = kat.cases(caps, "large")
        texels = case.inputs["x"].size // 4
        assert 0.9 * min(most, 1 << 25) <= 16 * texels <= most
        assert case.inputs["x"].max() < 1 << 24
    (case,) = kat.cases(replace(VULKAN_MINIMUM, max_allocation_bytes=1 << 16), "large")
    assert case.inputs["x"].size * 4 <= 1 << 16
