"""From a probe report to a decision, with fakes: what is opened, measured, cached, and when not."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from decide_fakes import FakeClock, FakeExecutor, FakeReport, FakeRow, edge_cpu, edge_gpu, patient

from gpuedge.core.errors import (
    DriverError,
    GpuEdgeError,
    KernelLimitError,
    NoUsableDeviceError,
    UnsupportedOpError,
)
from gpuedge.decide.choose import choose
from gpuedge.decide.decision import Decision
from gpuedge.decide.model import DeviceModel
from gpuedge.decide.policy import Policy
from gpuedge.decide.store import CalibrationStore
from gpuedge.executors.base import Work

BIG = Work({"conv": 2e9, "map": 20e6}, 120e6, 600e3, 4e3, 60)
SMALL = Work({"conv": 1e5}, 1e5, 1e4, 1e3, 5)


@dataclass
class Bench:
    """A machine: which devices there are, how fast, and what was asked of them.

    Time passes on `clock`. A driver that hangs says so by `stuck`: it is waited for in real time.
    """

    speeds: dict[str, DeviceModel] = field(default_factory=lambda: {"vulkan:0": edge_gpu()})
    cpu_speed: DeviceModel = field(default_factory=edge_cpu)
    work: Work = BIG
    refuse: dict[str, Exception] = field(default_factory=dict)
    fail_open: Exception | None = None
    fail_cpu: Exception | None = None
    open_s: float = 0.05
    stuck: threading.Event = field(default_factory=threading.Event)
    clock: FakeClock = field(default_factory=FakeClock)
    opened: list[str] = field(default_factory=list)
    executors: list[FakeExecutor] = field(default_factory=list)

    def graph_work(self, device: str) -> Work:
        if device in self.refuse:
            raise self.refuse[device]
        return self.work

    def open(self, device: str) -> FakeExecutor:
        self.opened.append(device)
        self.clock.spend(self.open_s)
        if self.fail_open is not None:
            raise self.fail_open
        self.executors.append(FakeExecutor(device, self.speeds[device], self.clock))
        return self.executors[-1]

    def choose(self, *rows: FakeRow, policy: Policy | None = None, **more: Any) -> Decision:
        self.cpu = FakeExecutor("cpu", self.cpu_speed, self.clock, fail_run=self.fail_cpu)
        with patient(self.stuck):
            return choose(
                self.graph_work, FakeReport(rows), policy or Policy(), self.open, self.cpu,
                clock=self.clock, **more,
            )  # fmt: skip


GPU = FakeRow("vulkan:0", name="Mali-G78")
SOFT = FakeRow("vulkan:1", name="llvmpipe", is_software=True)
GONE = FakeRow("vulkan", "broken", "missing-library", "libfoo.so cannot be loaded", "foo.json",
               is_software=None)  # fmt: skip


@pytest.mark.parametrize("rows", [(), (SOFT,), (GONE,), (SOFT, GONE)])
def test_nothing_is_opened_or_measured_when_no_gpu_comes_into_question(
    rows: tuple[FakeRow, ...],
) -> None:
    bench = Bench()
    found = bench.choose(*rows)
    assert found.device == "cpu"
    assert bench.opened == []
    assert bench.cpu.made == []
    assert found.calibration == "not needed: no GPU came into question"
    assert [r.code for r in found.rows][-1] == "fallback"


def test_probe_reasons_are_kept_in_order_with_the_cpu_last() -> None:
    found = Bench().choose(GONE, SOFT)
    assert [(r.device, r.code, r.reason) for r in found.rows[:2]] == [
        (
            "vulkan:1",
            "software",
            "a software rasteriser, excluded unless Policy(allow_software=True)",
        ),
        ("vulkan", "missing-library", "libfoo.so cannot be loaded"),
    ]
    assert found.rows[-1].device == "cpu"


def test_fast_gpu_is_chosen_for_big_work_and_cpu_measured_first() -> None:
    bench = Bench()
    order: list[str] = []
    opener = bench.open

    def watching(device: str) -> FakeExecutor:
        order.append(f"cpu ran {bench.cpu.runs > 0}")
        return opener(device)

    bench.open = watching  # type: ignore[method-assign]
    found = bench.choose(GPU)
    assert found.device == "vulkan:0"
    assert order == ["cpu ran True"]
    assert found.calibration.startswith("measured cpu, vulkan:0 in ")
    assert found.predicted is not None
    assert found.predicted.startup_ns >= 50_000_000
    assert [e.closed for e in bench.executors] == [0]


def test_small_work_stays_on_the_cpu() -> None:
    found = Bench(work=SMALL).choose(GPU)
    assert found.device == "cpu"
    assert [r.code for r in found.rows] == ["slower", "selected"]


def test_start_up_counts_by_the_declared_inferences() -> None:
    assert Bench(open_s=0.5).choose(GPU, policy=Policy(inferences=1000)).device == "vulkan:0"
    once = Bench(open_s=0.5).choose(GPU, policy=Policy(inferences=1))
    assert once.device == "cpu"
    assert once.rows[0].code == "slower"


def test_software_is_measured_only_when_allowed() -> None:
    bench = Bench(speeds={"vulkan:1": edge_gpu("vulkan:1")})
    assert bench.choose(SOFT).device == "cpu"
    assert bench.opened == []
    assert bench.choose(SOFT, policy=Policy(allow_software=True)).device == "vulkan:1"


def test_the_faster_of_two_gpus() -> None:
    speeds = {"vulkan:0": edge_gpu(), "vulkan:2": edge_gpu("vulkan:2").scaled(4)}
    bench = Bench(speeds=speeds)
    found = bench.choose(GPU, FakeRow("vulkan:2"))
    assert found.device == "vulkan:2"
    assert [r.code for r in found.rows] == ["not-best", "selected", "not-best"]
    assert bench.opened == ["vulkan:0", "vulkan:2"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnsupportedOpError("no Einsum here"), "unsupported-op"),
        (KernelLimitError("needs 64 KiB of shared memory"), "unsupported-op"),
        (GpuEdgeError("something else"), "not-calibrated"),
    ],
)
def test_model_that_cannot_run_there_opens_nothing(error: GpuEdgeError, code: str) -> None:
    bench = Bench(refuse={"vulkan:0": error})
    found = bench.choose(GPU)
    assert (found.device, found.rows[0].code) == ("cpu", code)
    assert found.rows[0].reason == error.what
    assert bench.opened == []
    assert bench.cpu.made == []


def test_gpu_that_fails_to_open_leaves_the_cpu_and_a_reason() -> None:
    found = Bench(fail_open=DriverError("queue taken")).choose(GPU)
    assert (found.device, found.rows[0].code) == ("cpu", "open-failed")
    assert "queue taken" in found.reason


@pytest.mark.parametrize("how", ["fails to run", "cannot be counted"])
def test_without_a_cpu_figure_no_gpu_is_opened(how: str) -> None:
    if how == "fails to run":
        bench = Bench(fail_cpu=RuntimeError("no memory"))
    else:
        bench = Bench(refuse={"cpu": UnsupportedOpError("no Einsum in numpy")})
    found = bench.choose(GPU)
    assert (found.device, found.rows[0].code) == ("cpu", "not-calibrated")
    assert "the CPU path could not be predicted" in found.calibration
    assert bench.opened == []


@pytest.mark.parametrize("factor", [1.0, 0.03, 0.01])
@pytest.mark.parametrize("budget", [0.3, 2.0])
def test_everything_together_stays_in_the_budget(factor: float, budget: float) -> None:
    speeds = {f"vulkan:{i}": edge_gpu(f"vulkan:{i}").scaled(factor) for i in range(3)}
    bench = Bench(speeds=speeds, cpu_speed=edge_cpu().scaled(factor))
    begin = bench.clock()
    found = bench.choose(*(FakeRow(d) for d in speeds), policy=Policy(calibration_s=budget))
    assert (bench.clock() - begin) / 1e9 <= budget
    assert len(found.rows) == 4


def test_no_budget_and_no_cache_is_the_cpu() -> None:
    bench = Bench()
    found = bench.choose(GPU, policy=Policy(calibration_s=0))
    assert (found.device, found.rows[0].code) == ("cpu", "not-calibrated")
    assert bench.opened == []


def test_cache_saves_opening_and_measuring(tmp_path: Path) -> None:
    store = CalibrationStore(tmp_path)
    first = Bench().choose(GPU, store=store)
    bench, store = Bench(), CalibrationStore(tmp_path)
    second = bench.choose(GPU, store=store, policy=Policy(calibration_s=0))
    assert bench.opened == []
    assert bench.cpu.made == []
    assert second.calibration == "cached"
    assert second.device == first.device == "vulkan:0"
    assert second.predicted == first.predicted
    assert [e.source for e in second.record.candidates] == ["cached", "cached"]


@pytest.mark.parametrize(
    "change",
    [{"fingerprint": "f2"}, {"identity": {"driverVersion": 2}}, {"device": "vulkan:9"}],
)
def test_another_driver_is_measured_again(tmp_path: Path, change: dict[str, Any]) -> None:
    store = CalibrationStore(tmp_path)
    Bench().choose(GPU, store=store)
    row = FakeRow(**{"device": "vulkan:0", **change})
    bench = Bench(speeds={row.device: edge_gpu(row.device)})
    found = bench.choose(row, store=store)
    assert bench.opened == [row.device]
    assert bench.cpu.made == []
    assert found.calibration.startswith(f"measured {row.device} in ")
    assert found.calibration.endswith("the rest cached")


def test_kernel_version_is_part_of_the_key(tmp_path: Path) -> None:
    store = CalibrationStore(tmp_path)
    Bench().choose(GPU, store=store, kernel_of=lambda d: f"{d} 1")
    bench = Bench()
    bench.choose(GPU, store=store, kernel_of=lambda d: f"{d} 2")
    assert bench.opened == ["vulkan:0"]
    assert bench.cpu.made != []


def test_failed_calibration_is_not_cached(tmp_path: Path) -> None:
    store = CalibrationStore(tmp_path)
    Bench(fail_open=DriverError("busy")).choose(GPU, store=store)
    assert Bench().choose(GPU, store=CalibrationStore(tmp_path)).device == "vulkan:0"


def test_one_process_does_not_try_a_failing_device_for_every_model(tmp_path: Path) -> None:
    store = CalibrationStore(tmp_path)
    Bench(fail_open=DriverError("busy")).choose(GPU, store=store)
    again = Bench()
    found = again.choose(GPU, store=store)
    assert again.opened == []
    assert (found.device, found.rows[0].code) == ("cpu", "open-failed")
    patient = Bench()
    assert patient.choose(GPU, store=store, policy=Policy(calibration_s=8)).device == "vulkan:0"
    assert patient.opened == ["vulkan:0"]


def test_partial_model_serves_the_process_that_made_it(tmp_path: Path) -> None:
    slow = {"vulkan:0": edge_gpu().scaled(0.05)}
    store = CalibrationStore(tmp_path)
    Bench(speeds=slow).choose(GPU, store=store, policy=Policy(calibration_s=1))
    again = Bench(speeds=slow)
    found = again.choose(GPU, store=store, policy=Policy(calibration_s=1))
    assert again.opened == []
    assert "factor of 4" in str(found)
    other = Bench(speeds=slow)
    other.choose(GPU, store=CalibrationStore(tmp_path), policy=Policy(calibration_s=1))
    assert other.opened == ["vulkan:0"]


def test_hung_device_is_reported_once_and_never_tried_again(tmp_path: Path) -> None:
    release, bench = threading.Event(), Bench()

    def hang(device: str) -> FakeExecutor:
        bench.opened.append(device)
        bench.stuck.set()
        release.wait(30)
        raise DriverError("too late")

    bench.open = hang  # type: ignore[method-assign]
    store, hung = CalibrationStore(tmp_path), []
    for seconds in (1.2, 6.0):
        found = bench.choose(
            GPU, store=store, on_hang=hung.append, policy=Policy(calibration_s=seconds)
        )
        assert (found.device, found.rows[0].code) == ("cpu", "deadline")
    release.set()
    assert bench.opened == hung == ["vulkan:0"]


def test_damaged_cache_is_measured_again(tmp_path: Path) -> None:
    store = CalibrationStore(tmp_path)
    Bench().choose(GPU, store=store)
    store.path.write_bytes(b"\0" * 100)
    bench = Bench()
    assert bench.choose(GPU, store=CalibrationStore(tmp_path)).device == "vulkan:0"
    assert bench.opened == ["vulkan:0"]
    again = Bench()
    again.choose(GPU, store=CalibrationStore(tmp_path))
    assert again.opened == []


def test_named_device_opens_nothing() -> None:
    bench = Bench()
    found = bench.choose(GPU, SOFT, asked="vulkan:1")
    assert (found.device, found.reason) == (
        "vulkan:1", "Runs on vulkan:1 (llvmpipe): asked for by name.",
    )  # fmt: skip
    assert [r.code for r in found.rows] == ["not-named", "named", "not-named"]
    assert bench.opened == []
    assert bench.cpu.made == []


def test_named_device_that_is_broken_is_an_error() -> None:
    with pytest.raises(NoUsableDeviceError, match="'vulkan'"):
        Bench().choose(GONE, asked="vulkan")


def test_reason_code_of_another_version_is_not_trusted() -> None:
    found = Bench().choose(FakeRow("vulkan", "broken", "flux", "the flux is low"))
    assert (found.rows[0].code, found.rows[0].reason) == ("open-failed", "the flux is low")
    found = Bench().choose(FakeRow("vulkan", "broken", "ok", "contradicts itself"))
    assert found.rows[0].status == "rejected"


SCENES: list[Callable[[], Decision]] = [
    lambda: Bench().choose(GPU, SOFT, GONE),
    lambda: Bench(work=SMALL).choose(GPU),
    lambda: Bench().choose(SOFT, asked="vulkan:1"),
    lambda: Bench(fail_open=DriverError("grün")).choose(GPU),
]


@pytest.mark.parametrize("scene", range(len(SCENES)))
def test_what_was_chosen_replays_to_the_same_bytes(scene: int) -> None:
    found = SCENES[scene]()
    text = found.to_json()
    assert Decision.from_dict(json.loads(text)).replay().to_json() == text
