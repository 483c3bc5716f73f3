"""What server and router take of vLLM's tokens per second on a CPU.

`AsyncLLM` alone and one behind a worker's server and a router answer the same kind of prompts in turns; the
client reads bytes and looks at them afterwards. Their cores are the same: what server and router take, the
engine lacks.

    make model vllm, then: PYTHONPATH=benchmarks python benchmarks/shares/vllm_shares.py
"""

import random
import sys
from dataclasses import asdict
from typing import Final

from harness.local_fleet import LocalFleet
from harness.report import Report, machine_line

from shares.engine_without_server import EngineWithoutServer
from shares.options import read_options
from shares.setups import VLLM
from shares.turns import turns

OUTPUT_TOKENS: Final = 96


def main() -> int:
    options, model_path = read_options(__doc__, "VLLM", rounds=6, folder="vllm-shares")
    report = Report.begin(options, machine_line())
    with (
        LocalFleet.serving(VLLM.manifest(model_path), options.port) as fleet,
        EngineWithoutServer.started("VLLM", model_path) as alone,
    ):
        rates, _ = turns(random.Random(3), alone, fleet, output_tokens=OUTPUT_TOKENS, rounds=options.rounds)
        engine = alone.engine
    text = f"engine: {engine}\n{rates.text()}"
    return report.end(text, [rates.target()], engine=engine, rates=asdict(rates))


if __name__ == "__main__":
    sys.exit(main())
