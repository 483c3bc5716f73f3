"""What came of one request."""

import msgspec

from warmfleet_contracts.cache.fleet_totals import MissTokens

NO_MISSES = MissTokens()


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """Times in virtual seconds. Of a refused request only the first three fields have a meaning."""

    arrival_seconds: float
    prompt_tokens: int
    refusal: str = ""
    """Code of the error that the router answered with; empty for an answer."""
    cached_tokens: int = 0
    output_tokens: int = 0
    first_token_seconds: float = 0.0
    """From the arrival to the first token at the router."""
    answer_seconds: float = 0.0
    """From the arrival to the last token."""
    misses: MissTokens = NO_MISSES
    """Tokens of the prompt that were computed, by why the router knows them not to have been cached."""

    @property
    def seconds_per_token(self) -> float:
        """Mean time between the tokens of the answer; 0 for a single one."""
        if self.output_tokens < 2:
            return 0.0
        return (self.answer_seconds - self.first_token_seconds) / (self.output_tokens - 1)
