"""Updates of sequences that go into one report."""

from collections.abc import Iterable

from warmfleet_worker.engine.logprobs import joined
from warmfleet_worker.engine.messages import SequenceUpdate


def merged(updates: Iterable[SequenceUpdate]) -> list[SequenceUpdate]:
    """One update per sequence: an admission and its outcome in the same step are one message."""
    by_sequence: dict[int, SequenceUpdate] = {}
    for update in updates:
        first = by_sequence.get(update.sequence_id)
        if first is None:
            by_sequence[update.sequence_id] = update
            continue
        by_sequence[update.sequence_id] = SequenceUpdate(
            sequence_id=update.sequence_id,
            cached_tokens=first.cached_tokens,
            last_block=first.last_block,
            token_ids=[*first.token_ids, *update.token_ids],
            logprobs=joined(first.logprobs, update.logprobs),
            prompt_logprobs=joined(first.prompt_logprobs, update.prompt_logprobs),
            finish_reason=first.finish_reason or update.finish_reason,
            error=first.error or update.error,
        )
    return list(by_sequence.values())
