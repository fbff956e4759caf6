"""What the tuner found, on disk and in files for other machines."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gpuedge
from gpuedge.core.errors import InputError
from gpuedge.core.identity import Identity
from gpuedge.plan.tuned import TunedKernel
from gpuedge.runtime import tunings
from gpuedge.safety.store import load_sealed, save_sealed

HERE = Identity("vulkan", "GPU", "linux", vendorID=1, driverVersion=7, deviceUUID="aa")
NEWER = HERE.replace(driverVersion=8)
FOUND = {"conv2d 1x1x1x1 a=1": TunedKernel("conv2d_map", "conv2d_px4", 10, 15, "full")}
WRONG = {"matmul 1x1x1x1": TunedKernel("matmul_map", "matmul_rows", left_out={"matmul_rows": "no"})}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tunings.json"


def devices(path: Path) -> dict[str, Any]:
    body = load_sealed(path, tunings.SCHEMA)
    assert body is not None
    found: dict[str, Any] = body["devices"]
    return found


def test_what_is_kept_comes_back_for_the_same_device_and_driver(cache: Path) -> None:
    assert tunings.kept(HERE) == {}
    assert tunings.keep(HERE, FOUND) and tunings.keep(HERE, WRONG)
    assert tunings.kept(HERE) == {**FOUND, **WRONG}
    assert tunings.kept(HERE.replace(deviceUUID="bb")) == {**FOUND, **WRONG}  # another one of these
    assert tunings.kept(NEWER) == tunings.kept(HERE.replace(name="GPU 2")) == {}
    assert tunings.keep(NEWER, WRONG)
    assert (len(devices(cache)), tunings.kept(HERE)) == (2, {**FOUND, **WRONG})


def test_newer_results_replace_older_ones() -> None:
    tunings.keep(HERE, FOUND)
    newer = {key: TunedKernel("conv2d_px4", "conv2d_px4", 9, 9, "full") for key in FOUND}
    tunings.keep(HERE, newer)
    assert tunings.kept(HERE) == newer


def test_what_two_tuners_find_at_once_is_put_together() -> None:
    """Each read the file before the other one wrote: what is written is what both know."""
    (key,), (full,) = FOUND, FOUND.values()
    tunings.keep(HERE, {key: replace(full, left_out={"conv2d_tile4x8": "it was wrong"})})
    late = TunedKernel("conv2d_px4", "conv2d_px4", 15, 15, "fast", {"conv2d_tile1x8": "refused"})
    tunings.keep(HERE, {key: late})
    both = {"conv2d_tile4x8": "it was wrong", "conv2d_tile1x8": "refused"}
    assert tunings.kept(HERE) == {key: replace(full, left_out=both)}
    tunings.keep(HERE, {key: late}, tried=["conv2d_tile4x8"])
    assert tunings.kept(HERE)[key].left_out == late.left_out


def test_long_keys_are_not_kept(tmp_path: Path) -> None:
    (kernel,) = FOUND.values()
    long = "k" * (tunings.MAX_KEY + 1)
    assert tunings.keep(HERE, {long: kernel, **FOUND}) and tunings.kept(HERE) == FOUND
    assert tunings.export(HERE, {long: kernel, **FOUND}, tmp_path / "fleet", "--out") == 1


@pytest.mark.parametrize("what", ["__version__", "shaders"])
def test_another_version_knows_nothing_and_forgets_it(
    what: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tunings.keep(HERE, FOUND)
    other = "9.9.9" if what == "__version__" else lambda: "other"
    monkeypatch.setattr(tunings, what, other)
    assert tunings.kept(HERE) == {}
    tunings.keep(NEWER, WRONG)
    assert [saved["identity"]["driverVersion"] for saved in devices(cache).values()] == [8]


def test_digest_of_kernels_follows_their_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    before, texts = tunings.shaders(), dict(tunings.texts())
    tunings.shaders.cache_clear()
    assert tunings.shaders() == before
    monkeypatch.setattr(tunings, "texts", lambda: texts | {"map/pool": "other"})
    tunings.shaders.cache_clear()
    assert tunings.shaders() != before
    tunings.shaders.cache_clear()


def test_devices_and_kernels_are_bounded(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setattr(tunings, "MAX_DEVICES", 3)
    monkeypatch.setattr(tunings, "MAX_KERNELS", 2)
    (kernel,) = FOUND.values()
    for number in range(5):
        tunings.keep(HERE.replace(driverVersion=number), {f"k{n}": kernel for n in range(3)})
    tunings.keep(HERE.replace(driverVersion=4), {"k9": kernel, "k2": kernel})
    kept = {s["identity"]["driverVersion"]: [*s["kernels"]] for s in devices(cache).values()}
    assert kept == {2: ["k1", "k2"], 3: ["k1", "k2"], 4: ["k9", "k2"]}


def test_the_largest_file_is_within_its_limit(cache: Path) -> None:
    """Long keys and reasons, as far as records allow them."""
    kernel = TunedKernel("conv2d_winograd_lanes", "conv2d_winograd_lanes", 10**9, 10**9, "full")
    for number in range(tunings.MAX_DEVICES):
        every = {f"{'k' * 480}{n}": kernel for n in range(tunings.MAX_KERNELS)}
        assert tunings.keep(HERE.replace(driverVersion=number), every)
    assert cache.stat().st_size < 16 << 20


@pytest.mark.parametrize("damage", ["cut", "edited", "unknown variant", "list", "other schema"])
def test_damaged_files_read_as_absent(damage: str, cache: Path) -> None:
    tunings.keep(HERE, {**FOUND, **WRONG})
    data, left = cache.read_bytes(), {}
    if damage == "cut":
        cache.write_bytes(data[:-1])
    elif damage == "edited":
        cache.write_bytes(data.replace(b"px4", b"px5"))
    elif damage == "other schema":
        save_sealed(cache, "gpuedge.tunings/0", {"devices": devices(cache)})
    elif damage == "list":
        save_sealed(cache, tunings.SCHEMA, {"devices": [1]})
    else:
        known, left = devices(cache), WRONG  # a seal proves no author
        next(iter(known.values()))["kernels"][next(iter(FOUND))]["variant"] = "nobody's"
        save_sealed(cache, tunings.SCHEMA, {"devices": known})
    assert tunings.kept(HERE) == left
    assert tunings.keep(HERE, FOUND) and tunings.kept(HERE) == {**left, **FOUND}


# -- for other machines --------------------------------------------------------------------------


@pytest.fixture
def exported(tmp_path: Path, cache: Path) -> Path:
    """A file of another machine; nothing of it is kept here."""
    tunings.keep(HERE, FOUND)
    assert tunings.export(HERE, FOUND, tmp_path / "fleet", "--out") == 1
    cache.unlink()
    return tmp_path / "fleet"


def test_a_file_for_others_comes_back_as_it_was(exported: Path) -> None:
    tunings.keep(HERE, WRONG)
    (one,) = tunings.take(str(exported), "--import")
    assert (one.name, one.kernels, one.why_not) == ("GPU", 1, "")
    assert tunings.kept(HERE) == {**WRONG, **FOUND}
    (same,) = tunings.take(str(exported), "--import", HERE.replace(deviceUUID="cc"))
    assert same.why_not == ""


def test_a_file_of_another_driver_is_not_used(exported: Path) -> None:
    (one,) = tunings.take(str(exported), "--import", NEWER)
    assert one.why_not == (
        "made on another device or driver (driverVersion: expected 7, found 8)"
    )  # fmt: skip
    assert tunings.kept(HERE) == tunings.kept(NEWER) == {}


def test_a_file_of_another_version_is_not_used(
    exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = load_sealed(exported, tunings.SCHEMA)
    assert body is not None
    next(iter(body["devices"].values()))["kernels"] = {"new": {"variant": "of the future"}}
    save_sealed(exported, tunings.SCHEMA, body)
    monkeypatch.setattr(tunings, "shaders", lambda: "other")
    (one,) = tunings.take(str(exported), "--import")
    assert one.why_not == "made with other kernel texts"
    monkeypatch.setattr(tunings, "__version__", "9.9.9")
    (one,) = tunings.take(str(exported), "--import")
    assert one.why_not == f"made by gpuedge {gpuedge.__version__}, and this is 9.9.9"
    assert tunings.kept(HERE) == {}


def test_a_file_that_names_an_unknown_variant_is_an_error(exported: Path) -> None:
    body = load_sealed(exported, tunings.SCHEMA)
    assert body is not None
    (saved,) = body["devices"].values()
    saved["kernels"]["more"] = {"variant": "conv2d_mine", "usual": "conv2d_map"}
    save_sealed(exported, tunings.SCHEMA, body)
    with pytest.raises(InputError, match="cannot be used") as caught:
        tunings.take(str(exported), "--import")
    assert "no variant is called 'conv2d_mine'" in str(caught.value)
    assert caught.value.code == "GE-203" and tunings.kept(HERE) == {}


def edited(path: Path, change: Callable[[dict[str, Any]], object]) -> str:
    """Change the devices in a file, and seal it again."""
    known = devices(path)
    change(known)
    save_sealed(path, tunings.SCHEMA, {"devices": known})
    return str(path)


@pytest.mark.parametrize(("change", "why"), [
    (lambda known: known.update(more=1), "1 is not an object"),
    (lambda known: known.update(more=None), "None is not an object"),
    (lambda known: next(iter(known.values())).update(version="1\n2"), "it is not one line"),
    (lambda known: next(iter(known.values())).update(version="1" * 65), "version: "),
    (lambda known: next(iter(known.values()))["kernels"].update(k=2), "2 is not an object"),
    (lambda known: next(iter(known.values()))["kernels"].update(
        {"k" * 513: {"variant": "conv2d_map", "usual": "conv2d_map"}}), "from 0 to 512"),
])  # fmt: skip
def test_a_file_with_entries_of_another_kind_is_refused(
    change: Callable[[dict[str, Any]], object], why: str, exported: Path
) -> None:
    name = edited(exported, change)
    with pytest.raises(InputError, match="cannot be used") as caught:
        tunings.take(name, "--import")
    assert why in str(caught.value).replace("\n", " ") and tunings.kept(HERE) == {}


def test_only_what_is_really_kept_is_called_so(
    exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunings, "MAX_DEVICES", 2)
    monkeypatch.setattr(tunings, "MAX_KERNELS", 2)

    def more(known: dict[str, Any]) -> None:
        (saved,) = known.values()
        (kernel,) = saved["kernels"].values()
        for number in range(2):
            identity = {**saved["identity"], "driverVersion": number}
            kernels = {f"k{n}": kernel for n in range(3)}
            known[str(number)] = {**saved, "identity": identity, "kernels": kernels}

    taken = tunings.take(edited(exported, more), "--import")
    assert [(one.kernels, one.why_not) for one in taken] == [
        (1, "no more than 2 devices are kept"), (2, ""), (2, ""),
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "{}", json.dumps({"devices": {}}), "gpuedge-sealed/2 x\n"])
def test_another_file_is_an_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "other").write_text(text)
    with pytest.raises(InputError, match="holds no results of tuning"):
        tunings.take(str(tmp_path / "other"), "--import")
    with pytest.raises(InputError, match="There is no file"):
        tunings.take(str(tmp_path / "nothing"), "--import")
