"""The wheel and the sdist, as users get them: built, installed outside the checkout, and used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from required import absent

ROOT = Path(__file__).resolve().parents[2]
DATA = ("shaders", "capability_db")
KEPT = ("capability_db/notes/", "capability_db/left_out/")
"""What the source tree keeps to itself."""


def call(*command: str | Path, cwd: Path, cache: Path | None = None) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    if cache:
        environment["GPUEDGE_CACHE_DIR"] = str(cache)
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=280
    )
    if done.returncode:
        pytest.fail(f"{command} gave {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist of the checkout, and the wheel built from that sdist."""
    folder = tmp_path_factory.mktemp("dist")
    build = (sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    call(*map(str, build), cwd=folder)
    return folder


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean environment with the wheel; dependencies are lent by this one, gpuedge is not.

    A path line in a .pth file adds a folder without processing the .pth files inside it, so the
    editable gpuedge of this environment stays invisible there.
    """
    home = tmp_path_factory.mktemp("venv")
    venv.create(home, with_pip=False, symlinks=os.name != "nt")
    scheme = {"base": str(home), "platbase": str(home)}
    scheme_name = "nt" if os.name == "nt" else "posix_prefix"
    site = Path(sysconfig.get_path("purelib", scheme_name, scheme))
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    scripts = Path(sysconfig.get_path("scripts", scheme_name, scheme))
    python = scripts / Path(sys.executable).name
    wheel = next(dist.glob("*.whl"))
    install = ("-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel)
    call(sys.executable, *map(str, install), cwd=home)
    return python


def tracked(folder: str) -> set[str]:
    files = (p for p in (ROOT / folder).rglob("*") if p.is_file())
    return {p.relative_to(ROOT).as_posix() for p in files}


def test_wheel_holds_package_and_data_and_nothing_else(dist: Path) -> None:
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
    for folder in DATA:
        wanted = {f"gpuedge/_data/{name}" for name in tracked(folder) if not name.startswith(KEPT)}
        assert wanted, f"{folder} is empty"
        assert wanted <= names
    for place in KEPT:
        assert tracked(place)
        assert not [name for name in names if f"_data/{place}" in name]
    assert "gpuedge/py.typed" in names
    tops = {n.split("/")[0] for n in names}
    assert {t for t in tops if not t.endswith(".dist-info")} == {"gpuedge"}
    assert [n for n in names if n.endswith((".pyc", ".onnx"))] == []


def test_wheel_declares_python_license_and_command(dist: Path) -> None:
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        info = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = wheel.read(info).decode()
        commands = wheel.read(info.replace("METADATA", "entry_points.txt")).decode()
    assert "Requires-Python: >=3.10" in metadata
    assert "License-Expression: Apache-2.0" in metadata
    assert "gpuedge = gpuedge.cli.main:main" in commands


def test_sdist_holds_what_a_packager_needs(dist: Path) -> None:
    with tarfile.open(next(dist.glob("*.tar.gz"))) as sdist:
        names = {n.partition("/")[2] for n in sdist.getnames()}
    for name in ("pyproject.toml", "LICENSE", "README.md", "Makefile", "tests/packaging", "docs"):
        assert any(n == name or n.startswith(f"{name}/") for n in names), name
    assert {n for n in names if n.startswith((".venv", ".ci", "out/"))} == set()


def test_installed_package_is_the_wheels(installed: Path, tmp_path: Path) -> None:
    code = "import gpuedge; print(gpuedge.__file__)"
    file = Path(call(installed, "-c", code, cwd=tmp_path).strip()).resolve()
    assert file.is_relative_to(installed.parent.parent.resolve())


def test_installed_package_finds_its_data(installed: Path, tmp_path: Path) -> None:
    body = json.loads(call(installed, "-m", "gpuedge", "info", "--json", cwd=tmp_path))
    for name in DATA:
        folder = Path(body["paths"][name])
        assert folder.parts[-3:] == ("gpuedge", "_data", name)
        assert folder.is_dir()


def test_installed_command_has_every_kernel(installed: Path, tmp_path: Path) -> None:
    command = installed.with_name("gpuedge" + installed.suffix)
    body = json.loads(call(command, "kernels", "list", "--json", cwd=tmp_path))
    assert {row["name"] for row in body["kernels"]} == {
        name.removeprefix("shaders/").removesuffix(".kern")
        for name in tracked("shaders")
        if name.endswith(".kern")
    }


def test_installed_doctor_finds_no_fault(installed: Path, tmp_path: Path) -> None:
    command = (installed, "-m", "gpuedge", "doctor", "--json")
    body = json.loads(call(*command, cwd=tmp_path, cache=tmp_path / "cache"))
    assert body["counts"]["FAIL"] == 0


def test_installed_package_computes(installed: Path, tmp_path: Path) -> None:
    code = (
        "import numpy as np, gpuedge\n"
        "x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)\n"
        "w = np.ones((1, 1, 3, 3), np.float32)\n"
        "print(gpuedge.conv2d(x, w, device='cpu')[0, 0].astype(int).tolist())"
    )
    out = call(installed, "-c", code, cwd=tmp_path, cache=tmp_path / "cache")
    assert out.strip() == "[[45, 54], [81, 90]]"


def test_installed_conformance_runs(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = (installed, "-m", "gpuedge", "conformance")
    body = json.loads(call(*command, "list", "--json", cwd=tmp_path))
    assert len(body["cases"]) >= 500
    manifests = sorted(Path("/usr/share/glvnd/egl_vendor.d").glob("*mesa*.json"))
    if not manifests:
        absent("Mesa's EGL driver is not installed: apt-get install -y libegl-mesa0")
    monkeypatch.setenv("__EGL_VENDOR_LIBRARY_FILENAMES", str(manifests[0]))
    monkeypatch.setenv("GPUEDGE_BACKENDS", "gles20")
    run = ("run", "--device", "gles20", "--only", "add/*", "--junit", "out.xml", "--json")
    body = json.loads(call(*command, *run, cwd=tmp_path, cache=tmp_path / "cache"))
    assert body["counts"]["passed"] >= 5
    assert body["counts"]["passed"] + body["counts"]["skipped"] == body["counts"]["cases"]
    assert (tmp_path / "out.xml").read_text(encoding="utf-8").count("<testcase") >= 5
