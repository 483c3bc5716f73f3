"""One answer that a replica computes, as its reader waits for it."""

import asyncio
from array import array
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Answer:
    """A prompt at a replica. Each future ends at the end of the step that brought it, in virtual time."""

    prompt: "array[int]"
    output_tokens: int
    """Tokens that the model generates."""
    answer_token: int
    """The token id of all of them."""
    router_id: str
    dispatch: int
    admitted: "asyncio.Future[int]"
    """Prompt tokens that were cached, once the sequence has a seat."""
    first_token: "asyncio.Future[None]"
    ended: "asyncio.Future[int]"
    """Tokens that were generated."""
    last_token_ps: int = 0
    generated_tokens: int = 0
