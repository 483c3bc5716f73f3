"""The operator's errors.

WarmfleetError
└── OperatorError
    ├── KeysMissingError        the Secret of the root keys is missing or incomplete
    └── ClusterError
        ├── NotLeadingError     another replica may be leading; nothing was sent
        ├── ConflictError       409: the object has changed, or exists already
        ├── GoneError           404, 410: the object does not exist
        ├── ThrottledError      429: carries when to try again
        ├── RefusedError        400, 403, 405, 413, 422: the same request will be refused again
        └── UnreachableError    no answer, or one after which the result is unknown (5xx, 401)
"""

from warmfleet_contracts.errors import WarmfleetError


class OperatorError(WarmfleetError):
    """Base of the operator's errors."""


class KeysMissingError(OperatorError):
    """The Secret of the root keys, which the text names, is missing or incomplete and must not be created."""


class ClusterError(OperatorError):
    """A request to the API server failed."""


class NotLeadingError(ClusterError):
    """Another replica may be leading; nothing was sent."""


class ConflictError(ClusterError):
    """The object was changed or created by another writer."""


class GoneError(ClusterError):
    """The object does not exist."""


class ThrottledError(ClusterError):
    """The API server asks for a pause of `retry_after_seconds`."""

    def __init__(self, message: str, retry_after_seconds: float) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class RefusedError(ClusterError):
    """The API server refuses the request; the text is its message."""


class UnreachableError(ClusterError):
    """It is unknown whether the request was carried out."""
