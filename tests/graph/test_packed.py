"""Packed models: what is written is what is read, and nothing else is believed."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import daily
import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import by_reference, model, relu, simple, value, weight

import gpuedge
from gpuedge.core.errors import (
    GpuEdgeError,
    InputError,
    ModelError,
    PackError,
    ShapeError,
    UnsupportedOpError,
)
from gpuedge.graph import packed
from gpuedge.graph.container import About, opened, written
from gpuedge.graph.ir import Graph, Node, TensorType
from gpuedge.graph.packed import FORMAT, KERNELS, MODEL, PackedModel, read_model
from gpuedge.graph.parse import load
from gpuedge.graph.reader import Fixed, OnnxModel
from gpuedge.graph.writer import to_bytes
from gpuedge.lang.cache import LANGUAGE_VERSION

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "models" / "digits.onnx"
SHAPE = {"image": (2, 1, 8, 8)}
FEED = {"image": np.random.default_rng(3).random((2, 1, 8, 8), np.float32)}
FLIPS, CUTS, FORGERIES = 250, 120, 400


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("packed") / "digits.gpuedge"
    gpuedge.pack(DIGITS, path, shapes=SHAPE)
    return path.read_bytes()


@pytest.fixture(scope="module")
def wanted() -> np.ndarray[Any, Any]:
    with gpuedge.Session(DIGITS, device="cpu") as session:
        return session.run(FEED)["probabilities"]


def answer(data: Any) -> np.ndarray[Any, Any]:
    with gpuedge.Session(data, device="cpu") as session:
        return session.run(FEED)["probabilities"]


# -- what is written -------------------------------------------------------------------------------


def test_the_graph_weights_and_original_come_back(digits: bytes) -> None:
    read, onnx_model = PackedModel.load(digits), OnnxModel.load(DIGITS)
    graph, expected = read.specialise(), onnx_model.specialise(SHAPE)
    assert (graph.nodes, graph.inputs, graph.outputs) == (
        expected.nodes, expected.inputs, expected.outputs,
    )  # fmt: skip
    assert graph.types == expected.types
    assert graph.opset == expected.opset
    assert graph.constants.keys() == expected.constants.keys()
    for name, array in expected.constants.items():
        np.testing.assert_array_equal(graph.constants[name], array)
        assert not graph.constants[name].flags.writeable
        assert graph.constants[name].flags.aligned
    assert read.original() == DIGITS.read_bytes() == onnx_model.data
    assert len(digits) < 1.2 * DIGITS.stat().st_size  # the weights are there once
    assert read.inputs == onnx_model.inputs
    assert read.outputs == onnx_model.outputs


def test_it_is_a_safetensors_file(digits: bytes) -> None:
    length = int.from_bytes(digits[:8], "little")
    header = json.loads(digits[8 : 8 + length])
    assert (8 + length) % 64 == 0
    metadata = header.pop("__metadata__")
    assert all(isinstance(text, str) for text in metadata.values())
    at = 0
    for entry in header.values():
        first, end = entry["data_offsets"]
        assert first == at
        at = end
    assert 8 + length + at == len(digits)
    weights = OnnxModel.load(DIGITS).specialise(SHAPE).constants
    name = max(weights, key=lambda n: weights[n].size)
    assert (header[name]["dtype"], header[name]["shape"]) == ("F32", [*weights[name].shape])
    first, end = header[name]["data_offsets"]
    assert digits[8 + length + first : 8 + length + end] == weights[name].tobytes()


def test_sessions_answer_as_they_do_of_the_onnx_file(
    digits: bytes, wanted: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    np.testing.assert_array_equal(answer(digits), wanted)
    (tmp_path / "other.bin").write_bytes(digits)  # told by what it begins with
    np.testing.assert_array_equal(answer(tmp_path / "other.bin"), wanted)
    with gpuedge.Session(digits, device="cpu") as session:
        session.run(FEED)
        assert {row.kernel for row in session.placement} == {"onnxruntime " + ort_version()}
        more = session.run({"image": np.repeat(FEED["image"], 2, 0)})  # by the original in it
    np.testing.assert_allclose(more["probabilities"][::2], wanted, rtol=1e-5)


def ort_version() -> str:
    import onnxruntime

    return str(onnxruntime.__version__)


@pytest.mark.parametrize("op", ["Shrink", "MeanVarianceNormalization", "RMSNormalization"])
def test_operators_that_onnx_defines_by_others_bring_their_bodies(op: str, tmp_path: Path) -> None:
    weights = {"s": np.array([1, 2, 3, 4], np.float32)} if op == "RMSNormalization" else None
    proto = simple(op, [2, 3, 5, 4], weights)
    proto.opset_import[0].version = 23
    gpuedge.pack(proto, tmp_path / "a.gpuedge")
    node = PackedModel.load(tmp_path / "a.gpuedge").specialise().nodes[0]
    assert node.op == op
    assert node.body is not None
    x = np.random.default_rng(1).standard_normal((2, 3, 5, 4)).astype(np.float32)
    expected = by_reference(proto, {"x": x})["y"]
    from gpuedge.executors.cpu import CpuExecutor

    graph = PackedModel.load(tmp_path / "a.gpuedge").specialise()
    found = CpuExecutor(engine="numpy").compile(graph).run({"x": x})["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


WITHOUT_ONNX = """
import sys
for name in ("onnx", "onnxruntime", "ml_dtypes"):
    sys.modules[name] = None
