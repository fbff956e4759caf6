"""The file of printed kernels: round trips, damage of every kind, sharing between processes."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

import gpuedge
from gpuedge import lang
from gpuedge.core.kernel import KernelBlob
from gpuedge.lang import cache as cache_module
from gpuedge.lang import dialects
from gpuedge.safety.store import save_bytes

SAMPLES = Path(__file__).resolve().parents[1] / "golden" / "spirv"


def blob_of(name: str) -> KernelBlob:
    text = (SAMPLES / f"{name}.kern").read_text()
    return lang.print_kernel(lang.load(text, filename=f"{name}.kern"))


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    path = tmp_path / "kernels.bin"
    cache = lang.BlobCache(path)
    cache.put("a", blob_of("affine"))
    cache.put("g", blob_of("gemm"))
    assert cache.flush()
    return path


def test_round_trip_in_one_file(filled: Path) -> None:
    cache = lang.BlobCache(filled)
    assert cache.get("a") == blob_of("affine")
    assert cache.get("g") == blob_of("gemm")
    assert cache.get("x") is None
    assert {p.name for p in filled.parent.iterdir()} == {"kernels.bin", "lock"}


def test_missing_file_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "kernels.bin"
    cache = lang.BlobCache(path)
    assert cache.get("a") is None
    assert cache.flush()
    assert not path.parent.exists(), "nothing new, nothing written"


def assert_miss_then_rebuilt(path: Path) -> None:
    cache = lang.BlobCache(path)
    assert cache.get("a") is None
    cache.put("a", blob_of("affine"))
    assert cache.flush()
    assert lang.BlobCache(path).get("a") == blob_of("affine")


def test_damage_anywhere_is_a_miss(filled: Path) -> None:
    whole = filled.read_bytes()
    for at in (*range(0, len(whole), 97), len(whole) - 1):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        filled.write_bytes(damaged)
        assert lang.BlobCache(filled).get("a") is None, at
    assert_miss_then_rebuilt(filled)


@pytest.mark.parametrize("kept", [0, 1, 60, 300, -1])
def test_truncated_file_is_a_miss(filled: Path, kept: int) -> None:
    filled.write_bytes(filled.read_bytes()[:kept])
    assert_miss_then_rebuilt(filled)


def test_the_file_of_an_earlier_layout_is_a_miss(filled: Path) -> None:
    filled.write_bytes(b"gpuedge kernels\n" + b"\3\0\0\0" + bytes(400))
    assert_miss_then_rebuilt(filled)


@pytest.mark.timeout(120)
def test_a_pipe_in_its_place_is_a_miss_and_not_awaited(tmp_path: Path) -> None:
    path = tmp_path / "kernels.bin"
    os.mkfifo(path)
    cache = lang.BlobCache(path)
    assert cache.get("a") is None
    cache.put("a", blob_of("affine"))
    assert not cache.flush()  # it is not ours to replace
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_a_file_above_the_limit_is_a_miss_and_not_read(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(filled, "ab") as file:
        file.truncate(1 << 40)
    with monkeypatch.context() as patch:
        patch.setattr(os, "read", lambda *_: pytest.fail("it was read"))
        assert lang.BlobCache(filled).get("a") is None
    assert_miss_then_rebuilt(filled)


def test_the_file_is_kept_below_the_limit(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = filled.stat().st_size
    monkeypatch.setattr(cache_module, "MAX_BYTES", size)
    cache = lang.BlobCache(filled)
    cache.put("n", blob_of("affine"))
    assert cache.flush()
    assert filled.stat().st_size <= size
    assert cache.get("a") == blob_of("affine"), "this process keeps what it has"
    again = lang.BlobCache(filled)
    assert (again.get("a"), again.get("n")) == (None, blob_of("affine"))
    monkeypatch.setattr(cache_module, "MAX_BYTES", 10)
    cache.put("m", blob_of("gemm"))
    assert cache.flush()
    assert lang.BlobCache(filled).get("m") is None


def sealed(path: Path, body: bytes) -> Path:
    schema, version = cache_module.seal_of()
    assert save_bytes(path, schema, body, version)
    return path


@pytest.mark.parametrize(
    "index",
    [b"", b"{", b"5", b"[5]", b"[[]]", b'["abcdefghij"]', b"[" * 100000, b"[null]", b'[["a",5.5]]',
     b'[[{},5]]', b'[["a",1,"n","spirv","main",[],[],[],0,"d"]]'],
)  # fmt: skip
def test_sealed_nonsense_is_a_miss(tmp_path: Path, index: bytes) -> None:
    assert_miss_then_rebuilt(sealed(tmp_path / "kernels.bin", index + b"\n"))


RECORD = ["n", "spirv", "main", [], [], [], 0, "d"]
BAD_FIELDS: list[tuple[int, object]] = [(3, 5.5), (3, [["x"]]), (4, None), (5, [[1, 2, 3, 4]])]


@pytest.mark.parametrize(
    "record",
    [b"", b"{", b"5", b"[]", b"[" * 100000, *(
        json.dumps([*RECORD[:i], bad, *RECORD[i + 1 :]]).encode() for i, bad in BAD_FIELDS
    )],
)  # fmt: skip
def test_a_nonsensical_kernel_is_a_miss_and_the_others_are_kept(
    tmp_path: Path, record: bytes
) -> None:
    place = tmp_path / "kernels.bin"
    good = cache_module.packed(blob_of("gemm"))
    index = json.dumps([["a", len(record) + 1], ["g", len(good)]]).encode() + b"\n"
    path = sealed(place, index + record + b"\n" + good)
    assert lang.BlobCache(path).get("g") == blob_of("gemm")
    assert_miss_then_rebuilt(path)
    assert lang.BlobCache(path).get("g") == blob_of("gemm")


def test_kernels_stay_bytes_until_they_are_asked_for(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []
    real = cache_module.unpacked

    def counted(data: bytes) -> KernelBlob | None:
        blob = real(data)
        built.append("" if blob is None else blob.name)
        return blob

    monkeypatch.setattr(cache_module, "unpacked", counted)
    cache = lang.BlobCache(filled)
    cache.put("n", blob_of("affine"))
    assert cache.flush()
    assert not built
    assert cache.get("g") == blob_of("gemm")
    assert built == ["gemm"]


def test_a_folder_in_its_place_is_a_miss(tmp_path: Path) -> None:
    path = tmp_path / "kernels.bin"
    path.mkdir()
    cache = lang.BlobCache(path)
    cache.put("a", blob_of("affine"))
    assert cache.get("a") == blob_of("affine")
    assert not cache.flush()
    assert {p.name for p in tmp_path.iterdir()} == {"kernels.bin", "lock"}, "no temporary file"


def test_unwritable_folder_is_not_an_error(tmp_path: Path) -> None:
    # A file where the folder should be: unlike permissions, this holds for root too.
    blocker = tmp_path / "file"
    blocker.write_bytes(b"")
    cache = lang.BlobCache(blocker / "kernels.bin")
    cache.put("a", blob_of("affine"))
    assert not cache.flush()
    assert cache.get("a") == blob_of("affine")


def test_two_processes_keep_each_others_kernels(tmp_path: Path) -> None:
    path = tmp_path / "kernels.bin"
    first, second = lang.BlobCache(path), lang.BlobCache(path)
    first.put("a", blob_of("affine"))
    first.flush()
    second.put("g", blob_of("gemm"))
    second.flush()
    again = lang.BlobCache(path)
    assert again.get("a") is not None
    assert again.get("g") is not None


def test_another_language_version_is_a_miss(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "LANGUAGE_VERSION", cache_module.LANGUAGE_VERSION + 1)
    assert_miss_then_rebuilt(filled)


def test_another_version_of_gpuedge_is_a_miss(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lang.BlobCache(filled).get("a") is not None
    monkeypatch.setattr(gpuedge, "__version__", "0.0.0")
    assert_miss_then_rebuilt(filled)


def test_flush_writes_only_what_is_new(filled: Path) -> None:
    before = filled.stat().st_ino
    cache = lang.BlobCache(filled)
    cache.put("a", blob_of("affine"))
    assert cache.flush()
    assert filled.stat().st_ino == before


def test_key_covers_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [
        lang.blob_key("t", None, None, "spirv"),
        lang.blob_key("u", None, None, "spirv"),
        lang.blob_key("t", "", None, "spirv"),
        lang.blob_key("t", "e", None, "spirv"),
        lang.blob_key("t", None, {"N": 1}, "spirv"),
        lang.blob_key("t", None, {"N": 2}, "spirv"),
        lang.blob_key("t", None, {"M": 1}, "spirv"),
        lang.blob_key("t", None, None, "wgsl"),
    ]
    monkeypatch.setattr(cache_module, "LANGUAGE_VERSION", cache_module.LANGUAGE_VERSION + 1)
    keys.append(lang.blob_key("t", None, None, "spirv"))
    assert len(set(keys)) == len(keys)
    assert all(len(key) == hashlib.sha256().digest_size * 2 for key in keys)


def test_key_covers_the_version_of_the_plug_in_that_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    def key(version: str | None) -> str:
        dist = SimpleNamespace(name="mine", version=version)
        points = {"mine_c": SimpleNamespace(dist=dist)} if version else {}
        monkeypatch.setattr(dialects, "plugins", lambda group: points)
        return lang.blob_key("t", None, None, "mine_c")

    assert len({key(None), key("1.0"), key("1.1")}) == 3 and key("1.0") == key("1.0")


def test_order_of_consts_does_not_matter() -> None:
    one = lang.blob_key("t", None, {"A": 1, "B": 2}, "spirv")
    assert one == lang.blob_key("t", None, {"B": 2, "A": 1}, "spirv")
    assert lang.blob_key("t", None, {}, "spirv") == lang.blob_key("t", None, None, "spirv")
