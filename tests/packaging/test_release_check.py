"""The page of what came of the campaigns: what it says is known to the next run."""

from __future__ import annotations

from pathlib import Path

import pytest
import release_check

ROW = {"result": "passed", "date": "2026-11-25", "commit": "abc1234", "seconds": "12"}


def test_results_outlive_the_checkout() -> None:
    text = release_check.page(["a", "b", "c"], {"a": ROW, "c": {**ROW, "result": "failed (1)"}})
    assert release_check.known(text) == {"a": ROW, "c": {**ROW, "result": "failed (1)"}}
    assert "| b | not run yet |" in text


@pytest.mark.parametrize(("status", "result"), [(0, "passed"), (3, "failed (3)")])
def test_a_campaign_is_what_its_command_ends_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, result: str
) -> None:
    monkeypatch.setattr(release_check, "OUT", tmp_path / "out")
    page = tmp_path / "page.md"
    monkeypatch.setattr(release_check, "PAGE", page)
    monkeypatch.setattr(release_check, "commit", lambda: "abc1234")
    runs = tmp_path / "runs"
    command = ("sh", "-c", f"echo x >> {runs}; exit {status}")
    monkeypatch.setattr(release_check, "campaigns", lambda: {"one": command})
    for _ in range(2):  # what passed at this commit is not run again, what failed is
        assert release_check.main([]) == int(status != 0)
        assert release_check.known(page.read_text())["one"]["result"] == result
    assert runs.read_text().count("x") == (1 if status == 0 else 2)
