"""`python -m warmfleet_contracts.openapi router > docs/reference/openapi.json`."""

import json
import sys
from typing import Any

from warmfleet_contracts.openapi.document import openapi_document
from warmfleet_contracts.openapi.operations import SERVERS


def main() -> None:
    documents: dict[str, dict[str, Any]] = {server: openapi_document(server) for server in SERVERS}
    document = documents.get(" ".join(sys.argv[1:]))
    if document is None:
        sys.exit("usage: python -m warmfleet_contracts.openapi router|worker")
    sys.stdout.write(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
