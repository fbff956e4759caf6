"""The models of test_hostile_models: functions from a folder to a path, bytes or a message."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from hostile_bytes import chain, deep_type, field, nested, node_bytes, port, varint, wide, wrapped
from onnx import AttributeProto, TensorProto, helper
from onnx_models import I64, model, relu, value, weight

Model = Path | bytes | onnx.ModelProto
Build = Callable[[Path], Model]
CASES: dict[str, Build] = {}
BOOL = TensorProto.BOOL


def case(function: Build) -> Build:
    """Add a model under its function's name."""
    CASES[function.__name__] = function
    return function


def fixed(name: str, made: Model) -> None:
    """Add a model that needs no files."""
    CASES[name] = lambda _: made


def one(
    op: str, inputs: list[str], weights: dict[str, Any] | None = None, size: Any = (1,), **more: Any
) -> Any:
    """Return a model of one node ``bomb`` from x, of this size, to y."""
    node = helper.make_node(op, inputs, ["y"], name="bomb", **more)
    held = [weight(n, v) for n, v in (weights or {}).items()]
    return model([node], [value("x", size)], [value("y", None)], held, opset=19)


# --- counts and depths ------------------------------------------------------------------------

for name, builder, count in (
    ("nested_30", nested, 30), ("nested_2000", nested, 2_000),
    ("type_of_2000_levels", deep_type, 2_000),
    ("nodes_5000", chain, 5_000), ("nodes_500000", chain, 500_000),
    ("inputs_3000", wide, 3_000), ("inputs_200000", wide, 200_000),
):  # fmt: skip
    CASES[name] = lambda _, build=builder, n=count: build(n)  # type: ignore[misc]
CASES["opsets_500000"] = lambda _: relu().SerializeToString() + field(8, b"") * 500_000
CASES["empty_nodes_500000"] = lambda _: (
    relu().SerializeToString() + field(7, field(1, b"") * 500_000)
)
fixed("groups_100000", varint(8) + varint(8) + bytes([163, 6]) * 100_000)
CASES["attributes_50000"] = lambda _: wrapped(
    node_bytes(b"Relu", [b"x"], [b"y"], field(5, field(1, b"a") + b"\xa0\x01\x02") * 50_000)
    + port(11, "x")
    + port(12, "y")
)
CASES["node_of_20000_inputs"] = lambda _: model(
    [helper.make_node("Sum", ["x"] * 20_000, ["y"])], [value("x", [1])], [value("y", [1])]
)

# --- weights in other files ------------------------------------------------------------------


def outside(location: str, shape: tuple[int, ...] = (4,), **entries: int) -> onnx.TensorProto:
    """Return a weight that lies in a file."""
    tensor = TensorProto(name="w", dims=shape, data_type=TensorProto.FLOAT)
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(text))
    return tensor


def saved(folder: Path, proto: onnx.ModelProto) -> Path:
    """Write a model into its folder, and a secret beside the folder."""
    (folder.parent / "secret.bin").write_bytes(bytes(16))
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def added(folder: Path, *tensors: onnx.TensorProto) -> Path:
    """Return a model that adds a weight in a file to its input."""
    node = helper.make_node("Add", ["x", "w"], ["y"])
    return saved(folder, model([node], [value("x", [1])], [value("y", None)], list(tensors)))


def sparse_file(folder: Path, size: int) -> None:
    """Make a file of zeros that takes no room."""
    with open(folder / "w.bin", "wb") as file:
        file.truncate(size)


@case
def external_pipe(folder: Path) -> Model:
    os.mkfifo(folder / "w.bin")
    return added(folder, outside("w.bin"))


@case
def external_folder(folder: Path) -> Model:
    (folder / "w.bin").mkdir()
    return added(folder, outside("w.bin"))


@case
def external_device_by_link(folder: Path) -> Model:
    (folder / "w.bin").symlink_to("/dev/zero")
    return added(folder, outside("w.bin"))


@case
def external_proc(folder: Path) -> Model:
    return added(folder, outside("/proc/self/environ"))


@case
def external_links_in_a_circle(folder: Path) -> Model:
    (folder / "w.bin").symlink_to(folder / "w.bin")
    return added(folder, outside("w.bin"))


