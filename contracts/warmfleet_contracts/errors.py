"""The root of the error tree. Everything warmfleet raises on purpose descends from `WarmfleetError`.

WarmfleetError
├── ContractError          two processes disagree: wrong version, malformed frame, failed proof
├── PromptError            a prompt cannot be rendered or encoded (a client's mistake)
│   └── PromptTooLongError it has more tokens than its limit
├── RequestError           a request is refused; carries the OpenAI error fields and the HTTP status
├── ManifestError          a ModelDeployment manifest is invalid
├── QuantityError          a text is no Kubernetes quantity
├── KeyFileError           a file of API keys is invalid
├── SecretError            a secret in the environment is unusable
└── ModelError             a model's files are missing, damaged or not supported
"""


class WarmfleetError(Exception):
    """Base of every error that warmfleet raises on purpose. Its text may be shown to a user."""


class ContractError(WarmfleetError):
    """Two processes disagree about a message; the connection is closed and nothing is guessed."""


class PromptError(WarmfleetError):
    """A prompt cannot be rendered or encoded."""


class PromptTooLongError(PromptError):
    """A prompt has more tokens than its limit; how many is not known."""

    def __init__(self) -> None:
        super().__init__("the prompt has more tokens than its limit")


class ManifestError(WarmfleetError):
    """A ModelDeployment manifest is invalid; the text names the field."""


class QuantityError(WarmfleetError):
    """A text is no Kubernetes quantity; the error's own text quotes it."""


class KeyFileError(WarmfleetError):
    """A file of API keys is invalid or cannot be changed as asked; the text names the field."""


class SecretError(WarmfleetError):
    """A secret in the environment is unusable; the text names its variable and nothing of its content."""


class ModelError(WarmfleetError):
    """A model's files are missing, damaged or not supported; the text names the file."""
