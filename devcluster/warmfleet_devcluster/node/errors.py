"""What can go wrong on a node.

NodeError
├── ImageError          an image is not on the list
├── ContainerConfigError  a container cannot be configured; shown as CreateContainerConfigError and retried
├── VolumeError         a volume cannot be prepared yet; retried
└── StartError          the launcher could not start a container's program
"""

from warmfleet_contracts.errors import WarmfleetError


class NodeError(WarmfleetError):
    """Base of what a process node raises on purpose."""


class ImageError(NodeError):
    """An image reference is not on the node's list."""


class ContainerConfigError(NodeError):
    """A container's environment or user cannot be determined; the text goes into the pod's status."""


class VolumeError(NodeError):
    """A volume's source is missing or malformed; the text goes into the pod's status."""


class StartError(NodeError):
    """A container's program could not be started; the text goes into the pod's status."""
