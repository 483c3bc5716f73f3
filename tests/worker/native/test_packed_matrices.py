"""Each weight of a packed bfloat16 or float32 matrix is where products read it; all other bytes are zero."""

import numpy as np
import pytest

from warmfleet_worker.native.formats import WeightFormat
from warmfleet_worker.native.layer_tensors import MatrixShape
from warmfleet_worker.native.library import native_library
from warmfleet_worker.native.weights import Region

LANES = 16
"""Outputs of a panel."""
UNSIGNED = {WeightFormat.BF16: np.uint16, WeightFormat.F32: np.uint32}
"""Integers of the weights' size: packing moves bytes."""
TOGETHER = {WeightFormat.BF16: 2, WeightFormat.F32: 1}
"""Inputs of one output that stand side by side."""


def panels(rows, together):
    """[outputs, inputs] as [panel, group of inputs, lane, input of the group]."""
    outputs, inputs = rows.shape
    padded = np.pad(rows, ((0, -outputs % LANES), (0, inputs % 2)))
    return padded.reshape(-1, LANES, padded.shape[1] // together, together).transpose(0, 2, 1, 3)


@pytest.mark.parametrize("weights", UNSIGNED)
@pytest.mark.parametrize("interleaved", [False, True], ids=["plain", "interleaved"])
@pytest.mark.parametrize("inputs", [1, 2, 5, 64, 97])
@pytest.mark.parametrize("outputs", [2, 16, 34, 70])
def test_a_packed_matrix_holds_each_weight_at_its_place(weights, interleaved, inputs, outputs):
    library = native_library()
    shape = MatrixShape(outputs, inputs, interleaved)
    generator = np.random.default_rng(outputs * 1000 + inputs)
    rows = generator.integers(1, np.iinfo(UNSIGNED[weights]).max, (outputs, inputs), UNSIGNED[weights])
    size_bytes = library.packed_bytes(weights, shape)
    region = Region(library, size_bytes)
    half = outputs // 2
    for first, count in ((half, outputs - half), (0, half)):
        library.pack(weights, rows[first:].ctypes.data, 0, first, count, shape, region.address)
    packed = region.view(region.address, size_bytes, UNSIGNED[weights]).copy()
    region.free()

    expected = panels(rows, TOGETHER[weights])
    if interleaved:
        expected = np.stack([panels(part, TOGETHER[weights]) for part in (rows[:half], rows[half:])], axis=1)
    assert packed.tobytes() == expected.tobytes()
