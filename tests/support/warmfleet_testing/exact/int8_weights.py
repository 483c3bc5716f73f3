"""What weights of eight bits stand for."""

import numpy as np
from numpy.typing import NDArray

from warmfleet_worker.model.int8 import BLOCK_INPUTS, Int8Matrix


def dequantised(matrix: Int8Matrix) -> NDArray[np.float32]:
    """The weights in float32, exactly."""
    inputs = matrix.values.shape[1]
    scales = matrix.scales.astype(np.float32).repeat(BLOCK_INPUTS, axis=1)[:, :inputs]
    return matrix.values.astype(np.float32) * scales
