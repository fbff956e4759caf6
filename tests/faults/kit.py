"""The fault kit: faulty GPU drivers made of good ones, by name and point.

`build` compiles the C sources beside this file, `Kit.environment` gives the variables that put one
fault in the way of a good driver, and `cells` lists what a probe of gpuedge is to say of each.
Only the standard library and a C compiler are needed; README.md says how other projects use it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent

APIS = ("vulkan", "wgpu", "gles31", "gles30", "gles20")
POINTS = (
    "load", "instance", "enumerate", "create", "allocate", "compile", "submit", "read", "teardown",
    "finish",
)  # fmt: skip
"""Where faults happen, in the order a process comes by; not every API has every one."""

_TEXT = re.compile(r"(?P<name>[^@\s]+)@(?P<point>[a-z]+)(?P<when>:[1-9]\d*\+?|~[\d.]+)?")

FLAGS = (
    "-shared", "-fPIC", "-O1", "-g", "-std=gnu11", "-Wall", "-Wextra", "-fvisibility=hidden",
    # A library that is unloaded while one of its threads hangs would crash instead of hanging.
    "-Wl,-z,nodelete", "-pthread", "-ldl",
)  # fmt: skip
VARIANTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "vulkan_no_symbol": ("vulkan_driver.c", ("-DGPUFAULT_NO_SYMBOL", "-Wno-unused-function")),
}
"""Libraries made of another source with other flags; every source gives one of its own name."""


@dataclass(frozen=True)
class Fault:
    """One fault, as GPUFAULT says it.

    Attributes
    ----------
    name, point : str
        What goes wrong, and where.
    when : str
        "" for the first call at that point, ":3" the third, ":3+" from the third on, "~0.01" each
        with this probability.
    """

    name: str
    point: str
    when: str = ""

    def __str__(self) -> str:
        return f"{self.name}@{self.point}{self.when}"

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Return the fault that a text names; ValueError if it names none."""
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ValueError(f"not name@point[:n[+]|~p]: {text!r}")
        return cls(found["name"], found["point"], found["when"] or "")


@dataclass(frozen=True)
class Kind:
    """What a fault does, and where it applies.

    Attributes
    ----------
    sentence : str
        What the driver does.
    points : tuple of str
        Points at which it can happen, as far as an API has them.
    apis : tuple of str
        APIs that it applies to.
    when : str
        The calls at which it is due in `cells`.
    """

    sentence: str
    points: tuple[str, ...] = POINTS
    apis: tuple[str, ...] = APIS
    when: str = ""


_V = ("vulkan", "wgpu")
_LISTED = ("enumerate",)
_NUMBER = ("instance", "enumerate", "create", "allocate", "compile", "submit", "read")

