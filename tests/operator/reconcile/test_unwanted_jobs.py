"""A Job that fetched a source of before is nothing that a status reports."""

import asyncio

from warmfleet_operator.objects.kinds import JOB, MODEL_DEPLOYMENT
from warmfleet_testing.resources.observations import job
from warmfleet_testing.resources.shrinking_cluster import OperatorOf, ShrinkingCluster


def test_a_failed_job_that_is_being_deleted_stalls_no_other_source() -> None:
    cluster = ShrinkingCluster([1.0], model={"source": {"image": {"reference": "registry.example/model:1"}}})
    failed = job("Failed")
    metadata = {
        **failed["metadata"],
        "labels": {"warmfleet.dev/model-deployment": "m"},
        "deletionTimestamp": "2027-01-15T08:00:00Z",
    }
    cluster.put(JOB, {**failed, "metadata": metadata})

    asyncio.run(OperatorOf(cluster).reconcile())

    (body,) = [body for kind, body in cluster.objects() if kind is MODEL_DEPLOYMENT]
    conditions = {item["type"]: item["reason"] for item in body["status"]["conditions"]}
    assert conditions["Stalled"] == "NotStalled"
    assert conditions["ModelCached"] == "Provided"
