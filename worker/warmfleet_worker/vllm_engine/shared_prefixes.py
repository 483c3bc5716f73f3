"""Has a prompt wait for blocks that a live one computes already: vLLM itself would compute them twice."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from warmfleet_contracts.cache.blocks import BlockHash


@dataclass(frozen=True, slots=True, eq=False)
class Prefill:
    """The computation of the blocks that one prompt lacks."""

    blocks: Sequence[BlockHash]
    priority: int


class SharedPrefixes:
    """Which live prompt computes which block, first come first. Bounded by the live prompts.

    shared = prefixes.computing(missing, priority)
    prefill = prefixes.begin(missing, priority)
    await prefixes.wait_for(missing[shared - 1])  # where `shared` is not 0
    ...
    prefixes.end(prefill)

    A prompt waits for prompts that came before it alone: none waits in a circle.
    """

    def __init__(self) -> None:
        self._by_block: dict[BlockHash, Prefill] = {}
        self._awaited: dict[BlockHash, asyncio.Event] = {}

    def computing(self, blocks: Sequence[BlockHash], priority: int) -> int:
        """How many of the first `blocks` are being computed, by prompts that are not scheduled later."""
        for number, block in enumerate(blocks):
            prefill = self._by_block.get(block)
            if prefill is None or prefill.priority > priority:
                return number
        return len(blocks)

    def begin(self, blocks: Sequence[BlockHash], priority: int) -> Prefill:
        """A prompt that lacks `blocks` has arrived."""
        prefill = Prefill(blocks, priority)
        for block in blocks:
            self._by_block.setdefault(block, prefill)
        return prefill

    async def wait_for(self, block: BlockHash) -> None:
        """Until it is computed, or will not be."""
        if block in self._by_block:
            await self._awaited.setdefault(block, asyncio.Event()).wait()

    def settle(self, is_resident: Callable[[BlockHash], bool]) -> None:
        """Blocks have been stored: wake those that wait for one of them."""
        for block in [block for block in self._awaited if is_resident(block)]:
            self._awaited.pop(block).set()

    def end(self, prefill: Prefill) -> None:
        """Its blocks are computed, or will not be; a second call does nothing."""
        for block in prefill.blocks:
            if self._by_block.get(block) is prefill:
                del self._by_block[block]
                if block in self._awaited:
                    self._awaited.pop(block).set()
