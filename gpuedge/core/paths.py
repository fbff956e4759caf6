"""Where gpuedge's data lies, and writing files so that nobody ever sees half of one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gpuedge.core import config
from gpuedge.core.errors import ConfigError

_PACKAGE = Path(__file__).resolve().parent.parent


def data_dir(name: str) -> Path:
    """Return the folder of packaged data called `name` (``shaders`` or ``capability_db``).

    An installed wheel keeps it in ``gpuedge/_data``; a checkout keeps it beside ``gpuedge/``.
    """
    places = (_PACKAGE / "_data" / name, _PACKAGE.parent / name)
    for place in places:
        if place.is_dir():
            return place
    raise ConfigError(
        f"The data folder '{name}' of gpuedge is missing.",
        known=f"looked in {places[0]} and {places[1]}",
        hint="reinstall gpuedge: pip install --force-reinstall gpuedge",
    )


def cache_dir() -> Path:
    """Return the cache folder (`GPUEDGE_CACHE_DIR`, else the platform's); it may not exist."""
    named = config.get("cache_dir").value
    if named:
        return Path(named).expanduser()
    if sys.platform == "linux":  # what platformdirs answers, without the 7 ms of importing it
        base = os.environ.get("XDG_CACHE_HOME", "").strip()
        return Path(base or "~/.cache").expanduser() / "gpuedge"
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("gpuedge"))


def write_atomic(path: Path, data: bytes) -> bool:
    """Replace `path` by `data` in one step; readers see the old file or the new one.

    Returns False where the folder is read-only or full: a cache that cannot be written is not an
    error, the work is merely done again next time. No temporary file is left behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
    except OSError:
        return False
    return True
