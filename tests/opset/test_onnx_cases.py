"""ONNX's own cases of single operators, by what the descriptions say, in numpy."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import combinations, product
from pathlib import Path
from typing import Any

import daily
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases
from planrun import plan_device

import gpuedge
from gpuedge.core.errors import UnsupportedOpError
from gpuedge.executors.cpu import CpuExecutor
from gpuedge.graph.reader import OnnxModel
from gpuedge.opset import OPERATORS

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import onnx_cases
from onnx_cases import CASES

FAMILIES = 16
"""Parts that the cases are tried in."""


@cache
def every_case() -> dict[str, Any]:
    """Return ONNX's cases of single operators by name, also those beyond the core."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {case.name.removeprefix("test_"): case for case in collect_testcases(None)}


def models() -> dict[str, Any]:
    """Return the core cases of single operators by name."""
    return {name: every_case()[name] for name in CASES if name in every_case()}


def differs(case: Any, proto: Any = None) -> str:
    """Return what is wrong with a case, or with its model without some outputs; else nothing."""
    model = OnnxModel.load(proto or case.model)
    at = [[v.name for v in case.model.graph.output].index(name) for name in model.outputs]
    for given, wanted in case.data_sets:
        arrays = dict(zip(model.inputs, map(_array, given), strict=True))
        fixed = {n: a for n, a in arrays.items() if n in model.parameters}
        graph = model.specialise({n: a.shape for n, a in arrays.items()}, fixed)
        engine = CpuExecutor(engine="numpy")
        why = [w for node in graph.nodes if (w := engine.supports(node, graph)) is not None]
        if why:
            return "unsupported: " + why[0]
        try:
            got = engine.compile(graph).run(arrays)
        except UnsupportedOpError as error:
            return f"unsupported: {error.what}"
        for name, right in zip(model.outputs, (_array(wanted[i]) for i in at), strict=True):
            if got[name].dtype != right.dtype or got[name].shape != right.shape:
                return f"{got[name].dtype} {got[name].shape} instead of {right.dtype} {right.shape}"
            if not np.allclose(got[name], right, rtol=case.rtol, atol=case.atol, equal_nan=True):
                return "other values"
    return ""


def _array(value: Any) -> Any:
    return value if isinstance(value, np.ndarray | np.generic) else numpy_helper.to_array(value)


@pytest.mark.parametrize("part", daily.some(range(FAMILIES)))
def test_every_case(part: int) -> None:
    names = list(models())[part::FAMILIES]
    found = {name: differs(models()[name]) for name in names}
    assert {name: why for name, why in found.items() if why} == {}


def without_optional(model: Any) -> Iterator[Any]:
    """Yield a model of one node without some of the outputs that it may lack, or with all."""
    node = model.graph.node[0]
    versions = {one.domain: one.version for one in model.opset_import}
    formal = onnx.defs.get_schema(node.op_type, versions[node.domain], node.domain).outputs
    may_lack = [
        i for i, name in enumerate(node.output)
        if name and formal[min(i, len(formal) - 1)].option == OPTIONAL
    ]  # fmt: skip
    seen = [list(node.output)]
    yield model
    for count, is_cut in product(range(1, len(may_lack) + 1), (False, True)):
        for lacking in combinations(may_lack, count):
            names = ["" if i in lacking else name for i, name in enumerate(node.output)]
            while is_cut and names and not names[-1]:
                names.pop()
            if any(names) and names not in seen:
                seen.append(names)
                yield _asking_for(model, names)


OPTIONAL = onnx.defs.OpSchema.FormalParameterOption.Optional


def _asking_for(model: Any, names: list[str]) -> Any:
    made = onnx.ModelProto()
    made.CopyFrom(model)
    made.graph.node[0].output[:] = names
    kept = [value for value in model.graph.output if value.name in names]
    del made.graph.output[:]
    made.graph.output.extend(kept)
    return made


def plain() -> dict[str, Any]:
    """Return the cases whose models are one node."""
    return {n: c for n, c in every_case().items() if len(c.model.graph.node) == 1}


