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

MAX_RELEASE = 2**22 - 1
"""Largest number of a text that can be a version's first part: what is larger was packed into bits,
as by ANGLE in ``radv-83894278``."""

MAX_IMG_BUILD = 2**24 - 1
"""Builds of Imagination's driver count changes: about seven million in 2026. Larger numbers are
versions of another driver, packed into bits."""

_FLAGS = (re.ASCII | re.IGNORECASE).value  # a plain number is looked up sooner
_PART = r"(\d{1,10})"
_WHOLE = re.compile(r"0x[0-9a-f]{1,8}|\d{1,10}", re.ASCII | re.IGNORECASE)
_DOTTED = re.compile(r"\d{1,10}(?:\.\d{1,10}){0,4}", re.ASCII)


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
        number = int(value, 0 if value[:2].lower() == "0x" else 10)
        return number if number <= MAX_PART else None
    return None


def _bits(*sizes: int) -> Callable[[int], Version]:
    """Return what splits a number into parts of so many bits, the last part the lowest bits."""
    shifts = [sum(sizes[i + 1 :]) for i in range(len(sizes))]

    def split(number: int) -> Version:
        pairs = zip(shifts, sizes, strict=True)
        return tuple(number >> shift & (1 << size) - 1 for shift, size in pairs)

    return split


_standard = _bits(10, 10, 12)
"""Vulkan's own packing."""


def _packed(version: Version) -> int | None:
    """Return the number that Vulkan's packing would split so; None where no number does."""
    number = version[0] << 22 | version[1] << 12 | version[2] if len(version) == 3 else -1
    return number if number >= 0 and _standard(number) == version else None


def _decimal(number: int) -> Version:
    return number // 10000, number // 100 % 100, number % 100


# Tools print any driverVersion as if it were in Vulkan's own packing. Numbers that the scheme of
# the driver cannot have show that; packed again, they are split as the driver meant them.


def _adreno(parts: Version) -> Version | None:
    # tools that take the top bits for the API's variant print 512.807.0 as 0.807.0
    whole = _packed((parts[0] or ADRENO_MARK, *parts[1:]))
    return None if whole is None else _standard(whole)


def _nvidia(parts: Version) -> Version | None:
    if max(parts[1:]) <= 0xFF:
        return parts
    whole = _packed(parts)
    return None if whole is None else _bits(10, 8, 8, 6)(whole)


def _molten(parts: Version) -> Version | None:
    if parts[0] or len(parts) < 3 or parts[2] < 100:
        return parts
    whole = _packed(parts)  # 1.4.0 is the number 10400, which tools print as 0.2.2208
    return None if whole is None else _decimal(whole)


def _img(parts: Version) -> Version | None:
    whole = parts[0] if len(parts) == 1 else _packed(parts)
    return None if whole is None else (whole,)


def _intel(parts: Version) -> Version | None:
    return None if len(parts) == 3 else parts[-2:]


def _between(low: int, high: int) -> Callable[[Version], bool]:
    return lambda version: low <= version[0] <= high


@dataclass(frozen=True, slots=True)
class Scheme:
    """One way of writing versions.

    `split` takes a number of 32 bits apart. In a text the groups of `pattern` are the parts, else
    the whole text is from `least` to `most` numbers with dots between; `mend` makes a version of
    them. `accepts` says whether the scheme's author can have written a version. `form` shows one.
    """

    split: Callable[[int], Version] | None = None
    pattern: str = ""
    least: int = 2
    most: int = 4
    mend: Callable[[Version], Version | None] | None = None
    accepts: Callable[[Version], bool] = any
    form: str = ""

    def read(self, text: str) -> Version | None:
        """Return the version in a text."""
        match = re.search(self.pattern, text, _FLAGS) if self.pattern else None
        if match:
            groups = (group for group in match.groups() if group)
            parts = tuple(int(part) for group in groups for part in group.split("."))
        else:
            parts = dotted(text, self.least, self.most) or ()
        return self.mend(parts) if parts and self.mend else parts or None


_MESA = r"\bMesa (\d{1,10}\.\d{1,10}(?:\.\d{1,10})?)|^(\d{1,3}\.\d{1,3}\.\d{1,3})-(?:devel|rc\d+)"
_NVIDIA = r"\bNVIDIA (\d{1,10}(?:\.\d{1,10}){1,3})"
_ARM = rf"(?:^|\bv\d\.)r{_PART}p{_PART}(?![0-9a-z])"