FAULTS: dict[str, Kind] = {
    "nothing": Kind("passes everything on; its lines in GPUFAULT_LOG say that calls come by"),
    # ends of the process
    "segv": Kind("writes to an address that is not there"),
    "bus": Kind("touches a mapped page beyond the end of its file"),
    "ill": Kind("runs an instruction that the processor does not know"),
    "fpe": Kind("divides an integer by zero"),
    "abort": Kind("calls abort()"),
    "stackoverflow": Kind("calls itself until the stack is used up"),
    "exit0": Kind("calls exit(0); any number may follow `exit`"),
    "exit3": Kind("calls exit(3)"),
    "quit0": Kind("calls _exit(0); any number may follow `quit`"),
    # time
    "hang": Kind("sleeps forever; SIGTERM and its like are ignored"),
    "spin": Kind("computes forever"),
    "slow": Kind("sleeps for GPUFAULT_SECONDS (30) and goes on"),
    "leak-lock": Kind("keeps its lock, and GPUFAULT_LOCK where set: its next call waits forever"),
    "leak-loader-lock": Kind("keeps the dynamic linker's lock: no library can be loaded any more"),
    # harm to the process it lives in
    "flood": Kind("writes 32 MiB to each of stdout and stderr"),
    "close-fds": Kind("closes every descriptor above 2"),
    "chdir": Kind("changes the working folder to /"),
    "setenv": Kind("changes PATH, HOME, TMPDIR, LD_PRELOAD and others"),
    "signal-mask": Kind("blocks and ignores every signal"),
    "denormals": Kind("leaves the processor in a mode where denormals are zero"),
    "daemon": Kind("leaves a process in a session of its own, with all descriptors"),
    # what names the driver
    "missing-library": Kind("its manifest names a library that is not there", ("load",)),
    "missing-symbol": Kind("its library lacks the entry point", ("load",)),
    "wrong-format": Kind("its library is no library", ("load",)),
    "bad-manifest": Kind("its manifest is cut off", ("load",)),
    # numbers returned
    "lost": Kind("says that the device is lost", _NUMBER),
    "lost-running": Kind("says that the device is lost while its work still runs", ("read",),
                         ("vulkan",)),
    "oom-host": Kind("says that the host's memory is used up", _NUMBER, when=":1+"),
    "oom-device": Kind("says that the device's memory is used up", _NUMBER, when=":1+"),
    "init-failed": Kind("says that something could not be initialised", _NUMBER),
    "incomplete": Kind("returns VK_INCOMPLETE where that makes no sense", _NUMBER, _V),
    "code17": Kind("returns a number that the specification does not know", _NUMBER, _V),
    "code-999": Kind("returns a negative number that it does not know", _NUMBER, _V),
    "map-failed": Kind("says that memory cannot be mapped", ("allocate",), _V, ":1+"),
    "compile-failed": Kind("refuses a shader", ("compile",)),
    # numbers computed
    "wrong": Kind("subtracts where it should add; at `read` changes every 16th word",
                  ("compile", "read"), when=":1+"),
    "wrong-mul": Kind("adds where it should multiply", ("compile",), _V, ":1+"),
    "untouched-output": Kind("reports success and does nothing", ("compile", "submit"),
                             when=":1+"),
    "zero-output": Kind("gives zeros", ("read",), when=":1+"),
    "torn-output": Kind("gives zeros in the last quarter", ("read",), when=":1+"),
    "nan": Kind("gives NaN", ("read",), when=":1+"),
    "unstable": Kind("gives other low bits each time", ("read",), when=":1+"),
    "unstable-zero": Kind("gives zeros another sign each time", ("read",), when=":1+"),
    "stale": Kind("gives what an earlier run gave", ("read",), when=":2+"),
    # lists and strings
    "devices-none": Kind("lists no device, and calls it success", _LISTED, when=":1+"),
    "devices-many": Kind("lists 100,000 devices", _LISTED, when=":1+"),
    "devices-bad": Kind("lists devices that are not there", _LISTED, when=":1+"),
    "devices-incomplete": Kind("has always one device more than fits", _LISTED, _V, ":1+"),
    "name-no-nul": Kind("has a name without an end", _LISTED, when=":1+"),
    "name-bad-utf8": Kind("has a name that is no UTF-8", _LISTED, when=":1+"),
    "name-escape": Kind("has a name with terminal escapes and line ends", _LISTED, when=":1+"),
    "name-json": Kind("has a name that looks like a probe's result", _LISTED, when=":1+"),
    "name-empty": Kind("has no name", _LISTED, when=":1+"),
    "limits-zero": Kind("has limits of zero", _LISTED, when=":1+"),
    "limits-huge": Kind("has limits of all ones", _LISTED, when=":1+"),
    "queues-huge": Kind("lists 4,294,967,280 queue families", _LISTED, _V, ":1+"),
    "queues-none": Kind("lists no queue family", _LISTED, _V, ":1+"),
    "queues-no-compute": Kind("has no queue that computes", _LISTED, _V, ":1+"),
    "memory-huge": Kind("lists 4,294,967,295 kinds of memory in a table of 32", _LISTED, _V,
                        ":1+"),
    "memory-none": Kind("lists no memory", _LISTED, _V, ":1+"),
    "memory-index": Kind("lists memory in heaps that are not there", _LISTED, _V, ":1+"),
    "extensions-huge": Kind("lists a million extensions", _LISTED, when=":1+"),
    "extensions-incomplete": Kind("never ends the list of extensions", _LISTED, _V, ":1+"),
}  # fmt: skip
"""Every fault by name, but for those that only OpenGL ES has (`kit_gl`)."""


@dataclass(frozen=True)
class Cell:
    """A fault at a point of an API, and what `gpuedge.probe()` says of that driver.

    Attributes
    ----------
    fault : Fault
    api : str
        Device string of the level.
    status : str
        Status of the driver's row.
    codes : tuple of str
        Reason codes that are right; more than one where it depends on the driver underneath.
    also : tuple of (status, code)
        Other verdicts that are as right: where it depends on which thread asks the driver first.
    """

    fault: Fault
    api: str
    status: str
    codes: tuple[str, ...]
    also: tuple[tuple[str, str], ...] = ()

    def accepts(self, status: str, code: str) -> bool:
        """Say whether a verdict is right."""
        return (status, code) in [(self.status, c) for c in self.codes] or (
            (status, code) in self.also
        )

    def __str__(self) -> str:
        return f"{self.fault} {self.api}"


class BuildError(RuntimeError):
    """The kit cannot be built: no compiler, or a source that it refuses."""


