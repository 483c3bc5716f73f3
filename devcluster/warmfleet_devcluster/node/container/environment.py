"""A container's environment and command line, from its manifest. Pure: what it refers to is handed in."""

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from warmfleet_devcluster.node.errors import ContainerConfigError
from warmfleet_devcluster.quantity import in_units

Json = dict[str, Any]

_REFERENCE: Final = re.compile(r"\$\$|\$\(([^()$]+)\)")
_KEYED_FIELD: Final = re.compile(r"^metadata\.(labels|annotations)\['([^']+)'\]$")


@dataclass(frozen=True, slots=True)
class PodContext:
    """The pod that a container belongs to, and what only its node knows."""

    pod: Json
    pod_ip: str
    host_ip: str
    allocatable: Mapping[str, str]
    """Stands in for a limit that a container does not have."""


@dataclass(frozen=True, slots=True)
class References:
    """Secrets and ConfigMaps by name; None for one that does not exist."""

    secrets: Mapping[str, Json | None] = field(default_factory=dict)
    config_maps: Mapping[str, Json | None] = field(default_factory=dict)


def referenced_names(container: Json) -> tuple[set[str], set[str]]:
    """Names of the Secrets and of the ConfigMaps that the environment of a container reads."""
    secrets: set[str] = set()
    config_maps: set[str] = set()
    for source in container.get("envFrom", []):
        if "secretRef" in source:
            secrets.add(source["secretRef"]["name"])
        if "configMapRef" in source:
            config_maps.add(source["configMapRef"]["name"])
    for variable in container.get("env", []):
        origin = variable.get("valueFrom") or {}
        if "secretKeyRef" in origin:
            secrets.add(origin["secretKeyRef"]["name"])
        if "configMapKeyRef" in origin:
            config_maps.add(origin["configMapKeyRef"]["name"])
    return secrets, config_maps


def expand(text: str, known: Mapping[str, str]) -> str:
    """`$(NAME)` becomes its value, `$$` becomes `$`; what is not known stays as it is written."""

    def replacement(match: re.Match[str]) -> str:
        name = match.group(1)
        if name is None:
            return "$"
        return known.get(name, match.group(0))

    return _REFERENCE.sub(replacement, text)


def environment(
    container: Json,
    context: PodContext,
    references: References,
    *,
    image_env: Mapping[str, str],
    cluster_env: Mapping[str, str],
) -> dict[str, str]:
    """The variables of a container; later sources win: image, cluster, envFrom, env.

    Raises ContainerConfigError when a Secret, a ConfigMap or a key is missing that is not optional.
    """
    given: dict[str, str] = dict(cluster_env)
    for source in container.get("envFrom", []):
        prefix = source.get("prefix", "")
        for reference, kind in (("secretRef", "secret"), ("configMapRef", "configmap")):
            if reference in source:
                held = _object(source[reference], kind, references)
                given |= {prefix + key: value.decode(errors="replace") for key, value in held.items()}
    for variable in container.get("env", []):
        value = _value(variable, container, context, references, given)
        if value is not None:
            given[variable["name"]] = value
    return {**image_env, **given}


def command_line(
    container: Json, known: Mapping[str, str], entrypoint: Sequence[str], image_args: Sequence[str]
) -> list[str]:
    """What to run: `command` replaces the image's entry point and arguments, `args` its arguments."""
    command = [expand(part, known) for part in container.get("command") or []]
    args = [expand(part, known) for part in container.get("args") or []]
    line = command + args if command else [*entrypoint, *(args or image_args)]
    if not line:
        raise ContainerConfigError("no command specified")
    return line


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


def keys_of(held: Json, kind: str) -> dict[str, bytes]:
    """What a Secret or a ConfigMap holds, decoded."""
    if kind == "secret":
        return {key: base64.b64decode(value) for key, value in (held.get("data") or {}).items()}
    texts = {key: value.encode() for key, value in (held.get("data") or {}).items()}
    return texts | {key: base64.b64decode(value) for key, value in (held.get("binaryData") or {}).items()}


def _value(
    variable: Json, container: Json, context: PodContext, references: References, given: Mapping[str, str]
) -> str | None:
    origin = variable.get("valueFrom")
    if not origin:
        return expand(variable.get("value", ""), given)
    if "fieldRef" in origin:
        return field_value(origin["fieldRef"]["fieldPath"], context)
    if "resourceFieldRef" in origin:
        return resource_value(origin["resourceFieldRef"], container, context)
    for reference, kind in (("secretKeyRef", "secret"), ("configMapKeyRef", "configmap")):
        if reference in origin:
            wanted = origin[reference]
            held = _object(wanted, kind, references)
            if wanted["key"] in held:
                return held[wanted["key"]].decode(errors="replace")
            if wanted.get("optional"):
                return None
            where = f"{context.pod['metadata']['namespace']}/{wanted['name']}"
            kind_name = "Secret" if kind == "secret" else "ConfigMap"
            raise ContainerConfigError(f"couldn't find key {wanted['key']} in {kind_name} {where}")
    raise ContainerConfigError(
        f"the source of variable {variable['name']} is not supported: {sorted(origin)}"
    )


def _object(reference: Json, kind: str, references: References) -> dict[str, bytes]:
    objects = references.secrets if kind == "secret" else references.config_maps
    held = objects.get(reference["name"])
    if held is not None:
        return keys_of(held, kind)
    if reference.get("optional"):
        return {}
    raise ContainerConfigError(f'{kind} "{reference["name"]}" not found')


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
