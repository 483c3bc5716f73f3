"""Why a prompt's tokens were not cached where its request went. Pure.

Per block that a cache could have served, in the order of these questions:

    the chosen worker held it when it was chosen, and not any more   capacity
    another worker that could have been chosen holds the prefix up to it    placement
    the last that happened to it is that a living worker evicted it    capacity
    ... or that its worker left, restarted or was cleared    lost
    the same tokens are, or were, held under another cache identity    rollout
    else    compulsory

A capacity miss has a depth: how many blocks the worker evicted since, as a share of its cache. A cache that
much larger would have spared it.

Tokens that fill no block, and the last token, are always computed: compulsory. What is not known any more, or
not yet, makes a miss compulsory and nothing else.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from warmfleet_contracts.cache.blocks import BlockHash
from warmfleet_contracts.cache.fleet_totals import CACHE_DEPTHS, MissTokens


class MissCause(StrEnum):
    """The fields of `MissTokens`."""

    COMPULSORY = "compulsory"
    PLACEMENT = "placement"
    CAPACITY = "capacity"
    LOST = "lost"
    ROLLOUT = "rollout"


CauseOfLoss = Callable[[BlockHash], MissCause | None]
"""Why no worker holds a block that one held: capacity or lost; None if nothing is known of it."""
EvictedSince = Callable[[BlockHash], int]
"""Blocks that the worker which evicted this one evicted since."""


class OtherIdentity(msgspec.Struct, frozen=True):
    """The prompt under another cache identity of the same model, and where it is held."""

    hashes: Sequence[BlockHash]
    block_size_tokens: int
    held_blocks: int
    """Most that one worker holds of it without a break from the first."""


class PromptHolders(msgspec.Struct, frozen=True):
    """Who holds a prompt's blocks when its worker is chosen."""

    hashes: Sequence[BlockHash]
    """Those that a cache may serve, under the chosen worker's identity."""
    block_size_tokens: int
    held_blocks: int
    """By the chosen worker, without a break from the first."""
    held_elsewhere_blocks: int
    """Most that another worker of the same identity holds without a break from the first."""
    others: Sequence[OtherIdentity] = ()
    cache_blocks: int = 0
    """Of the chosen worker's whole cache; 0: unknown."""


class CauseRun(NamedTuple):
    """Consecutive tokens that would be missed for the same cause; the run begins where the last one ends."""

    cause: MissCause
    end_tokens: int
    depth: int = 0
    """Of a capacity miss, as an index of `CACHE_DEPTHS`; the number of bounds: deeper, or unknown."""


class PromptCauses(msgspec.Struct, frozen=True):
    """Why each token of a prompt would be missed, if it is. What the worker found decides which are."""

    predicted_cached_tokens: int
    runs: tuple[CauseRun, ...] = ()
    """From the first token on; after the last run all is compulsory."""

    @property
    def seen_tokens(self) -> int:
        """Tokens, from the first on, that a worker holds or held under this identity."""
        seen = 0
        for cause, end_tokens, _ in self.runs:
            if cause in {MissCause.COMPULSORY, MissCause.ROLLOUT}:
                break
            seen = end_tokens
        return seen


def prompt_causes(
    holders: PromptHolders,
    cause_of_loss: CauseOfLoss,
    evicted_since: EvictedSince,
    *,
    predicted_cached_tokens: int,
) -> PromptCauses:
    """The causes for a prompt whose worker has just been chosen. Costs two look-ups per block not held."""
    size, runs = holders.block_size_tokens, []
    # A worker may hold the last block, too, which no cache may serve.
    held = min(holders.held_blocks, len(holders.hashes))
    elsewhere = min(holders.held_elsewhere_blocks, len(holders.hashes))
    if held:
        runs.append(CauseRun(MissCause.CAPACITY, held * size, len(CACHE_DEPTHS)))
    if elsewhere > held:
        runs.append(CauseRun(MissCause.PLACEMENT, elsewhere * size))
    first = max(held, elsewhere)
    for position, block_hash in enumerate(holders.hashes[first:], first):
        end_tokens = (position + 1) * size
        cause = cause_of_loss(block_hash)
        if cause is None:
            cause = (
                MissCause.ROLLOUT
                if any(_was_held(other, end_tokens, cause_of_loss) for other in holders.others)
                else MissCause.COMPULSORY
            )
        depth = 0
        if cause is MissCause.CAPACITY:
            depth = _depth(evicted_since(block_hash), holders.cache_blocks)
        if runs and runs[-1].cause is cause and runs[-1].depth == depth:
            runs.pop()
        runs.append(CauseRun(cause, end_tokens, depth))
    return PromptCauses(predicted_cached_tokens, tuple(runs))


def missed_tokens(
    causes: Sequence[PromptCauses], *, first_cached_tokens: int, prompt_tokens: int, cached_tokens: int
) -> MissTokens:
    """The tokens of a request that its worker computed, by cause: `prompt_tokens` less `cached_tokens`.

    A worker reports what it found of the first prompt and of all together: what is left for the others is
    shared out as it was predicted.
    """
    tokens = dict.fromkeys(MissCause, 0)
    depths = [0] * (len(CACHE_DEPTHS) + 1)
    left = max(cached_tokens - first_cached_tokens, 0)
    for number, prompt in enumerate(causes):
        found = first_cached_tokens if number == 0 else min(prompt.predicted_cached_tokens, left)
        left -= found if number else 0
        start = found
        for cause, end_tokens, depth in prompt.runs:
            if end_tokens > start:
                tokens[cause] += end_tokens - start
                if cause is MissCause.CAPACITY:
                    depths[depth] += end_tokens - start
                start = end_tokens
    del tokens[MissCause.COMPULSORY]
    missed = max(prompt_tokens - cached_tokens, 0)
    for cause, count in tokens.items():
        # Where the worker reports fewer tokens than this router counted.
        tokens[cause] = min(count, missed)
        missed -= tokens[cause]
    return MissTokens(
        compulsory=missed, **tokens, capacity_depths=_at_most(tokens[MissCause.CAPACITY], depths[:-1])
    )


def _depth(evicted_blocks: int, cache_blocks: int) -> int:
    return bisect_left(CACHE_DEPTHS, evicted_blocks / cache_blocks) if cache_blocks else len(CACHE_DEPTHS)


def _at_most(tokens: int, depths: Sequence[int]) -> tuple[int, ...]:
    """The counts as far as they are no more than `tokens` together."""
    kept = []
    for count in depths:
        kept.append(min(count, tokens))
        tokens -= kept[-1]
    return without_last_zeros(kept)


def without_last_zeros(counts: Sequence[int]) -> tuple[int, ...]:
    """Counts as the wire has them: what is absent is 0."""
    end = len(counts)
    while end and not counts[end - 1]:
        end -= 1
    return tuple(counts[:end])


def _was_held(other: OtherIdentity, end_tokens: int, cause_of_loss: CauseOfLoss) -> bool:
    """Whether a worker of the other identity holds, or held, the tokens before `end_tokens`."""
    if other.held_blocks * other.block_size_tokens >= end_tokens:
        return True
    position = -(-end_tokens // other.block_size_tokens) - 1
    return position < len(other.hashes) and cause_of_loss(other.hashes[position]) is not None
