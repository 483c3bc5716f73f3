"""Names of a deployment, read from its object in the API server."""

from collections.abc import Mapping
from typing import Any

from warmfleet_contracts.resources.ownership import NOT_RECORDED, Claim, claimed_names, claimed_since


def served_names(deployment: Mapping[str, Any]) -> list[str]:
    """The names that it claims, as `status.servedNames` lists them."""
    listed = ((deployment.get("spec") or {}).get("model") or {}).get("servedNames")
    return list(claimed_names(listed, deployment["metadata"]["name"]))


def request_names(deployment: Mapping[str, Any], owner: Mapping[str, Claim]) -> list[str]:
    """Values of `model` that reach it: the served names that it owns, and `namespace/name`.

    `owner` is what `owners` found: what is asked by another's name is that one's alone to know.
    """
    metadata = deployment["metadata"]
    names = [*served_names(deployment), f"{metadata['namespace']}/{metadata['name']}"]
    return [name for name in names if name in owner and owner[name].uid == metadata["uid"]]


def name_of_another(deployment: Mapping[str, Any], owner: Mapping[str, Claim]) -> tuple[Claim | None, str]:
    """Another deployment that owns one of its served names, and that name; `owner` as above."""
    for served in served_names(deployment):
        holder = owner.get(served)
        if holder is not None and holder.uid != deployment["metadata"]["uid"]:
            return holder, served
    return None, ""


def claim_of(deployment: Mapping[str, Any]) -> Claim:
    """The names that it claims, and since when."""
    metadata, names = deployment["metadata"], served_names(deployment)
    recorded = (deployment.get("status") or {}).get("nameClaims") or ()
    created = metadata["creationTimestamp"]
    since = claimed_since(
        names,
        {claim["name"]: claim["since"] for claim in recorded},
        created=created,
        generation=int(metadata["generation"]),
    )
    return Claim(metadata["namespace"], metadata["name"], metadata["uid"], created, tuple(names), since)


def name_claims(deployment: Mapping[str, Any], now: str) -> list[dict[str, str]]:
    """`status.nameClaims`: a name that is not recorded yet is claimed from `now` on."""
    claim = claim_of(deployment)
    return [
        {"name": name, "since": now if since == NOT_RECORDED else since}
        for name, since in zip(claim.served_names, claim.since, strict=True)
    ]
