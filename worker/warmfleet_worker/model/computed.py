"""What a model computed in a step."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Computed:
    """Hidden states, and tokens if they were asked for; valid until the next step begins."""

    hidden: Tensor
    """After the last layer and before the final norm, of the wanted rows: [wanted, hidden]."""
    finite: list[bool]
    """Of each chunk: whether all of its hidden states are finite."""
    logits: Tensor | None
    """Of the wanted rows, [wanted, vocabulary], if tokens were chosen."""
    token_ids: list[int | None]
    """One for each token that was asked for; None where the logits are not finite."""
    seconds: float
    """That the step took."""
