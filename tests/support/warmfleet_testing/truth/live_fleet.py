"""Workers behind a router, all processes of their own, and a client that replays requests in real time."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import msgspec

from warmfleet_cli.bench.client import Answer, Question, ask, benchmark_client
from warmfleet_contracts.cache.blocks import tenant_salt
from warmfleet_contracts.cache.fleet_totals import FLEET_TOTALS_PATH, decode_totals
from warmfleet_contracts.cache.kv_events import StepTimeFit
from warmfleet_contracts.names import SALT_KEY_VARIABLE
from warmfleet_router.routing.decision_ring import MAX_DECISIONS
from warmfleet_router.tenants import ANONYMOUS
from warmfleet_simulator.replica.settings import ReplicaSettings
from warmfleet_simulator.router.placed_picker import prompt_key
from warmfleet_simulator.step_times import StepTimes
from warmfleet_testing.engine.worker_process import (
    TINY_NAME,
    WorkerProcess,
    running_worker,
    tiny_served_model,
)
from warmfleet_testing.router.router_process import RouterProcess, router_process
from warmfleet_testing.truth.conversations import TextRequest
from warmfleet_testing.truth.event_log import event_log
from warmfleet_testing.truth.sleeping_runner import STEP_TIMES_VARIABLE

CONTEXT_TOKENS: Final = 16_384
_KV_BYTES_PER_TOKEN: Final = 512
"""Of the tiny model."""
_LEAD_SECONDS: Final = 0.5
_SALT_KEY: Final = b"salt key of a replayed workload."


@dataclass(frozen=True, slots=True)
class TextQuestion(Question):
    """A question in text; its token ids count only."""

    text: str
    seed: int
    """Of the answer."""

    def body(self) -> dict[str, Any]:
        return Question.body(self) | {"prompt": self.text, "seed": self.seed}


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of requests that were sent to a live fleet."""

    answers: list[Answer]
    missed_tokens: Mapping[str, int]
    """Prompt tokens that were computed, by why, as the router counts them."""
    truly_missed_tokens: Mapping[str, int]
    """The same by the full log of what every worker stored and removed."""
    placements: Mapping[bytes, str]
    """The uid of the worker that answered each prompt, by its `prompt_key`."""


@dataclass(frozen=True)
class LiveFleet:
    """Running workers and their router."""

    router: RouterProcess
    workers: dict[str, WorkerProcess]
    asks_in_text: bool = True
    """Otherwise prompts are lists of token ids, for a model with another tokenizer."""

    def replica(self, seats: int) -> ReplicaSettings:
        """A simulated worker like these: as large, and with the mean of the step times that they report."""
        with self.router.client() as client:
            endpoints = client.get("/internal/fleet").raise_for_status().json()["endpoints"]
        fits = [msgspec.convert(endpoint["load"]["step_time"], StepTimeFit) for endpoint in endpoints]
        cache = next(iter(self.workers.values())).cache()
        return ReplicaSettings(
            StepTimes.of(_mean([fit for fit in fits if fit.samples])),
            cache["block_size_tokens"],
            cache["total_blocks"],
            seats,
        )

    def replay(self, requests: Sequence[TextRequest]) -> Replayed:
        """Send each request when it is due; times to first token count from then."""
        return asyncio.run(self._replay(requests))

    async def _replay(self, requests: Sequence[TextRequest]) -> Replayed:
        async with event_log(self.workers) as log:
            answers = await self._answers(requests)
        prompts = {request_id_of(number): request.token_ids() for number, request in enumerate(requests)}
        with self.router.client() as client:
            totals = decode_totals(client.get(FLEET_TOTALS_PATH).raise_for_status().content)
            listed = (
                client.get("/internal/decisions", params={"limit": MAX_DECISIONS}).raise_for_status().json()
            )
        answered = [one for one in listed["decisions"] if one["actual_prompt_tokens"] is not None]
        return Replayed(
            answers=answers,
            missed_tokens=totals.models[TINY_NAME].misses.by_cause,
            truly_missed_tokens=log.missed_tokens(answered, prompts, tenant_salt(_SALT_KEY, ANONYMOUS.name)),
            placements={prompt_key(prompts[one["request_id"]]): one["uid"] for one in answered},
        )

    async def _answers(self, requests: Sequence[TextRequest]) -> list[Answer]:
        clock = asyncio.get_running_loop().time
        start = clock() + _LEAD_SECONDS

        async def one(number: int, request: TextRequest) -> Answer:
            due = start + request.arrival_seconds
            await asyncio.sleep(due - clock())
            asked = (request_id_of(number), TINY_NAME, request.token_ids(), request.output_tokens)
            question = (
                TextQuestion(*asked, request.text, request.answer_id)
                if self.asks_in_text
                else Question(*asked)
            )
            return await ask(client, self.router.url, question, due=due)

        async with benchmark_client() as client:
            return await asyncio.gather(*(one(number, request) for number, request in enumerate(requests)))


