"""The driver farm: every configuration of a software driver that tests run on.

A configuration is a device string and the environment that makes it mean that one driver, exactly.
`tools/setup.sh test` and `tools/drivers.py` put the drivers where they are looked for here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FETCHED = ROOT / ".drivers"
"""Drivers that no Debian package has."""

VULKAN_FOLDERS = ("/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d")
EGL_FOLDERS = ("/usr/share/glvnd/egl_vendor.d", "/etc/glvnd/egl_vendor.d")
CHROMIUM = Path("/usr/lib/chromium")
NONE = "/nonexistent"

PACKAGES = {
    "lavapipe": "apt-get install -y mesa-vulkan-drivers libvulkan1",
    "swiftshader": "apt-get install -y chromium libvulkan1",
    "mesa": "apt-get install -y libegl1 libgles2 libegl-mesa0 libgl1-mesa-dri",
    "angle": "make drivers",
    "angle-vulkan": "make drivers",
    "swiftshader-gles": "make drivers",
}
"""What installs each driver."""


def _first(folders: tuple[str, ...], pattern: str) -> Path:
    found = [p for folder in folders for p in sorted(Path(folder).glob(pattern))]
    return found[0] if found else Path(folders[0]) / pattern


def file_of(driver: str) -> Path:
    """Return the file that a driver is found by; it may not exist."""
    if driver == "lavapipe":
        return _first(VULKAN_FOLDERS, "lvp_icd*.json")
    if driver == "swiftshader":
        return CHROMIUM / "vk_swiftshader_icd.json"
    if driver == "mesa":
        return _first(EGL_FOLDERS, "*mesa*.json")
    if driver == "angle-vulkan":
        return FETCHED / "angle" / "vk_swiftshader_icd.json"
    return FETCHED / driver / "libEGL.so"


VULKAN, EGL, LIBRARY = "VK_DRIVER_FILES", "__EGL_VENDOR_LIBRARY_FILENAMES", "GPUEDGE_EGL"
"""Variables that name a driver's file."""

HIDDEN = {VULKAN: NONE, EGL: NONE, LIBRARY: ""}
"""No driver at all; a configuration names its own. OpenGL ES drivers may bring a Vulkan one that
they find by themselves, so nothing is hidden from them there."""


@dataclass(frozen=True)
class Configuration:
    """One driver at one level.

    Attributes
    ----------
    device : str
        The device string to use in `environment`.
    files : mapping
        Environment variables that name the file of a driver.
    variables : mapping
        Other environment variables.
    is_slow : bool
        Whether ordinary test runs take only part of the cases: slow ones, and ones that are much
        like another.
    """

    device: str
    files: Mapping[str, str]
    variables: Mapping[str, str] = field(default_factory=dict)
    is_slow: bool = False

    def environment(self) -> dict[str, str]:
        """Return the variables to set, over those of the process."""
        named = {variable: str(file_of(driver)) for variable, driver in self.files.items()}
        backend = self.device.partition(":")[0]
        hidden = HIDDEN if backend in ("vulkan", "wgpu") else {EGL: NONE, LIBRARY: ""}
        return {**hidden, **named, **self.variables, "GPUEDGE_BACKENDS": backend}

    def missing(self) -> str | None:
        """Return what installs the drivers that are not there; None if all are."""
        absent = [d for d in self.files.values() if not file_of(d).is_file()]
        return "; ".join(dict.fromkeys(PACKAGES[d] for d in absent)) or None


HALF_AND_FLOAT = (
    "-GL_OES_texture_float -GL_OES_texture_half_float -GL_EXT_color_buffer_half_float "
    "-GL_OES_texture_float_linear -GL_OES_texture_half_float_linear"
)


def _mesa(level: str, *, is_slow: bool = False, **variables: str) -> Configuration:
    exact = {"MESA_GLES_VERSION_OVERRIDE": f"{level[4]}.{level[5]}", **variables}
    return Configuration(level, {EGL: "mesa"}, exact, is_slow)


