"""Names that a device has besides its GPU's: variants of a chip, and boards that run Linux."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import capdb_folders as made
import pytest
from capdb.corpus import of_entries

from gpuedge.capdb.entries import parse
from gpuedge.capdb.identity import host
from gpuedge.capdb.identity.subject import subject
from gpuedge.capdb.judgement import lookup
from gpuedge.core.identity import Identity


@pytest.mark.parametrize(
    ("asked", "found", "result"),
    [
        ("SM8650", "SM8650", "true"),
        ("SM8650", "sm8650-ac", "true"),
        ("SM8550", "SM8550P", "true"),
        ("MT6769", "MT6769V/CB", "true"),
        ("MT6769V/CB", "MT6769V/CB", "true"),
        ("MT6769V/CB", "MT6769V/CZ", "false"),
        ("MT6769V/CB", "MT6769", "false"),
        ("SM865", "SM8650", "false"),
        ("SM8650", "SM86501", "false"),
        ("TENSOR", "Tensor G4", "false"),
        ("TENSOR G4", " Tensor G4 ", "true"),
        ("SM8650", None, "unknown"),
    ],
)
def test_a_chip_means_its_variants_and_no_other(asked: str, found: str, result: str) -> None:
    base = of_entries([parse(made.entry({"soc": [asked]}))])
    judged = lookup({**made.IDENTITIES[0], "soc": found}, database=base, ignore=())
    (finding,) = judged.findings
    assert finding.result == result
    assert len(judged.relevant) == (result != "false")  # and the index does not lose it


@pytest.fixture
def fresh() -> Iterator[None]:
    host._read.cache_clear()
    yield
    host._read.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_a_board_is_known_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"Khadas VIM3\0")
    monkeypatch.setattr(host, "BOARD", str(path))
    assert host.host_facts()["device"] == "Khadas VIM3"
    here = Identity("vulkan", "Mali-G52", "linux", vendorID=0x13B5)
    (finding,) = [f for f in lookup(here, ignore=()).relevant if f.id == "mali-0023"]
    assert finding.result == "true"


@pytest.mark.usefixtures("fresh")
def test_a_machine_that_is_no_board_has_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "BOARD", str(tmp_path / "nothing"))
    assert "device" not in host.host_facts()
    assert subject(Identity("vulkan", "Mali-G52", "linux", vendorID=0x13B5)).device is None
