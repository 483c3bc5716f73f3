"""What a step computes, as tensors that kernels read."""

from array import array
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from warmfleet_worker.engine.batch import Chunk
from warmfleet_worker.gpu.step_shape import StepShape
from warmfleet_worker.gpu.step_tables import QueryTiles, StepTables

_NONE: Final = -1
_DECODES_BESIDE_PROMPTS: Final = 16
"""Usual ones: with fewer, contexts could be split among more programs; with more, among fewer."""

T = TypeVar("T")


class _Fields(NamedTuple, Generic[T]):
    """What a step has, in the order in which it lies in memory; the block tables come last."""

    tokens: T
    positions: T
    first_block: T
    single_rows: T
    single_counts: T
    single_parts: T
    tile_rows: T
    tile_counts: T
    tile_parts: T
    part_rows: T
    block_ids: T


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
        self._numbers = _Fields(*np.split(numbers, np.cumsum(sizes[:-1])))
        self._device = torch.zeros(sum(sizes), dtype=torch.int32, device=device)
        self._copied = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        fields = _Fields(*torch.split(self._device, sizes))
        self.token_ids = fields.tokens
        """[rows]: the tokens of all chunks, in order."""
        single = QueryTiles(
            most_tokens=1,
            usual_tiles=min(singles, _DECODES_BESIDE_PROMPTS) if tiles else singles,
            first_rows=fields.single_rows,
            counts=fields.single_counts,
            first_parts=fields.single_parts,
            part_rows=fields.single_rows,
        )
        several = QueryTiles(
            most_tokens=tile_tokens,
            usual_tiles=-(-rows // tile_tokens),
            first_rows=fields.tile_rows,
            counts=fields.tile_counts,
            first_parts=fields.tile_parts,
            part_rows=fields.part_rows,
        )
        kinds = tuple(kind for kind in (single, several) if len(kind.first_rows))
        self.tables = StepTables(fields.positions, fields.first_block, fields.block_ids, kinds)

    def write(self, chunks: Sequence[Chunk]) -> None:
        """Copy a step to the device, without waiting for its end; but waits for that of the copy before."""
        if self._copied is not None:
            self._copied.synchronize()
        joined, table_begins = _joined(chunk.block_ids for chunk in chunks)
        self._numbers.block_ids[: len(joined)] = joined
        tokens = list(chain.from_iterable(chunk.token_ids for chunk in chunks))
        self._numbers.tokens[: len(tokens)] = tokens
        self._numbers.tokens[len(tokens) :] = 0  # any token that there is
        firsts = [chunk.first_position for chunk in chunks]
        if self.shape.tiles:
            self._write_chunks(firsts, [len(chunk.token_ids) for chunk in chunks], table_begins)
        else:
            self._write_decodes(firsts, table_begins)
        end = len(self._host) - self.shape.blocks + len(joined)
        self._device[:end].copy_(self._host[:end], non_blocking=True)
        if self._copied is not None:
            self._copied.record()

    def _write_decodes(self, firsts: list[int], table_begins: list[int]) -> None:
        """Of chunks of one token each, in less time."""
        to = self._numbers
        to.positions[:] = _NONE
        to.positions[: len(firsts)], to.first_block[: len(firsts)] = firsts, table_begins
        singles = np.arange(len(firsts), dtype=np.int32)
        _write_tiles(to.single_rows, to.single_counts, to.single_parts, singles, np.ones_like(singles))

    def _write_chunks(self, firsts: list[int], lengths: list[int], table_begins: list[int]) -> None:
        to = self._numbers
        to.positions[:], to.part_rows[:] = _NONE, _NONE
        counts = np.array(lengths, dtype=np.int32)
        begins = _begins(counts)
        rows = int(counts.sum())
        to.positions[:rows] = np.arange(rows) + np.repeat(np.array(firsts, dtype=np.int32) - begins, counts)
        to.first_block[:rows] = np.repeat(np.array(table_begins, dtype=np.int32), counts)
        singles = begins[counts == 1]
        _write_tiles(to.single_rows, to.single_counts, to.single_parts, singles, np.ones_like(singles))
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
        _, tile_rows, tile_counts = np.array(several, dtype=np.int32).reshape(-1, 3).T
        _write_tiles(to.tile_rows, to.tile_counts, to.tile_parts, tile_rows, tile_counts)
        parts = int(tile_counts.sum())
        to.part_rows[:parts] = np.arange(parts) + np.repeat(tile_rows - _begins(tile_counts), tile_counts)


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
    to_rows: NDArray[np.int32],
    to_counts: NDArray[np.int32],
    to_parts: NDArray[np.int32],
    first_rows: NDArray[np.int32],
    counts: NDArray[np.int32],
) -> None:
    used = len(first_rows)
    to_rows[:used], to_rows[used:] = first_rows, _NONE
    to_counts[:used], to_counts[used:] = counts, 0
    to_parts[:used] = _begins(counts)


def _begins(counts: NDArray[np.int32]) -> NDArray[np.int32]:
    """The sum of those before each."""
    return np.cumsum(counts, dtype=np.int32) - counts
