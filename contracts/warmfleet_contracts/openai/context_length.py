"""The error for prompts that do not fit into a model's context: one text for router and worker."""

from warmfleet_contracts.openai.request_fields import RequestError


def least_answer_tokens(max_output_tokens: int | None) -> int:
    """Tokens of the context that an answer needs at least: 1, or 0 if the request asks for none."""
    return 0 if max_output_tokens == 0 else 1


def context_length_error(prompt_tokens: int | None, limit_tokens: int, param: str) -> RequestError:
    """400 for a prompt that leaves no token for its answer in a context of `limit_tokens`.

    `prompt_tokens` is None where they were not counted further than that.
    """
    tokens = f"more than {limit_tokens}" if prompt_tokens is None else prompt_tokens
    return RequestError(
        # Clients match the first sentence; LangChain, "prompt is too long".
        f"This model's maximum context length is {limit_tokens} tokens. However, the prompt is too long: "
        f"it has {tokens} tokens, and the answer needs at least one more.",
        param=param,
        code="context_length_exceeded",
    )