def request_id_of(number: int) -> str:
    """Of the number-th request of a replay."""
    return f"live-{number}"


@contextmanager
def sleeping_fleet(
    home: Path, replica: ReplicaSettings, *, workers: int, routing: str
) -> Iterator[LiveFleet]:
    """Workers as `replica` describes them and a router with the policy `routing`, ready and empty."""
    with (
        sleeping_workers(home, replica, workers) as started,
        _router(home, started, routing) as router,
    ):
        yield LiveFleet(router, started)


@contextmanager
def sleeping_workers(home: Path, replica: ReplicaSettings, count: int) -> Iterator[dict[str, WorkerProcess]]:
    """Workers as `replica` describes them by uid, ready and empty."""
    model = tiny_served_model(home / "model", max_position_embeddings=CONTEXT_TOKENS)
    flags = (
        *("--kv-cache-bytes", str(replica.capacity_tokens * _KV_BYTES_PER_TOKEN)),
        *("--block-size-tokens", str(replica.block_size_tokens)),
        *("--max-running-sequences", str(replica.seats)),
    )
    environment = {STEP_TIMES_VARIABLE: msgspec.json.encode(replica.step_times).decode()}
    module = "warmfleet_testing.truth.sleeping_worker"
    with _workers(model, count, flags, module, environment) as started:
        assert {worker.cache()["total_blocks"] for worker in started.values()} == {replica.total_blocks}
        yield started


@contextmanager
def computing_fleet(
    home: Path, model: Path, *, kv_cache_bytes: int, seats: int, workers: int, routing: str
) -> Iterator[LiveFleet]:
    """The same of workers that compute a model."""
    flags = ("--kv-cache-bytes", str(kv_cache_bytes), "--max-running-sequences", str(seats))
    with _workers(model, workers, flags) as started, _router(home, started, routing) as router:
        yield LiveFleet(router, started, asks_in_text=False)


@contextmanager
def _workers(
    model: Path,
    count: int,
    flags: Sequence[str],
    module: str = "warmfleet_worker",
    environment: Mapping[str, str] = {},
) -> Iterator[dict[str, WorkerProcess]]:
    with ExitStack() as stack:
        uids = [f"replica-{number:04}" for number in range(1, count + 1)]  # as in a simulation
        started = {
            uid: stack.enter_context(
                running_worker(
                    model, "--uid", uid, *flags, module=module, environment=environment, wait=False
                )
            )
            for uid in uids
        }
        for worker in started.values():
            worker.wait_until_ready()
        yield started


def _router(
    home: Path, workers: Mapping[str, WorkerProcess], routing: str
) -> AbstractContextManager[RouterProcess]:
    keys = {SALT_KEY_VARIABLE: _SALT_KEY.hex()}
    return router_process(workers, home, "--policy", routing, environment=keys)


def _mean(fits: Sequence[StepTimeFit]) -> StepTimeFit:
    def mean(name: str) -> float:
        return fmean(getattr(fit, name) for fit in fits)

    return StepTimeFit(
        base_seconds=mean("base_seconds"),
        per_prefill_token_seconds=mean("per_prefill_token_seconds"),
        per_decode_sequence_seconds=mean("per_decode_sequence_seconds"),
        per_context_token_seconds=mean("per_context_token_seconds"),
        knee_tokens=round(mean("knee_tokens")),
        samples=sum(fit.samples for fit in fits),
    )
