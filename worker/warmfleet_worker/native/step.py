"""One step of the native library, from its chunks to what it computed."""

from array import array
from collections.abc import Sequence
from ctypes import Array
from typing import Final

import numpy as np
from numpy.typing import NDArray

from warmfleet_worker.engine.batch import Chunk, SampleRequest, finite_chunks
from warmfleet_worker.model.computed import Computed
from warmfleet_worker.native.library import Handle, JobStruct, NativeLibrary, SamplingStruct, StepStruct

_TOKEN_BYTES: Final = 4

FloatRows = NDArray[np.float32]


class RowBuffer:
    """Rows of float32 that grow to the largest step and stay: no step faults their pages in again."""

    def __init__(self, columns: int) -> None:
        self._rows: FloatRows = np.empty((0, columns), np.float32)

    def take(self, rows: int) -> FloatRows:
        """The first `rows` rows; what they hold is what an earlier step has left."""
        if rows > self._rows.shape[0]:
            self._rows = np.empty((rows, self._rows.shape[1]), np.float32)
        return self._rows[:rows]


class NativeStep:
    """A step that the library computes from its making on; it keeps what the library reads and writes.

    step = NativeStep(library, stepper, chunks, wanted, hidden)
    computed = step.finish()
    """

    def __init__(
        self,
        library: NativeLibrary,
        stepper: Handle,
        chunks: Sequence[Chunk],
        wanted: Sequence[int],
        hidden: FloatRows,
        *,
        requests: Sequence[SampleRequest] = (),
        logits: FloatRows | None = None,
        trace: FloatRows | None = None,
    ) -> None:
        """Hand it over.

        `hidden` gets the `wanted` rows, `trace` all rows before and after each layer. With `logits`, which
        gets a row for each of `wanted`, a token is chosen for each of them by `requests`.

        Raises:
            NativeStepError: Another step is in flight, or the model is closed.
        """
        self._library = library
        self._stepper = stepper
        self._chunks = chunks
        self._hidden = hidden
        self._logits = logits
        tokens, positions, row_chunks = array("i"), array("i"), array("i")
        block_ids, first_block = array("i"), array("q", [0])
        for index, chunk in enumerate(chunks):
            count = len(chunk.token_ids)
            tokens.fromlist(list(chunk.token_ids))
            positions.extend(range(chunk.first_position, chunk.first_position + count))
            row_chunks.extend([index] * count)
            block_ids.extend(chunk.block_ids)  # one piece of memory, if it is a block table's
            first_block.append(len(block_ids))
        wanted_rows = array("i", wanted)
        self._finite = array("B", bytes(len(tokens)))
        self._token_ids = array("i", bytes(_TOKEN_BYTES * len(requests)))
        self._kept = (tokens, positions, row_chunks, block_ids, first_block, wanted_rows, trace)
        self._job = JobStruct(
            step=StepStruct(
                rows=len(tokens),
                chunks=len(chunks),
                token_ids=tokens.buffer_info()[0],
                positions=positions.buffer_info()[0],
                row_chunks=row_chunks.buffer_info()[0],
                block_ids=block_ids.buffer_info()[0],
                first_block=first_block.buffer_info()[0],
                wanted=len(wanted_rows),
                wanted_rows=wanted_rows.buffer_info()[0],
                hidden=hidden.ctypes.data,
                finite=self._finite.buffer_info()[0],
                trace=None if trace is None else trace.ctypes.data,
            )
        )
        if logits is not None:
            self._job.logits = logits.ctypes.data
            self._job.sampling = sampling_structs(requests)
            self._job.token_ids = self._token_ids.buffer_info()[0]
        library.begin(stepper, self._job)

    def finish(self) -> Computed[FloatRows]:
        """As `ModelStep.finish`.

        Raises:
            NativeStepError: The step is outside the model, and nothing of it was computed; or the model is
                closed.
        """
        self._library.finish(self._stepper)
        return Computed(
            hidden=self._hidden,
            finite=finite_chunks(self._finite, self._chunks),
            logits=self._logits,
            token_ids=chosen(self._token_ids),
            seconds=self._job.seconds,
        )


def sampling_structs(requests: Sequence[SampleRequest]) -> "Array[SamplingStruct]":
    """How the token of each row is chosen, as the library reads it."""
    return (SamplingStruct * len(requests))(*map(_sampling, requests))


def chosen(token_ids: "array[int]") -> list[int | None]:
    """What the library has chosen; None for a row that was not finite."""
    return [None if token_id < 0 else token_id for token_id in token_ids]


def _sampling(request: SampleRequest) -> SamplingStruct:
    parameters = request.parameters
    return SamplingStruct(
        temperature=parameters.temperature,
        top_p=parameters.top_p,
        min_p=parameters.min_p,
        top_k=parameters.top_k,
        seed=parameters.seed,
        output_index=request.output_index,
    )
