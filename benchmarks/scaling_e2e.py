"""Does a fleet scale on a real cluster as it must? Scenarios with figures, each on a devcluster of its own.

A devcluster with the chart installed: real API server and controllers, workers as processes.

    make controlplane, then as root: PYTHONPATH=tests/support python benchmarks/scaling_e2e.py [SCENARIO ...]
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from harness.report import Report, machine_line
from scaling import newcomer, prewarm, ramp, regret, shrinks, writers, zero
from scaling.scenario import Outcome

SCENARIOS: Final[Mapping[str, Callable[[argparse.Namespace], Outcome]]] = {
    "newcomer": newcomer.measure,
    "prewarm": prewarm.measure,
    "ramp": ramp.measure,
    "regret": regret.measure,
    "shrinks": shrinks.measure,
    "writers": writers.measure,
    "zero": zero.measure,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    names = ", ".join(SCENARIOS)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"some of {names}; all by default")
    parser.add_argument("--shrinks", type=int, default=20, help="how often `shrinks` takes a replica away")
    parser.add_argument("--wakes", type=int, default=5, help="how often `zero` wakes the fleet")
    parser.add_argument("--output-dir", type=Path, default=Path("bench-results/scaling-e2e"))
    options = parser.parse_args()
    if unknown := set(options.scenarios) - SCENARIOS.keys():
        parser.error(f"no scenario {', '.join(sorted(unknown))}; there are {names}")
    report = Report.begin(options, machine_line())
    outcomes = {}
    for name in options.scenarios or SCENARIOS:
        outcomes[name] = SCENARIOS[name](options)
        print(f"{name}: {outcomes[name].text}", flush=True)
    targets = [
        replace(target, name=f"{name}: {target.name}")
        for name, outcome in outcomes.items()
        for target in outcome.targets
    ]
    return report.end("", targets, **{name: outcome.figures for name, outcome in outcomes.items()})


if __name__ == "__main__":
    sys.exit(main())
