"""What a step computes, as tensors that kernels read."""

from array import array
from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray

from warmfleet_worker.engine.batch import Chunk
from warmfleet_worker.gpu.launches import QueryTiles, StepTables
from warmfleet_worker.gpu.step_shape import StepShape

_NONE = -1
_DECODES_BESIDE_PROMPTS = 16
"""A graph with room for more is not slow with few: what has no token costs little."""


class StepInputs:
    """Tensors with room for a step, in memory that stays in place: a captured graph reads them every time.

    All are parts of one tensor of int32: a step is one copy, from memory of the host.

        inputs = StepInputs(StepShape(rows=8, singles=8, tiles=0, blocks=2560), 32, torch.device("cuda"))
        inputs.write(chunks)  # what is left of the room has no token
    """

    def __init__(self, shape: StepShape, tile_tokens: int, device: torch.device) -> None:
        """`tile_tokens`: most of a tile."""
        rows, singles, tiles = shape.rows, shape.singles, shape.tiles
        sizes = [rows, rows, rows, singles, singles, singles, tiles, tiles, tiles, rows, shape.blocks]
        self.shape = shape
        self._tile_tokens = tile_tokens
        self._host = torch.zeros(sum(sizes), dtype=torch.int32, pin_memory=device.type == "cuda")
        numbers: NDArray[np.int32] = self._host.numpy()
        self._numbers = np.split(numbers, np.cumsum(sizes[:-1]))
        self._device = torch.zeros(sum(sizes), dtype=torch.int32, device=device)
        parts = torch.split(self._device, sizes)
        self.token_ids = parts[0]
        """[rows]: the tokens of all chunks, in order."""
        usual = min(singles, _DECODES_BESIDE_PROMPTS) if tiles else singles
        single = QueryTiles(1, usual, parts[3], parts[4], parts[5], parts[3])
        several = QueryTiles(tile_tokens, -(-rows // tile_tokens), parts[6], parts[7], parts[8], parts[9])
        kinds = tuple(kind for kind in (single, several) if len(kind.first_rows))
        self.tables = StepTables(positions=parts[1], first_block=parts[2], block_ids=parts[10], tiles=kinds)

    def write(self, chunks: Sequence[Chunk]) -> None:
        """Copy a step to the device, without waiting for it.

        The copy before this one must have ended; it has once that step's tokens were read.
        """
        joined, table_begins = _joined(chunk.block_ids for chunk in chunks)
        self._numbers[-1][: len(joined)] = joined
        self._numbers[0][:] = 0
        tokens = list(chain.from_iterable(chunk.token_ids for chunk in chunks))
        self._numbers[0][: len(tokens)] = tokens
        firsts = [chunk.first_position for chunk in chunks]
        if self.shape.tiles:
            self._write_chunks(firsts, [len(chunk.token_ids) for chunk in chunks], table_begins)
        else:
            self._write_decodes(firsts, table_begins)
        end = len(self._host) - self.shape.blocks + len(joined)
        self._device[:end].copy_(self._host[:end], non_blocking=True)

    def _write_decodes(self, firsts: list[int], table_begins: list[int]) -> None:
        """Of chunks of one token each, in less time."""
        _, positions, first_block, *of_singles = self._numbers[:6]
        positions[:] = _NONE
        positions[: len(firsts)], first_block[: len(firsts)] = firsts, table_begins
        singles = np.arange(len(firsts), dtype=np.int32)
        _write_tiles(of_singles, singles, np.ones_like(singles))

    def _write_chunks(self, firsts: list[int], lengths: list[int], table_begins: list[int]) -> None:
        _, positions, first_block, *of_tiles, part_rows, _ = self._numbers
        positions[:], part_rows[:] = _NONE, _NONE
        counts = np.array(lengths, dtype=np.int32)
        begins = _begins(counts)
        rows = int(counts.sum())
        positions[:rows] = np.arange(rows) + np.repeat(np.array(firsts, dtype=np.int32) - begins, counts)
        first_block[:rows] = np.repeat(np.array(table_begins, dtype=np.int32), counts)
        singles = begins[counts == 1]
        _write_tiles(of_tiles[:3], singles, np.ones_like(singles))
        # Those that see most come first: a GPU is done when its last program is.
        several = sorted(
            (
                tile
                for begin, first, count in zip(begins.tolist(), firsts, lengths, strict=True)
                if count > 1
                for tile in _tiles(begin, first, count, self._tile_tokens)
            ),
            reverse=True,
        )
        _, tile_rows, tile_tokens = np.array(several, dtype=np.int32).reshape(-1, 3).T
        _write_tiles(of_tiles[3:], tile_rows, tile_tokens)
        parts = int(tile_tokens.sum())
        part_rows[:parts] = np.arange(parts) + np.repeat(tile_rows - _begins(tile_tokens), tile_tokens)


def _joined(tables: Iterable[Sequence[int]]) -> tuple[NDArray[np.int32], list[int]]:
    """Block tables in one array, and where each begins."""
    joined, begins = array("i"), []
    for table in tables:
        begins.append(len(joined))
        joined.extend(table)  # of another array, as a block table's ids are, memory is copied
    return np.array(joined, dtype=np.int32), begins


def _tiles(row: int, position: int, count: int, tile_tokens: int) -> list[tuple[int, int, int]]:
    """Position, row and tokens of each tile of a chunk."""
    return [
        (position + first, row + first, min(tile_tokens, count - first))
        for first in range(0, count, tile_tokens)
    ]


def _write_tiles(
    arrays: Sequence[NDArray[np.int32]], first_rows: NDArray[np.int32], tokens: NDArray[np.int32]
) -> None:
    rows, counts, parts = arrays
    used = len(first_rows)
    rows[:used], rows[used:] = first_rows, _NONE
    counts[:used], counts[used:] = tokens, 0
    parts[:used] = _begins(tokens)


def _begins(counts: NDArray[np.int32]) -> NDArray[np.int32]:
    """Where each begins that follows those before it."""
    return np.cumsum(counts, dtype=np.int32) - counts
