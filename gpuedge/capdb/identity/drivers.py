"""What lies between a caller and a GPU, and which schemes its driver writes its version in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuedge.capdb.identity import makers, values
from gpuedge.capdb.identity.families import Driver, Families
from gpuedge.capdb.identity.versions import Version, dotted, integer

MESA_LAYERS = frozenset({"zink", "virgl", "venus", "dozen", "kosmickrisp", "d3d12-gl"})
"""Layers that are drivers of Mesa."""

TRANSLATED = frozenset({"macos", "ios"})
"""Systems without a driver of Vulkan of their own: MoltenVK or KosmicKrisp translate it."""

_MESA = re.compile(r"\bMesa\b", re.IGNORECASE)
_ANGLE = re.compile(r"\bANGLE\b")


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a device before its layers and versions are judged."""

    raw: Mapping[str, Any]
    found: makers.Found
    driver: Driver | None
    apis: frozenset[str] | None
    hidden_apis: frozenset[str]
    os: str | None
    vendor: str | None
    by_gl: Mapping[str, Version]

    def gl_texts(self) -> list[str]:
        """Return the texts that versions of OpenGL's drivers stand in."""
        return makers.gl_texts(self.raw, self.found)

    def texts(self) -> list[str]:
        """Return every text that may hold a version or a build."""
        return [*self.gl_texts(), *makers.vulkan_texts(self.raw)]

    def has(self, api: str) -> bool:
        """Say whether the record is about an API."""
        return self.apis is not None and api in self.apis

    def may_have(self, api: str) -> bool:
        """Say whether the record is about an API, or may be."""
        return self.apis is None or api in self.apis or api in self.hidden_apis


def layers(facts: Facts, tables: Families) -> tuple[str, ...] | None:
    """Return the layers, the outermost first; () for none, and None where that is not told."""
    raw, found = facts.raw, facts.found
    told = list(found.layers)
    row = found.row
    for inner in (row.layer if row else None, facts.driver.layer if facts.driver else None):
        if inner is not None and inner not in told:
            told.append(inner)
    is_angle = values.text(raw, "api") == "gles-angle" or _ANGLE.search(
        values.text(raw, "GL_VERSION") or ""
    )
    if is_angle and "angle" not in told:
        told.insert(0, "angle")
    is_emulator = "emulator" in (values.text(raw, "os") or "").casefold()
    if is_emulator and "emulator" not in told:
        told.insert(0, "emulator")
    if told:
        return tuple(told)
    return None if _is_layer_hidden(facts, tables) else ()


def _is_layer_hidden(facts: Facts, tables: Families) -> bool:
    """Say whether a layer may be there that the record would not show."""
    raw, found = facts.raw, facts.found
    if found.row is not None and found.row.is_vague:
        return True
    is_apple = facts.os in TRANSLATED or (facts.vendor == "apple" and facts.os is None)
    if facts.may_have("vulkan") and is_apple and facts.driver is None:
        return True
    if facts.apis is None or found.name is None or values.text(raw, *makers.NAMES) is None:
        is_told = not facts.by_gl.keys().isdisjoint(values.GL_SCHEMES)
        mark = tables.marked(values.text(raw, "GL_VERSION") or "")
        return facts.driver is None and mark is None and not is_told
    return False


def versions(facts: Facts, between: tuple[str, ...] | None, tables: Families) -> dict[str, Version]:
    """Return the driver's versions by the schemes that ``GL_VERSION`` does not hold."""
    raw, texts = facts.raw, facts.texts()
    number = integer(raw.get("driverVersion"))
    found = {
        "vk-raw": None if number is None else values.version("vk-raw", [number]),
        "vk-api": _vulkan_version(facts),
        "adreno-compiler": values.version("adreno-compiler", [t for t in texts if not dotted(t)]),
        "linux-kernel": _first(raw, "linux-kernel", "kernel_version"),
        "macos": _first(raw, "macos", "macos_version") or _marked("macos", facts.found.drivers),
    }
    scheme = _scheme(facts, between, tables)
    if scheme is not None:
        tails = [values.named_driver(t)[1] for t in facts.found.drivers]
        told = [number, *makers.vulkan_texts(raw), *tails]
        found[scheme] = values.version(scheme, [t for t in told if not _is_wddm(facts, t)])
    if between and "emulator" in between:
        found["emulator-host"] = _marked("emulator-host", facts.gl_texts())
    found |= _windows(facts, texts)
    if facts.os == "linux" and facts.vendor == "nvidia":
        found["linux-nvidia"] = found.get("vk-nvidia") or facts.by_gl.get("gl-nvidia")
    return {name: version for name, version in found.items() if version is not None}


