"""One sequence inside the engine: its tokens, its blocks, and how many tokens are computed."""

import enum
import math
from array import array
from dataclasses import dataclass, field
from typing import Final

from warmfleet_contracts.cache.blocks import BlockHash
from warmfleet_contracts.cache.worker_api import LOWEST_PRIORITY
from warmfleet_worker.engine.admitted_dispatches import NO_DISPATCH, Dispatch
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.engine.sequence_tokens import SequenceTokens
from warmfleet_worker.engine.token_counts import TokenCounts
from warmfleet_worker.kv_cache.block_table import BlockTable

Rank = tuple[int, int]
"""Priority, then arrival."""
IDLE_PRIORITY: Final = LOWEST_PRIORITY + 1
"""Of a sequence that no client waits for; no request can have it."""


class SequenceState(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    """Its reader is slow: it holds no blocks and is not scheduled until it is resumed."""
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """Mutable state of one sequence; only the scheduler changes it."""

    sequence_id: int
    token_ids: SequenceTokens
    """Prompt and output so far."""
    sampling: SamplingParameters
    limit_tokens: int
    """Most tokens of prompt and output together."""
    root: BlockHash
    block_hashes: list[BlockHash]
    """Of the full blocks of `token_ids`, possibly without the newest ones. See `own_block_hashes`."""
    uses_cache: bool
    """Whether its blocks are committed to the prefix cache, and cached ones used (see `reads_cache`)."""
    arrival: int
    prompt_tokens: int
    may_read_cache: bool = True
    """False while every position of the prompt must be computed."""
    priority: int = 0
    """Lower is better."""
    dispatch: Dispatch = NO_DISPATCH
    """What it came with."""
    shares_block_hashes: bool = False
    """Whether other sequences of its prompt have the same list of `block_hashes`."""
    state: SequenceState = SequenceState.WAITING
    token_counts: TokenCounts | None = None
    """Of `token_ids`, exactly if a penalty reads them."""
    table: BlockTable = field(default_factory=BlockTable)
    computed_tokens: int = 0
    """Tokens whose KV is written and finite."""
    taken_blocks: int = 0
    """While it runs: how many blocks had no holder before it started."""
    scored_tokens: int = 0
    """Prompt tokens after the first whose log probability was reported. Kept through a preemption."""
    admitted: bool = False
    """Whether its first update was sent: it has been scheduled once."""
    matched_blocks: int = 0
    """While it waits: leading full blocks that are cached, as of the last match."""
    uncached_tokens: int = 0
    """While it waits: tokens that are not cached, as of the last match."""
    evicts_unused_since: float = -math.inf
    """While it is idle: it may evict blocks that were not used since then, on the pool's clock."""
    inherited_rank: Rank | None = None
    """The best rank of the followers that wait for a block it computes (priority inheritance)."""

    @property
    def is_idle(self) -> bool:
        """Whether no client waits for it: it takes what others leave."""
        return self.priority >= IDLE_PRIORITY

    @property
    def rank(self) -> Rank:
        """Its own rank; the least is scheduled first."""
        return self.priority, self.arrival

    @property
    def effective_rank(self) -> Rank:
        """The better of its own rank and the one inherited from a follower."""
        return self.rank if self.inherited_rank is None else min(self.rank, self.inherited_rank)

    def append(self, token_id: int) -> None:
        """Add a generated token."""
        self.token_ids.append(token_id)
        if self.token_counts is not None:
            self.token_counts.add(token_id)

    def extend(self, token_ids: "array[int]") -> None:
        """Add generated tokens, where no penalty counts them."""
        assert self.token_counts is None, "each token is counted"
        self.token_ids.extend(token_ids)

    def own_block_hashes(self) -> list[BlockHash]:
        """`block_hashes` to append to: other sequences do not see it."""
        if self.shares_block_hashes:
            self.block_hashes = self.block_hashes.copy()
            self.shares_block_hashes = False
        return self.block_hashes

    @property
    def output_tokens(self) -> int:
        return self.token_ids.length - self.prompt_tokens

    @property
    def uncomputed_tokens(self) -> int:
        return self.token_ids.length - self.computed_tokens

    @property
    def is_decoding(self) -> bool:
        """Whether all of its tokens but the last one are computed: its next chunk takes one token."""
        return self.uncomputed_tokens == 1

    @property
    def unscored_tokens(self) -> int:
        """Prompt tokens whose log probability is requested and not reported yet."""
        if self.sampling.prompt_logprobs is None:
            return 0
        return self.prompt_tokens - 1 - self.scored_tokens

    @property
    def reads_cache(self) -> bool:
        """Whether cached blocks may replace its own computation now."""
        return self.uses_cache and (self.may_read_cache or not self.unscored_tokens)

    @property
    def wants_token(self) -> bool:
        """Whether the next token is to be sampled once all known tokens are computed."""
        return self.sampling.max_output_tokens > 0

    def samples_after(self, tokens: int) -> bool:
        """Whether the next token is sampled once so many more are computed."""
        return self.uncomputed_tokens == tokens and self.wants_token

    def finish_reason(self) -> str:
        """Why the sequence ends with the tokens it has, or "" while it goes on."""
        sampling, tokens = self.sampling, self.token_ids.length
        output_tokens = tokens - self.prompt_tokens
        if sampling.stop_token_ids and output_tokens and self.token_ids[-1] in sampling.stop_token_ids:
            return "stop"
        if output_tokens >= sampling.max_output_tokens or tokens >= self.limit_tokens:
            return "length"
        return ""
