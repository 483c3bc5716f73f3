"""One request's tokens inside the engine, and how far their KV is."""

import enum
from dataclasses import dataclass, field

from warmfleet_contracts.cache.blocks import BlockHash
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.kv_cache.block_table import BlockTable

Rank = tuple[int, int]
"""Priority, then arrival."""


class SequenceState(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    """Its reader is behind: it holds nothing and is not eligible until it is resumed."""
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """Mutable state of one sequence; only the scheduler changes it."""

    sequence_id: int
    token_ids: list[int]
    """Prompt and output so far."""
    sampling: SamplingParameters
    limit_tokens: int
    """Prompt and output never grow past this."""
    root: BlockHash
    block_hashes: list[BlockHash]
    """Of the full blocks of `token_ids`, possibly without the newest ones."""
    uses_cache: bool
    """Whether it may leave its blocks behind for others, and read theirs unless `reads_cache` says no."""
    arrival: int
    prompt_tokens: int
    may_read_cache: bool = True
    """False while every position of the prompt must be computed."""
    priority: int = 0
    """Lower is better."""
    state: SequenceState = SequenceState.WAITING
    table: BlockTable = field(default_factory=BlockTable)
    computed_tokens: int = 0
    """Tokens whose KV is written and finite."""
    scored_tokens: int = 0
    """Tokens of the prompt, the first aside, whose log probability was told. Kept through a preemption."""
    admitted: bool = False
    """Whether its first update was sent."""
    uncached_tokens: int = 0
    """While it waits: the tokens it would have to compute, as of the last look at the cache."""
    lent_rank: Rank | None = None
    """The best rank among those that wait for a block it computes."""

    @property
    def rank(self) -> Rank:
        """Its own place in line; the least is the best."""
        return self.priority, self.arrival

    @property
    def standing(self) -> Rank:
        """Its place among those that run: its own, or the one that a follower lends it."""
        return self.rank if self.lent_rank is None else min(self.rank, self.lent_rank)

    @property
    def output_tokens(self) -> int:
        return len(self.token_ids) - self.prompt_tokens

    @property
    def uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.computed_tokens

    @property
    def unscored_tokens(self) -> int:
        """Tokens of the prompt whose log probability is asked for and not told yet."""
        if self.sampling.prompt_logprobs is None:
            return 0
        return self.prompt_tokens - 1 - self.scored_tokens

    @property
    def reads_cache(self) -> bool:
        """Whether cached blocks may stand for its own computation now."""
        return self.uses_cache and (self.may_read_cache or not self.unscored_tokens)

    @property
    def wants_token(self) -> bool:
        """Whether the next token is to be sampled once all known tokens are computed."""
        return self.sampling.max_output_tokens > 0

    def finish_reason(self) -> str:
        """Why the sequence ends with the tokens it has, or "" while it goes on."""
        output_tokens = self.output_tokens
        if output_tokens and self.token_ids[-1] in self.sampling.stop_token_ids:
            return "stop"
        if output_tokens >= self.sampling.max_output_tokens or len(self.token_ids) >= self.limit_tokens:
            return "length"
        return ""
