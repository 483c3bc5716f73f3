"""`python -m warmfleet_testing.engine.previous_worker`: a worker that speaks contract version 1 only."""

import sys

from warmfleet_worker.__main__ import main

if __name__ == "__main__":
    sys.exit(main(contract_versions=frozenset({1})))
