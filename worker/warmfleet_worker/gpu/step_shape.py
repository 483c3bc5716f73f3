"""How large a step is for kernels, and which captured graph has room for it. Pure: no torch."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from warmfleet_worker.engine.batch import Chunk

_DECODE_ROWS: Final = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
_PROMPT_ROWS: Final = (16, 32, 64, 96, *range(128, 513, 64), *range(640, 1025, 128))
"""Above, a step takes a GPU longer than a processor needs to launch it."""
_PROMPTS: Final = 64
"""A graph has room for so many that do not fill their last tile."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """How large a step is, or how much a graph has room for."""

    rows: int
    """Tokens."""
    singles: int
    """Chunks of one token."""
    tiles: int
    """Of the other chunks, each cut into tiles of so many tokens as attention computes at once."""
    blocks: int
    """Entries of the block tables of all chunks."""

    def has_room_for(self, step: "StepShape") -> bool:
        """Whether a graph of this shape computes that step."""
        return (
            step.rows <= self.rows
            and step.singles <= self.singles
            and step.tiles <= self.tiles
            and step.blocks <= self.blocks
        )


def step_shape(chunks: Iterable[Chunk], tile_tokens: int) -> StepShape:
    """How large a step of these chunks is."""
    rows = singles = tiles = blocks = 0
    for chunk in chunks:
        count = len(chunk.token_ids)
        rows += count
        blocks += len(chunk.block_ids)
        if count == 1:
            singles += 1
        else:
            tiles += -(-count // tile_tokens)
    return StepShape(rows, singles, tiles, blocks)


def graph_shapes(tile_tokens: int, most_blocks: int) -> list[StepShape]:
    """The graphs that are captured: for decodes alone, then for prompts beside decodes, the smallest first.

    `most_blocks` of one sequence.
    """
    decodes = [StepShape(rows, rows, 0, rows * most_blocks) for rows in _DECODE_ROWS]
    prompts = []
    for rows in _PROMPT_ROWS:
        singles, cut = min(rows, _DECODE_ROWS[-1]), min(rows // 2, _PROMPTS)
        tiles = rows // tile_tokens + cut
        prompts.append(StepShape(rows, singles, tiles, (singles + cut) * most_blocks))
    return [*decodes, *prompts]


def smallest_with_room(step: StepShape, graphs: Sequence[StepShape]) -> StepShape | None:
    """The first of graphs in the order of `graph_shapes`; None: no graph has room."""
    return next((graph for graph in graphs if graph.has_room_for(step)), None)
