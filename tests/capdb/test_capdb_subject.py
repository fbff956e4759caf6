"""Who devices are: all 264 identities seen in the wild, layers, and records made of anything."""

from __future__ import annotations

import dataclasses
import json
import random
import string
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuedge.capdb.identity.subject import Subject, subject

DATABASE = Path(__file__).resolve().parents[2] / "capability_db"
RECORDS: list[dict[str, Any]] = json.loads((DATABASE / "fixtures/identities.json").read_bytes())
BY_ID = {record["id"]: record for record in RECORDS}
MATCH = json.loads((DATABASE / "entries.schema.json").read_bytes())["$defs"]["match"]["properties"]

VENDORS: dict[str | None, str] = {
    "amd": "D022 D073 D074 D075 D146 D156",
    "apple": """
        D025 D084 D085 D149 D150 D182 D184 D191 D192 D204 D243 D244 D245 D247 D248 D249 D250 D251
        D252 D259""",
    "arm": """
        D004 D014 D043 D049 D051 D053 D056 D057 D058 D059 D061 D095 D096 D097 D098 D099 D100 D101
        D131 D132 D153 D161 D163 D168 D172 D200 D201 D208 D209 D227 D230 D231 D232 D233 D234 D235
        D237 D275 D276 D289 D298 D301 D303 D304 D305 D307 D308 D312 D315 D316 D319 D321 D323 D325
        D326 D329 D343 D346 D353 D360 D361 D362 D377 D386 D389 D391 D392 D393 D396 D397 D398 D399
        D401 D402 D404 D405""",
    "broadcom": "D117 D185 D186",
    "imagination": """
        D003 D016 D039 D040 D047 D113 D114 D152 D174 D175 D176 D177 D180 D211 D212 D239 D241 D242
        D280 D282 D284 D400""",
    "intel": """
        D011 D021 D035 D042 D048 D091 D092 D093 D094 D102 D136 D148 D262 D263 D264 D290""",
    "mesa-software": "D119 D134 D135 D255 D257",
    "microsoft": "D260",
    "nvidia": """
        D006 D009 D012 D026 D030 D032 D034 D087 D089 D103 D104 D106 D107 D108 D109 D111 D115 D116
        D137 D155 D157 D195""",
    "qualcomm": """
        D001 D015 D037 D050 D063 D064 D066 D068 D071 D076 D077 D078 D079 D082 D120 D121 D122 D123
        D126 D127 D128 D129 D130 D138 D139 D143 D164 D166 D171 D202 D205 D213 D215 D217 D219 D223
        D225 D226 D268 D270 D271 D272 D273 D291 D292 D293 D294 D306 D309 D310 D313 D320 D322 D324
        D327 D330 D331 D332 D334 D338 D339 D341 D344 D345 D347 D352 D355 D356 D363 D366 D371 D374
        D375 D376 D378 D381 D385 D403""",
    # the makers of the last four were filled in by the list's author; the chips are Samsung's
    "samsung": "D044 D045 D199 D285 D286 D317 D336 D370 D384 D394",
    "swiftshader": "D019 D036 D196",
    None: "D018 D261",  # a driver of Mesa for a GPU that is not named, and VMware's
}
"""Read from the records, not from the code's answers."""

LAYERS: dict[tuple[str, ...] | None, str] = {
    ("angle",): """
        D021 D022 D025 D026 D030 D032 D034 D035 D036 D037 D044 D045 D047 D201 D202 D204 D261 D264
        D285 D286 D336 D370 D384 D394""",
    ("angle", "venus"): "D048 D049 D289",
    ("dozen",): "D102 D103 D104",
    ("moltenvk",): "D149 D182 D184",
    ("kosmickrisp",): "D150",
    ("emulator",): "D191 D192 D195 D196",
    ("virgl",): "D290",
    None: "D084 D085 D137 D200",  # Apple's GPUs under Vulkan, a name made vague, WebGPU's silence
}  # fmt: skip
"""All others are native."""

