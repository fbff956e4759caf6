"""The kernel texts under ``shaders/`` and the rows of ``variants.toml``, read once."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

from gpuedge.core.errors import ConfigError
from gpuedge.core.kernel import Extents
from gpuedge.safety.paths import data_dir

READS: Final = ("texels", "textures", "images", "floats")
"""How kernels may read tensors other than as storage buffers: of texel buffers, of copies in
textures, or of copies in storage textures, which are images; and constant bytes as floats."""

HALF: Final = "_f16"
"""What ids of variants end in whose halves are float16."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One row of ``variants.toml``: a kernel that can serve an operation.

    `consts` are values of the kernel's own constants, such as the sides of a tile; `local` is the
    workgroup size; `outputs` the texels one invocation computes along x, y and slices. `is_flat`:
    the tiles of a plane are numbered row after row, and invocations along x take one each; y
    counts tiles of slices, z the batch. `transforms` are kernels of further passes, one before and
    one after or one after; none of these computes in float16. `has_lanes`: its workgroup must be a
    subgroup. `run`: what a workgroup computes together, `outputs` of it, is cut from a whole
    ``plane`` or from each ``row``; empty where each invocation has `outputs` of its own. `needs`
    are lower bounds on `Caps` fields; `when` inclusive bounds on facts of the shape; `score` is the
    expected speed relative to the operation's map kernel, by device class.
    """

    op: str
    id: str
    kernel: str
    local: tuple[int, int, int]
    consts: Mapping[str, int] = field(default_factory=dict)
    outputs: tuple[int, int, int] = (1, 1, 1)
    is_flat: bool = False
    transforms: tuple[str, ...] = ()
    has_lanes: bool = False
    run: str = ""
    needs: Mapping[str, int] = field(default_factory=dict)
    when: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    score: Mapping[str, float] = field(default_factory=dict)

    @property
    def params(self) -> int:
        """How many values the kernel takes with each dispatch, besides extents."""
        return _params(self.kernel)

    def in_half(self) -> Variant:
        """Return the variant whose halves are float16."""
        return replace(self, id=f"{self.id}{HALF}")

    @property
    def is_exact(self) -> bool:
        """Whether whole numbers come out exactly: not of the transformed tiles of Winograd."""
        return len(self.transforms) < 2

    @property
    def kernels(self) -> tuple[str, ...]:
        """All kernels that it launches."""
        return (self.kernel, *self.transforms)

    @property
    def form(self) -> str:
        """The kernel's form, ``map`` or ``group``: the folder it lies in."""
        return self.kernel.partition("/")[0]

    def grid(self, extents: Extents, parts: tuple[int, int] = (1, 1)) -> tuple[int, int, int]:
        """Return how many invocations along x, y and z an output of these extents takes.

        `parts`: of so many equal parts of the columns, and of the slices, no flat tile has two.
        """
        if self.run == "plane":
            extents = (extents[0] * extents[1], 1, *extents[2:])
        tiles = [-(-size // of) for size, of in zip(extents, self.outputs, strict=False)]
        if self.is_flat:
            for axis, count in zip((0, 2), parts, strict=True):
                part = -(-extents[axis] // count)
                tiles[axis] = -(-part // self.outputs[axis]) * count
            each = self.local[0] if self.run else 1
            return tiles[0] * tiles[1] * each, tiles[2], extents[3]
        return tiles[0], tiles[1], tiles[2] * extents[3]


@lru_cache(maxsize=1)
def texts() -> dict[str, str]:
    """Return every kernel text by name, such as ``map/conv2d``."""
    root = data_dir("shaders")
    paths = sorted(root.glob("*/*.kern"))
    return {f"{p.parent.name}/{p.stem}": p.read_text(encoding="utf-8") for p in paths}


@lru_cache(maxsize=256)
def _params(kernel: str) -> int:
    return sum(line.startswith("param ") for line in texts()[kernel].splitlines())


def variants() -> tuple[Variant, ...]:
    """Return the rows of ``variants.toml`` in file order.

    Raises
    ------
    ConfigError (GE-101)
        A row is malformed or names a kernel that does not exist.
    """
    return _tables()[0]


def reads(device_class: str) -> frozenset[str]:
    """Return the ways of `READS` in which kernels on a class of devices read tensors fastest.

    Raises ConfigError (GE-101) as `variants`.
    """
    return frozenset(way for way, classes in _tables()[1].items() if device_class in classes)


@lru_cache(maxsize=1)
def _tables() -> tuple[tuple[Variant, ...], dict[str, frozenset[str]]]:
    path = data_dir("shaders") / "variants.toml"
    try:
        tables: Mapping[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        known = {name: frozenset(tables["reads"][name]) for name in READS}
        return tuple(_row(row) for row in tables["variant"]), known
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} cannot be used: {error}") from error


def _row(row: Mapping[str, Any]) -> Variant:
    fields = dict(row)
    fields["is_flat"] = fields.pop("flat", False)
    fields["has_lanes"] = fields.get("consts", {}).get("LANES", 0) > 0
    for name in ("local", "outputs"):
        if name in fields:
            fields[name] = (*fields[name], 1, 1, 1)[:3]
    fields["when"] = {k: (int(v[0]), int(v[1])) for k, v in fields.get("when", {}).items()}
    fields["transforms"] = tuple(fields.get("transforms", ()))
    variant = Variant(**fields)
    for kernel in variant.kernels:
        if kernel not in texts():
            raise ValueError(f"variant {variant.id!r} names the unknown kernel {kernel!r}")
    return variant
