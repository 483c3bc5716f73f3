"""The restricted pod security standard, as Kubernetes documents it, as a function of a pod spec."""

from collections.abc import Iterator
from typing import Any, Final

VOLUMES: Final = frozenset(
    (
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    )
)
HOST_FIELDS: Final = ("hostNetwork", "hostPID", "hostIPC")
PROFILES: Final = frozenset(("RuntimeDefault", "Localhost"))


def violations(spec: dict[str, Any]) -> Iterator[str]:
    """Violations of the restricted standard in a pod spec; nothing = admitted."""
    for name in HOST_FIELDS:
        if spec.get(name):
            yield f"{name} is set"
    for volume in spec.get("volumes", []):
        kinds = set(volume) - {"name"}
        if not kinds <= VOLUMES:
            yield f"volume {volume['name']}: {sorted(kinds - VOLUMES)}"
    pod = spec.get("securityContext", {})
    if pod.get("runAsUser") == 0:
        yield "the pod runs as user 0"
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        for problem in _of_container(container.get("securityContext", {}), pod):
            yield f"container {container['name']}: {problem}"
        if any("hostPort" in port for port in container.get("ports", [])):
            yield f"container {container['name']}: a host port"


def _of_container(own: dict[str, Any], pod: dict[str, Any]) -> Iterator[str]:
    if own.get("privileged"):
        yield "privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation is not false"
    if own.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True:
        yield "runAsNonRoot is not true"
    if own.get("runAsUser") == 0:
        yield "runs as user 0"
    capabilities = own.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", []):
        yield "does not drop ALL"
    if not set(capabilities.get("add", [])) <= {"NET_BIND_SERVICE"}:
        yield f"adds {capabilities['add']}"
    profile = own.get("seccompProfile", pod.get("seccompProfile", {})).get("type")
    if profile not in PROFILES:
        yield f"seccomp profile {profile}"
