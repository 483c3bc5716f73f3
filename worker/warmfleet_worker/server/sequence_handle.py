"""The server's handle of one sequence in the engine, with back pressure.

A slow reader pauses its sequence, or has it aborted where the engine has no pause, as vLLM. Leaving the
`with` block aborts it. Nothing here waits or does I/O.
"""

import asyncio
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Protocol, Self

from warmfleet_worker.engine.logprobs import TokenLogprobs
from warmfleet_worker.engine.messages import SequenceUpdate

PAUSE_TOKENS: Final = 256
"""Unread tokens beyond which a sequence is paused, until all of them are taken."""
MAX_BUFFERED_TOKENS: Final = 4096
"""Unread tokens beyond which a sequence is aborted: it was not paused in time, or its engine has no pause."""


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """The prefix of a sequence that was cached when the engine first scheduled it."""

    cached_tokens: int
    last_block: bytes
    """Hash of the prompt's last full block; empty for a prompt shorter than one block."""
    position: str
    """`epoch:seq` of the event stream at that moment."""


@dataclass(slots=True)
class TokenUpdate:
    """Everything that arrived since the last `take`."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Of `token_ids`, if the sequence requests them."""
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str = ""
    """"" while it runs; then as in `SequenceUpdate`, "lost" with its engine, or "unread" by its reader."""
    error: str = ""


class SequenceControl(Protocol):
    """What a handle needs of its engine client. Ids of ended sequences are ignored."""

    def abort_sequence(self, sequence_id: int) -> None: ...
    def pause_sequence(self, sequence_id: int) -> None: ...
    def resume_sequence(self, sequence_id: int) -> None: ...


class SequenceHandle:
    """One sequence in the engine; use it as a context manager, whose exit aborts an unfinished sequence.

    More than `PAUSE_TOKENS` unread tokens pause the sequence, and `take` resumes it.
    """

    def __init__(self, sequence_id: int, wake: asyncio.Event, control: SequenceControl) -> None:
        self.sequence_id = sequence_id
        self.cached_prefix: CachedPrefix | None = None
        self.finished = False
        """Whether the sequence has ended; there may still be an update to take."""
        self._wake = wake
        self._control = control
        self._paused = False
        self._update = TokenUpdate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def take(self) -> TokenUpdate:
        """Everything that arrived since the last call; does not wait."""
        update = self._update
        self._update = TokenUpdate(finish_reason=update.finish_reason, error=update.error)
        if self._paused:
            self._paused = False
            self._control.resume_sequence(self.sequence_id)
        return update

    def abort(self) -> None:
        """Stop it, if it still runs; its blocks are free by the end of the step in flight."""
        if not self.finished:
            self.finished = True
            self._control.abort_sequence(self.sequence_id)

    def apply(self, update: SequenceUpdate, position: str) -> None:
        """Add an update from the engine; called by the engine client."""
        if self.cached_prefix is None and update.cached_tokens is not None:
            self.cached_prefix = CachedPrefix(update.cached_tokens, update.last_block, position)
        self._update.token_ids += update.token_ids
        if update.logprobs is not None:
            self._update.logprobs.append(update.logprobs)
        if update.prompt_logprobs is not None:
            self._update.prompt_logprobs.append(update.prompt_logprobs)
        if update.finish_reason:
            self._finish(update.finish_reason, update.error)
        elif len(self._update.token_ids) > MAX_BUFFERED_TOKENS:
            self.abort()
            self._finish("unread", f"the answer was read too slowly: {MAX_BUFFERED_TOKENS} tokens are unread")
        elif len(self._update.token_ids) > PAUSE_TOKENS and not self._paused:
            self._paused = True
            self._control.pause_sequence(self.sequence_id)
        self._wake.set()

    def fail(self, reason: str) -> None:
        """The engine is gone."""
        self._finish("lost", reason)
        self._wake.set()

    def _finish(self, reason: str, error: str) -> None:
        self.finished = True
        self._update.finish_reason = reason
        self._update.error = error
