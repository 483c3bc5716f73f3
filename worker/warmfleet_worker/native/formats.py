"""What weights, and keys and values, are made of in the native step; a new one has an entry in each table."""

from enum import IntEnum
from typing import Final

import numpy as np

from warmfleet_worker.model.checkpoint import BFLOAT16
from warmfleet_worker.settings import Dtype


class WeightFormat(IntEnum):
    """Of packed matrices. Values are those of `wf_format` in csrc/warmfleet_step.h."""

    BF16 = 0
    F32 = 1
    INT8 = 2

    @property
    def suffix(self) -> str:
        """What kernels with these weights add to the name of their bits."""
        return " Int8" if self is WeightFormat.INT8 else ""


class KvElement(IntEnum):
    """Of keys and values. Values are those of `wf_element` in csrc/warmfleet_step.h."""

    BF16 = 0
    F32 = 1


FLOAT32: Final = np.dtype(np.float32)

ROUNDED_TO: Final = {WeightFormat.BF16: BFLOAT16, WeightFormat.F32: FLOAT32, WeightFormat.INT8: FLOAT32}
"""Weights, but for matrices that are quantised: those are rounded from what the file holds."""
KV_DTYPES: Final = {KvElement.BF16: BFLOAT16, KvElement.F32: FLOAT32}
DTYPE_NAMES: Final[dict[KvElement, Dtype]] = {KvElement.BF16: "BFloat16", KvElement.F32: "Float32"}
ELEMENTS: Final[dict[str, KvElement]] = {
    "Auto": KvElement.BF16,
    "BFloat16": KvElement.BF16,
    "Float32": KvElement.F32,
}
"""By the dtype in the settings."""
UNQUANTISED: Final = {KvElement.BF16: WeightFormat.BF16, KvElement.F32: WeightFormat.F32}
"""Weights beside keys and values of these."""
