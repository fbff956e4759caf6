"""What a record tells of a device: its maker and model, the layers round it, its driver's versions.

Each question is asked of the surest thing that can answer it first. None is the answer where
nothing tells.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from gpuedge.capdb.identity import texts
from gpuedge.capdb.identity.families import DriverRow, load_families
from gpuedge.capdb.identity.names import Layer, load_names
from gpuedge.capdb.identity.texts import MAX_NAME, text
from gpuedge.capdb.identity.versions import Version, dotted, integer

NAMES = ("GL_RENDERER", "deviceName", "name", "CL_DEVICE_NAME")
"""Keys of records that hold the device's name."""

MESA_LAYERS = frozenset({"zink", "virgl", "venus", "dozen", "kosmickrisp", "d3d12-gl"})
"""Layers that are drivers of Mesa."""

TRANSLATED = frozenset({"macos", "ios"})
"""Systems without a driver of Vulkan of their own: MoltenVK or KosmicKrisp translate it."""

_MESA = re.compile(r"\bMesa\b", re.IGNORECASE)
_ANGLE = re.compile(r"\bANGLE\b")


class Reading:
    """One record, and what follows from it by a database's tables: by default the one in use."""

    def __init__(self, raw: Mapping[str, Any], place: Path | None = None) -> None:
        self.raw = raw
        self.tables = load_families(place)
        self.os = texts.system(text(raw, "os"))
        self.apis, self.hidden_apis = texts.apis(raw, self.os)
        told = text(raw, *NAMES)
        # WebGPU may hide what WebGL tells; the layers under WebGL are not those of WebGPU
        name = told or text(raw, "webgl_renderer") or ""
        name = texts.spaced(name)[:MAX_NAME].strip()
        peeled = load_names(place).peel(name)
        self.is_named = told is not None
        self.round: list[Layer] = peeled if self.is_named else []
        self.name = (peeled[-1].device if peeled else name) or None
        self.row, self._named_model = self.tables.named(self.name) if self.name else (None, None)
        self._inner_id = next((integer(x.number) for x in reversed(peeled) if x.number), None)
        self._layer_drivers = [layer.driver for layer in self.round if layer.driver]
        self._soc = self.tables.socs.get((text(raw, "soc") or "").casefold())

    def has(self, api: str) -> bool:
        """Say whether the record is about an API."""
        return self.apis is not None and api in self.apis

    @cached_property
    def gl_texts(self) -> list[str]:
        """The texts that versions of OpenGL's drivers stand in: the record's, the layers'."""
        # WebGPU over OpenGL puts GL_VERSION where it puts what Vulkan tells of the driver
        is_gl = self.has("gles") or "gles" in self.hidden_apis
        version = text(self.raw, "GL_VERSION", *(("driverInfo", "driver_info") if is_gl else ()))
        return [*([] if version is None else [texts.spaced(version)]), *self._layer_drivers]

    @cached_property
    def vulkan_texts(self) -> list[str]:
        """The texts that versions of Vulkan's drivers stand in."""
        return self._texts("driverVersionString", "driverInfo", "driver_info", "driver_version")

    def _texts(self, *keys: str) -> list[str]:
        return [t for key in keys if (t := text(self.raw, key))]

    @cached_property
    def by_gl(self) -> dict[str, Version]:
        """The versions in texts of OpenGL."""
        return texts.gl_versions(self.gl_texts)

    @cached_property
    def driver(self) -> DriverRow | None:
        """The driver by its id, its name, what a layer calls it, or the device's name."""
        told, words = self.raw.get("driverID"), self.tables.driver_words
        number = integer(told)
        if number is None and isinstance(told, str):
            number = words.get(told.upper().removeprefix("VK_DRIVER_ID_"))
        if number is not None:
            return self.tables.drivers.get(number)
        inner = (texts.named_driver(driver)[0] for driver in self._layer_drivers)
        for name in (*self._texts("driverName", "driver"), *inner):
            if name in words:
                return self.tables.drivers[words[name]]
            if known := self.tables.driver_of(name):
                return known
        is_vulkan = self.has("vulkan") or any(layer.vulkan for layer in self.round)
        return self.tables.signed(self.name) if self.name and is_vulkan else None

    @cached_property
    def makers(self) -> list[str]:
        """The makers that the record speaks of, the surest first."""
        raw, tables = self.raw, self.tables
        named = self.row.vendor if self.row else None
        if self.row is not None and self.row.is_software:
            return [named] if named else []
        number = integer(raw.get("vendorID", raw.get("vendor")))
        words = text(raw, "GL_VENDOR", "vendor")
        by_text = tables.vendor_of(texts.inner_vendor(words)) if words else None
        by_scheme = next((tables.speakers[s] for s in self.by_gl if s in tables.speakers), None)
        # where a list's author filled in the maker, the form of the version and the chip know more
        other = [by_scheme, self._soc[0] if self._soc else None]
        told = [
            None if number is None else tables.vendor_ids.get(number),
            named,
            self.driver.vendor if self.driver else None,
            tables.marked(text(raw, "GL_VERSION") or ""),
            *((*other, by_text) if raw.get("vendor_inferred") is True else (by_text, *other)),
        ]
        return [maker for maker in told if maker]

    @property
    def vendor(self) -> str | None:
        """The maker, by the surest of what tells it."""
        return self.makers[0] if self.makers else None

    @cached_property
    def model(self) -> tuple[str | None, int | None]:
        """The family and the model's number, by the name or else by the device's id or chip."""
        family = model = None
        if self.row is not None and self.row.vendor == self.vendor:
            family = self.row.family
            if self.row.is_vague:
                return family, None
            model = self._named_model
        if self.vendor is None:
            return family, model
        number = self.device_id
        if number is not None and None in (family, model):
            by_id = self.tables.numbered(self.vendor, number)
            if by_id is not None and family in (None, by_id.family):
                family = by_id.family
                model = by_id.number_of(number) if model is None else model
        if family is None and self._soc is not None and self._soc[0] == self.vendor:
            return self._soc[1:]
        return family, model

    @cached_property
    def device_id(self) -> int | None:
        """The device's id, as reported or as a layer writes it beside the name."""
        told = self.raw.get("deviceID", self.raw.get("device"))
        # on Arm's OpenCL the "vendor" is what Vulkan calls the device
        told = self.raw.get("CL_DEVICE_VENDOR_ID") if told is None else told
        number = integer(told) if not isinstance(told, str) or told.startswith("0x") else None
        return self._inner_id if number is None else number

    @cached_property
    def layers(self) -> tuple[str, ...] | None:
        """The layers, the outermost first; () for none, and None where that is not told."""
        told = [layer.kind for layer in self.round]
        for known in (self.row, self.driver):
            if known is not None and known.layer is not None and known.layer not in told:
                told.append(known.layer)
        version = text(self.raw, "GL_VERSION") or ""
        is_angle = text(self.raw, "api") == "gles-angle" or bool(_ANGLE.search(version))
        is_emulator = "emulator" in (text(self.raw, "os") or "").casefold()
        for kind, is_there in (("angle", is_angle), ("emulator", is_emulator)):
            if is_there and kind not in told:
                told.insert(0, kind)
        return tuple(told) if told else None if self._may_hide_a_layer() else ()

    def _may_hide_a_layer(self) -> bool:
        if self.row is not None and self.row.is_vague:
            return True
        is_apple = self.os in TRANSLATED or (self.vendor == "apple" and self.os is None)
        may_be_vulkan = self.apis is None or self.has("vulkan") or "vulkan" in self.hidden_apis
        if may_be_vulkan and is_apple and self.driver is None:
            return True
        if self.apis is None or self.name is None or not self.is_named:
            is_told = not self.by_gl.keys().isdisjoint(texts.GL_SCHEMES)
            mark = self.tables.marked(text(self.raw, "GL_VERSION") or "")
            return self.driver is None and mark is None and not is_told
        return False

    @cached_property
    def versions(self) -> dict[str, Version]:
        """The driver's version by every scheme that it speaks."""
        raw, every = self.raw, [*self.gl_texts, *self.vulkan_texts]
        drivers = texts.unplain(self._layer_drivers)
        number = integer(raw.get("driverVersion"))
        vulkan = [layer.vulkan for layer in reversed(self.round) if layer.vulkan][:1]
        if self.has("vulkan"):
            vulkan = [*(raw[key] for key in ("apiVersion", "apiVersionRaw") if key in raw), *vulkan]
        systems = [raw[key] for key in ("linux-kernel", "kernel_version") if key in raw]
        macos = [raw[key] for key in ("macos", "macos_version") if key in raw]
        asked: dict[str, list[Any]] = {
            "vk-raw": [number],
            "vk-api": vulkan,
            "adreno-compiler": texts.unplain(every),
            "linux-kernel": systems,
            "macos": [*macos, *drivers],
        }
        if scheme := self._scheme():
            tails = [texts.named_driver(t)[1] for t in self._layer_drivers]
            told = [number, *self.vulkan_texts, *tails]
            asked[scheme] = [t for t in told if not self._is_wddm(t)]
        if "emulator" in (self.layers or ()):
            asked["emulator-host"] = texts.unplain(self.gl_texts)
        asked["win-wddm"] = [*filter(self._is_wddm, every), *drivers]
        pairs = ((name, texts.version(name, text)) for name, text in asked.items())
        known = self.by_gl | {name: version for name, version in pairs if version is not None}
        if "win-wddm" in known and self.vendor == "intel":
            # Intel counts in the last two parts under every API
            known["vk-intel-win"] = known["win-wddm"][2:]
        nvidia = known.get("vk-nvidia") or known.get("gl-nvidia")
        if self.os == "linux" and self.vendor == "nvidia" and nvidia:
            known["linux-nvidia"] = nvidia
        return known

    def _scheme(self) -> str | None:
        """Return the scheme of a Vulkan driver's version: its own, else that of the platform."""
        if self.driver is not None:
            return self.driver.scheme
        if not self.has("vulkan") or self.layers != ():
            return None
        if self._names_mesa():
            return "vk-mesa"
        pairs = ((self.vendor or "", self.os or ""), (self.vendor or "", "any"))
        return next((s for pair in pairs if (s := self.tables.platforms.get(pair))), None)

    def _is_wddm(self, told: object) -> bool:
        """Say whether a text is a version of Windows' driver model, such as 32.0.15.6590."""
        if not isinstance(told, str) or not (self.os == "windows" or self.has("d3d12")):
            return False
        parts = dotted(told)
        return parts is not None and len(parts) == 4 and parts[0] < 100

    def _names_mesa(self) -> bool:
        """Say whether a text or the device's name is of Mesa."""
        keys = ("driverName", "driver", "GL_VENDOR", "GL_RENDERER", "deviceName", "name")
        told = (*self.gl_texts, *self.vulkan_texts, *self._texts(*keys))
        is_known = self.row is not None and self.row.is_mesa is True
        signed = self.tables.signed(self.name) if self.name else None
        is_signed = signed is not None and signed.is_mesa
        return is_known or is_signed or any(_MESA.search(t) for t in told)

    @cached_property
    def is_mesa(self) -> bool | None:
        """Whether a driver of Mesa does the work; None where that cannot be told."""
        if not MESA_LAYERS.isdisjoint(self.layers or ()):
            return True
        if self.driver is not None:
            return self.driver.is_mesa
        if self._names_mesa():
            return True
        # what names its own compiler or counts as the maker does is the maker's driver
        others = {*texts.GL_SCHEMES, "vk-adreno", "adreno-compiler"} - {"gl-mesa"}
        if not others.isdisjoint(self.versions) or texts.is_mali_g(self.gl_texts):
            return False
        return self.row.is_mesa if self.row else None

    def notes(self) -> tuple[str, ...]:
        """Return what could not be told, and why."""
        by_gl = {*texts.GL_SCHEMES, "emulator-host"} & set(self.versions)
        schemes = set(self.versions) - {"vk-raw", "vk-api"}
        is_numbered = any(scheme.startswith("vk-") for scheme in schemes)
        against = sorted({maker for maker in self.makers if maker != self.vendor})
        said = {
            "nothing tells whether a layer lies between the caller and the driver": (
                self.layers is None
            ),
            "the name is made vague on purpose: it stands for several models": (
                self.row is not None and self.row.is_vague
            ),
            "GL_VERSION carries no driver version": (
                "GL_VERSION" in self.raw and not by_gl and not self._layer_drivers
            ),
            "GL_VERSION is of Arm's releases g, which are not counted as releases r are": (
                texts.is_mali_g(self.gl_texts)
            ),
            "nothing tells the scheme of driverVersion": (
                "driverVersion" in self.raw and not is_numbered
            ),
            "nothing tells which API WebGPU runs on": bool(self.hidden_apis),
        }
        makers = (f"the record speaks of {self.vendor}, and of {m} too" for m in against)
        return (*makers, *(note for note, is_so in said.items() if is_so))
