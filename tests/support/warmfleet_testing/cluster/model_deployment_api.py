"""ModelDeployments at a real API server: how it answers a manifest, without starting kubectl for each."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import httpx

from warmfleet_contracts.names import GROUP, PLURAL, VERSION
from warmfleet_testing.cluster.api_client import api_client
from warmfleet_testing.cluster.control_plane import ControlPlane, KubectlError
from warmfleet_testing.resources.crd_schema import CRD_PATH

NAME: Final = f"{PLURAL}.{GROUP}"
_SERVED_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    """The API server's answer."""

    code: int
    body: dict[str, Any]

    @property
    def accepted(self) -> bool:
        return self.code < 300

    @property
    def message(self) -> str:
        """Why it refused; empty if it did not."""
        return "" if self.accepted else str(self.body["message"])


class ModelDeploymentApi:
    """The resource in one namespace."""

    def __init__(self, client: httpx.Client, control_plane: ControlPlane, namespace: str) -> None:
        self.control_plane = control_plane
        self.namespace = namespace
        self._client = client
        self._path = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{PLURAL}"

    def create(self, manifest: Mapping[str, Any], *, dry_run: bool = True) -> Answer:
        """As `kubectl create` asks: unknown fields are errors."""
        return self._ask("POST", self._path, manifest, "application/json", dry_run=dry_run)

    def patch(
        self, name: str, change: Mapping[str, Any], *, subresource: str = "", dry_run: bool = True
    ) -> Answer:
        """A JSON merge patch of the resource or of its `status` or `scale`."""
        path = f"{self._path}/{name}/{subresource}".rstrip("/")
        return self._ask("PATCH", path, change, "application/merge-patch+json", dry_run=dry_run)

    def apply(self, manifest: Mapping[str, Any], path: str = "") -> Answer:
        """Server-side apply of `manifest`, by default a ModelDeployment; `path` ends in the object's name."""
        path = path or f"{self._path}/{manifest['metadata']['name']}"
        parameters = {"fieldManager": "tests", "force": "true", "fieldValidation": "Strict"}
        headers = {"Content-Type": "application/apply-patch+yaml"}
        answer = self._client.patch(path, params=parameters, content=json.dumps(manifest), headers=headers)
        return Answer(answer.status_code, answer.json())

    def delete(self, path: str) -> Answer:
        """The object at `path`, or the ModelDeployment of this name."""
        answer = self._client.delete(path if path.startswith("/") else f"{self._path}/{path}")
        return Answer(answer.status_code, answer.json())

    def openapi(self) -> dict[str, Any]:
        """What the API server publishes, and `kubectl explain` reads."""
        answer = self._client.get(f"/openapi/v3/apis/{GROUP}/{VERSION}").raise_for_status()
        document: dict[str, Any] = answer.json()
        return document

    def _ask(
        self, method: str, path: str, content: Mapping[str, Any], content_type: str, *, dry_run: bool
    ) -> Answer:
        parameters = {"fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}
        # json.dumps and not httpx's encoder: lone surrogates must arrive as they are.
        answer = self._client.request(
            method,
            path,
            params=parameters,
            content=json.dumps(content),
            headers={"Content-Type": content_type},
        )
        return Answer(answer.status_code, answer.json())


@contextmanager
def served_model_deployments(control_plane: ControlPlane, namespace: str) -> Iterator[ModelDeploymentApi]:
    """The CRD served, and a namespace for tests; both gone afterwards, if they were not there before."""
    known = _is_known(control_plane)
    control_plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRD_PATH))
    control_plane.kubectl("wait", "--for=condition=Established", f"crd/{NAME}", "--timeout=20s")
    control_plane.kubectl("create", "namespace", namespace)
    with api_client(control_plane.kubeconfig) as client:
        api = ModelDeploymentApi(client, control_plane, namespace)
        _await_served(api)
        yield api
    control_plane.kubectl("delete", "namespace", namespace, "--wait=false")
    if not known:
        control_plane.kubectl("delete", "crd", NAME)


def _is_known(control_plane: ControlPlane) -> bool:
    try:
        control_plane.kubectl("get", "crd", NAME)
    except KubectlError:
        return False
    return True


def _await_served(api: ModelDeploymentApi) -> None:
    """Established comes moments before requests are served, the short name is known, the schema shown."""
    deadline = time.monotonic() + _SERVED_SECONDS
    while api.create({}).code == 404 or not _is_explained(api.control_plane):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _is_explained(control_plane: ControlPlane) -> bool:
    try:
        control_plane.kubectl("explain", "mdep.spec")
    except KubectlError:
        return False
    return True
