"""Generated workloads: equal parameters give equal requests, with the properties that they state."""

import itertools
import statistics
from collections import Counter

import pytest

from warmfleet_simulator.errors import SimulationError
from warmfleet_simulator.traces.request import TraceRequest
from warmfleet_simulator.workloads.named import WORKLOADS, GeneratedTraffic, workload_of
from warmfleet_testing.cache.infinite_cache import infinite_hit_rate

every_workload = pytest.mark.parametrize("name", WORKLOADS)


def generated(text: str) -> list[TraceRequest]:
    return list(workload_of(text).generate())


@every_workload
def test_equal_seeds_give_equal_requests_and_others_do_not(name: str) -> None:
    first, second, other = (generated(f"{name},requests=200,seed={seed}") for seed in (3, 3, 4))

    assert first == second
    assert len(first) == 200
    assert [request.arrival_seconds for request in first] != [request.arrival_seconds for request in other]


@every_workload
def test_requests_come_in_the_order_of_their_arrivals_with_answers_of_their_own(name: str) -> None:
    requests = generated(f"{name},requests=500")

    arrivals = [request.arrival_seconds for request in requests]
    assert arrivals == sorted(arrivals)
    assert len({request.answer_id for request in requests}) == 500
    assert min(request.output_tokens for request in requests) >= 1


@every_workload
def test_requests_are_made_one_by_one(name: str) -> None:
    requests = workload_of(f"{name},requests=1000000000").generate()

    assert len(list(itertools.islice(requests, 100))) == 100


@every_workload
def test_answers_have_the_given_mean(name: str) -> None:
    """Within four standard errors."""
    requests = generated(f"{name},requests=20000,requestsPerSecond=50,outputTokens=300,lengthVariation=0.5")

    assert statistics.mean(request.output_tokens for request in requests) == pytest.approx(300, rel=0.015)


@pytest.mark.parametrize("name", ["steady", "bursty", "shared"])
def test_prompts_have_the_given_mean(name: str) -> None:
    requests = generated(f"{name},requests=20000,lengthVariation=0.5")

    assert statistics.mean(request.prompt_tokens for request in requests) == pytest.approx(2000, rel=0.015)


def test_lengths_vary_as_much_as_asked_for() -> None:
    outputs = [request.output_tokens for request in generated("steady,requests=20000,lengthVariation=0.5")]

    assert statistics.stdev(outputs) / statistics.mean(outputs) == pytest.approx(0.5, rel=0.05)


def test_lengths_without_variation_are_all_equal() -> None:
    requests = generated("steady,requests=50,lengthVariation=0,inputTokens=700,outputTokens=30")

    assert {(request.prompt_tokens, request.output_tokens) for request in requests} == {(700, 30)}


def per_second(requests: list[TraceRequest]) -> list[int]:
    """Arrivals in each whole second."""
    counts = Counter(int(request.arrival_seconds) for request in requests)
    return [counts[second] for second in range(int(requests[-1].arrival_seconds))]


def test_steady_arrivals_are_a_poisson_process() -> None:
    """Its counts have a variance that is their mean."""
    counts = per_second(generated("steady,requests=20000,requestsPerSecond=20"))

    assert statistics.mean(counts) == pytest.approx(20, rel=0.03)
    assert statistics.variance(counts) == pytest.approx(20, rel=0.15)


def test_bursts_keep_the_mean_rate_and_have_their_share_of_the_arrivals() -> None:
    """Bursts of a tenth of the time at nine times the rate: half of all arrivals."""
    counts = per_second(
        generated(
            "bursty,requests=60000,requestsPerSecond=20,burstFactor=9,burstSeconds=10,calmSeconds=90,seed=1"
        )
    )

    assert statistics.mean(counts) == pytest.approx(20, rel=0.15)  # about thirty bursts
    calm, burst = 20 / 1.8, 180 / 1.8
    in_bursts = sum(count for count in counts if count > (calm + burst) / 2)
    assert in_bursts / sum(counts) == pytest.approx(0.5, abs=0.08)


def test_prompts_of_steady_traffic_share_nothing() -> None:
    assert infinite_hit_rate(generated("steady,requests=500"), 16) == 0


def test_an_infinite_cache_hits_the_system_prompts() -> None:
    """All of their 90 whole blocks, in all requests but the first with each."""
    requests = generated("shared,requests=4000,systemPrompts=5,systemTokens=1440,questionTokens=360")

    expected = 1440 * (4000 - 5) / sum(request.prompt_tokens for request in requests)
    assert infinite_hit_rate(requests, 16) == pytest.approx(expected)
    assert expected == pytest.approx(1440 / (1440 + 360), rel=0.02)


def test_system_prompts_are_as_popular_as_the_exponent_states() -> None:
    requests = generated("shared,requests=20000,systemPrompts=3,popularityExponent=1")

    counts = Counter(request.prompt[0].segment_id for request in requests)
    shares = [counts[system] / 20000 for system in range(3)]
    assert shares == pytest.approx([6 / 11, 3 / 11, 2 / 11], abs=0.02)


def test_a_workloads_name_has_every_field_and_makes_the_same_workload_again() -> None:
    workload = workload_of(" bursty, requests=7 , burstFactor=2.5")

    name = GeneratedTraffic(workload).name

    assert name.startswith("bursty,requests=7,requestsPerSecond=10.0,")
    assert workload_of(name) == workload


def test_traffic_is_the_same_each_time_it_is_opened_and_its_progress_known() -> None:
    traffic = GeneratedTraffic(workload_of("shared,requests=40"))
    with traffic.open() as first:
        begun = list(itertools.islice(first.requests, 10))
        assert first.done_ratio() == 0.25
    with traffic.open() as second:
        assert list(second.requests)[:10] == begun
        assert second.done_ratio() == 1.0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no workload is called ''; known are steady, bursty, shared, diurnal, agent"),
        ("quiet", "no workload is called 'quiet'"),
        ("steady,requests", "steady: 'requests' is not field=value"),
        ("steady,request=3", "unknown field `request`; its fields are requests, requestsPerSecond"),
        ("steady,requests=many", "`$.requests`"),
        ("steady,requests=0", "`int` >= 1 - at `$.requests`"),
        ("steady,requestsPerSecond=nan", "`$.requestsPerSecond`"),
        ("steady,requestsPerSecond=inf", "`$.requestsPerSecond`"),
        ("steady,inputTokens=10000000", "`$.inputTokens`"),
        ("steady,lengthVariation=-1", "`$.lengthVariation`"),
        ("bursty,burstFactor=0.5", "`$.burstFactor`"),
        ("shared,systemPrompts=1000000000", "`$.systemPrompts`"),
        ("diurnal,swing=1.1", "`$.swing`"),
        ("agent,calls=0.5", "`$.calls`"),
    ],
)
def test_impossible_parameters_are_refused_by_their_names(text: str, reason: str) -> None:
    with pytest.raises(SimulationError) as refused:
        workload_of(text)
    assert reason in str(refused.value)
