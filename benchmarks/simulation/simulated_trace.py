"""Does a simulated replica find in its cache what a naive cache holds, and how fast is the simulator?

One replica answers a whole trace, at cache sizes from small to unbounded, in steps so short that requests
rarely overlap. A naive cache, a list of blocks in the order of their last use, gets the same requests one
after the other. Then sixteen replicas with the times of a GPU answer the trace as `warmfleet simulate` would.

    PYTHONPATH=benchmarks python benchmarks/simulation/simulated_trace.py TRACE

TRACE is Mooncake's conversation trace; about four minutes.
"""

import argparse
import sys
from collections import OrderedDict
from collections.abc import Hashable
from pathlib import Path
from typing import Final

from harness.report import Report, machine_line

from warmfleet_cli.bench.figures import Target
from warmfleet_simulator.hardware import replica_settings
from warmfleet_simulator.replica.settings import ReplicaSettings
from warmfleet_simulator.simulation import SimulationSettings, simulate
from warmfleet_simulator.step_times import StepTimes
from warmfleet_simulator.traces.mooncake import BLOCK_TOKENS
from warmfleet_simulator.traces.reader import read_trace
from warmfleet_simulator.traces.trace_file import TraceFile

MAX_DIFFERENCE_POINTS: Final = 0.1
MAX_SECONDS: Final = 60.0
REPLICAS: Final = 16
SHORT_STEPS: Final = StepTimes(base_ps=10**6, prefill_token_ps=10**3, decode_ps=10**3, context_token_ps=0)
"""A microsecond each, and a nanosecond per token."""


def naive_hit_rate(trace: Path, capacity_blocks: int) -> float:
    """The share of prompt tokens that are found; a prompt's tail counts as used before its head."""
    kept: OrderedDict[Hashable, None] = OrderedDict()
    cached_tokens = prompt_tokens = 0
    with TraceFile(trace) as file:
        for request in read_trace(file):
            tokens = request.prompt_tokens
            # The last token of an answer is never computed: it is in no block.
            answer = range(tokens // BLOCK_TOKENS, (tokens + request.output_tokens - 1) // BLOCK_TOKENS)
            prompt = [segment.segment_id for segment in request.prompt if segment.tokens == BLOCK_TOKENS]
            held = 0
            while held < (tokens - 1) // BLOCK_TOKENS and prompt[held] in kept:
                held += 1
            cached_tokens += held * BLOCK_TOKENS
            prompt_tokens += tokens
            for block in (*((request.answer_id, block) for block in reversed(answer)), *reversed(prompt)):
                kept[block] = None
                kept.move_to_end(block)
            while len(kept) > capacity_blocks:
                kept.popitem(last=False)
    return cached_tokens / prompt_tokens


def simulated_hit_rate(trace: Path, capacity_blocks: int) -> float:
    """The same of one replica."""
    replica = ReplicaSettings(SHORT_STEPS, BLOCK_TOKENS, capacity_blocks)
    with TraceFile(trace) as file:
        settings = SimulationSettings(replica=replica, replicas=1, routing="RoundRobin")
        return simulate(read_trace(file), settings).hit_rate


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--blocks", default="1000,10000,50000,250000", help="sizes of the cache")
    parser.add_argument("--gpu", default="H100")
    parser.add_argument("--model", default="Llama-3.1-8B")
    parser.add_argument("--output-dir", type=Path, default=Path("bench-results/simulated-trace"))
    options = parser.parse_args()
    report = Report.begin(options, machine_line())
    targets, lines, rates = [], [], {}
    for blocks in map(int, options.blocks.split(",")):
        naive = 100 * naive_hit_rate(options.trace, blocks)
        simulated = 100 * simulated_hit_rate(options.trace, blocks)
        rates[blocks] = (naive, simulated)
        lines.append(f"{blocks:,} blocks: naive {naive:.3f} %, simulated {simulated:.3f} %")
        difference = Target(
            f"difference with {blocks:,} blocks",
            abs(simulated - naive),
            MAX_DIFFERENCE_POINTS,
            at_least=False,
            unit=" points",
        )
        targets.append(difference)
    replica = replica_settings(options.gpu, options.model, block_size_tokens=BLOCK_TOKENS)
    with TraceFile(options.trace) as file:
        settings = SimulationSettings(replica=replica, replicas=REPLICAS, routing="LowestCost")
        fleet = simulate(read_trace(file), settings)
    lines.append(
        f"{REPLICAS} replicas on {options.gpu}: {fleet.requests:,} requests, {fleet.steps:,} steps, "
        f"hit rate {fleet.hit_rate:.1%}"
    )
    targets.append(Target("time of it", fleet.wall_seconds, MAX_SECONDS, at_least=False, unit=" s"))
    return report.end("\n".join(lines), targets, hit_rate_percent=rates, wall_seconds=fleet.wall_seconds)


if __name__ == "__main__":
    sys.exit(main())
