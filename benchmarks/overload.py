"""What becomes of a fleet that is asked for three times what it can do, and how soon is it itself again?

One router with keys and its own defaults before real workers. Requests one after the other show how long a
first token takes without others; a closed loop measures the capacity: so many requests under way that every
seat is always taken. Then requests arrive whether or not earlier ones were answered: at half the capacity, at
three times, and at half again. In the overload they are a Poisson process; before and after it they are
evenly spaced, so that no request meets the prefill of another by chance. All have prompts of their own, so
the cache helps no request.

The fleet has recovered when every later request gets its first token within twice the time that one alone
takes. The time until then counts from the end of the overload.

    python benchmarks/overload.py [--workers 1] [--factor 3] [--seconds 30]     # about two and a half minutes
"""

import argparse
import asyncio
import contextlib
import math
import os
import random
import secrets
import sys
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import httpx
import msgspec
import uvloop
from harness.event_client import Answer, EventClient
from harness.measured_router import COMPLETIONS_PATH, TENANT, Cores, on_cores
from harness.report import Report, machine_line
from harness.tenant_keys import write_keys

from warmfleet_cli.bench.figures import Target, mean, median, percentile
from warmfleet_cli.bench.processes import LocalProcess, spawned
from warmfleet_contracts.names import HOME_VARIABLE, SALT_KEY_VARIABLE
from warmfleet_router.admission.queue_bounds import AdmissionSettings
from warmfleet_router.admission.wait_queue import ALWAYS_HELD_REQUESTS
from warmfleet_runtime.home import warmfleet_home
from warmfleet_worker.model_store.catalog import catalog_model_path

MODEL_NAME: Final = "smollm2-135m-instruct"
PROMPT_TOKENS: Final = 64
ANSWER_TOKENS: Final = 16
KNOWN_TOKEN_IDS: Final = range(1000, 40_000)
SEATS: Final = 8
NORMAL_RATIO: Final = 0.5
"""Of the capacity: what arrives before and after the overload."""
SETTLING: Final = 1 / 3
"""Part of a phase that is not counted: the queue fills, caches warm up."""
SAMPLE_SECONDS: Final = 0.1
STANDING_SECONDS: Final = 1.0
MIN_GOODPUT_RATIO: Final = 0.9
MAX_REFUSAL_MS: Final = 50.0
MAX_RECOVERY_SECONDS: Final = 10.0
RECOVERED_RATIO: Final = 2.0
"""To the first token, over the time without other requests."""
LONE_REQUESTS: Final = 20
NORMAL_FIRST_TOKEN_RATIO: Final = 1.5
HELD_MARGIN: Final = 1.5
"""The drain rate that bounds the queue is an estimate."""
WARM_UP_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Sent:
    """One request; times are seconds on the loop's clock."""

    due: float
    answer: Answer
    ended: float

    @property
    def refused(self) -> bool:
        return self.answer.status == 429

    @property
    def latency_seconds(self) -> float:
        """From when it was due to the last byte of what came."""
        return self.ended - self.due

    @property
    def first_token_seconds(self) -> float | None:
        """From when it was due, too."""
        if self.answer.first_token_seconds is None:
            return None
        return self.latency_seconds - self.answer.total_seconds + self.answer.first_token_seconds


@dataclass(frozen=True, slots=True)
class Sample:
    """What the router held at one moment."""

    at: float
    held_requests: int
    worker_waiting: int
    worker_running: int


@dataclass(frozen=True, slots=True)
class Phase:
    """A time in which requests arrived at one rate."""

    started: float
    ended: float

    @property
    def counted_from(self) -> float:
        return self.started + (self.ended - self.started) * SETTLING


