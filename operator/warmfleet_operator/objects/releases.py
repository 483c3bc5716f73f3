"""Which release owns a ModelDeployment: of two that watch one namespace, only one may write its objects."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from warmfleet_contracts.names import RELEASE_LABEL, RELEASE_NAMESPACE_LABEL
from warmfleet_operator.objects.kinds import CHILDREN, kind_of
from warmfleet_operator.settings import Release


@dataclass(frozen=True, slots=True)
class Owner:
    """The release that owns a ModelDeployment, and the object that shows it."""

    release: Release
    shown_by: str
    """Kind and name."""


def release_labels(release: Release) -> dict[str, str]:
    """The labels of every child."""
    return {RELEASE_LABEL: release.name, RELEASE_NAMESPACE_LABEL: release.namespace}


def release_of(manifest: Mapping[str, Any]) -> Release | None:
    """The release that wrote an object; None for one from before releases were recorded."""
    labels = manifest["metadata"].get("labels") or {}
    if RELEASE_LABEL not in labels or RELEASE_NAMESPACE_LABEL not in labels:
        return None
    return Release(labels[RELEASE_NAMESPACE_LABEL], labels[RELEASE_LABEL])


def owner_of(deployment: Mapping[str, Any], children: Iterable[Mapping[str, Any]]) -> Owner | None:
    """The owner of a ModelDeployment; None if no release has written any part of it.

    The child that is applied last decides: two operators that start at once, and have made some each, come to
    the same answer. Without children the status does.
    """
    written = [(child, release) for child in children if (release := release_of(child)) is not None]
    if written:
        last, release = max(written, key=lambda item: CHILDREN.index(kind_of(item[0])))
        return Owner(release, f"{last['kind']} {last['metadata']['name']}")
    namespace, _, name = str((deployment.get("status") or {}).get("release") or "").partition("/")
    return (
        Owner(Release(namespace, name), f"ModelDeployment {deployment['metadata']['name']}") if name else None
    )


def conflict_message(owner: Owner, release: Release) -> str:
    """Names the object, its release, and the one that leaves it alone; begins with the latter."""
    return (
        f"{conflict_prefix(release)}: {owner.shown_by} belongs to release {owner.release}. One release may "
        "serve a ModelDeployment: take its namespace from one of them, or let the other adopt its objects "
        "(operator.adoptReleases)"
    )


def conflict_prefix(release: Release) -> str:
    """How messages of `release` begin: each release ends its own reports only."""
    return f"Release {release} does not write it"