@pytest.mark.parametrize("most", [1, pytest.param(1000, marks=pytest.mark.long)])
def test_an_output_that_nobody_asks_for_is_no_matter(most: int) -> None:
    """In so many cases of each operator and set of outputs."""
    wrong: dict[Any, str] = {}
    tried: Counter[Any] = Counter()
    for name, case in plain().items():
        for model in list(without_optional(case.model))[1:]:
            node = model.graph.node[0]
            key = node.op_type, *map(bool, node.output)
            tried[key] += 1
            if tried[key] > most:
                continue
            try:
                why = differs(case, model)
            except gpuedge.GpuEdgeError as error:
                why = f"unsupported: {error}"
            if why and ("cannot be planned" in why or not why.startswith("unsupported")):
                wrong[(name, *node.output)] = why
    assert wrong == {}
    assert len(tried) > 30


def test_the_page_tells_reasons_in_one_line_apart_for_ordinary_cases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = every_case()
    kinds = [("relu", cases["relu"].model), ("text", cases["string_split_basic"].model)]
    kinds += [(name, cases["abs"].model) for name in ("passes", "wrong", "optional")]
    whys = {
        "relu": "Cast 'a' (opset 17, reads float16[3,4], int64[]): too few\n   Relu 'b' (opset 6)",
        "text": "Relu 'it | and' " + "very " * 40,
        "optional": "The model's 'x0' is an optional; its 'y' is none of 1, 2, 3.5.",
        "wrong": "off by 2",
    }
    rows = [{"case": name, "status": "unsupported", "why": why} for name, why in whys.items()]
    rows += [{"case": "passes", "status": "passed", "day": "2026-11-02"}]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    os.utime(file, (1795651200, 1795651200))  # 2026-11-26
    monkeypatch.setattr(onnx_cases, "every_case", lambda: iter(kinds))
    page = onnx_cases.page({"cpu": onnx_cases.read(file)})
    assert "Run from 2026-11-02 to 2026-11-26." in page
    ordinary, others = page.split("do not pass\n")[1:]
    assert (
        "unsupported: Cast '..' (opset N, reads float16[N], int64[]): too few; Relu '..' (opset N)"
        " | relu |"
    ) in ordinary
    assert "The model's '..' is an optional; its '..' is none of N. | optional |" in ordinary
    assert "Relu '..' very" in others
    assert "very ... | text |" in others
    assert "relu" not in others
    assert "text" not in ordinary
    table = [line for line in page.splitlines() if line.startswith("| cpu |")]
    assert len(table) == 2 + 4
    assert all(line.endswith(" |") for line in table)


@pytest.mark.parametrize("names", [["Y"], ["Y", "", "present_value"], ["Y", "present_key", ""]])
def test_attention_without_what_it_keeps(names: list[str]) -> None:
    case = every_case()["attention_4d_with_past_and_present"]
    model = _asking_for(case.model, names)
    ((given, wanted),) = case.data_sets
    feeds = {v.name: _array(a) for v, a in zip(model.graph.input, given, strict=True)}
    order = [v.name for v in case.model.graph.output]
    for device in ("cpu", plan_device()):
        with gpuedge.Session(model, device=device) as session:
            got = session.run(feeds)
            assert list(got) == [name for name in names if name]
            for name, array in got.items():
                right = _array(wanted[order.index(name)])
                np.testing.assert_allclose(array, right, rtol=1e-3, atol=1e-6)
            assert session.explain().reason
    checked = gpuedge.check(model, device="cpu", shapes={n: a.shape for n, a in feeds.items()})
    assert [node.op for node in checked.nodes] == ["Attention"]


