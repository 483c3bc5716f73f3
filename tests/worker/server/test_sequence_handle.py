"""One sequence as its reader holds it: paused while the reader is behind, given back when it leaves."""

import asyncio

from warmfleet_worker.engine.messages import SequenceUpdate
from warmfleet_worker.server.sequence_handle import (
    MAX_BUFFERED_TOKENS,
    PAUSE_TOKENS,
    CachedPrefix,
    SequenceHandle,
)


class Control:
    """Records its calls."""

    def __init__(self):
        self.calls = []

    def abort_sequence(self, sequence_id):
        self.calls.append(("abort", sequence_id))

    def pause_sequence(self, sequence_id):
        self.calls.append(("pause", sequence_id))

    def resume_sequence(self, sequence_id):
        self.calls.append(("resume", sequence_id))


def tokens(count, **fields):
    return SequenceUpdate(sequence_id=1, cached_tokens=0, token_ids=[5] * count, **fields)


async def test_a_reader_that_is_behind_pauses_its_sequence_until_it_has_taken_everything():
    control = Control()
    slow = SequenceHandle(1, asyncio.Event(), control)

    for _ in range(PAUSE_TOKENS):
        slow.apply(tokens(1), "e:0")
    assert control.calls == []
    slow.apply(tokens(1), "e:0")
    slow.apply(tokens(7), "e:0")  # what was in flight
    assert control.calls == [("pause", 1)]

    assert len(slow.take().token_ids) == PAUSE_TOKENS + 8
    assert control.calls == [("pause", 1), ("resume", 1)]
    assert slow.take().token_ids == []
    slow.apply(tokens(1), "e:0")
    assert control.calls == [("pause", 1), ("resume", 1)]


async def test_an_engine_that_goes_on_all_the_same_takes_the_sequence_from_its_reader_who_is_at_fault():
    control = Control()
    slow = SequenceHandle(1, asyncio.Event(), control)

    for _ in range(MAX_BUFFERED_TOKENS // 64 + 1):
        assert not slow.finished
        slow.apply(tokens(64), "e:0")

    assert control.calls == [("pause", 1), ("abort", 1)]
    assert slow.take().finish_reason == "unread"


async def test_leaving_a_generation_aborts_it_once_and_only_while_it_runs():
    control = Control()
    with SequenceHandle(1, asyncio.Event(), control) as running:
        running.apply(SequenceUpdate(sequence_id=1, cached_tokens=16, token_ids=[5]), "e:7")
    running.abort()
    with SequenceHandle(2, asyncio.Event(), control) as done:
        done.apply(SequenceUpdate(sequence_id=2, cached_tokens=0, finish_reason="length"), "e:7")

    assert running.cached_prefix == CachedPrefix(cached_tokens=16, last_block=b"", position="e:7")
    assert control.calls == [("abort", 1)]
