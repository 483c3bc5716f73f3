"""What weights, and keys and values, are made of in the native step."""

from enum import IntEnum


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
