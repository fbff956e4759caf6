"""Android without an Android device: its libraries, folders and limits, in processes of their own.

What real devices do is untested; docs/android.md says so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import daily
import pytest
from android_fakes import Phone
from required import absent

pytestmark = daily.day(0, of=4)

PROBE = """
import gpuedge
report = gpuedge.probe(deadline_s=100)
row = report.tried[0]
x = __import__("numpy").arange(8, dtype="float32")
rows = [(r.status, r.code, r.key, r.reason) for r in report.tried]
print(json.dumps({"rows": rows, "sum": gpuedge.add(x, x, device=report.best.device).tolist()}))
"""
TWICE = [float(2 * i) for i in range(8)]


@pytest.fixture
def phone(tmp_path: Path) -> Phone:
    return Phone(tmp_path)


@pytest.mark.parametrize("python", ["new", "old"])
def test_vulkan_by_the_name_it_has_on_android(phone: Phone, python: str) -> None:
    phone.install_vulkan()
    found = phone.run(PROBE, GPUEDGE_BACKENDS="vulkan", ANDROID_PYTHON=python)
    assert [row[:3] for row in found["rows"]] == [["ok", "ok", "loader-default"]]
    assert found["sum"] == TWICE


@pytest.mark.parametrize("lacks", ["", "surface", "core", "surface core"])
@pytest.mark.parametrize("level", ["gles31", "gles20"])
def test_opengl_es_by_the_default_display(phone: Phone, level: str, lacks: str) -> None:
    phone.install_egl()
    found = phone.run(PROBE, GPUEDGE_BACKENDS=level, ANDROID_EGL=lacks)
    assert [row[:3] for row in found["rows"]] == [["ok", "ok", "loader-default"]]
    assert found["sum"] == TWICE
    made = phone.surfaces.read_text().splitlines() if phone.surfaces.exists() else []
    assert set(made) == ({"1 x 1"} if "surface" in lacks else set())


def test_drivers_of_termux_are_found_below_its_prefix(phone: Phone) -> None:
    prefix = phone.folder / "usr"
    folder = prefix / "share" / "vulkan" / "icd.d"
    folder.mkdir(parents=True)
    manifests = sorted(Path("/usr/share/vulkan/icd.d").glob("lvp_icd*.json"))
    if not manifests:
        absent("the lavapipe driver is not installed: apt-get install mesa-vulkan-drivers")
    named = folder / "swrast_icd.json"
    named.write_text(manifests[0].read_text())
    egl = prefix / "share" / "glvnd" / "egl_vendor.d"
    egl.mkdir(parents=True)
    vendor = egl / "50_mesa.json"
    vendor.write_text(
        '{"file_format_version": "1.0.0", "ICD": {"library_path": "libEGL_mesa.so.0"}}'
    )
    found = phone.run(PROBE, GPUEDGE_BACKENDS="vulkan gles31", PREFIX=str(prefix))
    assert [row[:3] for row in found["rows"]] == [
        ["ok", "ok", str(named)],
        ["ok", "ok", str(vendor)],
    ]
    assert found["sum"] == TWICE


NO_CHILD = """
{app}
import gpuedge, numpy as np
report = gpuedge.probe(deadline_s=60)
x = np.arange(8, dtype=np.float32)
errors = []
for isolation in ("inline", "process"):
    try:
        gpuedge.open("vulkan", isolation=isolation)
    except gpuedge.GpuEdgeError as error:
        errors.append([error.code, str(error)])
maps = open("/proc/self/maps").read()
print(json.dumps({{
    "rows": [(r.status, r.code, r.key, r.reason) for r in report.tried], "errors": errors,
    "sum": gpuedge.add(x, x).tolist(), "best": report.best,
    "loaded": [n for n in ("libvulkan", "libEGL", "libGLES") if n in maps],
}}))
"""


def test_an_app_without_a_python_program_loads_no_driver(phone: Phone) -> None:
    phone.install_vulkan()
    phone.install_egl()
    for program in ("", "/system/bin/app_process64"):
        found = phone.run(NO_CHILD.format(app=phone.app(program)))
        reasons = {row[3] for row in found["rows"] if row[:2] != ["absent", "no-candidates"]}
        assert {tuple(row[:2]) for row in found["rows"]} == {("blocked", "no-child")}
        assert all("no Python program" in reason for reason in reasons)
        assert "docs/android.md" in found["rows"][0][3]
        assert [code for code, _ in found["errors"]] == ["GE-103", "GE-103"]
        assert all("no Python program" in text for _, text in found["errors"])
        assert (found["sum"], found["best"], found["loaded"]) == (TWICE, None, [])


def test_a_program_that_must_not_be_started_is_said(phone: Phone) -> None:
    """Apps for Android 10 and later may start no file that they wrote themselves."""
    phone.install_vulkan()
    program = phone.folder / "python3"
    program.write_text(f"#!{phone.folder}\n")  # a folder is no program: EACCES, whoever asks
    program.chmod(0o755)
    found = phone.run(NO_CHILD.format(app=phone.app(str(program))), GPUEDGE_BACKENDS="vulkan")
    ((status, code, _, reason),) = found["rows"]
    assert (status, code) == ("blocked", "no-child")
    assert "Permission denied" in reason and "python3" in reason
    assert (found["sum"], found["loaded"]) == (TWICE, [])


def test_a_program_that_an_app_brings_is_started(phone: Phone) -> None:
    """As python-for-android has it: a link in the app's files to what it was installed with."""
    phone.install_vulkan()
    binary, program = phone.libraries / "libpythonbin.so", phone.folder / ".bin" / "python"
    binary.symlink_to(os.path.realpath(sys.executable))
    program.parent.mkdir()
    program.symlink_to(binary)
    found = phone.run(phone.app(str(program)) + PROBE, GPUEDGE_BACKENDS="vulkan")
    assert [row[:3] for row in found["rows"]] == [["ok", "ok", "loader-default"]]
    assert found["sum"] == TWICE


