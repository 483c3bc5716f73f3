"""Secrets and ConfigMaps that a pod names, as the API server returns them."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ConfigObjects:
    """Secrets and ConfigMaps by name; None for one that does not exist."""

    secrets: Mapping[str, Json | None] = field(default_factory=dict)
    config_maps: Mapping[str, Json | None] = field(default_factory=dict)


def decoded_data(found: Json, kind: str) -> dict[str, bytes]:
    """Key -> content of a Secret (`kind` is `secret`) or a ConfigMap, decoded from base64."""
    if kind == "secret":
        return {key: base64.b64decode(value) for key, value in (found.get("data") or {}).items()}
    texts = {key: value.encode() for key, value in (found.get("data") or {}).items()}
    return texts | {key: base64.b64decode(value) for key, value in (found.get("binaryData") or {}).items()}
