"""Mixtures of a GPU and the CPU, predicted from calibrated models."""

from __future__ import annotations

from dataclasses import replace

import pytest
from decide_fakes import edge_cpu, edge_gpu

from gpuedge.decide.policy import Policy
from gpuedge.decide.segments import Mixed, mixture
from gpuedge.executors.base import Work

POLICY = Policy(percentile=50)
HEAVY = Work({"conv": 2e9}, 4e6, 1e6, 1e6, 10)
LIGHT = Work({"map": 1e5}, 1e6, 1e5, 1e5, 1)
GPU, CPU = edge_gpu(), edge_cpu()


def host(*works: Work) -> int:
    return sum(CPU.predict(work, 50).at_ns for work in works)


def whole(ns: int):  # type: ignore[no-untyped-def]
    return replace(CPU.predict(HEAVY, 50), p50_ns=ns, at_ns=ns)


def test_part_that_pays_for_what_crosses_goes_to_the_gpu() -> None:
    mixed = Mixed(((HEAVY, HEAVY), (LIGHT, None), (LIGHT, LIGHT)))
    found = mixture(mixed, GPU, CPU, whole(host(HEAVY, LIGHT, LIGHT)), POLICY)
    assert found is not None and found.alternatives == ("gpu", "cpu", "cpu")
    gpu = GPU.predict(HEAVY, 50)
    rest = host(LIGHT, LIGHT)
    assert found.prediction.at_ns == pytest.approx(gpu.at_ns + rest, rel=1e-6)
    assert found.prediction.startup_ns == gpu.startup_ns
    assert found.prediction.sigma_micro == gpu.sigma_micro


def test_nothing_goes_there_where_crossing_costs_more_than_it_saves() -> None:
    far = replace(HEAVY, bytes_in=1e10)
    assert mixture(Mixed(((HEAVY, far), (LIGHT, None))), GPU, CPU, whole(host(HEAVY, LIGHT)),
                   POLICY) is None  # fmt: skip
    small = Mixed(((LIGHT, LIGHT), (LIGHT, None)))
    assert mixture(small, GPU, CPU, whole(host(LIGHT, LIGHT)), POLICY) is None
    assert not Mixed(((LIGHT, None),)).is_possible


def test_start_up_counts_once_however_many_parts_there_are() -> None:
    mixed = Mixed(((HEAVY, HEAVY), (LIGHT, None), (HEAVY, HEAVY)))
    found = mixture(mixed, GPU, CPU, whole(host(HEAVY, LIGHT, HEAVY)), POLICY)
    assert found is not None and found.alternatives == ("gpu", "cpu", "gpu")
    compiling = GPU.predict(HEAVY, 50).startup_ns - round(GPU.open_s * 1e9)
    assert found.prediction.startup_ns == round(GPU.open_s * 1e9) + 2 * compiling
    few = replace(POLICY, inferences=1)
    slow = edge_gpu(open_s=100.0)
    assert mixture(mixed, slow, CPU, whole(host(HEAVY, LIGHT, HEAVY)), few) is None


def test_parts_are_scaled_to_what_the_whole_was_timed_at() -> None:
    mixed = Mixed(((HEAVY, HEAVY), (LIGHT, None)))
    quick = whole(host(HEAVY, LIGHT) // 1000)  # the CPU turned out a thousand times as fast
    assert mixture(mixed, GPU, CPU, quick, POLICY) is None
