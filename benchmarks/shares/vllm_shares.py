"""What server and router take of vLLM's tokens per second on a CPU.

`AsyncLLM` alone and one behind a worker's server and a router answer the same kind of prompts in turns; the
client reads bytes and looks at them afterwards. Their cores are the same: what server and router take, the
engine lacks.

    make model vllm, then: PYTHONPATH=benchmarks python benchmarks/shares/vllm_shares.py
"""

import argparse
import random
import statistics
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Final

from harness.local_fleet import LocalFleet
from harness.report import Report, machine_line

from shares.engine_without_server import EngineWithoutServer
from shares.setups import MODEL, VLLM
from shares.turns import turns
from warmfleet_runtime.home import warmfleet_home
from warmfleet_worker.engine_program import EngineMissingError, engine_program
from warmfleet_worker.model_store.catalog import catalog_model_path

OUTPUT_TOKENS: Final = 96


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--port", type=int, default=18090, help="of the router; the worker has the next one")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--output-dir", type=Path, default=Path("bench-results/vllm-shares"))
    options = parser.parse_args()
    model_path = catalog_model_path(MODEL, warmfleet_home())
    if model_path is None:
        parser.error(f"`warmfleet model pull {MODEL}` fetches the model first")
    try:
        engine_program("VLLM")
    except EngineMissingError as error:
        parser.error(str(error))
    report = Report.begin(options, machine_line())
    with (
        LocalFleet.serving(VLLM.manifest(model_path), options.port) as fleet,
        EngineWithoutServer.started("VLLM", model_path) as alone,
    ):
        rates, _ = turns(random.Random(3), alone, fleet, output_tokens=OUTPUT_TOKENS, rounds=options.rounds)
        engine = alone.engine
    medians = [
        statistics.median(side) for side in (rates.routed_tokens_per_second, rates.alone_tokens_per_second)
    ]
    text = f"engine: {engine}\n{rates.text()}; median to median {medians[0] / medians[1]:.1%}"
    return report.end(text, [rates.target()], engine=engine, rates=asdict(rates))


if __name__ == "__main__":
    sys.exit(main())
