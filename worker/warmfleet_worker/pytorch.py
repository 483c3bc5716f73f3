"""Whether PyTorch is installed: an image for CPUs is without it, for the native step computes there."""

from importlib.util import find_spec

from warmfleet_contracts.errors import WarmfleetError


class TorchNotInstalled(WarmfleetError):  # noqa: N818 - named after what is wrong
    """PyTorch would have to compute, and is not installed; the text has the reason and what to do."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"{reason}, so PyTorch would have to compute, and it is not installed here; "
            "use settings, a model and a node with which the native step computes, "
            "or a worker image with PyTorch: worker-cpu built with the build argument TORCH_CPU_WHEEL=pinned"
        )


def is_torch_installed() -> bool:
    """Found without an import, which takes seconds."""
    return find_spec("torch") is not None
