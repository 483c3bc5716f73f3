"""The steps that are measured. Python's library only: an engine in another environment reads them, too."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Kind = Literal["decode", "prefill"]
KINDS: frozenset[Kind] = frozenset({"decode", "prefill"})

LONG_CONTEXT_TOKENS = 16_000
"""From here on a context is measured with one sequence."""
BLOCK_SIZE_TOKENS = 16
"""Of our engine."""
SPARE_TOKENS = 64
"""For the tokens that the steps of a case add to a context; more than a case has steps."""


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of step, which is computed again and again."""

    kind: Kind
    batch: int
    """Sequences that get a token each; 1 for a prefill."""
    context_tokens: int
    """Tokens before the computed one in each sequence; for a prefill the tokens of the prompt."""

    @property
    def name(self) -> str:
        if self.kind == "prefill":
            return f"prefill {self.context_tokens}"
        return f"decode {self.batch} x {self.context_tokens}"

    @property
    def tokens(self) -> int:
        """Tokens that a step computes."""
        return self.context_tokens if self.kind == "prefill" else self.batch

    @property
    def kv_tokens(self) -> int:
        """Tokens whose keys and values are held."""
        return self.batch * self.context_tokens


def cases_of(batches: Iterable[int], contexts: Sequence[int], prefill_tokens: int) -> list[Case]:
    """Decodes of every batch at every context, of one sequence at the longest ones, and a prefill."""
    decodes = [
        Case("decode", batch, context)
        for context in contexts
        for batch in batches
        if context < LONG_CONTEXT_TOKENS or batch == 1
    ]
    return [*decodes, Case("prefill", 1, prefill_tokens)]


def sequence_tokens(cases: Iterable[Case]) -> list[int]:
    """Tokens for which each sequence needs memory, so that all cases can take turns."""
    longest: list[int] = []
    for case in cases:
        longest += [0] * (case.batch - len(longest))
        for sequence in range(case.batch):
            longest[sequence] = max(longest[sequence], case.context_tokens + SPARE_TOKENS)
    return longest


def encoded(case: Case) -> dict[str, Any]:
    """For a message to an engine's process."""
    return asdict(case)


def decoded(fields: dict[str, Any]) -> Case:
    """The case of `encoded`."""
    return Case(**fields)
