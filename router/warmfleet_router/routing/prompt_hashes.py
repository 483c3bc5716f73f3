"""One request's prompts as the picker needs them: token counts and block hashes per cache identity.

Two revisions of a model live side by side during a rollout, so a prompt is hashed once per distinct identity
among the candidates, and not again on a retry.
"""

import hashlib
from array import array
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from warmfleet_contracts.cache.blocks import (
    BlockHash,
    CacheIdentity,
    block_root,
    cacheable_tokens,
    prefix_caching_supported,
)
from warmfleet_contracts.cache.kv_events import Hello
from warmfleet_router.routing.block_hash_memory import BlockHashMemory

HEAD_TOKENS: Final = 64
"""What ConsistentHash uses as the head of a prompt: within a system prompt, past the template's own text."""
HEAD_BYTES: Final = 256
"""The same while no tokenizer is known."""
BYTES_PER_TOKEN: Final = 4
"""Estimate while no tokenizer is known."""
KEPT_BYTES_PER_TOKEN: Final = 8
"""An id, and a token's part of the hash of its block."""


class HashedPrompt(msgspec.Struct, frozen=True):
    """One prompt under one identity."""

    tokens: int
    block_size_tokens: int
    hashes: tuple[BlockHash, ...]
    """Of the full blocks. Empty for a model whose cache cannot be matched yet (sliding window)."""

    may_read_cache: bool = True
    copies: int = 1
    """How many sequences compute and hold it for themselves: the choices, where no cache can be read."""

    @property
    def cacheable_tokens(self) -> int:
        """Most tokens that a worker takes from its cache; none for a request that may not read it."""
        return cacheable_tokens(self.tokens, self.block_size_tokens) if self.may_read_cache else 0

    @property
    def blocks(self) -> int:
        """Blocks that the prompt occupies, a partial last one included."""
        return -(-self.tokens // self.block_size_tokens)


class RequestPrompts:
    """The prompts of one request: one for chat, up to 64 for text completions."""

    def __init__(
        self,
        *,
        encoded: Mapping[str, Sequence[Sequence[int]]],
        salt: bytes,
        hash_memory: BlockHashMemory,
        body_bytes: int,
        head: bytes,
        count: int = 1,
        choices: int = 1,
        may_read_cache: bool = True,
    ) -> None:
        """Keep `encoded`, token ids per prompt by tokenizer digest; nothing is hashed yet.

        `head` stands for the request while no tokenizer is known: the beginning of its text.
        """
        # Four bytes each instead of an object.
        self._encoded = {
            digest: [array("I", token_ids) for token_ids in prompts] for digest, prompts in encoded.items()
        }
        self._salt = salt
        self._hash_memory = hash_memory
        self._may_read_cache = may_read_cache
        self._choices = choices
        self._hashed: dict[tuple[bytes, int, str], tuple[HashedPrompt, ...]] = {}
        self.count = count
        self.sequences = count * choices
        """What a worker runs for it; the choices of one prompt share its blocks, where they may."""
        self.unshared_copies = 1 if may_read_cache else choices
        """How often each prompt is computed, as far as that is known without a worker's identity."""
        self.estimated_tokens = max(body_bytes // BYTES_PER_TOKEN, 1)
        # Until a tokenizer is known; a request is not to keep its text beside its token ids.
        self._text_keys = None if encoded else (_digest(head[:HEAD_BYTES]), _digest(head))

    def hashed(self, hello: Hello) -> tuple[HashedPrompt, ...] | None:
        """The prompts under a worker's identity; None without its tokenizer."""
        key = (hello.identity, hello.block_size_tokens, hello.tokenizer_digest)
        known = self._hashed.get(key)
        if known is None:
            encoded = self._encoded.get(hello.tokenizer_digest)
            if encoded is None:
                return None
            known = tuple(self._hash(token_ids, hello) for token_ids in encoded)
            self._hashed[key] = known
        return known

    @property
    def salt(self) -> bytes:
        """Of their block hashes."""
        return self._salt

    def beginning(self, tokenizer_digest: str, tokens: int) -> "array[int]":
        """The first tokens of the first prompt under that tokenizer, which has encoded it."""
        return self._encoded[tokenizer_digest][0][:tokens]

    @property
    def all_hashed(self) -> Collection[tuple[HashedPrompt, ...]]:
        """The prompts under each identity that was asked for so far."""
        return self._hashed.values()

    @property
    def head_key(self) -> bytes:
        """Stands for the first prompt's beginning; of the request's text while no tokenizer is known."""
        return self._text_keys[0] if self._text_keys else _digest(_as_bytes(self._first[:HEAD_TOKENS]))

    @property
    def whole_key(self) -> bytes:
        """Stands for the whole first prompt, as far as it is known."""
        return self._text_keys[1] if self._text_keys else _digest(_as_bytes(self._first))

    @property
    def _first(self) -> Sequence[int]:
        return self._encoded[min(self._encoded)][0]

    @property
    def size_bytes(self) -> int:
        """What is kept of the prompts until the request ends."""
        ids = sum(len(token_ids) for prompts in self._encoded.values() for token_ids in prompts)
        return ids * KEPT_BYTES_PER_TOKEN

    @property
    def token_count(self) -> int | None:
        """Prompt tokens by the first known tokenizer, over all prompts; None without any."""
        if not self._encoded:
            return None
        return sum(len(token_ids) for token_ids in self._encoded[min(self._encoded)])

    def _hash(self, token_ids: Sequence[int], hello: Hello) -> HashedPrompt:
        hashes: list[BlockHash] = []
        caches = prefix_caching_supported(hello.window_tokens)
        if caches:
            root = block_root(CacheIdentity(hello.identity), salt=self._salt)
            hashes = self._hash_memory.hashes(root, token_ids, hello.block_size_tokens)
        return HashedPrompt(
            tokens=len(token_ids),
            block_size_tokens=hello.block_size_tokens,
            hashes=tuple(hashes),
            may_read_cache=self._may_read_cache,
            copies=1 if caches and self._may_read_cache else self._choices,
        )


def _as_bytes(token_ids: Sequence[int]) -> bytes:
    return array("I", token_ids).tobytes()


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()
