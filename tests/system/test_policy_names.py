"""Router, resource, CustomResourceDefinition and benchmark know the same routing policies."""

from pathlib import Path
from typing import get_args

import yaml

from warmfleet_cli.bench.prefix.benchmark import ALL_POLICIES
from warmfleet_contracts.resources.model_deployment import RoutingSpec
from warmfleet_router.routing.policies import POLICIES, PRICED

CRD = Path(__file__).parents[2] / "crds" / "warmfleet.dev_modeldeployments.yaml"


def test_every_list_of_routing_policies_has_the_same_names() -> None:
    (version,) = yaml.safe_load(CRD.read_text())["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    named = get_args(RoutingSpec.model_fields["policy"].annotation)

    assert sorted(POLICIES) == sorted(named)
    assert sorted(POLICIES) == sorted(spec["routing"]["properties"]["policy"]["enum"])
    assert sorted(POLICIES) == sorted(ALL_POLICIES)
    assert set(POLICIES) >= PRICED
