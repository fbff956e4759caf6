"""``gpuedge cache``: what gpuedge keeps on disk, and throwing it away."""

from __future__ import annotations

import argparse
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuedge.cli.output import Output
from gpuedge.core import config, paths
from gpuedge.core.errors import ConfigError
from gpuedge.core.text import counted
from gpuedge.probing.crashes import CrashMemory, blocked, date

OURS = (
    "verdicts.json", "calibration.json", "kernels.bin", "crashes.json", "lock", "crashes/*.mark",
    "pipelines/*.bin", "pipelines/*.ok", "pipelines/*.bad", "pipelines/lock",
    "pipelines/trials/*.mark",
)  # fmt: skip
"""Files the cache may hold. Anything else in the folder is not ours to delete."""

DATABASE = "capability_db"
"""Folder of what updates of the capability database keep, and of compiled databases."""

DATABASE_FILES = ("current.json", "updates.json", "refused.json", "lock", "compiled/*.bin")
TREES = ("versions", "tuf")
"""What it holds: these files, and everything in these folders."""

CRASHES = ("crashes.json", "crashes")
"""What of them is crash memory."""


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
        found = [p for p in found if p.relative_to(folder).parts[0] in CRASHES]
    if options.action == "clear":
        found = _unused(found)
    files = [(p, _size(p)) for p in found]
    is_update = any(p == folder / DATABASE / "current.json" for p in found)
    left = _clear(found, folder) if options.action == "clear" else []
    rows = [{"name": str(p.relative_to(folder)), "nbytes": size} for p, size in files]
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
    total = sum(size for _, size in files)
    if options.action == "clear":
        removed = counted(len(files) - len(left), "file")
        output.text(f"removed {removed} ({total} bytes) from {folder}")
        if is_update:
            output.text(REMOVED)
    elif files:
        table = list(_together(rows).items())
        output.table(f"{folder} ({source}), {total} bytes", ("file", "bytes"), table)
    else:
        output.text(f"{folder} ({source}) is empty")
    if crashes and options.action == "info":
        _show(crashes, output)
    for path in left:
        output.log(f"cannot remove {path}")
    return 1 if left else 0


REMOVED = "the installed update of the capability database is removed: the packaged one is in use"


def _together(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Return sizes by name; an installed database, or what is known of a mirror, is one row."""
    found: dict[str, int] = {}
    for row in rows:
        parts = Path(row["name"]).parts
        is_deep = parts[0] == DATABASE and parts[1] in TREES and len(parts) > 3
        name = str(Path(*parts[:3])) + os.sep if is_deep else row["name"]
        found[name] = found.get(name, 0) + row["nbytes"]
    return found


def _crashes(folder: Path) -> list[dict[str, Any]]:
    """Return what is remembered of devices whose use ended processes."""
    rows = []
    for entry in CrashMemory(folder).entries().values():
        block = blocked(entry, time.time())
        rows.append(
            {
                "device": entry["name"],
                "strikes": [{"step": s["step"], "when": s["when"]} for s in entry["strikes"]],
                "level": entry["level"],
                "blocked_until": None if block is None else block.until,
            }
        )
    return rows


def _show(crashes: list[dict[str, Any]], output: Output) -> None:
    rows = []
    for crash in crashes:
        until = crash["blocked_until"]
        state = "may be used" if until is None else f"left alone until {date(until)}"
        strikes = crash["strikes"]
        last = f"{date(strikes[-1]['when'])} ({strikes[-1]['step']})" if strikes else "-"
        rows.append((crash["device"], str(len(strikes)), last, state))
    columns = ("device", "times", "last (and at what step)", "state")
    output.table("unfinished starts", columns, rows)
    output.text("forget them: gpuedge cache clear --crashes")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # another process removed it
        return 0


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
            found |= set((folder / place).glob(".new-*")) if name == "*.mark" else set()
        found |= _database_files(folder / DATABASE)
        if folder.exists():
            next(folder.iterdir(), None)
    except OSError as error:
        raise ConfigError(
            f"The cache folder {folder} cannot be listed: {error.strerror}.",
            asked_by=config.get("cache_dir").source,
            hint="set GPUEDGE_CACHE_DIR to a folder",
        ) from None
    return sorted(found)


def _database_files(folder: Path) -> set[Path]:
    """Return the files of updates of the database, those left by killed writers with them."""
    found = {p for pattern in DATABASE_FILES for p in folder.glob(pattern) if p.is_file()}
    for pattern in DATABASE_FILES:
        place, _, name = pattern.rpartition("/")
        found |= set((folder / place).glob(f".{name}.*"))
    for tree in TREES:
        for top, inner, names in os.walk(folder / tree):  # which follows no link
            found |= {Path(top, name) for name in names}
            found |= {path for name in inner if (path := Path(top, name)).is_symlink()}
    return found


def _unused(files: list[Path]) -> list[Path]:
    """Return the files without the markers of processes that run: those are in use."""
    from gpuedge.core import unfinished

    used = set()
    for place in {p.parent for p in files if p.suffix == ".mark"}:
        gone = unfinished.dead(str(place))
        used |= {place / n for n in unfinished.listed(str(place))} - {Path(d.path) for d in gone}
        for one in gone:
            one.close(remove=False)
    return [p for p in files if p not in used]


def _clear(files: list[Path], folder: Path) -> list[Path]:
    """Remove files, and the folders of databases that are empty then; return what is left."""
    left = []
    # First what names the update in use: nobody shall find it there, and its files gone.
    for path in sorted(files, key=lambda p: p.name != "current.json"):
        try:
            path.unlink(missing_ok=True)
        except OSError:
            left.append(path)
    above = {parent for p in files for parent in p.parents if folder / DATABASE in parent.parents}
    for place in sorted(above, reverse=True):  # the inner ones first
        with suppress(OSError):  # it holds something that is not ours
            place.rmdir()
    return left
