"""Which program a disposable process is started with, wherever this application runs.

Ordinarily that is ``sys.executable``. A frozen application is its own interpreter, and starting it
would start the application a second time, unless it called `freeze_support` first. Where Python is
embedded in another program (uWSGI, an editor), ``sys.executable`` may be that program, nothing or
a lie: then the interpreter that belongs to this installation is looked for. A program that is not
known to be Python is never started.
"""

from __future__ import annotations

import os
import re
import sys

from gpuedge.core.system import is_android

CHILD = "--gpuedge-child"
"""First argument of a frozen application that is started as a disposable process."""

WHY_NONE = (
    "frozen: call gpuedge.freeze_support() first thing in the main module",
    "embedded: no Python interpreter was found; name one in sys.executable",
    "Android: this app brings no Python program that could be started; see docs/android.md",
)
"""What is said where nothing can be started: frozen, in another program, in an Android app."""

_PYTHON = re.compile(r"(python|pypy|graalpy)w?[\d.]*(-(32|64)|_d|[dmtu]+)?(\.exe)?", re.IGNORECASE)

_START = """\
import sys
sys.path[:] = {front} + [p for p in sys.path if p]
sys.path += [p for p in {back} if p not in sys.path]
from importlib import import_module
sys.exit(import_module(sys.argv[1]).main())
"""

_is_ready = False
"""Whether `freeze_support` was called in this process, or in the one it was forked from."""


def freeze_support() -> None:
    """Let a frozen application start disposable processes; call it first thing in its main module.

    Such a process is the application itself, started with ``--gpuedge-child MODULE``: in it this
    function does that module's work and ends the process. In any other it returns at once, also in
    an application that is not frozen. Without it a frozen application is never started again, and
    every row of `gpuedge.probe()` is ``blocked`` with the code ``no-child``.

    Examples
    --------
    >>> import gpuedge
    >>> gpuedge.freeze_support()  # under ``if __name__ == "__main__":``
    """
    global _is_ready  # noqa: PLW0603  (it is said once, at the start of the application)
    _is_ready = True
    if not is_frozen() or len(sys.argv) != 3 or sys.argv[1] != CHILD:
        return
    name = sys.argv[2]
    if not name.startswith("gpuedge."):
        sys.exit(f"{CHILD}: {name} is not a module of gpuedge")
    from importlib import import_module

    sys.exit(import_module(name).main())


def is_frozen() -> bool:
    """Say whether the application carries its interpreter inside its own program."""
    frozen = getattr(sys, "frozen", False) or getattr(sys, "oxidized", False)
    return bool(frozen) or "__compiled__" in globals()  # Nuitka


def command(module: str) -> tuple[str, ...] | None:
    """Return the command that runs ``main()`` of a module of gpuedge in a process of its own.

    It finds the same gpuedge and the same packages as this process, whatever the folder and the
    environment it is started in, and nothing in the current folder. Returns None where there is no
    program that is known to do that; `why_none` says why.
    """
    if is_frozen():
        return (sys.executable, CHILD, module) if _is_ready and sys.executable else None
    program = interpreter()
    if program is None:
        return None
    # This gpuedge first, so that no other is found, but never site-packages: its modules would come
    # before the standard library's.
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    front = [] if os.path.basename(root) in ("site-packages", "dist-packages") else [root]
    code = _START.format(front=ascii(front), back=ascii(absolute(sys.path)))  # any bytes
    return (program, *_flags(), "-X", "faulthandler", "-c", code, module)


def why_none() -> str:
    """Return the sentence for a row where `command` returned None."""
    return WHY_NONE[0 if is_frozen() else 2 if is_android() else 1]


def interpreter() -> str | None:
    """Return the Python interpreter of this installation, None where none is known."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    inner = ("python.exe", "Scripts/python.exe") if os.name == "nt" else (
        f"bin/python{version}", f"bin/pypy{version}")  # fmt: skip
    programs = [sys.executable, getattr(sys, "_base_executable", None)]
    for prefix in (sys.prefix, sys.exec_prefix, sys.base_prefix):
        programs += [os.path.join(prefix, *name.split("/")) for name in inner]
    return next((p for p in programs if p and _is_python(p)), None)


def _is_python(program: str) -> bool:
    """Say whether a file is a Python interpreter, as far as its name tells."""
    known = _PYTHON.fullmatch(os.path.basename(program)) is not None
    return known and os.path.isfile(program) and os.access(program, os.X_OK)


def _flags() -> list[str]:
    """Return the options that decide what this interpreter takes from outside, for another."""
    flags = sys.flags
    given = {
        "-I": flags.isolated, "-E": flags.ignore_environment, "-s": flags.no_user_site,
        "-S": flags.no_site, "-P": getattr(flags, "safe_path", False),
    }  # fmt: skip
    # -B and -O are left out: the first is the cache's business, the second changes no result.
    return [flag for flag, is_set in given.items() if is_set]


def absolute(entries: list[str]) -> list[str]:
    """Return the entries of a path that stay what they are in another folder.

    The empty one means the current folder, which is the caller's business and may be gone.
    """
    paths_ = []
    for entry in entries:
        if not isinstance(entry, str) or not entry:
            continue
        try:
            paths_.append(os.path.abspath(entry))
        except OSError:  # relative to a current folder that does not exist any more
            continue
    return paths_


def environment() -> dict[str, str]:
    """Return a copy of the environment, whatever other threads do to it meanwhile."""
    while True:
        try:
            return dict(os.environ)
        except (RuntimeError, KeyError):  # it changed while it was copied
            continue
