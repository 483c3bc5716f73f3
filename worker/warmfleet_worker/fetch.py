"""`python -m warmfleet_worker.fetch`: the command that pods and Jobs run to fetch a model."""

import sys

from warmfleet_worker.model_store.fetch.command import main

if __name__ == "__main__":
    sys.exit(main())
