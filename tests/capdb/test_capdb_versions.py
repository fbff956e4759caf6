"""Versions of drivers: what each scheme decodes, what it must not, and what is shown reads back.

The numbers are worked out by hand or given by drivers' authors and tools; none comes from the code.
"""

from __future__ import annotations

import json
import random
import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuedge.capdb.identity.versions import MAX_PART, MAX_TEXT, SCHEMES, decode, integer, show

ROOT = Path(__file__).resolve().parents[2]

VECTORS: list[tuple[str, int | str, tuple[int, ...]]] = [
    ("vk-adreno", 0x801EA000, (512, 490, 0)),
    ("vk-adreno", 2150789120, (512, 807, 0)),
    ("vk-adreno", "0.807.0", (512, 807, 0)),
    ("vk-adreno", "512.762.12", (512, 762, 12)),
    ("vk-adreno", 0x801F6000, (512, 502, 0)),
    ("vk-adreno", 2150531090, (512, 744, 18)),
    ("vk-arm", 222298112, (53, 0, 0)),
    ("vk-arm", 192937984, (46, 0, 0)),
    ("vk-arm", "53.0.0", (53, 0, 0)),
    ("vk-arm", "r46p0", (46, 0, 0)),
    ("vk-arm", "v1.r38p1-01eac0.f7ccd93bdb0d5a5cd3f2b1a5a6fa2a52", (38, 1, 0)),
    ("vk-mesa", 104865800, (25, 2, 8)),
    ("vk-mesa", 0x5002006, (20, 2, 6)),
    ("vk-mesa", "Mesa 26.0.0-devel (git-8fb0621f2d)", (26, 0, 0)),
    ("vk-mesa", "25.2.8", (25, 2, 8)),
    ("vk-nvidia", 535 << 22, (535, 0, 0, 0)),
    ("vk-nvidia", 535 << 22 | 113 << 14 | 1 << 6, (535, 113, 1, 0)),
    ("vk-nvidia", "440.100.0.0", (440, 100, 0, 0)),
    ("vk-nvidia", "565.90", (565, 90)),
    ("vk-nvidia", "390.308.0", (390, 77, 0, 0)),
    ("vk-intel-win", (101 << 14) + 2115, (101, 2115)),
    ("vk-intel-win", 0x194843, (101, 2115)),
    ("vk-intel-win", "32.0.101.8509", (101, 8509)),
    ("vk-amd", 0x800106, (2, 0, 262)),
    ("vk-amd", "2.0.262", (2, 0, 262)),
    ("vk-moltenvk", 10400, (1, 4, 0)),
    ("vk-moltenvk", "0.2.2208", (1, 4, 0)),
    ("vk-moltenvk", "0.2.2108", (1, 3, 0)),
    ("vk-moltenvk", "1.4.2", (1, 4, 2)),
    ("vk-img-build", 6794074, (6794074,)),
    ("vk-img-build", "1.602.400", (6660496,)),
    ("vk-img-build", "24.2@6603887", (6603887,)),
    ("vk-samsung", 24 << 22 | 1 << 12 | 207, (24, 1, 207)),
    ("vk-raw", 54185879, (54185879,)),
    ("vk-api", "1.0.66", (1, 0, 66)),
    ("vk-api", 4198528, (1, 1, 128)),
    ("gl-es", "OpenGL ES 3.2 V@0615.86", (3, 2)),
    ("gl-es", "OpenGL ES 2.0.0 (ANGLE 2.1.4875 git hash: 32e78475b1c0)", (2, 0)),
    ("gl-adreno", "OpenGL ES 2.0 V@14.0 AU@04.02 (CL@3206)", (14, 0)),
    ("gl-adreno", "OpenGL ES 3.2 V@0615.86 (GIT@30f48d66fb)", (615, 86)),
    ("gl-adreno", "OpenGL ES 3.1V@104.0 (GIT@I96)", (104, 0)),
    ("gl-adreno", "V@490.1.2", (490, 1, 2)),
    ("gl-mali", "OpenGL ES 3.2 v1.r53p0-00eac0.0123456789abcdef0123456789abcdef", (53, 0)),
    ("gl-mali", "OpenGL ES 3.2 v1.r38p1", (38, 1)),
    ("gl-img", "OpenGL ES 3.2 build 1.13@5776728", (1, 13, 5776728)),
    ("gl-mesa", "4.5 (Core Profile) Mesa 24.0.6-1", (24, 0, 6)),
    ("gl-mesa", "OpenGL ES 3.0 Mesa 12.0.3 (git-8b8f097)", (12, 0, 3)),
    ("gl-nvidia", "3.2.0 NVIDIA 195.36.24", (195, 36, 24)),
    ("gl-nvidia", "OpenGL ES 3.2 NVIDIA 343.00", (343, 0)),
    ("gl-tegra", "OpenGL ES 2.0 14.01003", (14, 1003)),
    ("gl-vivante", "OpenGL ES 3.1 V6.2.4.138003", (6, 2, 4, 138003)),
    ("gl-xclipse", "OpenGL ES 3.2 Driver version: 24.1.207 git hash: 927672398aa8", (24, 1, 207)),
    ("gl-apple", "4.1 Metal - 90.5", (90, 5)),
    ("gl-apple", "OpenGL 4.1 Metal - 70.12.7", (70, 12, 7)),
    ("adreno-compiler", "Compiler Version: EV031.32.02.06", (31, 32, 2, 6)),
    ("win-wddm", "32.0.15.6590", (32, 0, 15, 6590)),
    ("win-wddm", "11 vs_5_0 ps_5_0, D3D11-31.0.15.1659", (31, 0, 15, 1659)),
    ("linux-nvidia", "530.30.02", (530, 30, 2)),
    ("linux-kernel", "6.18.29-amd64", (6, 18, 29)),
    ("macos", "26.6.1", (26, 6, 1)),
    ("macos", "Version 13.0 (Build 22A380)", (13, 0)),
    ("emulator-host", "OpenGL ES 3.0 (4.5.0 NVIDIA 551.76)", (551, 76)),
    ("emulator-host", "OpenGL ES 3.0 (4.1 Metal - 90.5)", (90, 5)),
]  # fmt: skip