import gpuedge, numpy as np
feed = np.load(sys.argv[2])
with gpuedge.Session(sys.argv[1], device="cpu") as session:
    np.savez(sys.argv[3], **session.run({name: feed[name] for name in session.inputs}))
"""


def loss_of_both() -> onnx.ModelProto:
    """Return a model of operators whose bodies hold constants, branches and further bodies."""
    nodes = [
        helper.make_node("SoftmaxCrossEntropyLoss", ["x", "t", "w"], ["loss"], reduction="mean"),
        helper.make_node("RMSNormalization", ["x", "s"], ["r"], axis=1),
        helper.make_node("Shrink", ["r"], ["y"], bias=0.25, lambd=0.5),
        helper.make_node("AffineGrid", ["theta", "size"], ["grid"]),
    ]
    weights = [weight("w", np.arange(1, 6).astype(np.float32))]
    weights.append(weight("size", np.array([2, 3, 4, 5])))
    inputs = [value("x", [2, 5, 2]), helper.make_tensor_value_info("t", 7, [2, 2])]
    weights.append(weight("s", np.arange(10).reshape(5, 2).astype(np.float32)))
    outputs = [value("loss", []), value("y", [2, 5, 2]), value("grid", [2, 4, 5, 2])]
    proto: onnx.ModelProto = model(
        nodes, [*inputs, value("theta", [2, 2, 3])], outputs, weights
    )  # fmt: skip
    proto.opset_import[0].version = 23
    return proto


def test_bodies_take_no_onnx(tmp_path: Path) -> None:
    proto, random = loss_of_both(), np.random.default_rng(4)
    gpuedge.pack(proto, tmp_path / "a.gpuedge")
    x, theta = (random.standard_normal(s).astype(np.float32) for s in ((2, 5, 2), (2, 2, 3)))
    feed: dict[str, Any] = {"x": x, "t": np.eye(2, dtype=np.int64), "theta": theta}
    np.savez(tmp_path / "feed.npz", x=x, t=feed["t"], theta=theta)
    command = [sys.executable, "-c", WITHOUT_ONNX]
    files = [tmp_path / name for name in ("a.gpuedge", "feed.npz", "found.npz")]
    subprocess.run([*command, *map(str, files)], check=True, timeout=60)
    wanted = by_reference(proto, feed)
    with np.load(files[-1]) as found:
        for name, right in wanted.items():
            np.testing.assert_allclose(found[name], right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["__w", "w" * 5000])
def test_names_that_the_format_does_not_take(name: str, tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["x", name], ["z"])]
    nodes.append(helper.make_node("Mul", ["z", "gpuedge/model"], ["y"]))
    weights = [weight(n, np.array([3, 4], np.float32)) for n in (name, "gpuedge/model")]
    proto = model(nodes, [value("x", [2])], [value("y", [2])], weights)
    gpuedge.pack(proto, tmp_path / "a.gpuedge")
    with gpuedge.Session(tmp_path / "a.gpuedge", device="cpu") as session:
        np.testing.assert_array_equal(session.run([np.array([1, 2], np.float32)])["y"], [12, 24])


@pytest.mark.parametrize("kind", [onnx.TensorProto.STRING, onnx.TensorProto.BFLOAT16])
def test_inputs_that_a_pack_cannot_take(kind: int, tmp_path: Path) -> None:
    made = [helper.make_tensor_value_info(name, kind, [2]) for name in "xy"]
    proto = model([helper.make_node("Identity", ["x"], ["y"])], made[:1], made[1:])
    with pytest.raises(UnsupportedOpError, match="cannot take"):
        gpuedge.pack(proto, tmp_path / "a.gpuedge")


@pytest.mark.parametrize(
    "given", [{"shapes": 5}, {"shapes": []}, {"path": 3}, {"model": None}, {"devices": None},
              {"devices": "vulkan"}]
)  # fmt: skip
def test_arguments_of_no_sense(given: dict[str, Any], tmp_path: Path) -> None:
    fit: dict[str, Any] = {"model": relu(), "path": tmp_path / "a.gpuedge", "shapes": {"x": (2, 3)}}
    with pytest.raises(GpuEdgeError, match=r"not as|list of|read from"):
        gpuedge.pack(**{**fit, **given})


def test_ctrl_c_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        gpuedge.pack(relu(), tmp_path / "a.gpuedge", shapes={"x": (2, 3)})
    assert [*tmp_path.iterdir()] == []


def test_what_a_killed_writer_left_goes(tmp_path: Path) -> None:
    left, others = tmp_path / ".a.gpuedge.77.0123abcd", tmp_path / ".a.gpuedge.backup"
    for file in (left, others):
        file.write_bytes(b"half")
        os.utime(file, (1, 1))
    gpuedge.pack(DIGITS, tmp_path / "a.gpuedge", shapes=SHAPE)
    assert sorted(p.name for p in tmp_path.iterdir()) == [others.name, "a.gpuedge"]


def test_quantised_models_stay_integers_to_the_bit(tmp_path: Path) -> None:
    samples = [{"image": FEED["image"] * scale} for scale in (0.5, 1)]
    done = gpuedge.pack(DIGITS, tmp_path / "q.gpuedge", shapes=SHAPE, calibration=samples)
    small = gpuedge.quantize(DIGITS, samples)
    assert (tmp_path / "q.gpuedge").stat().st_size < DIGITS.stat().st_size
    assert done.sha256 == hashlib.sha256(DIGITS.read_bytes()).hexdigest()
    read = PackedModel.load(tmp_path / "q.gpuedge")
    assert any(a.dtype == np.int8 for a in read.specialise().constants.values())
    with gpuedge.Session(small, device="cpu") as session:
        expected = session.run(FEED)["probabilities"]
    np.testing.assert_array_equal(answer(tmp_path / "q.gpuedge"), expected)


def test_old_files_are_packed_anew_from_their_originals(digits: bytes, tmp_path: Path) -> None:
    old = tmp_path / "old.gpuedge"
    old.write_bytes(rewritten(digits, lambda about, parts: replace(about, format=FORMAT + 1)))
    with pytest.raises(PackError) as info:
        PackedModel.load(old)
    assert f"format {FORMAT + 1}" in info.value.what
    assert f"format {FORMAT}." in info.value.what
    assert info.value.hint is not None
    assert f"gpuedge pack {old}" in info.value.hint
    gpuedge.pack(old, tmp_path / "new.gpuedge", shapes=SHAPE)
    assert (tmp_path / "new.gpuedge").read_bytes() == digits


def test_kernels_of_another_language_are_not_used(digits: bytes) -> None:
    def older(about: About, parts: dict[str, Any]) -> About:
        parts[KERNELS] = np.frombuffer(b'[["key",3]]\nabc', np.uint8)
        return replace(about, language=LANGUAGE_VERSION - 1)

    with gpuedge.Session(rewritten(digits, older), device="cpu") as session:
        session.run(FEED)
        said = session.explain().reason
    assert f"language version {LANGUAGE_VERSION - 1}" in said
    assert f"version {LANGUAGE_VERSION}" in said
    assert not PackedModel.load(rewritten(digits, older)).kernels

    def current(about: About, parts: dict[str, Any]) -> About:
        return replace(older(about, parts), language=LANGUAGE_VERSION)

    assert PackedModel.load(rewritten(digits, current)).kernels == {"key": b"abc"}


@pytest.mark.parametrize("case", ["parameters", "loop", "shape", "folder"])
def test_what_cannot_be_packed_is_refused(case: str, tmp_path: Path) -> None:
    path = tmp_path / "a.gpuedge"
    if case == "folder":
        with pytest.raises(InputError):
            gpuedge.pack(DIGITS, tmp_path / "none" / "\0", shapes=SHAPE)
        return
    if case == "shape":
        with pytest.raises(InputError):
            gpuedge.pack(DIGITS, path)
    if case == "parameters":  # of a node that ONNX Runtime may get wrong
        extents = value("s", [4], onnx.TensorProto.INT64)
        nodes = [
            helper.make_node("Conv", ["x", "w"], ["c"], auto_pad="SAME_UPPER", name="first"),
            helper.make_node("Resize", ["c", "", "", "s"], ["y"], name="second"),
        ]
        held = [weight("w", np.ones((1, 1, 2, 2), np.float32))]
        proto = model(nodes, [value("x", [1, 1, 6, 6]), extents], [value("y", ["a"] * 4)], held)
        with pytest.raises(ModelError, match=r"Resize node 'second' .*values of inputs"):
            gpuedge.pack(proto, path)
    if case == "loop":
        inner = helper.make_graph(
            [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Relu", ["a"], ["b"])],
            "body",
            [value("i", [], 7), value("c", [], 9), value("a", [3])],
            [value("d", [], 9), value("b", [3])],
        )
        node = helper.make_node("Loop", ["n", "", "x"], ["y"], body=inner)
        proto = model([node], [value("x", [3]), value("n", [], 7)], [value("y", [3])])
        with pytest.raises((UnsupportedOpError, ModelError)):
            gpuedge.pack(proto, path)
    assert not path.exists()


def test_a_pack_without_the_shapes_that_are_asked_for(
    digits: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed.OnnxModel, "load", missing)
    with gpuedge.Session(digits, device="cpu") as session:
        with pytest.raises(PackError, match="no graph for this") as info:
            session.run({"image": FEED["image"][:1]})
        assert "(2, 1, 8, 8)" in (info.value.known or "")
        with pytest.raises(ShapeError):
            session.run({"image": FEED["image"][:, :, :7]})
        session.run(FEED)


def missing(_: Any) -> OnnxModel:
    raise gpuedge.MissingPackageError("The Python package 'onnx' cannot be imported.")


def test_external_weights_are_in_the_file(tmp_path: Path) -> None:
    proto = onnx.load(DIGITS)
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin",
              size_threshold=64)  # fmt: skip
    gpuedge.pack(tmp_path / "m.onnx", tmp_path / "m.gpuedge", shapes=SHAPE)
    (tmp_path / "w.bin").unlink()
    with gpuedge.Session(DIGITS, device="cpu") as session:
        expected = session.run(FEED)["probabilities"]
    np.testing.assert_array_equal(answer(tmp_path / "m.gpuedge"), expected)


# -- what is not believed --------------------------------------------------------------------------


def rewritten(data: bytes, change: Callable[[About, dict[str, Any]], About | None]) -> bytes:
    """Return the file with something changed in it, and every hash right."""
    file = opened(data)
    parts = dict(file.parts)
    about = change(file.about, parts) or file.about
    return written(about, parts)


def test_no_flipped_bit_is_believed(digits: bytes) -> None:
    random_places = random.Random(7)
    length = 8 + int.from_bytes(digits[:8], "little")
    places = [*range(64), *(random_places.randrange(length) for _ in range(FLIPS // 2))]
    places += [random_places.randrange(len(digits)) for _ in range(FLIPS // 2)]
    for place in places:
        damaged = bytearray(digits)
        damaged[place] ^= 1 << random_places.randrange(8)
        with pytest.raises((PackError, ModelError)):
            read_model(bytes(damaged))
        with pytest.raises(PackError):
            PackedModel.load(bytes(damaged))


def test_no_truncated_file_is_believed(digits: bytes, tmp_path: Path) -> None:
    random_places = random.Random(8)
    path = tmp_path / "cut.gpuedge"
    length = 8 + int.from_bytes(digits[:8], "little")
    cuts = [*range(48), length - 1, length, length + 1, len(digits) - 1]
    cuts += [random_places.randrange(len(digits)) for _ in range(CUTS)]
    for cut in cuts:
        path.write_bytes(digits[:cut])
        with pytest.raises(PackError):
            gpuedge.Session(path)
    path.write_bytes(digits + b"\0")
    with pytest.raises(PackError):
        gpuedge.Session(path)


@pytest.mark.parametrize("what", ["onnx", "empty", "folder", "none", "sizes", "zip"])
def test_other_files_are_refused_by_name(what: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gpuedge"
    contents = {
        "onnx": DIGITS.read_bytes(), "empty": b"", "sizes": b"\xff" * 8 + b"{" * 100,
        "zip": b"PK\x03\x04" + bytes(100),
    }  # fmt: skip
    if what == "folder":
        path.mkdir()
    elif what in contents:
        path.write_bytes(contents[what])
    with pytest.raises(PackError) as info:
        gpuedge.Session(path)
    assert info.value.code == "GE-502"


def test_a_packed_model_is_no_onnx_file(digits: bytes) -> None:
    with pytest.raises(ModelError, match="not an ONNX file"):
        load(digits)


def lied(kind: str) -> Callable[[About, dict[str, Any]], None]:
    def change(_: About, parts: dict[str, Any]) -> None:
        record = json.loads(parts[MODEL].tobytes())
        graph = record["graphs"][0]
        nodes = graph["nodes"]
        if kind == "types":
            graph["types"][nodes[0][2][0]] = ["float32", [2, 16, 9, 9]]
        elif kind == "huge":
            graph["types"]["image"] = ["float32", [1 << 30, 1, 8, 8]]
        elif kind == "names":
            nodes[1][2] = nodes[0][2]
        elif kind == "order":
            nodes.reverse()
        elif kind == "parts":
            graph["constants"][next(iter(graph["constants"]))] = "/etc/passwd"
        elif kind == "attributes":
            nodes[0][3] = {"pads": [[1]]}
        elif kind == "mixed":
            nodes[0][3] = {"pads": [1, "x", 1, 1]}
        elif kind == "renamed":
            (old,), new = graph["outputs"], "renamed"
            text = json.dumps(record).replace(f'"{old}"', f'"{new}"')
            record = json.loads(text.replace(f'"golden/{new}"', f'"golden/{old}"'))
        elif kind == "cuts":
            record["original"]["cuts"] = [[1 << 40, "gpuedge/model"]]
        elif kind == "bomb":
            name = next(iter(graph["constants"].values()))
            record["original"]["cuts"] = [[0, name]] * (1 << 18)
        elif kind == "nesting":
            parts[MODEL] = np.frombuffer(b"[" * 100_000, np.uint8)
            return
        elif kind == "outputs":
            graph["outputs"] = ["probabilities", "probabilities"]
        elif kind == "golden":
            graph["golden"] = {"image": graph["golden"]["probabilities"]}
        parts[MODEL] = np.frombuffer(json.dumps(record).encode(), np.uint8)

    return change


@pytest.mark.parametrize(
    "kind",
    ["types", "huge", "names", "order", "parts", "attributes", "cuts", "nesting", "outputs"],
)
def test_lies_with_right_hashes_are_refused(kind: str, digits: bytes) -> None:
    with pytest.raises(GpuEdgeError):
        forged = PackedModel.load(rewritten(digits, lied(kind)))
        forged.specialise()
        forged.original()


def test_attributes_and_names_with_right_hashes_are_refused(digits: bytes) -> None:
    with pytest.raises(PackError, match="damaged"):
        gpuedge.Session(rewritten(digits, lied("mixed")), device="cpu")
    with pytest.raises(PackError, match="damaged"):
        answer(rewritten(digits, lied("renamed")))


def test_attributes_that_onnx_cannot_have_are_refused() -> None:
    kind = TensorType("float32", (2, 3))
    node = Node("Softmax", ("x",), ("y",), {"axis": "last"})
    with pytest.raises(ModelError, match="cannot have 'last' as 'axis'"):
        to_bytes(Graph((node,), ("x",), ("y",), {"x": kind, "y": kind}))


@daily.day(1, of=3)
def test_an_original_holds_each_part_once(digits: bytes) -> None:
    read = PackedModel.load(rewritten(digits, lied("bomb")))
    with pytest.raises(PackError, match="damaged"):
        read.original()


def test_golden_values_of_other_types_are_refused(digits: bytes) -> None:
    read = PackedModel.load(rewritten(digits, lied("golden")))
    with pytest.raises(PackError):
        read.golden(read.specialise())


def mutated(value: Any, source: random.Random) -> Any:
    """Return JSON with one value in it replaced, moved or left out."""
    if isinstance(value, list) and value and source.random() < 0.9:
        at = source.randrange(len(value))
        if source.random() < 0.15:
            return value[:at] + value[at + 1 :]
        return [*value[:at], mutated(value[at], source), *value[at + 1 :]]
    if isinstance(value, dict) and value and source.random() < 0.9:
        name = source.choice([*value])
        if source.random() < 0.15:
            return {n: v for n, v in value.items() if n != name}
        return {**value, name: mutated(value[name], source)}
    odd = [None, -1, 0, 2**63, 10**400, 1.5, True, "", "image", "relu1", [], {}, [0], {"part": "x"}]
    return source.choice(odd)


def test_forged_records_with_right_hashes_give_errors_of_ours(digits: bytes) -> None:
    """Graph and attributes may be another model's then; what is asked is that nothing else ends."""
    source, ran = random.Random(9), 0
    record = json.loads(opened(digits).parts[MODEL].tobytes())
    for _ in range(FORGERIES):
        text = json.dumps(mutated(record, source)).encode()

        def change(_: About, parts: dict[str, Any], text: bytes = text) -> None:
            parts[MODEL] = np.frombuffer(text, np.uint8)

        try:
            read = PackedModel.load(rewritten(digits, change))
            graph = read.specialise()
            read.golden(graph)
            ran += 1
        except GpuEdgeError:
            continue
    assert 0 < ran < FORGERIES // 2  # names and what is only told may be anything


