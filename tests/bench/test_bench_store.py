"""Results on disk and at URLs, what follows from them, and what other tools get."""

from __future__ import annotations

import itertools
import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bench_fakes import FULL, MS, result

from gpuedge.bench import export, results, store
from gpuedge.bench.estimates import RANK_SUM, SIGNED_RANK
from gpuedge.bench.page import page
from gpuedge.bench.tables import shown_quantile
from gpuedge.core.errors import InputError, MissingPackageError


def test_what_is_kept_is_read_again(tmp_path: Path) -> None:
    first = [result("cpu", at=2, **FULL), result("vulkan", at=2)]
    first[1] = replace(first[1], failed="no such device", blocks=())
    assert store.keep(first, str(tmp_path / "new")).endswith(".jsonl")
    store.keep([result("cpu", at=1)], str(tmp_path / "new"))
    assert store.kept(str(tmp_path / "new")) == [result("cpu", at=1), *first]
    assert len(list((tmp_path / "new").iterdir())) == 2, "a file for each, and nothing else"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "line 1"), ('{"schema": "gpuedge.trace/2"}', "it is no gpuedge.bench.result/1"),
        ('{"schema": "gpuedge.bench.result/1"}', "line 1"), ("[]", "line 1"),
    ],
)  # fmt: skip
def test_other_files_are_refused_with_the_line(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "x.jsonl").write_text(text)
    with pytest.raises(InputError, match="holds no results") as caught:
        store.kept(str(tmp_path))
    assert words in str(caught.value.known)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("python", "../../../../x"), ("commit", "../../../x"), ("commit", "HEAD"),
        ("machine", ""), ("when", "yesterday"), ("when", "2026-13-01T10:00:00.000000Z"),
        ("when", "2026-11-01"), ("blocks", [[0, 0], [0, 0]]), ("blocks", [[1, -1], [1, 1]]),
        ("blocks", [[], []]), ("blocks", [[1]]), ("blocks", [[1 << 63], [1]]),
        ("lead_ns", [0]), ("work", {}), ("work", {"flops": 1.0}),
        ("cold", [{"open_ns": 0, "compile_ns": 1, "first_ns": 1}]),
    ],
)  # fmt: skip
def test_what_gpuedge_does_not_write_is_damaged(tmp_path: Path, field: str, value: Any) -> None:
    row = json.loads(store.lines([result(**FULL)]))
    (tmp_path / "x.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(row | {field: value}))
    with pytest.raises(InputError, match="holds no results") as caught:
        store.kept(str(tmp_path))
    assert f"line 2: {field}: " in str(caught.value.known)


def test_a_place_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        store.kept(str(tmp_path / "none"))
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        store.keep([result()], str(tmp_path / "file"))


def test_urls_go_to_fsspec(monkeypatch: pytest.MonkeyPatch) -> None:
    files: dict[str, bytes] = {}
    system = SimpleNamespace(
        makedirs=lambda *_, **__: None, pipe_file=files.__setitem__, find=lambda _: list(files),
        cat_file=files.__getitem__,
    )  # fmt: skip

    def url_to_fs(url: str) -> tuple[Any, str]:
        if not url.startswith("s3:"):
            raise ValueError("Protocol not known")
        return system, url.removeprefix("s3://")

    core = SimpleNamespace(url_to_fs=url_to_fs)
    monkeypatch.setitem(sys.modules, "fsspec", SimpleNamespace(core=core))
    assert store.keep([result()], "s3://bucket/x/").startswith("s3://bucket/x/2026-11-01T100000")
    assert [name.startswith("bucket/x/2026") for name in files] == [True]
    assert store.kept("s3://bucket/x") == [result()]
    with pytest.raises(InputError, match="Protocol not known"):
        store.kept("none://x")
    system.cat_file = lambda _: (_ for _ in ()).throw(PermissionError("denied"))
    with pytest.raises(InputError, match="denied"):
        store.kept("s3://bucket/x")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingPackageError, match="fsspec"):
        store.kept("s3://bucket/x")


def test_the_real_fsspec_takes_them() -> None:
    store.keep([result()], "memory://bench/results")
    assert store.kept("memory://bench/results") == [result()]


def test_a_ratio_is_by_rounds_only_where_both_were_interleaved() -> None:
    a, b = result("a", ms=1.0), result("b", ms=1.1)
    together, apart = results.ratio(a, b), results.ratio(a, replace(b, session="other"))
    assert together.test == SIGNED_RANK and together.n == 12
    assert apart.test == RANK_SUM and apart.n == 24
    for found in (together, apart):
        assert found.value == pytest.approx(1.1, rel=0.03) and found.low > 1 and found.is_different