NO_VERSION = ["D004", "D019", "D021", "D022", "D137", "D155", "D336", "D370", "D384", "D394"]
"""Identities whose GL_VERSION holds no driver's version of a known scheme."""

MODELS: dict[str, tuple[str | None, int | None]] = {
    "D001": ("adreno", 320), "D003": ("powervr-rogue", 6430), "D004": ("mali-midgard", 604),
    "D006": ("tegra", 3), "D009": (None, None), "D011": ("intel-gen7", None),
    "D022": ("gcn", 560), "D025": ("apple-a", 12), "D032": ("geforce", 1660),
    "D035": ("intel-gen9", 630), "D039": ("powervr-volcanic", None), "D043": ("mali-valhall", 68),
    "D045": ("xclipse", 960), "D048": ("intel-xe", None), "D049": ("mali-bifrost", 72),
    "D050": ("adreno", 505), "D058": ("mali-bifrost", 52), "D074": ("rdna2", 6900),
    "D075": ("gcn", 8), "D085": ("apple-m", 1), "D091": ("intel-gen11", None),
    "D094": ("intel-xe", 770), "D098": ("mali-5thgen", 720), "D102": (None, None),
    "D104": ("geforce", 3070), "D109": ("tegra", None), "D115": (None, None),
    "D117": ("v3d", 71), "D136": ("intel-gen9", 505), "D137": ("geforce", None),
    "D139": ("adreno", None), "D146": ("rdna2", 6800), "D148": ("intel-xe", None),
    "D153": ("mali-utgard", 450), "D156": ("gcn", None), "D161": ("mali-valhall", 610),
    "D180": ("powervr-sgx", 544), "D185": ("v3d", 42), "D192": ("apple-m", 2),
    "D227": ("mali-utgard", 400), "D249": ("apple-a", 10), "D262": ("intel-gen8", 400),
    "D270": ("adreno", 810), "D275": ("mali-5thgen", 1), "D276": ("mali-5thgen", 925),
    "D284": ("powervr-rogue", 7400), "D286": ("xclipse", 540), "D289": ("mali-valhall", 57),
    "D290": ("intel-gen9", 620), "D291": ("adreno", 618), "D292": ("adreno", None),
    "D336": ("xclipse", 940),
}  # fmt: skip

VERSIONS: dict[str, tuple[str, tuple[int, ...]]] = {
    "D001": ("gl-adreno", (14, 0)), "D003": ("gl-img", (1, 4, 3283119)),
    "D006": ("gl-tegra", (14, 1003)), "D009": ("linux-nvidia", (195, 36, 24)),
    "D014": ("gl-mali", (12, 0)), "D018": ("gl-mesa", (12, 0, 3)),
    "D025": ("gl-apple", (70, 12, 7)), "D026": ("gl-nvidia", (440, 100)),
    "D030": ("vk-nvidia", (390, 77, 0, 0)), "D034": ("vk-nvidia", (440, 100, 0, 0)),
    "D035": ("vk-mesa", (20, 0, 8)), "D037": ("vk-adreno", (512, 490, 0)),
    "D044": ("vk-api", (1, 1, 179)), "D047": ("vk-img-build", (6660496,)),
    "D050": ("gl-adreno", (328, 0)), "D127": ("gl-adreno", (502, 0)),
    "D138": ("vk-adreno", (512, 490, 0)), "D139": ("vk-adreno", (512, 807, 0)),
    "D143": ("vk-raw", (54185879,)), "D146": ("vk-mesa", (25, 2, 8)),
    "D148": ("vk-mesa", (25, 0, 0)), "D157": ("vk-nvidia", (565, 90)),
    "D172": ("vk-arm", (53, 0, 0)), "D174": ("vk-mesa", (25, 99, 99)),
    "D175": ("vk-mesa", (26, 0, 0)), "D182": ("vk-moltenvk", (1, 3, 0)),
    "D184": ("vk-moltenvk", (1, 4, 2)), "D186": ("gl-mesa", (19, 3, 2)),
    "D191": ("emulator-host", (90, 5)), "D201": ("gl-mali", (38, 1)),
    "D317": ("gl-xclipse", (24, 1, 207)), "D400": ("gl-img", (1, 13, 5776728)),
}  # fmt: skip


