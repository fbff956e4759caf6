"""From a path, bytes or a ModelProto to checked bytes of an ONNX model, or a clear ModelError."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuedge.core.errors import ModelError, UnsupportedOpError
from gpuedge.core.text import shown
from gpuedge.graph import schema
from gpuedge.graph.external import load_external
from gpuedge.graph.limits import Counted, check_expansion, counted
from gpuedge.graph.offenders import LINE
from gpuedge.graph.writer import PROTOBUF_LIMIT
from gpuedge.safety.paths import check_readable, read_start

if TYPE_CHECKING:
    import onnx

LISTED = 3
"""The format version up to which every weight had to be listed as an input."""

_SIGNATURES: tuple[tuple[int, bytes, str], ...] = (
    (0, b"PK\x03\x04", "a zip archive, as PyTorch and NumPy write them"),
    (4, b"TFL3", "a TensorFlow Lite model"),
    (4, b"ORTM", "an ONNX Runtime .ort model"),
    (0, b"\x89HDF", "an HDF5 file, as Keras writes them"),
    (0, b"\x1f\x8b", "a gzip archive"),
    (0, b"\x80\x02", "a Python pickle"),
    (0, b"\x93NUMPY", "a numpy array"),
    (8, b'{"__metadata__"', "a packed model, or another safetensors file"),
    (0, b"<", "a text starting with '<'"),
    (0, b"{", "a text starting with '{'"),
    (0, b"version https://git-lfs", "a Git LFS pointer; the file itself was not downloaded"),
)
"""(offset, bytes, meaning) of files that are often mistaken for ONNX models."""


def raised(model: Any, opset: int) -> onnx.ModelProto:
    """Return a copy of a model in operator set `opset`, or its own where that is newer.

    Raises as `load`, and ModelError (GE-500) where ONNX cannot convert it.
    """
    from gpuedge.graph.onnx_package import version_converter

    proto = parsed(load(model)[1])
    stated = min((i.version for i in proto.opset_import if i.domain in ("", "ai.onnx")), default=1)
    if stated >= opset:
        return proto
    try:
        converted: onnx.ModelProto = version_converter.convert_version(proto, opset)
        return converted
    except Exception as error:  # its errors have no common class
        raise ModelError(
            f"The model cannot be raised from operator set {stated} to {opset}: {error}",
            hint="export it again with a newer operator set",
        ) from error


def load(model: Any) -> tuple[onnx.ModelProto, bytes]:
    """Return the checked model, weights included and model-local functions expanded.

    As a message and in bytes, which are those that were given where nothing had to change.

    Parameters
    ----------
    model : str, os.PathLike, bytes or onnx.ModelProto
        The model. A ModelProto is not modified.

    Raises
    ------
    ModelError (GE-500)
        It cannot be read or is not a valid model; says what was found.
    UnsupportedOpError (GE-501)
        It uses an operator that does not exist in its operator set.
    """
    from gpuedge.graph.onnx_package import onnx

    if isinstance(model, (str, os.PathLike)):
        path = Path(model)
        data, source, folder = contents(path), str(path), path.resolve().parent
    elif isinstance(model, onnx.ModelProto):
        data, source, folder = _serialise(model), "the ModelProto", None
    elif isinstance(model, (bytes, bytearray, memoryview)):
        data, source, folder = bytes(model), f"{len(model)} bytes", None
    else:
        raise ModelError(
            f"A model cannot be read from a {type(model).__name__}.",
            hint="give a path, the bytes of a file, or an onnx.ModelProto",
        )
    proto = _parse(data, source)
    is_changed = bool(proto.training_info)
    proto.ClearField("training_info")  # never run, so never read
    held, bodies = counted(proto, source)
    _check_texts(proto, source)
    _check_operators(proto, held, bodies, source)
    if proto.functions:  # before anything writes them out
        check_expansion(proto, held, bodies, source)
    tensors = chain(held.tensors, *(body.tensors for body in bodies))
    is_changed |= load_external(tensors, source, folder, len(data))
    is_changed |= _unlist(proto)
    if not all(map(_has_element, proto.graph.output)):
        is_changed |= complete(proto)
    if is_changed:
        data = _serialise(proto)
    _check(proto, data, source)
    if proto.functions:
        proto = _inlined(proto, source)
        data, held = _serialise(proto), Counted(proto.graph, source)
    _check_references(held, source)
    return proto, data


def _unlist(proto: onnx.ModelProto) -> bool:
    """Take weights out of the inputs, where they could not be folded; return whether any were."""
    weights = {tensor.name for tensor in proto.graph.initializer}
    kept = [value for value in proto.graph.input if value.name not in weights]
    is_old = proto.ir_version == LISTED
    if is_old:  # weights that are no inputs belong to the next version
        proto.ir_version = LISTED + 1
    if len(kept) == len(proto.graph.input):
        return is_old
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    return True


def _inlined(proto: onnx.ModelProto, source: str) -> onnx.ModelProto:
    """Write out the calls of the model's own functions."""
    from gpuedge.graph.onnx_package import inliner

    try:
        return inliner.inline_local_functions(proto)
    except (RuntimeError, ValueError, MemoryError) as error:
        why = shown(str(error) or type(error).__name__)
        raise ModelError(f"The functions of the model ({source}) cannot be read: {why}.") from None


