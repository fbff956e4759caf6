"""Run checks of the OpenGL ES backends in a process of their own, one driver configuration each.

Mesa reads its environment when it is loaded, so a configuration is a process. A check is a function
of `gles_checks`, `gles_life`, `gles_faults` or `texel_reads`; it asserts in the child.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import farm

TIMEOUT_S = 280
GLES = [name for name in farm.FARM if name.startswith("gles")]
"""Configurations of all OpenGL ES drivers and levels."""
Check = tuple[str, dict[str, object]]


def skip(name: str, hint: str) -> None:
    """Skip the test, or fail where drivers are required."""
    from required import absent  # not for the child, which has no pytest to tell

    absent(f"the driver of {name} is not installed: {hint}")


def need(configuration: str) -> None:
    """Skip or fail where a configuration's drivers are not installed."""
    hint = farm.FARM[configuration].missing()
    if hint:
        skip(configuration, hint)


def run(configuration: str, *checks: str | Check) -> str:
    """Run checks under a configuration of the farm; return what was printed on standard error.

    Parameters
    ----------
    configuration : str
    *checks : str or pair
        A function's name, or that and its keyword arguments.

    Raises
    ------
    AssertionError
        With what the child wrote: an assertion does not hold there, or the process died.
    """
    env = farm.environment_of(configuration)
    if configuration.endswith("-angle"):  # else it leads to the system's Vulkan drivers first
        env[farm.VULKAN] = str(farm.file_of("angle").with_name("vk_swiftshader_icd.json"))
    wanted = [(c, {}) if isinstance(c, str) else c for c in checks]
    request = {"level": farm.FARM[configuration].device, "checks": wanted}
    done = subprocess.run(
        [sys.executable, __file__, json.dumps(request)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=env,
        check=False,
    )
    assert done.returncode == 0, f"{configuration}\n{done.stdout}{done.stderr}"
    # Mesa talks on standard output, too.
    held = [line for line in done.stdout.splitlines() if line.startswith("held ")]
    assert held == [f"held {name}" for name, _ in wanted], done.stdout
    return done.stderr


def main(request: dict[str, object]) -> None:
    """Run the checks of a request, and say of each that it held."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import gles_checks
    import gles_faults
    import gles_life
    import texel_reads

    checks = request["checks"]
    assert isinstance(checks, list)
    for name, arguments in checks:
        rooms = [gles_checks, gles_life, gles_faults, texel_reads]
        if "beside" in name or "contexts" in name:
            import gles_moderngl  # where the package moderngl is

            rooms.append(gles_moderngl)
        check = next(c for room in rooms if (c := getattr(room, name, None)))
        check(request["level"], **arguments)
        print(f"held {name}", flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