def vulkan(name: str, **more: Any) -> Subject:
    return subject({"api": "vulkan", "deviceName": name, **more})


def gles(renderer: str, **more: Any) -> Subject:
    return subject({"api": "gles", "GL_RENDERER": renderer, **more})


def wanted(lists: Mapping[Any, str], other: Any = None) -> dict[str, Any]:
    found = {name: key for key, names in lists.items() for name in names.split()}
    return {name: found.get(name, other) for name in BY_ID}


def test_fixtures_are_all_here_and_judged_once() -> None:
    assert len(BY_ID) == len(RECORDS) == 264
    listed = [name for names in VENDORS.values() for name in names.split()]
    assert sorted(listed) == sorted(BY_ID)


def test_vendor_of_every_identity() -> None:
    assert {name: subject(r).vendor for name, r in BY_ID.items()} == wanted(VENDORS)


def test_layers_of_every_identity() -> None:
    assert {name: subject(r).layers for name, r in BY_ID.items()} == wanted(LAYERS, ())


def test_words_are_those_of_entries() -> None:
    for record in RECORDS:
        found = subject(record)
        for key, value in (("vendor", found.vendor), ("family", found.family), ("os", found.os)):
            assert value in {None, *MATCH[key]["items"]["enum"]}
        assert {*(found.layers or ())} <= {*MATCH["layer"]["items"]["enum"]}
        assert found.apis is not None and found.apis <= {*MATCH["api"]["items"]["enum"]}
        assert {*found.versions} <= {*scheme_names()}


def scheme_names() -> list[str]:
    schema = json.loads((DATABASE / "entries.schema.json").read_bytes())
    names: list[str] = schema["$defs"]["scheme"]["enum"]
    return names


@pytest.mark.parametrize("name", MODELS)
def test_family_and_model(name: str) -> None:
    found = subject(BY_ID[name])
    assert (found.family, found.model) == MODELS[name]


@pytest.mark.parametrize("name", VERSIONS)
def test_version(name: str) -> None:
    scheme, version = VERSIONS[name]
    assert subject(BY_ID[name]).versions[scheme] == version


def test_versions_that_the_records_expect() -> None:
    """The facts carry what Chromium's tests expect; the tag after r12p0 names a package."""
    expected = {
        n: r["expect_driver_version"] for n, r in BY_ID.items() if "expect_driver_version" in r
    }
    assert expected == {
        "D001": "14.0", "D003": "1.4", "D004": "0", "D006": "14.01003", "D009": "195.36.24",
        "D014": "12.0.04rel0",
    }  # fmt: skip
    for name, text in expected.items():
        found = {s: v for s, v in subject(BY_ID[name]).versions.items() if s != "gl-es"}
        if text == "0":  # Chromium's zero stands for a version that is not told
            assert found == {}
            continue
        numbers = tuple(int(part) for part in text.split(".") if part.isdecimal())
        assert {v[: len(numbers)] for v in found.values()} == {numbers}


def test_identities_without_a_version_are_unknown_not_zero() -> None:
    bare = {"gl-es", "vk-api"}
    silent = [
        n for n, r in BY_ID.items() if "GL_VERSION" in r and not {*subject(r).versions} - bare
    ]
    assert silent == NO_VERSION
    for record in RECORDS:
        assert all(any(version) for version in subject(record).versions.values())
    assert "GL_VERSION carries no driver version" in subject(BY_ID["D004"]).notes


def test_scheme_that_nothing_tells_leaves_the_raw_number() -> None:
    for name in ("D143", "D176"):
        found = subject(BY_ID[name])
        assert not {s for s in found.versions if s.startswith("vk-")} - {"vk-raw", "vk-api"}
        assert "nothing tells the scheme of driverVersion" in found.notes
    assert "vk-img-build" not in subject(BY_ID["D177"]).versions


