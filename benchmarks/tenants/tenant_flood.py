"""Does one tenant's flood make another one wait?

The light tenant sends one streamed request after the other and thinks for a second in between. The flooder
sends requests of the same kind at 50 times the rate that the light tenant reaches alone, and waits for none;
what is refused is dropped. Three kinds of phases take turns, so that all see the same machine:

- solo: the light tenant alone;
- flood: both;
- flood alone: the flooder without the light tenant, which measures what the fleet can serve at all.

    PYTHONPATH=benchmarks python benchmarks/tenants/tenant_flood.py
        [--rounds 3] [--phase-seconds 20] [--workers 1]
"""

import argparse
import asyncio
import contextlib
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from harness.probe_client import ProbeClient, Seen
from harness.report import Report
from harness.tenant_fleet import TenantFleet, catalog_folder, single_core_threads, tenant_fleet

from warmfleet_cli.bench.figures import Target, median, percentile
from warmfleet_cli.bench.fleet import WorkerShape
from warmfleet_cli.bench.machine import this_machine
from warmfleet_cli.bench.processes import run_to_end
from warmfleet_cli.bench.workload import ordinary_tokens
from warmfleet_contracts.cache.worker_api import REQUEST_ID_HEADER
from warmfleet_worker.model.config import load_model_config

MAX_RATIO: Final = 2.0
MIN_CONSERVED: Final = 0.9
FLOOD_FACTOR: Final = 50
MODEL_NAME: Final = "smollm2-135m-instruct"
LIGHT: Final = "light"
FLOODER: Final = "flooder"
SOLO: Final = "solo"
FLOOD: Final = "flood"
FLOOD_ALONE: Final = "flood alone"
BLOCK_TOKENS: Final = 16
MAX_OPEN: Final = 1024
"""Requests that the flooder has open at most; beyond it one is not sent, and counted."""
RAMP_SECONDS: Final = 4.0
"""A flood runs for this long before anything is counted: its queue must be full."""


@dataclass(slots=True)
class Phase:
    """What all phases of one kind saw."""

    name: str
    seconds: float = 0.0
    light: list[Seen] = field(default_factory=list)
    light_failures: Counter[str] = field(default_factory=Counter)
    served_tokens: Counter[str] = field(default_factory=Counter)
    """Prompt and answer tokens of the answers that ended within the phase, by tenant."""
    flood_sent: int = 0
    flood_answers: Counter[str] = field(default_factory=Counter)
    """By what came of them."""
    light_decisions: list[dict[str, Any]] = field(default_factory=list)

    @property
    def first_tokens_ms(self) -> list[float]:
        return [seen.first_token_seconds * 1e3 for seen in self.light]

    @property
    def tokens_per_second(self) -> float:
        return self.served_tokens.total() / max(self.seconds, 1e-9)

    def spent_ms(self, part: str) -> list[float]:
        """Where the light tenant's requests spent their time, by their decision records."""
        return [_spent_ms(decision)[part] for decision in self.light_decisions]


