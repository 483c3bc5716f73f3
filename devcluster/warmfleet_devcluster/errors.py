"""What a devcluster cannot do, and what to do about it.

DevclusterError
├── BinariesMissingError  the control plane has not been built
├── BuildFailedError      the control plane cannot be built
├── NotPermittedError     the devcluster needs rights that it does not have
├── PortBusyError         a port asked for is taken
├── AlreadyRunningError   a devcluster lives in this state folder
└── StartFailedError      a component ended or did not become ready
"""

from warmfleet_contracts.errors import WarmfleetError


class DevclusterError(WarmfleetError):
    """A devcluster cannot do as asked. `advice` is what the user can do about it."""

    def __init__(self, text: str, *, advice: str = "") -> None:
        super().__init__(text)
        self.advice = advice


class BinariesMissingError(DevclusterError):
    """The control plane has not been built."""


class BuildFailedError(DevclusterError):
    """The control plane cannot be built."""


class NotPermittedError(DevclusterError):
    """The devcluster needs rights that it does not have."""


class PortBusyError(DevclusterError):
    """A port asked for is taken."""


class AlreadyRunningError(DevclusterError):
    """A devcluster lives in this state folder."""


class StartFailedError(DevclusterError):
    """A component ended or did not become ready in time."""