_SCHEMES = {
    "vk-adreno": Scheme(
        _standard, "", 3, 3, _adreno, lambda v: v[0] == ADRENO_MARK and any(v[1:])
    ),
    # Arm counts releases in two digits (r53); old drivers that report a hash seem to have hundreds
    "vk-arm": Scheme(_standard, _ARM, 3, 3, lambda v: (*v, 0)[:3], _between(1, 99)),
    # since 2016 nearly the year; older lavapipes report 0.0.1
    "vk-mesa": Scheme(_standard, _MESA, 2, 3, None, _between(11, 99)),
    "vk-nvidia": Scheme(_bits(10, 8, 8, 6), "", 2, 4, _nvidia),
    "vk-intel-win": Scheme(_bits(18, 14), "", 2, 4, _intel),
    # AMD's driver counts 2.0.x; 24.3.1 is the release of the package it came in
    "vk-amd": Scheme(_standard, "", 3, 3, None, _between(0, 9)),
    "vk-moltenvk": Scheme(_decimal, "", 2, 3, _molten, _between(0, 99)),
    "vk-img-build": Scheme(
        lambda number: (number,), rf"\d@{_PART}$", 1, 3, _img, _between(0, MAX_IMG_BUILD)
    ),
    "vk-samsung": Scheme(_standard),
    "vk-raw": Scheme(lambda number: (number,), "", 1, 1),
    "vk-api": Scheme(_bits(7, 10, 12)),
    "gl-es": Scheme(None, r"\bOpenGL ES(?:-C[ML])? (\d{1,2}\.\d{1,2})(?!\d)", 2, 2),
    "gl-adreno": Scheme(None, rf"V@{_PART}\.(\d{{1,10}}(?:\.\d{{1,10}})?)(?![\w])", 2, 3),
    "gl-mali": Scheme(None, _ARM, 2, 2, form="r{}p{}"),
    "gl-img": Scheme(None, rf"(?:\bbuild |^){_PART}\.{_PART}@{_PART}", 3, 3, form="{}.{}@{}"),
    "gl-mesa": Scheme(None, _MESA, 2, 3),
    "gl-nvidia": Scheme(None, _NVIDIA),
    "gl-tegra": Scheme(
        None, r"(?:\bOpenGL ES \d\.\d |^)(\d{1,3})\.(\d{5})$", 2, 2, form="{}.{:05}"
    ),
    "gl-vivante": Scheme(None, r"\bV(\d{1,10}(?:\.\d{1,10}){2,3})(?![\w.])", 3, 4),
    "gl-xclipse": Scheme(None, r"\bDriver version: (\d{1,10}(?:\.\d{1,10}){1,3})"),
    "gl-apple": Scheme(None, r"\bMetal - (\d{1,10}(?:\.\d{1,10}){0,3})", 1, 4),
    "adreno-compiler": Scheme(
        None, rf"\bEV?(\d{{3}})\.{_PART}\.{_PART}\.{_PART}(?!\w)", 4, 4,
        form="EV{:03}.{:02}.{:02}.{:02}",
    ),
    "win-wddm": Scheme(None, r"(?:\bD3D1[12]|\.dll)-(\d{1,10}(?:\.\d{1,10}){3})(?![\d.])", 4, 4),
    "linux-nvidia": Scheme(None, _NVIDIA),
    "linux-kernel": Scheme(None, r"^(\d{1,4}\.\d{1,4}(?:\.\d{1,4})?)(?=[-+ _])", 2, 3),
    "macos": Scheme(None, r"^(?:macOS |Version )(\d{1,4}(?:\.\d{1,4}){0,2})(?![\d.])", 1, 3),
    "emulator-host": Scheme(None, r"\(.*[A-Za-z][ -]+(\d{1,10}(?:\.\d{1,10}){1,3})\)$"),
}  # fmt: skip

SCHEMES = tuple(_SCHEMES)
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
    known = _SCHEMES.get(scheme)
    if known is None:
        return None
    version = None
    text = value[:MAX_TEXT].strip() if isinstance(value, str) else ""
    number = None if known.split is None else integer(text or value)
    if known.split is not None and number is not None and (not text or number > MAX_RELEASE):
        version = known.split(number)
    elif text:
        version = known.read(text)
    if version is None or not any(version) or max(version) > MAX_PART:
        return None
    return version if known.accepts(version) else None


def show(scheme: str, version: Version) -> str:
    """Return how a version of `scheme` is written; `decode` reads it back.

    >>> show("gl-img", (1, 13, 5776728))
    '1.13@5776728'
    """
    form = _SCHEMES[scheme].form if scheme in _SCHEMES else ""
    if form and form.count("{") == len(version):
        return form.format(*version)
    return ".".join(map(str, version))
