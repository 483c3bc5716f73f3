"""Commits of branches and tags: asked for beside reconciliations, so that a hub that hangs delays none.

Nothing here is a record: an answer is kept until a Deployment carries it, and forgotten then. There is at
most one question per ModelDeployment, and only a changed source makes one.
"""

import asyncio
import base64
import binascii
import random
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import structlog

from warmfleet_contracts.resources.conditions import Reason
from warmfleet_operator.cluster import Cluster
from warmfleet_operator.desired.commits import HubRevision, Unresolved
from warmfleet_operator.errors import ClusterError, GoneError, RefusedError
from warmfleet_operator.hub.client import HubAccess, HubRefusedError, HubUnreachableError, ask_commit
from warmfleet_operator.objects.kinds import SECRET
from warmfleet_operator.settings import OperatorSettings

QUESTIONS_AT_ONCE: Final = 4
MIN_PAUSE_SECONDS: Final = 5.0
MAX_PAUSE_SECONDS: Final = 300.0
_JITTER_RATIO: Final = 0.2
_SWITCHED_OFF: Final = (
    "{asked} is a branch or tag, and this release asks no hub ({why}): write the commit, 40 hexadecimal "
    "digits, into spec.model.source.huggingFace.revision"
)
_WRITE_COMMIT: Final = "or write the commit instead of a branch or tag"

K = TypeVar("K", bound=Hashable)
Ask = Callable[[HubAccess, HubRevision, str], Awaitable[str]]

log = structlog.get_logger("warmfleet.operator")


@dataclass(slots=True)
class _Question:
    asked: HubRevision
    task: "asyncio.Task[None] | None" = None
    commit: str = ""
    failure: Unresolved | None = None
    failures: int = 0
    due: float = 0.0
    """When the next attempt may begin."""


class HubCommits(Generic[K]):
    """The questions of all ModelDeployments, by key.

    commit = commits.commit(key, asked)  # or an Unresolved; `on_change` is called when that changes
    commits.forget(key)  # the Deployment carries it, or nothing is to be asked
    """

    def __init__(
        self,
        *,
        cluster: Cluster,
        settings: OperatorSettings,
        on_change: Callable[[K], None],
        ask: Ask = ask_commit,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._on_change = on_change
        self._ask = ask
        self._clock = clock
        self._access = HubAccess.of(settings)
        self._questions: dict[K, _Question] = {}
        self._slots = asyncio.Semaphore(QUESTIONS_AT_ONCE)

    def commit(self, key: K, asked: HubRevision) -> str | Unresolved:
        """The commit, or why there is none yet. Begins to ask if that is due."""
        if self._settings.hub_offline or not self._settings.resolve_revisions:
            why = "modelFetch.offline" if self._settings.hub_offline else "modelFetch.resolveRevisions: false"
            text = _SWITCHED_OFF.format(asked=asked, why=why)
            return Unresolved(Reason.REVISION_UNRESOLVED, text)
        question = self._questions.get(key)
        if question is None or question.asked != asked:
            self.forget(key)
            question = self._questions[key] = _Question(asked)
        if question.commit:
            return question.commit
        now = self._clock()
        if question.task is None and now >= question.due:
            question.task = asyncio.create_task(self._answer(key, question))
        if question.failure is None:
            text = f"asking {self._access.name} which commit {asked} is"
            return Unresolved(Reason.RESOLVING_REVISION, text)
        again = None if question.task is not None else question.due - now
        return Unresolved(question.failure.reason, question.failure.message, again)

    def forget(self, key: K) -> None:
        """Drop the question of a ModelDeployment, and what was answered."""
        question = self._questions.pop(key, None)
        if question is not None and question.task is not None:
            question.task.cancel()

    def forget_all(self) -> None:
        """Drop everything: another replica leads."""
        for key in tuple(self._questions):
            self.forget(key)

    async def stop(self) -> None:
        """End all questions."""
        tasks = [question.task for question in self._questions.values() if question.task is not None]
        self.forget_all()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, key: K, question: _Question) -> None:
        pause = 0.0
        try:
            async with self._slots:
                question.commit = await self._commit(question.asked)
            log.info(
                "revision resolved", deployment=str(key), asked=str(question.asked), commit=question.commit
            )
        except HubRefusedError as error:
            question.failure = Unresolved(Reason.REVISION_UNRESOLVED, str(error))
        except HubUnreachableError as error:
            pause = error.pause_seconds
            question.failure = Unresolved(Reason.HUB_UNREACHABLE, str(error))
        except ClusterError as error:
            question.failure = Unresolved(Reason.HUB_UNREACHABLE, f"the token's Secret: {error}")
        finally:
            question.task = None
        if question.commit:
            question.failure = None
        elif question.failure is not None:
            question.failures += 1
            doubled = MIN_PAUSE_SECONDS * 2 ** min(question.failures - 1, 10)
            spread = random.uniform(1 - _JITTER_RATIO, 1 + _JITTER_RATIO)  # noqa: S311 - spreads requests
            pause = max(min(doubled, MAX_PAUSE_SECONDS) * spread, pause)
            question.due = self._clock() + pause
            log.warning(
                "revision not resolved",
                deployment=str(key),
                asked=str(question.asked),
                reason=question.failure.message,
                again_seconds=round(pause, 1),
            )
        self._on_change(key)

    async def _commit(self, asked: HubRevision) -> str:
        """Without the token first: commits of gated repositories are public, and the token stays unread."""
        try:
            return await self._ask(self._access, asked, "")
        except HubRefusedError as error:
            if not error.wants_token or not asked.secret_name:
                raise
            return await self._ask(self._access, asked, await self._token(asked, error))

    async def _token(self, asked: HubRevision, refused: HubRefusedError) -> str:
        """The token of tokenSecretRef, which the operator may read only where it was granted.

        Raises:
            HubRefusedError: it may not, or there is none.
        """
        secret = f"Secret {asked.namespace}/{asked.secret_name}"
        try:
            found = await self._cluster.read(SECRET, asked.namespace, asked.secret_name)
        except RefusedError:
            text = f"the hub does not show {asked} without a token, and the operator may not read {secret}"
            raise HubRefusedError(f"{text}: grant it that, {_WRITE_COMMIT}", wants_token=False) from refused
        except GoneError:
            raise HubRefusedError(
                f"{secret} of tokenSecretRef does not exist", wants_token=False
            ) from refused
        try:
            token = base64.b64decode((found.get("data") or {})[asked.secret_key]).decode("ascii").strip()
        except (KeyError, ValueError, TypeError, binascii.Error):
            token = ""
        if not token or not token.isprintable():
            text = f"{secret} of tokenSecretRef has no token under the key {asked.secret_key}"
            raise HubRefusedError(text, wants_token=False) from refused
        return token