UNKNOWN: list[tuple[str, object]] = [
    ("vk-adreno", 54185879),  # no bit 31: an old driver, whose numbers have no structure
    ("vk-adreno", 104865800),  # Mesa's Turnip
    ("vk-adreno", "25.2.8"),
    ("vk-arm", 0xF2345678),
    ("vk-arm", "v1.g13p0-01eac0.0123456789abcdef0123456789abcdef"),
    ("vk-mesa", 1),  # lavapipe for years
    ("vk-mesa", "15.0.6"[:1]),
    ("vk-nvidia", "390.3080.0"),
    ("vk-amd", "24.3.1"),  # the release of the package
    ("vk-amd", "24.3.1 (AMD proprietary shader compiler)"),
    ("vk-img-build", 101068899),  # 24.99.99 of Mesa
    ("vk-img-build", "26.2.4"),
    ("gl-adreno", "OpenGL ES 3.2 ANGLE git hash: 131b607622f4"),
    ("gl-adreno", "OpenGL ES 3.2"),
    ("gl-mali", "OpenGL ES 3.1"),
    ("gl-mali", "OpenGL ES 3.2 v1.g13p0-01eac0.0123456789abcdef0123456789abcdef"),
    ("gl-es", "4.5 (Core Profile) Mesa 24.0.6-1"),
    ("gl-vivante", "OpenGL ES 3.2 V@0615.86"),
    ("gl-tegra", "OpenGL ES 2.0"),
    ("emulator-host", "OpenGL ES 3.0"),
    ("win-wddm", "565.90"),
    *((scheme, value) for scheme in SCHEMES for value in (0, "", "0", "0.0", "0.0.0", None, True)),
    *((scheme, value) for scheme in SCHEMES for value in (-1, 2**32, 1.5, b"1.2.3", [])),
    *((scheme, "\u0663.\u0661.\u0662") for scheme in SCHEMES),  # digits, but not ASCII's
]  # fmt: skip


