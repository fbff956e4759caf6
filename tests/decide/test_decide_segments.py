"""Placement over a chain of segments, against trying every assignment, and mixtures."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuedge.decide.segments import Piece, mixture, place
from gpuedge.executors.base import Work

times = st.integers(0, 60)
pieces = st.lists(
    st.builds(Piece, times, st.one_of(st.none(), times), times, times), min_size=1, max_size=7
)


def cost(chain: list[Piece], sides: tuple[str, ...], out_ns: int) -> int | None:
    """What an assignment costs, counted one segment at a time; None where it is impossible."""
    total, at = 0, "cpu"
    for piece, side in zip(chain, sides, strict=True):
        if side == "gpu" and piece.gpu_ns is None:
            return None
        if side != at:
            total += piece.to_gpu_ns if side == "gpu" else piece.to_cpu_ns
        total += (piece.gpu_ns or 0) if side == "gpu" else piece.cpu_ns
        at = side
    return total + (out_ns if at == "gpu" else 0)


@settings(max_examples=200)
@given(pieces, times)
def test_against_every_assignment(chain: list[Piece], out_ns: int) -> None:
    found = place(chain, out_ns=out_ns)
    costs = {
        sides: cost(chain, sides, out_ns)
        for sides in product(("cpu", "gpu"), repeat=len(chain))
    }  # fmt: skip
    assert found.total_ns == min(c for c in costs.values() if c is not None)
    assert costs[found.sides] == found.total_ns


def test_transfer_keeps_small_gains_on_the_cpu() -> None:
    chain = [Piece(100, 90), Piece(100, 10, 5, 5), Piece(100, None, 5, 5)]
    assert place(chain).sides == ("gpu", "gpu", "cpu")
    dear = [Piece(100, 90, 20), Piece(100, 10, 200, 5), Piece(100, None, 5, 5)]
    assert place(dear).sides == ("gpu", "gpu", "cpu")  # in once is cheaper than in late
    assert place([Piece(100, 90, 20), Piece(100, 95, 20, 20)], out_ns=20).sides == (
        "cpu",
        "cpu",
    )


def test_segments_that_cannot_run_are_bridged_by_the_cpu() -> None:
    chain = [Piece(100, 10, 1), Piece(100, None, 1, 1), Piece(100, 10, 1, 1)]
    found = place(chain, out_ns=1)
    assert found.sides == ("gpu", "cpu", "gpu")
    assert found.total_ns == 124


def test_ties_go_to_the_cpu_and_to_fewer_crossings() -> None:
    assert place([Piece(5, 5), Piece(5, 5)]).sides == ("cpu", "cpu")
    found = place([Piece(10, 1), Piece(5, 5), Piece(10, 1)])
    assert found.sides == ("gpu", "gpu", "gpu")
    assert place([]).sides == ()


def test_long_chains_take_no_time_to_speak_of() -> None:
    chain = [Piece(10 + i % 7, 8 + i % 5, 3, 3) for i in range(2000)]
    assert len(place(chain).sides) == 2000


HEAVY = Work({"conv": 2e9}, 4e6, 1e6, 1e6, 10)
LIGHT = Work({"map": 1e5}, 1e6, 1e5, 1e5, 1)


def cpu_ns(work: Work) -> int:
    return 1000 + round(sum(work.flops.values()) / 10)


def gpu_ns(work: Work) -> int:
    return 50_000 + round(sum(work.flops.values()) / 100 + (work.bytes_in + work.bytes_out) / 10)


def test_part_that_pays_for_what_crosses_goes_to_the_gpu() -> None:
    found = mixture([(HEAVY, HEAVY), (LIGHT, None), (LIGHT, LIGHT)], gpu_ns, cpu_ns)
    assert found is not None and found.sides == ("gpu", "cpu", "cpu")
    assert found.total_ns == 50_000 + 20_000_000 + 200_000 + 2 * 11_000


def test_nothing_goes_there_where_it_saves_nothing() -> None:
    far = replace(HEAVY, bytes_in=1e10)
    assert mixture([(HEAVY, far), (LIGHT, None)], gpu_ns, cpu_ns) is None
    assert mixture([(LIGHT, LIGHT), (LIGHT, None)], gpu_ns, cpu_ns) is None
    assert mixture([(LIGHT, None)], gpu_ns, cpu_ns) is None
    assert mixture([], gpu_ns, cpu_ns) is None


def test_parts_are_scaled_to_what_the_whole_was_timed_at() -> None:
    parts = [(HEAVY, HEAVY), (LIGHT, None)]
    found = mixture(parts, gpu_ns, cpu_ns, 2 * (cpu_ns(HEAVY) + cpu_ns(LIGHT)))
    assert found is not None and found.total_ns == gpu_ns(HEAVY) + 2 * cpu_ns(LIGHT)
    assert mixture(parts, gpu_ns, cpu_ns, 10**6) is None  # the CPU turned out to be quick
