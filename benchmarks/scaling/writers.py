"""Others write the number of replicas: kubectl, and a client of the scale subresource as an HPA is one.

One replica of four holds prompts that come again and again. Each decrease must take marked pods and leave
that one, each number must stay as it was written, and the operator must write it once.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final

from scaling.scenario import WAIT_SECONDS, Outcome, is_leaving, scaling_fleet, wait_serving
from warmfleet_cli.bench.figures import Target
from warmfleet_contracts.names import DELETION_COST_ANNOTATION, PLURAL
from warmfleet_testing.cluster.cluster import eventually
from warmfleet_testing.cluster.installed import QUICK_VALUES, Installed, tiny_deployment

NAME: Final = "written"
LONG: Final = "This long beginning comes again and again, and only one of the replicas has it. " * 4
HOT_REQUESTS: Final = 8
SETTLED_SECONDS: Final = 20.0
"""After a change, in which nothing may write another number."""


@dataclass(frozen=True, slots=True)
class Change:
    """One number, written by one client."""

    writer: str
    before: int
    after: int
    unmarked: int
    """Pods that went without a mark."""
    hot_kept: bool
    """Whether the replica with the hot prompts stayed."""
    seconds: float
    """Until there were so many pods, and all were ready."""
    writes: int
    """Of the Deployment's number while it changed and settled."""


def by_kubectl(fleet: Installed, replicas: int) -> None:
    """`kubectl scale`."""
    fleet.kubectl("scale", "modeldeployment", NAME, f"--replicas={replicas}")


def by_scale_client(fleet: Installed, replicas: int) -> None:
    """As an HPA does: read the scale, and replace it with the version that was read."""
    path = f"/apis/warmfleet.dev/v1alpha1/namespaces/{fleet.namespace}/{PLURAL}/{NAME}/scale"
    scale = json.loads(fleet.cluster.kubectl("get", "--raw", path))
    assert scale["status"]["selector"], "an HPA finds the pods by it"
    scale["spec"]["replicas"] = replicas
    fleet.cluster.kubectl("replace", "--raw", path, "-f", "-", input=json.dumps(scale))


def hot_cached_tokens(fleet: Installed) -> int:
    """Of a further prompt with the hot beginning."""
    usage = fleet.chat(NAME, f"{LONG} And now?", max_tokens=2)["usage"]
    return int((usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0)


def change(fleet: Installed, write: Callable[[Installed, int], None], replicas: int) -> Change:
    """Write a number and follow what becomes of it."""
    before = int(fleet.get("deployment", NAME)["spec"]["replicas"])
    began, began_unix = time.monotonic(), time.time()
    gone: dict[str, bool] = {}

    def pods() -> int:
        found = fleet.pods(NAME)
        for pod in found:
            if is_leaving(pod):
                annotations = pod["metadata"].get("annotations") or {}
                gone[pod["metadata"]["name"]] = int(annotations.get(DELETION_COST_ANNOTATION, "0")) < 0
        return len(found)

    write(fleet, replicas)
    eventually(pods, replicas, seconds=WAIT_SECONDS)
    wait_serving(fleet, NAME, replicas)
    seconds = time.monotonic() - began
    time.sleep(SETTLED_SECONDS)
    assert int(fleet.resource(NAME)["spec"]["replicas"]) == replicas, "another number was written"
    assert int(fleet.get("deployment", NAME)["spec"]["replicas"]) == replicas, "another number was written"
    generations = [
        write
        for write in fleet.cluster.audit_writes(began_unix)
        if write.resource == "deployments" and write.name == NAME and "operator" in write.user
    ]
    unmarked = sum(not marked for marked in gone.values()) + max(0, before - replicas - len(gone))
    kept = hot_cached_tokens(fleet) > 0
    return Change(write.__name__, before, replicas, unmarked, kept, seconds, len(generations))


def measure(options: argparse.Namespace) -> Outcome:
    """Two decreases and an increase by each writer."""
    del options
    with scaling_fleet(QUICK_VALUES) as fleet:
        fleet.apply(tiny_deployment(NAME, replicas=4))
        wait_serving(fleet, NAME, 4)
        for number in range(HOT_REQUESTS):
            fleet.chat(NAME, f"{LONG} Part {number}.", max_tokens=2)
        changes = []
        for write, replicas in (
            (by_kubectl, 3),
            (by_scale_client, 1),
            (by_scale_client, 3),
            (by_kubectl, 1),
            (by_kubectl, 2),
            (by_scale_client, 1),
        ):
            changes.append(change(fleet, write, replicas))
            print(changes[-1], flush=True)
    down = [one for one in changes if one.after < one.before]
    took_warm = sum(not one.hot_kept for one in down)
    writes = max(one.writes for one in changes)
    text = f"{len(changes)} numbers written, {len(down)} of them lower; longest until all was ready: "
    return Outcome(
        f"{text}{max(one.seconds for one in changes):.1f} s",
        [
            Target("pods that went without a mark", sum(one.unmarked for one in down), 0, at_least=False),
            Target("decreases that took the warm replica", took_warm, 0, at_least=False),
            Target("most writes of a number per change", writes, 1, at_least=False),
        ],
        {"changes": [asdict(one) for one in changes]},
    )
