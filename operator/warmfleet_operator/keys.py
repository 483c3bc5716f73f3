"""The Secrets that hold keys: created if they are absent, never changed.

A release has one Secret of root keys. Workers of a namespace share one key, derived from the root key and the
namespace's name, and each derives its own token from it; the root key stays in the release's namespace.

Lost root keys are not replaced while a namespace has a key that derives from them: with new ones, routers
would reject every running worker. A Secret counts only with the operator's label and a valid key: another
of the same name must not keep the whole release without root keys.
"""

import base64
import binascii
import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final

import structlog

from warmfleet_contracts.cache.worker_tokens import namespace_key
from warmfleet_contracts.names import (
    MANAGED_BY,
    MANAGED_BY_LABEL,
    NAMESPACE_SECRET,
    NAMESPACE_SECRET_KEY,
    ROOT_KEYS_OPERATOR_TOKEN,
    ROOT_KEYS_SALT,
    ROOT_KEYS_WORKER_TOKEN,
)
from warmfleet_operator.cluster import Cluster
from warmfleet_operator.errors import ConflictError, GoneError, KeysMissingError, RefusedError
from warmfleet_operator.objects.kinds import SECRET
from warmfleet_operator.settings import OperatorSettings

ROOT_KEY_BYTES: Final = 32
MAX_LISTED_NAMESPACES: Final = 8
_NAMESPACE_KEY: Final = re.compile(r"[0-9a-f]{64}")
"""`namespace_key` as `ensure_namespace` writes it: 32 bytes in hexadecimal digits."""
_ROOT_KEYS: Final = (ROOT_KEYS_WORKER_TOKEN, ROOT_KEYS_SALT, ROOT_KEYS_OPERATOR_TOKEN)

log = structlog.get_logger("warmfleet.operator")


