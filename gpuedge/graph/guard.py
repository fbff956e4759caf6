"""Models for ONNX Runtime without what it errs at, whatever the values are.

The least integer divided by -1 would end the process: the quotient does not fit, and the processor
traps. Such divisions are written so that -1 never divides; the results are those of two's
complement, and those of all other operands do not change. Where a divisor is constant, as in
arithmetic on shapes, nothing is done.

To Unique NaN is equal to whatever it is compared with (seen with 1.32.0). It is given numbers of
the same order among which NaN is infinity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from gpuedge.graph import schema
from gpuedge.graph.ir import Array

if TYPE_CHECKING:
    import onnx

FLOATS = ("float32", "float64")
"""Dtypes with NaN that it has a kernel of Unique for."""

TRAPPED = ("int32", "int64")
"""Dtypes whose quotients a processor computes as they are; narrower ones it widens."""


def guard(proto: onnx.ModelProto) -> bool:
    """Write a model so that ONNX Runtime errs at none of its nodes; return whether any is other.

    What the dtype of is not known, behind operators that ONNX has no schema of, stays as it is.
    """
    opset = {"" if i.domain == "ai.onnx" else i.domain: i.version for i in proto.opset_import}
    return _guard(proto.graph, opset, {}, {})


def _guard(
    graph: onnx.GraphProto, opset: Mapping[str, int], outer: Mapping[str, str],
    known: Mapping[str, onnx.TensorProto],
) -> bool:  # fmt: skip
    held = {**known, **{t.name: t for t in graph.initializer}}
    held |= {n.output[0]: a.t for n in graph.node if n.op_type == "Constant"
             for a in n.attribute if a.name == "value"}  # fmt: skip
    if not any(_may_err(node, held) for node in graph.node):
        return False
    kinds = _dtypes(graph, opset, outer)
    nodes, is_changed = list["onnx.NodeProto"](), False
    for node in graph.node:
        for inner in (a.g for a in node.attribute if a.HasField("g")):
            is_changed |= _guard(inner, opset, kinds, held)
        if _divides(node, held) and kinds.get(node.input[1]) in TRAPPED:
            nodes += _guarded(node, kinds[node.input[1]])
            is_changed = True
        elif _is_unique(node) and kinds.get(node.input[0]) in FLOATS:
            nodes += _ordered(node)
            is_changed = True
        else:
            nodes.append(node)
    if is_changed:
        copies = [type(n).FromString(n.SerializeToString()) for n in nodes]
        del graph.node[:]
        graph.node.extend(copies)
    return is_changed


def _may_err(node: onnx.NodeProto, held: Mapping[str, onnx.TensorProto]) -> bool:
    """Tell whether ONNX Runtime may err at a node, or at one in it."""
    inner = (n for a in node.attribute if a.HasField("g") for n in a.g.node)
    return _divides(node, held) or _is_unique(node) or any(_may_err(n, held) for n in inner)


def _constant(name: str, value: Array) -> onnx.NodeProto:
    from gpuedge.graph.onnx_package import helper, numpy_helper

    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value))


def _is_unique(node: onnx.NodeProto) -> bool:
    return node.op_type == "Unique" and node.domain in ("", "ai.onnx")


def _ordered(node: onnx.NodeProto) -> Iterable[onnx.NodeProto]:
    """Return a Unique of doubles: NaN is infinity, and infinity the largest finite one."""
    from gpuedge.graph.onnx_package import helper

    (x,), (y, *others) = node.input, node.output

    def own(result: str) -> str:
        return f"{y}/{result}"

    wide, places = own("wide"), (*others, "")[0] or own("places")
    yield helper.make_node("Cast", [x], [wide], to=schema.element_type("float64"))
    yield _constant(own("infinity"), np.array(np.inf))
    yield _constant(own("largest"), np.array(np.finfo(np.float64).max))
    yield helper.make_node("Equal", [wide, own("infinity")], [own("is_infinite")])
    yield helper.make_node("Where", [own("is_infinite"), own("largest"), wide], [own("finite")])
    yield helper.make_node("IsNaN", [x], [own("is_nan")])
    yield helper.make_node("Where", [own("is_nan"), own("infinity"), own("finite")], [own("order")])
    unique = helper.make_node("Unique", [own("order")], [own("unique"), places, *others[1:]])
    unique.name = node.name
    unique.attribute.extend(node.attribute)
    yield unique
    axis = [a.i for a in node.attribute if a.name == "axis"]
    rows = x if axis else own("row")
    if not axis:
        yield _constant(own("all"), np.array([-1]))
        yield helper.make_node("Reshape", [x, own("all")], [rows])
    yield helper.make_node("Gather", [rows, places], [y], axis=axis[0] if axis else 0)


def _divides(node: onnx.NodeProto, held: Mapping[str, onnx.TensorProto]) -> bool:
    """Tell whether a node is a division, but by a constant that is never -1."""
    if node.op_type not in ("Div", "Mod") or node.domain not in ("", "ai.onnx"):
        return False
    divisor = held.get(node.input[1])
    if divisor is None:
        return True
    if schema.dtype_name(divisor.data_type) not in TRAPPED:
        return False
    from gpuedge.graph.onnx_package import numpy_helper

    return bool((numpy_helper.to_array(divisor) == -1).any())


def _guarded(node: onnx.NodeProto, dtype: str) -> Iterable[onnx.NodeProto]:
    """Return a division by 1 where that by -1 was asked for, and what corrects its sign."""
    from gpuedge.graph.onnx_package import helper

    (a, b), (y,) = node.input, node.output

    def own(result: str) -> str:
        return f"{y}/{result}"

    flag, kind = own("is_minus_one"), schema.element_type(dtype)
    yield _constant(own("minus_one"), np.array(-1, dtype))
    yield helper.make_node("Equal", [b, own("minus_one")], [flag])
    yield helper.make_node("Cast", [flag], [own("flag")], to=kind)
    yield helper.make_node("Add", [own("flag"), own("flag")], [own("two")])
    yield helper.make_node("Add", [b, own("two")], [own("divisor")])
    result = y if node.op_type == "Mod" else own("size")
    division = helper.make_node(node.op_type, [a, own("divisor")], [result], name=node.name)
    division.attribute.extend(node.attribute)
    yield division
    if node.op_type == "Div":
        yield _constant(own("one"), np.array(1, dtype))
        yield helper.make_node("Sub", [own("one"), own("two")], [own("sign")])
        yield helper.make_node("Mul", [own("size"), own("sign")], [y])


def _dtypes(
    graph: onnx.GraphProto, opset: Mapping[str, int], outer: Mapping[str, str]
) -> dict[str, str]:
    """Return the dtypes of values, as far as declarations and schemas tell."""
    stated = (*graph.input, *graph.output, *graph.value_info)
    dtypes = dict(outer)
    dtypes |= {v.name: schema.dtype_name(v.type.tensor_type.elem_type) for v in stated
              if v.type.tensor_type.elem_type}  # fmt: skip
    dtypes |= {t.name: schema.dtype_name(t.data_type) for t in graph.initializer}
    for node in graph.node:
        for i, name in enumerate(node.output):
            kind = _result(node, i, dtypes, opset) if name and name not in dtypes else ""
            if kind:
                dtypes[name] = kind
    return dtypes


def _result(
    node: onnx.NodeProto, index: int, dtypes: Mapping[str, str], opset: Mapping[str, int]
) -> str:
    """Return the dtype of an output; empty where it is not known."""
    for attribute in node.attribute:
        if attribute.name in ("to", "dtype", "output_dtype") and attribute.i:
            return schema.dtype_name(attribute.i)
        if attribute.name == "value" and attribute.HasField("t"):
            return schema.dtype_name(attribute.t.data_type)
        for inner in (attribute.g,) if attribute.HasField("g") else ():
            kinds = _dtypes(inner, opset, dtypes)
            if index < len(inner.output):
                return kinds.get(inner.output[index].name, "")
    domain = "" if node.domain == "ai.onnx" else node.domain
    reads, gives = _signature(node.op_type, domain, opset.get(domain, 0))
    if not gives:
        return ""
    formal = gives[min(index, len(gives) - 1)]
    for i, name in enumerate(node.input):
        if name in dtypes and reads[min(i, len(reads) - 1)] == formal:
            return dtypes[name]
    text = formal.removeprefix("tensor(").removesuffix(")")
    return text if text in (*TRAPPED, "bool") else ""


@cache
def _signature(op: str, domain: str, version: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what types an operator reads and gives, as its schema names them; empty if none."""
    known = schema.find(op, domain, {domain: version})
    if known is None:
        return (), ()
    return tuple(i.type_str for i in known.inputs), tuple(o.type_str for o in known.outputs)