@dataclass(frozen=True, slots=True)
class Watched:
    """Everything that was sent and seen."""

    sent: Sequence[Sent]
    samples: Sequence[Sample]

    def goodput(self, phase: Phase) -> float:
        """Whole answers per second that ended in the part of `phase` that counts."""
        since, until = phase.counted_from, phase.ended
        return sum(one.answer.complete and since <= one.ended < until for one in self.sent) / (until - since)

    def due(self, since: float, until: float) -> list[Sent]:
        return [one for one in self.sent if since <= one.due < until]

    def first_token_ms(self, since: float, until: float) -> list[float]:
        """Of what was due in that time and got an answer."""
        return [
            one.first_token_seconds * 1e3
            for one in self.due(since, until)
            if one.first_token_seconds is not None
        ]

    def late(self, phase: Phase, *, limit_seconds: float) -> list[Sent]:
        """Of what was due in `phase`, all that got no first token within `limit_seconds`."""
        return [
            one
            for one in self.due(phase.started, phase.ended)
            if not one.answer.complete
            or one.first_token_seconds is None
            or one.first_token_seconds > limit_seconds
        ]

    def most_held(self, phase: Phase) -> int:
        held = (one.held_requests for one in self.samples if phase.started <= one.at < phase.ended)
        return max(held, default=0)

    def seats_taken(self, phase: Phase) -> float:
        """Sequences that ran, on average over the part of `phase` that counts."""
        since, until = phase.counted_from, phase.ended
        return mean([one.worker_running for one in self.samples if since <= one.at < until])

    def queue_gone_after_seconds(self, phase: Phase, *, normal_held: int) -> float:
        """From the start of `phase` until, for good, no queue stands and no request is refused.

        A queue stands while more than `normal_held` wait for at least `STANDING_SECONDS` on end: that one
        request of a random stream waits for another's prefill is as normal before an overload as after it.
        """
        ends = [one.due for one in self.sent if one.refused]
        since: float | None = None
        for sample in self.samples:
            if sample.held_requests <= normal_held:
                since = None
                continue
            since = sample.at if since is None else since
            if sample.at - since >= STANDING_SECONDS:
                ends.append(sample.at)
        last = max((at for at in ends if phase.started <= at < phase.ended), default=None)
        return 0.0 if last is None else last + SAMPLE_SECONDS - phase.started