def test_a_summary_has_all_metrics_and_none_for_what_is_not_known() -> None:
    full, bare = result(**FULL).summary(), result().summary()
    assert set(full) == set(bare)
    assert set(full["latency_ns"]) == {"p50", "p90", "p99"}
    p50 = full["latency_ns"]["p50"]
    assert p50["low"] < p50["value"] < p50["high"]
    assert full["latency_ns"]["p99"]["high"] is None, "96 runs bound p99 from below only"
    cold = {name: found["value"] for name, found in full["cold_ns"].items()}
    assert cold == {"open": 5 * MS, "compile": 7 * MS, "first": 3 * MS} and full["starts"] == 12
    assert full["throughput_per_s"] == pytest.approx(1000, rel=0.02)
    assert full["flops_per_s"] == pytest.approx(2e9, rel=0.02)
    assert full["power"] == [{"meter": "RAPL", "watts": 3.0, "joules_per_run": 0.12}]
    for name in ("accuracy", "work", "flops_per_s", "peak_bytes", "power", "commit"):
        assert bare[name] is None
    json.dumps(full, allow_nan=False)


def test_cold_runs_are_in_no_warm_figure() -> None:
    one = result()
    assert max(one.warm) < 2 * MS < min(*one.lead_ns, one.cold[0].first_ns)
    doubled = replace(one, cold=(), lead_ns=())
    assert one.latency() == doubled.latency() and one.throughput == doubled.throughput


def test_pytest_benchmark_gets_its_statistics() -> None:
    one = result("vulkan:0")
    (row,) = export.pytest_benchmark([one, replace(one, blocks=(), failed="x")])["benchmarks"]
    stats, x = row["stats"], np.array(one.warm) / 1e9
    assert stats["median"] == pytest.approx(np.median(x)) and stats["rounds"] == 96
    assert stats["stddev"] == pytest.approx(x.std(ddof=1)) and stats["total"] == pytest.approx(
        x.sum()
    )
    assert stats["min"] <= stats["ld15iqr"] <= stats["q1"] <= stats["median"] <= stats["q3"]
    assert row["name"] == "net[vulkan:0]" and row["group"] == "net"


def test_asv_gets_a_file_for_each_machine_and_commit(tmp_path: Path) -> None:
    kept = [
        result("cpu", commit="a" * 40), result("vulkan", ms=0.5, commit="a" * 40),
        result("cpu", at=1, ms=2.0, commit="a" * 40), result("cpu", at=2, commit="b" * 40),
    ]  # fmt: skip
    assert export.write_asv(kept, tmp_path, "--asv") == 2
    names = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.json"))
    assert names == [
        "benchmarks.json", "board/aaaaaaaa-existing-py3.12.1.json",
        "board/bbbbbbbb-existing-py3.12.1.json", "board/machine.json",
    ]  # fmt: skip
    body = json.loads((tmp_path / names[1]).read_text())
    row = dict(zip(body["result_columns"], body["results"]["gpuedge_bench.time_net"], strict=False))
    assert row["params"] == [["'cpu'", "'vulkan'"]]
    assert row["result"] == pytest.approx([2e-3, 0.5e-3], rel=0.03), "the latest of two"
    assert row["stats_ci_99_a"][0] < row["result"][0] < row["stats_ci_99_b"][0]
    other = json.loads((tmp_path / names[2]).read_text())
    assert other["results"]["gpuedge_bench.time_net"][0][1] is None


@pytest.mark.parametrize("machine", ["..", ".", "../../x", "/etc/x"])
def test_no_name_of_a_machine_leads_out_of_the_folder(tmp_path: Path, machine: str) -> None:
    folder = tmp_path / "a" / "b" / "asv"
    assert export.write_asv([replace(result(), machine=machine)], folder, "--asv") == 1
    files = [p.relative_to(tmp_path) for p in tmp_path.rglob("*.json")]
    assert sorted(len(p.parts) for p in files) == [4, 5, 5]
    assert all(p.parts[:3] == ("a", "b", "asv") for p in files)


def test_the_page_shows_cases_failures_and_histories() -> None:
    history = [result("cpu", at=i, ms=1.0 if i < 10 else 1.2, seed=4) for i in range(14)]
    failed = replace(result("<gpu>"), blocks=(), failed="no <device>")
    text = page([*history, result("vulkan", ms=3.0), failed])
    assert text.count("<svg") == 2 and "1.2" in text and "slower" in text
    assert "&lt;gpu&gt;" in text and "no &lt;device&gt;" in text and "<gpu>" not in text
    assert text.count("<table") == 2 and "width=device-width" in text
    assert "board, 2026-11-01T10:00 to 2026-11-14T10:00 UTC, Python 3.12.1" in text
    shown = shown_quantile(history[-1].latency()["p90"])
    assert f'<td title="p90">{shown}</td>' in text
    assert f'<td title="runs/s">{history[-1].throughput:.4g}</td>' in text
    assert '<td title="compile">7 [7, 7] ms</td>' in text
    assert '<td title="device">a GPU 0.1.0</td>' in text
    assert all(math.isfinite(float(x)) for x in _coordinates(text))
    ticks = [float(y) for y in re.findall(r'<text x="88" y="([^"]+)"', text)]
    assert len(ticks) > 1 and all(a - b > 22 for a, b in itertools.pairwise(ticks)), "they overlap"


def _coordinates(text: str) -> list[str]:
    return re.findall(r' (?:x|y|x1|x2|y1|y2|cx|cy)="([^"]+)"', text)
