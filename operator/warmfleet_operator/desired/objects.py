"""All objects that one ModelDeployment wants."""

from warmfleet_contracts.resources.worker_flags import unsupported_engine_fields
from warmfleet_operator.desired.errors import UnsupportedError
from warmfleet_operator.desired.fetch import fetch_job
from warmfleet_operator.desired.metadata import Manifest, child, selector
from warmfleet_operator.desired.network import network_policies, worker_service
from warmfleet_operator.desired.observed import ObservedDeployment
from warmfleet_operator.desired.worker import worker_deployment
from warmfleet_operator.settings import OperatorSettings


def desired_objects(observed: ObservedDeployment, settings: OperatorSettings) -> tuple[Manifest, ...]:
    """The children of a ModelDeployment, in the order in which they are best created.

    The same input gives the same objects, byte for byte. A Job's template is immutable: another source, or
    another way to it, has another name; whatever else changes (image, proxy) is not worth a second fetch.

    Raises:
        UnsupportedError: a field is valid, but no worker can honour it yet.
        OverlayError: `spec.podTemplate` contradicts what the operator owns.
    """
    require_support(observed)
    job = fetch_job(observed, settings)
    return (
        _service_account(observed),
        *network_policies(observed, settings),
        worker_service(observed),
        _disruption_budget(observed),
        *(() if job is None else (job,)),
        worker_deployment(observed, settings),
    )


def require_support(observed: ObservedDeployment) -> None:
    """Refuse what no worker can honour yet.

    Raises:
        UnsupportedError: naming the first such field.
    """
    for field, problem in unsupported_engine_fields(observed.spec):
        raise UnsupportedError(field, problem)
    accelerator = observed.spec.accelerator
    if accelerator is not None and accelerator.count != 1:
        raise UnsupportedError(
            "spec.accelerator.count",
            f"is {accelerator.count}; a worker computes on one device, use replicas for more",
        )


def _service_account(observed: ObservedDeployment) -> Manifest:
    """No token: a worker never speaks to the API server."""
    return child(observed, "v1", "ServiceAccount", automountServiceAccountToken=False)


def _disruption_budget(observed: ObservedDeployment) -> Manifest:
    return child(
        observed,
        "policy/v1",
        "PodDisruptionBudget",
        spec={
            "maxUnavailable": 1,
            # A pod that is not ready serves nobody: it never blocks the drain of a node.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": selector(observed.name)},
        },
    )
