"""Headers and messages between router and worker under `/internal/`, and the headers of a dispatch.

A worker honours `x-warmfleet-*` request headers only from a caller that presented its token (or when it
has none, as on loopback); the router strips them from what clients send.
"""

import hashlib
import json
from typing import Final

import msgspec

KV_EVENTS_PATH: Final = "/internal/kv-events"
"""`GET` with `?epoch=&after=` and `NONCE_HEADER`. A worker may answer at once and send its `Hello` only
when its engine knows epoch and identity; it sends no frame before that."""
TOKENIZER_PATH: Final = "/internal/tokenizer"
"""`GET /internal/tokenizer/{digest}` answers a `PromptAssets` in msgpack."""
CACHE_PATH: Final = "/internal/cache"
"""`GET` describes the cache, `DELETE` drops every block that no live sequence holds."""

ROUTER_HEADER_PREFIX: Final = b"x-warmfleet-"

# Router -> worker.
SALT_HEADER: Final = "x-warmfleet-salt"
"""Hex of the salt for this request's block hashes."""
MAX_SALT_BYTES: Final = 64
UID_HEADER: Final = "x-warmfleet-uid"
"""Uid of the worker that is addressed. A different worker at the same address answers `MISDIRECTED_STATUS`
without reading the body."""
MISDIRECTED_STATUS: Final = 421
ROUTER_ID_HEADER: Final = "x-warmfleet-router"
DISPATCH_HEADER: Final = "x-warmfleet-dispatch"
"""This router's dispatch counter for this worker; comes back in `LoadReport.admitted_dispatches`."""
SEED_HEADER: Final = "x-warmfleet-seed"
"""Seed that the router drew for a request without one, so that a retry repeats the same noise."""
PRIORITY_HEADER: Final = "x-warmfleet-priority"
"""Decimal, lower runs earlier; set by the router; it replaces the body's `priority`."""
HIGHEST_PRIORITY: Final = -100
LOWEST_PRIORITY: Final = 100

NONCE_HEADER: Final = "x-warmfleet-nonce"
"""Hex of the subscriber's fresh nonce, 16 bytes, for `Hello.proof` on the event stream."""

VERSIONS_HEADER: Final = "x-warmfleet-versions"
"""The contract versions that the subscriber accepts, such as `1,2`. Without it: version 1."""

# Worker -> router, before the first byte of the body.
PROMPT_TOKENS_HEADER: Final = "x-warmfleet-prompt-tokens"
CACHED_TOKENS_HEADER: Final = "x-warmfleet-cached-tokens"
LAST_BLOCK_HEADER: Final = "x-warmfleet-last-block"
"""Hex of the hash of the prompt's last full block; absent for a prompt shorter than one block."""
POSITION_HEADER: Final = "x-warmfleet-position"
"""`epoch:seq` of the event stream when the prompt was matched against the cache."""
GENERATED_TOKENS_HEADER: Final = "x-warmfleet-generated-tokens"
"""Of all choices of a plain answer, whose headers come when it is whole. A stream's events are counted."""
TOTAL_PROMPT_TOKENS_HEADER: Final = "x-warmfleet-total-prompt-tokens"
TOTAL_CACHED_TOKENS_HEADER: Final = "x-warmfleet-total-cached-tokens"
"""Of all prompts of a plain answer, each counted once; those without `total` are of the first prompt."""
ADMITTED_AFTER_HEADER: Final = "x-warmfleet-admitted-after-seconds"
FIRST_TOKEN_AFTER_HEADER: Final = "x-warmfleet-first-token-after-seconds"  # noqa: S105 - a name
"""Of a plain answer, as in `PlainAnswer`: one that ends at once is in no load report."""

# Router -> client.
DECISION_HEADER: Final = "x-warmfleet-decision"
REQUEST_ID_HEADER: Final = "x-request-id"


class PromptAssets(msgspec.Struct, frozen=True, kw_only=True):
    """Tokenizer and chat template: what a process without the model's files needs to encode its prompts."""

    v: int = 1
    tokenizer_json: str
    chat_template: str | None
    special_tokens: dict[str, str]
    """Template variables such as `bos_token` and `eos_token`."""
    add_bos: bool = False
    """Whether a plain completion prompt starts with the BOS token."""

    @property
    def digest(self) -> bytes:
        """SHA-256 over everything here but the version; in hex it names the tokenizer."""
        return _digest(
            self.tokenizer_json.encode(),
            b"" if self.chat_template is None else b"=" + self.chat_template.encode(),
            json.dumps(self.special_tokens, sort_keys=True).encode(),
            b"\x01" if self.add_bos else b"\x00",
        )

    @property
    def chat_template_digest(self) -> bytes:
        """SHA-256 over the template alone; a model without one has that of an empty template."""
        return _digest((self.chat_template or "").encode())


def _digest(*parts: bytes) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()
