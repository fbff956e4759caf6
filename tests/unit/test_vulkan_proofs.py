"""Proofs of pipeline caches on disk: what is proven, refused, quarantined, and how much is kept."""

from __future__ import annotations

import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

import pytest

from gpuedge.backends.vulkan import proofs
from gpuedge.backends.vulkan.proofs import Proofs

HEADER = 4


def digest(data: bytes) -> str:
    return sha256(data).hexdigest()


def lay(folder: Path, data: bytes, name: str = "a") -> Proofs:
    """Put a blob in place and return its proofs."""
    folder.mkdir(exist_ok=True)
    file = folder / f"{name}.bin"
    file.write_bytes(bytes(HEADER) + data)
    return Proofs(file, HEADER, 1000)


def die(folder: Path, data: bytes, *, at: str = "open", name: str = "a") -> None:
    """End a process in its trial of a blob."""
    program = f"""
import os
from pathlib import Path
from gpuedge.backends.vulkan.proofs import Proofs
trial = Proofs(Path({str(folder / (name + ".bin"))!r}), {HEADER}, 1000).begin({digest(data)!r})
trial.step("open")
if {at!r} != "open":
    trial.quiet()
if {at!r} == "close":
    trial.step("close")
os.abort()
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True)
    assert done.returncode < 0


def test_proof_is_of_one_blob(tmp_path: Path) -> None:
    known = lay(tmp_path, b"one")
    assert not known.is_proven(digest(b"one"))
    assert known.prove(digest(b"one"))
    again = Proofs(tmp_path / "a.bin", HEADER, 1000)
    assert again.is_proven(digest(b"one"))
    assert not again.is_proven(digest(b"two"))
    assert not Proofs(tmp_path / "b.bin", HEADER, 1000).is_proven(digest(b"one"))
    assert again.prove(digest(b"two"))
    assert not again.is_proven(digest(b"one"))


@pytest.mark.parametrize(("at", "is_bad"), [("open", True), ("close", True), ("quiet", False)])
def test_death_in_a_trial_quarantines_the_blob(tmp_path: Path, at: str, is_bad: bool) -> None:
    known = lay(tmp_path, b"one")
    known.prove(digest(b"one"))
    die(tmp_path, b"one", at=at)
    known.collect()
    assert known.is_bad(digest(b"one")) is is_bad
    assert known.is_proven(digest(b"one")) is not is_bad
    assert (tmp_path / "a.bin").exists() is not is_bad
    assert len(list(tmp_path.glob("*.bad"))) == is_bad
    assert list((tmp_path / "trials").glob("*.mark")) == []


def test_blob_that_took_its_place_is_spared(tmp_path: Path) -> None:
    known = lay(tmp_path, b"two")
    die(tmp_path, b"one")
    known.collect()
    assert known.is_bad(digest(b"one"))
    assert not known.is_bad(digest(b"two"))
    assert (tmp_path / "a.bin").exists()


def test_trials_of_other_devices_are_left_to_them(tmp_path: Path) -> None:
    known, other = lay(tmp_path, b"one"), lay(tmp_path, b"one", "b")
    die(tmp_path, b"one", name="b")
    known.collect()
    assert not known.is_bad(digest(b"one"))
    assert (tmp_path / "a.bin").exists()
    other.collect()
    assert other.is_bad(digest(b"one"))
    assert not (tmp_path / "b.bin").exists()


def test_trial_that_goes_on_is_no_death(tmp_path: Path) -> None:
    known = lay(tmp_path, b"one")
    trial = known.begin(digest(b"one"))
    trial.step("open")
    known.collect()
    assert not known.is_bad(digest(b"one"))
    assert (tmp_path / "a.bin").exists()
    trial.close()


def test_quarantine_is_bounded_and_refusal_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = [bytes([i]) for i in range(proofs.MAX_BAD_FILES + 3)]
    for blob in blobs:
        lay(tmp_path, blob)
        die(tmp_path, blob)
        lay(tmp_path, blob).collect()
    assert len(list(tmp_path.glob("*.bad"))) == proofs.MAX_BAD_FILES
    known = Proofs(tmp_path / "a.bin", HEADER, 1000)
    assert all(known.is_bad(digest(blob)) for blob in blobs)
    later = time.time() + proofs.BAD_FOR_S + 1
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: later)
        assert not known.is_bad(digest(blobs[0]))
    with monkeypatch.context() as patch:
        patch.setattr(proofs, "MAX_BAD", 3)
        lay(tmp_path, b"last")
        die(tmp_path, b"last")
        lay(tmp_path, b"last").collect()
    assert sum(known.is_bad(digest(blob)) for blob in blobs) == 2


def test_folder_that_cannot_be_written_proves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    known = Proofs(tmp_path / "file" / "a.bin", HEADER, 1000)
    known.collect()
    trial = known.begin(digest(b"one"))
    trial.step("open")
    trial.quiet()
    assert not known.prove(digest(b"one"))
    trial.close()
    assert not known.is_proven(digest(b"one"))
