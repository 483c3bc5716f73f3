"""Checks readiness and models of the router's Service; exits with 1 and the reason if either fails."""

import json
import os
import sys
import time
import urllib.error
import urllib.request

URL = os.environ["ROUTER_URL"]
KEY = os.environ.get("WARMFLEET_API_KEY", "")
SECONDS = 60


def ask(path: str) -> tuple[int, bytes]:
    """Status and body of one answer; a refused connection is retried until the time limit."""
    deadline = time.monotonic() + SECONDS
    headers = {"authorization": f"Bearer {KEY}"} if KEY else {}
    while True:
        try:
            with urllib.request.urlopen(
                urllib.request.Request(URL + path, headers=headers), timeout=5
            ) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            if error.code != 503 or time.monotonic() > deadline:
                return error.code, error.read()
        except OSError as error:
            if time.monotonic() > deadline:
                return 0, str(error).encode()
        time.sleep(1)


def main() -> int:
    status, body = ask("/readyz")
    print("/readyz", status, body.decode(errors="replace"))
    if status != 200:
        return 1
    status, body = ask("/v1/models")
    if status == 401 and os.environ["NEEDS_KEY"] == "yes" and not KEY:
        print("/v1/models 401: the router requires a key, as configured; set tests.apiKey to test further")
        return 0
    print("/v1/models", status, body.decode(errors="replace"))
    return 0 if status == 200 and json.loads(body)["object"] == "list" else 1


sys.exit(main())