@case
def external_start_of_a_long_file(folder: Path) -> Model:
    sparse_file(folder, 1 << 40)
    return added(folder, outside("w.bin"))


@case
def external_longer_than_its_shape(folder: Path) -> Model:
    sparse_file(folder, 1 << 40)
    return added(folder, outside("w.bin", length=1 << 40))


@case
def external_3_gigabytes(folder: Path) -> Model:
    sparse_file(folder, 3 << 30)
    return added(folder, outside("w.bin", (3 << 28,), length=3 << 30))


@case
def external_one_file_64_times(folder: Path) -> Model:
    sparse_file(folder, 1 << 30)
    tensors = [outside("w.bin", (1 << 28,)) for _ in range(64)]
    for i, tensor in enumerate(tensors[1:]):
        tensor.name = f"w{i}"
    return added(folder, *tensors)


@case
def external_beyond_the_end(folder: Path) -> Model:
    sparse_file(folder, 16)
    return added(folder, outside("w.bin", offset=2**62))


@case
def external_overflow(folder: Path) -> Model:
    sparse_file(folder, 16)
    return added(folder, outside("w.bin", (2**62 + 1, 4)))


@case
def external_text(folder: Path) -> Model:
    sparse_file(folder, 16)
    tensor = outside("w.bin")
    tensor.data_type = TensorProto.STRING
    return added(folder, tensor)


def sparse(values: onnx.TensorProto, extent: int) -> onnx.SparseTensorProto:
    """Return a sparse tensor of `extent` elements."""
    made = onnx.SparseTensorProto(values=values, dims=[extent])
    made.indices.CopyFrom(weight("i", np.arange(int(np.prod(values.dims)))))
    return made


def constant(**held: Any) -> list[onnx.NodeProto]:
    """Return nodes that add a constant to x."""
    made = helper.make_node("Constant", [], ["c"], **held)
    return [made, helper.make_node("Add", ["x", "c"], ["y"])]


@case
def external_in_function(folder: Path) -> Model:
    return saved(folder, functions(("F", constant(value=outside("../secret.bin")))))


@case
def external_in_sparse_constant(folder: Path) -> Model:
    nodes = constant(sparse_value=sparse(outside("../secret.bin"), 4))
    return saved(folder, model(nodes, [value("x", [4])], [value("y", None)]))


@case
def external_in_subgraph(folder: Path) -> Model:
    node = helper.make_node("Identity", ["w"], ["z"])
    graph = helper.make_graph([node], "b", [], [value("z", [4])], [outside("../secret.bin")])
    node = helper.make_node("If", ["c"], ["y"], then_branch=graph, else_branch=graph)
    return saved(folder, model([node], [value("c", [], BOOL)], [value("y", [4])]))


# --- functions -------------------------------------------------------------------------------


def functions(*bodies: tuple[str, Any]) -> onnx.ModelProto:
    """Return a model that calls the first function; a body is nodes, or names called in a row."""
    made = []
    for name, body in bodies:
        nodes = body if isinstance(body[0], onnx.NodeProto) else calls(body)
        imports = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
        made.append(helper.make_function("f", name, ["x"], ["y"], nodes, imports))
    node = helper.make_node(bodies[0][0], ["x"], ["y"], domain="f")
    extra = {"functions": made, "imports": [helper.make_opsetid("f", 1)]}
    return model([node], [value("x", [4])], [value("y", [4])], **extra)


def calls(names: list[str]) -> list[onnx.NodeProto]:
    """Return a chain of calls from x to y."""
    ends = ["x", *[f"t{i}" for i in range(len(names) - 1)], "y"]
    return [
        helper.make_node(name, [ends[i]], [ends[i + 1]], domain="" if name == "Relu" else "f")
        for i, name in enumerate(names)
    ]


def doubling(levels: int) -> onnx.ModelProto:
    """Return functions that call the next one twice."""
    pairs = [(f"F{i}", [f"F{i + 1}"] * 2) for i in range(levels)]
    return functions(*pairs, (f"F{levels}", ["Relu"]))


