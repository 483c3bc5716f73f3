"""Who owns a model's name when several deployments claim it: the oldest one.

Routers send requests by it, and the operator says of a deployment whether its names were accepted. Both see
the same resources, so both find the same owner without talking to each other.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """One ModelDeployment, and the names that it wants to be called by."""

    namespace: str
    name: str
    uid: str
    created: str
    """`metadata.creationTimestamp` as the API server writes it: RFC 3339 in UTC, which sorts as text."""
    served_names: tuple[str, ...]
    """`spec.model.servedNames`, or the deployment's own name where it lists none."""

    @property
    def qualified_name(self) -> str:
        """`namespace/name`: always its own."""
        return f"{self.namespace}/{self.name}"


def owners(claims: Iterable[Claim]) -> dict[str, Claim]:
    """The owner of every name: of a served name the oldest claim, by creation and then by uid.

    The qualified name of a deployment belongs to it whoever else claims it, so that every deployment can be
    reached, and nobody can take another's requests by serving under its qualified name.
    """
    by_age = sorted(claims, key=_age)
    owner = {claim.qualified_name: claim for claim in reversed(by_age)}
    for claim in by_age:
        for name in claim.served_names:
            owner.setdefault(name, claim)
    return owner


def owned_names(owner: Mapping[str, Claim]) -> dict[str, tuple[str, ...]]:
    """The names of each deployment, sorted, by its uid; `owner` is what `owners` found."""
    names: dict[str, list[str]] = {}
    for name in sorted(owner):
        names.setdefault(owner[name].uid, []).append(name)
    return {uid: tuple(owned) for uid, owned in names.items()}


def _age(claim: Claim) -> tuple[str, str, str, str, tuple[str, ...]]:
    # In a cluster the uid decides; the rest makes the order total for any list.
    return claim.created, claim.uid, claim.namespace, claim.name, claim.served_names
