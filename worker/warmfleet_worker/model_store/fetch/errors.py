"""Why a fetch ended without a model.

ModelError
└── FetchError           carries the exit code, by which a Job knows whether another try makes sense
    ├── RefusedError     another try would end the same way
    └── NoSpaceError     the disk is too small
"""

from typing import ClassVar

from warmfleet_contracts.errors import ModelError
from warmfleet_contracts.resources.model_fetch import FetchExitCode


class FetchError(ModelError):
    """The model could not be fetched; another try may succeed."""

    exit_code: ClassVar[FetchExitCode] = FetchExitCode.FAILED


class RefusedError(FetchError):
    """The model cannot be had as asked; the text says what to change."""

    exit_code: ClassVar[FetchExitCode] = FetchExitCode.REFUSED


class NoSpaceError(FetchError):
    """The model does not fit on the disk; the text has the figures."""

    exit_code: ClassVar[FetchExitCode] = FetchExitCode.NO_SPACE
