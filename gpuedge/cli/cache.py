"""``gpuedge cache``: what gpuedge keeps on disk, and throwing it away."""

from __future__ import annotations

import argparse
import time
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

CRASHES = ("crashes.json", "crashes")
"""What of them is crash memory."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("action", nargs="?", choices=("info", "clear"), default="info")
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
    left = _clear(found) if options.action == "clear" else []
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
    elif files:
        table = [(row["name"], row["nbytes"]) for row in rows]
        output.table(f"{folder} ({source}), {total} bytes", ("file", "bytes"), table)
    else:
        output.text(f"{folder} ({source}) is empty")
    if crashes and options.action == "info":
        _show(crashes, output)
    for path in left:
        output.say(f"cannot remove {path}")
    return 1 if left else 0


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
        if folder.exists():
            next(folder.iterdir(), None)
    except OSError as error:
        raise ConfigError(
            f"The cache folder {folder} cannot be listed: {error.strerror}.",
            asked_by=config.get("cache_dir").source,
            hint="set GPUEDGE_CACHE_DIR to a folder",
        ) from None
    return sorted(found)


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


def _clear(files: list[Path]) -> list[Path]:
    left = []
    for path in files:
        try:
            path.unlink(missing_ok=True)
        except OSError:
            left.append(path)
    return left
