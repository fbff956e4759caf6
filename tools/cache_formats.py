"""Every file that gpuedge reads back from its cache folder: how good ones are made, and read.

For tools/cache_fuzz.py and tools/kill_campaign.py. Good files come from the library's own writers;
`read` is the library's own reader; `reseal` gives damaged content a hash that is right.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from gpuedge import lang  # noqa: E402
from gpuedge.backends.base import Candidate  # noqa: E402
from gpuedge.backends.vulkan import pipeline_cache  # noqa: E402
from gpuedge.core.identity import Identity  # noqa: E402
from gpuedge.decide import history  # noqa: E402
from gpuedge.decide.belief import Belief  # noqa: E402
from gpuedge.lang import cache as kernels  # noqa: E402
from gpuedge.probing import verdicts  # noqa: E402
from gpuedge.probing.report import ProbeRow  # noqa: E402
from gpuedge.safety import blocklist  # noqa: E402
from gpuedge.safety.store import (  # noqa: E402
    load_sealed,
    save_bytes,
    unsealed_bytes,
)

PHYSICAL: Any = SimpleNamespace(
    identity=SimpleNamespace(vendorID=7, deviceID=9, driverVersion=11, name="fuzz", driverInfo="1"),
    cache_uuid=bytes(range(16)),
)


@dataclass(frozen=True)
class Format:
    """One kind of file; `read` returns what is believed of it, None if nothing is."""

    name: str
    good: tuple[bytes, ...]
    read: Callable[[bytes], Any]
    reseal: Callable[[bytes], bytes]
    use: Callable[[bytes, Path], object]
    """Puts the bytes in place of the file and does what an application would do next."""


def formats() -> list[Format]:
    """Return all of them, each with two good files of different content."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        return [
            _pipelines(),
            _kernels(folder),
            _sealed("verdicts", verdicts.SCHEMA, _verdicts(folder), _use_verdicts),
            _sealed("launches", history.SCHEMA, _launches(folder), _use_launches),
            _crash(folder),
        ]


def _pipelines() -> Format:
    def data(count: int) -> bytes:
        head = struct.pack("<4I16s", 32, 1, 7, 9, PHYSICAL.cache_uuid)
        return head + b"".join(hashlib.sha256(bytes([i])).digest() for i in range(count))

    def reseal(file: bytes) -> bytes:
        return pipeline_cache.pack(PHYSICAL, file[pipeline_cache.HEADER_BYTES :])

    good = tuple(pipeline_cache.pack(PHYSICAL, data(n)) for n in (20, 70))
    return Format(
        "pipelines", good, lambda d: pipeline_cache.unpack(PHYSICAL, d), reseal,
        lambda d, _: pipeline_cache.unpack(PHYSICAL, d),
    )  # fmt: skip


def _kernels(folder: Path) -> Format:
    sources = sorted((ROOT / "tests" / "golden" / "spirv").glob("*.kern"))[:4]
    blobs = [lang.print_kernel(lang.load(p.read_text(), filename=p.name)) for p in sources]
    schema, version = kernels.seal_of()
    good = []
    for n in (2, 4):
        cache = kernels.BlobCache(folder / f"{n}.bin")
        for i, blob in enumerate(blobs[:n]):
            cache.put(hashlib.sha256(bytes([i])).hexdigest(), blob)
        assert cache.flush()
        good.append(cache.path.read_bytes())

    def reseal(file: bytes) -> bytes:
        with tempfile.TemporaryDirectory() as place:
            path = Path(place, "resealed.bin")
            assert save_bytes(path, schema, file.partition(b"\n")[2], version)
            return path.read_bytes()

    def use(data: bytes, place: Path) -> object:
        path = place / "kernels.bin"
        path.write_bytes(data)
        cache = kernels.BlobCache(path)
        cache.put("new", blobs[0])
        return cache.flush()

    def read(data: bytes) -> object:
        body = unsealed_bytes(data, schema, version)
        kept = {} if body is None else kernels.decoded(body)
        return {key: kernels.unpacked(data) for key, data in kept.items()} or None

    return Format("kernels", tuple(good), read, reseal, use)


