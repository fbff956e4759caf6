"""A printed kernel: what the language front end hands to a backend."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gpuedge.core.errors import InputError

ScalarType = Literal["int", "float", "bool"]
Number = int | float | bool
Extents = tuple[int, int, int, int]
"""(W, H, S, N): texels across, down, slices, batch. Texel index = ((n*S + s)*H + y)*W + x."""


@dataclass(frozen=True, slots=True)
class TensorArg:
    """One tensor a kernel reads or writes; `binding` is its position.

    `storage` is the kind of `gpuedge.core.storage` that the code was printed for, or what it reads
    one of those as (`READ_AS`, `COPIED_AS`, `LOADED_AS`).
    """

    name: str
    access: Literal["read", "write"]
    binding: int
    storage: str = "buffer"


@dataclass(frozen=True, slots=True)
class SpecArg:
    """A value fixed when the pipeline is built (specialisation constant)."""

    name: str
    type: ScalarType
    spec_id: int
    default: Number


@dataclass(frozen=True, slots=True)
class PushArg:
    """A value given with each dispatch: `ivec4` extents of a tensor, or a scalar parameter."""

    name: str
    type: Literal["ivec4", "int", "float"]
    offset: int


@dataclass(frozen=True, slots=True)
class KernelBlob:
    """Code for one dialect with its interface.

    `digest` is the SHA-256 of code and interface: equal digests mean interchangeable blobs.
    """

    name: str
    dialect: str
    code: bytes
    entry: str
    tensors: tuple[TensorArg, ...]
    specs: tuple[SpecArg, ...]
    push: tuple[PushArg, ...]
    push_bytes: int
    digest: str

    def to_record(self) -> list[Any]:
        """Return everything but the code as a JSON-ready list; `from_record` is the way back."""
        return [
            self.name, self.dialect, self.entry,
            [[a.name, a.access, a.binding, a.storage] for a in self.tensors],
            [[s.name, s.type, s.spec_id, s.default] for s in self.specs],
            [[p.name, p.type, p.offset] for p in self.push],
            self.push_bytes, self.digest,
        ]  # fmt: skip

    @classmethod
    def from_record(cls, record: Sequence[Any], code: bytes) -> KernelBlob:
        """Rebuild a blob. Raises TypeError or ValueError for what `to_record` never returns."""
        name, dialect, entry, tensors, specs, push, push_bytes, digest = record
        return cls(
            name, dialect, code, entry,
            tuple(TensorArg(*a) for a in tensors),
            tuple(SpecArg(*s) for s in specs),
            tuple(PushArg(*p) for p in push),
            push_bytes, digest,
        )  # fmt: skip

    def values(self, specs: Mapping[str, Number]) -> tuple[Number, ...]:
        """Return the value of every specialisation constant, in order: given, or its default.

        Raises
        ------
        InputError (GE-203)
            The kernel has no such constant.
        """
        known = [spec.name for spec in self.specs]
        unknown = sorted(set(specs) - set(known))
        if unknown:
            raise InputError(
                f"Kernel {self.name!r} has no specialisation constant {unknown[0]!r}.",
                known=f"it has: {', '.join(sorted(known)) or 'none'}",
            )
        kinds: dict[str, type[int | float | bool]] = {"int": int, "float": float, "bool": bool}
        return tuple(kinds[s.type](specs.get(s.name, s.default)) for s in self.specs)

    def specialised(
        self, specs: Mapping[str, Number], macros: Mapping[str, Number] | None = None
    ) -> str:
        """Return the text of a dialect without specialisation constants, with every spec given.

        The line ``//SPECS`` of the code is replaced by one ``#define S_NAME value`` per spec, and
        one ``#define NAME value`` per entry of `macros`. In ``essl100`` ints are floats.
        """
        given = {f"S_{s.name}": v for s, v in zip(self.specs, self.values(specs), strict=True)}
        types = {f"S_{s.name}": s.type for s in self.specs}
        lines = []
        for name, value in {**given, **(macros or {})}.items():
            kind = types.get(name, "float" if isinstance(value, float) else "int")
            word = _word(kind, value, self.dialect)
            # Parentheses only where needed: a workgroup size must be a bare number.
            lines.append(f"#define {name} " + (f"({word})" if word[0] == "-" else word))
        return self.code.decode().replace("//SPECS", "\n".join(lines), 1)

    def pack_push(
        self, extents: Sequence[Extents], params: Mapping[str, Number] | None = None
    ) -> bytes:
        """Pack one dispatch's values: `extents` in the order of `tensors`, `params` by name."""
        block = bytearray(self.push_bytes)
        by_name = {t.name: e for t, e in zip(self.tensors, extents, strict=True)}
        given = params or {}
        for arg in self.push:
            if arg.type == "ivec4":
                struct.pack_into("<4i", block, arg.offset, *by_name[arg.name])
            else:
                value = given[arg.name]
                if arg.type == "int":
                    struct.pack_into("<I", block, arg.offset, int(value) & 0xFFFFFFFF)
                else:
                    struct.pack_into("<f", block, arg.offset, value)
        return bytes(block)


def _word(kind: str, value: Number, dialect: str) -> str:
    """Print the value of a spec as a literal of a GLSL ES dialect."""
    if kind == "bool":
        return "true" if value else "false"
    if kind == "int" and dialect != "essl100":
        return str(int(value))
    single = struct.unpack("<f", struct.pack("<f", value))[0]
    return f"{single:.1f}" if single == int(single) and abs(single) < 1e7 else f"{single:.9e}"
