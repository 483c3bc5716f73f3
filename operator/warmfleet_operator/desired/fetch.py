"""The Job that fetches the model onto a shared claim, once for all replicas."""

from typing import Final

from warmfleet_contracts.names import MODEL_FETCH_COMPONENT, MODEL_FETCH_CONTAINER
from warmfleet_contracts.resources.fetch_outcome import FetchExitCode
from warmfleet_operator.desired.checked_deployment import CheckedDeployment
from warmfleet_operator.desired.metadata import Manifest, child, fetch_job_name, fetch_labels
from warmfleet_operator.desired.model import (
    cache_claim,
    fetch_container,
    fetch_volumes,
    model_volume,
    temporary_volume,
)
from warmfleet_operator.desired.pod_security import pod_security_context
from warmfleet_operator.desired.template import overlaid_job
from warmfleet_operator.desired.worker import scheduling
from warmfleet_operator.settings import OperatorSettings

BACKOFF_LIMIT: Final = 4
_GRACE_SECONDS: Final = 15


def fetch_job(deployment: CheckedDeployment, settings: OperatorSettings) -> Manifest | None:
    """The Job; None without a shared claim. A completed Job stays: it records that the claim holds the model.

    Raises:
        OverlayError: `spec.podTemplate` contradicts what the operator owns.
    """
    if not cache_claim(deployment):
        return None
    template = {
        "metadata": {"labels": fetch_labels(deployment)},
        "spec": {
            "automountServiceAccountToken": False,
            "containers": [fetch_container(deployment, settings)],
            "enableServiceLinks": False,
            # A failed pod stays, with its logs and its termination message.
            "restartPolicy": "Never",
            "securityContext": pod_security_context(writes_claim=True),
            "serviceAccountName": deployment.name,
            "terminationGracePeriodSeconds": _GRACE_SECONDS,
            "volumes": [model_volume(deployment), temporary_volume(), *fetch_volumes(settings)],
            **scheduling(deployment, settings),
        },
    }
    return child(
        deployment,
        "batch/v1",
        "Job",
        fetch_job_name(deployment),
        MODEL_FETCH_COMPONENT,
        spec={
            "activeDeadlineSeconds": deployment.spec.rollout.startup_timeout_seconds,
            "backoffLimit": BACKOFF_LIMIT,
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "FailJob",
                        "onExitCodes": {
                            "containerName": MODEL_FETCH_CONTAINER,
                            "operator": "In",
                            "values": [int(FetchExitCode.USAGE), int(FetchExitCode.REFUSED)],
                        },
                    },
                    {
                        "action": "Ignore",
                        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                    },
                ]
            },
            "template": overlaid_job(template, deployment),
        },
    )
