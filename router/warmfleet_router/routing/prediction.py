"""How much of a request's prompts a worker has in its cache, by prefix index and pending blocks."""

from collections.abc import Collection, Sequence

import msgspec

from warmfleet_contracts.cache.blocks import BlockHash
from warmfleet_router.routing.pending_blocks import PendingBlocks
from warmfleet_router.routing.prompt_hashes import HashedPrompt, RequestPrompts
from warmfleet_router.workers.fleet import WorkerStatus
from warmfleet_router.workers.prefix_index import PrefixIndex


class PromptPrediction(msgspec.Struct, frozen=True):
    """How much of one prompt a worker holds, in tokens."""

    prompt_tokens: int
    cached_tokens: int = 0
    """min(longest run of resident or pending blocks, cacheable tokens)."""
    pending_tokens: int = 0
    """The part of `cached_tokens` that is not resident yet."""
    last_block: BlockHash | None = None
    """Hash of the last full block; None if there is none, or no tokenizer."""
    resident_blocks: int = 0
    """Resident blocks without a break from the first."""


class Prediction(msgspec.Struct, frozen=True):
    """How much of a request's prompts a worker has cached, and how much it would compute."""

    prompts: tuple[HashedPrompt, ...]
    """Empty without the worker's tokenizer."""
    parts: tuple[PromptPrediction, ...]
    """One per prompt; without a tokenizer one for all of them."""
    prompt_tokens: int
    """Counted as often as they are computed: once per choice, where the choices cannot share."""
    cached_tokens: int
    pending_tokens: int
    needed_blocks: int
    precise: bool = False
    """Whether `cached_tokens` comes from a complete index; otherwise it is 0, because nothing is known."""

    @property
    def uncached_tokens(self) -> int:
        """What the worker would compute."""
        return self.prompt_tokens - self.cached_tokens

    @property
    def first(self) -> PromptPrediction:
        """Of the first prompt: the worker's response headers describe that one."""
        return self.parts[0]

    @property
    def new_hashes(self) -> tuple[BlockHash, ...]:
        """Full blocks that are not resident: what the request makes pending."""
        rest = (
            prompt.hashes[part.resident_blocks :]
            for prompt, part in zip(self.prompts, self.parts, strict=False)
        )
        return tuple(dict.fromkeys(block_hash for hashes in rest for block_hash in hashes))

    @property
    def new_first_hashes(self) -> tuple[BlockHash, ...]:
        """Those of them with which a prompt begins."""
        parts = zip(self.prompts, self.parts, strict=False)
        new = (prompt.hashes[0] for prompt, part in parts if prompt.hashes and not part.resident_blocks)
        return tuple(dict.fromkeys(new))


class Predictor:
    """Reads index and pending blocks; changes neither."""

    def __init__(self, index: PrefixIndex, pending: PendingBlocks) -> None:
        self._index = index
        self._pending = pending

    def predict(
        self, worker: WorkerStatus, prompts: RequestPrompts, resident: Sequence[int] | None = None
    ) -> Prediction:
        """What `worker` has cached of `prompts`.

        `resident` is how far the index matches each of them, where that is known, for a precise worker.
        """
        hashed = prompts.hashed(worker.hello) if worker.hello is not None else None
        if hashed is None:
            tokens = prompts.token_count or prompts.estimated_tokens
            block_size = worker.hello.block_size_tokens if worker.hello is not None else tokens
            needed_blocks = -(-tokens // block_size) * prompts.unshared_copies
            computed_tokens = tokens * prompts.unshared_copies
            return Prediction((), (PromptPrediction(tokens),), computed_tokens, 0, 0, needed_blocks)
        uid = worker.endpoint.uid
        precise = worker.precise and self._index.is_precise(uid)
        parts: list[PromptPrediction] = []
        earlier: set[BlockHash] = set()
        for number, prompt in enumerate(hashed):
            if not precise:
                parts.append(_unknown(prompt))
                continue
            blocks = (
                self._index.matched_blocks(uid, prompt.hashes) or 0 if resident is None else resident[number]
            )
            parts.append(self._predict_prompt(uid, prompt, blocks, earlier))
            if len(hashed) > 1:
                earlier.update(prompt.hashes[blocks:])
        return Prediction(
            prompts=hashed,
            parts=tuple(parts),
            prompt_tokens=sum(prompt.tokens * prompt.copies for prompt in hashed),
            cached_tokens=sum(part.cached_tokens for part in parts),
            pending_tokens=sum(part.pending_tokens for part in parts),
            needed_blocks=sum(prompt.blocks * prompt.copies for prompt in hashed),
            precise=precise,
        )

    def is_coming(self, worker: WorkerStatus, prompts: RequestPrompts, cached_tokens: int) -> bool:
        """Whether the worker holds by now, or computes, the first prompt's block at `cached_tokens`.

        For a dispatch that missed this block: its own claim does not count.
        """
        hashed = prompts.hashed(worker.hello) if worker.hello is not None else None
        if not hashed or (position := cached_tokens // hashed[0].block_size_tokens) >= len(hashed[0].hashes):
            return False
        block_hash, uid = hashed[0].hashes[position], worker.endpoint.uid
        is_resident = worker.precise and self._index.holds(uid, block_hash)
        return is_resident or self._pending.claims(uid, block_hash) > 1

    def _predict_prompt(
        self, uid: str, prompt: HashedPrompt, resident_blocks: int, earlier_prompts: Collection[BlockHash]
    ) -> PromptPrediction:
        hashes, block_size = prompt.hashes, prompt.block_size_tokens
        match = self._pending.match(uid, hashes, resident_blocks, self._index)
        blocks, pending_blocks = match.blocks, match.pending_blocks
        # Prompts of one request share prefixes too: the first computes, the others wait for it.
        while blocks < len(hashes) and hashes[blocks] in earlier_prompts:
            blocks, pending_blocks = blocks + 1, pending_blocks + 1
        cached_tokens = min(blocks * block_size, prompt.cacheable_tokens)
        return PromptPrediction(
            prompt_tokens=prompt.tokens,
            cached_tokens=cached_tokens,
            pending_tokens=max(cached_tokens - (blocks - pending_blocks) * block_size, 0),
            last_block=hashes[-1] if hashes else None,
            resident_blocks=resident_blocks,
        )


def _unknown(prompt: HashedPrompt) -> PromptPrediction:
    return PromptPrediction(prompt.tokens, last_block=prompt.hashes[-1] if prompt.hashes else None)
