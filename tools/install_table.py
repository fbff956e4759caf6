"""Tries how gpuedge installs, and writes docs/tables/install.md.

Usage: python tools/install_table.py wheels [--uv UV]
       PYTHON tools/install_table.py here WHEEL [--extras EXTRA...]

``wheels`` asks uv, which a user installs, for each platform, Python and extra whether everything
has wheels. ``here`` takes no package: the Python that runs it installs a wheel of gpuedge with each
extra into an environment of its own, without a compiler, and computes on every device that a probe
finds. Rows of other Pythons are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "tables" / "install.md"
PROJECT: Mapping[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = ("", "vulkan", "wgpu", "models", "moderngl", "cli", "updates", "all")
"""What is tried; the first is the package alone. ``gles`` brings nothing, ``shaderc`` source."""

PYTHONS = tuple(
    line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line
)
PLATFORMS = {
    "Linux x86-64 (glibc 2.28)": "x86_64-manylinux_2_28",
    "Linux arm64 (glibc 2.28)": "aarch64-manylinux_2_28",
    "Linux riscv64": "riscv64-unknown-linux",
    "Linux x86-64 (musl)": "x86_64-unknown-linux-musl",
    "Linux arm64 (musl)": "aarch64-unknown-linux-musl",
    "Windows x86-64": "x86_64-pc-windows-msvc",
    "Windows arm64": "aarch64-pc-windows-msvc",
    "macOS 14 arm64": "aarch64-apple-darwin",
    "macOS 14 x86-64": "x86_64-apple-darwin",
    "Android arm64": "aarch64-linux-android",
}
"""How uv calls a platform."""

HEADS = (
    ("platform", *(e or "gpuedge" for e in EXTRAS)),
    ("Python", "machine", "extra", "packages", "MiB", "right"),
)
WORDS = (
    """\
# Install, tried

Made by tools/install_table.py; do not edit. How to install: [install](../install.md).

## Where everything has wheels

The Pythons for which pip finds a wheel of every package, so that nothing is compiled. `gpuedge` is
the package without an extra.
""",
    """\
## Installed and run

Into an environment of its own, from wheels alone. MiB count all files, compiled modules included.
The last column names the devices that a probe found and that convolved and multiplied right, and
whether a model ran on the CPU and on the first of them. Rows of `aarch64` ran on an emulated
processor (`tools/arm64.py table`).
""",
)

SMOKE = """
import json, sys
import numpy as np
import gpuedge
x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
w = np.ones((1, 1, 3, 3), np.float32)
found = [d.device for d in gpuedge.probe(deadline_s=900).devices if d.status == "ok"]
for device in ["cpu", *found]:
    assert gpuedge.conv2d(x, w, device=device)[0, 0].tolist() == [[45, 54], [81, 90]], device
    assert gpuedge.matmul(x, x, device=device).sum() == (x @ x).sum(), device
right = ["cpu", *found]
try:
    for device in right[:2]:
        with gpuedge.Session(sys.argv[1], device=device) as session:
            (y,) = session.run({"image": np.zeros((1, 1, 8, 8), np.float32)}).values()
            assert y.shape[0] == 1 and np.isfinite(y).all()
    right.append("model")
except gpuedge.MissingPackageError as error:
    assert "pip install 'gpuedge[models]'" in str(error)