def _first(raw: Mapping[str, Any], scheme: str, *keys: str) -> Version | None:
    return values.version(scheme, [raw[key] for key in keys if key in raw])


def _marked(scheme: str, texts: tuple[str, ...] | list[str]) -> Version | None:
    """Return a version from texts that say whose it is; numbers alone do not."""
    return values.version(scheme, [t for t in texts if not dotted(t)])


def _vulkan_version(facts: Facts) -> Version | None:
    told = [facts.found.vulkan]
    if facts.has("vulkan"):
        told = [facts.raw.get("apiVersion"), facts.raw.get("apiVersionRaw"), *told]
    return values.version("vk-api", told)


def _scheme(facts: Facts, between: tuple[str, ...] | None, tables: Families) -> str | None:
    """Return the scheme of a Vulkan driver's version: its own, else that of the platform."""
    if facts.driver is not None:
        return facts.driver.scheme
    if not facts.has("vulkan") or between is None or between:
        return None
    if any(_MESA.search(t) for t in _mesa_texts(facts)) or _is_mesa_name(facts):
        return "vk-mesa"
    pairs = ((facts.vendor or "", facts.os or ""), (facts.vendor or "", "any"))
    return next((s for pair in pairs if (s := tables.platforms.get(pair))), None)


def _is_wddm(facts: Facts, told: object) -> bool:
    """Say whether a text is a version of Windows' driver model, such as 32.0.15.6590."""
    if not isinstance(told, str) or not (facts.os == "windows" or facts.has("d3d12")):
        return False
    parts = dotted(told)
    return parts is not None and len(parts) == 4 and parts[0] < 100


def _windows(facts: Facts, texts: list[str]) -> dict[str, Version | None]:
    plain = [t for t in texts if _is_wddm(facts, t)]
    wddm = values.version("win-wddm", plain) or _marked("win-wddm", facts.found.drivers)
    if wddm is None:
        return {}
    # Intel counts in the last two parts under every API
    found: dict[str, Version | None] = {"win-wddm": wddm}
    return found | ({"vk-intel-win": wddm[2:]} if facts.vendor == "intel" else {})


def _mesa_texts(facts: Facts) -> list[str]:
    keys = ("driverName", "driver", "GL_VENDOR", "GL_RENDERER", "deviceName", "name")
    return [*facts.texts(), *(t for key in keys if (t := values.text(facts.raw, key)))]


def _is_mesa_name(facts: Facts) -> bool:
    return facts.found.row is not None and facts.found.row.is_mesa is True


def is_mesa(
    facts: Facts, between: tuple[str, ...] | None, known: Mapping[str, Version]
) -> bool | None:
    """Say whether a driver of Mesa does the work; None where that cannot be told."""
    if not MESA_LAYERS.isdisjoint(between or ()):
        return True
    if facts.driver is not None:
        return facts.driver.is_mesa
    if any(_MESA.search(t) for t in _mesa_texts(facts)) or _is_mesa_name(facts):
        return True
    own = {*values.GL_SCHEMES, "vk-adreno"} - {"gl-mesa"}
    if not own.isdisjoint(known) or values.is_mali_g(facts.gl_texts()):
        return False
    return facts.found.row.is_mesa if facts.found.row else None


def api_version(facts: Facts, known: Mapping[str, Version]) -> Version | None:
    """Return the version of the API that the record is about."""
    if facts.has("vulkan"):
        return known.get("vk-api")
    if facts.has("gles"):
        text = values.text(facts.raw, "GL_VERSION")
        return known.get("gl-es") or (values.gl_api(text) if text else None)
    return None


def notes(facts: Facts, between: tuple[str, ...] | None, known: Mapping[str, Version]) -> list[str]:
    """Return what could not be told about layers and versions, and why."""
    raw, made = facts.raw, []
    if between is None:
        made.append("nothing tells whether a layer lies between the caller and the driver")
    if facts.found.row is not None and facts.found.row.is_vague:
        made.append("the name is made vague on purpose: it stands for several models")
    by_gl = {*values.GL_SCHEMES, "emulator-host"} & set(known)
    if "GL_VERSION" in raw and not by_gl and not facts.found.drivers:
        made.append("GL_VERSION carries no driver version")
    if values.is_mali_g(facts.gl_texts()):
        made.append("GL_VERSION is of Arm's releases g, which are not counted as releases r are")
    schemes = set(known) - {"vk-raw", "vk-api"}
    if "driverVersion" in raw and not any(s.startswith("vk-") for s in schemes):
        made.append("nothing tells the scheme of driverVersion")
    if facts.hidden_apis:
        made.append("nothing tells which API WebGPU runs on")
    return made
