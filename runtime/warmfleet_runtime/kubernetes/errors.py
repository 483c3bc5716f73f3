"""What can go wrong with a request to the API server.

WarmfleetError
└── ApiServerError           no answer, an answer other than 2xx, or one beyond a bound
    ├── ConfigError          the kubeconfig or the service account cannot be used
    └── UnreadableError      the answer is not what the API documents
"""

from warmfleet_contracts.errors import WarmfleetError


class ApiServerError(WarmfleetError):
    """A request to the API server did not succeed.

    `summary` holds no address and nothing of an object, so that readiness may report it; `str()` adds
    `message`, which is for logs and for the owner of the object.
    """

    def __init__(
        self,
        summary: str,
        *,
        message: str = "",
        status: int | None = None,
        reason: str = "",
        retry_after_seconds: float | None = None,
    ) -> None:
        """Of a response: its `status`, and `message` and `reason` of the Status object in its body.

        Without a response `status` is None and `message` is the cause.
        """
        super().__init__(f"{summary}: {message}" if message else summary)
        self.summary = summary
        self.message = message
        self.status = status
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds


class ConfigError(ApiServerError):
    """The kubeconfig or the service account cannot be used; nothing was sent."""


class UnreadableError(ApiServerError):
    """The API server sent something that is not what its API documents."""