def _check_references(held: Counted, source: str) -> None:
    """Refuse attributes that stand for those of a function where there is no function."""
    for node, attribute in held.references:
        raise ModelError(
            f"The model ({source}) is not valid ONNX: the attribute {shown(attribute.name)} of "
            f"{named(node)} refers to one of a function, outside any function."
        )


def contents(path: Path) -> bytes:
    """Return the bytes of an ONNX file. Raises ModelError (GE-500)."""
    check_readable(path, "model", kind=ModelError)
    try:
        if path.stat().st_size > PROTOBUF_LIMIT:
            raise _too_large(path)
        data = read_start(path, PROTOBUF_LIMIT + 1)
    except OSError as error:
        raise ModelError(f"The model {path} cannot be read: {error.strerror}.") from None
    except MemoryError:
        raise ModelError(f"The model {path} does not fit in memory.") from None
    if len(data) > PROTOBUF_LIMIT:
        raise _too_large(path)
    return data


def _too_large(path: Path) -> ModelError:
    return ModelError(
        f"The model {path} is larger than an ONNX file can be.",
        known=f"the most is {PROTOBUF_LIMIT} bytes, without weights in files of their own",
    )


def _serialise(model: onnx.ModelProto) -> bytes:
    try:
        data: bytes = model.SerializeToString()
    except Exception as error:  # protobuf's own classes: EncodeError, ValueError
        raise ModelError(f"The ModelProto cannot be serialised: {error}.") from None
    return data


def parsed(data: bytes) -> onnx.ModelProto:
    """Return the message of bytes that `load` gave."""
    from gpuedge.graph.onnx_package import onnx

    model: onnx.ModelProto = onnx.ModelProto.FromString(data)
    return model


def _parse(data: bytes, source: str) -> onnx.ModelProto:
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    if not data:
        raise ModelError(f"The model ({source}) is empty: 0 bytes.")
    signature = next((m for at, mark, m in _SIGNATURES if data[at : at + len(mark)] == mark), None)
    try:
        proto = parsed(data)
    except DecodeError:
        raise ModelError(
            f"The model ({source}) is truncated or not an ONNX file.",
            known=_found(data, signature),
            hint="compare its size with the original's, or export the model again",
        ) from None
    if not proto.ir_version or not proto.HasField("graph"):
        raise ModelError(
            f"The model ({source}) is not an ONNX model: it has no "
            f"{'graph' if proto.ir_version else 'format version'}.",
            known=_found(data, signature),
        )
    return proto


def _check_texts(message: Any, source: str) -> None:
    """Refuse names that are not text: protobuf hands out undecodable strings as bytes."""
    for field, value in _fields(message):
        if isinstance(value, bytes):
            _check_text(field, value, source)
        elif hasattr(value, "ListFields"):
            _check_texts(value, source)
        elif not isinstance(value, (str, int, float)):
            for inner in value:
                if isinstance(inner, (int, float)):
                    break  # so are the others
                if isinstance(inner, bytes):
                    _check_text(field, inner, source)
                elif not isinstance(inner, str):
                    _check_texts(inner, source)


def _fields(message: Any) -> Iterable[tuple[Any, Any]]:
    """Return what is set in a message, but for the numbers of a tensor, which would be copied."""
    if type(message).__name__ != "TensorProto":
        return message.ListFields()  # type: ignore[no-any-return]
    return [(field, getattr(message, field.name)) for field in _texts_of(message.DESCRIPTOR)]


@cache
def _texts_of(tensor: Any) -> list[Any]:
    return [tensor.fields_by_name[name] for name in ("name", "doc_string", "external_data")]


def _check_text(field: Any, value: bytes, source: str) -> None:
    if field.type == field.TYPE_STRING:
        raise ModelError(
            f"The model ({source}) is damaged: a {field.name} in it is not text.",
            known=f"{field.full_name} = {value[:40]!r}",
        )


def _found(data: bytes, meaning: str | None) -> str:
    looks = f"; it looks like {meaning}" if meaning else f", starting with {data[:8]!r}"
    return f"{len(data)} bytes{looks}"


def opsets(proto: onnx.ModelProto) -> dict[str, int]:
    """Return operator set versions by domain, the default domain under the empty string.

    Raises
    ------
    ModelError (GE-500)
        One domain has two.
    """
    versions: dict[str, int] = {}
    for opset in proto.opset_import:
        domain = "" if opset.domain == "ai.onnx" else opset.domain
        if versions.setdefault(domain, opset.version) != opset.version:
            raise ModelError(
                f"The model imports two operator sets of the domain {shown(domain or 'ai.onnx')}, "
                f"{versions[domain]} and {opset.version}."
            )
    return versions


