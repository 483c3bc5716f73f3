"""The shared-prefix workload: groups of prompts with one common beginning, arriving at random times.

The shape is that of llm-d's `shared_prefix` benchmark (150 groups x 5 prompts at 0.73 of the fleet's
KV cache), scaled down: what matters is the ratio of the resident set to the fleet's KV, not its size.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class PrefixWorkload:
    """The shape of one run; `plan_run` draws its times and tokens."""

    groups: int = 16
    prompts_per_group: int = 5
    prefix_tokens: int = 256
    """Shared by the prompts of a group (a system prompt)."""
    question_tokens: int = 48
    """Different in every prompt."""
    output_tokens: int = 16
    resident_ratio: float = 0.73
    """Share of the fleet's KV cache that holding every prefix and question once would take."""

    @property
    def requests(self) -> int:
        return self.groups * self.prompts_per_group

    @property
    def prompt_tokens(self) -> int:
        return self.prefix_tokens + self.question_tokens

    @property
    def resident_tokens(self) -> int:
        """Groups x (prefix + prompts x question): everything held exactly once."""
        return self.groups * (self.prefix_tokens + self.prompts_per_group * self.question_tokens)

    def blocks_per_worker(self, workers: int, block_size_tokens: int) -> int:
        """KV blocks each worker gets, so that the resident set is `resident_ratio` of the fleet's.

        Never fewer than one request needs, prompt and output.
        """
        fleet_tokens = self.resident_tokens / self.resident_ratio
        one_request = math.ceil((self.prompt_tokens + self.output_tokens) / block_size_tokens)
        return max(round(fleet_tokens / (workers * block_size_tokens)), one_request)


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request of a run: when it is due and what it asks."""

    due_seconds: float
    """After the start of the run."""
    group: int
    token_ids: tuple[int, ...]


def poisson_arrivals(count: int, rate_per_second: float, seed: int) -> list[float]:
    """Moments (seconds, ascending) of the first `count` events of a Poisson process."""
    draw = _random(seed)
    moments: list[float] = []
    now = 0.0
    for _ in range(count):
        now += draw.expovariate(rate_per_second)
        moments.append(now)
    return moments


def plan_run(
    workload: PrefixWorkload,
    *,
    rate_per_second: float,
    vocabulary: range,
    schedule_seed: int,
    prompt_seed: int,
) -> list[PlannedRequest]:
    """The requests of one run in order of arrival.

    `schedule_seed` fixes the moments and which group asks when; `prompt_seed` fixes the tokens. Two
    policies are compared under one schedule seed, each with prompts that no run before it has sent.
    """
    order = [group for group in range(workload.groups) for _ in range(workload.prompts_per_group)]
    _random(schedule_seed).shuffle(order)
    moments = poisson_arrivals(len(order), rate_per_second, schedule_seed + 1)
    draw = _random(prompt_seed)
    prefixes = [_token_ids(draw, workload.prefix_tokens, vocabulary) for _ in range(workload.groups)]
    return [
        PlannedRequest(
            due_seconds=moment,
            group=group,
            token_ids=(*prefixes[group], *_token_ids(draw, workload.question_tokens, vocabulary)),
        )
        for moment, group in zip(moments, order, strict=True)
    ]


def distinct_prompts(count: int, tokens: int, vocabulary: range, seed: int) -> list[tuple[int, ...]]:
    """`count` prompts of `tokens` random token ids each."""
    draw = _random(seed)
    return [tuple(_token_ids(draw, tokens, vocabulary)) for _ in range(count)]


def ordinary_tokens(vocabulary_size: int) -> range:
    """Token ids to draw prompts from: the low ids are left out, where control tokens usually live."""
    return range(min(64, vocabulary_size // 4), vocabulary_size)


def _token_ids(draw: Random, count: int, vocabulary: range) -> Sequence[int]:
    return draw.choices(vocabulary, k=count)


def _random(seed: int) -> Random:
    return Random(seed)  # noqa: S311 - repeatable, and nothing secret depends on it
