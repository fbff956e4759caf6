"""Restrictions: unions whose order does not matter, and `Caps` that only ever shrink."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuedge.capdb.entries import LIMITS
from gpuedge.capdb.restrict import Restrictions, apply, combine
from gpuedge.core.caps import VULKAN_MINIMUM, Caps
from gpuedge.core.errors import DriverError, KernelLimitError
from gpuedge.core.storage import KINDS
from gpuedge.plan.library import variants
from gpuedge.plan.select import consider, select
from gpuedge.safety import paths

DESKTOP = replace(
    VULKAN_MINIMUM,
    max_invocations=1024,
    max_local_size=(1024, 1024, 64),
    max_shared_bytes=49152,
    max_storage_buffers=64,
    max_storage_buffer_bytes=1 << 31,
    max_allocation_bytes=1 << 32,
    has_fp16_storage=True,
    max_texel_buffers=16,
    max_texel_elements=1 << 27,
    subgroup_lanes=32,
    max_texture_copies=16,
    max_copied_elements=1 << 24,
    max_outputs=8,
    storages=("buffer", "rgba32f", "rgba16f", "rgba32ui"),
)
PHONE = replace(
    VULKAN_MINIMUM,
    level="gles30",
    dialect="essl300",
    forms=frozenset({"map"}),
    storages=("rgba32f", "rgba32ui", "rgba16f", "rgba8_u8"),
    max_texture_size=4096,
    has_suballocation=False,
)
DEFS = json.loads((paths.data_dir("capability_db") / "entries.schema.json").read_text())["$defs"]
LEVELS, FEATURES = DEFS["level"]["enum"], DEFS["feature"]["enum"]
STORAGES = DEFS["action"]["properties"]["disable_storages"]["items"]["enum"]
KERNELS = sorted(v.id for v in variants())


def subsets(words: Any) -> st.SearchStrategy[frozenset[str]]:
    return st.frozensets(st.sampled_from(sorted(words)), max_size=4)


def actions(names: st.SearchStrategy[str]) -> st.SearchStrategy[Restrictions]:
    return st.builds(
        Restrictions,
        is_backend_off=st.booleans(),
        levels=subsets(LEVELS),
        features=subsets(FEATURES),
        kernels=subsets(KERNELS),
        storages=subsets(STORAGES),
        limits=st.dictionaries(
            st.sampled_from(sorted(LIMITS)), st.integers(1, 1 << 33), max_size=3
        ),
        is_demoted=st.booleans(),
        entries=st.tuples(names),
    )


LISTS = st.lists(actions(st.sampled_from([f"any-{i:04d}" for i in range(9)])), max_size=5)


def is_no_wider(after: Caps, before: Caps) -> None:
    """Check field by field that a device can do no more than before."""
    sizes = {f.name for f in fields(Caps) if f.name.startswith("max_")}
    for name in sizes - {"max_local_size", "max_groups"}:
        new, old = getattr(after, name), getattr(before, name)
        assert old is None or new <= old, name
    for name in ("max_local_size", "max_groups"):
        assert all(n <= o for n, o in zip(getattr(after, name), getattr(before, name), strict=True))
    assert after.forms <= before.forms
    assert set(after.storages) <= set(before.storages)
    assert after.storages
    assert KINDS[after.storages[0]].is_exact
    assert after.ruled_out >= before.ruled_out
    assert after.has_fp16_storage in {False, before.has_fp16_storage}
    assert before.has_suballocation or not after.has_suballocation
    same = ("level", "dialect", "is_software", "offset_alignment", "device_class", "is_finite_only")
    assert all(getattr(after, name) == getattr(before, name) for name in same)


def tried(caps: Caps, restrictions: Restrictions) -> Caps | None:
    try:
        return apply(caps, restrictions)
    except DriverError as error:
        assert error.reason is not None
        assert error.reason.code == "quirk"
        return None


@settings(max_examples=100, deadline=None)
@given(LISTS, st.sampled_from([DESKTOP, PHONE, VULKAN_MINIMUM]))
def test_caps_never_widen_and_shrink_once(found: list[Any], caps: Caps) -> None:
    restrictions = combine(found)
    after = tried(caps, restrictions)
    if after is not None:
        is_no_wider(after, caps)
        assert apply(after, restrictions) == after


@settings(max_examples=100, deadline=None)
@given(LISTS, actions(st.just("any-0099")), st.randoms())
def test_order_does_not_matter_and_one_more_gives_nothing_back(
    found: list[Any], extra: Any, chance: Any
) -> None:
    before = combine(found)
    shuffled = list(found)
    chance.shuffle(shuffled)
    assert combine(shuffled) == before
    after = combine([*found, extra])
    for name in ("levels", "features", "kernels", "storages"):
        assert getattr(after, name) >= getattr(before, name)
    assert all(after.limits[name] <= most for name, most in before.limits.items())
    assert after.is_backend_off >= before.is_backend_off
    assert after.is_demoted >= before.is_demoted
    less, more = tried(DESKTOP, before), tried(DESKTOP, after)
    if more is not None:
        assert less is not None
        is_no_wider(more, less)


@settings(max_examples=100, deadline=None)
@given(LISTS)
def test_restrictions_survive_being_written_down(found: list[Any]) -> None:
    import json

    made = combine(found)
    assert Restrictions.from_dict(json.loads(json.dumps(made.to_dict()))) == made
    assert bool(made.to_dict()) is bool(found)


def under(caps: Caps, **parts: Any) -> Caps:
    return apply(caps, combine([Restrictions(entries=("any-0001",), **parts)]))


@pytest.mark.parametrize(
    ("caps", "feature", "changed"),
    [
        *(
            (DESKTOP, name, {
                "has_fp16_storage": False, "storages": ("buffer", "rgba32f", "rgba32ui"),
                **({"has_fp16_arithmetic": False} if name == "fp16" else {}),
            })
            for name in ("fp16", "fp16-storage")
        ),
        (DESKTOP, "group-kernels", {"forms": frozenset({"map", "raw"})}),
        (DESKTOP, "subgroups", {}),  # no kernel uses them
        (DESKTOP, "suballocation", {"has_suballocation": False}),
        (DESKTOP, "pipeline-cache", {}),  # backends see to it
    ],
)  # fmt: skip
def test_feature_changes_just_these_capabilities(
    caps: Caps, feature: str, changed: dict[str, Any]
) -> None:
    assert under(caps, features=frozenset({feature})) == replace(caps, **changed)


@pytest.mark.parametrize(
    ("limits", "changed"),
    [
        ({"max_shared_bytes": 100}, {"max_shared_bytes": 100}),
        ({"max_shared_bytes": 1 << 40}, {}),
        ({"max_invocations": 64}, {"max_invocations": 64, "max_local_size": (64, 64, 64)}),
        ({"max_allocation_bytes": 5}, {"max_allocation_bytes": 5}),
        ({"max_outputs": 2}, {"max_outputs": 2}),
        ({"max_texel_buffers": 0}, {"max_texel_buffers": 0}),
        ({"max_texel_elements": 1 << 16}, {"max_texel_elements": 1 << 16}),
        ({"subgroup_lanes": 0}, {"subgroup_lanes": 0}),
        ({"max_texture_copies": 0}, {"max_texture_copies": 0}),
        ({"max_copied_elements": 1 << 16}, {"max_copied_elements": 1 << 16}),
        ({"max_texture_size": 64}, {}),  # its tensors are buffers
    ],
)
def test_limit_is_an_upper_bound(limits: dict[str, int], changed: dict[str, Any]) -> None:
    assert under(DESKTOP, limits=limits) == replace(DESKTOP, **changed)


def test_size_that_is_not_known_gets_a_bound() -> None:
    assert VULKAN_MINIMUM.max_allocation_bytes is None
    assert under(VULKAN_MINIMUM, limits={"max_allocation_bytes": 7}).max_allocation_bytes == 7
    assert under(PHONE, limits={"max_texture_size": 64}).max_texture_size == 64


def test_exact_storage_comes_first_where_the_first_is_gone() -> None:
    caps = replace(PHONE, storages=("rgba32f", "rgba16f", "rgba8_u8", "rgba32ui"))
    left = under(caps, storages=frozenset({"rgba32f"}))
    assert left.storages == ("rgba32ui", "rgba16f", "rgba8_u8")


def test_level_without_an_exact_storage_is_refused() -> None:
    with pytest.raises(DriverError, match="without a storage") as caught:
        under(PHONE, storages=frozenset({"rgba32f", "rgba32ui"}))
    assert caught.value.reason is not None
    assert caught.value.reason.code == "quirk"
    assert "any-0001" in str(caught.value)


def test_demotion_changes_no_capability() -> None:
    assert under(DESKTOP, is_demoted=True) == DESKTOP


def test_ruled_out_kernel_is_not_selected() -> None:
    facts = {"depth": 64, "width": 64, "height": 64, "rows": 64, "columns": 64}
    facts |= {name: 64 for v in variants() for name in v.when}
    free = select("matmul", facts, DESKTOP)
    caps = under(DESKTOP, kernels=frozenset({free.id}))
    assert caps.ruled_out == {free.id}
    assert select("matmul", facts, caps).id != free.id
    row = next(r for r in consider("matmul", facts, caps) if r.variant == free)
    assert row.why_not == "ruled out on this device"
    every = frozenset(v.id for v in variants() if v.op == "matmul")
    with pytest.raises(KernelLimitError):
        select("matmul", facts, under(DESKTOP, kernels=every))


def test_ruled_out_kernels_survive_being_written_down() -> None:
    caps = replace(DESKTOP, ruled_out=frozenset({"b", "a"}))
    assert caps.to_dict()["ruled_out"] == ["a", "b"]
    assert Caps.from_dict(caps.to_dict()) == caps
    old = {k: v for k, v in DESKTOP.to_dict().items() if k != "ruled_out"}
    assert Caps.from_dict(old) == DESKTOP