def _spent_ms(decision: dict[str, Any]) -> dict[str, float]:
    held = decision.get("held_ms") or 0.0
    dispatched = decision.get("dispatched_after_ms") or 0.0
    return {"held": held, "worker": (decision.get("first_byte_after_ms") or dispatched) - dispatched}


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests of one length whose prompts no request has sent before."""

    vocabulary: range
    prompt_tokens: int
    answer_tokens: int
    draw: random.Random

    def body(self) -> dict[str, Any]:
        return {
            "model": MODEL_NAME,
            "prompt": self.draw.choices(self.vocabulary, k=self.prompt_tokens),
            "max_tokens": self.answer_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


class Tenants:
    """Sends what the two tenants send."""

    def __init__(self, fleet: TenantFleet, requests: Requests, think_seconds: float) -> None:
        self._light = ProbeClient(fleet.url, fleet.keys[LIGHT])
        self._flooder = ProbeClient(fleet.url, fleet.keys[FLOODER])
        self._fleet = fleet
        self._requests = requests
        self._think_seconds = think_seconds

    async def one(self) -> Seen:
        """A request of the light tenant."""
        return await self._light.ask("/v1/completions", self._requests.body())

    async def run(self, phase: Phase, *, seconds: float, flood_rate: float) -> None:
        """One phase; a rate of 0 is no flood, and a phase that is the flood's alone has no light tenant."""
        async with self._flooding(phase, flood_rate) as counting:
            if flood_rate:
                await asyncio.sleep(RAMP_SECONDS)
            counting.set()
            start = time.perf_counter()
            if phase.name != FLOOD_ALONE:
                await self._ask_in_turn(phase, until=start + seconds)
            await asyncio.sleep(max(start + seconds - time.perf_counter(), 0))
            counting.clear()
            phase.seconds += time.perf_counter() - start
        ids = {seen.header(REQUEST_ID_HEADER) for seen in phase.light}
        known = {decision["id"] for decision in phase.light_decisions}
        phase.light_decisions += [
            decision
            for decision in await self._fleet.decisions()
            if decision["request_id"] in ids and decision["id"] not in known
        ]
        await self._fleet.settled()

    def close(self) -> None:
        for client in (self._light, self._flooder):
            client.close()

    async def _ask_in_turn(self, phase: Phase, *, until: float) -> None:
        while time.perf_counter() < until:
            seen = await self.one()
            if _ended_well(seen):
                phase.light.append(seen)
                phase.served_tokens[LIGHT] += seen.usage["total_tokens"]
            else:
                phase.light_failures[_outcome(seen)] += 1
            await asyncio.sleep(self._think_seconds)

    @contextlib.asynccontextmanager
    async def _flooding(self, phase: Phase, rate: float) -> AsyncIterator[asyncio.Event]:
        """The flood goes on in the block; it is counted while the event is set. Then all clients leave."""
        counting = asyncio.Event()
        open_requests: set[asyncio.Task[None]] = set()

        async def ask() -> None:
            try:
                seen = await self._flooder.ask("/v1/completions", self._requests.body())
            except ConnectionError:
                seen = None
            if counting.is_set():
                phase.flood_answers[_outcome(seen)] += 1
                if seen is not None and _ended_well(seen):
                    phase.served_tokens[FLOODER] += seen.usage["total_tokens"]

        async def flood() -> None:
            due = time.perf_counter()
            while rate:
                due += random.expovariate(rate)
                await asyncio.sleep(max(due - time.perf_counter(), 0))
                phase.flood_sent += counting.is_set()
                if len(open_requests) >= MAX_OPEN:
                    phase.flood_answers["not sent"] += counting.is_set()
                    continue
                task = asyncio.create_task(ask())
                open_requests.add(task)
                task.add_done_callback(open_requests.discard)

        flooding = asyncio.create_task(flood())
        try:
            yield counting
        finally:
            left = [flooding, *open_requests]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)


def _ended_well(seen: Seen) -> bool:
    return seen.status == 200 and bool(seen.usage)


def _outcome(seen: Seen | None) -> str:
    if seen is None:
        return "connection closed"
    if seen.status == 200:
        return "200" if seen.usage else "200, then an error"
    return f"{seen.status} {seen.error_code}"


@dataclass(frozen=True, slots=True)
class Findings:
    """All phases, by name."""

    phases: dict[str, Phase]
    flood_rate: float

    @property
    def ratio(self) -> float:
        solo = median(self.phases[SOLO].first_tokens_ms)
        return median(self.phases[FLOOD].first_tokens_ms) / solo

    @property
    def conserved(self) -> float:
        """Tokens served to both, against what the fleet serves to the flooder alone."""
        return self.phases[FLOOD].tokens_per_second / self.phases[FLOOD_ALONE].tokens_per_second

    def targets(self) -> list[Target]:
        failures = sum(phase.light_failures.total() for phase in self.phases.values())
        return [
            Target("the light tenant's requests that failed", failures, 0, at_least=False),
            Target("its median time to first token, flood / solo", self.ratio, MAX_RATIO, at_least=False),
            Target("tokens served, flood / flood alone", self.conserved, MIN_CONSERVED),
        ]


