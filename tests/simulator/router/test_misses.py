"""Misses are counted by their cause as an oracle counts them that sees every change of every cache."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from warmfleet_contracts.cache.blocks import BlockHash
from warmfleet_simulator.replica.replica import Replica
from warmfleet_simulator.replica.settings import ReplicaSettings
from warmfleet_simulator.router.outcome import Outcome
from warmfleet_simulator.router.router import SimulatedRouter
from warmfleet_simulator.simulation import SimulationSettings, simulate
from warmfleet_simulator.step_times import StepTimes
from warmfleet_simulator.traces.request import FIRST_ANSWER_ID, Segment, TraceRequest

BLOCK = 32
REPLICA = ReplicaSettings(StepTimes(10**9, 10**6, 10**6, 0), BLOCK, total_blocks=300, seats=16)


@dataclass
class Oracle:
    """The true content of every cache, and which blocks any of them ever held."""

    replicas: list[Replica] = field(default_factory=list)
    seen: set[BlockHash] = field(default_factory=set)
    tokens: Counter[str] = field(default_factory=Counter)

    def note(self) -> None:
        for replica in self.replicas:
            self.seen |= replica._engine._pool.resident_hashes

    def causes(self, uid: str, hashes: list[BlockHash]) -> list[str]:
        """Per block: who could have served it when the request's worker was chosen."""
        self.note()
        held = {replica.uid: replica._engine._pool.resident_hashes for replica in self.replicas}
        causes = []
        for position, block in enumerate(hashes):
            if any(
                other != uid and all(before in blocks for before in hashes[: position + 1])
                for other, blocks in held.items()
            ):
                causes.append("placement")
            elif block in self.seen:
                causes.append("capacity")
            else:
                causes.append("compulsory")
        return causes


@pytest.fixture
def oracle(monkeypatch: pytest.MonkeyPatch) -> Oracle:
    seen = Oracle()
    exchange, make, finish = SimulatedRouter._exchange, Replica.__init__, Replica._finish

    async def watched(
        self: SimulatedRouter, request: TraceRequest, tokens: Any, dispatch: Any, at: float
    ) -> Outcome:
        prompt = dispatch.picked.prediction.prompts[0]
        hashes = list(prompt.hashes[: prompt.cacheable_tokens // BLOCK])
        causes = seen.causes(dispatch.picked.endpoint.uid, hashes)
        outcome = await exchange(self, request, tokens, dispatch, at)
        missed = causes[outcome.cached_tokens // BLOCK :]
        seen.tokens.update({cause: count * BLOCK for cause, count in Counter(missed).items()})
        seen.tokens["compulsory"] += request.prompt_tokens - len(hashes) * BLOCK
        return outcome

    def made(self: Replica, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        seen.replicas.append(self)

    def finished(self: Replica, step: Any) -> None:
        finish(self, step)
        seen.note()

    monkeypatch.setattr(SimulatedRouter, "_exchange", watched)
    monkeypatch.setattr(Replica, "__init__", made)
    monkeypatch.setattr(Replica, "_finish", finished)
    return seen


def conversations(requests: int) -> Iterator[TraceRequest]:
    """Each goes on with another question now and then; together they do not fit the caches."""
    draw, at = random.Random(4), 0.0
    prompts: list[list[Segment]] = [[Segment(number, 20 * BLOCK)] for number in range(60)]
    for number in range(requests):
        prompt = draw.choice(prompts)
        prompt.append(Segment(1000 + number, draw.randint(1, 3 * BLOCK)))
        if len(prompt) > 12:
            del prompt[6:]
        yield TraceRequest(at, tuple(prompt), draw.randint(1, 30), FIRST_ANSWER_ID + number)
        at += draw.expovariate(8.0)


@pytest.mark.parametrize("routing", ["LowestCost", "RoundRobin", "ConsistentHash"])
def test_each_cause_is_within_one_percent_of_the_oracles(oracle: Oracle, routing: str) -> None:
    report = simulate(conversations(1200), SimulationSettings(replica=REPLICA, replicas=4, routing=routing))

    missed = report.prompt_tokens - report.cached_tokens
    assert sum(report.missed_tokens.values()) == missed == sum(oracle.tokens.values())
    for cause, tokens in report.missed_tokens.items():
        assert abs(tokens - oracle.tokens[cause]) <= 0.01 * report.prompt_tokens, (cause, oracle.tokens)
    assert oracle.tokens["capacity"] > 0.05 * missed
    assert oracle.tokens["placement"] > {"RoundRobin": 0.1, "ConsistentHash": 0.05}.get(routing, 0.0) * missed


def test_a_miss_costs_its_prefill(oracle: Oracle) -> None:
    report = simulate(
        conversations(50), SimulationSettings(replica=REPLICA, replicas=2, routing="LowestCost")
    )

    for cause, tokens in report.missed_tokens.items():
        assert report.missed_replica_seconds[cause] == pytest.approx(tokens * 1e-6)


def test_a_router_without_events_knows_no_causes() -> None:
    report = simulate(
        conversations(20), SimulationSettings(replica=REPLICA, replicas=2, routing="ApproximatePrefix")
    )

    assert report.missed_tokens == report.missed_replica_seconds == {}
