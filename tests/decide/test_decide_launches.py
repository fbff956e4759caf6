"""Beliefs on disk: what is kept, when another window is due, and what damage does."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuedge.decide.belief import Belief, Rule, draw, is_drawn
from gpuedge.decide.store import (
    APART_S,
    LAUNCH_FILE,
    LAUNCH_SCHEMA,
    MAX_LAUNCHES,
    MAX_WINDOWS,
    LaunchStore,
    PastLaunch,
    launch_key,
)  # fmt: skip
from gpuedge.safety.store import load_sealed, save_sealed

NOW = 1_800_000_000
PAST = PastLaunch(Belief(-200_000, 90_000, 1), 10**7, 2 * 10**8, 9_000, NOW)


def test_round_trip_in_another_process(tmp_path: Path) -> None:
    key = launch_key("model", "device", 90)
    assert LaunchStore(tmp_path).get(key) is None
    assert LaunchStore(tmp_path).put(key, PAST)
    assert LaunchStore(tmp_path).get(key) == PAST
    later = PastLaunch(Belief(-250_000, 50_000, 2), 10**7, 10**8, 4_000, NOW + 700)
    assert LaunchStore(tmp_path).put(key, later)
    assert LaunchStore(tmp_path).get(key) == later


def test_key_covers_model_device_and_percentile() -> None:
    keys = {launch_key(m, d, p) for m in ("a", "b") for d in ("", "x") for p in (50, 90)}
    assert len(keys) == 8
    assert launch_key("a,b", "c", 1) != launch_key("a", "b,c", 1)


def test_next_window_is_due_later_while_much_is_at_stake() -> None:
    assert not PAST.is_due(NOW)
    assert not PAST.is_due(NOW + APART_S - 1)
    assert PAST.is_due(NOW + APART_S)
    assert PAST.is_due(NOW - 5)  # the clock was set back: nothing is known of when it was
    assert not PAST.is_due(NOW + APART_S, Rule(eps_ppm=10_000))
    settled = PastLaunch(PAST.belief, 10**7, 0, 4_999, NOW)
    assert not settled.is_due(NOW + 10**6)
    enough = PastLaunch(Belief(0, 1000, MAX_WINDOWS), 10**7, 0, 50_000, NOW)
    assert not enough.is_due(NOW + 10**6)


def test_previous_choice_is_kept_beside_the_beliefs(tmp_path: Path) -> None:
    store = LaunchStore(tmp_path)
    assert store.previous("model", 90) == ""
    store.put(launch_key("model", "device", 90), PAST)
    assert store.chose("model", 90, "vulkan:0")
    assert store.chose("model", 50, "cpu")
    assert (store.previous("model", 90), store.previous("model", 50)) == ("vulkan:0", "cpu")
    assert store.get(launch_key("model", "device", 90)) == PAST
    store.chose("model", 90, "cpu")
    assert LaunchStore(tmp_path).previous("model", 90) == "cpu"


def test_choice_that_did_not_change_is_not_written_again(tmp_path: Path) -> None:
    store = LaunchStore(tmp_path)
    store.chose("model", 90, "cpu")
    before = (tmp_path / LAUNCH_FILE).stat().st_mtime_ns
    store.chose("model", 90, "cpu")
    assert (tmp_path / LAUNCH_FILE).stat().st_mtime_ns == before


def test_oldest_are_forgotten(tmp_path: Path) -> None:
    rows = [[f"key{i}", [0, 1, 1, 1, 1, 1, i]] for i in range(MAX_LAUNCHES)]
    save_sealed(tmp_path / LAUNCH_FILE, LAUNCH_SCHEMA, {"launches": rows})
    store = LaunchStore(tmp_path)
    assert store.get("key0") is not None
    store.put("new", PAST)
    assert store.get("key0") is None
    assert store.get("key1") is not None
    assert store.get("new") == PAST


@pytest.mark.parametrize(
    "fields",
    [None, [], [0] * 6, [0] * 8, ["0"] * 7, [0, 1, 1, 1, 1, 1, True], [0, 0, 1, 1, 1, 1, 1],
     [0, 1, 1, -1, 1, 1, 1], [10**9, 1, 1, 1, 1, 1, 1], [0, 1, 1, 10**30, 1, 1, 1],
     [0, 1.5, 1, 1, 1, 1, 1], {"belief": 1}],
)  # fmt: skip
def test_fields_that_make_no_sense_read_as_nothing(tmp_path: Path, fields: object) -> None:
    save_sealed(tmp_path / LAUNCH_FILE, LAUNCH_SCHEMA, {"launches": [["key", fields]]})
    assert LaunchStore(tmp_path).get("key") is None


@pytest.mark.parametrize("body", [{}, {"launches": 3}, {"launches": [3, [], ["a"]]}, {"picks": {}}])
def test_bodies_that_make_no_sense_read_as_nothing(tmp_path: Path, body: dict[str, object]) -> None:
    save_sealed(tmp_path / LAUNCH_FILE, LAUNCH_SCHEMA, body)
    store = LaunchStore(tmp_path)
    assert (store.get("a"), store.previous("model", 90)) == (None, "")
    assert store.put("a", PAST)
    assert store.get("a") == PAST


def test_damaged_file_reads_as_nothing_and_is_replaced(tmp_path: Path) -> None:
    store = LaunchStore(tmp_path)
    store.put("key", PAST)
    whole = (tmp_path / LAUNCH_FILE).read_bytes()
    (tmp_path / LAUNCH_FILE).write_bytes(whole[:-9])
    assert store.get("key") is None
    assert store.put("key", PAST)
    assert load_sealed(tmp_path / LAUNCH_FILE, LAUNCH_SCHEMA) is not None
    assert LaunchStore(tmp_path).get("key") == PAST


def test_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = LaunchStore(tmp_path / "file")
    assert not store.put("key", PAST)
    assert store.get("key") is None


def test_exploration_draws_one_in_twenty_and_the_same_ones_all_day() -> None:
    numbers = [draw(f"device {i}", f"model {i % 7}", 20_000) for i in range(20_000)]
    assert numbers[:50] == [draw(f"device {i}", f"model {i % 7}", 20_000) for i in range(50)]
    assert all(0 <= number < 10**6 for number in numbers)
    drawn = sum(is_drawn(number) for number in numbers)
    assert abs(drawn - 1000) < 4 * (20_000 * 0.05 * 0.95) ** 0.5
    assert abs(sum(numbers) / 20_000 - 500_000) < 4 * 10**6 / 12**0.5 / 20_000**0.5
    other = [draw(f"device {i}", f"model {i % 7}", 20_001) for i in range(20_000)]
    both = sum(is_drawn(a) and is_drawn(b) for a, b in zip(numbers, other, strict=True))
    assert both < 90  # 50 expected where days are independent
    assert not is_drawn(None)
