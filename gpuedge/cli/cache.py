"""``gpuedge cache``: what gpuedge keeps on disk, and throwing it away."""

from __future__ import annotations

import argparse
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuedge.cli.output import Output
from gpuedge.core import config
from gpuedge.core.errors import ConfigError
from gpuedge.core.text import counted
from gpuedge.safety import paths
from gpuedge.safety.blocklist import FOLDER, MARK, Blocklist, date, last_block
from gpuedge.safety.store import FILES, FileKind

DATABASE = "capability_db"
"""Folder of what updates of the capability database keep."""

IN_USE = "current.json"
"""What names the update in use."""

REMOVED = "the installed update of the capability database is removed: the packaged one is in use"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument(
        "action", nargs="?", choices=("info", "clear"), default="info", help="what to do (info)"
    )
    parser.add_argument(
        "--crashes", action="store_true", help="only what is remembered of devices that failed"
    )


def run(options: argparse.Namespace, output: Output) -> int:
    """Show or clear the cache; 1 if a file could not be removed."""
    folder = paths.cache_dir()
    source = config.get("cache_dir").source
    crashes = _crashes(folder)  # first: it counts the markers of processes that are gone
    found = cache_files(folder)
    if options.crashes:
        found = {path: kind for path, kind in found.items() if kind.is_crash}
    if options.action == "clear":
        # The markers that are left are of processes that run.
        used = folder / FOLDER
        found = {p: kind for p, kind in found.items() if (p.parent, p.suffix) != (used, MARK)}
    sizes = {path: _size(path) for path in found}
    is_update = any(path == folder / DATABASE / IN_USE for path in found)
    left = _clear(list(found), folder) if options.action == "clear" else []
    rows = [
        {"name": str(p.relative_to(folder)), "nbytes": sizes[p], "purpose": kind.purpose}
        for p, kind in found.items()
    ]
    output.document(
        {
            "schema": "gpuedge.cache/1",
            "action": options.action,
            "path": str(folder),
            "source": source,
            "files": rows,
            "crashes": crashes,
            "not_removed": [str(p) for p in left],
        }
    )
    total = sum(sizes.values())
    if options.action == "clear":
        removed = counted(len(found) - len(left), "file")
        output.text(f"removed {removed} ({total} bytes) from {folder}")
        if is_update:
            output.text(REMOVED)
    elif found:
        columns = ("file", "bytes", "what for")
        output.table(f"{folder} ({source}), {total} bytes", columns, _together(rows))
    else:
        output.text(f"{folder} ({source}) is empty")
    if crashes and options.action == "info":
        _show(crashes, output)
    for path in left:
        output.log(f"cannot remove {path}")
    return 1 if left else 0


def _together(rows: list[dict[str, Any]]) -> list[tuple[str, int, str]]:
    """Return the rows of the table; an installed database, or what a mirror signed, is one row."""
    found: dict[str, tuple[str, int, str]] = {}
    for row in rows:
        parts = Path(row["name"]).parts
        is_deep = parts[0] == DATABASE and len(parts) > 3
        name = str(Path(*parts[:3])) + os.sep if is_deep else row["name"]
        _, size, purpose = found.get(name, (name, 0, row["purpose"]))
        found[name] = (name, size + row["nbytes"], purpose)
    return list(found.values())


def _crashes(folder: Path) -> list[dict[str, Any]]:
    """Return what is remembered of devices whose use ended processes."""
    rows = []
    for crashes in Blocklist(folder).entries().values():
        block = last_block(crashes)
        until = 0.0 if block is None else block.until
        starts = [{"step": c.step, "when": c.when} for c in crashes if not c.is_forgiven]
        if starts or block is not None:
            rows.append(
                {
                    "device": crashes[-1].name,
                    "starts": starts,
                    "level": 0 if block is None else block.level,
                    "blocked_until": until if time.time() < until else None,
                }
            )
    return rows


def _show(crashes: list[dict[str, Any]], output: Output) -> None:
    rows = []
    for crash in crashes:
        until = crash["blocked_until"]
        state = "may be used" if until is None else f"left alone until {date(until)}"
        starts = crash["starts"]
        last = f"{date(starts[-1]['when'])} ({starts[-1]['step']})" if starts else "-"
        rows.append((crash["device"], str(len(starts)), last, state))
    columns = ("device", "times", "last (and at what step)", "state")
    output.table("unfinished starts", columns, rows)
    output.text("forget them: gpuedge cache clear --crashes")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # another process removed it
        return 0


def cache_files(folder: Path) -> dict[Path, FileKind]:
    """Return the files of the cache, sorted, each with its row of the table of files.

    Anything else in the folder is not ours to delete. Raises ConfigError for a path that exists but
    is not a folder that can be listed.
    """
    found: dict[Path, FileKind] = {}
    try:
        for kind in FILES:
            found |= dict.fromkeys(_of_kind(folder, kind.pattern) - found.keys(), kind)
        if folder.exists():
            next(folder.iterdir(), None)
    except OSError as error:
        raise ConfigError(
            f"The cache folder {folder} cannot be listed: {error.strerror}.",
            asked_by=config.get("cache_dir").source,
            hint="set GPUEDGE_CACHE_DIR to a folder",
        ) from None
    return dict(sorted(found.items()))


def _of_kind(folder: Path, pattern: str) -> set[Path]:
    """Return the files that a pattern of the table means, with what killed writers of them left."""
    place, _, name = pattern.rpartition("/")
    if name == "**":
        return _below(folder / place)
    places = [folder / p for p in LOCKED] if place == "**" else [folder / place]
    found = {p for at in places for p in at.glob(name) if p.is_file()}
    found |= {p for at in places for p in at.glob(f".{name}.*")}  # see write_atomic
    return found


LOCKED = ("", "pipelines", DATABASE)
"""Folders that have a lock file; those of updates go with all that is below them."""


def _below(folder: Path) -> set[Path]:
    found: set[Path] = set()
    for top, inner, names in os.walk(folder):  # which follows no link
        found |= {Path(top, name) for name in names}
        found |= {path for name in inner if (path := Path(top, name)).is_symlink()}
    return found


def _clear(files: list[Path], folder: Path) -> list[Path]:
    """Remove files, and the folders of databases that are empty then; return what is left."""
    left = []
    # First what names the update in use: nobody shall find it there, and its files gone.
    for path in sorted(files, key=lambda p: p.name != IN_USE):
        try:
            path.unlink(missing_ok=True)
        except OSError:
            left.append(path)
    above = {parent for p in files for parent in p.parents if folder / DATABASE in parent.parents}
    for place in sorted(above, reverse=True):  # the inner ones first
        with suppress(OSError):  # it holds something that is not ours
            place.rmdir()
    return left
