"""Time to first token with and without a cached prompt, measured at an HTTP client through the router."""

from collections.abc import Sequence

import httpx

from warmfleet_cli.bench.cache.results import FirstTokens
from warmfleet_cli.bench.client import Answer, Question, ask
from warmfleet_cli.bench.open_loop import OnAnswer
from warmfleet_cli.bench.processes import BenchError
from warmfleet_cli.bench.workload import distinct_prompts

NEW_TOKENS = 8
"""Tokens of each warm prompt that no request has sent before, so that a hit still computes a question."""


async def measure_first_tokens(
    client: httpx.AsyncClient,
    router_url: str,
    *,
    model: str,
    cached_prompt_tokens: int,
    repeats: int,
    vocabulary: range,
    seed: int,
    on_answer: OnAnswer,
) -> FirstTokens:
    """Cold and warm prompts of one length in turn, one at a time.

    A warm prompt begins with the same `cached_prompt_tokens` as all warm ones; a cold prompt is new from
    its first token. Both end in a question of `NEW_TOKENS` of their own.

    Raises:
        BenchError: a request failed.
    """
    beginning = distinct_prompts(1, cached_prompt_tokens, vocabulary, seed)[0]
    questions = distinct_prompts(repeats + 1, NEW_TOKENS, vocabulary, seed + 1)
    cold_prompts = distinct_prompts(repeats + 1, cached_prompt_tokens + NEW_TOKENS, vocabulary, seed + 2)
    cold: list[Answer] = []
    warm: list[Answer] = []
    for number in range(repeats + 1):
        for kind, answers, token_ids in (
            ("cold", cold, cold_prompts[number]),
            ("warm", warm, (*beginning, *questions[number])),
        ):
            question = Question(f"bench-{kind}-{number}", model, token_ids, output_tokens=1)
            answers.append(_checked(await ask(client, router_url, question)))
            on_answer()
    # The first pair fills the cache and warms every code path up; it is not counted.
    return _first_tokens(cached_prompt_tokens + NEW_TOKENS, cold[1:], warm[1:])


def _first_tokens(prompt_tokens: int, cold: Sequence[Answer], warm: Sequence[Answer]) -> FirstTokens:
    return FirstTokens(
        prompt_tokens=prompt_tokens,
        cold_seconds=[answer.first_token_seconds for answer in cold],
        warm_seconds=[answer.first_token_seconds for answer in warm],
        cold_cached_tokens=[answer.cached_tokens for answer in cold],
        warm_cached_tokens=[answer.cached_tokens for answer in warm],
    )


def _checked(answer: Answer) -> Answer:
    if not answer.succeeded:
        raise BenchError(f"request {answer.request_id} failed: {answer.error}")
    return answer
