"""The tokens of one sequence: a prompt that other sequences may share, and its own output."""

from array import array
from collections.abc import Sequence
from typing import overload


class SequenceTokens(Sequence[int]):
    """A list of u32 that grows at its end. The prompt is not copied, and never changed.

    tokens = SequenceTokens(prompt)
    tokens.append(token_id)
    tokens[first:end]  # O(end - first)
    """

    __slots__ = ("_output", "_prompt", "length")

    length: int
    """What `len` returns, without the call: a step asks several times for that of each sequence."""

    def __init__(self, prompt: "array[int]") -> None:
        self._prompt = prompt
        self._output = array("I")
        self.length = len(prompt)

    def append(self, token_id: int) -> None:
        """Add a generated token."""
        self._output.append(token_id)
        self.length += 1

    def extend(self, token_ids: "array[int]") -> None:
        """Add generated tokens."""
        self._output.extend(token_ids)
        self.length += len(token_ids)

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> "array[int]": ...
    def __getitem__(self, index: int | slice) -> "int | array[int]":
        prompt_tokens = len(self._prompt)
        if isinstance(index, int):
            place = range(self.length)[index]  # negative ones count from the end
            return self._prompt[place] if place < prompt_tokens else self._output[place - prompt_tokens]
        first, end, step = index.indices(self.length)
        assert step == 1, "slices are consecutive"
        if end <= prompt_tokens:
            return self._prompt[first:end]
        if first >= prompt_tokens:
            return self._output[first - prompt_tokens : end - prompt_tokens]
        return (
            self._prompt[first:end]
            + self._output[max(0, first - prompt_tokens) : max(0, end - prompt_tokens)]
        )
