"""What clients can make a router keep, by default, fits the memory limit of the chart's routers."""

from pathlib import Path
from typing import Final

import yaml

from warmfleet_contracts.openai import MAX_BODY_BYTES
from warmfleet_contracts.prompts.chat_template import MAX_RENDERED_CHARS
from warmfleet_contracts.prompts.segment_memory import SEGMENT_MEMORY_BYTES, WORD_MEMORY_BYTES
from warmfleet_contracts.resources.quantities import parse_quantity
from warmfleet_router.admission.queue_bounds import DEFAULT_HELD, DEFAULT_IN_FLIGHT, DEFAULT_WAKING, MIB
from warmfleet_router.economics.ghost_list import BLOCK_BYTES, DEFAULT_MAX_BLOCKS
from warmfleet_router.prewarm.hot_prefixes import MAX_HOT_BYTES
from warmfleet_router.prewarm.worker_prewarms import MOST_BODY_BYTES
from warmfleet_router.routing.block_hash_memory import MAX_RUNS
from warmfleet_router.workers.encoders import ENCODING_THREADS
from warmfleet_router.workers.upstream import READ_BYTES

CHART: Final = Path(__file__).parents[2] / "charts" / "warmfleet"
WIDEST_CHAR_BYTES: Final = 4
"""One character beyond U+FFFF makes Python keep four bytes for each of a text."""
COPIES_OF_RENDERED: Final = 3
"""The rendered conversation, the marked one, and its pieces."""
RUN_BYTES: Final = 2304
"""Of the memory of block hashes: 256 token ids and 16 hashes."""
WRITTEN_AHEAD_BYTES: Final = 64 * 1024
"""uvicorn's high-water mark of a connection."""
BASE_BYTES: Final = 64 * MIB
"""A router process without a fleet."""
FLEET_BYTES: Final = 384 * MIB
"""Two tokenizers of 150,000 tokens and an index of a million blocks."""


def test_what_clients_can_make_a_router_keep_fits_the_charts_limit() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    limit_bytes = parse_quantity(values["router"]["resources"]["limits"]["memory"])

    decoded_bytes = WIDEST_CHAR_BYTES * (MAX_BODY_BYTES + COPIES_OF_RENDERED * MAX_RENDERED_CHARS)
    clients = (
        DEFAULT_IN_FLIGHT.buffered_bytes,
        ENCODING_THREADS * decoded_bytes,
        # The client library stops reading at twice as much.
        DEFAULT_IN_FLIGHT.requests * (2 * READ_BYTES + WRITTEN_AHEAD_BYTES),
        SEGMENT_MEMORY_BYTES,
        WORD_MEMORY_BYTES,
        MAX_RUNS * RUN_BYTES,
    )
    ghosts_bytes = DEFAULT_MAX_BLOCKS * BLOCK_BYTES
    # While a newcomer is sent some of them there are copies.
    hot_bytes = MAX_HOT_BYTES + 2 * MOST_BODY_BYTES

    assert sum(clients) <= 1.6 * 1024 * MIB
    assert sum(clients) + BASE_BYTES + FLEET_BYTES + ghosts_bytes + hot_bytes <= limit_bytes


def test_what_waits_is_a_part_of_what_is_in_flight() -> None:
    for part in (DEFAULT_HELD, DEFAULT_WAKING, DEFAULT_HELD + DEFAULT_WAKING):
        assert part.within(DEFAULT_IN_FLIGHT)
