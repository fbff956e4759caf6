"""The report: order, numbering, table, JSON; no process, no driver."""

from __future__ import annotations

import json
from typing import Any

import pytest

import gpuedge
from gpuedge.capdb import Restrictions
from gpuedge.core.errors import InputError
from gpuedge.core.reasons import STATUSES
from gpuedge.probing.report import ProbeReport, ProbeRow, number
from gpuedge.probing.show import headline


def row(name: str, status: str = "ok", index: int | None = 0, **more: Any) -> ProbeRow:
    kind = more.pop("kind", None)
    fields: dict[str, Any] = {
        "device": "vulkan",
        "backend": "vulkan",
        "status": status,
        "code": {"ok": "ok", "wrong": "wrong-numbers"}.get(status, "no-device"),
        "reason": "because",
        "name": name,
        "identity": {"api": "vulkan", "name": name, "os": "linux", "device_type": kind},
        "is_software": kind == "CPU",
        "index": index,
        **more,
    }
    return ProbeRow(**fields)


def report(*rows: ProbeRow) -> ProbeReport:
    return ProbeReport(number(rows), "0.1.0", 0.25)


def test_devices_are_best_first() -> None:
    kinds = ["CPU", "OTHER", "VIRTUAL_GPU", "INTEGRATED_GPU", None, "DISCRETE_GPU"]
    made = report(*(row(str(k), kind=k) for k in kinds), row("bad", "wrong", kind="DISCRETE_GPU"))
    assert [r.name for r in made.devices] == [
        "DISCRETE_GPU",
        "INTEGRATED_GPU",
        "VIRTUAL_GPU",
        "OTHER",
        "None",
        "CPU",
    ]
    assert made.best is not None
    assert made.best.name == "DISCRETE_GPU"


def test_plug_ins_come_last_unless_the_setting_names_them() -> None:
    """As `auto` has it, which does not look at others."""
    rows = row("theirs", kind="DISCRETE_GPU", backend="opencl"), row("ours", kind="CPU")
    made = report(*rows)
    assert [r.name for r in made.devices] == ["ours", "theirs"]
    with gpuedge.config(backends=["vulkan", "opencl"]):
        assert [r.name for r in made.devices] == ["theirs", "ours"]
        assert "where" not in headline(made)
    alone = report(rows[0])
    assert alone.best is not None
    assert "auto looks at it where GPUEDGE_BACKENDS names opencl." in headline(alone)
    with gpuedge.config(backends=["opencl"]):
        assert headline(alone).endswith("the best is opencl:0 (theirs).")


def test_every_reached_device_has_a_number_usable_or_not() -> None:
    rows = [row("a", "wrong"), row("x", "absent", None), row("b"), row("c", index=1)]
    rows.append(row("d", backend="gles31"))
    names = [(r.name, r.device) for r in report(*rows).tried]
    assert names == [
        ("a", "vulkan:0"),
        ("x", "vulkan"),
        ("b", "vulkan:1"),
        ("c", "vulkan:2"),
        ("d", "gles31:0"),
    ]


def test_missing_loader_is_said_once_for_each_backend() -> None:
    lost = [row(n, "absent", None, code="no-loader") for n in ("a", "b", "c")]
    other = row("d", "absent", None, code="no-loader", backend="gles31")
    assert [r.device for r in report(*lost, other).tried] == ["vulkan", "gles31"]


def test_find_by_number_and_by_backend() -> None:
    made = report(row("soft", kind="CPU"), row("hard", kind="DISCRETE_GPU"), row("bad", "wrong"))
    found = {name: made.find(name) for name in ("vulkan", "vulkan:0", "vulkan:2", "vulkan:9")}
    assert {k: v.name if v else None for k, v in found.items()} == {
        "vulkan": "hard",
        "vulkan:0": "soft",
        "vulkan:2": "bad",
        "vulkan:9": None,
    }
    only_bad = report(row("x", "absent", None)).find("vulkan")
    assert only_bad is not None
    assert only_bad.status == "absent"


def test_json_round_trip_is_exact() -> None:
    made = report(
        row("a", kind="CPU", evidence={"checks": [{"max_error": 0.5}]}), row("b", "wrong")
    )
    record = json.loads(made.to_json())
    assert record["schema"] == "gpuedge.probe/1"
    assert record["devices"] == ["vulkan:0"]
    assert record["best"] == "vulkan:0"
    for line in record["tried"]:
        assert {"device", "status", "code", "reason"} <= set(line)
        assert line["status"] in STATUSES
    assert ProbeReport.from_dict(record).to_dict() == record


