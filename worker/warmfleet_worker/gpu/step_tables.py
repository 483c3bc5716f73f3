"""What kernels of attention read of a step, on a device. All tensors are int32."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class QueryTiles:
    """Tiles of one kind: each has consecutive tokens of one sequence, which a program computes together."""

    most_tokens: int
    """Of any tile; a power of two."""
    usual_tiles: int
    """How many there are as a rule, for there may be room for more. Programs share contexts by it."""
    first_rows: Tensor
    """[tiles]; -1: none."""
    counts: Tensor
    """[tiles] of tokens; 0: none."""
    first_parts: Tensor
    """[tiles]: where results of its first token are kept while they are in parts."""
    part_rows: Tensor
    """[tokens of all tiles]: row of the token whose parts are kept there; -1: none."""


@dataclass(frozen=True, slots=True)
class StepTables:
    """Where the rows of a step stand."""

    positions: Tensor
    """[rows] of the computed tokens; -1: none."""
    first_block: Tensor
    """[rows], into `block_ids`."""
    block_ids: Tensor
    tile_kinds: tuple[QueryTiles, ...]
    """Of one token, and of several; together they have every row."""
