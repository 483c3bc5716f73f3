"""Load on a fleet that runs: clients that ask one after the other, with prompts that share prefixes."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx
import msgspec

from warmfleet_cli.bench.client import Answer, Question, ask, benchmark_client
from warmfleet_cli.bench.figures import percentile
from warmfleet_cli.errors import CliError, ExitCode
from warmfleet_cli.output import printable
from warmfleet_cli.router_client import ask_router, get_json, router_client

MAX_ERROR_KINDS: Final = 3
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class LoadShape:
    """What clients ask, and for how long."""

    in_flight: int
    """Clients: each sends its next request when it has the answer to the last one."""
    seconds: float
    """No request begins after that."""
    prefixes: int
    prefix_tokens: int
    """Shared by all prompts with that prefix."""
    question_tokens: int
    """Different in every prompt."""
    output_tokens: int
    seed: int

    def prompts(self, alphabet: Sequence[int]) -> Callable[[int], list[int]]:
        """The prompt of each request by its number, of these token ids."""
        draw = random.Random(self.seed)  # noqa: S311 - prompts, no secret
        prefixes = [draw.choices(alphabet, k=self.prefix_tokens) for _ in range(self.prefixes)]

        def prompt(number: int) -> list[int]:
            own = random.Random(f"{self.seed} {number}")  # noqa: S311 - as above
            return prefixes[number % self.prefixes] + own.choices(alphabet, k=self.question_tokens)

        return prompt


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What clients saw."""

    seconds: float
    answers: Sequence[Answer]

    @property
    def succeeded(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.succeeded]

    @property
    def failed(self) -> int:
        return len(self.answers) - len(self.succeeded)

    def record(self) -> dict[str, Any]:
        """For JSON."""
        good = self.succeeded
        prompt_tokens = sum(answer.prompt_tokens for answer in good)
        cached_tokens = sum(answer.cached_tokens for answer in good)
        first = [answer.first_token_seconds for answer in good]
        return {
            "seconds": round(self.seconds, 1),
            "requests": len(self.answers),
            "failed": self.failed,
            "errors": self.errors(),
            "output_tokens_per_second": round(sum(a.output_tokens for a in good) / self.seconds, 1),
            "cached_ratio": round(cached_tokens / prompt_tokens, 3) if prompt_tokens else None,
            "first_token_p50_seconds": round(percentile(first, 50), 3) if first else None,
            "first_token_p95_seconds": round(percentile(first, 95), 3) if first else None,
        }

    def errors(self) -> Mapping[str, int]:
        """The most frequent errors, and how often each came."""
        counted = Counter(answer.error[:200] for answer in self.answers if answer.error)
        return dict(counted.most_common(MAX_ERROR_KINDS))

    def lines(self) -> list[str]:
        """For people."""
        record = self.record()
        text = f"{record['requests']} requests in {record['seconds']} s, {record['failed']} failed"
        if not self.succeeded:
            return [text, *self._error_lines()]
        cached = f"{100 * (record['cached_ratio'] or 0.0):.0f} % of prompt tokens cached"
        p50, p95 = (1000 * record[f"first_token_{name}_seconds"] for name in ("p50", "p95"))
        return [
            f"{text}, {record['output_tokens_per_second']} tokens/s, {cached}",
            f"first token: p50 {p50:,.0f} ms, p95 {p95:,.0f} ms",
            *self._error_lines(),
        ]

    def _error_lines(self) -> list[str]:
        return [f"{count} x {printable(error)}" for error, count in self.errors().items()]


@dataclass(frozen=True, slots=True)
class Target:
    """The fleet that is asked."""

    url: str
    model: str
    api_key: str
    alphabet: Sequence[int]
    """Token ids that its prompts are made of."""


def find_target(url: str, model: str | None, api_key: str, seed: int) -> Target:
    """The model and its token ids, as the router has them; without `model` the first that it lists.

    Raises:
        CliError: no router answers, it refuses, or it serves no model.
    """
    with router_client(url, api_key) as client:
        if model is None:
            models = get_json(client, "/v1/models").get("data") or []
            if not models:
                raise CliError(f"{url} serves no model yet", exit_code=ExitCode.NOT_RUNNING)
            model = str(models[0]["id"])
        draw = random.Random(seed)  # noqa: S311 - as above
        words = " ".join("".join(draw.choices(_LETTERS, k=draw.randint(2, 8))) for _ in range(1000))
        body = ask_router(client, "POST", "/tokenize", json={"model": model, "prompt": words})
    tokens = msgspec.json.decode(body, type=_Tokenized).tokens
    return Target(url, model, api_key, sorted(set(tokens)))


class _Tokenized(msgspec.Struct):
    tokens: list[int]


async def run_load(
    target: Target, shape: LoadShape, *, is_over: Callable[[], bool] = lambda: False
) -> LoadResult:
    """Ask until the time is over, or `is_over()`, and for the answers that are open then."""
    prompt = shape.prompts(target.alphabet)
    answers: list[Answer] = []
    began = time.monotonic()
    numbers = iter(range(10**9))

    async def one_after_the_other(client: httpx.AsyncClient) -> None:
        while time.monotonic() - began < shape.seconds and not is_over():
            number = next(numbers)
            question = Question(
                f"load-{shape.seed}-{number}", target.model, prompt(number), shape.output_tokens
            )
            answer = await ask(client, target.url, question)
            answers.append(answer)
            if answer.error:
                await asyncio.sleep(1.0)  # a fleet that refuses all is not asked in a busy loop

    async with benchmark_client() as client:
        if target.api_key:
            client.headers["authorization"] = f"Bearer {target.api_key}"
        await asyncio.gather(*(one_after_the_other(client) for _ in range(shape.in_flight)))
    return LoadResult(time.monotonic() - began, answers)
