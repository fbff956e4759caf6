"""Properties of the choice, and the rule against its documented formulas."""

from __future__ import annotations

import math
from statistics import NormalDist

from decide_fakes import TWO
from hypothesis import given
from hypothesis import strategies as st

from gpuedge.decide.decision import decide
from gpuedge.decide.model import Prediction
from gpuedge.decide.policy import Policy
from gpuedge.decide.record import Evidence, Record

times = st.integers(1, 10**11)
policies = st.builds(
    Policy,
    min_speedup=st.floats(1.0, 10.0),
    inferences=st.integers(1, 10**6),
    allow_software=st.booleans(),
    percentile=st.sampled_from([50, 90, 99]),
    caution=st.sampled_from([0.1, 0.3, 1.0]),
)


def exact(at: int, startup: int = 0) -> Prediction:
    return Prediction(at, at, at, at, at, startup, "", sigma_micro=TWO)


def auto(policy: Policy, host: int, *gpus: tuple[int, int], software: bool = False) -> str:
    candidates = [
        Evidence(f"vulkan:{i}", is_software=software, prediction=exact(at, startup))
        for i, (at, startup) in enumerate(gpus)
    ]
    candidates.append(Evidence("cpu", prediction=exact(host)))
    return decide(Record("auto", policy, tuple(candidates), "x")).device


def expected(policy: Policy, host: int, at: int, startup: int) -> tuple[float, float, float]:
    """Expected cost over that of the CPU, break-even, probability of harm: the documented formulas.

    By the mathematical functions of Python, which the product does not use.
    """
    lasting = 0.05 if policy.percentile <= 65 else 0.24 if policy.percentile <= 95 else 0.49
    mean, var = math.log(at / host), math.log(2) ** 2 + lasting**2
    share = startup / policy.inferences / host
    harm = 1.0
    if share < 1.1:
        harm = NormalDist(mean, math.sqrt(var)).cdf(math.inf)
        harm -= NormalDist(mean, math.sqrt(var)).cdf(math.log(1.1 - share))
    return math.exp(mean + var / 2), 1 / policy.min_speedup - share, harm


@given(policies, times, times, times)
def test_rule_against_the_documented_formulas(
    policy: Policy, host: int, at: int, startup: int
) -> None:
    cost, least, harm = expected(policy, host, at, startup)
    if abs(cost - least) > 1e-5 and abs(harm - policy.caution) > 1e-5:
        wins = cost < least and harm < policy.caution
        assert auto(policy, host, (at, startup)) == ("vulkan:0" if wins else "cpu")


@given(policies, times, times, times, times, times)
def test_a_faster_gpu_never_flips_to_the_cpu(
    policy: Policy, host: int, at: int, startup: int, less: int, sooner: int
) -> None:
    if auto(policy, host, (at, startup)) == "vulkan:0":
        better = (max(at - less, 0), max(startup - sooner, 0))
        assert auto(policy, host, better) == "vulkan:0"
        assert auto(policy, host + less, (at, startup)) == "vulkan:0"


@given(policies, times, st.lists(st.tuples(times, times), min_size=1, max_size=4),
       st.integers(1, 1000))  # fmt: skip
def test_scale_does_not_matter(
    policy: Policy, host: int, gpus: list[tuple[int, int]], scale: int
) -> None:
    scaled = [(at * scale, startup * scale) for at, startup in gpus]
    assert auto(policy, host, *gpus) == auto(policy, host * scale, *scaled)


@given(policies, times, times, times)
def test_software_needs_permission(policy: Policy, host: int, at: int, startup: int) -> None:
    found = auto(policy, host, (at, startup), software=True)
    if policy.allow_software:
        assert found == auto(policy, host, (at, startup))
    else:
        assert found == "cpu"


@given(policies, times, st.lists(st.tuples(times, times), min_size=1, max_size=4))
def test_the_cheapest_gpu_is_taken(policy: Policy, host: int, gpus: list[tuple[int, int]]) -> None:
    found = auto(policy, host, *gpus)
    known = [expected(policy, host, at, startup) for at, startup in gpus]
    worth = [c < k and harm < policy.caution for c, k, harm in known]
    close = [abs(c - k) < 1e-5 or abs(harm - policy.caution) < 1e-5 for c, k, harm in known]
    if any(close):
        return
    costs = [1 / policy.min_speedup + c - k if w else math.inf
             for (c, k, _), w in zip(known, worth, strict=True)]  # fmt: skip
    if not any(worth):
        assert found == "cpu"
    else:
        place = int(found.removeprefix("vulkan:"))
        assert worth[place]
        assert costs[place] <= min(costs) + 2e-6
