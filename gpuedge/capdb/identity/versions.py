"""Versions of drivers, each decoded by the scheme it is written in.

A version is a tuple of numbers of one scheme and is compared with versions of that scheme only.
What does not parse is None: not known. It is never zero, and never an older version.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

Version: TypeAlias = tuple[int, ...]

MAX_TEXT = 1024
"""Characters of a version's text that are looked at; drivers write at most some hundred."""

MAX_PART = 2**32 - 1
"""Largest number a component may be; more digits are no version."""

ADRENO_MARK = 512
"""First component of every version of vk-adreno: bit 31, which marks the scheme."""

MAX_ARM_RELEASE = 99
"""Arm counts releases in two digits (r53); old drivers that report a hash seem to have hundreds."""

MAX_AMD = 9
"""AMD's driver of Vulkan counts 2.0.x; 24.3.1 is the release of the package it came in."""

MAX_IMG_BUILD = 2**24 - 1
"""Builds of Imagination's driver count changes: about seven million in 2026. Larger numbers are
versions of another driver, packed into bits."""

MESA_OLDEST, MESA_NEWEST = 11, 99
"""First parts of versions of Mesa's drivers of Vulkan: since 2016 the year, nearly."""

_PART = r"(\d{1,10})"


def _rx(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII | re.IGNORECASE)


_DOTTED = _rx(r"\d{1,10}(?:\.\d{1,10}){0,4}")
_WHOLE = _rx(r"0x[0-9a-f]{1,8}|\d{1,10}")


def standard(number: int) -> Version:
    """Return the three parts that Vulkan's own packing of 10, 10 and 12 bits gives."""
    return number >> 22, number >> 12 & 0x3FF, number & 0xFFF


def packed(version: Version) -> int | None:
    """Return the number that `standard` would split into `version`; None where no number does."""
    if len(version) != 3 or not all(
        0 <= part < 1 << bits for part, bits in zip(version, (10, 10, 12), strict=True)
    ):
        return None
    return version[0] << 22 | version[1] << 12 | version[2]


def dotted(text: str, least: int = 1, most: int = 5) -> Version | None:
    """Return the numbers of a text that is nothing but numbers and dots between them."""
    if not _DOTTED.fullmatch(text):
        return None
    parts = tuple(int(part) for part in text.split("."))
    return parts if least <= len(parts) <= most and max(parts) <= MAX_PART else None


def integer(value: object) -> int | None:
    """Return a number of 32 bits given as such, or as decimal or hexadecimal text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if 0 <= value <= MAX_PART else None
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        found = int(value, 0 if value[:2].lower() == "0x" else 10)
        return found if found <= MAX_PART else None
    return None


@dataclass(frozen=True, slots=True)
class Scheme:
    """One way of writing versions, such as ``vk-adreno``.

    `number` and `text` decode a number of 32 bits, or a text; they return None for what is not of
    the scheme. `show` writes a version so that `text` reads it back.
    """

    name: str
    number: Callable[[int], Version | None]
    text: Callable[[str], Version | None]
    show: Callable[[Version], str]


def _never(_number: int) -> Version | None:
    return None


def _show_dotted(version: Version) -> str:
    return ".".join(map(str, version))


def _searched(pattern: str, least: int = 1, most: int = 5) -> Callable[[str], Version | None]:
    """Decoder of a text in which a pattern's groups are the parts; dotted numbers alone do too."""
    compiled = _rx(pattern)

    def decoder(text: str) -> Version | None:
        found = compiled.search(text)
        if found is None:
            return dotted(text, least, most)
        parts = [part for group in found.groups() if group for part in group.split(".")]
        return tuple(map(int, parts)) if max(map(len, parts)) <= 10 else None

    return decoder


def _adreno(number: int) -> Version | None:
    version = standard(number)
    return version if version[0] == ADRENO_MARK and any(version[1:]) else None


def _adreno_text(text: str) -> Version | None:
    parts = dotted(text, 3, 3)
    if parts is None:
        return None
    # tools that take the top bits for the API's variant print 512.807.0 as 0.807.0
    whole = packed((parts[0] or ADRENO_MARK, *parts[1:]))
    return None if whole is None else _adreno(whole)


_MESA = r"\bMesa (\d{1,10}\.\d{1,10}(?:\.\d{1,10})?)|^(\d{1,3}\.\d{1,3}\.\d{1,3})-(?:devel|rc\d+)"


