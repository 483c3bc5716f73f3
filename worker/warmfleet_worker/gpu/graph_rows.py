"""Which graph computes a step. Pure: no torch."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from warmfleet_worker.engine.batch import Chunk

GRAPH_ROWS: Final = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
"""Sequences of each graph; a step takes the smallest that has a row for each of its own."""


def graph_rows(chunks: Sequence[Chunk]) -> int | None:
    """Rows of the graph for a step of one token per sequence; None: some have more, or they are too many."""
    if len(chunks) > GRAPH_ROWS[-1] or any(len(chunk.token_ids) != 1 for chunk in chunks):
        return None
    return GRAPH_ROWS[bisect_left(GRAPH_ROWS, len(chunks))]
