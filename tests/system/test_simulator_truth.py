"""The simulator finds in its caches what workers that sleep for its step times find in theirs."""

from dataclasses import replace
from pathlib import Path

import pytest

from warmfleet_simulator.replica.settings import ReplicaSettings
from warmfleet_simulator.simulation import SimulationSettings, simulate
from warmfleet_simulator.step_times import StepTimes
from warmfleet_testing.truth.compared_runs import Difference, Run, wrongly_ordered
from warmfleet_testing.truth.conversations import Workload, requests_of
from warmfleet_testing.truth.live_fleet import sleeping_fleet

REPLICA = ReplicaSettings(
    StepTimes(base_ps=5 * 10**9, prefill_token_ps=10**8, decode_ps=10**9, context_token_ps=10**6),
    block_size_tokens=16,
    total_blocks=0,
    seats=16,
)
WORKLOAD = Workload(
    seconds=13,
    requests_per_second=4,
    is_even=True,
    open_conversations=16,
    system_prompts=4,
    system_tokens=160,
    message_tokens=(20, 240),
    answer_tokens=(2, 8),
    longest_prompt_tokens=1000,
    pause_seconds=1.0,
)
"""So little that requests do not meet, on a machine that is several times slower neither."""


@pytest.mark.parametrize(("routing", "blocks"), [("RoundRobin", 160), ("LowestCost", 300)])
def test_a_live_fleet_hits_and_misses_as_the_simulated_one(tmp_path: Path, routing: str, blocks: int) -> None:
    """Of RoundRobin's caches most blocks are evicted; LowestCost finds room for each conversation in one."""
    requests, replica = list(requests_of(WORKLOAD)), replace(REPLICA, total_blocks=blocks)
    report = simulate(requests, SimulationSettings(replica=replica, replicas=3, routing=routing))

    with sleeping_fleet(tmp_path, replica, workers=3, routing=routing) as fleet:
        replayed = fleet.replay(requests)

    answers = replayed.answers
    assert [answer.error for answer in answers if answer.error] == []
    assert [answer.prompt_tokens for answer in answers] == [len(request.text) for request in requests]
    live, simulated = Run.of_answers(answers, replayed.missed_tokens), Run.of_report(report)
    assert live.answered == simulated.answered == len(requests) > 40
    assert Difference.between(live, simulated).hit_points <= 2.0, (live, simulated)
    for cause, percent in live.missed_percent.items():
        assert abs(simulated.missed_percent[cause] - percent) <= 2.0, (cause, live, simulated)
        true_percent = 100 * replayed.truly_missed_tokens.get(cause, 0) / report.prompt_tokens
        assert abs(true_percent - percent) <= 1.0, (cause, replayed)
    assert (report.evicted_blocks > 300) == (routing == "RoundRobin")


def test_only_figures_that_differ_have_an_order() -> None:
    live = {"a": 100.0, "b": 104.0, "c": 150.0}

    assert wrongly_ordered(live, {"a": 3.0, "b": 2.0, "c": 4.0}, equal_ratio=0.05) == []
    assert wrongly_ordered(live, {"a": 3.0, "b": 2.0, "c": 3.0}, equal_ratio=0.05) == ["a < c"]
