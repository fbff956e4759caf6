"""Tries gpuedge on arm64 Linux, emulated: installs its wheel without a compiler, and runs it there.

Usage: python tools/arm64.py [--shard I/N]
       python tools/arm64.py table [EXTRA...]

Debian's packages for arm64 are unpacked into ``.arm64/tree``, which is entered in a namespace of
the user who starts this and run by QEMU. No rights of root are needed, and nothing of the system
changes; Linux must allow such namespaces, and know arm64 programs or be 6.7 or newer. (proot needs
neither, but all processes wait for its one: a probe took three times as long.) What is complete
is left alone: the tree until the packages wanted change, the environment in it until the wheel
does, conformance cases that were run with this wheel. So an interrupted run goes on. The exit
status is 1 if anything is missing or wrong.

``--shard`` runs one part of the conformance cases of each level. ``table`` installs extras into
environments of their own, and writes their rows of docs/tables/install.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from install_table import SMOKE, contents

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / ".arm64"
TREE = PLACE / "tree"
WHEELS = PLACE / "wheels"
ENVIRONMENT = Path("root", "venv")
"""Where the tree has what pip installs; home of the user is /root."""

PACKAGES = (
    "base-files", "coreutils", "dash", "libc-bin", "python3", "python3-venv", "libvulkan1",
    "mesa-vulkan-drivers", "libegl1", "libgles2", "libegl-mesa0", "libgl1-mesa-dri",
)  # fmt: skip
"""What docs/install.md names for the devices, Python, and what every Debian has of commands."""

DRIVERS = {"vulkan": "lavapipe", "wgpu": "lavapipe", "gles31": "llvmpipe", "gles30": "llvmpipe",
           "gles20": "llvmpipe"}  # fmt: skip
"""The levels, and what computes them in the tree."""

EXTRAS, EVERYTHING = "models,wgpu", "cli,models,updates,vulkan,wgpu"
"""What is tried, and what ``all`` is on arm64; pip downloads by the markers of this machine."""

COMPILERS = ("c++", "cc", "clang", "cmake", "g++", "gcc", "rustc")
PROCESSOR = "cortex-a72"
"""That of a Raspberry Pi 4, without the 8-bit products and atomics of later ones."""

CORE = """\
processor\t: {number}
BogoMIPS\t: 108.00
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd08
CPU revision\t: 3

"""
"""QEMU before 8.2 shows the host's /proc/cpuinfo, of which ONNX Runtime 1.32 ends with SIGSEGV."""

BYTE_PRODUCTS = """
import json
import numpy as np
import gpuedge
from gpuedge.executors.answers import cases
from gpuedge.graph.writer import to_bytes
wrong = set()
for case in cases():
    if not any(node.domain for node in case.graph.nodes):
        with gpuedge.Session(to_bytes(case.graph), device="cpu") as session:
            found = session.run(dict(case.feeds))
        if not all(np.array_equal(found[name], case.wanted[name]) for name in case.wanted):
            wrong.add(str(case.product))
print(json.dumps(sorted(wrong)))
"""
"""Names the 8-bit products that a Session on the CPU gets wrong. ONNX Runtime alone gets some wrong
on arm64 processors without instructions for them (docs/decisions/0032)."""

ENTER = r"""
set -e
tree=$1 qemu=$2
# how programs for arm64 begin, and which bits of that count
begins=':arm64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
bits='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
for place in proc dev sys; do mount --rbind /$place "$tree/$place"; done
mount --bind "$3" "$tree/proc/cpuinfo"
mount --bind "$4" "$tree/wheels"
mount --bind "$5" "$tree/checkout"
shift 5
if ! chroot "$tree" /bin/true 2>/dev/null; then
  mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
  printf '%s' "$begins:$bits:$qemu:F" >/proc/sys/fs/binfmt_misc/register
fi
cd /
exec chroot "$tree" /usr/bin/env -C /root -- "$@"
"""
"""Enters the tree; where the system does not know arm64 programs, the namespace learns it."""

PROBE_S, CASE_S, LIMIT_S = 900, 600, 14_400
"""Seconds for a probe, for a conformance case, and for any command: emulated code takes some 20
times as long, and this machine may have other work."""

FETCH_S = 1800.0


