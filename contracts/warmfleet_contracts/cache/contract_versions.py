"""Which version of the contract two processes speak: a subscriber states what it accepts, a worker chooses.

A router and a worker of two neighbouring releases serve each other. The reasons: decision 0015.
"""

import re
from collections.abc import Set as AbstractSet
from typing import Final

from warmfleet_contracts.errors import ContractError

CONTRACT_VERSION: Final = 2
"""N, of the messages under `/internal/`. Every change of a frame raises it."""
ACCEPTED_VERSIONS: Final = frozenset({CONTRACT_VERSION - 1, CONTRACT_VERSION})
"""N and N-1, read and written."""
UNSTATED_VERSION: Final = 1
"""What a subscriber speaks that states no version, and what a message without a version is."""
_STATED: Final = re.compile(r"[0-9]{1,4}(,[0-9]{1,4}){0,15}")


def stated_versions(versions: AbstractSet[int]) -> str:
    """The value of `VERSIONS_HEADER` for a process that accepts `versions`."""
    return ",".join(map(str, sorted(versions)))


def common_version(stated: str | None, spoken: AbstractSet[int] = ACCEPTED_VERSIONS) -> int:
    """The highest version of `spoken` that a subscriber accepts; `stated` is its header, None without one.

    Raises:
        ContractError: the header is malformed, or there is no such version.
    """
    if stated is None:
        accepted = {UNSTATED_VERSION}
    elif _STATED.fullmatch(stated):
        accepted = set(map(int, stated.split(",")))
    else:
        raise ContractError(f"expected contract versions such as '1,2', got {stated[:64]!r}")
    common = accepted & spoken
    if not common:
        raise ContractError(
            f"the subscriber accepts contract versions {sorted(accepted)}, the worker speaks {sorted(spoken)}"
        )
    return max(common)