def test_schemes_are_those_that_entries_may_name() -> None:
    schema = json.loads((ROOT / "capability_db" / "entries.schema.json").read_bytes())
    assert sorted(SCHEMES) == sorted(schema["$defs"]["scheme"]["enum"])


def test_every_scheme_has_a_vector() -> None:
    assert {scheme for scheme, _, _ in VECTORS} == set(SCHEMES)


@pytest.mark.parametrize(("scheme", "value", "version"), VECTORS)
def test_vector(scheme: str, value: int | str, version: tuple[int, ...]) -> None:
    assert decode(scheme, value) == version


@pytest.mark.parametrize(("scheme", "value", "version"), VECTORS)
def test_what_is_shown_reads_back(scheme: str, value: int | str, version: tuple[int, ...]) -> None:
    assert decode(scheme, show(scheme, version)) == version


def test_shown_as_the_field_writes_it() -> None:
    assert show("gl-tegra", (14, 1003)) == "14.01003"
    assert show("adreno-compiler", (31, 32, 2, 6)) == "EV031.32.02.06"
    assert show("gl-mali", (53, 0)) == "r53p0"
    assert show("gl-img", (1, 13, 5776728)) == "1.13@5776728"
    assert show("vk-mesa", (25, 2, 8)) == "25.2.8"


@pytest.mark.parametrize(("scheme", "value"), UNKNOWN)
def test_unknown(scheme: str, value: object) -> None:
    assert decode(scheme, value) is None


def test_no_scheme_of_that_name() -> None:
    assert decode("vk-nobody", 104865800) is None
    assert show("vk-nobody", (1, 2)) == "1.2"


def test_text_is_read_to_its_limit_only() -> None:
    assert decode("gl-mesa", " " * 9 + "4.5 Mesa 24.0.6".rjust(MAX_TEXT - 9)) == (24, 0, 6)
    assert decode("gl-mesa", "x" * MAX_TEXT + " Mesa 24.0.6") is None


@pytest.mark.parametrize(
    ("value", "number"),
    [("0x10de", 0x10DE), ("0X10DE", 0x10DE), ("4318", 4318), (4318, 4318), ("", None),
     ("0x", None), ("10de", None), (True, None), (2**32, None), (MAX_PART, MAX_PART), ("-1", None),
     ("1_0", None)],
)  # fmt: skip
def test_integers(value: object, number: int | None) -> None:
    assert integer(value) == number


@settings(max_examples=100)
@given(st.sampled_from(SCHEMES), st.integers(0, 2**32 - 1))
def test_every_number_that_decodes_reads_back(scheme: str, number: int) -> None:
    version = decode(scheme, number)
    assert version is None or decode(scheme, show(scheme, version)) == version


@settings(max_examples=100)
@given(st.integers(0, 1023), st.integers(0, 1023), st.integers(0, 4095))
def test_standard_packing_is_undone(a: int, b: int, c: int) -> None:
    number = a << 22 | b << 12 | c
    credible = {
        "vk-mesa": 11 <= a <= 99,
        "vk-arm": 1 <= a <= 99,
        "vk-amd": a <= 9 and number,
        "vk-adreno": a == 512 and b + c,
    }
    for scheme, is_credible in credible.items():
        assert decode(scheme, number) == ((a, b, c) if is_credible else None)


def test_arbitrary_texts_give_a_version_or_none() -> None:
    """Ten thousand texts and numbers: nothing raises, no component exceeds what fits."""
    random_of = random.Random(5)
    seeds = [value for _, value, _ in VECTORS if isinstance(value, str)]
    letters = string.printable + "\u0663\u00e9\ud800\0@.-()"
    for i in range(10_000):
        text = list(random_of.choice(seeds))
        for _ in range(random_of.randrange(1, 6)):
            place = random_of.randrange(len(text) + 1)
            text[place : place + random_of.randrange(3)] = random_of.choice(letters) * (
                random_of.choice((1, 1, 1, 12))
            )
        scheme = SCHEMES[i % len(SCHEMES)]
        version = decode(scheme, "".join(text))
        assert version is None or (any(version) and 0 <= min(version) <= max(version) <= MAX_PART)
