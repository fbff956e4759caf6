"""Known answers that entries ask for: right, noticing what is wrong, and of every kernel."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from planrun import FLOAT_TEXTURES, TEXTURES, PlanExecutor
from quirk_fakes import be_quick

from gpuedge.capdb import restrict
from gpuedge.capdb.entries import TESTS
from gpuedge.core.caps import VULKAN_MINIMUM, Caps
from gpuedge.core.errors import KernelLimitError
from gpuedge.core.storage import KINDS
from gpuedge.plan import library
from gpuedge.plan.select import select
from gpuedge.probing import kat, kat_required


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let the interpreter do with smaller tensors."""
    be_quick(monkeypatch, tmp_path)


LEVELS = {
    "vulkan": VULKAN_MINIMUM,
    "one output": replace(VULKAN_MINIMUM, max_outputs=1),
    "discrete": replace(VULKAN_MINIMUM, device_class="nvidia", max_invocations=256),
    "gles30": FLOAT_TEXTURES,
    "gles20": TEXTURES,
}


def computed(case: kat.Case, caps: Caps) -> tuple[Any, list[str]]:
    """Run a case in the interpreter, which shares nothing with its reference."""
    if case.storage and case.storage != caps.storages[0]:
        others = tuple(kind for kind in caps.storages if kind != case.storage)
        caps = restrict.with_storages(caps, (case.storage, *others))
    executor = PlanExecutor(caps)
    found = executor.compile(case.graph, case.keeping).run(case.inputs)[case.output]
    return found, sorted(executor.seen.variants)


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("test", TESTS)
def test_required_cases_are_right_and_notice_a_wrong_element(test: str, name: str) -> None:
    for case in kat_required.cases(test, LEVELS[name]):
        found, _ = computed(case, LEVELS[name])
        finding, _ = kat.judge_runs(case, [found])
        assert finding is None, (case.name, finding)
        worse = found.copy()
        flat = worse.reshape(-1)
        flat[0] = flat[0] + 1 if flat.dtype.kind == "f" else flat[0] ^ 1
        finding, _ = kat.judge_runs(case, [worse])
        assert finding is not None, case.name


@pytest.mark.parametrize("name", LEVELS)
def test_every_kernel_that_selection_can_use_is_run(name: str) -> None:
    caps = LEVELS[name]
    used = {v for case in kat_required.cases("kernels", caps) for v in computed(case, caps)[1]}
    assert used == selectable(caps)


EXTENTS = (1, 3, 4, 31, 32, 64, 1024, 1025, 4096)


def selectable(caps: Caps) -> set[str]:
    """Ask selection for every operation at shapes on both sides of every bound."""
    found = set()
    for op in {variant.op for variant in library.variants()}:
        facts = {name for v in library.variants() if v.op == op for name in v.when}
        for extents in itertools.product(EXTENTS, repeat=len(facts)):
            with contextlib.suppress(KernelLimitError):  # softstats, where sumexp serves instead
                found.add(select(op, dict(zip(sorted(facts), extents, strict=True)), caps).id)
    return found


def test_each_storage_on_offer_is_tested_and_no_other() -> None:
    kinds = {
        case.storage for case in kat_required.cases("storages", FLOAT_TEXTURES) if case.storage
    }
    exact = {k for k in FLOAT_TEXTURES.storages if KINDS[k].is_exact and KINDS[k].low is None}
    assert kinds == exact
    keeping = {case.keeping.kind for case in kat_required.cases("storages", FLOAT_TEXTURES)}
    assert keeping == {"float32", "float16", "fixed16"}
    assert kat_required.cases("half", TEXTURES) == []
    assert {c.storage for c in kat_required.cases("storages", VULKAN_MINIMUM)} == {"buffer"}


def test_large_is_as_large_as_the_device_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kat_required, "LARGE", 1 << 25)
    for most in (1 << 12, 1 << 20, 1 << 27):
        caps = replace(VULKAN_MINIMUM, max_storage_buffer_bytes=most)
        (case,) = kat_required.cases("large", caps)
        texels = case.inputs["x"].size // 4
        assert 0.9 * min(most, 1 << 25) <= 16 * texels <= most
        assert case.inputs["x"].max() < 1 << 24
    (case,) = kat_required.cases("large", replace(VULKAN_MINIMUM, max_allocation_bytes=1 << 16))
    assert case.inputs["x"].size * 4 <= 1 << 16
