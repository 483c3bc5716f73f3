"""Reads what a pod refers to from the API server, as the node: Secrets, ConfigMaps, claims, tokens."""

import asyncio
from collections.abc import Iterable
from typing import Any, Final

from warmfleet_devcluster.node.errors import VolumeError
from warmfleet_devcluster.node.references.config_objects import ConfigObjects
from warmfleet_runtime.kubernetes.client import KubernetesClient
from warmfleet_runtime.kubernetes.errors import ApiServerError

Json = dict[str, Any]

_DEFAULT_TOKEN_SECONDS: Final = 3600
_REFRESH_RATIO: Final = 0.8
_REREAD_SECONDS: Final = 3.0
"""Longest wait for a fresh copy of an object that was read before; then the earlier copy is used."""


class PodObjects:
    """The objects that one pod refers to. A token is reused for 80 % of its lifetime.

    While the API server is unreachable, objects are returned as last read, so that containers can restart:
    a kubelet does the same with its watch cache.
    """

    def __init__(self, api: KubernetesClient, pod: Json) -> None:
        self._api = api
        self._namespace: str = pod["metadata"]["namespace"]
        self._pod = pod
        self._tokens: dict[tuple[str, int], tuple[str, float]] = {}
        self._read_last: dict[tuple[str, str], Json] = {}

    async def config_objects(self, secrets: Iterable[str], config_maps: Iterable[str]) -> ConfigObjects:
        """The Secrets and ConfigMaps of these names, None for one that does not exist.

        Raises:
            VolumeError: the API server is unreachable, and one of them was never read.
        """
        return ConfigObjects(
            secrets={name: await self._read("secrets", name) for name in secrets},
            config_maps={name: await self._read("configmaps", name) for name in config_maps},
        )

    async def claimed_folder(self, claim: str) -> str:
        """The folder behind a PersistentVolumeClaim. Raises VolumeError until it is bound."""
        found = await self._read("persistentvolumeclaims", claim)
        if found is None:
            raise VolumeError(f'persistentvolumeclaim "{claim}" not found')
        name = found["spec"].get("volumeName")
        if not name or found.get("status", {}).get("phase") != "Bound":
            raise VolumeError(f'persistentvolumeclaim "{claim}" is not bound')
        try:
            volume = await self._api.get(f"/api/v1/persistentvolumes/{name}")
        except ApiServerError as error:
            raise VolumeError(f"persistentvolume {name}: {error}") from error
        source = volume["spec"].get("hostPath") or volume["spec"].get("local")
        if not source:
            raise VolumeError(f"persistentvolume {name} is no hostPath volume")
        return str(source["path"])

    async def token(self, wanted: Json) -> str:
        """A token of the pod's service account, bound to the pod. Raises VolumeError."""
        audience, seconds = (
            wanted.get("audience", ""),
            wanted.get("expirationSeconds", _DEFAULT_TOKEN_SECONDS),
        )
        cached = self._tokens.get((audience, seconds))
        now = asyncio.get_running_loop().time()
        if cached and now < cached[1]:
            return cached[0]
        account = self._pod["spec"].get("serviceAccountName", "default")
        metadata = self._pod["metadata"]
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "audiences": [audience] if audience else [],
                "expirationSeconds": seconds,
                "boundObjectRef": {
                    "apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"],
                },
            },
        }  # fmt: skip
        try:
            path = f"/api/v1/namespaces/{self._namespace}/serviceaccounts/{account}/token"
            answer = await self._api.post(path, request)
        except ApiServerError as error:
            raise VolumeError(f"no token for service account {account}: {error}") from error
        token = str(answer["status"]["token"])
        self._tokens[(audience, seconds)] = (token, now + seconds * _REFRESH_RATIO)
        return token

    async def _read(self, plural: str, name: str) -> Json | None:
        path = f"/api/v1/namespaces/{self._namespace}/{plural}/{name}"
        known = self._read_last.get((plural, name))
        try:
            async with asyncio.timeout(None if known is None else _REREAD_SECONDS):
                # Version 0 is answered from the API server's cache: refreshing is cheap. That cache may lack
                # what was made just before the pod.
                found = await self._api.get(path, None if known is None else {"resourceVersion": "0"})
        except (ApiServerError, TimeoutError) as error:
            if isinstance(error, ApiServerError) and error.status == 404:
                self._read_last.pop((plural, name), None)
                return None
            if known is not None:
                return known
            raise VolumeError(f"cannot read {plural} {name}: {error}") from error
        self._read_last[plural, name] = found
        return found
