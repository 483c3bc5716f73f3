"""A request as it enters admission: all that is known once its prompt is encoded."""

from typing import Final

import msgspec

from warmfleet_router.admission.queue_bounds import Amount
from warmfleet_router.routing.prompt_hashes import RequestPrompts
from warmfleet_router.tenants import Tenant

LONGEST_CONTEXT_TOKENS: Final = 2**20
"""No model has a longer one: neither a prompt nor an answer has more tokens."""


class QueuedRequest(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What admission needs of a request to order it among others and to find a worker for it."""

    model: str
    tenant: Tenant
    prompts: RequestPrompts
    prompt_tokens: int
    """Over all prompts; an estimate where no tokenizer is known."""
    body_bytes: int
    sequences: int
    priority: int
    """What its tenant may have of what it asked for; lower is more urgent."""
    output_limit_tokens: int | None
    """Per sequence, where the client gave a limit."""
    arrived_at: float
    """Clock time in seconds, before the body was read."""
    body_read_at: float
    """Clock time in seconds at which the body was complete."""
    is_retry: bool = False
    """Its client had sent it before, and states it."""
    is_suspect: bool = False
    """An engine may have ended because of it: its prompt is computed alone (`isolation`)."""

    @property
    def most_output_tokens(self) -> int:
        """Over all sequences; a worker that counts more is wrong."""
        limit_tokens = self.output_limit_tokens
        if limit_tokens is None:
            limit_tokens = LONGEST_CONTEXT_TOKENS
        return self.sequences * min(limit_tokens, LONGEST_CONTEXT_TOKENS)

    @property
    def size(self) -> Amount:
        """What it takes up while it waits."""
        return Amount(1, self.body_bytes, self.prompt_tokens)
