"""The names by which requests may ask for a deployment."""

from collections.abc import Mapping
from typing import Any

from warmfleet_contracts.resources.ownership import NOT_RECORDED, Claim, claimed_since


def served_names(deployment: Mapping[str, Any]) -> list[str]:
    """Of a ModelDeployment of the API server: what it lists, or its own name where it lists none."""
    listed = ((deployment.get("spec") or {}).get("model") or {}).get("servedNames")
    return list(listed or [deployment["metadata"]["name"]])


def request_names(deployment: Mapping[str, Any]) -> list[str]:
    """By which requests come to it: its served names, and `namespace/name`, which nobody can take."""
    metadata = deployment["metadata"]
    return [*served_names(deployment), f"{metadata['namespace']}/{metadata['name']}"]


def claim_of(deployment: Mapping[str, Any]) -> Claim:
    """The names that it wants, and since when."""
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
    """What its status says of its names: those that it did not have so far are claimed `now`."""
    claim = claim_of(deployment)
    return [
        {"name": name, "since": now if since == NOT_RECORDED else since}
        for name, since in zip(claim.served_names, claim.since, strict=True)
    ]
