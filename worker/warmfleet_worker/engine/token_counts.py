"""Distinct tokens of one sequence and their counts, for penalties. Costs O(1) per generated token."""

from array import array
from collections.abc import Iterable


class TokenCounts:
    """The distinct tokens of prompt and output, and how often each was generated.

    The arrays are of int64, in order of first occurrence, and grow in place: copy what has to last.

        counts = TokenCounts(prompt_token_ids)
        counts.add(token_id)  # once per generated token
    """

    __slots__ = ("_places", "_prompt_ids", "_shares_seen", "generated", "seen", "times")

    def __init__(self, prompt_token_ids: Iterable[int]) -> None:
        self._prompt_ids = frozenset(prompt_token_ids)
        self._places: dict[int, int] = {}
        self._shares_seen = False
        self.seen = array("q", self._prompt_ids)
        """Distinct tokens of prompt and output."""
        self.generated = array("q")
        """Distinct tokens of the output."""
        self.times = array("q")
        """How often each of `generated` was generated."""

    def add(self, token_id: int) -> None:
        """Count one generated token."""
        place = self._places.setdefault(token_id, len(self.generated))
        if place == len(self.generated):
            self.generated.append(token_id)
            self.times.append(0)
            if token_id not in self._prompt_ids:
                self._append_seen(token_id)
        self.times[place] += 1

    def copy(self) -> "TokenCounts":
        """The same counts for another sequence; costs nothing per token of the prompt.

        Both share the set of the prompt's tokens, and `seen` until one of them adds to it.
        """
        same = TokenCounts(())
        same._prompt_ids = self._prompt_ids
        same._places = dict(self._places)
        same.seen, same.generated, same.times = self.seen, self.generated[:], self.times[:]
        same._shares_seen = self._shares_seen = True
        return same

    def _append_seen(self, token_id: int) -> None:
        if self._shares_seen:
            self.seen = self.seen[:]
            self._shares_seen = False
        self.seen.append(token_id)
