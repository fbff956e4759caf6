"""Folders for temporary files, or an error that says that there is no place for one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

from gpuedge.core.errors import ConfigError
from gpuedge.safety.paths import temporary_folder


def make_folder(prefix: str) -> Path:
    """Make a private folder, to be removed by the caller. Raises ConfigError (GE-101)."""
    try:
        return Path(mkdtemp(prefix=prefix, dir=temporary_folder()))
    except OSError as error:
        raise ConfigError(
            "No folder for temporary files can be made.",
            known=str(error),
            hint="set TMPDIR to a folder that can be written and has space, such as /dev/shm",
        ) from None


@contextmanager
def folder(prefix: str) -> Iterator[Path]:
    """Make a private folder that goes after the block, with all in it. Raises ConfigError."""
    made = make_folder(prefix)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