def test_mesa_by_what_gl_tells() -> None:
    assert subject(BY_ID["D186"]).is_mesa is True
    assert subject(BY_ID["D400"]).is_mesa is False
    assert subject(BY_ID["D196"]).is_mesa is False


def test_builds_and_dates() -> None:
    found = subject(BY_ID["D403"])
    assert found.builds == {"30f48d66fb", "I33af6953c3", "1712899917"}
    assert found.built == "2024-04-12"
    assert subject(BY_ID["D401"]).builds == {"2a893c04ca0026c2e6802dbe7d7af5c5"}
    assert subject(BY_ID["D400"]).builds == {"5776728"}
    assert subject(BY_ID["D135"]).builds == {"c222f7299c"}
    assert subject(BY_ID["D336"]).builds == {"131b607622f4"}
    assert subject(BY_ID["D171"]).built == "2023-12-27"
    assert subject(BY_ID["D050"]).built == "2018-08-21"
    info = "Driver Build: 85da404, I46ff5fc46f, 1606794520\nDate: 11/30/20\n" \
           "Compiler Version: EV031.32.02.06\nDriver Branch: "  # fmt: skip
    adreno = vulkan("Adreno (TM) 640", driverInfo=info, os="android")
    assert (adreno.builds, adreno.built) == ({"85da404", "I46ff5fc46f", "1606794520"}, "2020-11-30")
    assert adreno.versions["adreno-compiler"] == (31, 32, 2, 6)
    assert gles("Adreno (TM) 640", GL_VERSION="V@1.0 (Date:13/45/20)").built is None


class Hostile(Mapping[str, Any]):
    """A mapping that fails where it is read."""

    def __getitem__(self, key: str) -> Any:
        raise RuntimeError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(("api", "name"))

    def __len__(self) -> int:
        return 2


def test_mapping_that_fails_tells_nothing() -> None:
    nothing = subject({})
    assert subject(Hostile()) == nothing
    assert subject({"api": "vulkan", "features": Hostile()}).apis == {"vulkan"}
    assert (nothing.apis, nothing.layers, nothing.vendor, nothing.versions) == (
        None,
        None,
        None,
        {},
    )


_KEYS = st.sampled_from([*sorted({k for r in RECORDS for k in r}), "features", "x"]) | st.text()
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)


@settings(max_examples=100)
@given(st.dictionaries(_KEYS | st.integers() | st.none(), _VALUES, max_size=8))  # type: ignore[arg-type]
def test_arbitrary_mappings_never_raise(record: dict[Any, Any]) -> None:
    found = subject(record)
    json.dumps(dataclasses.asdict(found), default=sorted)
    assert all(any(version) for version in found.versions.values())


def mutated(random_of: random.Random, text: str, all_texts: list[str]) -> str:
    letters = string.printable + "\u0663\u00e9\ud800\0()@.,"
    for _ in range(random_of.randrange(1, 4)):
        place = random_of.randrange(len(text) + 1)
        what = random_of.choice((random_of.choice(letters), "(", ")" * 30, "9" * 400,
                                 random_of.choice(all_texts)))  # fmt: skip
        text = text[:place] + what + text[place + random_of.randrange(4) :]
    return text


def test_mutated_records_never_raise() -> None:
    """A thousand records of the wild with foreign texts, cut, doubled and mixed."""
    random_of = random.Random(11)
    all_texts = [v for r in RECORDS for k, v in r.items() if isinstance(v, str) and k != "source"]
    for _ in range(1_000):
        record = dict(random_of.choice(RECORDS))
        for key in random_of.sample(sorted(record), 3):
            value = record[key]
            record[key] = mutated(random_of, str(value), all_texts)
        found = subject(record)
        assert all(any(v) and max(v) < 2**32 for v in found.versions.values())
