"""Where gpuedge's data lies, and writing files so that nobody ever sees half of one."""

from __future__ import annotations

import errno
import os
import stat
import sys

from gpuedge.core import config
from gpuedge.core.errors import ConfigError, GpuEdgeError, InputError
from gpuedge.core.system import is_android, is_linux, userland

TYPE_CHECKING = False  # pathlib costs 5 ms to import, a quarter of what a cached probe may take
if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

_READ_ONLY = os.O_RDONLY
for _flag in ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY"):
    _READ_ONLY |= getattr(os, _flag, 0)

_PACKAGE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))


def data_folder(name: str) -> str:
    """Return the folder of packaged data called `name` (``shaders`` or ``capability_db``).

    An installed wheel keeps it in ``gpuedge/_data``; a checkout keeps it beside ``gpuedge/``.
    """
    places = (
        os.path.join(_PACKAGE, "_data", name),
        os.path.join(os.path.dirname(_PACKAGE), name),
    )
    for place in places:
        if os.path.isdir(place):
            return place
    raise ConfigError(
        f"The data folder '{name}' of gpuedge is missing.",
        known=f"looked in {places[0]} and {places[1]}",
        hint="reinstall gpuedge: pip install --force-reinstall gpuedge",
    )


def data_dir(name: str) -> Path:
    """Return `data_folder` as a Path."""
    from pathlib import Path

    return Path(data_folder(name))


def cache_folder() -> str:
    """Return the cache folder (`GPUEDGE_CACHE_DIR`, else the platform's); it may not exist."""
    named: str = config.get("cache_dir").value
    if named:
        return _with_home(named)
    if is_linux():  # what platformdirs answers, without the 7 ms of importing it
        base = os.environ.get("XDG_CACHE_HOME", "").strip() or _app_cache() or "~/.cache"
        return os.path.join(_with_home(base), "gpuedge")
    from platformdirs import user_cache_dir

    return user_cache_dir("gpuedge")


def _app_cache() -> str:
    """Return the cache folder of the Android app that this runs in; empty where that is none.

    An app need not be told a home folder. Its files tell where it lives; Java is not asked.
    """
    if not is_android() or userland(os.environ):
        return ""
    import re

    place = re.compile(r"(/mnt/expand/[^/]+|/data)/(data|user/\d+)/[^/]+(?=/files(/|$))")
    found = (place.match(str(entry)) for entry in sys.path)
    return next((f"{match[0]}/cache" for match in found if match), "")


def temporary_folder() -> str:
    """Return a folder for files that nobody keeps: Android gives none to every app.

    Raises OSError where there is no folder that can be written, not even the cache folder.
    """
    import tempfile

    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        folder = os.path.join(cache_folder(), "temporary")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        return folder


def _with_home(path: str) -> str:
    """Return a path with the user's home folder in it, one that cannot be where there is none."""
    full = os.path.expanduser(path)
    # A user without a home would get a folder called ~ wherever the application runs.
    return os.path.join(os.devnull, "no-home", full[2:]) if full[:2] in ("~", "~/") else full


def cache_dir() -> Path:
    """Return `cache_folder` as a Path."""
    from pathlib import Path

    return Path(cache_folder())


