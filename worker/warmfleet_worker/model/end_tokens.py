"""End tokens, as the files of a model name them."""

from collections.abc import Sequence
from typing import Final

from warmfleet_contracts.errors import ModelError

MAX_END_TOKENS: Final = 512
"""Models have a handful."""


def known_end_tokens(named: int | Sequence[int] | None, vocabulary_size: int) -> tuple[int, ...]:
    """Those that the model can generate, ascending: some files name -1, or an id of another vocabulary.

    Raises:
        ModelError: there are more than any sequence may end with.
    """
    ids = [named] if isinstance(named, int) else named or []
    known = {token_id for token_id in ids if 0 <= token_id < vocabulary_size}
    if len(known) > MAX_END_TOKENS:
        raise ModelError(f"eos_token_id: {len(known)} end tokens, where {MAX_END_TOKENS} are the most")
    return tuple(sorted(known))
