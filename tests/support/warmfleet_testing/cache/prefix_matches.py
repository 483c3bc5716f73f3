"""What a prefix index answers for several workers at once, and what it should answer for one."""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from warmfleet_contracts.cache.blocks import BlockHash
from warmfleet_router.workers.prefix_index import PrefixIndex


def matches(index: PrefixIndex, hashes: Sequence[BlockHash], uids: Iterable[str]) -> dict[str, int]:
    """Blocks of the prompt `hashes` by worker; a worker of which nothing is known has no entry."""
    found = {uid: index.matched_blocks(uid, hashes) for uid in uids}
    return {uid: blocks for uid, blocks in found.items() if blocks is not None}


def longest_run(prompt: Sequence[BlockHash], held: AbstractSet[BlockHash]) -> int:
    """Oracle of one match: the definition, spelled out."""
    run = 0
    while run < len(prompt) and prompt[run] in held:
        run += 1
    return run