print(json.dumps(right))
"""


def wheels(uv: str) -> Iterable[tuple[str, ...]]:
    """Ask uv about each platform, and return its row."""
    for name, target in PLATFORMS.items():
        with ThreadPoolExecutor(len(PYTHONS)) as pool:
            found = list(pool.map(partial(served, uv, target), PYTHONS))
        by_extra = ([v for v, has in zip(PYTHONS, found, strict=True) if e in has] for e in EXTRAS)
        yield (name, *map(spread, by_extra))


def served(uv: str, target: str, version: str) -> set[str]:
    """Return the extras that wheels serve; where they serve ``all``, its parts need no question."""
    parts = set(EXTRAS) - {"moderngl"} if resolves(uv, target, version, "all") else set()
    return parts | {e for e in EXTRAS if e not in parts and resolves(uv, target, version, e)}


def resolves(uv: str, target: str, version: str, extra: str) -> bool:
    """Tell whether wheels serve an extra; without one, the package alone."""
    command = [uv, "pip", "compile", "-q", "--only-binary", ":all:", "--no-python-downloads",
               "--python-platform", target, "--python-version", version,
               *(["--extra", extra] if extra else []), "pyproject.toml"]  # fmt: skip
    here = {**os.environ, "MACOSX_DEPLOYMENT_TARGET": "14.0"}
    done = subprocess.run(command, cwd=ROOT, env=here, capture_output=True, text=True, check=False)
    if done.returncode and "No solution" not in done.stderr:
        sys.exit(f"uv says nothing of {extra} on {target}: {done.stderr}")
    return done.returncode == 0


def spread(versions: Sequence[str]) -> str:
    """Return Pythons in few words: ``3.11-3.14``, a list with gaps, or ``no``."""
    places = [PYTHONS.index(v) for v in versions]
    if not places:
        return "no"
    if len(places) > 1 and places == list(range(places[0], places[-1] + 1)):
        return f"{versions[0]}\u2013{versions[-1]}"
    return ", ".join(versions)


def here(wheel: Path, extras: Sequence[str]) -> Iterable[tuple[str, ...]]:
    """Install each extra for the Python that runs this, and return its row."""
    with tempfile.TemporaryDirectory(prefix="gpuedge-install-") as folder:
        for extra in extras:
            place = Path(folder, extra or "base")
            venv.create(place, with_pip=True)
            python = place / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
            first = contents(place)
            word = f"{wheel}[{extra}]" if extra else str(wheel)
            pip = [python, "-m", "pip", "install", "-q", "--only-binary", ":all:", word]
            done = subprocess.run(pip, capture_output=True, text=True, check=False)
            names = (platform.python_version(), f"{platform.system()} {platform.machine()}")
            if done.returncode:
                yield (*names, extra or "gpuedge", "no wheel", "", "")
                continue
            packages, size = (now - then for now, then in zip(contents(place), first, strict=True))
            right = smoke(python, Path(folder))
            yield (*names, extra or "gpuedge", str(packages), f"{size / 2**20:.0f}", right)


def contents(place: Path) -> tuple[int, int]:
    """Return how many packages an environment has, and the bytes of its files."""
    files = [p for p in place.rglob("*") if p.is_file() and not p.is_symlink()]
    packages = sum(p.name == "METADATA" and p.parent.suffix == ".dist-info" for p in files)
    return packages, sum(p.stat().st_size for p in files)


def smoke(python: Path, folder: Path) -> str:
    """Compute with what is installed, away from the checkout; return what was right."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment["GPUEDGE_CACHE_DIR"] = str(folder / "cache" / python.parents[1].name)
    model = ROOT / "examples" / "models" / "digits.onnx"
    done = subprocess.run(
        [python, "-c", SMOKE, model], cwd=folder, env=environment, capture_output=True, text=True,
        check=False, timeout=1800,
    )  # fmt: skip
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return "failed"
    return ", ".join(json.loads(done.stdout))


def known(text: str) -> list[list[tuple[str, ...]]]:
    """Return the rows of the tables of a page that this program wrote."""
    tables: list[list[tuple[str, ...]]] = [[] for _ in HEADS]
    for line in re.findall(r"^\| (.*) \|$", text, re.MULTILINE):
        row = tuple(cell.strip() for cell in line.split(" | "))
        tables[len(row) == len(HEADS[1])].append(row)
    return [[r for r in rows if r not in HEADS] for rows in tables]


def page(tables: Iterable[Iterable[Sequence[str]]]) -> str:
    """Return the page of these rows."""
    parts = []
    for words, head, rows in zip(WORDS, HEADS, tables, strict=True):
        lines = (head, *rows)
        cells = [f"| {' | '.join(line)} |" for line in lines]
        parts.append("\n".join([words, cells[0], "|" + "---|" * len(head), *cells[1:], ""]))
    return "\n".join(parts)


def keep(number: int, row: tuple[str, ...], key: Callable[[tuple[str, ...]], Any]) -> None:
    """Write a row to its table of the page, in the place of what has its key."""
    tables = known(PAGE.read_text("utf-8")) if PAGE.exists() else [[], []]
    rows = {key(one): one for one in (*tables[number], row)}
    tables[number] = list(rows.values())
    PAGE.write_text(page(tables), encoding="utf-8")


def main() -> None:
    """Try what is asked for; write each row as it is known."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("wheels").add_argument("--uv", default="uv")
    install = actions.add_parser("here")
    install.add_argument("wheel", type=Path)
    install.add_argument("--extras", nargs="*", default=EXTRAS, choices=EXTRAS)
    chosen = parser.parse_args()
    if chosen.action == "wheels":
        for row in wheels(chosen.uv):
            print(*row, flush=True)
            keep(0, row, lambda one: one[0])
    else:
        for row in here(chosen.wheel.resolve(), chosen.extras):
            print(*row, flush=True)
            keep(1, row, lambda one: one[:3])


if __name__ == "__main__":
    main()