class Load:
    """Sends requests and watches the router."""

    def __init__(self, url: str, key: str, http: httpx.AsyncClient, *, seed: int = 0) -> None:
        self._sent: list[Sent] = []
        self._samples: list[Sample] = []
        self.watched = Watched(self._sent, self._samples)
        self._client = EventClient(url, key)
        self._url, self._key, self._http = url, key, http
        self._random = random.Random(seed)
        self._now = asyncio.get_running_loop().time

    async def closed_loop(self, *, under_way: int, seconds: float) -> Phase:
        """Keep `under_way` requests under way for `seconds`."""
        phase = Phase(self._now(), self._now() + seconds)

        async def one_after_the_other() -> None:
            while self._now() < phase.ended:
                await self._send(self._now())

        await asyncio.gather(*(one_after_the_other() for _ in range(under_way)))
        return phase

    async def alone(self, requests: int) -> Phase:
        """Send one request after the other."""
        started = self._now()
        for _ in range(requests):
            await self._send(self._now())
        return Phase(started, self._now())

    async def open_loop(
        self, tasks: asyncio.TaskGroup, *, per_second: float, seconds: float, evenly: bool
    ) -> Phase:
        """Send at even intervals, or as a Poisson process; `tasks` wait for the last answers."""
        phase = Phase(self._now(), self._now() + seconds)
        due = phase.started
        while (due := due + (1 if evenly else self._random.expovariate(1)) / per_second) < phase.ended:
            await asyncio.sleep(max(due - self._now(), 0))
            tasks.create_task(self._send(due))
        await asyncio.sleep(max(phase.ended - self._now(), 0))
        return phase

    async def watch(self) -> None:
        """Sample the router until cancelled."""
        headers = {"authorization": f"Bearer {self._key}"}
        while True:
            at = self._now()
            response = await self._http.get(f"{self._url}/internal/fleet", headers=headers)
            fleet = response.raise_for_status().json()
            totals = fleet["totals"]
            held = sum(held["requests"] for held in fleet["held"].values())
            self._samples.append(Sample(at, held, totals["waiting_sequences"], totals["running_sequences"]))
            await asyncio.sleep(SAMPLE_SECONDS)

    def close(self) -> None:
        self._client.close()

    async def _send(self, due: float) -> None:
        fields = {"model": MODEL_NAME, "max_tokens": ANSWER_TOKENS, "ignore_eos": True}
        options = {"stream": True, "stream_options": {"include_usage": True}}
        prompt = self._random.choices(KNOWN_TOKEN_IDS, k=PROMPT_TOKENS)
        body = msgspec.json.encode({**fields, **options, "prompt": prompt})
        answer = await self._client.ask(COMPLETIONS_PATH, body, uuid.uuid4().hex)
        self._sent.append(Sent(due, answer, self._now()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Overload:
    """What was measured."""

    capacity_per_second: float
    """Whole answers per second, closed loop."""
    requests: int
    answered: int
    refused: int
    failed: int
    """Neither answered whole nor refused with 429."""
    goodput_per_second: float
    refusal_p50_ms: float
    refusal_p95_ms: float
    retry_after_seconds: tuple[int, int]
    """Least and most of the seconds that refusals named."""
    seats_taken: tuple[float, float]
    """On average, at capacity and in the overload: what the goodput should be alike for."""
    most_held: int
    most_waiting_at_workers: int
    first_token_p50_ms: dict[str, float]
    """Before, during and after; and after it was normal again."""
    first_token_p95_ms: dict[str, float]
    lone_first_token_ms: float
    """Median of requests one after the other."""
    late_before: int
    """Of those before the overload, beyond twice that time."""
    late_after: int
    recovered_after_seconds: float
    """From the end of the overload until the last request that was late by that measure."""
    queue_gone_after_seconds: float

    def targets(self, factor: float) -> list[Target]:
        held = (
            self.capacity_per_second * AdmissionSettings().max_wait_seconds * HELD_MARGIN
            + ALWAYS_HELD_REQUESTS
        )
        slower = self.first_token_p50_ms["recovered"] / self.first_token_p50_ms["before"]
        limits = (
            ("neither answered nor refused", self.failed, 0, ""),
            ("median time to a refusal", self.refusal_p50_ms, MAX_REFUSAL_MS, " ms"),
            ("most requests held", self.most_held, math.ceil(held), ""),
            ("recovered after", self.recovered_after_seconds, MAX_RECOVERY_SECONDS, " s"),
            ("first token from then on, over that before", slower, NORMAL_FIRST_TOKEN_RATIO, ""),
        )
        ratio = self.goodput_per_second / self.capacity_per_second
        return [
            Target(f"goodput at {factor:g} x capacity, over the peak", ratio, MIN_GOODPUT_RATIO),
            *(
                Target(name, measured, limit, at_least=False, unit=unit)
                for name, measured, limit, unit in limits
            ),
        ]

    def lines(self) -> list[str]:
        least, most = self.retry_after_seconds
        first_token = ", ".join(
            f"{phase} {self.first_token_p50_ms[phase]:.0f}/{self.first_token_p95_ms[phase]:.0f}"
            for phase in self.first_token_p50_ms
        )
        answered, refused, failed = self.answered, self.refused, self.failed
        return [
            f"capacity {_rate(self.capacity_per_second)}",
            f"overload: {self.requests} requests, {answered} answered, {refused} refused, {failed} failed",
            f"goodput in it: {_rate(self.goodput_per_second)}",
            f"refusals: p50/p95 {self.refusal_p50_ms:.1f}/{self.refusal_p95_ms:.1f} ms to their last byte",
            f"Retry-After: {least} to {most} s",
            f"seats taken: {self.seats_taken[0]:.2f} at capacity, {self.seats_taken[1]:.2f} in the overload",
            f"held at most {self.most_held}, waiting at the workers at most {self.most_waiting_at_workers}",
            f"time to first token p50/p95 in ms: {first_token}; alone {self.lone_first_token_ms:.0f}",
            f"later than twice that: {self.late_before} before and {self.late_after} after the overload",
            f"no queue from {self.queue_gone_after_seconds:.1f} s after the overload",
        ]


def _rate(per_second: float) -> str:
    return f"{per_second:.2f} requests/s, {per_second * ANSWER_TOKENS:.0f} generated tokens/s"


def summary(watched: Watched, lone: Phase, capacity: Phase, phases: tuple[Phase, Phase, Phase]) -> Overload:
    """What the figures are, from what was sent and seen; `phases` are before, in and after the overload."""
    before, during, after = phases
    asked = watched.due(during.started, during.ended)
    refusals = [one for one in asked if one.refused]
    answered = sum(one.answer.complete for one in asked)
    refusal_ms = [one.latency_seconds * 1e3 for one in refusals]
    waits = [one.answer.retry_after_seconds or 0 for one in refusals]
    recovered = after.started + MAX_RECOVERY_SECONDS
    spans = {
        "before": (before.started, before.ended),
        "during": (during.started, during.ended),
        "after": (after.started, after.ended),
        "recovered": (recovered, after.ended),
    }
    lone_ms = median(watched.first_token_ms(lone.started, lone.ended))
    limit_seconds = lone_ms / 1e3 * RECOVERED_RATIO
    late_after = watched.late(after, limit_seconds=limit_seconds)
    first_tokens = {name: watched.first_token_ms(*span) for name, span in spans.items()}
    return Overload(
        capacity_per_second=watched.goodput(capacity),
        requests=len(asked),
        answered=answered,
        refused=len(refusals),
        failed=len(asked) - answered - len(refusals),
        goodput_per_second=watched.goodput(during),
        refusal_p50_ms=median(refusal_ms),
        refusal_p95_ms=percentile(refusal_ms, 95),
        retry_after_seconds=(min(waits, default=0), max(waits, default=0)),
        seats_taken=(watched.seats_taken(capacity), watched.seats_taken(during)),
        most_held=watched.most_held(during),
        most_waiting_at_workers=max((one.worker_waiting for one in watched.samples), default=0),
        first_token_p50_ms={name: median(values) for name, values in first_tokens.items()},
        first_token_p95_ms={name: percentile(values, 95) for name, values in first_tokens.items()},
        lone_first_token_ms=lone_ms,
        late_before=len(watched.late(before, limit_seconds=limit_seconds)),
        late_after=len(late_after),
        recovered_after_seconds=max((one.due - after.started for one in late_after), default=0.0),
        queue_gone_after_seconds=watched.queue_gone_after_seconds(
            after, normal_held=watched.most_held(before)
        ),
    )


async def run(options: argparse.Namespace, cores: Cores) -> tuple[Overload, Watched]:
    async with fleet(options, cores) as load:
        watching = asyncio.create_task(load.watch())
        await load.closed_loop(under_way=SEATS * options.workers, seconds=WARM_UP_SECONDS)
        lone = await load.alone(LONE_REQUESTS)
        saturated = SEATS * options.workers * 2
        capacity = await load.closed_loop(under_way=saturated, seconds=options.seconds)
        per_second = load.watched.goodput(capacity)
        async with asyncio.TaskGroup() as tasks:
            normal = NORMAL_RATIO * per_second
            phases = (
                await load.open_loop(tasks, per_second=normal, seconds=options.seconds, evenly=True),
                await load.open_loop(
                    tasks, per_second=options.factor * per_second, seconds=options.seconds, evenly=False
                ),
                await load.open_loop(tasks, per_second=normal, seconds=options.seconds, evenly=True),
            )
        watching.cancel()
        load.close()
    return summary(load.watched, lone, capacity, phases), load.watched


@contextlib.asynccontextmanager
async def fleet(options: argparse.Namespace, cores: Cores) -> AsyncIterator[Load]:
    """Workers on their cores, the router with the load generator on the first; ready."""
    folder, model_path = (
        options.output_dir,
        options.model_path or catalog_model_path(MODEL_NAME, warmfleet_home()),
    )
    if model_path is None:
        raise SystemExit(f"model {MODEL_NAME} is not here; fetch it: warmfleet model pull {MODEL_NAME}")
    key = write_keys(folder / "keys.json", {TENANT: ("inference", "admin")})[TENANT]
    environment = {SALT_KEY_VARIABLE: secrets.token_hex(32), HOME_VARIABLE: str(folder)}
    worker = ["warmfleet_worker", "--model", str(model_path), "--served-name", MODEL_NAME, "--port", "0"]
    worker += ["--max-running-sequences", str(SEATS), "--max-model-length-tokens", "1024"]
    worker += ["--threads", str(max(len(cores.others) // options.workers, 1))]
    router = ["warmfleet_router", "--port", "0", "--keys-file", str(folder / "keys.json")]
    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=30, trust_env=False))

        async def start(name: str, arguments: Sequence[str], on: frozenset[int]) -> LocalProcess:
            with on_cores(on):
                process = spawned(name, arguments, log_folder=folder, environment=environment)
                return await stack.enter_async_context(process)

        for number in range(options.workers):
            process = await start(f"worker-{number}", [*worker, "--uid", f"worker-{number}"], cores.others)
            router += ["--endpoint", f"worker-{number}={await process.ready(http)}"]
        url = await (await start("router", router, cores.router)).ready(http)
        with on_cores(cores.router):
            yield Load(url, key, http)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--factor", type=float, default=3.0, help="of the capacity, at the worst")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each of the four phases")
    parser.add_argument("--model-path", type=Path, help=f"instead of {MODEL_NAME}")
    parser.add_argument("--output-dir", type=Path, default=Path("bench-results/overload"))
    options = parser.parse_args()
    report = Report.begin(options, machine_line())
    cores = Cores.shared_out(sorted(os.sched_getaffinity(0)))
    measured, watched = uvloop.run(run(options, cores))
    return report.end(
        "\n".join(measured.lines()),
        measured.targets(options.factor),
        measured=asdict(measured),
        samples=[asdict(sample) for sample in watched.samples],
        sent=[asdict(one) for one in watched.sent],
    )


if __name__ == "__main__":
    sys.exit(main())
