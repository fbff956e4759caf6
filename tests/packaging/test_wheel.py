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
from email import message_from_bytes
from importlib.metadata import distribution
from pathlib import Path

import daily
import install_table
import pytest
from packaging.requirements import Requirement
from required import absent

from gpuedge.safety import packages

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
    return environment(dist, tmp_path_factory.mktemp("venv"), Path(sysconfig.get_path("purelib")))


@pytest.fixture(scope="module")
def bare(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean environment with the wheel, and of its packages those alone that it requires."""
    lent = tmp_path_factory.mktemp("lent")
    for name in required(requirements(dist), ""):
        for file in distribution(name).files or ():
            top = file.parts[0]
            if top != ".." and not (lent / top).exists():
                (lent / top).symlink_to(Path(str(distribution(name).locate_file(top))))
    return environment(dist, tmp_path_factory.mktemp("bare"), lent)


def requirements(dist: Path) -> list[str]:
    """Return what the wheel says that it requires."""
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        info = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = message_from_bytes(wheel.read(info))
    return metadata.get_all("Requires-Dist") or []


def required(lines: list[str], extra: str) -> set[str]:
    """Return the packages that these requirements bring here, with theirs."""
    found = set()
    for one in map(Requirement, lines):
        if one.marker is None or one.marker.evaluate({"extra": extra}):
            theirs = distribution(one.name).requires or []
            found |= {one.name}.union(*(required(theirs, e) for e in ("", *one.extras)))
    return found


def environment(dist: Path, home: Path, lent: Path) -> Path:
    """Return the Python of a new environment with the wheel, and the packages of a folder."""
    venv.create(home, with_pip=False, symlinks=os.name != "nt")
    scheme = {"base": str(home), "platbase": str(home)}
    scheme_name = "nt" if os.name == "nt" else "posix_prefix"
    site = Path(sysconfig.get_path("purelib", scheme_name, scheme))
    (site / "lent.pth").write_text(f"{lent}\n", encoding="utf-8")
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
    assert "Requires-Python: >=3.11" in metadata
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


def test_package_without_extras_is_small(dist: Path) -> None:
    names = required(requirements(dist), "")
    assert names == {"numpy", "vulkan", "cffi", "pycparser"}  # on Linux
    everything = required(requirements(dist), "all")
    extras = {e for e in packages.EXTRAS.values() if e not in ("farm", "shaderc")}
    assert everything == set().union(*(required(requirements(dist), e) for e in extras))


@daily.day(3, of=4)
def test_arrays_need_no_extra(bare: Path, tmp_path: Path) -> None:
    model = ROOT / "examples" / "models" / "digits.onnx"
    cache = tmp_path / "cache"
    out = call(bare, "-c", install_table.SMOKE, model, cwd=tmp_path, cache=cache)
    right = json.loads(out)
    assert {"cpu", "vulkan:0", "gles31:0", "gles30:0", "gles20:0"} <= set(right)
    assert "model" not in right and not [d for d in right if d.startswith("wgpu")]


@daily.day(0, of=4)
def test_commands_name_the_extra_that_they_need(bare: Path, tmp_path: Path) -> None:
    def refused(*words: str) -> tuple[str, str]:
        done = subprocess.run(
            [bare, "-m", "gpuedge", *words, "--json"], cwd=tmp_path, env=surroundings(),
            capture_output=True, text=True, timeout=280, check=False,
        )  # fmt: skip
        assert done.returncode == 2, done.stderr
        body = json.loads(done.stdout)
        return body["code"], body["hint"]

    def surroundings() -> dict[str, str]:
        return {**os.environ, "GPUEDGE_CACHE_DIR": str(tmp_path / "cache")}

    model = str(ROOT / "examples" / "models" / "digits.onnx")
    models, updates = "pip install 'gpuedge[models]'", "pip install 'gpuedge[updates]'"
    assert refused("check", model) == ("GE-104", models)
    assert refused("run", model) == ("GE-104", models)
    assert refused("db", "update", "mirror") == ("GE-601", updates)
    assert refused("conformance", "run", "--device", "gles20") == ("GE-104", models)
    said = json.loads(call(bare, "-m", "gpuedge", "doctor", "--json", cwd=tmp_path))
    assert said["counts"]["FAIL"] == 0
    fixes = {check["name"]: check["fix"] for check in said["checks"] if check["result"] == "INFO"}
    assert fixes["package onnx"] == fixes["package onnxruntime"] == models


OPERATIONS = """
import sys
import numpy as np
import gpuedge
from gpuedge import ops

x = np.random.default_rng(3).uniform(0.5, 2, (1, 4, 8, 8)).astype("f4")
w, v = np.ones((4, 4, 3, 3), "f4"), np.ones(4, "f4")
given = {
    "avg_pool2d": (x, 2), "batch_norm": (x, v, v, v, v), "clip": (x, 0, 1), "concat": ([x, x], 1),
    "conv2d": (x, w), "conv_transpose2d": (x, w), "crop": (x, 1, 1, 3, 3), "flip": (x, 3),
    "gemm": (x[0, 0], x[0, 0]), "max_pool2d": (x, 2),
    "non_max_suppression": (x[0, 0, :5, :4], x[0, 0, 0, :5], 3),
    "pad": (x, [(0, 0), (0, 0), (1, 1), (1, 1)]), "prelu": (x, v.reshape(4, 1, 1)),
    "reshape": (x, (4, 64)), "resize": (x, (16, 16)), "slice": (x, (0, 0, 1, 1), (1, 2, 3, 3)),
    "take": (x, np.array([0])), "to_float": (x.astype("u1"),), "topk": (x, 2),
    "transpose": (x, (0, 2, 3, 1)), "where": (x > 1, x, x),
}
two = {"add", "div", "equal", "greater", "greater_equal", "less", "less_equal", "matmul", "maximum",
       "minimum", "mul", "pow", "sub"}
done = 0
for name in set(ops.__all__) - {"for_frames", "array", "elementwise"}:
    values = given.get(name, (x, x) if name in two else (x,))
    getattr(gpuedge, name)(*values, device=sys.argv[1])
    done += 1
assert gpuedge.elementwise("a * a + 1")(v, device=sys.argv[1]).tolist() == [2] * 4
stays = gpuedge.array(x, device=sys.argv[1]) * 2
assert np.array_equal(stays.numpy(), x * 2)
print(done)
"""


@pytest.mark.parametrize("device", ["cpu", "gles30"])
def test_no_operation_needs_an_extra(device: str, bare: Path, tmp_path: Path) -> None:
    done = call(bare, "-c", OPERATIONS, device, cwd=tmp_path, cache=tmp_path / "cache")
    assert int(done) > 65


@pytest.mark.long
@pytest.mark.parametrize("extra", install_table.EXTRAS)
def test_extra_installs_from_wheels_alone(dist: Path, extra: str) -> None:
    (row,) = install_table.here(next(dist.glob("*.whl")), [extra])
    assert int(row[3]) == 1 + len(required(requirements(dist), extra))
    right = row[5].split(", ")
    assert {"cpu", "vulkan:0", "gles31:0", "gles30:0", "gles20:0"} <= set(right)
    assert ("model" in right) == (extra in ("models", "all"))
    assert ("wgpu:0" in right) == (extra in ("wgpu", "all"))
