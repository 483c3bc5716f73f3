"""Compares what a worker found cached with what was predicted when it was picked, and counts the rest."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import structlog
from msgspec.structs import replace

from warmfleet_contracts.cache.worker_api import (
    CACHED_TOKENS_HEADER,
    LAST_BLOCK_HEADER,
    POSITION_HEADER,
    PROMPT_TOKENS_HEADER,
    TOTAL_CACHED_TOKENS_HEADER,
    TOTAL_PROMPT_TOKENS_HEADER,
)
from warmfleet_router.admission.dispatch import Dispatch
from warmfleet_router.admission.queued_request import LONGEST_CONTEXT_TOKENS
from warmfleet_router.economics.misses import PromptCauses, missed_tokens
from warmfleet_router.error_responses import header_text, header_tokens
from warmfleet_router.metrics import AnsweredTokens, ComputedPrompt, RouterMetrics
from warmfleet_router.prewarm.hot_prefixes import HotPrefixes, PrefixOrigin
from warmfleet_router.routing.decision_recorder import DecisionRecorder
from warmfleet_router.routing.decisions import WorkerAnswer, difference_of
from warmfleet_router.routing.miss_causes import MissCauses
from warmfleet_router.routing.prediction import Prediction, Predictor
from warmfleet_router.workers.fleet import Fleet
from warmfleet_router.workers.upstream import UpstreamResponse

_log = structlog.get_logger("warmfleet.router.proxy")


class StatedTokens(NamedTuple):
    """What a worker states in the headers of an answer; None is what it does not."""

    prompt: int | None = None
    cached: int | None = None


def stated_tokens(prompt: str | None, cached: str | None, *, most_tokens: int) -> StatedTokens:
    """What two headers state of prompts that have `most_tokens` at most.

    A worker that found more cached than there is contradicts itself, and states nothing: its surplus would be
    subtracted from what the other workers compute, by which the number of replicas is decided.
    """
    prompt_tokens, cached_tokens = header_tokens(prompt), header_tokens(cached)
    if prompt_tokens is not None:
        prompt_tokens = min(prompt_tokens, most_tokens)
    if cached_tokens is not None and (prompt_tokens is None or cached_tokens > prompt_tokens):
        return StatedTokens()
    return StatedTokens(prompt_tokens, cached_tokens)


def most_prompt_tokens(prediction: Prediction, *, prompts: int) -> tuple[int, int]:
    """Tokens that the first of a request's `prompts`, and all of them, may have at the predicted worker.

    Each prompt counts once, as workers count them. What the router encoded for this worker has as many as it
    counted; a prompt of which it has only the text is no longer than a context.
    """
    counted = [prompt.tokens for prompt in prediction.prompts] or [LONGEST_CONTEXT_TOKENS] * prompts
    return counted[0], sum(counted)


class CacheComparison:
    """Predictions against answers. Counts, for `prewarm`, uses of what prompts share with those before."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        predictor: Predictor,
        causes: MissCauses,
        hot: HotPrefixes,
        metrics: RouterMetrics,
        now: Callable[[], float],
    ) -> None:
        self._fleet = fleet
        self._hot = hot
        self._now = now
        self._predictor = predictor
        self._causes = causes
        self._metrics = metrics

    def causes(self, dispatch: Dispatch) -> list[PromptCauses]:
        """Why tokens of each prompt would be missed, by what is known before it is sent."""
        return self._causes.of(dispatch.picked, dispatch.request.prompts)

    def answered(
        self,
        dispatch: Dispatch,
        causes: Sequence[PromptCauses],
        recorder: DecisionRecorder,
        response: UpstreamResponse,
    ) -> ComputedPrompt:
        """Record what the worker found beside what was predicted; returns what it computes."""
        headers = response.headers
        choice = recorder.attempt.choice
        first_tokens, all_tokens = most_prompt_tokens(
            dispatch.picked.prediction, prompts=dispatch.request.prompts.count
        )
        prompt_tokens, cached_tokens = stated_tokens(
            headers.get(PROMPT_TOKENS_HEADER), headers.get(CACHED_TOKENS_HEADER), most_tokens=first_tokens
        )
        last_block = headers.get(LAST_BLOCK_HEADER)
        has_both = last_block is not None and choice.last_block is not None
        answer = WorkerAnswer(
            status=response.status,
            headers_after_ms=recorder.age_ms(),
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            last_block_matches=last_block == choice.last_block if has_both else None,
            difference=difference_of(
                choice, cached_tokens, is_coming=self._is_coming(dispatch, cached_tokens)
            ),
            position=header_text(headers.get(POSITION_HEADER)),
        )
        if cached_tokens is None:
            recorder.answered(answer)
            return ComputedPrompt()
        if len(causes) == 1:
            self._used(dispatch, causes[0])
        total, total_cached = stated_tokens(
            headers.get(TOTAL_PROMPT_TOKENS_HEADER),
            headers.get(TOTAL_CACHED_TOKENS_HEADER),
            most_tokens=all_tokens,
        )
        if total is None or total_cached is None:
            # A stream, or a worker of the release before: the first prompt is what is known.
            predicted, causes = choice.predicted_cached_tokens, causes[:1]
            tokens = AnsweredTokens(prompt_tokens or 0, cached_tokens)
        else:
            predicted = dispatch.picked.prediction.cached_tokens
            tokens = AnsweredTokens(total, total_cached)
        misses = missed_tokens(
            causes,
            first_cached_tokens=cached_tokens,
            prompt_tokens=tokens.prompt,
            cached_tokens=tokens.cached,
        )
        recorder.answered(replace(answer, misses=misses))
        self._metrics.on_answer(dispatch.request.model, predicted, tokens, misses, answer)
        if answer.last_block_matches is False:
            _log.error("router and worker hash a prompt differently", uid=dispatch.picked.endpoint.uid)
        return ComputedPrompt(tokens, misses)

    def _used(self, dispatch: Dispatch, causes: PromptCauses) -> None:
        """Count a use of what the prompt shares with those before it."""
        picked, request = dispatch.picked, dispatch.request
        [prompt] = picked.prediction.prompts
        blocks = causes.seen_tokens // prompt.block_size_tokens
        worker = self._fleet.worker(picked.candidate.uid)
        if not blocks or worker is None or worker.hello is None or worker.epoch != picked.epoch:
            return
        digest = worker.hello.tokenizer_digest
        self._hot.used(
            prompt.hashes[blocks - 1],
            PrefixOrigin(
                request.tenant.name, request.prompts.salt, request.model, digest, picked.endpoint.deployment
            ),
            partial(request.prompts.beginning, digest, blocks * prompt.block_size_tokens),
            self._now(),
        )

    def _is_coming(self, dispatch: Dispatch, cached_tokens: int | None) -> bool:
        """Whether the block after `cached_tokens` is still computed for another request."""
        view = self._fleet.worker(dispatch.picked.endpoint.uid)
        if cached_tokens is None or view is None:
            return False
        return self._predictor.is_coming(view, dispatch.request.prompts, cached_tokens)
