"""Conversations and agents: prompts that grow, pauses between them, and what an infinite cache hits."""

import itertools
import statistics
from collections import defaultdict

import pytest

from warmfleet_simulator.traces.request import Segment, TraceRequest
from warmfleet_simulator.workloads.named import workload_of
from warmfleet_testing.cache.infinite_cache import infinite_hit_rate

SMALL = {
    "diurnal": "diurnal,systemTokens=40,documentTokens=100,questionTokens=10,outputTokens=12,turns=4",
    "agent": "agent,agents=2,systemTokens=60,taskTokens=20,resultTokens=15,outputTokens=9,calls=6",
}
CONSTANT = {"diurnal": "swing=0", "agent": "burstFactor=1"}
"""Makes the rate of sessions constant."""
every_session_workload = pytest.mark.parametrize("name", SMALL)


def generated(text: str) -> list[TraceRequest]:
    return list(workload_of(text).generate())


def by_session(requests: list[TraceRequest]) -> list[list[TraceRequest]]:
    """Requests with the same first input, which no other session has."""
    found = defaultdict[Segment, list[TraceRequest]](list)
    for request in requests:
        found[request.prompt[1]].append(request)
    return list(found.values())


@every_session_workload
def test_each_prompt_is_the_one_before_its_answer_and_something_new(name: str) -> None:
    requests = generated(f"{SMALL[name]},requests=3000")

    inputs = [request.prompt[-1].segment_id for request in requests]
    assert len(set(inputs)) == len(inputs)
    for session in by_session(requests):
        assert len(session[0].prompt) == 2
        for before, after in itertools.pairwise(session):
            answer = Segment(before.answer_id, before.output_tokens)
            assert after.prompt[:-1] == (*before.prompt, answer)


@every_session_workload
def test_a_call_comes_after_the_answer_to_the_last_one_and_a_pause(name: str) -> None:
    requests = generated(f"{SMALL[name]},requests=20000,tokenSeconds=0.5")

    pauses = [
        after.arrival_seconds - before.arrival_seconds - 0.5 * before.output_tokens
        for session in by_session(requests)
        for before, after in itertools.pairwise(session)
    ]
    assert min(pauses) > 0
    mean, variation = (90, 1) if name == "diurnal" else (10, 2)
    assert statistics.mean(pauses) == pytest.approx(mean, rel=0.06)
    assert statistics.stdev(pauses) / mean == pytest.approx(variation, rel=0.25)


@every_session_workload
def test_sessions_have_the_given_mean_of_calls(name: str) -> None:
    """Of those that began in the first half, so that they had the time to end."""
    requests = generated(f"{SMALL[name]},requests=30000,requestsPerSecond=5")

    sessions = by_session(requests)[: 15_000 // 6]
    mean = 4 if name == "diurnal" else 6
    assert statistics.mean(map(len, sessions)) == pytest.approx(mean, rel=0.06)
    assert max(map(len, sessions)) <= 10 * mean


@every_session_workload
def test_the_rate_is_the_given_one_once_sessions_end_as_often_as_they_begin(name: str) -> None:
    requests = generated(f"{SMALL[name]},requests=30000,requestsPerSecond=10,{CONSTANT[name]}")

    late = [request for request in requests if request.arrival_seconds > 1000]
    assert len(late) / (late[-1].arrival_seconds - 1000) == pytest.approx(10, rel=0.06)


def test_a_day_begins_at_its_minimum_and_peaks_in_the_middle() -> None:
    """With single calls, so that no later ones follow the peak: 1 - 0.7, 1 and 1 + 0.7 times the mean."""
    requests = generated("diurnal,requests=40000,requestsPerSecond=20,daySeconds=2000,turns=1")

    def rate(middle: float) -> float:
        near = sum(abs(request.arrival_seconds - middle) < 50 for request in requests)
        return near / 100

    assert rate(1000) == pytest.approx(34, rel=0.08)
    assert rate(500) == pytest.approx(20, rel=0.1)
    assert rate(1500) == pytest.approx(20, rel=0.1)
    assert sum(request.arrival_seconds < 50 for request in requests) / 50 == pytest.approx(6, rel=0.25)
    assert requests[-1].arrival_seconds == pytest.approx(2000, rel=0.05)


@every_session_workload
def test_an_infinite_cache_hits_all_but_what_is_new(name: str) -> None:
    """In blocks of a token: first uses of system prompts, each input, and the last token of an answer."""
    requests = generated(f"{SMALL[name]},requests=2000")

    systems = {request.prompt[0] for request in requests}
    missed = sum(system.tokens for system in systems)
    missed += sum(request.prompt[-1].tokens + (len(request.prompt) > 2) for request in requests)
    expected = 1 - missed / sum(request.prompt_tokens for request in requests)
    assert infinite_hit_rate(requests, 1) == pytest.approx(expected, abs=1e-9)


@every_session_workload
def test_the_share_that_is_new_is_the_one_that_the_workload_states(name: str) -> None:
    requests = generated(f"{name},requests=40000,requestsPerSecond=1,lengthVariation=0.3,{CONSTANT[name]}")

    calls, first, later, output, system = (
        (5, 8200, 200, 300, 1000) if name == "diurnal" else (15, 1000, 700, 120, 10_000)
    )
    stated = (first + (calls - 1) * later) / (
        calls * (system + first) + calls * (calls - 1) * (later + output)
    )
    new = sum(request.prompt[-1].tokens for request in requests)
    assert new / sum(request.prompt_tokens for request in requests) == pytest.approx(stated, rel=0.05)
