"""Fetches the test drivers that no Debian package has into ``.drivers/``, checked by SHA-256.

Usage: python tools/drivers.py [--check]

Archives come through ``npm pack`` and ``pip download``, so mirrors and proxies set up for those
tools are used. Nothing of an archive is run. A driver that is complete is left alone without using
the network; an interrupted run leaves nothing half made, and an archive that was fetched is not
fetched again. ``GPUEDGE_TEST_DRIVERS`` names a folder to share between checkouts: ``.drivers`` then
becomes a link to it.

``--check`` fetches nothing and only says what is missing. The exit status is 1 if a driver is
missing afterwards.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".drivers"
STAMP = ".complete"
"""Written last: the archive's SHA-256, then size and path of every file of the driver."""

FETCH_TIMEOUT_S = 900.0
UNBROTLI = (
    "const fs=require('fs'),zlib=require('zlib');"
    "fs.writeFileSync(process.argv[2],zlib.brotliDecompressSync(fs.readFileSync(process.argv[1])))"
)


class SetupError(Exception):
    """A driver cannot be had; the message says why."""


@dataclass(frozen=True)
class Driver:
    """One driver and where it comes from.

    Attributes
    ----------
    name : str
        Its folder below ``.drivers``.
    about : str
        What it is, for people.
    tool : str
        ``npm`` or ``pip``.
    package : str
        What the tool is asked for, with the exact version.
    archive : str
        The file that the tool makes of it.
    sha256 : str
        Of that file.
    wanted : tuple of str
        Beginnings of the members to unpack.
    strip : str
        What is cut off the members' paths.
    inner : str
        A brotli-compressed tar archive inside the archive that holds the driver, if there is one.
    """

    name: str
    about: str
    tool: str
    package: str
    archive: str
    sha256: str
    wanted: tuple[str, ...]
    strip: str = ""
    inner: str = ""


DRIVERS = (
    Driver(
        "angle",
        "ANGLE over SwiftShader: OpenGL ES 2.0, 3.0 and 3.1",
        "npm",
        "@sparticuz/chromium@147.0.0",
        "sparticuz-chromium-147.0.0.tgz",
        "18fe5404ce845594cd7d592fc07f37a19514079ba4d9c27192ad8b908743f16b",
        ("lib", "vk_swiftshader"),
        inner="package/bin/swiftshader.tar.br",
    ),
    Driver(
        "swiftshader-gles",
        "the former SwiftShader: OpenGL ES 3.0",
        "pip",
        "kaleido==0.2.1",
        "kaleido-0.2.1-py2.py3-none-manylinux1_x86_64.whl",
        "aa21cf1bf1c78f8fa50a9f7d45e1003c387bd3d6fe0a767cfbbf344b95bdc3a8",
        ("kaleido/executable/bin/swiftshader/",),
        strip="kaleido/executable/bin/swiftshader/",
    ),
    Driver(
        "dawn",
        "Dawn: a second WebGPU, for node",
        "npm",
        "webgpu@0.6.2",
        "webgpu-0.6.2.tgz",
        "77a6be6513b9f7c2e94425620ce603efb38cdc5d0393e1b31a1b0c8479330ffd",
        (
            "package/index.js",
            "package/package.json",
            "package/LICENSE.md",
            "package/dist/linux-x64/",
        ),
    ),
)


def say(words: str) -> None:
    """Tell the person at the terminal."""
    print(f"drivers: {words}", file=sys.stderr)


