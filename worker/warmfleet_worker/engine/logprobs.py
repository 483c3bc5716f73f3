"""Log probabilities of consecutive tokens, in the compact form of engine messages. No torch."""

from array import array
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from warmfleet_contracts.openai import MAX_TOP_LOGPROBS

_ITEM_BYTES: Final = 4
"""Of a token id, u32, and of a value, float32. Native byte order: both processes run on one machine."""


class TokenLogprob(NamedTuple):
    """One token's log probability, and the most likely tokens in its place, the best first."""

    logprob: float
    top_token_ids: Sequence[int] = ()
    top_logprobs: Sequence[float] = ()


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log probabilities of consecutive tokens, each with the `top` most likely tokens in its place.

    Values are of the model's own distribution: log softmax of its logits in float32, before temperature,
    bias, penalties and filters. -inf is possible.
    """

    top: int
    values: bytes
    """float32, one per token."""
    top_token_ids: bytes
    """u32, [tokens, top]: the most likely first, of equals the lowest id first."""
    top_values: bytes
    """float32, [tokens, top]."""

    def __post_init__(self) -> None:
        """Raise ValueError for parts of unequal length; decoding a message calls this too."""
        if not 0 <= self.top <= MAX_TOP_LOGPROBS:
            raise ValueError(f"{self.top} most likely tokens, the limit is {MAX_TOP_LOGPROBS}")
        expected_bytes = len(self.values) * self.top
        if len(self.values) % _ITEM_BYTES or {len(self.top_token_ids), len(self.top_values)} != {
            expected_bytes
        }:
            raise ValueError(
                f"log probabilities of {len(self.values)}, {len(self.top_token_ids)} and "
                f"{len(self.top_values)} bytes do not fit together"
            )

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return len(self.values) // _ITEM_BYTES

    def __iter__(self) -> Iterator[TokenLogprob]:
        """Token by token."""
        top_token_ids, top_values = array("I", self.top_token_ids), array("f", self.top_values)
        for index, value in enumerate(array("f", self.values)):
            part = slice(index * self.top, (index + 1) * self.top)
            yield TokenLogprob(value, top_token_ids[part], top_values[part])

    def first(self, tokens: int) -> "TokenLogprobs":
        """Those of the first tokens."""
        if tokens == self.tokens:
            return self
        end = tokens * _ITEM_BYTES
        return TokenLogprobs(
            self.top,
            self.values[:end],
            self.top_token_ids[: end * self.top],
            self.top_values[: end * self.top],
        )

    def split(self) -> "list[TokenLogprobs]":
        """One for each token."""
        width = self.top * _ITEM_BYTES
        return [
            TokenLogprobs(
                self.top,
                self.values[index * _ITEM_BYTES : (index + 1) * _ITEM_BYTES],
                self.top_token_ids[index * width : (index + 1) * width],
                self.top_values[index * width : (index + 1) * width],
            )
            for index in range(self.tokens)
        ]


def joined(first: TokenLogprobs | None, second: TokenLogprobs | None) -> TokenLogprobs | None:
    """The tokens of `first`, then those of `second`; both have the same `top`."""
    if first is None or second is None:
        return first or second
    assert first.top == second.top
    return TokenLogprobs(
        first.top,
        first.values + second.values,
        first.top_token_ids + second.top_token_ids,
        first.top_values + second.top_values,
    )