def test_arrays_of_every_dtype_come_back(tmp_path: Path) -> None:
    kinds = ("float64", "int64", "float32", "int32", "float16", "int16", "int8", "uint8", "bool")
    weights = [weight(k, np.arange(3).astype(k)) for k in kinds]
    weights += [weight("none", np.zeros((0, 2), np.float32)), weight("one", np.float32(2))]
    nodes = [helper.make_node("Cast", [k], [f"{k}_y"], to=1) for k in kinds]
    nodes.append(helper.make_node("Sum", ["x", *(f"{k}_y" for k in kinds)], ["s"]))
    nodes.append(helper.make_node("Mul", ["s", "one"], ["y"]))
    proto = model(nodes, [value("x", [3])], [value("y", [3])], weights)
    gpuedge.pack(proto, tmp_path / "a.gpuedge")
    x = np.array([1, 2, 3], np.float32)
    with gpuedge.Session(tmp_path / "a.gpuedge", device="cpu") as session:
        found = session.run({"x": x})["y"]
    np.testing.assert_array_equal(found, by_reference(proto, {"x": x})["y"])


def reshaped() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["m"]),
        helper.make_node("Reshape", ["m", "s"], ["r"]),
        helper.make_node("Relu", ["r"], ["y"]),
    ]
    inputs = [value("x", [6]), value("s", [2], onnx.TensorProto.INT64)]
    weights = [weight("w", np.array([-1, 2, -3, 4, -5, 6], np.float32))]
    return model(nodes, inputs, [value("y", ["a", "b"])], weights)


