"""A simulated fleet: every request ends, equal seeds give equal reports, the production router routes."""

import random
from collections import OrderedDict
from collections.abc import Iterator

import msgspec
import pytest

from warmfleet_router.routing import picker
from warmfleet_simulator.progress import Progress
from warmfleet_simulator.replica.settings import ReplicaSettings
from warmfleet_simulator.report import Report
from warmfleet_simulator.router.routings import ROUTINGS
from warmfleet_simulator.simulation import SimulationSettings, simulate
from warmfleet_simulator.step_times import StepTimes
from warmfleet_simulator.traces.request import FIRST_ANSWER_ID, Segment, TraceRequest

BLOCK = 32
REPLICA = ReplicaSettings(
    StepTimes(10**10, 10**7, 10**8, 10**5, knee_tokens=64),
    block_size_tokens=BLOCK,
    total_blocks=400,
    seats=16,
)


def shared_prefixes(
    requests: int, *, prefixes: int, per_second: float, seed: int = 0
) -> Iterator[TraceRequest]:
    """Prompts of a system prompt, one of `prefixes`, and a question that no other prompt has."""
    draw, at = random.Random(seed), 0.0
    for number in range(requests):
        head = draw.randrange(prefixes)
        yield TraceRequest(
            arrival_seconds=at,
            prompt=(Segment(head, 30 * BLOCK), Segment(1000 + number, draw.randint(1, 100))),
            output_tokens=draw.randint(1, 40),
            answer_id=FIRST_ANSWER_ID + number,
        )
        at += draw.expovariate(per_second)


def run(routing: str = "LowestCost", *, replicas: int = 4, seed: int = 0, per_second: float = 20.0) -> Report:
    return simulate(
        shared_prefixes(300, prefixes=24, per_second=per_second),
        SimulationSettings(replica=REPLICA, replicas=replicas, routing=routing, seed=seed),
    )


@pytest.mark.parametrize("routing", ROUTINGS)
def test_every_request_is_answered_whole(routing: str) -> None:
    trace = list(shared_prefixes(300, prefixes=24, per_second=20.0))

    report = run(routing)

    assert (report.requests, report.answered, report.refused) == (300, 300, {})
    assert report.prompt_tokens == sum(request.prompt_tokens for request in trace)
    assert report.output_tokens == sum(request.output_tokens for request in trace)
    assert report.replica_seconds == 4 * report.virtual_seconds
    assert report.virtual_seconds > trace[-1].arrival_seconds


def test_equal_seeds_give_equal_reports() -> None:
    first, second = (msgspec.structs.replace(run(), wall_seconds=0.0) for _ in range(2))

    assert first == second


def test_a_shortlist_routes_a_fleet_as_a_ranking_of_all_its_workers_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short = run(replicas=40, per_second=200.0)
    monkeypatch.setattr(picker, "LISTED_WORKERS", 40)

    ranked = run(replicas=40, per_second=200.0)

    assert msgspec.structs.replace(short, wall_seconds=0.0) == msgspec.structs.replace(
        ranked, wall_seconds=0.0
    )


def test_another_seed_draws_other_delays() -> None:
    assert run(seed=1).first_token_ms != run(seed=2).first_token_ms


def test_routing_by_cached_prefix_hits_more_and_answers_sooner() -> None:
    reports = {routing: run(routing) for routing in ROUTINGS}

    hit_rates = {routing: report.hit_rate for routing, report in reports.items()}
    assert hit_rates["LowestCost"] > hit_rates["RoundRobin"] + 0.2
    assert hit_rates["ApproximatePrefix"] > hit_rates["RoundRobin"] + 0.2
    assert hit_rates["ConsistentHash"] > hit_rates["RoundRobin"] + 0.2
    medians = {routing: report.first_token_ms.p50 for routing, report in reports.items()}
    assert medians["LowestCost"] < medians["RoundRobin"]


def test_a_router_without_events_does_not_see_what_workers_evict() -> None:
    """Answers fill the caches, and only the workers' events show what they displace."""

    def report(routing: str) -> Report:
        small = ReplicaSettings(REPLICA.step_times, BLOCK, total_blocks=120, seats=4)
        return simulate(
            shared_prefixes(400, prefixes=10, per_second=15.0),
            SimulationSettings(replica=small, replicas=4, routing=routing),
        )

    assert report("LowestCost").hit_rate >= report("ApproximatePrefix").hit_rate


def test_one_replica_hits_what_a_naive_cache_hits() -> None:
    """At a load at which sequences overlap and 400 blocks do not hold all prefixes."""
    trace = list(shared_prefixes(600, prefixes=24, per_second=3.0))
    report = simulate(trace, SimulationSettings(replica=REPLICA, replicas=1, routing="RoundRobin"))

    assert report.answered == 600
    assert report.hit_rate == pytest.approx(naive_hit_rate(trace, REPLICA.total_blocks), abs=0.02)


def naive_hit_rate(trace: list[TraceRequest], capacity_blocks: int) -> float:
    """Of a list of blocks in the order of their last use, the tail of a prompt before its head."""
    kept: OrderedDict[bytes, None] = OrderedDict()
    cached = total = 0
    for request in trace:
        prompt = request.token_ids()
        tokens = prompt.tolist() + [request.answer_id] * (request.output_tokens - 1)
        blocks = [str(tokens[:end]).encode() for end in range(BLOCK, len(tokens) + 1, BLOCK)]
        held = 0
        while held < (len(prompt) - 1) // BLOCK and blocks[held] in kept:
            held += 1
        cached += held * BLOCK
        total += len(prompt)
        for block in reversed(blocks):
            kept[block] = None
            kept.move_to_end(block)
        while len(kept) > capacity_blocks:
            kept.popitem(last=False)
    return cached / total


def test_a_fleet_that_is_too_small_refuses_as_the_router_does() -> None:
    slow = ReplicaSettings(StepTimes(10**11, 10**9, 0, 0), BLOCK, total_blocks=400, seats=4)
    report = simulate(
        shared_prefixes(300, prefixes=24, per_second=20.0),
        SimulationSettings(replica=slow, replicas=1, routing="LowestCost"),
    )

    assert report.answered + sum(report.refused.values()) == report.requests == 300
    assert report.refused["overloaded"] > 0


def test_a_prompt_that_no_cache_holds_is_refused_by_its_code() -> None:
    request = TraceRequest(0.0, (Segment(1, REPLICA.capacity_tokens),), 5, FIRST_ANSWER_ID)
    report = simulate([request], SimulationSettings(replica=REPLICA, replicas=2, routing="LowestCost"))

    assert report.refused == {"context_length_exceeded": 1}
    assert report.first_token_ms.p50 is None


def test_an_empty_trace_has_an_empty_report() -> None:
    report = simulate([], SimulationSettings(replica=REPLICA, replicas=2, routing="LowestCost"))

    assert (report.requests, report.hit_rate, report.replica_seconds) == (0, 0.0, 0.0)


def test_progress_follows_the_arrivals() -> None:
    seen: list[Progress] = []
    simulate(
        shared_prefixes(20, prefixes=2, per_second=5.0),
        SimulationSettings(replica=REPLICA, replicas=2, routing="LowestCost"),
        done_ratio=lambda: len(seen) / 20,
        on_progress=seen.append,
    )

    assert [progress.requests for progress in seen] == list(range(1, 21))
    assert [progress.done_ratio for progress in seen] == [number / 20 for number in range(20)]
    assert seen[0].virtual_seconds == 0
