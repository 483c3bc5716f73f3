"""Plain HTTP to the API server that a kubeconfig names: a hundred times faster than a kubectl for each."""

import base64
import ssl
import tempfile
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

_GROUPS: Final = {
    "deployments": "/apis/apps/v1",
    "endpointslices": "/apis/discovery.k8s.io/v1",
    "events": "/apis/events.k8s.io/v1",
    "modeldeployments": "/apis/warmfleet.dev/v1alpha1",
    "networkpolicies": "/apis/networking.k8s.io/v1",
    "poddisruptionbudgets": "/apis/policy/v1",
    "pods": "/api/v1",
    "secrets": "/api/v1",
    "serviceaccounts": "/api/v1",
    "services": "/api/v1",
}
"""What tests read, by plural."""
_PLURALS: Final = {"networkpolicy": "networkpolicies"}


def api_client(kubeconfig: Path) -> httpx.Client:
    """A client with the kubeconfig's certificate; paths are relative to the server."""
    config = yaml.safe_load(kubeconfig.read_text())
    (cluster,), (user,) = config["clusters"], config["users"]
    context = ssl.create_default_context(
        cadata=base64.b64decode(cluster["cluster"]["certificate-authority-data"]).decode()
    )
    with tempfile.NamedTemporaryFile() as pair:
        for part in ("client-certificate-data", "client-key-data"):
            pair.write(base64.b64decode(user["user"][part]))
        pair.flush()
        context.load_cert_chain(pair.name)
    return httpx.Client(base_url=cluster["cluster"]["server"], verify=context, trust_env=False, timeout=30.0)


def object_path(namespace: str, kind: str, name: str = "") -> str:
    """Of one object, or without a name of the list of all; `kind` is lower case, singular or plural."""
    plural = kind if kind in _GROUPS else _PLURALS.get(kind, f"{kind}s")
    return "/".join(filter(None, (f"{_GROUPS[plural]}/namespaces/{namespace}/{plural}", name)))


def read_object(api: httpx.Client, namespace: str, kind: str, name: str = "", **query: str) -> Any:
    """What lies at `object_path`, decoded.

    Raises:
        LookupError: it is not there.
    """
    answer = api.get(object_path(namespace, kind, name), params=query)
    if answer.status_code == httpx.codes.NOT_FOUND:
        raise LookupError(f"{kind} {name}")
    return answer.raise_for_status().json()