def test_graphs_that_depend_on_values_are_made_of_the_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proto, path = reshaped(), tmp_path / "a.gpuedge"
    gpuedge.pack(proto, path)
    x = np.arange(6, dtype=np.float32)
    for shape in ([2, 3], [6, 1]):
        with gpuedge.Session(path, device="cpu") as session:
            got = session.run({"x": x, "s": np.array(shape)})["y"]
        wanted = np.maximum(x * [-1, 2, -3, 4, -5, 6], 0).reshape(shape)
        np.testing.assert_array_equal(got, wanted)
    known = PackedModel.load(path)
    fixed = (6,), Fixed.of(np.array([2, 3]))
    assert known.parameters == {"s"} == OnnxModel.load(proto).parameters
    assert known.with_shapes(fixed).graph.shape("y") == (2, 3)
    monkeypatch.setattr(packed.OnnxModel, "load", missing)
    with pytest.raises(PackError, match="values of 's'"):
        PackedModel.load(path).with_shapes(fixed)


@pytest.mark.parametrize("kind", ["INT4", "UINT4"])
@pytest.mark.parametrize("columns", [64, 33])
def test_weights_of_4_bits(kind: str, columns: int, tmp_path: Path) -> None:
    random = np.random.default_rng(columns)
    low = -8 if kind == "INT4" else 0
    codes = random.integers(low, low + 16, (96, columns))
    held_w = helper.make_tensor("w", getattr(onnx.TensorProto, kind), codes.shape, codes.ravel())
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "scale"], ["f"]),
        helper.make_node("MatMul", ["x", "f"], ["y"]),
    ]
    held = [held_w, weight("scale", np.float32(0.25))]
    proto = model(nodes, [value("x", [2, 96])], [value("y", [2, columns])], held, opset=21)
    data = proto.SerializeToString()
    gpuedge.pack(data, tmp_path / "a.gpuedge")
    read = PackedModel.load(tmp_path / "a.gpuedge")
    assert read.original() == data
    (found,) = (a for a in read.specialise().constants.values() if a.dtype.name == kind.lower())
    np.testing.assert_array_equal(found.astype(int), codes)
    x = random.integers(-4, 5, (2, 96)).astype(np.float32)
    with gpuedge.Session(tmp_path / "a.gpuedge", device="cpu") as session:
        np.testing.assert_array_equal(session.run([x])["y"], x @ (codes * 0.25))


def test_a_model_of_no_weights(tmp_path: Path) -> None:
    done = gpuedge.pack(relu(), tmp_path / "r.gpuedge", shapes=[{"x": (2, 3)}, {"x": (5, 3)}])
    assert done.shapes == ({"x": (2, 3)}, {"x": (5, 3)})
    assert done.golden == ("", "")
    x = np.array([[-1, 0, 1]], np.float32).repeat(5, 0)
    with gpuedge.Session(tmp_path / "r.gpuedge", device="cpu") as session:
        np.testing.assert_array_equal(session.run([x])["y"], np.maximum(x, 0))
