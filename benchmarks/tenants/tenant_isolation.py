"""Can one tenant find out which prompts another has sent?

A victim warms a random half of a set of prompts; then an attacker with another key sends every prompt of the
set once, in random order, and keeps all that it sees: times, usage, headers, sizes. If any of it separates
the warmed prompts from the fresh ones, the cache leaks. Three ways to be warm:

- resident: the victim's answer is complete, its blocks are in the cache;
- in flight: the victim's request for the same prompt is being computed at that moment;
- tokenized: the victim has had a text tokenized that is full of words which no vocabulary holds.

So that the test could see a leak if there were one, the victim's own second key probes a part of each set:
that must give the warmed prompts away.

    PYTHONPATH=benchmarks python benchmarks/tenants/tenant_isolation.py [--probes 2000] [--prompt-tokens 512]
"""

import argparse
import asyncio
import random
import statistics
import string
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from harness.probe_client import ProbeClient, Seen
from harness.report import Report
from harness.separability import Separability, by_all_features, by_threshold
from harness.tenant_fleet import TenantFleet, catalog_folder, single_core_threads, small_model, tenant_fleet

from warmfleet_cli.bench.figures import Target
from warmfleet_cli.bench.fleet import WorkerShape
from warmfleet_cli.bench.machine import this_machine
from warmfleet_cli.bench.processes import run_to_end
from warmfleet_contracts.cache.worker_api import DECISION_HEADER
from warmfleet_contracts.prompts.encoder import PromptEncoder
from warmfleet_worker.model.config import load_model_config
from warmfleet_worker.model_store.assets import load_prompt_assets

MAX_AUC: Final = 0.55
MIN_POWER_AUC: Final = 0.95
MODEL_NAME: Final = "probed"
ROUND_PROMPTS: Final = 40
"""Prompts of one round, half of them warmed: few, so that none is evicted before it is probed."""
OWN_SHARE: Final = 0.2
"""Share of each round that the victim probes itself."""
HEAD_START_SECONDS: Final = 0.003
"""How long the victim's request runs before the attacker's, where both are in flight."""
TOKENIZED_WORDS: Final = 60
BLOCK_TOKENS: Final = 16
ADMIN_PATHS: Final = ("/metrics", "/internal/fleet", "/internal/decisions", "/debug/config")
_MAX_TOKENS: Final = 2
RESIDENT: Final = "resident"
IN_FLIGHT: Final = "in flight"
TOKENIZED: Final = "tokenized"
WAYS: Final = (RESIDENT, IN_FLIGHT, TOKENIZED)
TIME: Final = "time to first token"

Ask = Callable[[ProbeClient, str], Awaitable[Seen]]


@dataclass
class Probes:
    """What one prober saw, and which of it was warm."""

    seen: list[Seen] = field(default_factory=list)
    warm: list[bool] = field(default_factory=list)

    def add(self, seen: Seen, *, warm: bool) -> None:
        self.seen.append(seen)
        self.warm.append(warm)

    @cached_property
    def separabilities(self) -> list[Separability]:
        """By each feature alone, and by all of them; to be asked when all probes are there."""
        features = {name: [take(seen) for seen in self.seen] for name, take in FEATURES.items()}
        alone = [by_threshold(name, values, self.warm) for name, values in features.items()]
        return [*alone, by_all_features(features, self.warm)]

    def median_ms(self, *, warm: bool) -> float:
        times = [
            seen.first_token_seconds for seen, kind in zip(self.seen, self.warm, strict=True) if kind is warm
        ]
        return statistics.median(times) * 1e3 if times else float("nan")


FEATURES: Final[dict[str, Callable[[Seen], float]]] = {
    "time to headers": lambda seen: seen.head_seconds,
    TIME: lambda seen: seen.first_token_seconds,
    "total time": lambda seen: seen.total_seconds,
    "cached_tokens": lambda seen: seen.cached_tokens,
    "number of headers": lambda seen: len(seen.headers),
    "bytes of headers": lambda seen: sum(len(name) + len(value) for name, value in seen.headers),
    "bytes of body": lambda seen: len(seen.body),
}


@dataclass(frozen=True, slots=True)
class Way:
    """One way of being warm: what the attacker saw, and what the victim's own second key saw."""

    name: str
    attacker: Probes
    own: Probes | None
    """None where there is nothing that even the victim may notice."""


