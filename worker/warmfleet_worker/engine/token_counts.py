"""Distinct tokens of one sequence and their counts, for penalties. Costs O(1) per generated token."""

from array import array
from collections.abc import Iterable


class TokenCounts:
    """The distinct tokens of prompt and output, and how often each was generated.

    The arrays are of int64, in order of first occurrence, and grow in place: copy what has to last.

        counts = TokenCounts(prompt_token_ids)
        counts.add(token_id)  # once per generated token
    """

    __slots__ = ("_places", "_seen_ids", "generated", "seen", "times")

    def __init__(self, prompt_token_ids: Iterable[int]) -> None:
        self._seen_ids = set(prompt_token_ids)
        self._places: dict[int, int] = {}
        self.seen = array("q", self._seen_ids)
        """Distinct tokens of prompt and output."""
        self.generated = array("q")
        """Distinct tokens of the output."""
        self.times = array("q")
        """How often each of `generated` was generated."""

    def add(self, token_id: int) -> None:
        """Count one generated token."""
        if token_id not in self._seen_ids:
            self._seen_ids.add(token_id)
            self.seen.append(token_id)
        place = self._places.setdefault(token_id, len(self.generated))
        if place == len(self.generated):
            self.generated.append(token_id)
            self.times.append(0)
        self.times[place] += 1