def _zink(level: str) -> Configuration:
    # On a CPU driver zink compiles a kernel that is used again with its uniforms written in, which
    # rounds otherwise: bits then depend on what ran before. It does not where there is a GPU.
    one = _mesa(level, is_slow=True, GALLIUM_DRIVER="zink", LIBGL_ALWAYS_SOFTWARE="1",
                ZINK_INLINE_UNIFORMS="0")  # fmt: skip
    return Configuration(level, {**one.files, VULKAN: "lavapipe"}, one.variables, True)


LEVELS = ("gles20", "gles30", "gles31")
FARM: dict[str, Configuration] = {
    "vulkan-lavapipe": Configuration("vulkan", {VULKAN: "lavapipe"}),
    "vulkan-swiftshader": Configuration("vulkan", {VULKAN: "swiftshader"}),
    **{f"{level}-llvmpipe": _mesa(level) for level in LEVELS},
    **{f"{level}-softpipe": _mesa(level, is_slow=True, GALLIUM_DRIVER="softpipe")
       for level in LEVELS},
    **{f"{level}-zink": _zink(level) for level in LEVELS},
    **{f"{level}-angle": Configuration(
        level, {LIBRARY: "angle", VULKAN: "angle-vulkan"}, is_slow=True) for level in LEVELS},
    "gles20-bare": _mesa("gles20", MESA_EXTENSION_OVERRIDE=HALF_AND_FLOAT),
    "gles30-swiftshader-legacy": Configuration(
        "gles30", {LIBRARY: "swiftshader-gles"}, is_slow=True
    ),
    "wgpu-lavapipe": Configuration("wgpu", {VULKAN: "lavapipe"}),
    "wgpu-swiftshader": Configuration("wgpu", {VULKAN: "swiftshader"}),
    "wgpu-gl": Configuration("wgpu", {EGL: "mesa"}, is_slow=True),
}  # fmt: skip
"""Configurations by name: level and driver."""

EXTRA: dict[str, Configuration] = {
    "gles30-bare": _mesa(
        "gles30", is_slow=True, MESA_EXTENSION_OVERRIDE="-GL_EXT_color_buffer_float"
    ),
}
"""Variations that only the conformance cases run on: here float32 is kept as bit patterns."""

CONTRACT: dict[str, Configuration] = {
    "wgpu-angle-swiftshader": Configuration("wgpu", {VULKAN: "angle-vulkan"}),
    "null": Configuration("null", {}),
}
"""What only the contract of devices runs on: a second SwiftShader, and what only pretends."""

EVERY = FARM | EXTRA | CONTRACT
"""All configurations."""


def environment_of(name: str) -> dict[str, str]:
    """Return the whole environment of a configuration's processes."""
    chosen = EVERY[name]
    return {**os.environ, **chosen.environment()}


def cache(name: str) -> Path:
    """Return a cache folder that children of a configuration share in one run of the tests.

    So each driver is probed once, whichever worker asks first. It is for children that compute:
    what crashes a driver, or looks at its verdict, has a folder of its own.
    """
    folder = Path(tempfile.gettempdir()) / f"cache-of-{name}"
    folder.mkdir(exist_ok=True)
    return folder


def answer(
    child: Path | str, name: str, *arguments: object, timeout: float = 280, **variables: object
) -> str:
    """Return what a program of the tests prints about the device of a configuration.

    It gets the device and further arguments; `variables` are added to its environment. Its cache
    folder is the configuration's.
    """
    require(name)
    variables = {"GPUEDGE_CACHE_DIR": cache(name), **variables}
    environ = environment_of(name) | {key: str(value) for key, value in variables.items()}
    done = subprocess.run(
        [sys.executable, str(child), EVERY[name].device, *map(str, arguments)],
        env=environ, capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
    return done.stdout


def require(name: str) -> None:
    """Skip the test, or fail where drivers are required, if a configuration's driver is missing."""
    hint = EVERY[name].missing()
    if hint:
        from required import absent  # children that import this module have no pytest to speak to

        absent(f"no driver for {name}: {hint}")