@dataclass(frozen=True)
class Kit:
    """The compiled kit: a folder with its libraries and manifests."""

    folder: Path

    def library(self, name: str) -> Path:
        """Return the path of one of its libraries."""
        return self.folder / f"libgpufault_{name}.so"

    def environment(
        self, api: str, fault: Fault | str, base: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """Return the variables that put a fault in the way of a good driver.

        Parameters
        ----------
        api : str
            One of `APIS`.
        fault : Fault or str
        base : mapping, optional
            Variables that name the good driver; by default Mesa's software rasteriser.

        Returns
        -------
        dict of str to str
            To be set over those of the process that is to suffer.

        Raises
        ------
        ValueError
            There is no such API, no such fault, or that API does not have it at that point; or the
            good driver is not there.
        """
        if api not in APIS:
            raise ValueError(f"api must be one of {', '.join(APIS)}, not {api!r}")
        fault = Fault.parse(fault) if isinstance(fault, str) else fault
        check(api, fault)
        if api in ("vulkan", "wgpu"):
            import kit_vulkan

            return kit_vulkan.environment(self, api, fault, base)
        import kit_gl

        return dict(kit_gl.environment(self.folder, api, fault), **(base or {}))


def points(api: str, name: str) -> tuple[str, ...]:
    """Return the points at which an API has a fault of this name; none where it has no such."""
    import kit_gl

    own = kit_gl.points(api, name) if api in kit_gl.LEVELS else ()
    kind = FAULTS.get(_listed_as(name))
    general = kind.points if kind is not None and api in kind.apis else ()
    if api in kit_gl.LEVELS and general != POINTS and name not in kit_gl.UNLOADED:
        general = ()  # what the API has to take part in is in its own table
    return tuple(p for p in POINTS if p in {*own, *general})


def _listed_as(name: str) -> str:
    """Return the name of `FAULTS` that stands for all that differ from it by their number."""
    found = re.fullmatch(r"(exit|quit|code)(-?)\d+", name)
    if found is None or (found[2] and found[1] != "code"):
        return name
    return {"exit": "exit0", "quit": "quit0", "code": "code17"}[found[1]]


def check(api: str, fault: Fault) -> None:
    """Raise ValueError unless an API has this fault at this point."""
    if fault.when.startswith("~") and not 0 <= float(fault.when[1:]) <= 1:
        raise ValueError(f"{fault}: a chance is a number from 0 to 1")
    known = points(api, fault.name)
    if fault.point in known:
        return
    if known:
        raise ValueError(f"{fault}: {api} has {fault.name} at {', '.join(known)} only")
    import kit_gl

    names = [n for n in {**FAULTS, **kit_gl.FAULTS} if points(api, n)]
    raise ValueError(f"{api} has no fault {fault.name!r}; there are {', '.join(names)}")


def _sources() -> list[Path]:
    return sorted([*HERE.glob("*.c"), *HERE.glob("*.h")])


def build(folder: Path | None = None) -> Kit:
    """Compile the kit into a folder, or find it there as it is.

    Parameters
    ----------
    folder : Path, optional
        Where builds are kept, one per content of the sources; by default the user's own among the
        temporary files.

    Raises
    ------
    BuildError
    """
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise BuildError("no C compiler: apt-get install -y gcc libc6-dev")
    folder = folder or Path(tempfile.gettempdir()) / f"gpufault-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    content = hashlib.sha256(repr((compiler, FLAGS, VARIANTS)).encode())
    for source in _sources():
        content.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    made = folder / content.hexdigest()[:16]
    if made.is_dir():
        return Kit(made)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        target = Path(work) / "kit"
        target.mkdir()
        own = {source.stem: (source.name, ()) for source in HERE.glob("*.c")}
        for name, (source, flags) in {**own, **VARIANTS}.items():
            _compile(compiler, HERE / source, Kit(target).library(name), flags)
        try:
            target.rename(made)
        except OSError:  # another process was faster: its build is as good
            if not made.is_dir():
                raise
    return Kit(made)


def _compile(compiler: str, source: Path, library: Path, flags: Iterable[str]) -> None:
    command = [*compiler.split(), str(source), *FLAGS, *flags, "-o", str(library)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    except OSError as error:
        raise BuildError(f"{compiler} cannot be run: {error}") from error
    if done.returncode != 0:
        raise BuildError(f"{source.name} does not compile:\n{done.stderr}")


def cells() -> list[Cell]:
    """Return every fault at every point of every API where it applies, with the right verdict."""
    import kit_gl
    import kit_vulkan

    return [*kit_vulkan.cells(), *kit_gl.cells()]
