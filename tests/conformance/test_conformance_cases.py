"""The catalogue of cases: names, seeds, coverage; and references that agree with the CPU."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import gpuedge
from gpuedge.conformance import catalogue, data
from gpuedge.conformance.case import Case, generator
from gpuedge.conformance.catalogue import everything, listed, shard_of
from gpuedge.conformance.layers import ACTIVATIONS, conv, draw_conv
from gpuedge.conformance.networks import NETWORKS
from gpuedge.conformance.units import DOMAINS
from gpuedge.core.errors import UsageError
from gpuedge.ops.expression import NAMES as FUNCTIONS
from gpuedge.opset import FUNCTIONS as FUNCTION_ROWS
from gpuedge.opset import OPERATORS
from gpuedge.plan.library import variants

SMOKE, LISTED, FULL = everything("smoke"), listed(), everything("full")
PACKAGE = Path(gpuedge.__file__).parent / "conformance"
ID = re.compile(r"[a-z0-9_-]+/(float32|float16|uint8|int8)/[a-zA-Z0-9_.-]+/[a-z]+/"
                r"(float32|float16|fixed16)(/[a-z0-9_]+)?")  # fmt: skip


def test_names_are_unique_and_of_one_form() -> None:
    ids = [s.id for s in FULL]
    assert len(set(ids)) == len(ids)
    assert [i for i in ids if not ID.fullmatch(i)] == []
    assert {s.data for s in FULL} - {"tiny"} == set(data.KINDS)


def test_profiles_are_as_large_as_promised() -> None:
    assert 600 <= len(SMOKE) <= 660  # 60 s a level; more take longer
    assert len([s for s in LISTED if s.storage == "float32" and not s.variant]) >= 500
    assert sum(s.storage == "float32" and not s.variant for s in FULL) >= 20_000
    assert {s.id for s in SMOKE} < {s.id for s in LISTED} < {s.id for s in FULL}
    kinds = {(s.op, s.dtype, s.variant, s.storage) for s in LISTED}
    assert kinds == {(s.op, s.dtype, s.variant, s.storage) for s in SMOKE}
    with pytest.raises(UsageError, match="no profile 'huge'"):
        everything("huge")


def test_every_operation_function_variant_and_network_has_cases() -> None:
    plain = [s for s in SMOKE if s.storage == "float32"]
    assert {s.op for s in plain} >= set(gpuedge.ops.__all__)
    called = " ".join(s.text for s in plain if s.op == "elementwise")
    aliases = {"min": "minimum", "max": "maximum"}
    missing = [f for f in FUNCTIONS if f != "clip" and f"in-{aliases.get(f, f)}-" not in called]
    assert missing == []
    counts = Counter(v.op for v in variants())
    rivals = {v.id for v in variants() if counts[v.op] > 1}
    assert {s.variant for s in SMOKE if s.variant} == rivals
    assert {s.text for s in plain if s.op == "network"} == set(NETWORKS)


def test_all_halves_are_asked_of_every_function_of_one_element() -> None:
    asked = {s.op for s in SMOKE if s.text == "all65536"}
    assert asked == set(DOMAINS) and {s.data for s in SMOKE if s.text == "all65536"} == {"every"}
    (x,) = {s for s in SMOKE if s.id == "relu/float16/all65536/every/float32"}
    whole, finite = (
        x.build(is_finite=flag).reference(_exact()).v
        for flag in (False, True)  # type: ignore[arg-type]
    )
    assert whole.size == finite.size == 65536
    assert np.isnan(whole).sum() == 2046 and np.isinf(whole).sum() == 1
    assert np.isfinite(finite).all() and (whole[0x0001] == 2.0**-24)


def named(op: str) -> str:
    """Return the name that cases have of an operator."""
    one = OPERATORS[op]
    return f"{'ort' if one.domain else 'onnx'}-{one.name.lower()}"


def test_every_described_operator_is_drawn() -> None:
    public = {one.op for one in FUNCTION_ROWS.values()}
    counts = Counter(s.op for s in FULL if s.storage == "float32" and not s.variant)
    few = {op: counts[named(op)] for op in OPERATORS if op not in public}
    few = {op: n for op, n in few.items() if n < 12 and op not in HOST | PUBLIC | ELSEWHERE}
    assert few == {}


TWINS = ("every conv2d", "every matmul", "every gemm", "every conv_transpose2d", "every avg_pool2d")


@pytest.mark.parametrize("family", TWINS)
def test_sums_of_floats_have_a_twin_of_whole_numbers(family: str) -> None:
    _, draw, kinds, _ = catalogue.WIDE[family]
    assert kinds == catalogue.TWINS
    ids = {s.id for s in FULL}
    for one in catalogue.drawn(family, 20, draw, kinds):
        assert {one.id.replace(f"/{one.data}/", f"/{kind}/") for kind in kinds} <= ids


def test_shapes_are_of_every_rank_and_the_cases_no_two_alike() -> None:
    ranks = {s.text.count("x") + (s.text != "shape0d") for s in FULL if s.text.startswith("shape")}
    assert ranks == set(range(7))
    assert any(s.text.startswith("shape1x1") for s in FULL)
    kinds = Counter((s.op, s.dtype, s.text, s.storage, s.variant) for s in FULL)
    assert max(kinds.values()) <= 4  # of one shape no more than a few kinds of numbers


def test_no_case_depends_on_those_before_it() -> None:
    chosen = [s for s in FULL if s.dtype == "float32" and not s.is_large][::701]
    first = [numbers(s) for s in chosen]
    assert [numbers(s) for s in reversed(chosen)] == first[::-1]


HOST = {
    "Shape", "Size", "Range", "ConstantOfShape", "EyeLike", "BlackmanWindow", "HammingWindow",
    "HannWindow", "MelWeightMatrix",
}  # fmt: skip
"""Computed while planning: nothing of them runs on a device."""

PUBLIC = {
    "AveragePool", "MaxPool", "Flatten", "Transpose", "ConvTranspose", "Clip", "Gemm", "Softmax",
    "TopK", "Concat", "MatMul",
}  # fmt: skip
"""Those whose public function has cases."""

ELSEWHERE = {
    "Scatter", "Upsample", "QLinearConv", "MatMulNBits",
}  # fmt: skip
"""Those that ONNX's own cases, or tests/drivers/more_operators_child.py, run on devices; the first
two are older names of what has cases.

