"""When the operator creates keys, and when it must not."""

import base64
from typing import Any

import pytest

from warmfleet_operator.errors import (
    ConflictError,
    GoneError,
    KeysMissingError,
    RefusedError,
    UnreachableError,
)
from warmfleet_operator.keys import KeySecrets
from warmfleet_operator.objects.kinds import Kind
from warmfleet_operator.settings import OperatorSettings

ROOT = ("warmfleet", "warmfleet-root-keys")


class Secrets:
    """The part of a cluster that keys are kept in."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, str], dict[str, Any]] = {}
        self.failures: dict[str, Exception] = {}
        """By namespace: every read in it raises this."""

    async def read(self, _: Kind, namespace: str, name: str) -> dict[str, Any]:
        if namespace in self.failures:
            raise self.failures[namespace]
        if (namespace, name) not in self.held:
            raise GoneError(name)
        return self.held[namespace, name]

    async def create(self, _: Kind, body: dict[str, Any]) -> dict[str, Any]:
        identity = body["metadata"]["namespace"], body["metadata"]["name"]
        if identity in self.held:
            raise ConflictError(identity[1])
        data = {key: base64.b64encode(value.encode()).decode() for key, value in body["stringData"].items()}
        self.held[identity] = {**body, "data": data}
        return self.held[identity]


def keys_of(cluster: Secrets, *namespaces: str, **settings: Any) -> KeySecrets:
    made = OperatorSettings(release_namespace="warmfleet", **settings)
    return KeySecrets(cluster, made, lambda: set(namespaces))  # type: ignore[arg-type] # a part of it


async def test_root_keys_are_created_where_no_key_derives_from_earlier_ones() -> None:
    cluster = Secrets()
    keys = keys_of(cluster, "a", "b")

    token = await keys.ensure_operator_token()
    await keys.ensure_namespace("a")

    assert len(bytes.fromhex(token)) == 32
    assert cluster.held.keys() == {ROOT, ("a", "warmfleet-worker-key")}


@pytest.mark.parametrize("restarted", [False, True])
async def test_lost_root_keys_are_not_replaced_while_any_namespace_has_a_key(restarted) -> None:
    """Neither for a namespace without a key nor for a poll of the routers, the first use after a start."""
    cluster = Secrets()
    keys = keys_of(cluster, "a", "b")
    await keys.ensure_namespace("b")
    del cluster.held[ROOT]
    if restarted:
        keys = keys_of(cluster, "a", "b")
    keys.forget()

    message = r"warmfleet/warmfleet-root-keys .* in: b\. Restore it from a backup"
    with pytest.raises(KeysMissingError, match=message):
        await keys.ensure_operator_token()
    for namespace in ("a", "b"):
        with pytest.raises(KeysMissingError, match=message):
            await keys.ensure_namespace(namespace)
    assert ROOT not in cluster.held


def worker_key_secret(labels: dict[str, str] | None, value: str | None) -> dict[str, Any]:
    data = None if value is None else {"namespace-key": base64.b64encode(value.encode()).decode()}
    return {"metadata": {"labels": labels}, "data": data}


OURS = {"app.kubernetes.io/managed-by": "warmfleet"}


@pytest.mark.parametrize(
    ("labels", "value"),
    [
        (None, None),
        (None, "ab" * 32),
        ({"app.kubernetes.io/managed-by": "helm"}, "ab" * 32),
        (OURS, None),
        (OURS, ""),
        (OURS, "ab" * 31),
        (OURS, "ab" * 33),
        (OURS, "zz" * 32),
    ],
)
async def test_a_secret_that_holds_no_key_of_the_operator_does_not_keep_root_keys_away(labels, value) -> None:
    cluster = Secrets()
    cluster.held["tenant", "warmfleet-worker-key"] = worker_key_secret(labels, value)

    await keys_of(cluster, "tenant").ensure_operator_token()

    assert ROOT in cluster.held


async def test_a_namespace_that_refuses_the_read_does_not_keep_root_keys_away() -> None:
    cluster = Secrets()
    cluster.failures["tenant"] = RefusedError("forbidden")

    await keys_of(cluster, "tenant").ensure_operator_token()

    assert ROOT in cluster.held


async def test_a_refused_namespace_does_not_hide_the_key_of_another() -> None:
    cluster = Secrets()
    cluster.failures["a"] = RefusedError("forbidden")
    cluster.held["b", "warmfleet-worker-key"] = worker_key_secret(OURS, "ab" * 32)

    with pytest.raises(KeysMissingError, match=r"in: b\."):
        await keys_of(cluster, "a", "b").ensure_operator_token()
    assert ROOT not in cluster.held


async def test_root_keys_are_not_created_while_a_namespace_does_not_answer() -> None:
    cluster = Secrets()
    cluster.failures["a"] = UnreachableError("timeout")

    with pytest.raises(UnreachableError):
        await keys_of(cluster, "a").ensure_operator_token()
    assert ROOT not in cluster.held


async def test_restored_root_keys_are_used_again() -> None:
    cluster = Secrets()
    keys = keys_of(cluster, "a")
    token = await keys.ensure_operator_token()
    await keys.ensure_namespace("a")
    root = cluster.held.pop(ROOT)
    keys.forget()
    with pytest.raises(KeysMissingError):
        await keys.ensure_operator_token()

    cluster.held[ROOT] = root

    assert await keys.ensure_operator_token() == token


async def test_many_namespaces_are_counted_and_not_all_listed() -> None:
    cluster = Secrets()
    names = [f"n{number:02}" for number in range(20)]
    keys = keys_of(cluster, *names)
    for name in names:
        await keys.ensure_namespace(name)
    del cluster.held[ROOT]
    keys.forget()

    with pytest.raises(KeysMissingError) as raised:
        await keys.ensure_operator_token()

    assert "n07 and 12 more." in str(raised.value)
    assert len(str(raised.value)) < 1000
