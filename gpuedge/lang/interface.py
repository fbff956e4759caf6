"""The interface of kernels: `bind` declares that of our own, `reflect` reads that of users' SPIR-V.

`reflect` knows as much of SPIR-V (specification 1.3, sections 2.3 and 3) as kernels brought by
users need. It does not validate; that is the compiler's business.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal

from gpuedge.core.errors import KernelError
from gpuedge.core.kernel import KernelBlob, PushArg, ScalarType, SpecArg, TensorArg
from gpuedge.core.storage import BUFFER
from gpuedge.lang import spirv_module as s
from gpuedge.lang.tree import Kernel


def push_args(kernel: Kernel) -> tuple[tuple[PushArg, ...], int]:
    """Return what is given with each dispatch, and its size: extents of tensors, then params."""
    args = [PushArg(x.name, "ivec4", 16 * i) for i, x in enumerate(kernel.tensors)]
    size = 16 * len(args)
    for param in kernel.params:
        args.append(PushArg(param.name, param.type, size))
        size += 4
    return tuple(args), size


def bind(
    kernel: Kernel, dialect: str, code: bytes, storage: Mapping[str, str] | None = None
) -> KernelBlob:
    """Return a printed kernel with its interface; `storage` has the storage kind of each tensor."""
    kinds = storage or {}
    tensors = tuple(
        TensorArg(x.name, x.access, x.binding, kinds.get(x.name, BUFFER)) for x in kernel.tensors
    )
    specs = tuple(SpecArg(x.name, x.type, x.spec_id, x.default) for x in kernel.specs)
    push, size = push_args(kernel)
    about = repr((kernel.name, dialect, "main", tensors, specs, push, size))
    digest = sha256(about.encode() + b"\0" + code).hexdigest()
    return KernelBlob(kernel.name, dialect, code, "main", tensors, specs, push, size, digest)


@dataclass(frozen=True, slots=True)
class BufferArg:
    """One storage buffer: names it answers to, element dtype (numpy) and components of a vector."""

    binding: int
    names: tuple[str, ...]
    dtype: str
    components: int
    is_readonly: bool


@dataclass(frozen=True, slots=True)
class Reflection:
    """The interface of a compute shader and the blob a backend builds."""

    blob: KernelBlob
    buffers: tuple[BufferArg, ...]
    local_size: tuple[int, int, int]


@dataclass(slots=True)
class _Module:
    """Tables of a SPIR-V module, by result id."""

    names: dict[int, str] = field(default_factory=dict)
    members: dict[tuple[int, int], str] = field(default_factory=dict)
    decorations: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    member_decorations: dict[tuple[int, int, int], tuple[int, ...]] = field(default_factory=dict)
    types: dict[int, tuple[int, ...]] = field(default_factory=dict)
    variables: list[tuple[int, int, int]] = field(default_factory=list)
    specs: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    entry: str = ""
    local_size: tuple[int, int, int] = (1, 1, 1)


def reflect(code: bytes, name: str) -> Reflection:
    """Return the interface of the compute shader in `code`.

    Raises
    ------
    KernelError (GE-300)
        It is not SPIR-V, has no compute entry point, or uses what gpuedge cannot bind: descriptor
        sets besides 0, gaps in the bindings, images, or buffers that are not one array.
    """
    module = _read(code, name)
    if not module.entry:
        raise KernelError(f"{name} has no compute entry point.")
    buffers = tuple(sorted(_buffers(module, name), key=lambda b: b.binding))
    if [b.binding for b in buffers] != list(range(len(buffers))):
        raise KernelError(
            f"{name} has the bindings {[b.binding for b in buffers]}.",
            known="bindings must be 0, 1, 2, ... in descriptor set 0",
        )
    push = tuple(_push(module, name))
    tensors = tuple(
        TensorArg(b.names[0], "read" if b.is_readonly else "write", b.binding) for b in buffers
    )
    size = max((p.offset + 4 for p in push), default=0)
    specs = tuple(_spec(module, i) for i in sorted(module.specs))
    digest = sha256(code).hexdigest()
    blob = KernelBlob(name, "spirv", code, module.entry, tensors, specs, push, size, digest)
    return Reflection(blob, buffers, module.local_size)


def _instructions(code: bytes, name: str) -> Iterator[tuple[int, tuple[int, ...]]]:
    if len(code) < 20 or len(code) % 4:
        raise KernelError(f"{name} is not SPIR-V: {len(code)} bytes.")
    words = struct.unpack(f"<{len(code) // 4}I", code)
    if words[0] != s.MAGIC:
        raise KernelError(f"{name} is not SPIR-V: it starts with {words[0]:#010x}.")
    at = 5
    while at < len(words):
        count, opcode = words[at] >> 16, words[at] & 0xFFFF
        if count == 0 or at + count > len(words):
            raise KernelError(f"{name} is truncated at word {at}.")
        yield opcode, words[at + 1 : at + count]
        at += count


def _text(words: tuple[int, ...]) -> str:
    raw = struct.pack(f"<{len(words)}I", *words)
    return raw.split(b"\0", 1)[0].decode("utf-8", "replace")


def _read(code: bytes, name: str) -> _Module:
    m = _Module()
    for op, args in _instructions(code, name):
        if op == s.NAME:
            m.names[args[0]] = _text(args[1:])
        elif op == s.MEMBER_NAME:
            m.members[args[0], args[1]] = _text(args[2:])
        elif op == s.ENTRY_POINT and args[0] == 5:  # execution model GLCompute
            m.entry = _text(args[2:])
        elif op == s.EXECUTION_MODE and args[1] == 17:  # execution mode LocalSize
            m.local_size = (args[2], args[3], args[4])
        elif op == s.DECORATE:
            m.decorations[args[0], args[1]] = args[2:]
        elif op == s.MEMBER_DECORATE:
            m.member_decorations[args[0], args[1], args[2]] = args[3:]
        elif s.TYPE_BOOL <= op <= s.TYPE_POINTER:
            m.types[args[0]] = (op, *args[1:])
        elif op == s.VARIABLE:
            m.variables.append((args[1], args[0], args[2]))
        elif op in (s.SPEC_TRUE, s.SPEC_FALSE, s.SPEC_CONSTANT):
            value = args[2] if op == s.SPEC_CONSTANT else int(op == s.SPEC_TRUE)
            m.specs[args[1]] = (args[0], value, op)
    return m


def _scalar(m: _Module, kind: int, name: str) -> tuple[str, int]:
    """Return the numpy dtype and number of components of a scalar or vector type."""
    op, *rest = m.types[kind]
    if op == s.TYPE_VECTOR:
        dtype, _ = _scalar(m, rest[0], name)
        return dtype, rest[1]
    if op == s.TYPE_FLOAT and rest[0] in (16, 32):
        return f"float{rest[0]}", 1
    if op == s.TYPE_INT and rest[0] in (8, 16, 32):
        return f"{'int' if rest[1] else 'uint'}{rest[0]}", 1
    raise KernelError(
        f"{name} uses an element type that is no float of 16 or 32 bits, nor an integer of 8 to 32."
    )


def _buffers(m: _Module, name: str) -> Iterator[BufferArg]:
    for variable, pointer, storage in m.variables:
        struct_id = m.types[pointer][2]
        is_buffer = storage == s.STORAGE_BUFFER or (struct_id, s.BUFFER_BLOCK) in m.decorations
        if storage == s.UNIFORM and not is_buffer:
            raise KernelError(f"{name} has a uniform block; only storage buffers can be bound.")
        if (variable, s.BINDING) not in m.decorations:
            continue
        if not is_buffer:
            raise KernelError(f"{name} binds something that is not a storage buffer.")
        if m.decorations.get((variable, s.DESCRIPTOR_SET), (0,))[0] != 0:
            raise KernelError(f"{name} uses a descriptor set other than 0.")
        members = m.types[struct_id][1:]
        op, *rest = m.types[members[0]]
        if len(members) != 1 or op not in (s.TYPE_RUNTIME_ARRAY, s.TYPE_ARRAY):
            raise KernelError(
                f"{name} has a buffer that is not a single array.",
                hint="write it as: buffer A { float a[]; };",
            )
        dtype, components = _scalar(m, rest[0], name)
        answers = (m.members.get((struct_id, 0)), m.names.get(variable), m.names.get(struct_id))
        readonly = (struct_id, 0, s.NON_WRITABLE) in m.member_decorations
        readonly = readonly or (variable, s.NON_WRITABLE) in m.decorations
        binding = m.decorations[variable, s.BINDING][0]
        names = tuple(dict.fromkeys(n for n in answers if n)) or (f"binding{binding}",)
        yield BufferArg(binding, names, dtype, components, readonly)


def _push(m: _Module, name: str) -> Iterator[PushArg]:
    for _, pointer, storage in m.variables:
        if storage != s.PUSH_CONSTANT:
            continue
        struct_id = m.types[pointer][2]
        for i, kind in enumerate(m.types[struct_id][1:]):
            dtype, components = _scalar(m, kind, name)
            if components != 1 or not dtype.endswith("32"):
                raise KernelError(f"{name} has a push constant that is not a scalar of 32 bits.")
            offset = m.member_decorations[struct_id, i, s.OFFSET][0]
            as_type: Literal["int", "float"] = "float" if dtype == "float32" else "int"
            yield PushArg(m.members.get((struct_id, i), f"push{i}"), as_type, offset)


def _spec(m: _Module, result: int) -> SpecArg:
    kind, value, op = m.specs[result]
    spec_id = m.decorations.get((result, s.SPEC_ID), (0,))[0]
    label = m.names.get(result, f"spec{spec_id}")
    if op != s.SPEC_CONSTANT:
        return SpecArg(label, "bool", spec_id, bool(value))
    scalar: ScalarType = "float" if m.types[kind][0] == s.TYPE_FLOAT else "int"
    number = struct.unpack("<f" if scalar == "float" else "<i", struct.pack("<I", value))[0]
    return SpecArg(label, scalar, spec_id, number)
