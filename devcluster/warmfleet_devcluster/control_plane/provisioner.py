"""Volumes for claims of the storage class `standard`: a folder each, which every node sees."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import structlog

from warmfleet_runtime.kubernetes.client import KubernetesClient
from warmfleet_runtime.kubernetes.errors import ApiServerError

PROVISIONER: Final = "warmfleet.dev/folders"
STORAGE_CLASS: Final = "standard"
_PROVISIONED_BY: Final = "pv.kubernetes.io/provisioned-by"
_SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
_CONFLICT: Final = 409
_NOT_FOUND: Final = 404

Json = dict[str, Any]

STORAGE_CLASS_OBJECT: Final[Json] = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {
        "name": STORAGE_CLASS,
        "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
    },
    "provisioner": PROVISIONER,
    "reclaimPolicy": "Delete",
    "volumeBindingMode": "WaitForFirstConsumer",
}

log = structlog.get_logger()


def wanted_volumes(claims: Iterable[Json], volumes: Iterable[Json], folder: Path) -> list[Json]:
    """PersistentVolumes to make: for claims whose pod has a node, and that have no volume yet."""
    existing = {volume["metadata"]["name"] for volume in volumes}
    return [
        _volume(claim, folder)
        for claim in claims
        if claim["spec"].get("storageClassName") == STORAGE_CLASS
        and not claim["spec"].get("volumeName")
        and "deletionTimestamp" not in claim["metadata"]
        and _SELECTED_NODE in claim["metadata"].get("annotations", {})
        and _volume_name(claim) not in existing
    ]


def released_volumes(volumes: Iterable[Json]) -> list[str]:
    """Names of our volumes whose claim is gone."""
    return [
        volume["metadata"]["name"]
        for volume in volumes
        if volume["metadata"].get("annotations", {}).get(_PROVISIONED_BY) == PROVISIONER
        and volume.get("status", {}).get("phase") == "Released"
        and volume["spec"].get("persistentVolumeReclaimPolicy") == "Delete"
        and "deletionTimestamp" not in volume["metadata"]
    ]


def _volume_name(claim: Json) -> str:
    return f"pvc-{claim['metadata']['uid']}"


def _volume(claim: Json, folder: Path) -> Json:
    metadata = claim["metadata"]
    name = _volume_name(claim)
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "annotations": {_PROVISIONED_BY: PROVISIONER}},
        "spec": {
            "capacity": {"storage": claim["spec"]["resources"]["requests"]["storage"]},
            "accessModes": claim["spec"]["accessModes"],
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": STORAGE_CLASS,
            "volumeMode": "Filesystem",
            "hostPath": {"path": str(folder / name), "type": "Directory"},
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
        },
    }


async def provision(
    client: KubernetesClient, claims: Iterable[Json], volumes: list[Json], folder: Path
) -> None:
    """Make what is wanted and delete what was released. Doing it twice does no harm."""
    for volume in wanted_volumes(claims, volumes, folder):
        path = Path(volume["spec"]["hostPath"]["path"])
        _make_folder(path)
        try:
            await client.post("/api/v1/persistentvolumes", volume)
            log.info("volume made", volume=path.name)
        except ApiServerError as error:
            if error.status != _CONFLICT:
                raise
    for name in released_volumes(volumes):
        shutil.rmtree(folder / name, ignore_errors=True)
        try:
            await client.delete(f"/api/v1/persistentvolumes/{name}")
            log.info("volume deleted", volume=name)
        except ApiServerError as error:
            if error.status != _NOT_FOUND:
                raise


def _make_folder(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    # A pod runs as any user, and may write into a fresh volume anywhere.
    path.chmod(0o777)