def sha256(file: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def contents(place: Path) -> list[str]:
    """Size and path of each file below `place`, as the stamp lists them."""
    files = sorted(p for p in place.rglob("*") if p.is_file() and p.name != STAMP)
    return [f"{p.stat().st_size} {p.relative_to(place).as_posix()}" for p in files]


def is_complete(driver: Driver, folder: Path) -> bool:
    """Whether a driver was unpacked to its end from the right archive and nothing went since."""
    stamp = folder / driver.name / STAMP
    if not stamp.is_file():
        return False
    return stamp.read_text(encoding="utf-8").splitlines() == [
        driver.sha256,
        *contents(stamp.parent),
    ]


def command(driver: Driver, into: Path) -> list[str]:
    """Return the command that fetches a driver's archive."""
    if driver.tool == "npm":
        npm = shutil.which("npm")
        if npm is None:
            raise SetupError("npm is not installed (Debian: apt-get install nodejs npm)")
        options = ["--ignore-scripts", "--silent", "--pack-destination", str(into)]
        return [npm, "pack", *options, driver.package]
    options = ["--disable-pip-version-check", "--quiet", "--no-deps", "--only-binary", ":all:"]
    return [sys.executable, "-m", "pip", "download", *options, "--dest", str(into), driver.package]


def fetched(driver: Driver, folder: Path) -> Path:
    """Return the driver's archive, fetched if it is not there; its SHA-256 is right."""
    archive = folder / ".downloads" / driver.archive
    if archive.is_file() and sha256(archive) == driver.sha256:
        return archive
    archive.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
        call(command(driver, Path(scratch)), FETCH_TIMEOUT_S)
        made = Path(scratch) / driver.archive
        if not made.is_file():
            raise SetupError(f"{driver.tool} made no {driver.archive}")
        found = sha256(made)
        if found != driver.sha256:
            raise SetupError(f"{driver.archive} has SHA-256 {found}, wanted {driver.sha256}")
        made.replace(archive)
    return archive


def call(arguments: list[str], timeout_s: float) -> None:
    """Run a command, and raise SetupError with its last words if it fails."""
    try:
        done = subprocess.run(
            arguments, capture_output=True, text=True, check=False, timeout=timeout_s
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(str(error)) from None
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise SetupError(f"{Path(arguments[0]).name} gave {done.returncode}: {last}")


def unpack(driver: Driver, archive: Path, into: Path) -> None:
    """Unpack the wanted members of an archive."""
    if driver.inner:
        with tempfile.TemporaryDirectory(dir=into.parent) as scratch:
            packed, plain = Path(scratch, "inner.br"), Path(scratch, "inner.tar")
            with tarfile.open(archive) as outer, packed.open("wb") as stream:
                member = outer.extractfile(driver.inner)
                if member is None:
                    raise SetupError(f"{archive.name} has no {driver.inner}")
                shutil.copyfileobj(member, stream)
            node = shutil.which("node")
            if node is None:
                raise SetupError("node is not installed (Debian: apt-get install nodejs)")
            call([node, "-e", UNBROTLI, str(packed), str(plain)], FETCH_TIMEOUT_S)
            extract(driver, plain, into)
    else:
        extract(driver, archive, into)


def extract(driver: Driver, archive: Path, into: Path) -> None:
    """Write the wanted members of a tar or zip archive below `into`."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as wheel:
            for name in wheel.namelist():
                if name.startswith(driver.wanted) and not name.endswith("/"):
                    put(into, name.removeprefix(driver.strip), wheel.read(name))
        return
    with tarfile.open(archive) as tar:
        for member in tar:
            name = member.name.removeprefix("./")
            stream = tar.extractfile(member) if member.isfile() else None
            if stream is not None and name.startswith(driver.wanted):
                put(into, name.removeprefix(driver.strip), stream.read())


def put(into: Path, name: str, data: bytes) -> None:
    """Write one member; it cannot leave the folder."""
    target = (into / name).resolve()
    if not target.is_relative_to(into.resolve()):
        raise SetupError(f"an archive member is called {name}")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    target.chmod(0o755)


def install(driver: Driver, folder: Path) -> None:
    """Fetch and unpack a driver; its folder appears complete or not at all."""
    say(f"fetching {driver.name} ({driver.about})")
    archive = fetched(driver, folder)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unpacking-") as scratch:
        fresh = Path(scratch, "new")
        fresh.mkdir()
        unpack(driver, archive, fresh)
        files = contents(fresh)
        if not files:
            raise SetupError(f"{archive.name} has none of {', '.join(driver.wanted)}")
        (fresh / STAMP).write_text("\n".join([driver.sha256, *files]) + "\n", encoding="utf-8")
        place = folder / driver.name
        if place.exists():
            place.rename(Path(scratch, "old"))
        fresh.rename(place)
    archive.unlink()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder against another run of this script."""
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def chosen_folder() -> Path:
    """Return the folder of the drivers, after linking ``.drivers`` to a shared one if told to."""
    shared = os.environ.get("GPUEDGE_TEST_DRIVERS")
    if shared and not FOLDER.exists():
        place = Path(shared).expanduser().resolve()
        place.mkdir(parents=True, exist_ok=True)
        FOLDER.unlink(missing_ok=True)  # a link whose target went
        FOLDER.symlink_to(place, target_is_directory=True)
    elif shared and FOLDER.resolve() != Path(shared).expanduser().resolve():
        say(f"{FOLDER.name} is there already; remove it to use {shared}")
    return FOLDER


def main(arguments: list[str]) -> int:
    """Fetch what is missing; return the exit status."""
    folder = chosen_folder()
    missing = [d for d in DRIVERS if not is_complete(d, folder)]
    if missing and "--check" not in arguments:
        if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
            say("these drivers exist for Linux on x86-64 only")
            return 1
        folder.mkdir(exist_ok=True)
        with locked(folder):
            for driver in missing:
                try:
                    if not is_complete(driver, folder):  # another run may have been faster
                        install(driver, folder)
                except (SetupError, OSError, tarfile.TarError, zipfile.BadZipFile) as error:
                    say(f"cannot fetch {driver.name}: {error}")
        missing = [d for d in missing if not is_complete(d, folder)]
    if missing:
        say(f"missing: {', '.join(d.name for d in missing)}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
