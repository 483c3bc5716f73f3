"""The health check that the documentation has for Argo CD, run as Argo CD runs it, over every condition."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lupa
import pytest

from warmfleet_testing.documents.documents import fences
from warmfleet_testing.resources.condition_observations import OBSERVATIONS, kstatus, reported
from warmfleet_testing.resources.observations import deployment

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "argo-cd.md"
HEALTH = {"Current": "Healthy", "InProgress": "Progressing", "Failed": "Degraded"}


@pytest.fixture(scope="module")
def health() -> Callable[[dict[str, Any]], tuple[str, str]]:
    """Argo CD gives the script the resource as `obj`, and reads `status` and `message` of what it returns."""
    (script,) = (
        manifest["data"]["resource.customizations.health.warmfleet.dev_ModelDeployment"]
        for fence in fences(PAGE.read_text())
        for manifest in fence.manifests()
        if manifest.get("kind") == "ConfigMap"
    )
    lua = lupa.LuaRuntime(register_eval=False, register_builtins=False)
    run = lua.eval(f"function(resource) obj = resource; {script} end")

    def check(resource: dict[str, Any]) -> tuple[str, str]:
        found = run(lua.table_from(resource, recursive=True))
        return found["status"], found["message"]

    return check


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_argo_cd_sees_what_kstatus_sees(name, health) -> None:
    resource = reported(OBSERVATIONS[name])
    status, message = health(resource)

    wanted = "Suspended" if name in {"suspended", "advice is suspended"} else HEALTH[kstatus(resource)]
    assert status == wanted
    assert message in {
        f"{item['reason']}: {item['message']}" if item["type"] == "Stalled" else item["message"]
        for item in resource["status"]["conditions"]
    }


def test_argo_cd_waits_until_the_newest_generation_was_observed(health) -> None:
    resource = reported(OBSERVATIONS["crash loop"])
    edited = {**resource, "metadata": {**resource["metadata"], "generation": 4}}
    created = deployment()

    assert [health(item)[0] for item in (edited, created)] == ["Progressing", "Progressing"]