class KeySecrets:
    """Ensures that the Secrets exist, and keeps what it has read until `forget`.

    token = await keys.ensure_operator_token()
    await keys.ensure_namespace("models")
    """

    def __init__(
        self, cluster: Cluster, settings: OperatorSettings, namespaces: Callable[[], Iterable[str]]
    ) -> None:
        """`namespaces` returns the namespaces with ModelDeployments."""
        self._cluster = cluster
        self._settings = settings
        self._namespaces = namespaces
        self._root: bytes | None = None
        self._operator_token = ""
        self._present: set[str] = set()

    def forget(self) -> None:
        """Read every Secret again: one may have been deleted meanwhile."""
        self._root = None
        self._present.clear()

    async def ensure_operator_token(self) -> str:
        """The bearer token that routers accept from the operator. Creates the root keys if they are absent.

        Raises:
            KeysMissingError: the Secret lacks a key, or is missing and must not be created: it is provided by
                other means, or keys derive from the lost one.
            ClusterError: it cannot be read or created.
        """
        await self._root_key()
        return self._operator_token

    async def ensure_namespace(self, namespace: str) -> None:
        """Ensure that the key of `namespace` exists; raises as `ensure_operator_token`."""
        if namespace in self._present:
            return
        key = namespace_key(await self._root_key(), namespace).hex()
        try:
            known = await self._cluster.read(SECRET, namespace, NAMESPACE_SECRET)
        except GoneError:
            if await self._create(namespace, NAMESPACE_SECRET, {NAMESPACE_SECRET_KEY: key}):
                log.info("namespace key created", namespace=namespace, secret=NAMESPACE_SECRET)
                self._present.add(namespace)
                return
            # Another replica created it, or it still does not exist because of another conflict.
            known = await self._cluster.read(SECRET, namespace, NAMESPACE_SECRET)
        if _values(known).get(NAMESPACE_SECRET_KEY, "").strip() != key:
            log.error(
                "the namespace's key does not derive from the root key: routers will reject its workers; "
                "restore the root key, or delete this Secret and restart the workers",
                namespace=namespace,
                secret=NAMESPACE_SECRET,
            )
        self._present.add(namespace)

    async def _root_key(self) -> bytes:
        if self._root is not None:
            return self._root
        namespace, name = self._settings.release_namespace, self._settings.root_secret_name
        try:
            values = _values(await self._cluster.read(SECRET, namespace, name))
        except GoneError:
            if not self._settings.create_root_secret:
                raise KeysMissingError(
                    f"Secret {namespace}/{name} with the root keys does not exist"
                ) from None
            if derived := [found async for found in self._namespaces_with_key()]:
                raise KeysMissingError(_lost_root_keys(f"{namespace}/{name}", derived)) from None
            values = {key: secrets.token_hex(ROOT_KEY_BYTES) for key in _ROOT_KEYS}
            if not await self._create(namespace, name, values):
                values = _values(await self._cluster.read(SECRET, namespace, name))
            else:
                log.info("root keys created", namespace=namespace, secret=name)
        try:
            root = bytes.fromhex(values[ROOT_KEYS_WORKER_TOKEN])
            self._operator_token = values[ROOT_KEYS_OPERATOR_TOKEN].strip()
        except (KeyError, ValueError):
            keys = f"{ROOT_KEYS_WORKER_TOKEN} and {ROOT_KEYS_OPERATOR_TOKEN}"
            raise KeysMissingError(
                f"Secret {namespace}/{name}: {keys} must hold hexadecimal digits"
            ) from None
        self._root = root
        return root

    async def _namespaces_with_key(self) -> AsyncIterator[str]:
        for namespace in sorted(self._namespaces()):
            try:
                secret = await self._cluster.read(SECRET, namespace, NAMESPACE_SECRET)
            except GoneError:
                continue
            except RefusedError as error:
                log.warning(
                    "it is unknown whether the namespace has a key: reading its Secret is refused",
                    namespace=namespace,
                    secret=NAMESPACE_SECRET,
                    reason=str(error),
                )
                continue
            if _holds_namespace_key(secret):
                yield namespace

    async def _create(self, namespace: str, name: str, values: dict[str, str]) -> bool:
        body = {
            "apiVersion": SECRET.api_version,
            "kind": SECRET.name,
            "metadata": {
                "namespace": namespace,
                "name": name,
                "labels": {MANAGED_BY_LABEL: MANAGED_BY},
            },
            "type": "Opaque",
            "stringData": values,
        }
        try:
            await self._cluster.create(SECRET, body)
        except ConflictError:
            return False
        return True


def _lost_root_keys(secret: str, namespaces: list[str]) -> str:
    """What is missing, why it is not created, and both ways to continue."""
    listed = ", ".join(namespaces[:MAX_LISTED_NAMESPACES])
    more = len(namespaces) - MAX_LISTED_NAMESPACES
    return (
        f"Secret {secret} with the root keys does not exist, and workers use keys that derive from it in: "
        f"{listed}{f' and {more} more' if more > 0 else ''}. Restore it from a backup. To start with new "
        f"root keys instead, delete Secret {NAMESPACE_SECRET} in these namespaces and restart their workers"
    )


def _holds_namespace_key(secret: dict[str, Any]) -> bool:
    """Whether the Secret has the label and a key of the form that the operator writes."""
    labels = secret["metadata"].get("labels") or {}
    if labels.get(MANAGED_BY_LABEL) != MANAGED_BY:
        return False
    return _NAMESPACE_KEY.fullmatch(_values(secret).get(NAMESPACE_SECRET_KEY, "").strip()) is not None


def _values(secret: dict[str, object]) -> dict[str, str]:
    data = secret.get("data")
    values: dict[str, str] = {}
    for key, value in (data if isinstance(data, dict) else {}).items():
        try:
            values[key] = base64.b64decode(value).decode("ascii")
        except (binascii.Error, UnicodeDecodeError, TypeError):
            continue  # not a key of the operator
    return values
