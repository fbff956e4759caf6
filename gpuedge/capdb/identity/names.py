"""Names of devices without what drivers and layers write round them, by rules of data.

OpenGL ES over Vulkan calls a device ``zink (NAME)`` or ``ANGLE (..., NAME, ...)``, and every driver
adds its versions. Two names that are equal here are the same model of GPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from gpuedge.capdb.identity.tame import LENGTH, check_together, compile_tame
from gpuedge.capdb.place import bad, find_table, read_table
from gpuedge.core.identity import Identity

SCHEMA = "gpuedge.names/1"
FILE = "names.json"

MAX_LAYERS = 4
"""Layers upon layers that are looked through: an emulator over ANGLE over Vulkan is three."""

MAX_NAME = LENGTH
"""Characters of a name that are looked at; Vulkan's names have at most 255."""


@dataclass(frozen=True, slots=True)
class NameRules:
    """Patterns, matched without regard to case.

    Attributes
    ----------
    layers : tuple of Pattern
        Of whole names of layers; the group ``device`` is the name of what lies beneath. Groups
        ``driver``, ``number`` and ``vulkan`` are what a layer tells of it: the driver, the
        device's number, and the version of Vulkan.
    noise : tuple of Pattern
        Of what is taken out of a name, one after the other.
    kinds : tuple of str or None
        What each of `layers` is, in the words of entries: ``angle``.
    """

    layers: tuple[re.Pattern[str], ...]
    noise: tuple[re.Pattern[str], ...]
    kinds: tuple[str | None, ...] = ()

    def peel(self, name: str) -> list[tuple[str | None, re.Match[str]]]:
        """Return the layers round a name, the outermost first: what each is, and its match."""
        name = name[:MAX_NAME].strip()
        kinds = self.kinds or (None,) * len(self.layers)
        found: list[tuple[str | None, re.Match[str]]] = []
        while len(found) < MAX_LAYERS:
            pairs = zip(kinds, self.layers, strict=True)
            layer = next(((k, m) for k, p in pairs if (m := p.fullmatch(name))), None)
            if layer is None:
                break
            found.append(layer)
            name = layer[1]["device"].strip()
        return found

    def beneath(self, name: str) -> str:
        """Return the name of the device under all layers, in its own spelling.

        >>> load_names().beneath("zink (llvmpipe (LLVM 15.0.6, 256 bits))")
        'llvmpipe (LLVM 15.0.6, 256 bits)'
        """
        layers = self.peel(name)
        return layers[-1][1]["device"].strip() if layers else name[:MAX_NAME].strip()

    def model(self, name: str) -> str:
        """Return the model in lower case, without versions, brands and details.

        >>> load_names().model("NVIDIA GeForce RTX 3060/PCIe/SSE2")
        'geforce rtx 3060'
        """
        name = self.beneath(name)
        for pattern in self.noise:
            name = pattern.sub("", name).strip() or name
        return " ".join(name.lower().split())


def load_names(place: Path | None = None) -> NameRules:
    """Read and check ``names.json``; a database without that file has the packaged one.

    Parameters
    ----------
    place : Path, optional
        The database's folder; the one in use where none is given.

    Raises
    ------
    DatabaseError (GE-600)
        The file is not JSON, or holds a rule that cannot be used.
    """
    return _read(*find_table(FILE, place))


@lru_cache(maxsize=2)
def _read(path: Path, changed: int) -> NameRules:
    """Read the file; `changed` makes an edited one be read again."""
    document = read_table(path, SCHEMA)
    layers = _patterns(path, document, "layers", optional=frozenset({"layer"}))
    noise = _patterns(path, document, "noise", is_search=True)
    try:
        check_together((*layers, *noise))
    except ValueError as error:
        raise bad(path, str(error)) from None
    for pattern in layers:
        if "device" not in pattern.groupindex:
            raise bad(path, f"layers: {pattern.pattern!r} has no group 'device'")
    kinds = tuple(rule.get("layer") for rule in document["layers"])
    if not all(kind is None or isinstance(kind, str) for kind in kinds):
        raise bad(path, "layers: what a layer is must be text")
    return NameRules(layers, noise, kinds)


def _patterns(
    path: Path,
    document: dict[str, Any],
    name: str,
    optional: frozenset[str] = frozenset(),
    *,
    is_search: bool = False,
) -> tuple[re.Pattern[str], ...]:
    rules = document.get(name)
    if not isinstance(rules, list):
        raise bad(path, f"it has no list {name!r}")
    made = []
    for i, rule in enumerate(rules):
        if not isinstance(rule, dict) or set(rule) - optional != {"id", "pattern"}:
            raise bad(path, f"{name} {i}: it must have exactly id and pattern")
        try:
            made.append(compile_tame(rule["pattern"], re.RegexFlag(0), is_search=is_search))
        except (re.error, ValueError, RecursionError) as error:
            raise bad(path, f"{name} {i}: its pattern cannot be used: {error}") from None
    return tuple(made)


def model(identity: Identity) -> str:
    """Return the model a device is of, the same under every API and driver. Raises DatabaseError.

    >>> model(Identity("gles31", "Google SwiftShader", "linux"))
    'swiftshader'
    """
    return load_names().model(identity.name)
