"""What each live sequence has computed, as far as vLLM's outputs and step statistics show it. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from warmfleet_worker.engine.admitted_dispatches import NO_DISPATCH, Dispatch
from warmfleet_worker.engine.step_time import StepShape


@dataclass(slots=True, eq=False)
class LiveSequence:
    """One sequence that vLLM computes, or will."""

    sequence_id: int
    prompt_tokens: int
    expected_cached_tokens: int
    """By the resident blocks at its arrival; what vLLM found comes with its first output."""
    last_block: bytes
    """Hash of the prompt's last full block."""
    priority: int
    arrival: int
    dispatch: Dispatch = NO_DISPATCH
    """What it came with."""
    is_idle: bool = False
    """No client waits for it."""
    wants_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prefilled_tokens: int = 0
    """Computed of the prompt, after the cached ones."""
    generated_tokens: int = 0

    @property
    def is_prefilling(self) -> bool:
        return not self.generated_tokens

    @property
    def uncomputed_tokens(self) -> int:
        """Prompt tokens that are neither cached nor computed."""
        return max(self.prompt_tokens - self.expected_cached_tokens - self.prefilled_tokens, 0)

    @property
    def context_tokens(self) -> int:
        """Tokens whose KV there is."""
        if self.is_prefilling:
            return self.expected_cached_tokens + self.prefilled_tokens if self.prefilled_tokens else 0
        return self.prompt_tokens + self.generated_tokens - 1

    @property
    def has_started(self) -> bool:
        return bool(self.generated_tokens or self.prefilled_tokens)


@dataclass(slots=True)
class LiveSequences:
    """All live sequences by their id.

    vLLM's statistics have the tokens of a step, not whose they are: prefill is attributed in the order in
    which vLLM schedules, by priority and arrival.
    """

    by_id: dict[int, LiveSequence] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[LiveSequence]:
        return iter(self.by_id.values())

    @property
    def requested(self) -> list[LiveSequence]:
        """Those that a client waits for."""
        return [sequence for sequence in self if not sequence.is_idle]

    def apply_step(self, prefill_tokens: int, decode_sequences: int) -> StepShape:
        """Count a step's tokens; returns its shape. Called before the step's own tokens are counted."""
        decoding = [sequence.context_tokens for sequence in self if not sequence.is_prefilling]
        # Some have ended since: the others stand for them.
        shape = StepShape.of_decodes(decoding[:decode_sequences])
        missing = decode_sequences - shape.decode_sequences
        shape = StepShape(0, shape.decode_sequences + missing, shape.context_tokens + missing)
        for sequence, tokens in self._prefilled(prefill_tokens):
            shape = shape.with_prefill(sequence.expected_cached_tokens + sequence.prefilled_tokens, tokens)
            sequence.prefilled_tokens += tokens
        return shape

    def _prefilled(self, tokens: int) -> Iterable[tuple[LiveSequence, int]]:
        prefilling = [sequence for sequence in self if sequence.is_prefilling]
        started = [sequence for sequence in prefilling if sequence.has_started]
        waiting = [sequence for sequence in prefilling if not sequence.has_started]
        for sequence in (*_in_order(started), *_in_order(waiting)):
            taken = min(tokens, sequence.uncomputed_tokens)
            if taken:
                tokens -= taken
                yield sequence, taken


def _in_order(sequences: Iterable[LiveSequence]) -> list[LiveSequence]:
    return sorted(sequences, key=lambda sequence: (sequence.priority, sequence.arrival))
