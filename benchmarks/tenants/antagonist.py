"""Can one key with thousands of sockets slow down another tenant?

A light tenant sends a request every quarter of a second, plain and streamed in turn, whether or not earlier
ones were answered, each with a new text (50 words, one in 16 has 19,000 characters): first alone, then while
a hostile client with another key attacks in one way after the other (hostile_client.py has them), then alone
again. Between attacks the router has three seconds to settle.

The router is real and requires keys. Behind it are four stub workers of 8 seats, whose answers have a first
token after 0.1 s and 50 tokens per second: they need no processor time, so what the light tenant waits for
is the router. The router has the first core for itself; workers, light tenant and attacker share the others.

    PYTHONPATH=benchmarks python benchmarks/tenants/antagonist.py [--kinds idle,chunked --seconds 40]

All attacks take three of about four minutes; the two kinds above 20 s each.
"""

import argparse
import asyncio
import contextlib
import json
import math
import os
import random
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import uvloop
from harness.hostile_client import ALL, KINDS
from harness.measured_router import COMPLETIONS_PATH, Cores, MeasuredRouter, Usage, measured_router
from harness.probe_client import ProbeClient, Seen
from harness.report import Report
from harness.stub_fleet import MODEL_NAME

from warmfleet_cli.bench.figures import Target, median, percentile
from warmfleet_cli.bench.processes import spawned
from warmfleet_contracts.names import API_KEY_VARIABLE

LIGHT: Final = "light"
HOSTILE: Final = "hostile"
ALONE: Final = "alone"
ALONE_AGAIN: Final = "alone again"
PERIOD_SECONDS: Final = 0.25
WORDS: Final = (
    "time",
    "people",
    "way",
    "water",
    "day",
    "number",
    "part",
    "sound",
    "place",
    "year",
    "back",
    "line",
)
PROMPT_WORDS: Final = 50
RULE: Final = "-" * 90
LONG_PROMPT_LINES: Final = 200
"""Some 19,000 characters and 600 tokens: light work for a fleet, and encoded beside a router's event loop."""
LONG_EVERY: Final = 16
ANSWER_TOKENS: Final = 8
WORKERS: Final = (
    "--workers",
    "4",
    "--seats",
    "8",
    "--first-token-seconds",
    "0.1",
    "--tokens-per-second",
    "50",
)
ANSWER_SECONDS: Final = 30.0
"""An answer of the light tenant that takes longer has failed."""
SAMPLE_SECONDS: Final = 0.25
MAX_RATIO: Final = 2.0
MAX_RESIDENT_MIB: Final = 1536
MIN_REQUESTS_PER_SECOND: Final = 1.0


@dataclass(slots=True)
class Phase:
    """What the light tenant got in one phase, and what became of the attack."""

    name: str
    seconds: float
    first_token_ms: list[float] = field(default_factory=list)
    """Of its streams."""
    plain_ms: list[float] = field(default_factory=list)
    """Of its plain answers, whole."""
    sent: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    """What was not answered whole: refusals, errors, broken connections."""
    resident_mib: float = 0.0
    """Of the router, at most."""
    router_core_ratio: float = 0.0
    """How busy the router's core was."""
    attack: dict[str, dict[str, int]] = field(default_factory=dict)
    """By kind, how many of its requests ended how."""
    attacker_core_ratio: float = 0.0

    def fail(self, outcome: str) -> None:
        """Count a request of the light tenant that was not answered whole."""
        self.failures[outcome] = self.failures.get(outcome, 0) + 1


