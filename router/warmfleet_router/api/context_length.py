"""Refuses prompts that are too long for every worker, before they are hashed, queued or sent."""

from collections.abc import Sequence
from operator import itemgetter

from warmfleet_contracts.cache.kv_events import Hello
from warmfleet_contracts.openai import ChatRequest, CompletionRequest
from warmfleet_contracts.openai.context_length import context_length_error, least_answer_tokens
from warmfleet_router.workers.encoders import EncodedPrompts


def require_fitting(
    request: ChatRequest | CompletionRequest,
    encoded: EncodedPrompts,
    hellos: Sequence[Hello],
) -> None:
    """Refuse prompts that fit no worker.

    A worker whose tokenizer is not known yet may take anything.

    Raises:
        RequestError: 400, as the worker with the longest context would put it.
    """
    least = least_answer_tokens(request.max_output_tokens)
    refusals: list[tuple[int, int | None]] = []
    for hello in hellos:
        limit, digest = hello.max_model_length_tokens, hello.tokenizer_digest
        if digest in encoded.too_long:
            refusals.append((limit, None))
            continue
        prompts = encoded.token_ids.get(digest, ())
        too_long = [len(prompt) for prompt in prompts if len(prompt) + least > limit]
        if not too_long:
            return
        refusals.append((limit, too_long[0]))
    if refusals:
        limit, prompt_tokens = max(refusals, key=itemgetter(0))
        param = "messages" if isinstance(request, ChatRequest) else "prompt"
        raise context_length_error(prompt_tokens, limit, param)
