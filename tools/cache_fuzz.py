"""Damages cache files in every way that is known, and sees what the library still believes.

Usage: python tools/cache_fuzz.py [--n N] [--seed S] [--out FILE]

N blobs in all (default 1,000,000), shared among the formats of tools/cache_formats.py. A damaged
blob may be believed only if what is read of it is what a good file says (damage that changes
nothing, such as a space in JSON). One in `RESEALED` has damaged content under a right hash: it may
be believed, and must do no harm. One in `USED` also goes through the file and the code behind it.
The exit status is 1 if a blob was believed wrongly, if anything raised, or if memory grew.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cache_formats import Format, formats

RESEALED = 8
USED = 256
MAX_GROWTH = 64 << 20
"""Bytes by which the process may grow over a run."""

Damage = Callable[[random.Random, bytes, bytes], bytes]


def flip(dice: random.Random, blob: bytes, _: bytes) -> bytes:
    """Flip one to eight bits."""
    data = bytearray(blob)
    for _i in range(dice.choice((1, 1, 2, 8))):
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    return bytes(data)


def cut(dice: random.Random, blob: bytes, _: bytes) -> bytes:
    """Keep only the beginning."""
    return blob[: dice.randrange(len(blob))]


def empty(_: random.Random, _blob: bytes, _other: bytes) -> bytes:
    """Keep nothing."""
    return b""


def extend(dice: random.Random, blob: bytes, _: bytes) -> bytes:
    """Add bytes at the end."""
    return blob + dice.choice((b"\0", b"{}", bytes(dice.randrange(1, 4096)), dice.randbytes(40)))


def splice(dice: random.Random, blob: bytes, other: bytes) -> bytes:
    """Put the end of another good file behind the beginning of this one."""
    at = dice.randrange(1, min(len(blob), len(other)))
    return blob[:at] + other[at:]


def swap_header(dice: random.Random, blob: bytes, other: bytes) -> bytes:
    """Put another good file's first bytes in place of these."""
    return other[: (n := dice.randrange(1, 96))] + blob[n:]


def drop(dice: random.Random, blob: bytes, _: bytes) -> bytes:
    """Leave out a piece."""
    at = dice.randrange(len(blob))
    return blob[:at] + blob[at + dice.randrange(1, 64) :]


def repeat(dice: random.Random, blob: bytes, _: bytes) -> bytes:
    """Have a piece twice."""
    at = dice.randrange(len(blob))
    return blob[:at] + blob[max(0, at - dice.randrange(1, 64)) :]


def number(dice: random.Random, blob: bytes, _: bytes) -> bytes:
    """Write an extreme number somewhere, as a length that is a lie."""
    size, value = dice.choice((("<I", 2**32 - 1), ("<Q", 2**64 - 1), ("<I", 0), ("<Q", 1 << 40)))
    at = dice.randrange(max(1, min(len(blob), 128) - 8))
    word = struct.pack(size, value)
    return blob[:at] + word + blob[at + len(word) :]


def version(dice: random.Random, blob: bytes, _: bytes) -> bytes:
    """Be of another version: a small number near the beginning, or a digit, is one more."""
    places = [i for i in range(min(len(blob), 4096)) if blob[i] in b"123456789" or 0 < blob[i] < 9]
    at = dice.choice(places)
    return blob[:at] + bytes((blob[at] + 1,)) + blob[at + 1 :]


def replace(dice: random.Random, blob: bytes, _: bytes) -> bytes:
    """Write other bytes over a piece, or over everything."""
    if dice.random() < 0.2:
        return dice.randbytes(len(blob))
    at = dice.randrange(len(blob))
    piece = dice.choice((bytes(16), b"\xff" * 16, dice.randbytes(16), b'"' * 5, b"[" * 5000))
    return blob[:at] + piece + blob[at + 16 :]


DAMAGES: tuple[Damage, ...] = (
    flip, flip, flip, cut, extend, splice, swap_header, drop, repeat, number, version, replace,
    empty,
)  # fmt: skip


class Count:
    """What became of the blobs of one format."""

    def __init__(self, kind: Format) -> None:
        self.kind = kind
        self.known = [kind.read(good) for good in kind.good]
        assert all(k is not None for k in self.known), kind.name
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []

    def judge(self, blob: bytes, how: str, *, is_resealed: bool) -> None:
        """Read one blob and count what happened."""
        self.counts[how] += 1
        try:
            found = self.kind.read(blob)
        except Exception as error:
            self.faults.append(f"{how}: {type(error).__name__}: {error}")
            return
        if found is None:
            self.counts["refused"] += 1
        elif found in self.known:
            self.counts["unchanged"] += 1
        elif is_resealed:
            self.counts["right hash"] += 1
        else:
            self.counts["wrongly believed"] += 1
            self.faults.append(f"{how}: believed {blob[:80]!r}")

    def use(self, blob: bytes) -> None:
        """Let the library find the blob where its file should be."""
        self.counts["used"] += 1
        with tempfile.TemporaryDirectory(dir=_memory()) as folder:
            try:
                self.kind.use(blob, Path(folder))
            except Exception as error:
                self.faults.append(f"used: {type(error).__name__}: {error}")


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def fuzz(n: int, seed: int, progress: Callable[[str], object] = lambda _: None) -> dict[str, Any]:
    """Damage `n` blobs and return the summary."""
    kinds = formats()
    counts = [Count(kind) for kind in kinds]
    before, begin = _peak(), time.perf_counter()
    share = -(-n // len(kinds))
    for c in counts:
        dice = random.Random(f"{seed} {c.kind.name}")
        for i in range(share):
            blob, other = dice.sample(c.kind.good, 2)
            damage = dice.choice(DAMAGES)
            blob = damage(dice, blob, other)
            is_resealed = i % RESEALED == 0
            if is_resealed:
                blob = c.kind.reseal(blob)
            c.judge(blob, damage.__name__, is_resealed=is_resealed)
            if i % USED in (0, 3):
                c.use(blob)
            if i % 10_000 == 0:
                progress(f"{c.kind.name} {i} of {share}, {len(c.faults)} faults")
    growth = _peak() - before
    return {
        "schema": "gpuedge.cache-fuzz/1",
        "blobs": share * len(kinds),
        "seed": seed,
        "seconds": round(time.perf_counter() - begin, 1),
        "memory_growth": growth,
        "formats": {c.kind.name: dict(sorted(c.counts.items())) for c in counts},
        "faults": {c.kind.name: c.faults[:20] for c in counts if c.faults},
        "is_good": growth < MAX_GROWTH and not any(c.faults for c in counts),
    }


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> int:
    """Run, print and write the summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    summary = fuzz(options.n, options.seed, lambda text: print(text, file=sys.stderr, flush=True))
    text = json.dumps(summary, indent=2)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")
    return 0 if summary["is_good"] else 1


if __name__ == "__main__":
    sys.exit(main())
