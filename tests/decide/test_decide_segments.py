"""Placement over a chain of segments, against trying every assignment."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuedge.decide.segments import Piece, place

times = st.integers(0, 60)
pieces = st.lists(
    st.builds(Piece, times, st.one_of(st.none(), times), times, times), min_size=1, max_size=7
)


def cost(chain: list[Piece], alternatives: tuple[str, ...], out_ns: int) -> int | None:
    """What an assignment costs, counted one segment at a time; None where it is impossible."""
    total, at = 0, "cpu"
    for piece, alternative in zip(chain, alternatives, strict=True):
        if alternative == "gpu" and piece.gpu_ns is None:
            return None
        if alternative != at:
            total += piece.to_gpu_ns if alternative == "gpu" else piece.to_cpu_ns
        total += (piece.gpu_ns or 0) if alternative == "gpu" else piece.cpu_ns
        at = alternative
    return total + (out_ns if at == "gpu" else 0)


@settings(max_examples=200)
@given(pieces, times, st.integers(0, 300), st.integers(1, 20), st.sampled_from([1000, 1200, 3000]))
def test_against_every_assignment(
    chain: list[Piece], out_ns: int, startup: int, inferences: int, speedup: int
) -> None:
    found = place(
        chain, out_ns=out_ns, startup_ns=startup, inferences=inferences, speedup_milli=speedup
    )
    host = sum(p.cpu_ns for p in chain)
    assert found.cpu_ns == host
    mixed = [
        cost(chain, alternatives, out_ns)
        for alternatives in product(("cpu", "gpu"), repeat=len(chain))
        if "gpu" in alternatives
    ]  # fmt: skip
    best = min((c for c in mixed if c is not None), default=None)
    is_worth = False
    if best is not None and best < host:
        total = best + Fraction(startup, inferences)
        is_worth = total < host and total * Fraction(speedup, 1000) <= host
    assert ("gpu" in found.alternatives) == is_worth
    if is_worth:
        assert found.total_ns == math.ceil(total)
        assert cost(chain, found.alternatives, out_ns) == best
    else:
        assert found.total_ns == host
        assert found.crossings == 0


def test_transfer_keeps_small_gains_on_the_cpu() -> None:
    chain = [Piece(100, 90), Piece(100, 10, 5, 5), Piece(100, None, 5, 5)]
    assert place(chain).alternatives == ("gpu", "gpu", "cpu")
    dear = [Piece(100, 90, 20), Piece(100, 10, 200, 5), Piece(100, None, 5, 5)]
    assert place(dear).alternatives == ("gpu", "gpu", "cpu")  # in once is cheaper than in late
    assert place([Piece(100, 90, 20), Piece(100, 95, 20, 20)], out_ns=20).alternatives == (
        "cpu",
        "cpu",
    )


def test_segments_that_cannot_run_are_bridged_by_the_cpu() -> None:
    chain = [Piece(100, 10, 1), Piece(100, None, 1, 1), Piece(100, 10, 1, 1)]
    found = place(chain, out_ns=1)
    assert found.alternatives == ("gpu", "cpu", "gpu")
    assert (found.total_ns, found.crossings) == (124, 4)


def test_start_up_and_speedup_are_asked_of_the_whole() -> None:
    chain = [Piece(100, 50)]
    assert place(chain, startup_ns=499, inferences=10).alternatives == ("gpu",)
    assert place(chain, startup_ns=500, inferences=10).alternatives == ("cpu",)
    assert place(chain, speedup_milli=2000).alternatives == ("gpu",)
    assert place(chain, speedup_milli=2001).alternatives == ("cpu",)


def test_ties_go_to_the_cpu_and_to_fewer_crossings() -> None:
    assert place([Piece(5, 5), Piece(5, 5)]).alternatives == ("cpu", "cpu")
    found = place([Piece(10, 1), Piece(5, 5), Piece(10, 1)])
    assert found.alternatives == ("gpu", "gpu", "gpu")
    assert place([]).alternatives == ()


def test_long_chains_take_no_time_to_speak_of() -> None:
    chain = [Piece(10 + i % 7, 8 + i % 5, 3, 3) for i in range(2000)]
    assert len(place(chain).alternatives) == 2000


def test_times_are_checked() -> None:
    with pytest.raises(ValueError, match="gpu_ns"):
        Piece(1, -1)
    with pytest.raises(ValueError, match="cpu_ns"):
        Piece(1.5)  # type: ignore[arg-type]
