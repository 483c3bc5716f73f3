"""The names by which requests may ask for a deployment."""

from collections.abc import Mapping
from typing import Any


def served_names(deployment: Mapping[str, Any]) -> list[str]:
    """Of a ModelDeployment of the API server: what it lists, or its own name where it lists none."""
    listed = ((deployment.get("spec") or {}).get("model") or {}).get("servedNames")
    return list(listed or [deployment["metadata"]["name"]])


def request_names(deployment: Mapping[str, Any]) -> list[str]:
    """By which requests come to it: its served names, and `namespace/name`, which nobody can take."""
    metadata = deployment["metadata"]
    return [*served_names(deployment), f"{metadata['namespace']}/{metadata['name']}"]