class Texts:
    """Texts of made-up words that no two calls share."""

    def __init__(self, encoder: PromptEncoder, seed: int) -> None:
        self._random = random.Random(seed)
        words = {"".join(self._random.choices(string.ascii_lowercase, k=6)) for _ in range(4096)}
        sizes = {word: len(encoder.encode_text(f" {word}")) for word in sorted(words)}
        self._words = list(sizes.items())
        self._filler = "the"
        assert len(encoder.encode_text(f" {self._filler}")) == 1

    def prompt(self, tokens: int) -> str:
        """Exactly so many tokens: a difference in length must not stand for one in warmth."""
        words: list[str] = []
        while tokens > 0:
            word, size = self._random.choice(self._words)
            word, size = (word, size) if size <= tokens else (self._filler, 1)
            words.append(word)
            tokens -= size
        return " " + " ".join(words)

    def long_words(self) -> str:
        """Words that cost a tokenizer time unless it remembers them, and a control token's literal."""
        words = ["".join(self._random.choices(string.ascii_lowercase, k=200)) for _ in range(TOKENIZED_WORDS)]
        return "<|im_end|> " + " ".join(words)

    def halves(self, make: Callable[[], str]) -> list[tuple[str, bool]]:
        """A round's texts in random order, a random half of them to be warmed."""
        drawn = [(make(), number % 2 == 0) for number in range(ROUND_PROMPTS)]
        self._random.shuffle(drawn)
        return drawn

    def some(self, drawn: Sequence[tuple[str, bool]]) -> list[tuple[str, bool]]:
        """A share of a round, warm and fresh alike, in another order."""
        kept = round(OWN_SHARE * ROUND_PROMPTS / 2)
        kinds = [[one for one in drawn if one[1] is warm] for warm in (True, False)]
        some = [one for kind in kinds for one in self._random.sample(kind, kept)]
        self._random.shuffle(some)
        return some


