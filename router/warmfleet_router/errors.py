"""Errors of the router, below the tree in `warmfleet_contracts.errors`.

WarmfleetError
├── ContractError
│   └── HelloRefusedError     the process behind an endpoint is not the worker it should be
├── DiscoveryError            an endpoint list is unusable; the last good one stays
├── RootKeysError             the folder with the release's root keys is unusable
└── StreamUnavailableError    the event stream of a worker cannot be opened or broke off
"""

from warmfleet_contracts.errors import ContractError, WarmfleetError


class HelloRefusedError(ContractError):
    """The process behind an endpoint did not prove to be the endpoint's worker; it gets no prompt."""


class DiscoveryError(WarmfleetError):
    """An endpoint or a list of endpoints is unusable; the text names the field."""


class RootKeysError(WarmfleetError):
    """A file of the release's root keys is unusable; the text names it and nothing of its content."""


class StreamUnavailableError(WarmfleetError):
    """A worker's event stream cannot be opened or broke off.

    Every `EventSource` raises this for transport faults of any HTTP client.
    """

    def __init__(self, reason: str, *, is_silent: bool = False, is_down: bool = False) -> None:
        """`is_silent`: nothing was received at all, where others at least refuse or close.

        `is_down`: no process listens at the worker's address.
        """
        super().__init__(reason)
        self.is_silent = is_silent
        self.is_down = is_down
