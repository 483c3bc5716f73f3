"""Random schedules of one engine, and what each of their requests gets alone.

A schedule draws an engine (seats, token budget, pool) and conversations, and lets their requests overlap:
a turn begins when the one before it has ended, with its answer in the prompt. Sequences are preempted, cut
into chunks, batched, paused and resumed, and their prefixes are cached or not, as it comes. The oracle
computes each request in an engine of its own: one at a time, in one chunk, from a cold cache.

Both give the tokens and the bytes of all log probabilities, so a single differing bit is seen.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final, NamedTuple

from warmfleet_testing.engine.add_messages import add_sequence
from warmfleet_testing.engine.engine_runs import IDENTITY
from warmfleet_worker.engine.batch import StepBatch, StepInFlight
from warmfleet_worker.engine.engine import Engine
from warmfleet_worker.engine.logprobs import TokenLogprobs, joined
from warmfleet_worker.engine.messages import SequenceUpdate
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.engine.scheduler import SchedulerSettings
from warmfleet_worker.runner.runner import ModelRunner

BLOCK_TOKENS: Final = 16
LIMIT_TOKENS: Final = 256
_ROOMY: Final = SchedulerSettings(max_batched_tokens=4096, max_model_length_tokens=LIMIT_TOKENS)


class Turn(NamedTuple):
    """One request of a conversation: what comes after the answer before it, and how it is sampled."""

    added: tuple[int, ...]
    sampling: SamplingParameters


class Answer(NamedTuple):
    """What a request got, to the last bit."""

    token_ids: tuple[int, ...]
    logprobs: bytes
    prompt_logprobs: bytes


@dataclass
class Counts:
    """What happened in a schedule."""

    steps: int = 0
    cached_tokens: int = 0
    largest_batch: int = 0
    chunks: int = 0
    """Parts of prompts that were computed in several."""
    preempted_sequences: int = 0
    resumed_sequences: int = 0
    later_turns: int = 0
    verified_blocks: int = 0
    mismatched_blocks: int = 0


@dataclass
class Live:
    """A sequence under way."""

    conversation: int
    turn: int
    prompt: tuple[int, ...]
    token_ids: list[int] = field(default_factory=list)
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: TokenLogprobs | None = None

    def take(self, update: SequenceUpdate) -> None:
        assert not update.error, update.error
        self.token_ids += update.token_ids
        self.logprobs = joined(self.logprobs, update.logprobs)
        self.prompt_logprobs = joined(self.prompt_logprobs, update.prompt_logprobs)

    def answer(self) -> Answer:
        return Answer(tuple(self.token_ids), _bytes(self.logprobs), _bytes(self.prompt_logprobs))


class PoolOf:
    """A runner of which an engine uses the first blocks alone; it counts what the engine asks for."""

    exact = True  # what the tests are about: none is skipped where it does not hold

    def __init__(self, runner: ModelRunner, total_blocks: int, counts: Counts) -> None:
        assert total_blocks <= runner.total_blocks
        self.total_blocks = total_blocks
        self._runner = runner
        self._counts = counts

    def poison_blocks(self, block_ids: Sequence[int]) -> None:
        self._runner.poison_blocks(block_ids)

    def block_bytes(self, block_id: int) -> bytes:
        return self._runner.block_bytes(block_id)

    def begin(self, batch: StepBatch) -> StepInFlight:
        counts = self._counts
        counts.largest_batch = max(counts.largest_batch, len(batch.chunks))
        counts.chunks += sum(chunk.sample is None for chunk in batch.chunks)
        return self._runner.begin(batch)


def drawn_conversations(seed: int, vocabulary: int, conversations: int) -> list[list[Turn]]:
    """Conversations of one to three turns; some begin alike."""
    draw = random.Random(f"conversations-{seed}")
    beginnings = [_tokens(draw, vocabulary, length) for length in (16, 32)]
    return [
        [
            Turn(_added(draw, vocabulary, beginnings if turn == 0 else ()), _sampling(draw))
            for turn in range(draw.choice((1, 1, 1, 2, 2, 3)))
        ]
        for _ in range(conversations)
    ]


def answers_alone(runner: ModelRunner, turns: Sequence[Turn]) -> list[Answer]:
    """The oracle: each turn of a conversation in a cold engine of its own."""
    answers: list[Answer] = []
    prompt: tuple[int, ...] = ()
    for turn in turns:
        prompt += turn.added
        engine = Engine(
            PoolOf(runner, runner.total_blocks, Counts()), IDENTITY, "alone", BLOCK_TOKENS, 0, _ROOMY
        )
        engine.add(add_sequence(0, prompt, turn.sampling, may_read_cache=False))
        live = Live(0, 0, prompt)
        while engine.has_work:
            for update in engine.step().updates:
                live.take(update)
        answers.append(live.answer())
        prompt += answers[-1].token_ids
    return answers


class Schedule:
    """One drawn engine and the conversations that it computes.

    counts = Schedule(runner, seed, conversations, oracle).run()
    """

    def __init__(
        self,
        runner: ModelRunner,
        seed: int,
        conversations: Sequence[Sequence[Turn]],
        expected: Sequence[Sequence[Answer]],
    ) -> None:
        self.counts = Counts()
        self._draw = draw = random.Random(f"schedule-{seed}")
        chosen = draw.sample(range(len(conversations)), draw.randint(5, 8))
        self._turns = {one: conversations[one] for one in chosen}
        self._expected = {one: expected[one] for one in chosen}
        self._ids = count()
        self._live: dict[int, Live] = {}
        self._paused: list[int] = []
        self._engine = Engine(
            PoolOf(runner, self._drawn_blocks(runner.total_blocks), self.counts),
            IDENTITY,
            "schedule",
            BLOCK_TOKENS,
            runner.model.window_tokens,
            SchedulerSettings(
                max_running_sequences=draw.choice((4, 8, 8)),
                max_batched_tokens=draw.choice((12, 24, 33, 64, 512)),
                max_model_length_tokens=LIMIT_TOKENS,
                prefix_caching=draw.random() < 0.9,
            ),
            verify_hits_one_in=draw.choice((0, 0, 3)),
            poison=True,
        )

    def run(self) -> Counts:
        """Compute everything, and assert that each request gets what it gets alone."""
        to_begin = list(self._turns)
        draw = self._draw
        while to_begin or self._live:
            while to_begin and (not self._live or draw.random() < 0.95):
                self._begin(to_begin.pop(), turn=0, prompt=())
            self._pause_or_resume()
            if not self._step():
                self._resume_all()
        while self._engine.has_work:  # verifications
            self._step()
        return self.counts

    def _step(self) -> int:
        """Compute one step; returns its tokens."""
        report = self._engine.step()
        self.counts.steps += 1
        self.counts.preempted_sequences += report.preempted_sequences
        self.counts.verified_blocks += report.verified_blocks
        self.counts.mismatched_blocks += report.mismatched_blocks
        for update in report.updates:
            self._take(update)
        return report.scheduled_tokens

    def _drawn_blocks(self, most: int) -> int:
        """Often too few for all sequences with their answers, never too few for one of them."""
        lengths = (
            sum(len(turn.added) + turn.sampling.max_output_tokens for turn in turns)
            for turns in self._turns.values()
        )
        largest = max(-(-length // BLOCK_TOKENS) for length in lengths)
        return min(largest + self._draw.randint(2, 4) if self._draw.random() < 0.85 else most, most)

    def _begin(self, conversation: int, turn: int, prompt: tuple[int, ...]) -> None:
        added, sampling = self._turns[conversation][turn]
        sequence_id = next(self._ids)
        self._live[sequence_id] = Live(conversation, turn, prompt + added)
        self._engine.add(
            add_sequence(
                sequence_id,
                prompt + added,
                sampling,
                may_read_cache=sampling.prompt_logprobs is None,
                priority=self._draw.choice((0, 0, 0, 5)),
            )
        )

    def _take(self, update: SequenceUpdate) -> None:
        live = self._live[update.sequence_id]
        live.take(update)
        self.counts.cached_tokens += update.cached_tokens or 0
        if not update.finish_reason:
            return
        del self._live[update.sequence_id]
        expected = self._expected[live.conversation][live.turn]
        assert live.answer() == expected, f"conversation {live.conversation}, turn {live.turn}"
        if live.turn + 1 < len(self._turns[live.conversation]):
            self.counts.later_turns += 1
            self._begin(live.conversation, live.turn + 1, (*live.prompt, *live.token_ids))

    def _pause_or_resume(self) -> None:
        draw = self._draw
        if draw.random() < 0.02 and self._live:
            self._paused.append(draw.choice(list(self._live)))
            self._engine.pause(self._paused[-1])
        elif self._paused and draw.random() < 0.3:
            self._resume_all()

    def _resume_all(self) -> None:
        for sequence_id in self._paused:
            self.counts.resumed_sequences += sequence_id in self._live
            self._engine.resume(sequence_id)
        self._paused.clear()


def _added(draw: random.Random, vocabulary: int, beginnings: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Often up to a block's edge: the first token of the answer needs a block then."""
    beginning = draw.choice(beginnings) if beginnings and draw.random() < 0.5 else ()
    return (*beginning, *_tokens(draw, vocabulary, draw.choice((3, 14, 15, 15, 16, 16, 30, 31))))


def _tokens(draw: random.Random, vocabulary: int, tokens: int) -> tuple[int, ...]:
    return tuple(draw.randrange(vocabulary) for _ in range(tokens))


def _sampling(draw: random.Random) -> SamplingParameters:
    """Greedy or seeded, with log probabilities; sometimes with filters, penalties or the prompt's."""
    common = {
        "max_output_tokens": draw.choice((4, 7, 10)),
        "logprobs": draw.choice((0, 2)),
        "prompt_logprobs": draw.choice((None,) * 9 + (1,)),
    }
    if draw.random() < 0.6:
        return SamplingParameters(temperature=0.0, **common)
    filters = draw.choice(({}, {"top_p": 0.9}, {"top_k": 20}, {"min_p": 0.05}, {"frequency_penalty": 0.5}))
    return SamplingParameters(temperature=0.8, seed=draw.getrandbits(64), **common, **filters)


def _bytes(logprobs: TokenLogprobs | None) -> bytes:
    return b"" if logprobs is None else logprobs.values + logprobs.top_token_ids + logprobs.top_values
