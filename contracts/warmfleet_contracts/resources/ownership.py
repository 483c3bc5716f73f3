"""The owner of a model's name that several deployments claim: the one that has claimed it for longest.

Routers route by it, and the operator reports in a condition whether a deployment's names were accepted. Both
see the same resources, so both find the same owner without exchanging messages.

The operator records in the resource's status, where users cannot write, since when each name is claimed. A
deployment that adds a name comes after those that had it: it cannot take over requests, prompts included, of
younger deployments.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

NOT_RECORDED: Final = "~"
"""Sorts behind every time."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One ModelDeployment, and the names that it claims."""

    namespace: str
    name: str
    uid: str
    created: str
    """`metadata.creationTimestamp` as the API server writes it: RFC 3339 in UTC, which sorts as text."""
    served_names: tuple[str, ...]
    """`spec.model.servedNames`, or the deployment's own name where it lists none."""
    since: tuple[str, ...]
    """Since when it claims each of them, from `claimed_since`."""

    @property
    def qualified_name(self) -> str:
        """`namespace/name`: always its own."""
        return f"{self.namespace}/{self.name}"


def claimed_names(listed: Sequence[str] | None, name: str) -> tuple[str, ...]:
    """The names that the deployment `name` claims: those that it lists, or its own where it lists none."""
    return tuple(listed or (name,))


def claimed_since(
    served_names: Sequence[str], recorded: Mapping[str, str], *, created: str, generation: int
) -> tuple[str, ...]:
    """Since when each name is claimed: RFC 3339 in UTC, or `NOT_RECORDED`.

    What is recorded counts. A name that is not recorded yet is as old as a resource whose spec was never
    changed (`metadata.generation` is 1); one that may have been added later is claimed once it is recorded.
    """
    otherwise = created if generation == 1 else NOT_RECORDED
    return tuple(recorded.get(name, otherwise) for name in served_names)


def owners(claims: Iterable[Claim]) -> dict[str, Claim]:
    """The owner of every name: of a served name the longest claim, then the oldest resource, then the uid.

    The qualified name of a deployment belongs to it even if others claim it, so that every deployment can be
    reached, and none can take another's requests by serving under its qualified name.
    """
    by_age = sorted(claims, key=_age)
    owner = {claim.qualified_name: claim for claim in reversed(by_age)}
    wanted = [
        (since, name, claim)
        for claim in by_age
        for name, since in zip(claim.served_names, claim.since, strict=True)
    ]
    for _, name, claim in sorted(wanted, key=lambda item: item[0]):  # among equals, the order of age stays
        owner.setdefault(name, claim)
    return owner


def owned_names(owner: Mapping[str, Claim]) -> dict[str, tuple[str, ...]]:
    """The names of each deployment, sorted, by its uid; `owner` is what `owners` found."""
    names: dict[str, list[str]] = {}
    for name in sorted(owner):
        names.setdefault(owner[name].uid, []).append(name)
    return {uid: tuple(owned) for uid, owned in names.items()}


def _age(claim: Claim) -> tuple[str, str, str, str, tuple[str, ...], tuple[str, ...]]:
    # In a cluster the uid decides; the rest makes the order total for any list.
    return claim.created, claim.uid, claim.namespace, claim.name, claim.served_names, claim.since
