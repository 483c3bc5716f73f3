"""All objects that one ModelDeployment asks for."""

from warmfleet_contracts.resources.worker_flags import unsupported_engine_fields
from warmfleet_operator.desired.checked_deployment import CheckedDeployment
from warmfleet_operator.desired.errors import UnsupportedError
from warmfleet_operator.desired.fetch import fetch_job
from warmfleet_operator.desired.metadata import Manifest, child, selector
from warmfleet_operator.desired.network import network_policies, worker_service
from warmfleet_operator.desired.worker import worker_deployment
from warmfleet_operator.objects.releases import release_labels
from warmfleet_operator.settings import OperatorSettings


def desired_objects(deployment: CheckedDeployment, settings: OperatorSettings) -> tuple[Manifest, ...]:
    """The children of a ModelDeployment, in the order in which they are created.

        deployment = CheckedDeployment.from_object(body)
        for manifest in desired_objects(deployment, settings):
            print(manifest["kind"], manifest["metadata"]["name"])

    Equal input gives equal objects, byte for byte. A Job's template is immutable, so a Job for another source
    has another name; a change of its image or proxy alone does not fetch the model again.

    Raises:
        UnsupportedError: a field is valid, but no worker supports it yet.
        OverlayError: `spec.podTemplate` contradicts what the operator owns.
    """
    require_support(deployment, settings)
    job = fetch_job(deployment, settings)
    children = (
        _service_account(deployment),
        *network_policies(deployment, settings),
        worker_service(deployment),
        _disruption_budget(deployment),
        *(() if job is None else (job,)),
        worker_deployment(deployment, settings),
    )
    return tuple(_of_release(child, settings) for child in children)


def _of_release(child: Manifest, settings: OperatorSettings) -> Manifest:
    """With the release's labels. Pods have none: another release may adopt them without a restart."""
    metadata = child["metadata"]
    labels = {**metadata["labels"], **release_labels(settings.release)}
    return {**child, "metadata": {**metadata, "labels": labels}}


def require_support(deployment: CheckedDeployment, settings: OperatorSettings) -> None:
    """Refuse fields that no worker supports yet, and an engine that the release's images do not hold.

    Raises:
        UnsupportedError: naming the first such field.
    """
    for field, problem in unsupported_engine_fields(deployment.spec):
        raise UnsupportedError(field, problem)
    engine, accelerator = deployment.spec.engine, deployment.spec.accelerator
    if engine.type == "VLLM" and not engine.image:
        if not settings.worker_vllm_image:
            raise UnsupportedError(
                "spec.engine.image", "is empty; this release has no image with vLLM: name one that does"
            )
        if accelerator is None:
            raise UnsupportedError(
                "spec.accelerator",
                "is absent, and the release's image with vLLM computes on a GPU: ask for one, or name an "
                "image with a CPU build in spec.engine.image",
            )
    if accelerator is not None and accelerator.count != 1 and engine.type != "VLLM":
        raise UnsupportedError(
            "spec.accelerator.count",
            f"is {accelerator.count}; the engine Warmfleet computes on one device: use replicas for more, or "
            "engine.type VLLM",
        )


def _service_account(deployment: CheckedDeployment) -> Manifest:
    """Without a token: a worker sends no request to the API server."""
    return child(deployment, "v1", "ServiceAccount", automountServiceAccountToken=False)


def _disruption_budget(deployment: CheckedDeployment) -> Manifest:
    return child(
        deployment,
        "policy/v1",
        "PodDisruptionBudget",
        spec={
            "maxUnavailable": 1,
            # A pod that is not ready serves no requests, so it must not block the drain of a node.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": selector(deployment.name)},
        },
    )
