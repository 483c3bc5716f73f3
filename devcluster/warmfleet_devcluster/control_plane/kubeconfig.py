"""Kubeconfig files: self-contained, so that one can be copied anywhere; never `~/.kube/config`."""

import base64
from pathlib import Path
from typing import Any

import yaml

from warmfleet_devcluster.control_plane.certificates import KeyPair, write_private
from warmfleet_devcluster.settings import CONTEXT


def kubeconfig(*, server: str, authority: bytes, certificate: bytes, key: bytes) -> dict[str, Any]:
    """The document for one user. `server` is a URL; the rest is PEM."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": CONTEXT,
                "cluster": {"server": server, "certificate-authority-data": _base64(authority)},
            }
        ],
        "users": [
            {
                "name": CONTEXT,
                "user": {"client-certificate-data": _base64(certificate), "client-key-data": _base64(key)},
            }
        ],
        "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": CONTEXT}}],
        "current-context": CONTEXT,
    }


def write_kubeconfig(path: Path, *, server: str, authority: Path, user: KeyPair) -> None:
    """Write the file of one user, readable by the owner alone."""
    document = kubeconfig(
        server=server,
        authority=authority.read_bytes(),
        certificate=user.certificate.read_bytes(),
        key=user.key.read_bytes(),
    )
    write_private(path, yaml.safe_dump(document, sort_keys=False).encode())


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
