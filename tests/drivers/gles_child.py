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
    farm.require(configuration)
    env = farm.environment_of(configuration)
    wanted = [(c, {}) if isinstance(c, str) else c for c in checks]
    request = {"level": farm.EVERY[configuration].device, "checks": wanted}
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
