"""The tokens of a sequence are those of its prompt, then those that were added."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from warmfleet_worker.engine.sequence_tokens import SequenceTokens

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=8)


@given(prompt=TOKENS, added=TOKENS, first=st.integers(0, 20), end=st.integers(0, 20))
def test_slices_and_lengths_are_those_of_a_list(
    prompt: list[int], added: list[int], first: int, end: int
) -> None:
    one_by_one, at_once = SequenceTokens(array("I", prompt)), SequenceTokens(array("I", prompt))
    for token_id in added:
        one_by_one.append(token_id)
    at_once.extend(array("I", added))

    for tokens in (one_by_one, at_once):
        assert len(tokens) == len(prompt) + len(added)
        assert list(tokens[first:end]) == (prompt + added)[first:end]
