"""``gpuedge cache``: what gpuedge keeps on disk, and throwing it away."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuedge.cli.output import Output
from gpuedge.core import config
from gpuedge.core.errors import ConfigError
from gpuedge.core.text import Table, counted
from gpuedge.safety import paths
from gpuedge.safety.blocklist import FATAL, FOLDER, MARK, Blocklist, date, last_block
from gpuedge.safety.store import FILES, FileKind

IN_USE = "capability_db/current.json"
"""What names the installed update of the capability database that is in use."""

LOCKED = ("", "pipelines", "capability_db")
"""Folders that have a lock file; those of updates go with all that is below them."""


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
    folder, is_clearing = paths.cache_dir(), options.action == "clear"
    crashes = _crashes(folder)  # first: it counts the markers of processes that are gone
    files = {
        path: kind
        for path, kind in cache_files(folder).items()
        if (kind.is_crash or not options.crashes)
        # the markers that are left are of processes that run
        and not (is_clearing and path.parent == folder / FOLDER and path.suffix in (MARK, FATAL))
    }
    rows: list[dict[str, Any]] = [
        {
            "name": str(path.relative_to(folder)),
            "nbytes": _size(path),
            "kind": kind.pattern,
            "purpose": kind.purpose,
        }
        for path, kind in files.items()
    ]
    left = _clear(list(files), folder) if is_clearing else []
    body = {
        "schema": "gpuedge.cache/1",
        "action": options.action,
        "path": str(folder),
        "source": config.get("cache_dir").source,
        "files": rows,
        "crashes": crashes,
        "not_removed": [str(p) for p in left],
    }
    if not is_clearing:
        output.show(body, _parts(body, what="crashes" if options.crashes else "files"))
        return 0
    total = sum(row["nbytes"] for row in rows)
    removed = counted(len(files) - len(left), "file")
    output.show(body, [f"removed {removed} ({total} bytes) from {folder}"])
    for path in left:
        output.log(f"cannot remove {path}")
    return 1 if left else 0


def _parts(body: dict[str, Any], *, what: str) -> Iterator[str | Table]:
    """Tell what the files for each purpose take, and of the devices that are left alone."""
    place, files = f"{body['path']} ({body['source']})", body["files"]
    if files:
        sizes: dict[tuple[str, str], list[int]] = {}
        for row in files:
            sizes.setdefault((row["kind"], row["purpose"]), []).append(row["nbytes"])
        cells = [(kind, len(of), sum(of), purpose) for (kind, purpose), of in sizes.items()]
        title = f"{place}, {sum(row['nbytes'] for row in files)} bytes"
        yield Table(title, ("file", "number", "bytes", "what for"), cells)
    elif not body["crashes"]:
        yield f"{place} holds no {what}"
    if body["crashes"]:
        columns = ("device", "times", "last (and at what step)", "state")
        yield Table("unfinished starts", columns, [*map(_crash_cells, body["crashes"])])
        yield "forget them: gpuedge cache clear --crashes"


def _crash_cells(crash: dict[str, Any]) -> tuple[object, ...]:
    until, starts = crash["blocked_until"], crash["starts"]
    state = "may be used" if until is None else f"left alone until {date(until)}"
    last = f"{date(starts[-1]['when'])} ({starts[-1]['step']})"
    return crash["device"], len(starts), last, state


def _crashes(folder: Path) -> list[dict[str, Any]]:
    """Return what is remembered of devices whose use ended processes."""
    rows = []
    for crashes in Blocklist(folder).entries().values():
        block = last_block(crashes)
        until = 0.0 if block is None else block.until
        rows.append(
            {
                "device": crashes[-1].name,
                "starts": [{"step": c.step, "when": c.when} for c in crashes],
                "level": 0 if block is None else block.level,
                "blocked_until": until if time.time() < until else None,
            }
        )
    return rows


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:  # another process removed it
        return 0


def cache_files(folder: Path) -> dict[Path, FileKind]:
    """Return the files of the cache, sorted, each with its row of the table of files.

    Anything else in the folder is not ours to delete. Raises ConfigError for a path that exists but
    is not a folder that can be listed.
    """
    files: dict[Path, FileKind] = {}
    try:
        for kind in FILES:
            files |= dict.fromkeys(_of_kind(folder, kind.pattern) - files.keys(), kind)
        if folder.exists():
            next(folder.iterdir(), None)
    except OSError as error:
        raise ConfigError(
            f"The cache folder {folder} cannot be listed: {error.strerror}.",
            asked_by=config.get("cache_dir").source,
            hint="set GPUEDGE_CACHE_DIR to a folder",
        ) from None
    return dict(sorted(files.items()))


def _of_kind(folder: Path, pattern: str) -> set[Path]:
    """Return the files that a pattern of the table means, with what killed writers of them left."""
    place, _, name = pattern.rpartition("/")
    if name == "**":
        walk = os.walk(folder / place)  # which follows no link
        below = {Path(top, n) for top, inner, names in walk for n in (*inner, *names)}
        return {path for path in below if path.is_symlink() or not path.is_dir()}
    places = [folder / p for p in LOCKED] if place == "**" else [folder / place]
    files = {p for at in places for p in at.glob(name) if p.is_file()}
    return files | {p for at in places for p in at.glob(f".{name}.*")}  # see write_atomic


def _clear(files: list[Path], folder: Path) -> list[Path]:
    """Remove files, and the folders of databases that are empty then; return what is left."""
    left = []
    # First what names the update in use: nobody shall find it there, and its files gone.
    for path in sorted(files, key=lambda p: p != folder / IN_USE):
        try:
            path.unlink(missing_ok=True)
        except OSError:
            left.append(path)
    top = (folder / IN_USE).parent
    above = {parent for p in files for parent in p.parents if top in parent.parents}
    for place in sorted(above, reverse=True):  # the inner ones first
        with suppress(OSError):  # it holds something that is not ours
            place.rmdir()
    return left
