"""Errors of a ModelDeployment that is valid by its schema and still has no objects.

WarmfleetError
└── SpecError                a field of a ModelDeployment cannot be acted on; carries the field
    ├── UnsupportedError     no worker can honour it yet
    └── OverlayError         the pod template overlay contradicts what the operator owns
"""

from warmfleet_contracts.errors import WarmfleetError


class SpecError(WarmfleetError):
    """A field of a ModelDeployment cannot be acted on. Its text names the field.

    Args:
        field: path in the manifest, such as `spec.kvCache.dtype`.
        problem: what is wrong with it, and what would be right.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class UnsupportedError(SpecError):
    """No worker can honour the field yet."""


class OverlayError(SpecError):
    """The pod template overlay contradicts what the operator owns, or cannot be merged."""
