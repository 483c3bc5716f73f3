"""The files of Secret, ConfigMap, downward API and projected volumes. Pure: tokens are handed in."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from warmfleet_devcluster.node.errors import VolumeError
from warmfleet_devcluster.node.references.config_objects import ConfigObjects, decoded_data
from warmfleet_devcluster.node.references.downward_api import PodContext, field_value, resource_value
from warmfleet_devcluster.node.volumes.atomic_folder import VolumeFile

Json = dict[str, Any]

_DEFAULT_MODE: Final = 0o644
FILE_SOURCES: Final = ("secret", "configMap", "downwardAPI", "projected")


def referenced_by_volume(volume: Json) -> tuple[set[str], set[str]]:
    """Names of the Secrets and of the ConfigMaps that a volume shows."""
    secrets: set[str] = set()
    config_maps: set[str] = set()
    for source in [volume, *(volume.get("projected") or {}).get("sources", [])]:
        if "secret" in source:
            secrets.add(source["secret"].get("secretName") or source["secret"]["name"])
        if "configMap" in source:
            config_maps.add(source["configMap"]["name"])
    return secrets, config_maps


def volume_files(
    volume: Json, context: PodContext, objects: ConfigObjects, token: Callable[[Json], str]
) -> dict[str, VolumeFile]:
    """Relative path -> file. `token` gives the token for a serviceAccountToken source.

    Raises VolumeError when something is missing that is not optional.
    """
    if "projected" in volume:
        mode = volume["projected"].get("defaultMode", _DEFAULT_MODE)
        files: dict[str, VolumeFile] = {}
        for source in volume["projected"].get("sources", []):
            files |= _source_files(source, mode, context, objects, token)
        return files
    mode = next(
        volume[source].get("defaultMode", _DEFAULT_MODE) for source in FILE_SOURCES if source in volume
    )
    return _source_files(volume, mode, context, objects, token)


def _source_files(
    source: Json, mode: int, context: PodContext, objects: ConfigObjects, token: Callable[[Json], str]
) -> dict[str, VolumeFile]:
    if "secret" in source:
        wanted = source["secret"]
        name = wanted.get("secretName") or wanted["name"]
        return _items(wanted, objects.secrets.get(name), "secret", name, mode)
    if "configMap" in source:
        wanted = source["configMap"]
        return _items(wanted, objects.config_maps.get(wanted["name"]), "configmap", wanted["name"], mode)
    if "downwardAPI" in source:
        return {
            item["path"]: VolumeFile(_downward(item, context).encode(), item.get("mode", mode))
            for item in source["downwardAPI"].get("items", [])
        }
    if "serviceAccountToken" in source:
        wanted = source["serviceAccountToken"]
        return {wanted["path"]: VolumeFile(token(wanted).encode(), mode)}
    raise VolumeError(f"a volume source is not supported by process nodes: {sorted(source)}")


def _items(wanted: Json, found: Json | None, kind: str, name: str, mode: int) -> dict[str, VolumeFile]:
    optional = wanted.get("optional", False)
    if found is None:
        if optional:
            return {}
        raise VolumeError(f'{kind} "{name}" not found')
    contents: Mapping[str, bytes] = decoded_data(found, kind)
    if not wanted.get("items"):
        return {key: VolumeFile(content, mode) for key, content in contents.items()}
    files = {}
    for item in wanted["items"]:
        if item["key"] in contents:
            files[item["path"]] = VolumeFile(contents[item["key"]], item.get("mode", mode))
        elif not optional:
            raise VolumeError(f'{kind} "{name}" has no key {item["key"]}')
    return files


def _downward(item: Json, context: PodContext) -> str:
    if "fieldRef" in item:
        return field_value(item["fieldRef"]["fieldPath"], context)
    reference = item["resourceFieldRef"]
    containers = context.pod["spec"]["containers"]
    owner = next((c for c in containers if c["name"] == reference.get("containerName")), containers[0])
    return resource_value(reference, owner, context)