class StepError(Exception):
    """A step failed; the message says what, and what to try."""


def say(words: str) -> None:
    """Tell the person at the terminal."""
    print(f"arm64: {words}", file=sys.stderr, flush=True)


@contextmanager
def step(name: str) -> Iterator[None]:
    """Say what is done, and what it took of time and of the processors' time."""
    say(name)
    start, used = time.monotonic(), _used_s()
    yield
    say(f"  {time.monotonic() - start:.0f} s, {_used_s() - used:.0f} s of processor time")


def _used_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def key_of(*parts: str | bytes) -> str:
    """Return a short name for what something was made of."""
    data = [part if isinstance(part, bytes) else part.encode() for part in parts]
    return hashlib.sha256(b"\0".join(data)).hexdigest()[:16]


def is_made(stamp: Path, key: str) -> bool:
    """Whether a stamp says that something was made of this."""
    return stamp.is_file() and stamp.read_text(encoding="utf-8").split()[:1] == [key]


def call(command: Sequence[str | Path], timeout_s: float = FETCH_S, **options: Any) -> str:
    """Run a command of this machine and return what it printed.

    Raises
    ------
    StepError
        It failed; with its last words.
    """
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=timeout_s, **options
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StepError(f"{words[0]}: {error}") from None
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-3:]
        raise StepError(f"{' '.join(words[:4])} gave {done.returncode}: {' '.join(last)}")
    return str(done.stdout)


# --- the tree --------------------------------------------------------------------------------


def emulator() -> str:
    """Return the path of QEMU for arm64 programs. Raises StepError if a command is missing."""
    found = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    commands = {
        "qemu-aarch64": found, **{c: shutil.which(c) for c in ("unshare", "apt-get", "dpkg-deb")}
    }  # fmt: skip
    missing = [name for name, path in commands.items() if path is None]
    if found is None or missing:
        raise StepError(f"missing commands: {', '.join(missing)} (on Debian: apt-get install "
                        "qemu-user-static)")  # fmt: skip
    return found


def make_tree() -> None:
    """Fetch Debian's packages for arm64 and unpack them; they need no script to be run."""
    release = Path("/etc/debian_version").read_text(encoding="utf-8").partition(".")[0]
    key = key_of(release, *PACKAGES)
    if is_made(TREE / ".packages", key):
        return
    fresh, state = PLACE / "tree.new", PLACE / "apt"
    for folder in (fresh, state):
        shutil.rmtree(folder, ignore_errors=True)
    for name in ("lists/partial", "archives/partial"):
        (state / name).mkdir(parents=True)
    (state / "status").touch()
    # The machine's own sources, nothing else of its apt: not what is installed, not where.
    options = {
        "APT::Architecture": "arm64", "APT::Architectures::": "arm64", "APT::Sandbox::User": "",
        "Dir::State": state, "Dir::State::status": state / "status", "Dir::Cache": state,
        "Dir::State::lists": state / "lists", "Dir::Cache::archives": state / "archives",
    }  # fmt: skip
    apt = ["apt-get", "-q", *(word for n, v in options.items() for word in ("-o", f"{n}={v}"))]
    call([*apt, "update"])
    call([*apt, "install", "-y", "--no-install-recommends", "--download-only", *PACKAGES])
    archives = sorted((state / "archives").glob("*.deb"))
    for name in ("bin", "lib", "sbin"):
        (fresh / "usr" / name).mkdir(parents=True)
        (fresh / name).symlink_to(f"usr/{name}")
    for name in ("wheels", "checkout", "sys"):
        (fresh / name).mkdir(exist_ok=True)
    for archive in archives:
        script = 'dpkg-deb --fsys-tarfile "$1" | tar -x -C "$2" --keep-directory-symlink'
        call(["sh", "-c", script, "sh", archive, fresh])
    size = call(["du", "-sm", fresh]).split()[0]  # many names of Mesa's drivers are one file
    said = f"{key} {len(archives)} packages, {size} MiB\n"
    (fresh / ".packages").write_text(said, encoding="utf-8")
    shutil.rmtree(TREE, ignore_errors=True)
    fresh.rename(TREE)
    shutil.rmtree(state)


def compilers() -> list[str]:
    """Return the compilers that the tree has."""
    return [c for c in COMPILERS if any((TREE / "usr" / b / c).exists() for b in ("bin", "sbin"))]


