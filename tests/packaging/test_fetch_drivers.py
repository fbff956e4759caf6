"""tools/drivers.py with small archives and stand-ins for npm and pip: no network is used."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import threading
import zipfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def tool() -> ModuleType:
    """Load tools/drivers.py as a module of its own."""
    spec = spec_from_file_location("fetch_drivers", ROOT / "tools" / "drivers.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def tarred(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, data in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(data)
            tar.addfile(about, io.BytesIO(data))
    return buffer.getvalue()


class Shop:
    """A checkout with one driver, and an npm that hands out one archive."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.drivers: Any = tool()
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.log = folder / "log"
        self.place = folder / "checkout" / ".drivers"
        self.place.parent.mkdir()
        self.archive = folder / "archive"
        self.archive.write_bytes(tarred({"package/a.so": b"aaa", "package/b.js": b"b", "x": b""}))
        self.serve()
        for name, value in (("system", "Linux"), ("machine", "x86_64")):
            monkeypatch.setattr(self.drivers.platform, name, lambda value=value: value)
        monkeypatch.setattr(self.drivers, "FOLDER", self.place)
        monkeypatch.setattr(self.drivers, "DRIVERS", (self.driver(),))
        monkeypatch.setenv("PATH", f"{self.bin}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.delenv("GPUEDGE_TEST_DRIVERS", raising=False)
        self.patch = monkeypatch

    def serve(self, body: str = "") -> None:
        """Let npm write the archive where its 5th argument says, or do something else."""
        script = self.bin / "npm"
        body = body or f'cp "{self.archive}" "$5/one.tgz"'
        script.write_text(f'#!/bin/sh\necho "$*" >>"{self.log}"\n{body}\n', encoding="utf-8")
        script.chmod(0o755)

    def driver(self, **changes: Any) -> Any:
        digest = hashlib.sha256(self.archive.read_bytes()).hexdigest()
        known = {
            "name": "one", "about": "a driver", "tool": "npm", "package": "one@1.0.0",
            "archive": "one.tgz", "sha256": digest, "wanted": ("package/",), "strip": "package/",
        }  # fmt: skip
        return self.drivers.Driver(**(known | changes))

    def run(self, *arguments: str) -> int:
        return int(self.drivers.main(list(arguments)))

    def fetches(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0

    def files(self) -> list[str]:
        """Every file of the driver folder but the lock."""
        found = (p for p in self.place.rglob("*") if p.is_file() and p.name != ".lock")
        return sorted(p.relative_to(self.place).as_posix() for p in found)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    return Shop(tmp_path, monkeypatch)


DONE = ["one/.complete", "one/a.so", "one/b.js"]


def test_driver_is_fetched_once_and_then_left_alone(shop: Shop) -> None:
    assert shop.run() == 0
    assert shop.files() == DONE
    assert (shop.place / "one" / "a.so").read_bytes() == b"aaa"
    stamp = (shop.place / "one" / ".complete").stat().st_mtime_ns
    assert shop.run() == 0
    assert shop.fetches() == 1
    assert (shop.place / "one" / ".complete").stat().st_mtime_ns == stamp


def test_archive_with_another_hash_is_refused(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.archive.write_bytes(shop.archive.read_bytes() + b"!")
    assert shop.run() == 1
    assert shop.files() == []
    said = capsys.readouterr().err
    assert hashlib.sha256(shop.archive.read_bytes()).hexdigest() in said
    assert shop.drivers.DRIVERS[0].sha256 in said


@pytest.mark.parametrize("harm", ["lost", "cut", "another version"])
def test_driver_that_is_not_whole_is_made_anew(shop: Shop, harm: str) -> None:
    shop.run()
    one = shop.place / "one"
    if harm == "lost":
        (one / "a.so").unlink()
    elif harm == "cut":
        (one / "a.so").write_bytes(b"a")
    else:
        (one / ".complete").write_text("0" * 64 + "\n3 a.so\n1 b.js\n")
    assert shop.run("--check") == 1
    assert shop.run() == 0
    assert shop.fetches() == 2
    assert shop.files() == DONE
    assert (one / "a.so").read_bytes() == b"aaa"


def test_archive_of_an_interrupted_run_is_used(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shop.drivers, "unpack", interrupted)
        with pytest.raises(KeyboardInterrupt):
            shop.run()
    assert shop.files() == [".downloads/one.tgz"]
    assert shop.run() == 0
    assert shop.fetches() == 1
    assert shop.files() == DONE


def test_damaged_archive_of_an_earlier_run_is_fetched_anew(shop: Shop) -> None:
    (shop.place / ".downloads").mkdir(parents=True)
    (shop.place / ".downloads" / "one.tgz").write_bytes(b"half")
    assert shop.run() == 0
    assert shop.fetches() == 1


def test_one_failure_does_not_cost_the_others(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = shop.driver(name="bad", archive="bad.tgz")
    shop.patch.setattr(shop.drivers, "DRIVERS", (bad, shop.driver()))
    assert shop.run() == 1
    assert "one/a.so" in shop.files()
    assert "missing: bad" in capsys.readouterr().err


def test_failing_tool_is_quoted(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.serve("echo 'no such package' >&2; exit 3")
    assert shop.run() == 1
    assert "npm gave 3: no such package" in capsys.readouterr().err


def test_member_that_would_leave_the_folder_is_refused(shop: Shop) -> None:
    shop.archive.write_bytes(tarred({"package/../../../evil": b"e"}))
    shop.patch.setattr(shop.drivers, "DRIVERS", (shop.driver(),))
    assert shop.run() == 1
    assert not list(shop.place.parent.parent.rglob("evil"))
    assert shop.files() == [".downloads/one.tgz"]


def test_archive_without_the_driver_is_refused(shop: Shop) -> None:
    shop.patch.setattr(shop.drivers, "DRIVERS", (shop.driver(wanted=("elsewhere/",)),))
    assert shop.run() == 1
    assert not (shop.place / "one").exists()


def test_wheel_is_unpacked_too(shop: Shop) -> None:
    with zipfile.ZipFile(shop.archive, "w") as wheel:
        wheel.writestr("deep/inside/c.so", b"c")
        wheel.writestr("deep/other", b"o")
    wanted = "deep/inside/"
    one = shop.driver(wanted=(wanted,), strip=wanted)
    shop.patch.setattr(shop.drivers, "DRIVERS", (one,))
    assert shop.run() == 0
    assert shop.files() == ["one/.complete", "one/c.so"]


def test_archive_in_an_archive_is_unpacked_by_node(shop: Shop) -> None:
    inner = tarred({"lib.so": b"l", "notes": b"n"})
    shop.archive.write_bytes(tarred({"package/inner.br": inner}))
    # The stand-in for node copies instead of decompressing: tarfile reads gzip by itself.
    node = shop.bin / "node"
    node.write_text('#!/bin/sh\ncp "$3" "$4"\n')
    node.chmod(0o755)
    one = shop.driver(inner="package/inner.br", wanted=("lib",))
    shop.patch.setattr(shop.drivers, "DRIVERS", (one,))
    assert shop.run() == 0
    assert shop.files() == ["one/.complete", "one/lib.so"]


def test_folder_is_shared_by_a_link(shop: Shop, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shop.patch.setenv("GPUEDGE_TEST_DRIVERS", str(shared))
    assert shop.run() == 0
    assert shop.place.is_symlink()
    assert (shared / "one" / "a.so").read_bytes() == b"aaa"
    shop.place.unlink()
    assert shop.run() == 0  # as another checkout would
    assert shop.fetches() == 1
    assert shop.files() == DONE


def test_own_folder_is_not_replaced_by_a_link(
    shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.run()
    shop.patch.setenv("GPUEDGE_TEST_DRIVERS", str(tmp_path / "shared"))
    assert shop.run() == 0
    assert not shop.place.is_symlink()
    assert "remove it to use" in capsys.readouterr().err


def test_two_runs_at_once_fetch_once(shop: Shop) -> None:
    body = f'sleep 0.3; cp "{shop.archive}" "$5/one.tgz"'
    shop.serve(body)
    runs = [threading.Thread(target=shop.run) for _ in range(2)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert shop.fetches() == 1
    assert shop.files() == DONE


def test_other_machines_are_told(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.patch.setattr(shop.drivers.platform, "machine", lambda: "aarch64")
    assert shop.run() == 1
    assert shop.fetches() == 0
    assert "x86-64" in capsys.readouterr().err


def test_check_fetches_nothing(shop: Shop) -> None:
    assert shop.run("--check") == 1
    assert shop.fetches() == 0
    assert not shop.place.exists()


def test_real_drivers_are_pinned_and_their_tools_are_asked_as_documented() -> None:
    drivers: Any = tool()
    for driver in drivers.DRIVERS:
        assert len(bytes.fromhex(driver.sha256)) == 32
        assert driver.package.split("@")[-1].split("==")[-1] in driver.archive
    listed = subprocess.run(
        ["git", "-C", ROOT, "check-ignore", ".drivers"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if (ROOT / ".git").exists():  # a folder, or a link where GPUEDGE_TEST_DRIVERS names one
        assert listed.stdout.split() == [".drivers"]