def test_one_query_after_a_past_reads_no_key_after_its_own() -> None:
    """ONNX Runtime lets it read all of them."""
    rng = np.random.default_rng(3)
    shapes = {"q": (1, 2, 1, 4), "k": (1, 2, 5, 4), "v": (1, 2, 5, 4),
              "pk": (1, 2, 1, 4), "pv": (1, 2, 1, 4)}  # fmt: skip
    feeds = {n: rng.normal(size=shape).astype(np.float32) for n, shape in shapes.items()}
    node = helper.make_node("Attention", ["q", "k", "v", "", "pk", "pv"],
                                 ["y", "present_k", "present_v"], is_causal=1)  # fmt: skip
    ends = [helper.make_tensor_value_info(n, 1, shapes.get(n))
            for n in (*shapes, *node.output)]  # fmt: skip
    graph = helper.make_graph([node], "g", ends[:5], ends[5:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    keys, values = (np.concatenate([feeds["p" + n], feeds[n]], 2)[:, :, :2] for n in "kv")
    weights = np.exp((feeds["q"].astype(float) * keys).sum(-1) / 2)[..., None]
    wanted = (weights * values).sum(2, keepdims=True) / weights.sum(2, keepdims=True)
    for device in ("cpu", plan_device()):
        with gpuedge.Session(proto, device=device) as session:
            np.testing.assert_allclose(session.run(feeds)["y"], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("asked", [["y"], ["output_mean"], ["y", "output_var"]])
@pytest.mark.parametrize("is_named", [True, False])
def test_normalisation_in_training_without_its_means(asked: list[str], is_named: bool) -> None:
    """ONNX Runtime crashes without names for them, and writes into the inputs where none is asked.

    The node names what nobody asks for, or does not.
    """
    case = every_case()["batchnorm_example_training_mode"]
    all_names = list(case.model.graph.node[0].output)
    model = _asking_for(case.model, ["y", *(n if n in asked else "" for n in all_names[1:])])
    kept = [value for value in case.model.graph.output if value.name in asked]
    del model.graph.output[:]
    model.graph.output.extend(kept)
    if is_named:
        model.graph.node[0].output[:] = all_names
    given, wanted = case.data_sets[0]
    feeds = {v.name: _array(a).copy() for v, a in zip(model.graph.input, given, strict=True)}
    before = {name: array.copy() for name, array in feeds.items()}
    with gpuedge.Session(model, device="cpu") as session:
        for _ in range(3):
            for name, array in session.run(feeds).items():
                right = _array(wanted[all_names.index(name)])
                np.testing.assert_allclose(array, right, rtol=1e-3, atol=1e-6)
    for name, array in before.items():
        np.testing.assert_array_equal(feeds[name], array)


@pytest.mark.long
@pytest.mark.parametrize("part", range(FAMILIES))
def test_every_case_answers_or_is_refused_with_a_code(part: int) -> None:
    """No bare exception, whatever outputs are asked for, out of a session or a check."""
    for case in list(plain().values())[part::FAMILIES]:
        for model in without_optional(case.model):
            try:
                _tried(model, case.data_sets[0][0])
            except gpuedge.GpuEdgeError as error:
                assert "cannot be planned" not in str(error), case.name


def _tried(model: Any, given: Any) -> None:
    with gpuedge.Session(model, device="cpu") as session:
        feeds = {name: _array(a) for name, a in zip(session.inputs, given, strict=True)}
        session.run(feeds)
        assert session.explain().reason
    gpuedge.check(model, device="cpu", shapes={n: a.shape for n, a in feeds.items()})


@pytest.mark.parametrize("fault", [KeyError("nobody"), IndexError(3), ZeroDivisionError()])
def test_a_mistake_of_planning_is_the_refusal_of_its_node(
    fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(_: Any) -> Any:
        raise fault

    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in ("x", "y")]
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["n"]), helper.make_node("Abs", ["n"], ["y"], "planned")],
        "g", ends[:1], ends[1:])  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    monkeypatch.setitem(OPERATORS, "Abs", replace(OPERATORS["Abs"], build=build))
    x = np.array([1, -2], np.float32)
    with gpuedge.Session(model, device=plan_device()) as session:
        np.testing.assert_array_equal(session.run({"x": x})["y"], [1, 2])
        assert type(fault).__name__ in session.refusals["planned"]
    with pytest.raises(UnsupportedOpError, match="Abs node 'planned' cannot be planned"):
        gpuedge.Session(model, device=plan_device(), fallback="error").run({"x": x})


def test_a_session_is_compiled_for_the_values_of_parameters() -> None:
    """A named device takes the shape of a Reshape as an input, and keeps what it compiled."""
    shape = helper.make_tensor_value_info("shape", TensorProto.INT64, [2])
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
            for n, s in (("x", [6]), ("y", [None, None]))]  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "shape"], ["r"]), helper.make_node("Neg", ["r"], ["y"])],
        "g", [ends[0], shape], ends[1:])  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = np.arange(6, dtype=np.float32)
    with gpuedge.Session(model, device=plan_device(), fallback="error") as session:
        assert session.placement == ()  # nothing to plan before the first request
        for extents in ((2, 3), (3, 2), (2, 3), (1, 6)):
            got = session.run({"x": x, "shape": np.array(extents, np.int64)})["y"]
            np.testing.assert_array_equal(got, -x.reshape(extents))
        assert session.profile()["compile"]["count"] == 3
