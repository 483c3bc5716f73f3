"""The user of a container: uid, gid, groups, capabilities. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from warmfleet_devcluster.node.errors import ContainerConfigError

Json = dict[str, Any]

CAPABILITIES: Final = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
    "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
    "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
    "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
    "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF",
    "CHECKPOINT_RESTORE",
)  # fmt: skip
"""In the order of the kernel's numbers (linux/capability.h)."""
DEFAULT_CAPABILITIES: Final = frozenset(
    {
        "CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID", "SETFCAP",
        "SETPCAP", "NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE",
    }
)  # fmt: skip
"""The default set of container runtimes."""


@dataclass(frozen=True, slots=True)
class Identity:
    uid: int
    gid: int
    groups: tuple[int, ...]
    capabilities: tuple[int, ...]
    no_new_privileges: bool
    read_only_root: bool


def identity(pod_context: Json, container_context: Json, image_user: str) -> Identity:
    """A container's user as the kubelet chooses it: container over pod over image.

    Raises ContainerConfigError when runAsNonRoot is set and the user is root or only a name.
    """
    both = {**pod_context, **container_context}
    user_text, _, group_text = image_user.partition(":")
    named = not user_text.isdigit()
    uid = both.get("runAsUser")
    if uid is None and both.get("runAsNonRoot"):
        if named:
            raise ContainerConfigError(
                f"container has runAsNonRoot and image has non-numeric user ({user_text}), "
                "cannot verify user is non-root"
            )
        if int(user_text) == 0:
            raise ContainerConfigError("container has runAsNonRoot and image will run as root")
    if uid == 0 and both.get("runAsNonRoot"):
        raise ContainerConfigError("container's runAsUser breaks non-root policy")
    if uid is None:
        if named and user_text not in ("root", ""):
            raise ContainerConfigError(f"unable to find user {user_text} in the image")
        uid = 0 if named else int(user_text)
    gid = both.get("runAsGroup")
    if gid is None:
        gid = int(group_text) if group_text.isdigit() else 0
    groups = {*pod_context.get("supplementalGroups", ())}
    if pod_context.get("fsGroup") is not None:
        groups.add(pod_context["fsGroup"])
    privileged = bool(container_context.get("privileged"))
    return Identity(
        uid=uid,
        gid=gid,
        groups=tuple(sorted(groups)),
        capabilities=_capabilities(container_context.get("capabilities") or {}, privileged=privileged),
        no_new_privileges=container_context.get("allowPrivilegeEscalation") is False,
        read_only_root=bool(container_context.get("readOnlyRootFilesystem")),
    )


def _capabilities(changes: Json, *, privileged: bool) -> tuple[int, ...]:
    if privileged:
        return tuple(range(len(CAPABILITIES)))
    add, drop = _names(changes.get("add") or ()), _names(changes.get("drop") or ())
    kept = set() if "ALL" in drop else set(DEFAULT_CAPABILITIES) - drop
    kept |= set(CAPABILITIES) if "ALL" in add else add
    return tuple(number for number, name in enumerate(CAPABILITIES) if name in kept)


def _names(capabilities: Sequence[str]) -> set[str]:
    return {name.upper().removeprefix("CAP_") for name in capabilities}