@dataclass(frozen=True, slots=True)
class Findings:
    """All phases in their order."""

    phases: Sequence[Phase]
    peak_resident_mib: float

    @property
    def solo_ms(self) -> float:
        """The light tenant's median time to first token without an attack."""
        alone = (phase for phase in self.phases if not phase.attack)
        return median([value for phase in alone for value in phase.first_token_ms])

    @property
    def attacks(self) -> list[Phase]:
        return [phase for phase in self.phases if phase.attack]

    def ratio(self, *phases: Phase) -> float:
        """Its median in these phases over that without an attack."""
        return median([value for phase in phases for value in phase.first_token_ms]) / self.solo_ms

    def targets(self) -> list[Target]:
        # Without any answer there is no ratio, and nothing is worse.
        worst = max(self.attacks, key=lambda phase: self.ratio(phase) if phase.first_token_ms else math.inf)
        failures = sum(sum(phase.failures.values()) for phase in self.phases)
        least = min(phase.sent / phase.seconds for phase in self.phases)
        return [
            Target("the light tenant's requests per second, at least", least, MIN_REQUESTS_PER_SECOND),
            Target("its requests that were refused or failed", failures, 0, at_least=False),
            Target(
                "its median time to first token, attacked / alone",
                self.ratio(*self.attacks),
                MAX_RATIO,
                at_least=False,
            ),
            Target(
                f"the same in the worst attack ({worst.name})", self.ratio(worst), MAX_RATIO, at_least=False
            ),
            Target(
                "router's peak memory", self.peak_resident_mib, MAX_RESIDENT_MIB, at_least=False, unit=" MiB"
            ),
        ]

    def table(self) -> str:
        widths = {"sent": 6, "failed": 8, "TTFT p50": 10, "p95": 7, "ratio": 7, "plain p50": 11}
        widths |= {"router MiB": 12, "core": 6, "attacker": 10}
        lines = [" " * 12 + "".join(f"{name:>{width}}" for name, width in widths.items())]
        for phase in self.phases:
            cells = (
                str(phase.sent),
                str(sum(phase.failures.values())),
                f"{median(phase.first_token_ms):.0f}",
                f"{percentile(phase.first_token_ms, 95):.0f}",
                f"{self.ratio(phase):.2f}",
                f"{median(phase.plain_ms):.0f}",
                f"{phase.resident_mib:.0f}",
                f"{phase.router_core_ratio:.0%}",
                f"{phase.attacker_core_ratio:.0%}",
            )
            row = "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths.values(), strict=True))
            lines.append(f"{phase.name:12}{row}")
        lines.append(
            "(the light tenant's requests, milliseconds; ratio: to its median alone; shares of a core)"
        )
        for phase in self.phases:
            if phase.failures:
                lines.append(f"{phase.name}: the light tenant got {_counts(phase.failures)}")
            for kind, outcomes in phase.attack.items():
                name = kind if kind == phase.name else f"{phase.name}, {kind}"
                lines.append(f"{name}: the attacker got {_counts(outcomes)}")
        return "\n".join(lines)


class LightTenant:
    """Sends a request every `PERIOD_SECONDS`, plain and streamed in turn."""

    def __init__(self, router: MeasuredRouter) -> None:
        self._client = ProbeClient(router.url, router.keys[LIGHT])
        self._draw = random.Random(0)

    async def run(self, phase: Phase) -> None:
        """Send for the length of `phase`, and wait for the last answers."""
        now = asyncio.get_running_loop().time
        started = now()
        async with asyncio.TaskGroup() as tasks:
            for number in range(round(phase.seconds / PERIOD_SECONDS)):
                await asyncio.sleep(max(started + number * PERIOD_SECONDS - now(), 0))
                prompt = self._prompt(is_long=(number + 1) % LONG_EVERY == 0)
                tasks.create_task(self._ask(phase, prompt, streamed=number % 2 == 0))

    def close(self) -> None:
        self._client.close()

    def _prompt(self, *, is_long: bool) -> str:
        if is_long:
            return "".join(f"{word}\n{RULE}\n" for word in self._draw.choices(WORDS, k=LONG_PROMPT_LINES))
        return " ".join(self._draw.choices(WORDS, k=PROMPT_WORDS))

    async def _ask(self, phase: Phase, prompt: str, *, streamed: bool) -> None:
        phase.sent += 1
        fields: dict[str, Any] = {"model": MODEL_NAME, "prompt": prompt, "max_tokens": ANSWER_TOKENS}
        if streamed:
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                seen = await self._client.ask(COMPLETIONS_PATH, fields)
        except TimeoutError:
            phase.fail("nothing in time")
        except OSError:
            phase.fail("connection closed")
        else:
            if not _whole(seen, streamed=streamed):
                phase.fail(f"{seen.status} {seen.error_code}".strip())
            elif streamed:
                phase.first_token_ms.append(seen.first_token_seconds * 1e3)
            else:
                phase.plain_ms.append(seen.total_seconds * 1e3)