ISOLATED = """
with gpuedge.open("vulkan", isolation="process") as device:
    total = gpuedge.add(x, x, device=device).tolist()
print(json.dumps({"rows": rows, "sum": total}))
"""


def test_without_a_temporary_folder_the_cache_folder_serves(phone: Phone) -> None:
    phone.install_vulkan()
    code = PROBE.rpartition("print")[0] + ISOLATED
    found = phone.run(code, GPUEDGE_BACKENDS="vulkan", ANDROID_NO_TMP="1", ANDROID_OLD_LIBC="1")
    assert found["rows"][0][:2] == ["ok", "ok"]
    assert found["sum"] == TWICE
    assert list((phone.folder / "cache" / "temporary").iterdir()) == []


CACHE = """
sys.path.insert(0, {place!r})
from platformdirs import user_cache_dir
from gpuedge.safety.paths import cache_folder
print(json.dumps([cache_folder(), user_cache_dir("gpuedge")]))
"""


@pytest.mark.parametrize(
    ("place", "prefix", "wanted"),
    [
        ("/data/user/0/org.app/files/app", "", "/data/user/0/org.app/cache/gpuedge"),
        ("/data/data/org.app/files", "", "/data/data/org.app/cache/gpuedge"),
        ("/data/data/com.termux/files/usr/lib", "/data/data/com.termux/files/usr", None),
        ("/data/local/tmp", "", None),
        ("/data/data/org.app/filesystem", "", None),
    ],
)
def test_cache_folder_is_the_apps(
    phone: Phone, place: str, prefix: str, wanted: str | None
) -> None:
    ours, theirs = phone.run(CACHE.format(place=place), GPUEDGE_CACHE_DIR="", PREFIX=prefix)
    assert ours == theirs == (wanted or str(phone.folder / ".cache" / "gpuedge"))


CACHED = """
import gpuedge
print(json.dumps([row.is_cached for row in gpuedge.probe(backends=["vulkan"]).tried]))
"""


def test_a_new_build_of_android_makes_verdicts_stale(phone: Phone) -> None:
    """Its drivers are no files that could be looked at."""
    manifest = phone.folder / "driver.json"
    manifest.write_text("no manifest")
    seen = []
    for build in ("1", "1", "2"):
        phone.tell({"ro.build.fingerprint": "same", "ro.vendor.build.fingerprint": build})
        seen += phone.run(CACHED, VK_DRIVER_FILES=str(manifest))
    assert seen == [False, True, False]


DOCTOR = """
from gpuedge.cli.main import main
main(["doctor", "--json", "--deadline", "100"])
"""


def test_doctor_tells_what_to_send(phone: Phone) -> None:
    phone.install_vulkan()
    phone.tell(
        {"ro.product.model": "Phone 5", "ro.soc.model": "SM8550", "ro.build.version.sdk": "34",
         "ro.build.version.release": "14", "ro.hardware.egl": "adreno", "ro.serialno": "SECRET",
         "ro.product.manufacturer": "a\x1b[2Jb"}
    )  # fmt: skip
    told = phone.run(DOCTOR, GPUEDGE_BACKENDS="vulkan", PREFIX=str(phone.folder))["machine"]
    assert (told["model"], told["soc"], told["android_sdk"]) == ("Phone 5", "SM8550", "34")
    assert (told["release"], told["egl"]) == ("14", "adreno")
    assert "\x1b" not in told["maker"]
    assert "libvulkan.so" in told["libraries"]
    assert "llvmpipe" in told["vulkan:0"] and told["vulkan:0"].endswith("loader-default, ok")
    assert "SECRET" not in json.dumps(told)
    assert str(phone.folder) not in json.dumps(told)


def test_doctor_in_an_app_ends_well(phone: Phone) -> None:
    body = phone.run(phone.app() + DOCTOR, GPUEDGE_BACKENDS="vulkan gles30")
    checks = {c["name"]: c for c in body["checks"] if not c["name"].startswith("package")}
    assert [c for c in checks.values() if c["result"] == "FAIL"] == []
    assert "docs/android.md" in checks["vulkan, gles30 driver"]["detail"]
    assert checks["devices"]["result"] == "WARN"
    assert "no-child" in json.dumps(body["machine"])


ASKED = """
from gpuedge import capdb
from gpuedge.core.identity import Identity
from gpuedge.capdb.identity.subject import subject
here = subject(Identity("vulkan", "Mali-G78", sys.platform, vendorID=0x13B5, driverID=9))
print(json.dumps([here.os, here.android_sdk, here.soc, here.brand, here.device]))
"""


@pytest.mark.parametrize("python", ["new", "old"])
def test_the_database_is_asked_with_androids_properties(phone: Phone, python: str) -> None:
    phone.tell({"ro.build.version.sdk": "33", "ro.soc.model": "MT6985", "ro.product.brand": "acme"})
    found = phone.run(ASKED, ANDROID_PYTHON=python)
    assert found == ["android", 33, "MT6985", "acme", None]


def test_this_machine_is_no_android() -> None:
    code = "from gpuedge.core import system; print(system.is_android(), system.is_linux())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", str(sys.platform == "linux")]