@pytest.mark.parametrize(
    "record",
    [{}, {"schema": "gpuedge.probe/2", "tried": []}, {"schema": "gpuedge.probe/1", "tried": {}}],
)
def test_other_documents_are_refused(record: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="not a probe report"):
        ProbeReport.from_dict(record)


def test_row_without_its_fields_is_refused() -> None:
    rows = [{"device": "vulkan:0"}]
    with pytest.raises(InputError, match="tried: backend: it is missing"):
        ProbeReport.from_dict({"schema": "gpuedge.probe/1", "version": "1", "tried": rows})


def test_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    made = report(
        row(
            "llvmpipe (LLVM 15.0.6, 256 bits)", kind="CPU", reason="answered with the right numbers"
        ),
        row(
            "radeon_icd.x86_64.json",
            "absent",
            None,
            reason="the driver loads but offers no device: it gave VK_ERROR_INITIALIZATION_FAILED",
        ),
    )
    assert str(made).splitlines() == [
        "1 of 2 usable; the best is vulkan:0 "
        "(llvmpipe (LLVM 15.0.6, 256 bits), a software rasteriser).",
        "",
        "device    name                              status",
        "vulkan:0  llvmpipe (LLVM 15.0.6, 256 bits)  ok",
        "    answered with the right numbers",
        "vulkan    radeon_icd.x86_64.json            absent",
        "    offers no device (VK_ERROR_INITIALIZATION_FAILED)",
    ]
    monkeypatch.setenv("COLUMNS", "120")
    assert str(made).splitlines()[2:] == [
        "device    name                              status  reason",
        "vulkan:0  llvmpipe (LLVM 15.0.6, 256 bits)  ok      answered with the right numbers",
        "vulkan    radeon_icd.x86_64.json            absent  offers no device "
        "(VK_ERROR_INITIALIZATION_FAILED)",
    ]
    assert repr(made) == "<ProbeReport 1 of 2 usable, best vulkan:0>"


def test_brief_reason_keeps_what_it_does_not_know() -> None:
    assert row("x", "absent", None, reason="no device: nothing there").brief == "offers no device"
    assert row("x", "wrong", reason="a VK_THING is wrong").brief == "a VK_THING is wrong"


def test_table_without_devices() -> None:
    assert "No usable GPU: 1 tried" in str(report(row("a", "wrong")))
    assert str(report()) == "No GPU driver was tried: no backend is switched on."
    assert repr(report()) == "<ProbeReport 0 of 0 usable, no usable device>"


@pytest.mark.parametrize(
    ("statuses", "words"),
    [
        (("blocked", "wrong", "blocked"), "3 tried, 2 blocked."),
        (("wrong", "absent"), "2 tried, none can be used."),
    ],
)
def test_headline_says_why_there_is_none(statuses: tuple[str, ...], words: str) -> None:
    rows = [row(s, s, None if s == "absent" else 0) for s in statuses]
    assert str(report(*rows)).startswith(f"No usable GPU: {words}")


def restricted(*entries: str, **changes: Any) -> dict[str, Any]:
    return {**Restrictions(entries=entries).to_dict(), **changes}


def test_restricted_devices_have_a_star_and_a_footnote() -> None:
    made = report(
        row("free", physical="a"),
        row("less", physical="b", restrictions=restricted("x-0001", features=["fp16"])),
        row("shut", "blocked", physical="c", restrictions=restricted("x-0002")),
    )
    lines = str(made).splitlines()
    assert [line.split()[2] for line in lines[3:6]] == ["ok", "ok*", "blocked"]
    assert lines[6:] == [
        "* vulkan:1: no fp16 (x-0001)",
        "  (entries of the capability database; gpuedge db why says why)",
    ]
    assert "*" not in str(report(row("free")))


def test_what_time_was_too_short_for_is_said_below_the_table() -> None:
    words = "gpuedge probe --refresh --deadline 600"
    assert words in str(report(row("a", "blocked", evidence={"is_unfinished": True})))
    assert words not in str(report(row("a", "blocked")))


def test_hostile_names_cannot_reach_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    made = report(row("\x1b[31m<script>\n" + "x" * 5000))
    assert "\x1b" not in str(made)
    assert len(str(made).splitlines()) == 4
    assert max(map(len, str(made).splitlines())) < 6000


def test_info_reopens_the_device() -> None:
    made = row("a", kind="CPU", key="/x.json", fingerprint="f", env={"V": "1"}, index=1)
    info = made.info()
    assert (info.index, info.identity.name, info.is_software) == (1, "a", True)
    assert (info.candidate.key, info.candidate.env) == ("/x.json", {"V": "1"})
    with pytest.raises(InputError, match="reached no device"):
        row("x", "absent", None).info()