large = constant(value=weight("", np.zeros(1 << 18, np.float32)))
fixed("function_calls_itself", functions(("F", ["F"])))
fixed("functions_in_a_circle", functions(("F", ["G"]), ("G", ["H"]), ("H", ["F"])))
fixed("functions_5_doublings", doubling(5))
fixed("functions_40_doublings", doubling(40))
fixed("functions_of_10_gigabytes", functions(("F", ["G"] * 100), ("G", ["H"] * 100), ("H", large)))
CASES["functions_10001"] = lambda _: functions(
    *[(f"F{i}", [f"F{i + 1}"]) for i in range(10_000)], ("F10000", ["Relu"])
)

# --- sizes -----------------------------------------------------------------------------------

HUGE = 2**40
for op, shape, weights, attributes in (
    ("Expand", (1,), {"to": np.array([HUGE])}, {}),
    ("ConstantOfShape", None, {"to": np.array([HUGE])}, {}),
    ("Tile", (1,), {"to": np.array([HUGE])}, {}),
    ("Pad", (1,), {"to": np.array([0, HUGE])}, {}),
    ("Col2Im", (1, 1, 1), {"a": np.array([HUGE, 1]), "b": np.array([1, 1])}, {}),
    ("HannWindow", None, {"n": np.array(HUGE)}, {}),
    ("MaxUnpool", (1,) * 4, {"i": np.zeros((1,) * 4, np.int64), "to": np.array([1, 1, 1, HUGE])},
     {"kernel_shape": [1, 1]}),
    ("RandomNormal", None, {}, {"shape": [HUGE]}),
    ("Range", None, {"a": np.array(0), "n": np.array(HUGE), "by": np.array(1)}, {}),
    ("OneHot", None, {"i": np.array([1]), "n": np.array(HUGE), "v": np.array([0, 1], np.float32)},
     {}),
):  # fmt: skip
    names = ([] if shape is None else ["x"]) + list(weights)
    fixed(f"huge_{op}", one(op, names, weights, shape or (1,), **attributes))
fixed("huge_Split", model([helper.make_node("Split", ["x"], ["y", "z"], "s", num_outputs=HUGE)],
                          [value("x", [4])], [value("y", None)], opset=18))  # fmt: skip
fixed("huge_Resize", one("Resize", ["x", "", "to"], {"to": np.array([HUGE], np.float32)}))
fixed("huge_sparse", model(constant(sparse_value=sparse(weight("w", np.ones(1, "f")), HUGE)),
                           [value("x", [1])], [value("y", None)]))  # fmt: skip
fixed("huge_doubling", model(
    [helper.make_node("Concat", [f"v{i}"] * 2, [f"v{i + 1}"], axis=0) for i in range(40)],
    [value("v0", [1])], [value("v40", None)]))  # fmt: skip


def growing(op: str, head: Any, shape: Any = (1,), rounds: int = 40, **more: Any) -> Any:
    """Return nodes that put a value together with itself, again and again, and add up the last.

    `head` are nodes from x to v0, and weights.
    """
    nodes, weights = head
    more = more or ({"axis": 0} if op == "Concat" else {})
    for i in range(rounds):
        nodes = [*nodes, helper.make_node(op, [f"v{i}"] * 2, [f"v{i + 1}"], **more)]
    nodes = [*nodes, helper.make_node("ReduceSum", [f"v{rounds}"], ["y"], keepdims=0)]
    return model(nodes, [value("x", shape)], [value("y", None)], weights, opset=17)


def body(name: str, nodes: list[Any], state: str, result: str, *stacked: str) -> Any:
    """Return a body of a Loop that goes on, from one value to the next."""
    given = [value("i", [], I64), value("c", [], BOOL), value(state, None)]
    made = [value("on", [], BOOL), value(result, None), *(value(s, None) for s in stacked)]
    return helper.make_graph(
        [helper.make_node("Identity", ["c"], ["on"]), *nodes], name, given, made
    )


def looped(nodes: list[Any], result: str, *stacked: str, rounds: int = 40) -> Any:
    """Return a model of a Loop from x."""
    outputs = ["z", *("y" for _ in stacked)] if stacked else ["y"]
    node = helper.make_node("Loop", ["n", "", "x"], outputs, "bomb",
                            body=body("b", nodes, "s", result, *stacked))  # fmt: skip
    return model([node], [value("x", [4])], [value("y", None)], [weight("n", np.array(rounds))])


