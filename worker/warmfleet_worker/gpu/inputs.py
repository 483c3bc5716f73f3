"""What changes from one step of decodes to the next, in memory that a captured graph reads every time."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from warmfleet_worker.engine.batch import Chunk
from warmfleet_worker.gpu.launches import DecodeTables

_NO_SEQUENCE = -1


class DecodeInputs:
    """Tokens, positions and block tables of up to `most_sequences` sequences, on a device.

    All are parts of one tensor of int32: a step is one copy, from memory of the host that stays in place.

        inputs = DecodeInputs(128, most_blocks=2560, device=torch.device("cuda"))
        inputs.write(chunks, rows=8)  # rows without a chunk are no sequence
        inputs.token_ids(8), inputs.tables(8)
    """

    def __init__(self, most_sequences: int, most_blocks: int, device: torch.device) -> None:
        """`most_blocks` of one sequence."""
        self._most = most_sequences
        self._table_begin = 3 * most_sequences
        size = self._table_begin + most_sequences * most_blocks
        self._host = torch.zeros(size, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._numbers = self._host.numpy()
        self._device = torch.zeros(size, dtype=torch.int32, device=device)

    def write(self, chunks: Sequence[Chunk], rows: int) -> None:
        """Copy a step's chunks, of one token each, to the device, without waiting for it.

        The copy before this one must have ended; it has once that step's tokens were read.
        """
        most, begin, end = self._most, self._table_begin, self._table_begin
        numbers = self._numbers
        numbers[:rows] = 0
        numbers[most : most + rows] = _NO_SEQUENCE
        for row, chunk in enumerate(chunks):
            numbers[row] = chunk.token_ids[0]
            numbers[most + row] = chunk.first_position
            numbers[2 * most + row] = end - begin
            ids = np.asarray(chunk.block_ids, dtype=np.int32)  # a block table's is not copied
            numbers[end : end + len(ids)] = ids
            end += len(ids)
        self._device[:end].copy_(self._host[:end], non_blocking=True)

    def token_ids(self, rows: int) -> Tensor:
        """[rows]."""
        return self._device[:rows]

    def tables(self, rows: int) -> DecodeTables:
        """Of the first rows."""
        most = self._most
        return DecodeTables(
            positions=self._device[most : most + rows],
            first_block=self._device[2 * most : 2 * most + rows],
            block_ids=self._device[self._table_begin :],
        )