def _sealed(
    name: str, schema: str, good: tuple[bytes, ...], use: Callable[[bytes, Path], object]
) -> Format:
    def reseal(file: bytes) -> bytes:
        try:
            envelope = json.loads(file)
            text = json.dumps(
                envelope["body"], sort_keys=True, separators=(",", ":"), allow_nan=False
            )
        except (ValueError, KeyError, TypeError, RecursionError):
            return file
        envelope["sha256"] = hashlib.sha256(f"1\n{schema}\n{text}".encode()).hexdigest()
        return json.dumps(envelope).encode()

    def read(data: bytes) -> object:
        with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
            file.write(data)
            file.flush()
            return load_sealed(file.name, schema)

    return Format(name, good, read, reseal, use)


def _row(name: str) -> ProbeRow:
    return ProbeRow(
        f"{name}:0", name, "ok", "ok", "because", name=name, key=f"/{name}", fingerprint="f",
        identity=Identity("vulkan", name, "linux", vendorID=7).to_dict(), index=0, seconds=0.5,
        is_software=False, evidence={"checks": [{"name": "convolution", "max_error": 0.0}]},
    )  # fmt: skip


def _verdicts(folder: Path) -> tuple[bytes, ...]:
    good = []
    for names in (("one",), ("one", "two", "three")):
        store = verdicts.Store(folder / "-".join(names))
        found = {n: (Candidate(n, f"/{n}", "f", {"A": n}), [_row(n)]) for n in names}
        assert store.save(found, 4.0, 1e9)
        good.append(Path(store.path).read_bytes())
    return tuple(good)


def _use_verdicts(data: bytes, place: Path) -> object:
    (place / verdicts.FILE).write_bytes(data)
    store = verdicts.Store(place)
    store.find("one", 4.0, 1e9)
    store.find("three", 9.0, 1e9)
    return store.save({"two": (Candidate("two", "/two", "f"), [_row("two")])}, 4.0, 1e9)


def _keep(kept: history.History, model: str, number: int) -> bool:
    known = history.DeviceHistory(Belief(-number, 1_000, 1), 5, 6, 7)
    return kept.keep(model, number, 1_000, {"d" * 64: known})


def _launches(folder: Path) -> tuple[bytes, ...]:
    good = []
    for n in (1, 3):
        kept = history.History(folder / f"l{n}")
        for i in range(n):
            assert _keep(kept, f"m{i}", i + 1)
        good.append(kept.path.read_bytes())
    return tuple(good)


def _use_launches(data: bytes, place: Path) -> object:
    (place / history.FILE).write_bytes(data)
    kept = history.History(place)
    kept.of("m0")
    kept.residual("d" * 64, "m0")
    return _keep(kept, "m9", 9)


def _crash(folder: Path) -> Format:
    """Markers, and the records of crashes that they become."""

    def read(data: bytes) -> Any:
        with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
            file.write(data)
            file.flush()
            found = blocklist._read(file.name)
        return found and (found.key, found.name, found.began, found.why)

    def reseal(file: bytes) -> bytes:
        return file[:12] + hashlib.sha256(file[44:]).digest() + file[44:]

    def use(data: bytes, place: Path) -> object:
        memory = blocklist.Blocklist(place)
        Path(memory.folder).mkdir(exist_ok=True)
        for name in ("0123.mark", "0123.crash"):
            Path(memory.folder, name).write_bytes(data)
        return memory.block("k")

    good = []
    for key, why in (("k", "exit status 0"), ("j" * 64, "SIGSEGV")):
        made = blocklist.Blocklist(folder / key)
        marker = made.begin(key, "vulkan:0", is_hosted=True)
        marker.crashed(why, "run")
        (path,) = Path(made.folder).glob("*")
        good.append(path.read_bytes())
    return Format("crash", tuple(good), read, reseal, use)
