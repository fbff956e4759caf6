"""Names of devices without what layers and drivers write round them.

OpenGL ES over Vulkan calls a device ``zink (NAME)`` or ``ANGLE (..., NAME, ...)``, and every driver
adds its versions. The forms of layers and what is taken out of a name are rows of ``names.json``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from gpuedge.capdb.identity.texts import MAX_NAME, unmarked
from gpuedge.capdb.place import table
from gpuedge.core.identity import Identity

MAX_LAYERS: Final = 4
"""Layers upon layers that are looked through: an emulator over ANGLE over Vulkan is three."""

FIELDS: Final[Mapping[str, str]] = {
    "maker": "[^,()]*",
    "device": ".+?",
    "number": "0x[0-9A-F]+",
    "vulkan": "[0-9.]+",
    "driver": ".*",
    "driver_name": "[A-Z0-9_]+",
    "driver_opengl": "OpenGL .*",
}
"""What may stand for a field in the form of a layer; the last three tell of the driver."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer round a device's name, such as ``angle``, and what it tells of what lies beneath.

    That is the name, the id, the version of Vulkan and the driver; empty where it does not tell.
    """

    kind: str
    device: str
    number: str = ""
    vulkan: str = ""
    driver: str = ""


@dataclass(frozen=True, slots=True)
class NameRules:
    """The rules of ``names.json``.

    Attributes
    ----------
    layers : tuple of (str, str)
        What a layer is, and the form of whole names; the first that fits is taken.
    cut : tuple of str
        A name ends where one of these begins.
    tails, heads : tuple of str
        Taken off its end, and off its start: brands.
    same : mapping of str to str
        Names that are another one's.
    """

    layers: tuple[tuple[str, str], ...]
    cut: tuple[str, ...] = ()
    tails: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    same: Mapping[str, str] = field(default_factory=dict)

    def peel(self, name: str) -> list[Layer]:
        """Return the layers round a name, the outermost first."""
        name = name[:MAX_NAME].strip()
        layers: list[Layer] = []
        starts = _starts(self.layers)
        while len(layers) < MAX_LAYERS and (low := name.casefold()).startswith(starts):
            alike = (
                x for x, start in zip(self.layers, starts, strict=True) if low.startswith(start)
            )
            fits = ((kind, m) for kind, form in alike if (m := _pattern(form).fullmatch(name)))
            kind, match = next(fits, ("", None))
            if match is None:
                break
            told = {key: (text or "").strip() for key, text in match.groupdict().items()}
            driver = "".join(text for key, text in told.items() if key.startswith("driver"))
            number, vulkan = told.get("number", ""), told.get("vulkan", "")
            layers.append(Layer(kind, told["device"], number, vulkan, driver))
            name = told["device"]
        return layers

    def beneath(self, name: str) -> str:
        """Return the name of the device under all layers, in its own spelling.

        >>> load_names().beneath("zink (llvmpipe (LLVM 15.0.6, 256 bits))")
        'llvmpipe (LLVM 15.0.6, 256 bits)'
        """
        layers = self.peel(name)
        return layers[-1].device if layers else name[:MAX_NAME].strip()

    def model(self, name: str) -> str:
        """Return the model in lower case, without versions, brands and details.

        >>> load_names().model("NVIDIA GeForce RTX 3060/PCIe/SSE2")
        'geforce rtx 3060'
        """
        name = self.beneath(name).lower()
        left = re.sub(r"\([^()]*\)", " ", unmarked(name))
        for start in self.cut:
            left = left.partition(start)[0] or left
        left = " ".join(left.split())
        for tail in self.tails:
            left = left.removesuffix(tail).strip() or left
        for head in self.heads:
            left = left.removeprefix(head) or left
        left = left or " ".join(name.split())
        return self.same.get(left, left)


def load_names(place: Path | None = None) -> NameRules:
    """Read ``names.json``; a database without that file has the packaged one.

    Parameters
    ----------
    place : Path, optional
        The database's folder; the one in use where none is given.

    Raises
    ------
    DatabaseError (GE-600)
        The file is not JSON, or holds a rule that cannot be used.
    """
    return table("names.json", _rules, place)


def _rules(document: Mapping[str, Any]) -> NameRules:
    layers = tuple((row["layer"], row["form"]) for row in document["layers"])
    for _, form in layers:
        _parts(form)
    noise = {key: tuple(document[key]) for key in ("cut", "tails", "heads")}
    return NameRules(layers, **noise, same=dict(document["same"]))


def _parts(form: str) -> list[str]:
    """Return what stands between fields and their names, in turn. Raises ValueError."""
    parts = re.split(r"\{(\w+)\}", form[:MAX_NAME])
    names = parts[1::2]
    if "device" not in names or len(names) > len(set(names)) or not FIELDS.keys() >= set(names):
        raise ValueError(f"{form!r} must have '{{device}}', and no field twice or of another name")
    return parts


@lru_cache(maxsize=8)
def _starts(layers: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    """Return how forms begin: most are told apart by that, which costs little."""
    return tuple(form.partition("{")[0].casefold() for _, form in layers)


@lru_cache(maxsize=256)
def _pattern(form: str) -> re.Pattern[str]:
    """Return the expression for a form such as ``zink ({device})``.

    Only `FIELDS` vary, each at most once, so the time to match grows with the cube of a name's
    length at worst.
    """
    parts = _parts(form)
    parts[::2] = map(re.escape, parts[::2])
    parts[1::2] = [f"(?P<{name}>{FIELDS[name]})" for name in parts[1::2]]
    return re.compile("".join(parts), re.IGNORECASE)


def model(identity: Identity) -> str:
    """Return the model a device is of, the same under every API and driver. Raises DatabaseError.

    >>> model(Identity("gles31", "Google SwiftShader", "linux"))
    'swiftshader'
    """
    return load_names().model(identity.name)
