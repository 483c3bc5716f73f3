"""Errors of a fetch.

ModelError
└── FetchError           has the exit code, by which a Job decides whether to retry
    ├── RefusedError     a retry would fail the same way
    └── NoSpaceError     the disk is too small
"""

from typing import ClassVar

from warmfleet_contracts.errors import ModelError
from warmfleet_contracts.resources.fetch_outcome import FetchExitCode


class FetchError(ModelError):
    """The model could not be fetched; a retry may succeed."""

    exit_code: ClassVar[FetchExitCode] = FetchExitCode.FAILED


class RefusedError(FetchError):
    """The model cannot be fetched as requested; the text names what to change."""

    exit_code: ClassVar[FetchExitCode] = FetchExitCode.REFUSED


class NoSpaceError(FetchError):
    """The model does not fit on the disk; the text has the figures."""

    exit_code: ClassVar[FetchExitCode] = FetchExitCode.NO_SPACE