def pass_on(error: Exception) -> None:
    """Raise what a handler of the application's raised out of work on a file; else do nothing.

    To be called where an error is taken for the file's: a time limit set by SIGALRM ends in an
    OSError, too, and may come at any moment.
    """
    if "signal" not in sys.modules:  # nobody has set a handler; a cached probe need not load it
        return
    from gpuedge.safety.interrupts import is_of_handler

    if is_of_handler(error):
        raise error


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading, without ever waiting for one to arrive.

    Raises OSError where nothing readable is there, or what is there is not a file: a pipe would be
    waited for, a device may act on being opened. Raises ValueError where no file can have that name
    (it holds a NUL or half of a surrogate pair).
    """
    _require_regular(os.stat(path))
    file = os.fdopen(os.open(path, _READ_ONLY), "rb")
    try:  # again, on what was opened: the name may have been given to a pipe in between
        _require_regular(os.fstat(file.fileno()))
    except OSError:
        file.close()
        raise
    return file


def _require_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a file")


def check_readable(
    path: str | os.PathLike[str],
    what: str,
    asked_by: str | None = None,
    hint: str | None = None,
    kind: type[GpuEdgeError] = InputError,
) -> None:
    """Raise an error of a kind where no file is, as `what`, that the user named and can be read.

    To be called before a file's contents are judged: one that is missing is not damaged.
    """
    try:
        open_regular(path).close()
    except FileNotFoundError:
        raise kind(
            f"There is no {what} at {path}.",
            asked_by=asked_by,
            known=f"current folder: {os.getcwd()}",
            hint=hint,
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        why = getattr(error, "strerror", None) or error
        shown = repr(path) if "\0" in str(path) else path
        raise kind(f"The {what} {shown} cannot be read: {why}.", asked_by=asked_by) from None


def read_start(path: str | os.PathLike[str], limit: int) -> bytes:
    """Return the first `limit` bytes of a regular file. Raises what `open_regular` does."""
    with open_regular(path) as file:
        # No buffer of the whole limit: it may be far more than the file has, or the device.
        most = max(os.fstat(file.fileno()).st_size + 1, 1 << 16)
        parts: list[bytes] = []
        while part := file.read(min(limit, most)):
            parts.append(part)
            limit -= len(part)
        return b"".join(parts)


def read_regular(path: str | os.PathLike[str], limit: int) -> bytes | None:
    """Return a cache file's bytes, or None if it is not a regular file of at most `limit` bytes.

    For everything read back from the cache folder: whatever lies there in place of our file is as
    good as no file. Never waits, and raises nothing of its own (`pass_on`).
    """
    try:
        if os.stat(path).st_size > limit:
            return None
        data = read_start(path, limit + 1)
    except (OSError, ValueError) as error:
        pass_on(error)
        return None
    return data if len(data) <= limit else None


def stamp(path: str | os.PathLike[str]) -> tuple[int, int, int] | None:
    """Return what changes whenever a file is replaced; None where there is none."""
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        pass_on(error)
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def write_atomic(path: Path, data: bytes) -> bool:
    """Replace `path` by `data` in one step; readers see the old file or the new one.

    Returns False where the folder is read-only or full: a cache that cannot be written is not an
    error, the work is merely done again next time. So it does where something lies there that is
    neither a file nor a link: a pipe, a device or a socket is never replaced. No temporary file is
    left behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        if os.path.lexists(path) and not (path.is_file() or path.is_symlink()):
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:  # Ctrl-C as well: a large file takes seconds
            temporary.unlink(missing_ok=True)
            raise
    except (OSError, ValueError) as error:  # ValueError: no folder can have that name
        pass_on(error)
        return False
    return True


STALE_S = 60.0
"""A temporary file this old was left by a writer that was killed: one is renamed in milliseconds.
Should it live after all, its rename fails, and a cache file was not written: no harm."""


def sweep(path: str | os.PathLike[str]) -> None:
    """Remove the temporary files that killed writers of `path` left behind. Never raises."""
    folder, name = os.path.split(os.fspath(path))
    try:
        now = os.stat(path).st_mtime  # the file system's own clock, not ours
        for other in os.listdir(folder or "."):
            place = os.path.join(folder, other)
            process, _, rest = other.removeprefix(f".{name}.").partition(".")
            is_ours = other.startswith(f".{name}.") and process.isdigit() and len(rest) == 8
            if is_ours and abs(now - os.lstat(place).st_mtime) > STALE_S:
                os.unlink(place)
    except (OSError, ValueError):
        return


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Return whether `write_named` writes into what is there: a pipe, a device, our own output."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)) or bool(
        _output(status)
    )


def _output(status: os.stat_result) -> int:
    """Return the descriptor of our standard output or error, if that is what was found, else 0."""
    for fd in (1, 2):
        try:
            if os.path.samestat(status, os.fstat(fd)):
                return fd
        except OSError:  # closed
            continue
    return 0


def write_named(path: Path, data: bytes) -> str | None:
    """Write a file that the user named; return why that failed, or None.

    A file is replaced in one step, also at the end of a link; what killed writers of it left behind
    goes. Into what only takes a stream
    (``/dev/null``, ``/dev/stdout``, a named pipe) the data are written; that waits for no reader
    to come, but for one that is slow.
    """
    try:
        if is_stream(path):
            _write_into(path, data)
            return None
        target = path.resolve()
        if target.exists() and not target.is_file():
            return "it is not a file"
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: links in a circle
        is_unread = isinstance(error, OSError) and error.errno == errno.ENXIO
        return "nobody reads from it" if is_unread else str(error)
    if not write_atomic(target, data):
        return "the folder is read-only or full"
    sweep(target)
    return None


def save_named(path: Path, data: bytes, option: str) -> None:
    """Write a file that the user named with `option`, as `write_named` does.

    Raises
    ------
    InputError (GE-203)
        It cannot be written.
    """
    why = write_named(path, data)
    if why is not None:
        raise InputError(
            f"{path} cannot be written.",
            asked_by=option,
            known=why,
            hint="choose a folder that can be written and has space",
        )


def _write_into(path: Path, data: bytes) -> None:
    fd = _output(os.stat(path))
    for stream in (sys.stdout, sys.stderr):
        if fd and stream is not None:
            stream.flush()  # what was printed before comes before
    fd = os.dup(fd) if fd else os.open(path, os.O_WRONLY | _READ_ONLY)
    with open(fd, "wb") as file:
        os.set_blocking(fd, True)
        file.write(data)
