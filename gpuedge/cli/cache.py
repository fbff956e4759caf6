"""``gpuedge cache``: what gpuedge keeps on disk, and throwing it away."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpuedge.cli.output import Output
from gpuedge.core import config, paths
from gpuedge.core.errors import ConfigError

OURS = ("verdicts.json", "calibration.json", "kernels.bin", "pipelines/*.bin")
"""Files the cache may hold. Anything else in the folder is not ours to delete."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("action", nargs="?", choices=("info", "clear"), default="info")


def run(options: argparse.Namespace, output: Output) -> int:
    """Show or clear the cache; 1 if a file could not be removed."""
    folder = paths.cache_dir()
    source = config.get("cache_dir").source
    files = [(p, p.stat().st_size) for p in cache_files(folder)]
    left = _clear([p for p, _ in files]) if options.action == "clear" else []
    rows = [{"name": str(p.relative_to(folder)), "nbytes": size} for p, size in files]
    output.document(
        {
            "schema": "gpuedge.cache/1",
            "action": options.action,
            "path": str(folder),
            "source": source,
            "files": rows,
            "not_removed": [str(p) for p in left],
        }
    )
    total = sum(size for _, size in files)
    if options.action == "clear":
        output.text(f"removed {len(files) - len(left)} files ({total} bytes) from {folder}")
    elif files:
        table = [(row["name"], row["nbytes"]) for row in rows]
        output.table(f"{folder} ({source}), {total} bytes", ("file", "bytes"), table)
    else:
        output.text(f"{folder} ({source}) is empty")
    for path in left:
        output.say(f"cannot remove {path}")
    return 1 if left else 0


def cache_files(folder: Path) -> list[Path]:
    """Return the files of the cache, sorted; none where the folder does not exist.

    Raises
    ------
    ConfigError (GE-101)
        The path exists but is not a folder that can be listed.
    """
    try:
        found = {p for pattern in OURS for p in folder.glob(pattern) if p.is_file()}
        for pattern in OURS:  # what a writer that was killed left behind (see write_atomic)
            place, _, name = pattern.rpartition("/")
            found |= set((folder / place).glob(f".{name}.*"))
        if folder.exists():
            next(folder.iterdir(), None)
    except OSError as error:
        raise ConfigError(
            f"The cache folder {folder} cannot be listed: {error.strerror}.",
            asked_by=config.get("cache_dir").source,
            hint="set GPUEDGE_CACHE_DIR to a folder",
        ) from None
    return sorted(found)


def _clear(files: list[Path]) -> list[Path]:
    left = []
    for path in files:
        try:
            path.unlink(missing_ok=True)
        except OSError:
            left.append(path)
    return left
