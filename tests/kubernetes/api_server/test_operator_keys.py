"""The Secrets that the operator makes, before an API server that has other things to do."""

from pathlib import Path

import pytest

from warmfleet_contracts.names import NAMESPACE_SECRET
from warmfleet_operator.cluster import Cluster
from warmfleet_operator.errors import ClusterError
from warmfleet_operator.keys import KeySecrets
from warmfleet_operator.leadership.fence import Fence
from warmfleet_operator.settings import OperatorSettings
from warmfleet_testing.cluster.api_fault_proxy import ApiFault, running_api_fault_proxy
from warmfleet_testing.cluster.control_plane import ControlPlane
from warmfleet_testing.cluster.model_namespace import ModelNamespace, model_namespace


def secrets_of(fleet: ModelNamespace) -> set[str]:
    return {secret["metadata"]["name"] for secret in fleet.items("secrets")}


async def test_a_namespace_counts_as_having_its_key_only_when_it_has(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    """A create may meet another conflict than that the Secret is there already."""
    with (
        model_namespace(control_plane, "keys-in-conflict") as fleet,
        running_api_fault_proxy(control_plane.kubeconfig, tmp_path) as proxy,
    ):
        fence = Fence()
        fence.extend(fence.clock() + 60)
        connected = Cluster.connected(proxy.kubeconfig, fence, write_seconds=5.0, user_agent="warmfleet-test")
        async with connected as cluster:
            keys = KeySecrets(
                cluster, OperatorSettings(release_namespace=fleet.namespace), lambda: {fleet.namespace}
            )
            await keys.ensure_operator_token()
            proxy.faults = [ApiFault(verbs=frozenset({"create"}), status=409, at_most=1)]
            with pytest.raises(ClusterError):
                await keys.ensure_namespace(fleet.namespace)
            in_vain = secrets_of(fleet)
            await keys.ensure_namespace(fleet.namespace)
            made = secrets_of(fleet)

    assert NAMESPACE_SECRET not in in_vain
    assert NAMESPACE_SECRET in made
