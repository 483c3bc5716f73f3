"""docs/how-to/air-gapped.md as it stands: the images are on the node by its commands, and so is the rest."""

import json

import pytest

from warmfleet_testing.containers.air_gapped import commands

pytestmark = [pytest.mark.containers, pytest.mark.timeout(2400)]


@pytest.fixture
def uninstalled(release, worker_image):
    """The cluster without the chart: the document begins with its first install."""
    release.cluster.helm("uninstall", "warmfleet", "--namespace", "models", "--wait")
    release.kubectl("delete", "secrets,pods", "--all", "--wait")
    return release


def test_the_commands_of_the_document_lead_to_an_answer_where_no_route_leads_out(
    uninstalled, carried, figures
):
    with figures.timed("first answer after helm install, without internet"):
        printed = carried.run_without_internet(uninstalled.cluster, commands().inside)
    answer = json.loads(printed.splitlines()[-1])
    assert answer["usage"]["completion_tokens"] > 0
    assert set(uninstalled.restarts().values()) == {0}
