"""The steps of the benchmark of mixed steps: their blocks, and what their contexts are filled with."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from mixed_steps import BLOCK_SIZE_TOKENS, Bench, Part, Step

from warmfleet_cli.bench.engine.own_runner import PIECE_BLOCKS

PARTS = st.builds(Part, st.integers(1, 5), st.integers(1, 600), st.integers(0, 1500))


class RecordingRunner:
    """Computes nothing."""

    def __init__(self):
        self.batches = []

    def execute(self, batch):
        self.batches.append(batch)


@given(st.lists(PARTS, min_size=1, max_size=3))
def test_every_sequence_has_filled_blocks_of_its_own(parts):
    runner, step = RecordingRunner(), Step("", tuple(parts))

    chunks = list(Bench(runner, 1000, 1).chunks(step))

    wanted = [(part.tokens, part.context_tokens) for part in parts for _ in range(part.sequences)]
    assert [(len(chunk.token_ids), chunk.first_position) for chunk in chunks] == wanted
    tables = [block for chunk in chunks for block in chunk.block_ids]
    assert tables == list(range(step.blocks))
    for chunk in chunks:
        tokens = len(chunk.token_ids) + chunk.first_position
        assert (
            (len(chunk.block_ids) - 1) * BLOCK_SIZE_TOKENS
            < tokens
            <= len(chunk.block_ids) * BLOCK_SIZE_TOKENS
        )
    filled = [one for batch in runner.batches for one in batch.chunks]
    assert all(one.first_position == 0 and len(one.block_ids) <= PIECE_BLOCKS for one in filled)
    assert all(len(one.token_ids) == len(one.block_ids) * BLOCK_SIZE_TOKENS for one in filled)
    blocks = [block for one in filled for block in one.block_ids]
    assert all(first < second for first, second in pairwise(blocks))
    contexts = [block for c in chunks for block in c.block_ids[: -(-c.first_position // BLOCK_SIZE_TOKENS)]]
    assert blocks == contexts


def test_each_part_is_computed_in_turns_with_the_whole():
    runner = RecordingRunner()

    measured = Bench(runner, 1000, 4).measured(Step.parsed("2*16+3x20"))

    sizes = [len(batch.chunks) for batch in runner.batches[3:]]  # after three contexts were filled
    assert sizes == [5, 2, 3] * 6
    assert measured.parts_ms is not None
