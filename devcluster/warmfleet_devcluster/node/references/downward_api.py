"""The downward API: fields of a pod, and resources of its containers, as text. Pure."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from warmfleet_contracts.resources.quantities import parse_quantity
from warmfleet_devcluster.node.errors import ContainerConfigError

Json = dict[str, Any]

_KEYED_FIELD: Final = re.compile(r"^metadata\.(labels|annotations)\['([^']+)'\]$")


@dataclass(frozen=True, slots=True)
class PodContext:
    """The pod that a container belongs to, and what only its node knows."""

    pod: Json
    pod_ip: str
    host_ip: str
    allocatable: Mapping[str, str]
    """Stands in for a limit that a container does not have."""


def field_value(path: str, context: PodContext) -> str:
    """A field of the pod by the downward API's path. Raises ContainerConfigError for one that it lacks."""
    metadata, spec = context.pod["metadata"], context.pod["spec"]
    keyed = _KEYED_FIELD.match(path)
    if keyed:
        return str(metadata.get(keyed.group(1), {}).get(keyed.group(2), ""))
    if path in ("metadata.labels", "metadata.annotations"):
        pairs = metadata.get(path.removeprefix("metadata."), {})
        return "\n".join(f'{key}="{_quoted(value)}"' for key, value in sorted(pairs.items()))
    fields: dict[str, str] = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        "status.podIP": context.pod_ip,
        "status.podIPs": context.pod_ip,
        "status.hostIP": context.host_ip,
        "status.hostIPs": context.host_ip,
    }
    if path not in fields:
        raise ContainerConfigError(f"the field {path} is not known to the downward API")
    return fields[path]


def resource_value(reference: Json, container: Json, context: PodContext) -> str:
    """A limit or request in multiples of its divisor; without a limit, what the node has."""
    kind, _, name = reference["resource"].partition(".")
    resources = container.get("resources", {})
    amount = resources.get(kind, {}).get(name)
    if amount is None and kind == "requests":
        amount = resources.get("limits", {}).get(name, "0")
    if amount is None:
        amount = context.allocatable.get(name, "0")
    return str(in_units(str(amount), str(reference.get("divisor", "1"))))


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def in_units(quantity: str, divisor: str) -> int:
    """How many `divisor`s a quantity holds, rounded up.

    Raises:
        QuantityError: one of them is no quantity.
    """
    unit = parse_quantity(divisor)
    if unit <= 0:  # Kubernetes reads "0" as the default divisor
        unit = Decimal(1)
    return math.ceil(parse_quantity(quantity) / unit)