def _mesa(number: int) -> Version | None:
    return _of_mesa(standard(number))


def _of_mesa(version: Version | None) -> Version | None:
    """Return a version of Mesa since it has drivers of Vulkan; older lavapipes report 0.0.1."""
    return version if version and MESA_OLDEST <= version[0] <= MESA_NEWEST else None


def _mesa_text(text: str) -> Version | None:
    return _of_mesa(_searched(_MESA, 2, 3)(text))


def _arm(number: int) -> Version | None:
    version = standard(number)
    return version if 1 <= version[0] <= MAX_ARM_RELEASE else None


_ARM_RELEASE = _rx(rf"(?:^|\bv\d\.)r{_PART}p{_PART}(?![0-9a-z])")


def _arm_text(text: str) -> Version | None:
    found = _ARM_RELEASE.search(text)
    version = (int(found[1]), int(found[2]), 0) if found else dotted(text, 3, 3)
    return version if version and 1 <= version[0] <= MAX_ARM_RELEASE else None


def _nvidia(number: int) -> Version:
    return number >> 22, number >> 14 & 0xFF, number >> 6 & 0xFF, number & 0x3F


def _nvidia_text(text: str) -> Version | None:
    parts = dotted(text, 2, 4)
    if parts is None or max(parts[1:]) <= 0xFF:
        return parts
    # eight bits hold no such number: it was split as if it were packed in Vulkan's own way
    whole = packed(parts)
    return None if whole is None else _nvidia(whole)


def _intel(number: int) -> Version:
    return number >> 14, number & 0x3FFF


def _intel_text(text: str) -> Version | None:
    parts = dotted(text, 2, 4)
    return None if parts is None or len(parts) == 3 else parts[-2:]


def _molten(number: int) -> Version | None:
    version = number // 10000, number // 100 % 100, number % 100
    return version if version[0] <= 99 else None


def _molten_text(text: str) -> Version | None:
    parts = dotted(text, 2, 3)
    if parts is None or parts[0] or len(parts) < 3 or parts[2] < 100:
        return parts
    whole = packed(parts)  # 1.4.0 is the number 10400, which tools print as 0.2.2208
    return None if whole is None else _molten(whole)


def _amd(number: int) -> Version | None:
    version = standard(number)
    return version if version[0] <= MAX_AMD else None


def _amd_text(text: str) -> Version | None:
    parts = dotted(text, 3, 3)
    return parts if parts and parts[0] <= MAX_AMD else None


def _img(number: int) -> Version | None:
    return (number,) if number <= MAX_IMG_BUILD else None


_IMG_CHANGE = _rx(rf"\d@{_PART}$")


def _img_text(text: str) -> Version | None:
    if found := _IMG_CHANGE.search(text):
        return _img(int(found[1]))
    parts = dotted(text, 1, 3)
    whole = parts[0] if parts and len(parts) == 1 else packed(parts) if parts else None
    return None if whole is None else _img(whole)


def _api(number: int) -> Version:
    return number >> 22 & 0x7F, number >> 12 & 0x3FF, number & 0xFFF


def _raw(number: int) -> Version:
    return (number,)


def _raw_text(text: str) -> Version | None:
    number = integer(text)
    return None if number is None else (number,)


def _show_mali(version: Version) -> str:
    return f"r{version[0]}p{version[1]}" if len(version) == 2 else _show_dotted(version)


def _show_img(version: Version) -> str:
    return "{}.{}@{}".format(*version) if len(version) == 3 else _show_dotted(version)


def _show_tegra(version: Version) -> str:
    return f"{version[0]}.{version[1]:05}" if len(version) == 2 else _show_dotted(version)


def _show_compiler(version: Version) -> str:
    return (
        "EV{:03}.{:02}.{:02}.{:02}".format(*version) if len(version) == 4 else _show_dotted(version)
    )


def _vulkan(
    name: str,
    number: Callable[[int], Version | None],
    text: Callable[[str], Version | None],
) -> Scheme:
    return Scheme(name, number, text, _show_dotted)


def _texts(
    name: str, pattern: str, least: int = 2, most: int = 4,
    show: Callable[[Version], str] = _show_dotted,
) -> Scheme:  # fmt: skip
    return Scheme(name, _never, _searched(pattern, least, most), show)


def _three(text: str) -> Version | None:
    return dotted(text, 2, 4)


