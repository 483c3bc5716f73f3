"""A container's environment and command line, from its manifest. Pure: what it refers to is handed in."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from warmfleet_devcluster.node.errors import ContainerConfigError
from warmfleet_devcluster.node.references.config_objects import ConfigObjects, decoded_data
from warmfleet_devcluster.node.references.downward_api import PodContext, field_value, resource_value

Json = dict[str, Any]

_REFERENCE: Final = re.compile(r"\$\$|\$\(([^()$]+)\)")


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
    objects: ConfigObjects,
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
                contents = _contents(source[reference], kind, objects)
                given |= {prefix + key: value.decode(errors="replace") for key, value in contents.items()}
    for variable in container.get("env", []):
        value = _value(variable, container, context, objects, given)
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


def _value(
    variable: Json, container: Json, context: PodContext, objects: ConfigObjects, given: Mapping[str, str]
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
            contents = _contents(wanted, kind, objects)
            if wanted["key"] in contents:
                return contents[wanted["key"]].decode(errors="replace")
            if wanted.get("optional"):
                return None
            where = f"{context.pod['metadata']['namespace']}/{wanted['name']}"
            kind_name = "Secret" if kind == "secret" else "ConfigMap"
            raise ContainerConfigError(f"couldn't find key {wanted['key']} in {kind_name} {where}")
    raise ContainerConfigError(
        f"the source of variable {variable['name']} is not supported: {sorted(origin)}"
    )


def _contents(reference: Json, kind: str, objects: ConfigObjects) -> dict[str, bytes]:
    by_name = objects.secrets if kind == "secret" else objects.config_maps
    found = by_name.get(reference["name"])
    if found is not None:
        return decoded_data(found, kind)
    if reference.get("optional"):
        return {}
    raise ContainerConfigError(f'{kind} "{reference["name"]}" not found')
