"""What can go wrong between the operator and the API server, as a small tree.

WarmfleetError
└── OperatorError
    ├── KeysMissingError        the Secret that everybody's keys derive from is not there
    └── ClusterError
        ├── NotLeadingError     another replica may be leading: nothing was sent
        ├── ConflictError       409: the object is not what it was, or is there already
        ├── GoneError           404, 410: the object is not there
        ├── ThrottledError      429: says when to come back
        ├── RefusedError        400, 403, 405, 413, 422: will be refused again until somebody acts
        └── UnreachableError    no answer, or one that says nothing of the request (5xx, 401)
"""

from warmfleet_contracts.errors import WarmfleetError


class OperatorError(WarmfleetError):
    """Base of what the operator raises on purpose."""


class KeysMissingError(OperatorError):
    """The root keys are somebody else's to provide and are not there; the text names the Secret."""


class ClusterError(OperatorError):
    """A request to the API server did not do what it was for."""


class NotLeadingError(ClusterError):
    """The lead may be another's; nothing was sent."""


class ConflictError(ClusterError):
    """Somebody else was first."""


class GoneError(ClusterError):
    """The object is not there."""


class ThrottledError(ClusterError):
    """The API server asks for a pause."""

    def __init__(self, message: str, retry_after_seconds: float) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class RefusedError(ClusterError):
    """The API server will not have it; its own words are the text."""


class UnreachableError(ClusterError):
    """Nobody knows whether the request was carried out."""
