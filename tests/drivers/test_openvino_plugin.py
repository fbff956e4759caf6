"""The example of an executor, `examples/plugins/gpuedge-openvino`: its own tests, on OpenVINO."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import farm
import pytest
from required import absent

PLUGIN = farm.ROOT / "examples" / "plugins" / "gpuedge-openvino"
OPENVINO = farm.FETCHED / "openvino"


def installed(folder: Path) -> None:
    """Install the plug-in as pip does: its entry points, and where its code is."""
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]
    info = folder / "gpuedge_openvino-0.1.0.dist-info"
    info.mkdir()
    about = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(about)
    points = project["entry-points"]["gpuedge.executors"]
    lines = [f"{name} = {value}" for name, value in points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[gpuedge.executors]", *lines, ""]))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_openvino_plugin(tmp_path: Path) -> None:
    if not (OPENVINO / "openvino").is_dir():
        absent("OpenVINO is missing; tools/setup.sh test fetches it")
    installed(tmp_path)
    paths = [tmp_path, PLUGIN / "src", OPENVINO, farm.ROOT]
    environ = {
        **os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "GPUEDGE_BACKENDS": "",
        "GPUEDGE_CACHE_DIR": str(tmp_path / "cache"),
    }  # fmt: skip
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=500",
               f"--rootdir={PLUGIN}", "-c", os.devnull, str(PLUGIN / "tests")]  # fmt: skip
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=580, check=False, env=environ, cwd=tmp_path
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "5 passed" in run.stdout
