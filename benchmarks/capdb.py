"""What the capability database costs: loading it, and looking a device up in it.

    python benchmarks/capdb.py [--entries 5000] [--rounds 20]

Makes a database of that many entries from the packaged ones (each copy about another model), and
reports processor time, the least and the median over rounds: loading from the files, loading the
compiled file, a first lookup (which reads the entries that may match), and a repeated one.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuedge.capdb import database, lookup
from gpuedge.capdb.identity.subject import subject
from gpuedge.capdb.seal import seal
from gpuedge.safety import paths

TABLES = ("classes.json", "names.json", "families.json")


def copied(entry: dict[str, Any], number: int, turn: int) -> dict[str, Any]:
    """Return a copy of an entry under a new id, about models `turn` further on."""
    made = copy.deepcopy(entry)
    made["id"] = f"{entry['id'].rpartition('-')[0]}-{number:04d}"
    for match in made["match"]:
        if "model" in match:
            match["model"] = {side: value + turn for side, value in match["model"].items()}
    return made


def enlarge(source: Path, target: Path, wanted: int) -> None:
    """Write a database of `wanted` entries, made from those of another."""
    for name in TABLES:
        (target / name).write_bytes((source / name).read_bytes())
    files = {p: json.loads(p.read_bytes()) for p in sorted(source.glob("entries/*/*.json"))}
    made: dict[Path, list[Any]] = {path: [] for path in files}
    numbers: dict[str, int] = {}
    turn = 0
    while sum(map(len, made.values())) < wanted:
        for path, document in files.items():
            left = wanted - sum(map(len, made.values()))
            for entry in document["entries"][:left]:
                word = entry["id"].rpartition("-")[0]
                numbers[word] = numbers.get(word, 0) + 1
                made[path].append(copied(entry, numbers[word], turn))
        turn += 1
    for path, entries in made.items():
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps({**files[path], "entries": entries}), encoding="utf-8")
    seal(target)


def timed(work: Callable[[], object], rounds: int) -> list[float]:
    """Return milliseconds of processor time, one per round."""
    found = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        found.append((time.process_time() - start) * 1e3)
    return found


def show(name: str, times: list[float]) -> None:
    """Print one line of figures."""
    print(f"{name:<44}{min(times):>9.3f}{statistics.median(times):>9.3f}{max(times):>9.3f}")


def measure(folder: Path, devices: list[dict[str, Any]], rounds: int) -> None:
    """Print the figures of one database over saved devices."""

    def fresh() -> database.Database:
        database.forget()
        return database.load(folder)

    print(f"{'milliseconds of processor time':<44}{'least':>9}{'median':>9}{'most':>9}")
    show("load from the files", timed(lambda: database.check_folder(folder), 1))
    fresh()
    show("load the compiled file", timed(fresh, rounds))
    base = database.load(folder)
    subjects = [subject(device) for device in devices]
    show("who a device is", [min(timed(lambda d=d: subject(d), rounds)) for d in devices])  # type: ignore[misc]
    first = [timed(lambda s=s: lookup(s, database=base), 1)[0] for s in subjects]  # type: ignore[misc]
    show("first lookup", first)
    again = [min(timed(lambda s=s: lookup(s, database=base), rounds)) for s in subjects]  # type: ignore[misc]
    show("repeated lookup", again)
    share = sum(t < 1.0 for t in again) / len(again)
    print(f"{len(base)} entries, {len(devices)} devices; below 1 ms: {share:.1%}")
    most = max(range(len(again)), key=again.__getitem__)
    found = lookup(subjects[most], database=base)
    print(f"dearest: {devices[most]['id']}, about which {len(found.relevant)} entries may be")


def main() -> None:
    """Parse the command line, make the database and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    source = Path(paths.data_folder("capability_db"))
    devices = json.loads((source / "fixtures" / "identities.json").read_bytes())
    with tempfile.TemporaryDirectory() as place:
        os.environ["GPUEDGE_CACHE_DIR"] = str(Path(place, "cache"))
        folder = Path(place) / "db"
        folder.mkdir()
        enlarge(source, folder, options.entries)
        measure(folder, devices, options.rounds)


if __name__ == "__main__":
    main()
