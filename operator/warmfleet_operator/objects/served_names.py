"""Names of a deployment, read from its object in the API server."""

from collections.abc import Mapping
from typing import Any

from warmfleet_contracts.resources.ownership import NOT_RECORDED, Claim, claimed_names, claimed_since


def served_names(deployment: Mapping[str, Any]) -> list[str]:
    """The names that it claims, as `status.servedNames` lists them."""
    listed = ((deployment.get("spec") or {}).get("model") or {}).get("servedNames")
    return list(claimed_names(listed, deployment["metadata"]["name"]))


def request_names(deployment: Mapping[str, Any]) -> list[str]:
    """Values of `model` that reach it: its served names, and `namespace/name`, which is always its own."""
    metadata = deployment["metadata"]
    return [*served_names(deployment), f"{metadata['namespace']}/{metadata['name']}"]


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