def _check_operators(
    proto: onnx.ModelProto, held: Counted, bodies: list[Counted], source: str
) -> None:
    """Check the operator sets and that every operator exists in them.

    Raises
    ------
    ModelError (GE-500)
        An operator set is newer than the installed ONNX package, or is missing.
    UnsupportedOpError (GE-501)
        Operators do not exist; names each node, operator, domain and operator set.
    """
    from gpuedge.graph.onnx_package import onnx

    newest = onnx.defs.onnx_opset_version()
    imports = opsets(proto)
    if not imports:
        raise ModelError(
            f"The model ({source}) does not say which operator set it uses; it may be truncated."
        )
    if not 1 <= imports.get("", 1) <= newest:
        raise ModelError(
            f"The model ({source}) uses operator set {imports['']}, which is not supported.",
            known=f"onnx {onnx.__version__} knows the operator sets 1 to {newest}",
            hint="pip install --upgrade onnx onnxruntime, or export to an older operator set",
        )
    local = {(f.domain, f.name) for f in proto.functions}
    missing: list[str] = []
    places = [(held, imports)]
    for function, body in zip(proto.functions, bodies, strict=True):
        own = {o.domain: o.version for o in function.opset_import}
        places.append((body, {**imports, **own}))
    for place, versions in places:
        for node in place.nodes:
            domain = "" if node.domain == "ai.onnx" else node.domain
            if (node.domain, node.op_type) in local or domain in schema.CONTRIB:
                continue
            if domain not in versions or schema.find(node.op_type, domain, versions) is None:
                missing.append(_unknown(node, versions))
    if missing:
        is_one = len(missing) == 1
        sets = [f"{shown(d or 'ai.onnx')[1:-1]} {v}" for d, v in imports.items()]
        raise UnsupportedOpError(
            f"{missing[0]}."
            if is_one
            else f"{len(missing)} nodes have operators that do not exist.",
            asked_by=source,
            known=LINE.join([*(() if is_one else missing), ", ".join(sets[:MAX_LISTED])]),
        )


def _unknown(node: onnx.NodeProto, versions: dict[str, int]) -> str:
    """Return which operator of a node does not exist."""
    domain = node.domain or "ai.onnx"
    number = versions.get("" if domain == "ai.onnx" else domain)
    op = shown(node.op_type)[1:-1]
    where = ", or is not imported" if number is None else f" in operator set {number}"
    return f"{named(node)}: domain {shown(domain)[1:-1]} has no operator {op}{where}"


MAX_LISTED = 16
"""Operator sets that a message lists."""


def named(node: onnx.NodeProto) -> str:
    """Return how messages name a node: its operator and its name, or its first output."""
    return f"{shown(node.op_type)[1:-1]} node {shown(node.name or next(iter(node.output), ''))}"


def complete(proto: onnx.ModelProto) -> bool:
    """Infer the types of outputs that the model leaves open; return whether that changed any."""
    open_ones = [v for v in proto.graph.output if not _is_typed(v)]
    model = schema.inferred(proto) if open_ones else None
    if model is None:
        return False
    types = {v.name: v.type for v in model.graph.output if v.HasField("type")}
    for output in open_ones:
        if output.name in types:
            output.type.CopyFrom(types[output.name])
    return bool(types)


def _has_element(value: onnx.ValueInfoProto) -> bool:
    kind = value.type.WhichOneof("value")
    return kind is not None and (kind != "tensor_type" or bool(value.type.tensor_type.elem_type))


def _is_typed(value: onnx.ValueInfoProto) -> bool:
    kind = value.type
    return _has_element(value) and (
        not kind.HasField("tensor_type") or kind.tensor_type.HasField("shape")
    )


def _check(proto: onnx.ModelProto, data: bytes, source: str) -> None:
    """Let ONNX's checker judge the model, except for missing shapes of inputs and outputs."""
    from gpuedge.graph.onnx_package import onnx

    shapeless = [
        v.type.tensor_type
        for v in (*proto.graph.input, *proto.graph.output)
        if v.type.HasField("tensor_type") and not v.type.tensor_type.HasField("shape")
    ]
    for kind in shapeless:
        kind.shape.SetInParent()  # the checker wants a shape; it does not look into it
    try:
        onnx.checker.check_model(_serialise(proto) if shapeless else data)
    except onnx.checker.ValidationError as error:
        reason = shown(" ".join(str(error).split("\n\n")[0].split()), 400)[1:-1]
        raise ModelError(f"The model ({source}) is not valid ONNX: {reason}") from None
    except (
        ValueError,
        RuntimeError,
        MemoryError,
    ) as error:  # larger than a protobuf message may be
        raise ModelError(f"The model ({source}) cannot be checked: {error}") from None
    finally:
        for kind in shapeless:
            kind.ClearField("shape")
