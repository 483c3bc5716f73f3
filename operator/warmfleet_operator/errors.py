"""What can go wrong between the operator and the API server, as a small tree.

WarmfleetError
└── OperatorError
    ├── KeysMissing         the Secret that everybody's keys derive from is not there
    └── ClusterError
        ├── NotLeading      another replica may be leading: nothing was sent
        ├── Conflict        409: the object is not what it was, or is there already
        ├── Gone            404, 410: the object is not there
        ├── Throttled       429: says when to come back
        ├── Refused         400, 403, 405, 413, 422: will be refused again until somebody acts
        └── Unreachable     no answer, or an answer that is not the API server's fault to keep (5xx, 401)
"""

from warmfleet_contracts.errors import WarmfleetError


class OperatorError(WarmfleetError):
    """Base of what the operator raises on purpose."""


class KeysMissing(OperatorError):
    """The root keys are somebody else's to provide and are not there; the text names the Secret."""


class ClusterError(OperatorError):
    """A request to the API server did not do what it was for."""


class NotLeading(ClusterError):
    """The lead may be another's; nothing was sent."""


class Conflict(ClusterError):
    """Somebody else was first."""


class Gone(ClusterError):
    """The object is not there."""


class Throttled(ClusterError):
    """The API server asks for a pause."""

    def __init__(self, message: str, retry_after_seconds: float) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class Refused(ClusterError):
    """The API server will not have it; its own words are the text."""


class Unreachable(ClusterError):
    """Nobody knows whether the request was carried out."""