async def run(options: argparse.Namespace, folder: Path) -> Findings:
    model = options.model_path or catalog_folder(MODEL_NAME)
    config = load_model_config(model)
    held_tokens = options.seats * (options.prompt_tokens + options.answer_tokens + BLOCK_TOKENS) * 2
    shape = WorkerShape(
        model_path=model,
        served_name=MODEL_NAME,
        # For seats that are all taken, twice: the bytes of Float32, for every dtype.
        kv_cache_bytes=held_tokens * 2 * config.layers * config.kv_heads * config.head_dim * 4,
        block_size_tokens=BLOCK_TOKENS,
        dtype=options.dtype,
        max_model_length_tokens=options.prompt_tokens + options.answer_tokens + BLOCK_TOKENS,
        threads=1,
    )
    requests = Requests(
        ordinary_tokens(config.vocab_size),
        options.prompt_tokens,
        options.answer_tokens,
        random.Random(options.seed),
    )
    phases = {name: Phase(name) for name in (SOLO, FLOOD, FLOOD_ALONE)}
    async with tenant_fleet(folder, shape, workers=options.workers, tenants=(LIGHT, FLOODER)) as fleet:
        tenants = Tenants(fleet, requests, options.think_seconds)
        totals = [(await tenants.one()).total_seconds for _ in range(8)]
        flood_rate = FLOOD_FACTOR / (median(totals[3:]) + options.think_seconds)
        for number in range(options.rounds):
            order = (SOLO, FLOOD, FLOOD_ALONE) if number % 2 == 0 else (FLOOD_ALONE, FLOOD, SOLO)
            for name in order:
                rate = 0.0 if name == SOLO else flood_rate
                await tenants.run(phases[name], seconds=options.phase_seconds, flood_rate=rate)
        tenants.close()
    return Findings(phases, flood_rate)


def table(phases: Sequence[Phase]) -> str:
    widths = {"requests": 9, "TTFT p50": 10, "p95": 8, "held": 8, "worker": 8, "total": 9, "tokens/s": 10}
    lines = [" " * 14 + "".join(f"{name:>{width}}" for name, width in widths.items())]
    for phase in phases:
        times = phase.first_tokens_ms
        totals = [seen.total_seconds * 1e3 for seen in phase.light]
        columns = (
            len(times), median(times), percentile(times, 95), median(phase.spent_ms("held")),
            median(phase.spent_ms("worker")), median(totals), phase.tokens_per_second,
        )  # fmt: skip
        cells = (f"{value:{width}.0f}" for value, width in zip(columns, widths.values(), strict=True))
        lines.append(f"{phase.name:14}" + "".join(cells))
    lines.append("(the light tenant's requests, medians, milliseconds; tokens of both tenants)")
    for phase in phases:
        if phase.flood_sent:
            answers = ", ".join(f"{count} {name}" for name, count in phase.flood_answers.most_common())
            lines.append(f"{phase.name}: {phase.flood_sent} sent by the flooder; {answers}")
        if phase.light_failures:
            lines.append(f"{phase.name}: the light tenant got {dict(phase.light_failures)}")
    return "\n".join(lines)


def record(phase: Phase) -> dict[str, Any]:
    """One kind of phase, for results.json."""
    return {
        "seconds": phase.seconds,
        "first_token_ms": phase.first_tokens_ms,
        "total_ms": [seen.total_seconds * 1e3 for seen in phase.light],
        "light_failures": phase.light_failures,
        "served_tokens": phase.served_tokens,
        "flood_sent": phase.flood_sent,
        "flood_answers": phase.flood_answers,
        "light_decisions": phase.light_decisions,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--phase-seconds", type=float, default=20.0)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--answer-tokens", type=int, default=16)
    parser.add_argument("--think-seconds", type=float, default=1.0, help="of the light tenant")
    parser.add_argument("--workers", type=int, default=1, help="of one thread each")
    parser.add_argument("--seats", type=int, default=64, help="sequences that the KV cache is made for")
    parser.add_argument("--dtype", default="Auto")
    parser.add_argument("--model-path", type=Path, help="default: the catalog model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output-dir", type=Path, default=Path("bench-results/tenant-flood"))
    options = parser.parse_args()
    single_core_threads()
    random.seed(options.seed)
    report = Report.begin(options, this_machine().line(options.dtype))
    findings = run_to_end(run(options, options.output_dir))
    phases = list(findings.phases.values())
    head = (
        f"{options.workers} workers of one thread, prompts of {options.prompt_tokens} and answers of "
        f"{options.answer_tokens} tokens; the flooder sends {findings.flood_rate:.1f} requests per second"
    )
    return report.end(
        f"{head}\n{table(phases)}",
        findings.targets(),
        flood_rate=findings.flood_rate,
        ratio=findings.ratio,
        conserved=findings.conserved,
        phases={phase.name: record(phase) for phase in phases},
    )


if __name__ == "__main__":
    sys.exit(main())