Those of ONNX Runtime are in tests/drivers/test_packed_weights.py."""


DRAWN_ONLY = {
    "RNN", "GRU", "LSTM", "RoiAlign", "NonZero", "NonMaxSuppression", "DynamicQuantizeLinear",
    "Unique", "TfIdfVectorizer", *(name for name, one in OPERATORS.items() if one.domain),
}  # fmt: skip
"""Those that only the full profile has: no case of them is picked by hand."""


def test_every_operator_has_cases() -> None:
    public = {one.op for one in FUNCTION_ROWS.values()}
    covered = {s.op for s in SMOKE}
    missing = {op for op in OPERATORS if op not in public and named(op) not in covered}
    assert missing <= HOST | PUBLIC | ELSEWHERE | DRAWN_ONLY


def test_every_storage_is_asked_of_every_kind_of_operation() -> None:
    plain = {s.op for s in SMOKE if s.storage == "fixed16"}
    assert plain == {s.op for s in SMOKE if s.storage == "float16"}
    assert plain >= {"conv2d", "matmul", "max_pool2d", "avg_pool2d", "softmax", "concat", "add"}


def test_listed_cases_are_small() -> None:
    for spec in LISTED:
        if spec.op == "conv2d":
            outputs = np.prod(spec.build().reference(_exact()).v.shape)  # type: ignore[arg-type]
            c, k, groups = re.search(r"c(\d+)h.*k([\dx]+)s.*g(\d+)", spec.text).groups()  # type: ignore[union-attr]
            sides = [int(side) for side in k.split("x")]
            taps = sides[0] * sides[-1]
            most = 1_500_000 if spec.facts["tiles"] else 400_000  # tiles serve no small image
            assert 2 * outputs * int(c) / int(groups) * taps <= most, spec.id
        elif spec.op == "matmul":
            a, b = (
                [int(d) for d in s.split("x")] for s in spec.text.removesuffix("-joined").split("-")
            )
            most = 500_000 if spec.facts["filled_128s"] >= 80 else 400_000  # 48 by 48 by 103
            assert 2 * np.prod(a) * b[-1] <= most, spec.id


def _exact() -> object:
    from gpuedge.conformance.storing import KEEPERS

    return KEEPERS["float32"]


SUMS = ("conv2d", "conv_transpose2d", "matmul", "gemm")


def test_whole_numbers_are_to_be_exact_and_others_are_not() -> None:
    whole = [s for s in LISTED if s.data in data.WHOLE and s.storage == "float32"]
    sums = [s for s in whole if s.op in SUMS and s.text.rpartition("-")[2].isalnum()]
    plain = [s for s in sums if not any(s.text.endswith(a) for a in ACTIVATIONS[2:])]
    loose = [s.id for s in plain if s.build().reference(_exact()).e.any()]  # type: ignore[arg-type]
    assert len(plain) > 50 and loose == []
    normal = [s for s in LISTED if s.data == "normal" and s.op in SUMS and s.dtype == "float32"]
    for spec in normal:
        found = spec.build().reference(_exact())  # type: ignore[arg-type]
        assert 0 < np.max(found.e) < 1e-2, spec.id


def numbers(spec: Case) -> float:
    return float(np.nansum(spec.build().reference(_exact()).v))  # type: ignore[arg-type]


def test_a_name_means_the_same_numbers_everywhere() -> None:
    chosen = [s for s in LISTED if s.op in ("conv2d", "matmul", "softmax")][::40]
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_conformance_cases import *\n"
        "print([numbers(s) for s in LISTED if s.id in sys.argv[2:]])"
    )
    other = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent), *(s.id for s in chosen)],
        capture_output=True, text=True, check=True, timeout=280,
        env={"PYTHONHASHSEED": "7", "PYTHONPATH": str(PACKAGE.parents[1])},
    )  # fmt: skip
    assert ast.literal_eval(other.stdout) == [numbers(s) for s in chosen]


def test_a_name_means_the_same_numbers_tomorrow() -> None:
    # Changing these makes results of different versions incomparable: do it only on purpose.
    assert generator("a name").integers(0, 1000, 4).tolist() == [235, 802, 548, 172]
    assert shard_of("conv2d/float32/n1c3h6w7-m5k3s1p1d1g1b/integers/float32", 10) in range(1, 11)


@pytest.mark.parametrize("shards", [1, 2, 7])
def test_shards_part_the_cases_evenly(shards: int) -> None:
    counts = Counter(shard_of(s.id, shards) for s in SMOKE)
    assert set(counts) == set(range(1, shards + 1))
    assert min(counts.values()) > 0.7 * len(SMOKE) / shards


def test_drawn_geometries_do_not_depend_on_how_many_are_drawn() -> None:
    few = catalogue.drawn("conv2d", 5, lambda rng: conv(**draw_conv(rng)))
    assert catalogue.drawn("conv2d", 9, lambda rng: conv(**draw_conv(rng)))[:5] == few


def test_nothing_for_tests_is_imported() -> None:
    names = {
        name.split(".")[0]
        for path in PACKAGE.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in (
            [a.name for a in node.names] if isinstance(node, ast.Import)
            else [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        )
    }  # fmt: skip
    assert names - set(sys.stdlib_module_names) == {"gpuedge", "jinja2", "numpy"}


APPROXIMATE = ("sigmoid", "silu", "swish", "onnx-batchnorm", "tanh/", "onnx-asin/", "onnx-acos/")
"""ONNX Runtime's are coarser than what is promised for GPUs."""


@pytest.mark.parametrize("part", range(4))
def test_references_agree_with_the_cpu(part: int) -> None:
    # Written apart from one another, and from any kernel: what both say is what is meant.
    wrong = []
    plain = [s for s in SMOKE if s.storage == "float32" and not s.variant]
    for spec in plain[part::8]:
        verdict = spec.judge("cpu")
        if not verdict.ok and not any(name in spec.id for name in APPROXIMATE):
            wrong.append(f"{spec.id}: {verdict.message}")
    assert wrong == []