_ALL = (
    _vulkan("vk-adreno", _adreno, _adreno_text),
    _vulkan("vk-arm", _arm, _arm_text),
    _vulkan("vk-mesa", _mesa, _mesa_text),
    _vulkan("vk-nvidia", _nvidia, _nvidia_text),
    _vulkan("vk-intel-win", _intel, _intel_text),
    _vulkan("vk-amd", _amd, _amd_text),
    _vulkan("vk-moltenvk", _molten, _molten_text),
    _vulkan("vk-img-build", _img, _img_text),
    _vulkan("vk-samsung", standard, _three),
    _vulkan("vk-raw", _raw, _raw_text),
    _vulkan("vk-api", _api, _three),
    _texts("gl-es", r"\bOpenGL ES(?:-C[ML])? (\d{1,2}\.\d{1,2})(?!\d)", 2, 2),
    _texts("gl-adreno", rf"V@{_PART}\.(\d{{1,10}}(?:\.\d{{1,10}})?)(?![\w])", 2, 3),
    _texts("gl-mali", rf"(?:^|\bv\d\.)r{_PART}p{_PART}(?![0-9a-z])", 2, 2, _show_mali),
    _texts("gl-img", rf"(?:\bbuild |^){_PART}\.{_PART}@{_PART}", 3, 3, _show_img),
    _texts("gl-mesa", _MESA, 2, 3),
    _texts("gl-nvidia", r"\bNVIDIA (\d{1,10}(?:\.\d{1,10}){1,3})"),
    _texts("gl-tegra", r"(?:\bOpenGL ES \d\.\d |^)(\d{1,3})\.(\d{5})$", 2, 2, _show_tegra),
    _texts("gl-vivante", r"\bV(\d{1,10}(?:\.\d{1,10}){2,3})(?![\w.])", 3, 4),
    _texts("gl-xclipse", r"\bDriver version: (\d{1,10}(?:\.\d{1,10}){1,3})"),
    _texts("gl-apple", r"\bMetal - (\d{1,10}(?:\.\d{1,10}){0,3})", 1, 4),
    _texts(
        "adreno-compiler",
        rf"\bEV?(\d{{3}})\.{_PART}\.{_PART}\.{_PART}(?!\w)", 4, 4, _show_compiler,
    ),
    _texts("win-wddm", r"\bD3D1[12]-(\d{1,10}(?:\.\d{1,10}){3})(?![\d.])", 4, 4),
    _texts("linux-nvidia", r"\bNVIDIA (\d{1,10}(?:\.\d{1,10}){1,3})"),
    _texts("linux-kernel", r"^(\d{1,4}\.\d{1,4}(?:\.\d{1,4})?)(?=[-+ _])", 2, 3),
    _texts("macos", r"^(?:macOS |Version )(\d{1,4}(?:\.\d{1,4}){0,2})(?![\d.])", 1, 3),
    _texts("emulator-host", r"\(.*[A-Za-z][ -]+(\d{1,10}(?:\.\d{1,10}){1,3})\)$"),
)  # fmt: skip

_BY_NAME = {scheme.name: scheme for scheme in _ALL}

SCHEMES = tuple(_BY_NAME)
"""Every scheme that an entry may name."""


def decode(scheme: str, value: object) -> Version | None:
    """Return the version that `value` is under `scheme`, or None where that is not known.

    Parameters
    ----------
    scheme : str
        One of `SCHEMES`; under any other name nothing is known.
    value : int or str
        ``driverVersion`` and the like, or a text such as ``GL_VERSION``.

    >>> decode("vk-arm", 222298112), decode("gl-adreno", "OpenGL ES 3.2 V@0615.86")
    ((53, 0, 0), (615, 86))
    """
    known = _BY_NAME.get(scheme)
    if known is None:
        return None
    if isinstance(value, str):
        version = known.text(value[:MAX_TEXT].strip())
    else:
        number = integer(value)
        version = None if number is None else known.number(number)
    if version is None or not any(version) or max(version) > MAX_PART:
        return None
    return version


def show(scheme: str, version: Version) -> str:
    """Return how a version of `scheme` is written; `decode` reads it back.

    >>> show("gl-img", (1, 13, 5776728))
    '1.13@5776728'
    """
    known = _BY_NAME.get(scheme)
    return _show_dotted(version) if known is None else known.show(version)
