"""One step of a runner: what the model computes of it, and what is done with that afterwards."""

import time
from collections.abc import Sequence
from typing import Generic, TypeVar

from warmfleet_worker.engine.batch import Chunk, ChunkResult, ScoreRequest, StepResult
from warmfleet_worker.engine.logprobs import TokenLogprobs
from warmfleet_worker.model.computed import Computed, Rows
from warmfleet_worker.runner.penalties import adjusted, changes_logits
from warmfleet_worker.runner.scoring import row_slices, score, score_rows
from warmfleet_worker.runner.step_model import StepModel

_T = TypeVar("_T")


class RunnerStep(Generic[Rows]):
    """A step of a `ModelRunner` that is computed from its making on."""

    def __init__(self, model: StepModel[Rows], chunks: tuple[Chunk, ...]) -> None:
        self._model = model
        self._chunks = chunks
        self._requests = [chunk.sample for chunk in chunks if chunk.sample is not None]
        self._sampled_rows, self._scored_rows = _wanted_rows(chunks)
        self._wanted = sorted({*self._sampled_rows, *(row for rows in self._scored_rows for row in rows)})
        # Otherwise more rows than those of the head are wanted, or logits change before a token is chosen.
        direct = len(self._wanted) == len(self._requests) and not any(map(changes_logits, self._requests))
        self._step = model.begin(chunks, self._wanted, self._requests if direct else ())

    def finish(self) -> StepResult:
        """Wait for the model, and do what is left.

        `StepResult.seconds` is the model's time and that of what is left.
        """
        computed = self._step.finish()
        started = time.perf_counter()
        results = self._results(computed)
        return StepResult(chunks=results, seconds=computed.seconds + time.perf_counter() - started)

    def _results(self, computed: Computed[Rows]) -> tuple[ChunkResult, ...]:
        chunks = self._chunks
        sampled, logprobs = self._sampled(computed)
        place = {row: index for index, row in enumerate(self._wanted)}
        prompt_logprobs = [
            None
            if chunk.score is None
            else self._score(computed.hidden[[place[row] for row in rows]], chunk.score)
            for chunk, rows in zip(chunks, self._scored_rows, strict=True)
        ]
        return tuple(
            ChunkResult(
                sequence_id=chunk.sequence_id,
                # Finite hidden states may still overflow in the head: no token, no commit.
                finite=ok and (chunk.sample is None or token is not None),
                token_ids=(token,) if ok and token is not None else (),
                logprobs=own if ok else None,
                prompt_logprobs=before if ok else None,
            )
            for chunk, ok, token, own, before in zip(
                chunks,
                computed.finite,
                _spread(sampled, chunks),
                _spread(logprobs, chunks),
                prompt_logprobs,
                strict=True,
            )
        )

    def _sampled(
        self, computed: Computed[Rows]
    ) -> tuple[Sequence[int | None], Sequence[TokenLogprobs | None]]:
        """The next token of each chunk that wants one, and its log probabilities if its request asks."""
        requests, logits, tokens = self._requests, computed.logits, computed.token_ids
        if not requests:
            return (), ()
        if logits is None:
            place = {row: index for index, row in enumerate(self._wanted)}
            logits = self._model.logits(computed.hidden[[place[row] for row in self._sampled_rows]])
            tokens = self._model.choose(adjusted(self._model.on_host(logits), requests), requests)
        tops = [request.parameters.logprobs for request in requests]
        return tokens, score_rows(logits, tokens, tops, self._model.on_host)

    def _score(self, rows: Rows, request: ScoreRequest) -> TokenLogprobs:
        """Prompt log probabilities of `rows` of hidden states; the head runs in slices of rows."""
        slices = row_slices(len(request.next_token_ids), self._model.config.vocab_size)
        pieces = (self._model.on_host(self._model.logits(rows[piece])) for piece in slices)
        return score(pieces, request.next_token_ids, request.top)


def _wanted_rows(chunks: tuple[Chunk, ...]) -> tuple[list[int], list[range]]:
    """The last row of each chunk that wants a token, and the rows of each chunk that are scored."""
    sampled, scored = [], []
    start = 0
    for chunk in chunks:
        end = start + len(chunk.token_ids)
        if chunk.sample is not None:
            sampled.append(end - 1)
        first = start + (chunk.score.first if chunk.score else 0)
        scored.append(range(first, first + (len(chunk.score.next_token_ids) if chunk.score else 0)))
        start = end
    return sampled, scored


def _spread(sampled: Sequence[_T | None], chunks: tuple[Chunk, ...]) -> list[_T | None]:
    """One value per chunk from one per chunk that wants a token."""
    values = iter(sampled)
    return [None if chunk.sample is None else next(values) for chunk in chunks]