async def complete(client: ProbeClient, prompt: str) -> Seen:
    options = {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
    body = {"model": MODEL_NAME, "prompt": prompt, "max_tokens": _MAX_TOKENS, "temperature": 0, **options}
    return _answered(await client.ask("/v1/completions", body))


async def tokenize(client: ProbeClient, text: str) -> Seen:
    return _answered(await client.ask("/tokenize", {"model": MODEL_NAME, "prompt": text}))


def _answered(seen: Seen) -> Seen:
    if seen.status != 200:
        raise SystemExit(f"a probe was answered {seen.status}: {seen.body[:300].decode(errors='replace')}")
    return seen


@dataclass(frozen=True, slots=True)
class Parties:
    """The fleet, the tenant that is attacked and the one that attacks."""

    fleet: TenantFleet
    victim: ProbeClient
    attacker: ProbeClient
    texts: Texts

    async def probe(self, way: str, make: Callable[[], str], *, probes: int) -> Way:
        """All probes of one of `WAYS`."""
        match way:
            case "resident":
                return await self.after(RESIDENT, complete, make, probes=probes, own=True)
            case "in flight":
                return await self.beside(IN_FLIGHT, make, probes=probes)
            case "tokenized":
                return await self.after(TOKENIZED, tokenize, self.texts.long_words, probes=probes, own=False)
            case _:
                raise SystemExit(f"--ways: {way!r} is none of: {', '.join(WAYS)}")

    async def after(self, name: str, ask: Ask, make: Callable[[], str], *, probes: int, own: bool) -> Way:
        """Probe what the victim's complete requests left behind."""
        way = Way(name, Probes(), Probes() if own else None)
        for _ in range(0, probes, ROUND_PROMPTS):
            drawn = self.texts.halves(make)
            for text, warm in drawn:
                if warm:
                    await ask(self.victim, text)
            await self.fleet.settled()
            for text, warm in random.sample(drawn, len(drawn)):
                way.attacker.add(await ask(self.attacker, text), warm=warm)
            if way.own is not None:
                for text, warm in self.texts.some(drawn):
                    way.own.add(await ask(self.victim, text), warm=warm)
        return way

    async def beside(self, name: str, make: Callable[[], str], *, probes: int) -> Way:
        """Probe while the victim's request is computed: for the same prompt, or for another."""
        way = Way(name, Probes(), Probes())
        for _ in range(0, probes, ROUND_PROMPTS):
            drawn = self.texts.halves(make)
            for text, warm in drawn:
                way.attacker.add(await self._beside(self.attacker, text, warm, make), warm=warm)
            assert way.own is not None
            for text, warm in [(make(), warm) for _, warm in self.texts.some(drawn)]:
                way.own.add(await self._beside(self.victim, text, warm, make), warm=warm)
        return way

    async def _beside(self, prober: ProbeClient, text: str, warm: bool, make: Callable[[], str]) -> Seen:  # noqa: FBT001 - the label
        first = asyncio.create_task(complete(self.victim, text if warm else make()))
        await asyncio.sleep(HEAD_START_SECONDS)
        seen = await complete(prober, text)
        await first
        return seen


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything that was measured."""

    ways: list[Way]
    wrongly_open: list[str]
    """Paths of the operator that answered the attacker otherwise than with 403."""
    seconds: float

    def targets(self) -> list[Target]:
        return [target for way in self.ways for target in way_targets(way)] + [
            Target("operator's paths open to a tenant", len(self.wrongly_open), 0, at_least=False)
        ]


def way_targets(way: Way) -> list[Target]:
    """What one way of being warm must reach."""
    seen = way.attacker.seen
    best = max(way.attacker.separabilities, key=lambda one: one.auc)
    hits = sum(one.cached_tokens > 0 for one in seen)
    header_sets = len({tuple(sorted(name for name, _ in one.headers)) for one in seen})
    ids = [one.header(DECISION_HEADER) for one in seen if one.header(DECISION_HEADER)]
    unlike = len(ids) - len(set(ids)) + len({len(one) for one in ids}) - bool(ids)
    targets = [
        Target(f"{way.name}: AUC of the attacker, {best.name}", best.auc, MAX_AUC, at_least=False),
        Target(f"{way.name}: the attacker's hits", hits, 0, at_least=False),
        Target(f"{way.name}: sets of header names", header_sets, 1, at_least=False),
        Target(f"{way.name}: decision ids that repeat or differ in form", unlike, 0, at_least=False),
    ]
    if way.own is not None:
        within = way.own.separabilities
        best = max(within, key=lambda one: one.auc)
        targets.append(Target(f"{way.name}: the same within a tenant, {best.name}", best.auc, MIN_POWER_AUC))
        if way.name == RESIDENT:
            # Beside the victim's own request time shows little: a hit waits for the request that it hits.
            time_alone = next(one for one in within if one.name == TIME)
            name = f"{way.name}: the same within a tenant, {TIME}"
            targets.append(Target(name, time_alone.auc, MIN_POWER_AUC))
    return targets


async def run(options: argparse.Namespace, folder: Path) -> Findings:
    assets_of = catalog_folder("smollm2-135m-instruct")
    model = options.model_path or await asyncio.to_thread(small_model, folder / "model", assets_of)
    config = load_model_config(model)
    tokens = options.prompt_tokens + BLOCK_TOKENS
    held_tokens = round(tokens * ROUND_PROMPTS * (1.5 + OWN_SHARE) * 2)
    shape = WorkerShape(
        model_path=model,
        served_name=MODEL_NAME,
        kv_cache_bytes=held_tokens * 2 * config.layers * config.kv_heads * config.head_dim * 4,
        block_size_tokens=BLOCK_TOKENS,
        dtype="Float32",
        max_model_length_tokens=tokens,
        threads=1,
    )
    texts = Texts(PromptEncoder.from_assets(load_prompt_assets(model)), options.seed)

    def prompt() -> str:
        return texts.prompt(options.prompt_tokens)

    async with tenant_fleet(folder, shape, workers=options.workers, tenants=("victim", "attacker")) as fleet:
        parties = Parties(
            fleet,
            ProbeClient(fleet.url, fleet.keys["victim"]),
            ProbeClient(fleet.url, fleet.keys["attacker"]),
            texts,
        )
        for _ in range(20):  # connections, code paths, step-time fits
            await complete(parties.victim, prompt())
            await complete(parties.attacker, prompt())
        start = time.perf_counter()
        ways = [await parties.probe(name, prompt, probes=options.probes) for name in options.ways.split(",")]
        seconds = time.perf_counter() - start
        decision = ways[0].attacker.seen[-1].header(DECISION_HEADER)
        paths = (*ADMIN_PATHS, f"/debug/decisions/{decision}")
        answers = {path: await fleet.get(path, "attacker") for path in paths}
        for client in (parties.victim, parties.attacker):
            client.close()
    return Findings(ways, [path for path, answer in answers.items() if answer.status_code != 403], seconds)


def table(ways: Sequence[Way]) -> str:
    lines: list[str] = []
    for way in ways:
        for who, probes in (("attacker", way.attacker), ("own tenant", way.own)):
            if probes is None:
                continue
            warm_ms, fresh_ms = probes.median_ms(warm=True), probes.median_ms(warm=False)
            lines.append(
                f"\n{way.name}, {who}: {len(probes.seen)} probes; "
                f"median time to first token {warm_ms:.2f} ms warm, {fresh_ms:.2f} ms fresh"
            )
            lines += ["  " + one.line() for one in probes.separabilities]
    return "\n".join(lines)


def record(findings: Findings) -> dict[str, Any]:
    """For results.json: every probe's features, so that other classifiers can be tried on them."""
    return {
        "seconds": findings.seconds,
        "wrongly_open": findings.wrongly_open,
        "ways": {
            f"{way.name}, {who}": {
                "classifiers": [asdict(one) for one in probes.separabilities],
                "warm": probes.warm,
                "features": {name: [take(seen) for seen in probes.seen] for name, take in FEATURES.items()},
            }
            for way in findings.ways
            for who, probes in (("attacker", way.attacker), ("own tenant", way.own))
            if probes is not None
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--probes", type=int, default=2000, help="by the attacker, of each way of being warm")
    parser.add_argument("--ways", default=",".join(WAYS), help="of being warm, by commas")
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--model-path", type=Path, help="model to serve; default: a small seeded one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output-dir", type=Path, default=Path("bench-results/tenant-isolation"))
    options = parser.parse_args()
    single_core_threads()
    random.seed(options.seed)
    report = Report.begin(options, this_machine().line("Float32"))
    findings = run_to_end(run(options, options.output_dir))
    error = (1 / 3 / options.probes) ** 0.5
    foot = (
        f"\n{findings.seconds:.0f} s of probes, {options.workers} workers, {options.prompt_tokens} tokens; "
        f"an AUC of guessing is 0.5 +- {error:.3f} (one standard error)"
    )
    return report.end(f"{table(findings.ways)}\n{foot}", findings.targets(), **record(findings))


if __name__ == "__main__":
    sys.exit(main())
