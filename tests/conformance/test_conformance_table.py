"""The page of results: made from files of results, and complete as it stands in the docs."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuedge.conformance import SCHEMA
from gpuedge.conformance.catalogue import everything
from gpuedge.conformance.results import Results

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import conformance_table as table  # noqa: E402

HEADER: dict[str, Any] = {
    "schema": SCHEMA, "device": "gles20:0", "started": "2026-01-02T03:04:05Z",
    "identity": {"name": "Fake|GPU", "driverInfo": "1.2"}, "versions": {"gpuedge": "9.9"},
    "seconds": 9.2,
}  # fmt: skip


def rows() -> list[dict[str, Any]]:
    made = [
        ("conv2d", "passed", 0.5), ("conv2d", "passed", 0.25), ("conv_transpose2d", "failed", 2.0),
        ("concat", "passed", None), ("tanh", "passed", 0.125), ("matmul", "skipped", None),
        ("onnx-gather", "passed", None),
    ]  # fmt: skip
    return [
        {"id": f"{op}/{i}", "op": op, "status": status, "worst": worst, "seconds": 1.25}
        for i, (op, status, worst) in enumerate(made)
    ]


def cells(text: str) -> dict[str, list[list[str]]]:
    """The rows of both tables, by their first cell."""
    found: dict[str, list[list[str]]] = {}
    for line in text.splitlines():
        if line.startswith("| "):
            row = [c.strip() for c in line.strip("|").split("|")]
            found.setdefault(row[0], []).append(row)
    return found


def test_page_says_what_the_rows_say() -> None:
    text = table.page({"gles20-fake": Results(HEADER, {r["id"]: r for r in rows()})})
    total, kinds = cells(text)["gles20-fake"]
    assert total == [
        "gles20-fake", "gles20:0", "Fake/GPU; 1.2", "5/6", "1", "9 s", "2026-01-02", "9.9",
    ]  # fmt: skip
    by_kind = dict(zip(table.COLUMNS, kinds[1:], strict=True))
    assert by_kind["convolution"] == "2/3 (2.00)"
    assert by_kind["movement"] == "1/1" and by_kind["functions"] == "1/1 (0.12)"
    assert by_kind["operators of ONNX"] == "1/1"
    assert by_kind["products"] == "0/0"
    assert "Of 6 cases that ran, 1 did not pass: 16666.7 in 100,000.\n" in text


def test_page_bounds_how_often_a_right_driver_fails() -> None:
    good = {r["id"]: r for r in rows() if r["status"] == "passed"}
    text = table.page({"a": Results(HEADER, good), "b": Results(HEADER, good)})
    assert "Of 10 cases that ran, 0 did not pass: 0.0 in 100,000 (below 30000.0 with 95" in text


def test_every_operation_has_a_column() -> None:
    ops = {s.op for s in everything("full")}
    assert set(table.OF_OP) <= ops
    assert len(ops - set(table.OF_OP)) >= 30  # functions of one element or two


def test_page_in_the_docs_is_complete_and_good() -> None:
    found = cells(table.PAGE.read_text(encoding="utf-8"))
    names = table.EVERY
    assert [n for n in names if n not in found] == []
    for name in names:
        total, kinds = found[name]
        passed, count = map(int, total[3].split("/"))
        assert passed == count >= 500
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", total[6])
        assert sum(int(c.split("/")[0]) for c in kinds[1:]) == passed


@pytest.mark.parametrize("arguments", [[], ["--run", "gles20-nothing"]])
def test_wrong_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert table.main(arguments) == 2
    assert capsys.readouterr().err
