"""The state of the Job that fetches a model, and when a failed one is replaced."""

from collections.abc import Mapping
from typing import Any, Final

from warmfleet_operator.objects.times import seconds_of

RETRY_JOB_SECONDS: Final = 300.0
"""A failed Job is replaced this long after its failure: the hub may answer again by then."""


def job_ended(job: Mapping[str, Any]) -> str:
    """`Complete`, `Failed`, or empty while the Job runs."""
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition["type"] in {"Complete", "Failed"} and condition["status"] == "True":
            return str(condition["type"])
    return ""


def retry_job_at_seconds(job: Mapping[str, Any]) -> float:
    """When a failed Job is replaced, in seconds since the epoch."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    failed = (condition for condition in conditions if condition["type"] == "Failed")
    return seconds_of(next(failed)["lastTransitionTime"]) + RETRY_JOB_SECONDS