def emulated(*command: str, statuses: Sequence[int] = (0,)) -> str:
    """Run a command in the tree and return what it printed; what it says on stderr is shown.

    Raises
    ------
    StepError
        It ended with another status, or did not end in time.
    """
    cpuinfo = PLACE / "cpuinfo"
    cores = range(os.cpu_count() or 1)
    cpuinfo.write_text("".join(CORE.format(number=n) for n in cores), encoding="utf-8")
    system = "/usr/sbin:/usr/bin:/sbin:/bin"
    inside = {
        "PATH": f"/{ENVIRONMENT}/bin:{system}", "HOME": "/root", "LANG": "C.UTF-8",
        "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels",
    }  # fmt: skip
    enter = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", ENTER, "sh"]
    places = map(str, (TREE, emulator(), cpuinfo, WHEELS, ROOT))
    variables = [f"{name}={value}" for name, value in inside.items()]
    with subprocess.Popen(
        [*enter, *places, *variables, *command], env={"PATH": system, "QEMU_CPU": PROCESSOR},
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            out, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            raise StepError(f"{' '.join(command[:4])} took more than {LIMIT_S} s") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode not in statuses:
        words = " ".join(command[:4])
        raise StepError(f"{words} gave {process.returncode} in the tree: {out[-500:]}")
    return out


# --- the wheel -------------------------------------------------------------------------------


def make_wheels(extras: str) -> tuple[Path, str]:
    """Build gpuedge's wheel, fetch what it needs for arm64; return the wheel and a key of both."""
    version = "import sys; print('%d.%d' % sys.version_info[:2])"
    python = emulated("/usr/bin/python3", "-c", version).strip()
    WHEELS.mkdir(exist_ok=True)
    for old in WHEELS.glob("gpuedge-*.whl"):
        old.unlink()
    call([sys.executable, "-m", "build", "-q", "--wheel", "--outdir", WHEELS, ROOT])
    wheel = next(WHEELS.glob("gpuedge-*.whl"))
    key = key_of((ROOT / "pyproject.toml").read_bytes(), python, extras)
    stamp = WHEELS / f".{key}"
    if not stamp.exists():
        tags = [*(f"manylinux_2_{n}_aarch64" for n in range(17, 29)), "manylinux2014_aarch64"]
        call([
            sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check",
            "--only-binary", ":all:", "--python-version", python, "--dest", WHEELS,
            *(word for tag in tags for word in ("--platform", tag)), f"{wheel}[{extras}]",
        ])  # fmt: skip
        stamp.touch()
    return wheel, key_of(key, wheel.read_bytes())


def install(wheel: Path, key: str) -> None:
    """Install the wheel with its extras into a fresh environment of the tree, as a user does."""
    place = TREE / ENVIRONMENT
    stamp = place / ".installed"
    if is_made(stamp, key):
        return
    shutil.rmtree(place, ignore_errors=True)
    python = f"/{ENVIRONMENT}/bin/python"
    target = f"/wheels/{wheel.name}[{EXTRAS}]"
    commands = [
        ("/usr/bin/python3", "-m", "venv", f"/{ENVIRONMENT}"),
        (python, "-m", "pip", "install", "-q", "--only-binary", ":all:", target),
    ]
    sizes = []
    for command in commands:
        emulated(*command)
        sizes.append(contents(place))
    packages, size = (now - then for then, now in zip(*sizes, strict=True))
    said = f"{key} {packages} packages, {size / 2**20:.0f} MiB\n"
    stamp.write_text(said, encoding="utf-8")


# --- what is tried ---------------------------------------------------------------------------


def failures(wheel: Path, key: str, shard: str) -> Iterator[str]:
    """Install and run everything; yield what is wrong."""
    found = compilers()
    if found:
        yield f"the tree has compilers: {', '.join(found)}"
    with step(f"install gpuedge[{EXTRAS}]"):
        install(wheel, key)
    say("  " + (TREE / ENVIRONMENT / ".installed").read_text("utf-8").split(maxsplit=1)[1].strip())
    with step("gpuedge probe"):
        report = json.loads(
            emulated("gpuedge", "probe", "--deadline", str(PROBE_S), "--json", statuses=(0, 1))
        )
    yield from missing_levels(report)
    with step("gpuedge doctor"):
        checks = json.loads(emulated("gpuedge", "doctor", "--json", statuses=(0, 1)))["checks"]
    bad = (check for check in checks if check["result"] == "FAIL")
    yield from (f"doctor: {check['name']}: {check['detail']}" for check in bad)
    with step("a convolution and a product on every device, a model on the CPU and a GPU"):
        model = "/checkout/examples/models/digits.onnx"
        right = json.loads(emulated("python", "-c", SMOKE, model))
    yield from (f"did not compute right: {name}" for name in wanted(right))
    with step("8-bit products on the CPU"):
        wrong = json.loads(emulated("python", "-c", BYTE_PRODUCTS))
    yield from (f"wrong on the CPU: {product}" for product in wrong)
    for level in DRIVERS:
        with step(f"gpuedge conformance run --device {level} --shard {shard}"):
            results = conformance(level, key, shard)
        counts = results["counts"]
        say(f"  {', '.join(f'{counts[name]} {name}' for name in counts if counts[name])}")
        yield from (f"{level}: {p['id']}: {p['reason']}" for p in results["problems"])
        if not counts["passed"] or counts["passed"] + counts["skipped"] != counts["cases"]:
            yield f"{level}: of {counts['cases']} cases {counts['passed']} passed"


def missing_levels(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each level of which a probe found no usable device."""
    usable = {row["backend"] for row in report["tried"] if row["status"] == "ok"}
    for level, driver in DRIVERS.items():
        if level not in usable:
            why = {r["reason"] for r in report["tried"] if r["backend"] == level}
            yield f"no usable device for {level} ({driver}): {'; '.join(sorted(why)) or 'none'}"


def wanted(right: Sequence[str]) -> list[str]:
    """Return what must have computed right and is not among these."""
    return sorted({"cpu", "model", *(f"{level}:0" for level in DRIVERS)} - set(right))


def conformance(level: str, key: str, shard: str) -> dict[str, Any]:
    """Run the smoke profile on a level; cases that were run with this wheel are not run again."""
    results = TREE / "root" / f"results-{key}"
    results.mkdir(exist_ok=True)
    file = f"{level}-{shard.replace('/', '-of-')}.jsonl"
    resume = ["--resume", f"{results.name}/{file}"] if (results / file).exists() else []
    printed = emulated(
        "gpuedge", "conformance", "run", "--device", level, "--profile", "smoke", "--shard", shard,
        "--case-timeout", str(CASE_S), "--jsonl", f"{results.name}/{file}", *resume, "--json",
        statuses=(0, 1, 4),
    )  # fmt: skip
    document: dict[str, Any] = json.loads(printed)
    return document


def table(wheel: Path, extras: Sequence[str]) -> None:
    """Write the rows of extras in docs/tables/install.md, as tools/install_table.py does here."""
    program = "/checkout/tools/install_table.py"
    wheel_there = f"/wheels/{wheel.name}"
    said = emulated("/usr/bin/python3", program, "here", wheel_there, "--extras", *extras)
    print(said, end="")


def main(arguments: Sequence[str]) -> int:
    """Try everything, or what is asked for; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("action", nargs="?", choices=("try", "table"), default="try")
    parser.add_argument("extras", nargs="*", help="with table: extras, '' for none")
    parser.add_argument("--shard", default="1/1", help="part of the conformance cases")
    chosen = parser.parse_args(arguments)
    wrong = []
    try:
        PLACE.mkdir(exist_ok=True)
        emulator()
        with step("the tree"):
            make_tree()
        say("  " + (TREE / ".packages").read_text("utf-8").split(maxsplit=1)[1].strip())
        is_table = chosen.action == "table"
        with step("the wheels"):
            wheel, key = make_wheels(EVERYTHING if is_table else EXTRAS)
        if is_table:
            with step("install and run each extra"):
                table(wheel, chosen.extras or ("", "models", "all"))
        else:
            for fault in failures(wheel, key, chosen.shard):
                say(f"WRONG: {fault}")
                wrong.append(fault)
    except StepError as error:
        say(f"WRONG: {error}")
        wrong.append(str(error))
    say(f"{len(wrong)} things are wrong" if wrong else "all is right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
