"""What a ModelDeployment wants in a cluster: which objects, and how they hang together."""

import pytest

from warmfleet_operator.desired.errors import UnsupportedError
from warmfleet_operator.desired.objects import desired_objects
from warmfleet_operator.desired.observed import ObservedDeployment
from warmfleet_operator.settings import OperatorSettings

SETTINGS = OperatorSettings(
    release_namespace="warmfleet",
    worker_cpu_image="registry.example/worker:cpu",
    worker_cuda_image="registry.example/worker:cuda",
    router_pod_labels={"warmfleet.dev/component": "router"},
)


def observed(name="smollm2", labels=None, **spec):
    return ObservedDeployment.from_object(
        {
            "apiVersion": "warmfleet.dev/v1alpha1",
            "kind": "ModelDeployment",
            "metadata": {"name": name, "namespace": "models", "uid": "0123", "labels": labels or {}},
            "spec": {
                "model": {"source": {"catalog": {"name": "smollm2-135m-instruct"}}},
                "kvCache": {"size": "512Mi"},
                **spec,
            },
        }
    )


def objects(settings=SETTINGS, **spec):
    """By kind and name."""
    return {
        (item["kind"], item["metadata"]["name"]): item for item in desired_objects(observed(**spec), settings)
    }


def test_a_deployment_without_a_claim_has_five_children_of_its_own_name():
    assert list(objects()) == [
        ("ServiceAccount", "smollm2"),
        ("NetworkPolicy", "smollm2"),
        ("Service", "smollm2"),
        ("PodDisruptionBudget", "smollm2"),
        ("Deployment", "smollm2"),
    ]


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"engine": {"weightQuantization": "Int8"}}, "spec.engine.weightQuantization"),
        ({"kvCache": {"size": "1Gi", "dtype": "Int4"}}, "spec.kvCache.dtype"),
        ({"accelerator": {"count": 2}}, "spec.accelerator.count"),
    ],
)
def test_what_no_worker_can_honour_is_refused_by_field(spec, field):
    with pytest.raises(UnsupportedError, match=field) as refusal:
        objects(**spec)
    assert refusal.value.field == field