def _whole(seen: Seen, *, streamed: bool) -> bool:
    return seen.status == 200 and (bool(seen.usage) if streamed else b'"usage":{' in seen.body)


def _counts(outcomes: dict[str, int]) -> str:
    return ", ".join(f"{count} x {name}" for name, count in outcomes.items()) or "nothing"


async def attacked(
    phase: Phase, router: MeasuredRouter, light: LightTenant, options: argparse.Namespace
) -> None:
    """One phase under one kind of attack, which ends with it."""
    arguments = ["harness.hostile_client", "--url", router.url, "--model", MODEL_NAME, "--kind", phase.name]
    arguments += ["--sockets", str(options.sockets), "--seconds", str(phase.seconds)]
    environment = {API_KEY_VARIABLE: router.keys[HOSTILE], "PYTHONPATH": str(Path(__file__).parents[1])}
    attacker = spawned(phase.name, arguments, log_folder=options.output_dir, environment=environment)
    async with attacker as process:
        await light.run(phase)
        await process.exited
        for line in process.log.path.read_text(encoding="utf-8").splitlines():
            if line.startswith('{"outcomes"'):
                report = json.loads(line)
                phase.attack = report["outcomes"]
                phase.attacker_core_ratio = report["cpu_seconds"] / phase.seconds
    if not phase.attack:
        raise SystemExit(f"the attacker failed; see {process.log.path}")


def resident_mib(pid: int) -> float:
    """Memory that a process holds now."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(found[1]) / 1024 if found else 0.0


async def watch(phase: Phase, pid: int) -> None:
    """Sample the router's memory until cancelled."""
    while True:
        phase.resident_mib = max(phase.resident_mib, resident_mib(pid))
        await asyncio.sleep(SAMPLE_SECONDS)


async def run(options: argparse.Namespace, cores: Cores) -> Findings:
    seconds = options.seconds / len(options.kinds)
    phases = [
        Phase(ALONE, options.alone_seconds),
        *(Phase(kind, seconds) for kind in options.kinds),
        Phase(ALONE_AGAIN, options.alone_seconds),
    ]
    fleet = measured_router(
        options.output_dir, cores, blocks=options.blocks, fleet_flags=WORKERS, tenants=(LIGHT, HOSTILE)
    )
    async with fleet as router:
        light = LightTenant(router)
        await light.run(Phase("warming up", options.settle_seconds))
        for phase in phases:
            watching = asyncio.create_task(watch(phase, router.pid))
            before = router.usage
            if phase.name in (ALONE, ALONE_AGAIN):
                await light.run(phase)
            else:
                await attacked(phase, router, light, options)
            used = router.usage.cpu_seconds - before.cpu_seconds
            phase.router_core_ratio = used / phase.seconds
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
            await asyncio.sleep(options.settle_seconds)
        peak = Usage.of(router.pid).peak_resident_bytes / 2**20
        light.close()
    return Findings(phases, peak)


def kinds(text: str) -> list[str]:
    """The attacks that a comma-separated list names."""
    names = text.split(",")
    unknown = set(names) - {*KINDS, ALL}
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}")
    return names


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    known = [*KINDS, ALL]
    parser.add_argument("--kinds", type=kinds, default=known, help=f"of {','.join(known)}")
    parser.add_argument("--seconds", type=float, default=180.0, help="of all attacks together")
    parser.add_argument("--alone-seconds", type=float, default=15.0, help="before, and again after them")
    parser.add_argument("--settle-seconds", type=float, default=3.0, help="between two phases")
    parser.add_argument("--sockets", type=int, default=4096, help="of the attacker, at most")
    parser.add_argument("--blocks", type=int, default=100_000, help="in the index")
    parser.add_argument("--output-dir", type=Path, default=Path("bench-results/antagonist"))
    options = parser.parse_args()
    cores = Cores.shared_out(sorted(os.sched_getaffinity(0)))
    report = Report.begin(options, cores.line())
    findings = uvloop.run(run(options, cores))
    return report.end(
        findings.table(),
        findings.targets(),
        solo_ms=findings.solo_ms,
        peak_resident_mib=findings.peak_resident_mib,
        phases=[asdict(phase) for phase in findings.phases],
    )


if __name__ == "__main__":
    sys.exit(main())
