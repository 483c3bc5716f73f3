"""What vLLM does not do when it is asked: requests that it refuses, a clear of its cache that it declines."""

import asyncio
import re
from typing import Final

import structlog

from warmfleet_worker.vllm_engine.outputs import (
    BusyError,
    ClearDeclinedError,
    Llm,
    ModelFacts,
    RefusedRequestError,
)
from warmfleet_worker.vllm_engine.scores import scores_bytes

CLEAR_PAUSES_SECONDS: Final = (0.5, 1, 2, 4, 8, 16, 32)
"""Before each further request to clear a cache."""
_MAX_TEXT_CHARS: Final = 300
_OF_THE_MACHINE: Final = re.compile(r"""Traceback|0x[0-9a-f]{6}|(^|[\s'"(=:])~?/[\w.-]+/""")
"""Stack traces, addresses in memory, and paths."""

log = structlog.get_logger("warmfleet.worker.vllm")


def request_error(error: Exception) -> RefusedRequestError | BusyError:
    """What a request ends with for which vLLM raised `error`, whichever class it has.

    vLLM checks a request before it computes anything: what it raises is about that request alone, and the
    classes have no base in common with Python's own.
    """
    lines = str(error).strip().splitlines()
    text = lines[0][:_MAX_TEXT_CHARS] if lines else ""
    if not text or _OF_THE_MACHINE.search(text):
        text = "vLLM does not compute this request"
    # Errors that are of the moment have the status that vLLM's own server would answer.
    is_busy = getattr(error, "http_status", None) in {429, 503}
    return BusyError(text) if is_busy else RefusedRequestError(text)


async def clear_cache(llm: Llm) -> None:
    """Have `llm` clear its cache, which it may decline while something holds blocks.

    Each call computes every live sequence anew: hence the growing pauses.

    Raises:
        VllmDiedError: one of vLLM's processes has ended.
        ClearDeclinedError: it declined each time.
    """
    for pause_seconds in CLEAR_PAUSES_SECONDS:
        try:
            return await llm.clear_cache()
        except ClearDeclinedError as error:
            log.warning("vLLM does not clear its cache yet", reason=str(error), pause_seconds=pause_seconds)
        await asyncio.sleep(pause_seconds)
    return await llm.clear_cache()


def scores_misfit(prompt_tokens: int, facts: ModelFacts) -> str:
    """Why vLLM has no memory for the log probabilities of a prompt, or ""."""
    most, at_once = facts.most_scored_tokens, min(prompt_tokens, facts.max_batched_tokens)
    if most is None or at_once <= most:
        return ""
    needed, available = (scores_bytes(tokens, facts.vocabulary_size) >> 20 for tokens in (at_once, most))
    return (
        f"log probabilities of {at_once} prompt tokens take {needed} MiB at once, this engine has "
        f"{available} MiB for them: ask for those of at most {most} tokens"
    )
