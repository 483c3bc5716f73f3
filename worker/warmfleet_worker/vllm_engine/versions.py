"""The versions of vLLM that this release is tested with."""

from typing import Final

from warmfleet_contracts.errors import WarmfleetError

OLDEST_VERSION: Final = (0, 32)
NEWEST_VERSION: Final = (0, 32)
"""Major and minor, both ends included: `make check-vllm` passes with them."""


class VllmVersionError(WarmfleetError):
    """The installed vLLM is not one that this release works with."""


def accepted_versions() -> str:
    """The oldest and the newest, in words."""
    oldest, newest = (".".join(map(str, bound)) for bound in (OLDEST_VERSION, NEWEST_VERSION))
    return oldest if oldest == newest else f"{oldest} to {newest}"


def check_version(version: str) -> None:
    """Raise unless `version` of vLLM is between the oldest and the newest that are tested.

    Raises:
        VllmVersionError: it is not; the text names those that are.
    """
    try:
        found = tuple(int(part) for part in version.split(".")[:2])
    except ValueError:
        found = ()
    if not OLDEST_VERSION <= found <= NEWEST_VERSION:
        raise VllmVersionError(
            f"vLLM {version} is installed, warmfleet works with {accepted_versions()}: "
            "run `make vllm`, or install such a version"
        )
