"""Who may connect: certificates of one authority, or nobody but this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from farm_fakes import CASES, answers, coordinator, desk, names_in
from farm_processes import tls_files

from gpuedge.core.errors import FarmError, InputError, UsageError
from gpuedge.farm import engine, work


def test_both_sides_prove_who_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "answer", answers({}))
    monkeypatch.setattr(engine, "CONNECT_S", 1.0)
    (tmp_path / "other").mkdir()
    ours = engine.certificates(*tls_files(tmp_path))
    theirs = engine.certificates(*tls_files(tmp_path / "other"))
    with engine._dask():
        from distributed import Scheduler, SpecCluster, Worker

        own = {"dashboard_address": engine.NOWHERE, "protocol": "tls://", "host": "127.0.0.1",
               "security": engine._security(ours)}  # fmt: skip
        worker = {"cls": Worker, "options": {**own, **engine.worker_options(desk("a", "G1"))}}
        with SpecCluster(
            scheduler={"cls": Scheduler, "options": {**own, "port": 0, "dashboard": False}},
            workers={"a": worker}, security=own["security"], silence_logs=False,
        ) as cluster:  # fmt: skip
            address = cluster.scheduler_address
            assert address.startswith("tls://127.0.0.1:")
            with engine.connected(address, ours) as client:
                made = coordinator(client, tmp_path / "s")
                made.work()
            assert sorted(names_in(tmp_path / "s")) == sorted(CASES)
            for at, files in ((address, theirs), (address.replace("tls", "tcp"), None)):
                with pytest.raises(FarmError) as caught, engine.connected(at, files):
                    pass
                assert caught.value.code == "GE-407" and "cannot be reached" in str(caught.value)


def test_a_scheduler_without_tls_is_for_this_machine_only() -> None:
    with pytest.raises(UsageError, match="needs TLS"):
        engine.serve_scheduler("0.0.0.0", 0, None, lambda _: None)


def test_certificates_are_three_files_that_are_there(tmp_path: Path) -> None:
    ca, cert, key = tls_files(tmp_path)
    assert engine.certificates(None, None, None) is None
    assert engine.certificates(ca, cert, key) == engine.Certificates(ca, cert, key)
    with pytest.raises(UsageError, match=r"(?s)three files.*missing: --tls-key"):
        engine.certificates(ca, cert, None)
    with pytest.raises(InputError) as caught:
        engine.certificates(ca, cert, str(tmp_path / "none.pem"))
    assert caught.value.asked_by == "--tls-key"
    for option, files in {"--tls-key": (ca, cert, ca), "--tls-ca": (key, cert, key)}.items():
        with pytest.raises(InputError) as caught:
            engine.certificates(*files)
        assert caught.value.asked_by == option


@pytest.mark.parametrize("address", ["lab", "http://lab:80", "tls://lab", "tcp://lab:x"])
def test_addresses_are_those_of_dask(address: str) -> None:
    with pytest.raises(UsageError, match="no scheduler's address"):
        engine.check_address(address, None)


def test_certificates_and_addresses_belong_together(tmp_path: Path) -> None:
    files = engine.certificates(*tls_files(tmp_path))
    engine.check_address("tls://lab:8786", files)
    engine.check_address("tcp://127.0.0.1:8786", None)
    for address, given in (("tls://lab:8786", None), ("tcp://127.0.0.1:8786", files)):
        with pytest.raises(UsageError, match="needs --tls-ca"):
            engine.check_address(address, given)
