"""Matrix products by torch, on all cores of this process."""

from typing import Final

import torch

from warmfleet_worker.roofline.measurement import Element

_DTYPES: Final[dict[Element, torch.dtype]] = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class Products:
    """Multiplies square matrices; keeps those of the last size.

    multiply = Products(threads=8)
    multiply("bfloat16", 1024)
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._matrix = torch.ones(0)

    @torch.inference_mode()
    def __call__(self, element: Element, rows: int) -> None:
        own_threads = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        try:
            if self._matrix.shape[0] != rows or self._matrix.dtype != _DTYPES[element]:
                self._matrix = torch.ones(rows, rows, dtype=_DTYPES[element])
            torch.mm(self._matrix, self._matrix)
        finally:
            torch.set_num_threads(own_threads)
