"""Questions beside reconciliations: one per deployment, a few at once, with a backoff, and the token last."""

import asyncio
import base64
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest

from warmfleet_contracts.resources.conditions import Reason
from warmfleet_operator.desired.commits import HubRevision, Unresolved
from warmfleet_operator.errors import GoneError, RefusedError, UnreachableError
from warmfleet_operator.hub.client import HubAccess, HubRefusedError, HubUnreachableError
from warmfleet_operator.hub.commits import MAX_PAUSE_SECONDS, QUESTIONS_AT_ONCE, HubCommits
from warmfleet_operator.settings import OperatorSettings

COMMIT = "a" * 40
MAIN = HubRevision("acme/tiny", "main", "models")
PRIVATE = replace(MAIN, secret_name="hub", secret_key="token")
SETTINGS = OperatorSettings(release_namespace="warmfleet")
NO_ACCESS = HubRefusedError("private (401 without a token)", wants_token=True)


def secret(**data: str) -> dict[str, Any]:
    return {"data": {name: base64.b64encode(value.encode()).decode() for name, value in data.items()}}


@dataclass
class Hub:
    """Answers in turn, the last one again and again; an error is raised."""

    answers: list[str | Exception] = field(default_factory=lambda: [COMMIT])
    tokens: list[str] = field(default_factory=list)
    """Of each request, empty for none."""
    free: asyncio.Event = field(default_factory=asyncio.Event)
    at_once: int = 0
    most_at_once: int = 0
    now: float = 0.0
    changed: list[str] = field(default_factory=list)
    secret: dict[str, Any] | Exception = field(default_factory=lambda: secret(token="hf_right"))
    read: list[tuple[str, str]] = field(default_factory=list)

    async def ask(self, access: HubAccess, asked: HubRevision, token: str) -> str:
        del access, asked
        self.tokens.append(token)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self.free.wait()
        finally:
            self.at_once -= 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def read_secret(self, namespace: str, name: str) -> dict[str, Any]:
        self.read.append((namespace, name))
        if isinstance(self.secret, Exception):
            raise self.secret
        return self.secret


class Cluster:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def read(self, _kind: object, namespace: str, name: str) -> dict[str, Any]:
        return await self._hub.read_secret(namespace, name)


def commits_of(hub: Hub, settings: OperatorSettings = SETTINGS) -> HubCommits[str]:
    cluster: Any = Cluster(hub)
    return HubCommits(
        cluster=cluster,
        settings=settings,
        on_change=hub.changed.append,
        ask=hub.ask,
        clock=lambda: hub.now,
    )


def run(test: Callable[[Hub], Awaitable[None]], hub: Hub | None = None) -> None:
    async def within() -> None:
        made = hub or Hub()
        made.free = asyncio.Event()
        await asyncio.wait_for(test(made), 10)

    asyncio.run(within())


async def until(holds: Callable[[], bool]) -> None:
    """Let tasks run; `run` bounds the time."""
    done = False
    while not done:
        await asyncio.sleep(0)
        done = holds()


async def settled(hub: Hub, changes: int) -> None:
    await until(lambda: len(hub.changed) >= changes)


async def answered(hub: Hub, asked: HubRevision) -> HubCommits[str]:
    """Those of a hub that answers at once and was asked for one deployment."""
    hub.free.set()
    commits = commits_of(hub)
    commits.commit("m", asked)
    await settled(hub, 1)
    return commits


def test_a_question_is_asked_once_and_answered_by_a_change() -> None:
    async def test(hub: Hub) -> None:
        commits = commits_of(hub)
        first = commits.commit("m", MAIN)
        assert isinstance(first, Unresolved)
        assert (first.reason, first.again_seconds) == (Reason.RESOLVING_REVISION, None)
        assert "https://huggingface.co" in first.message
        assert "acme/tiny@main" in first.message
        for _ in range(5):
            await asyncio.sleep(0)
            assert isinstance(commits.commit("m", MAIN), Unresolved)
        hub.free.set()
        await settled(hub, 1)
        assert [commits.commit("m", MAIN) for _ in range(3)] == [COMMIT] * 3
        assert hub.tokens == [""]

    run(test)