again = helper.make_node("Concat", ["s", "s"], ["t"], axis=0)
start = ([helper.make_node("Identity", ["x"], ["v0"])], [])
fixed("growing_open", growing("Concat", start, ("N",)))
fixed("growing_fixed", growing("Concat", start))
fixed("growing_constant", growing("Concat", ([], [weight("v0", np.ones(1, np.float32))])))
fixed("growing_behind_reshape", growing("Concat", (
    [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Reshape", ["x", "s"], ["v0"])], []
), ("N",)))  # fmt: skip
fixed("growing_beside_if", model(
    [helper.make_node("Concat", [f"v{i}"] * 2, [f"v{i + 1}"], axis=0) for i in range(40)]
    + [helper.make_node("If", ["c"], ["e"], then_branch=helper.make_graph(
        [helper.make_node("Identity", ["x"], ["t"])], "t", [], [value("t", None)]),
        else_branch=helper.make_graph([helper.make_node("Neg", ["x"], ["f"])], "f", [],
                                      [value("f", None)])),
       helper.make_node("ReduceSum", ["v40"], ["r"], keepdims=0),
       helper.make_node("Add", ["r", "e"], ["y"])],
    [value("x", [1]), value("c", [], BOOL)], [value("y", None)],
    [weight("v0", np.ones(1, np.float32))]))  # fmt: skip
fixed("growing_broadcast", model(
    [helper.make_node("Unsqueeze", ["x", "a"], ["c"]), helper.make_node("Add", ["x", "c"], ["s"]),
     helper.make_node("ReduceMax", ["s"], ["y"], keepdims=0)],
    [value("x", [1 << 19])], [value("y", None)], [weight("a", np.array([1]))]))  # fmt: skip
fixed("growing_product", model(
    [helper.make_node("MatMul", ["u", "x"], ["s"]),
     helper.make_node("ReduceMax", ["s"], ["y"], keepdims=0)],
    [value("x", [1, 1 << 19])], [value("y", None)],
    [weight("u", np.ones((1 << 19, 1), np.float32))]))  # fmt: skip
fixed("growing_picked_up", model(
    [helper.make_node("Gather", ["x", "i"], ["s"]),
     helper.make_node("Gather", ["s", "i"], ["t"], axis=1),
     helper.make_node("ReduceMax", ["t"], ["y"], keepdims=0)],
    [value("x", [2, 2])], [value("y", None)],
    [weight("i", np.zeros(1 << 19, np.int64))]))  # fmt: skip
fixed("growing_transposed", one("ConvTranspose", ["x", "w"], {"w": np.ones((1, 1, 1), np.float32)},
                                (1, 1, 3), strides=[1 << 36]))  # fmt: skip
fixed("growing_wrapped", one("ConvTranspose", ["x", "w"], {"w": np.ones((1, 1, 1), np.float32)},
                             (1, 1, 5), strides=[1 << 62]))  # fmt: skip
fixed("growing_loop", looped([again], "t"))
fixed("growing_stack", looped([helper.make_node("Neg", ["s"], ["t"])], "t", "t", rounds=1 << 36))
fixed("growing_scan", model(
    [helper.make_node("Scan", ["x"], ["y"], "bomb", num_scan_inputs=1, body=helper.make_graph(
        [helper.make_node("Concat", [f"v{i}"] * 2, [f"v{i + 1}"], axis=0) for i in range(40)]
        + [helper.make_node("ReduceSum", ["v40"], ["r"], keepdims=0)],
        "b", [value("v0", [1])], [value("r", None)]))],
    [value("x", [3, 1])], [value("y", None)]))  # fmt: skip
fixed("growing_in_a_branch", model(
    [helper.make_node("If", ["c"], ["y"], **{
        f"{name}_branch": helper.make_graph(
            [helper.make_node("Concat", ["x", "x"], [f"{name}0"], axis=0)]
            + [helper.make_node("Concat", [f"{name}{i}"] * 2, [f"{name}{i + 1}"], axis=0)
               for i in range(40)]
            + [helper.make_node("ReduceSum", [f"{name}40"], [name], keepdims=0)],
            name, [], [value(name, None)])
        for name in ("then", "else")})],
    [value("x", [1]), value("c", [], BOOL)], [value("y", None)]))  # fmt: skip
fixed(
    "loop_that_grows_little", looped([helper.make_node("Concat", ["s", "x"], ["t"], axis=0)], "t")
)
fixed(
    "folded_6_gigabytes",
    model(
        [helper.make_node("ConstantOfShape", ["to"], [f"v{i}"]) for i in range(100)]
        + [helper.make_node("Shape", [f"v{i}"], [f"s{i}"]) for i in range(100)]
        + [helper.make_node("Max", ["x", *[f"s{i}" for i in range(100)]], ["y"])],
        [value("x", [1], I64)],
        [value("y", [1], I64)],
        [weight("to", np.array([15 << 20]))],
    ),
)
fixed("negative_shape", one("ConstantOfShape", ["to"], {"to": np.array([-HUGE])}))
fixed("negative_input", one("Relu", ["x"], size=[-5]))
fixed("overflowing_input", one("Relu", ["x"], size=[2**32, 2**32]))
fixed("rank_1000", one("Relu", ["x"], size=[1] * 1000))
for name, dims, raw in (
    ("2_gigabytes", [2**31], 16),
    ("negative", [-4], 16),
    ("overflow", [2**62 + 1, 4], 16),
    ("empty_and_huge", [0, 2**62, 2**62], 0),
    ("rank_1000", [1] * 1000, 4),
):
    tensor = TensorProto(name="w", dims=dims, data_type=TensorProto.FLOAT, raw_data=bytes(raw))
    fixed(f"weight_{name}", model([helper.make_node("Add", ["x", "w"], ["y"])], [value("x", [1])],
                                  [value("y", None)], [tensor]))  # fmt: skip

# --- what things are called and said to be ---------------------------------------------------

for name, text in {
    "nul": "a\0b",
    "escape": "\x1b[2J\x1b]0;owned\x07",
    "line": "a\n[GE-999] no",
    "long": "n" * (1 << 20),
    "backwards": "\u202eabc",
}.items():
    fixed(f"name_{name}_runs", model([helper.make_node("Relu", [text], ["y"], text)],
                                     [value(text, [2])], [value("y", None)]))  # fmt: skip
    fixed(f"name_{name}_operator", model([helper.make_node(text, ["x"], ["y"], text)],
                                         [value("x", [2])], [value("y", None)]))  # fmt: skip
    fixed(f"name_{name}_weight", one("Add", ["x", text], {text: np.float32([np.nan])}))
    fixed(
        f"name_{name}_shape",
        model(
            [helper.make_node("Add", ["x", text], ["y"], text)],
            [value("x", [2]), value(text, [3])],
            [value("y", None)],
        ),
    )

relu_node = helper.make_node("Relu", ["x"], ["y"])
referring = helper.make_node("Conv", ["x", "w"], ["y"])
referring.attribute.append(
    AttributeProto(name="strides", type=AttributeProto.INTS, ref_attr_name="up")
)
fixed(
    "attribute_of_no_function",
    model(
        [referring],
        [value("x", [1, 1, 4, 4])],
        [value("y", None)],
        [weight("w", np.ones((1, 1, 3, 3), "f"))],
    ),
)
fixed("output_type_wrong", model([relu_node], [value("x", [1])], [value("y", [1], I64)]))
fixed("output_size_wrong", model([relu_node], [value("x", [2])], [value("y", [2**62, 2**62])]))
fixed("input_twice", model([relu_node], [value("x", [1])] * 2, [value("y", None)]))
fixed("weight_twice", one("Add", ["x", "w"], {"w": np.ones(1, "f")}))
CASES["weight_twice"](Path()).graph.initializer.append(weight("w", np.zeros(1, "f")))
fixed("reads_itself", model([helper.make_node("Add", ["x", "y"], ["y"])], [value("x", [1])],
                            [value("y", [1])]))  # fmt: skip
for name, pairs in {
    "none": [],
    "billion": [("", 10**9)],
    "negative": [("", -1)],
    "two": [("", 17), ("ai.onnx", 1)],
    "other": [("", 17), ("ai.onnx.ml", 2**62)],
}.items():
    odd = relu()
    del odd.opset_import[:]
    odd.opset_import.extend(helper.make_opsetid(*pair) for pair in pairs)
    fixed(f"opset_{name}", odd)