def test_a_failure_is_kept_and_asked_again_ever_later() -> None:
    async def test(hub: Hub) -> None:
        hub.free.set()
        commits = commits_of(hub)
        pauses = []
        for failures in range(1, 10):
            commits.commit("m", MAIN)
            await settled(hub, failures)
            found = commits.commit("m", MAIN)
            assert isinstance(found, Unresolved)
            assert found.reason is Reason.HUB_UNREACHABLE
            assert found.again_seconds is not None
            hub.now += found.again_seconds - 0.01
            commits.commit("m", MAIN)
            assert len(hub.tokens) == failures  # not before it is due
            hub.now += 0.02
            pauses.append(found.again_seconds)
        assert pauses[0] == pytest.approx(5, rel=0.21)
        assert pauses[-1] == pytest.approx(MAX_PAUSE_SECONDS, rel=0.21)
        assert all(later > earlier for earlier, later in pairwise(pauses[:6]))
        hub.answers = [COMMIT]
        while_asking = commits.commit("m", MAIN)
        assert isinstance(while_asking, Unresolved)
        assert (while_asking.reason, while_asking.again_seconds) == (Reason.HUB_UNREACHABLE, None)
        await settled(hub, 10)
        assert commits.commit("m", MAIN) == COMMIT

    run(test, Hub([HubUnreachableError("no answer")]))


def test_a_hub_that_asks_for_a_pause_gets_it() -> None:
    async def test(hub: Hub) -> None:
        commits = await answered(hub, MAIN)
        found = commits.commit("m", MAIN)
        assert isinstance(found, Unresolved)
        assert found.again_seconds == 55.0

    run(test, Hub([HubUnreachableError("429", 55.0)]))


def test_another_source_is_another_question_at_once() -> None:
    async def test(hub: Hub) -> None:
        commits = await answered(hub, MAIN)
        commits.commit("m", replace(MAIN, revision="v2"))
        await settled(hub, 2)
        assert commits.commit("m", replace(MAIN, revision="v2")) == COMMIT
        assert isinstance(commits.commit("m", MAIN), Unresolved)  # the earlier answer is no memory
        commits.forget("m")

    run(test, Hub([HubUnreachableError("no answer"), COMMIT]))


def test_many_deployments_ask_a_few_at_a_time_and_end_with_the_operator() -> None:
    async def test(hub: Hub) -> None:
        commits = commits_of(hub)
        for number in range(50):
            commits.commit(f"m{number}", MAIN)
        await until(lambda: hub.at_once == QUESTIONS_AT_ONCE)
        for _ in range(20):
            await asyncio.sleep(0)
        assert hub.most_at_once == QUESTIONS_AT_ONCE
        await commits.stop()
        assert (hub.at_once, hub.changed) == (0, [])

    run(test)


def test_the_token_is_read_only_where_the_hub_wants_one() -> None:
    async def public(hub: Hub) -> None:
        commits = await answered(hub, PRIVATE)
        assert commits.commit("m", PRIVATE) == COMMIT
        assert (hub.tokens, hub.read) == ([""], [])

    async def private(hub: Hub) -> None:
        commits = await answered(hub, PRIVATE)
        assert commits.commit("m", PRIVATE) == COMMIT
        assert (hub.tokens, hub.read) == (["", "hf_right"], [("models", "hub")])

    run(public)
    run(private, Hub([NO_ACCESS, COMMIT]))


@pytest.mark.parametrize(
    ("held", "reason", "text"),
    [
        (RefusedError("secrets is forbidden"), Reason.REVISION_UNRESOLVED, "may not read Secret models/hub"),
        (GoneError("404"), Reason.REVISION_UNRESOLVED, "Secret models/hub of tokenSecretRef does not exist"),
        (secret(other="x"), Reason.REVISION_UNRESOLVED, "has no token under the key token"),
        (secret(token="a\r\nhost: b"), Reason.REVISION_UNRESOLVED, "has no token under the key token"),
        ({"data": {"token": "%%%"}}, Reason.REVISION_UNRESOLVED, "has no token under the key token"),
        (UnreachableError("timeout"), Reason.HUB_UNREACHABLE, "the token's Secret: timeout"),
    ],
)
def test_without_a_token_the_message_has_the_way_out(held: Any, reason: Reason, text: str) -> None:
    async def test(hub: Hub) -> None:
        commits = await answered(hub, PRIVATE)
        found = commits.commit("m", PRIVATE)
        assert isinstance(found, Unresolved)
        assert found.reason is reason
        assert text in found.message
        assert hub.tokens == [""]

    run(test, Hub([NO_ACCESS], secret=held))


@pytest.mark.parametrize(
    ("switch", "name"),
    [
        ({"hub_offline": True}, "modelFetch.offline"),
        ({"resolve_revisions": False}, "modelFetch.resolveRevisions"),
    ],
)
def test_a_release_without_a_hub_asks_none(switch: dict[str, bool], name: str) -> None:
    async def test(hub: Hub) -> None:
        found = commits_of(hub, replace(SETTINGS, **switch)).commit("m", MAIN)
        assert isinstance(found, Unresolved)
        assert (found.reason, found.again_seconds) == (Reason.REVISION_UNRESOLVED, None)
        assert name in found.message
        await asyncio.sleep(0)
        assert hub.tokens == []

    run(test)
