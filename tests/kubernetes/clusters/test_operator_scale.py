"""One operator and many deployments, small: what it writes, and that it writes nothing twice."""

import time

from warmfleet_testing.cluster.scaled_fleet import Usage, by_kind, scaled_fleet

DEPLOYMENTS, PODS_EACH = 10, 5
QUIET_SECONDS = 2.0
COLLECTED_SECONDS = 90.0
"""The garbage collector learns of a new kind every 30 seconds, and this cluster is young."""
CHILDREN = (
    "patch serviceaccounts",
    "patch networkpolicies",
    "patch services",
    "patch poddisruptionbudgets",
    "patch deployments",
)


async def test_deployments_converge_by_one_write_per_object_and_a_restart_adds_none():
    async with scaled_fleet(pods_each=PODS_EACH, hollow=2) as fleet:
        await fleet.create(DEPLOYMENTS)
        await fleet.until(fleet.ready_count, DEPLOYMENTS, seconds=120)

        statuses = [deployment["status"] for deployment in await fleet.deployments()]
        assert {status["readySummary"] for status in statuses} == {f"{PODS_EACH}/{PODS_EACH}"}
        converging = by_kind(fleet.writes(0.0))
        assert {kind: converging[kind] for kind in CHILDREN} == dict.fromkeys(CHILDREN, DEPLOYMENTS)
        # Begun, and whole; between them at most one for each pod that became ready.
        assert 2 * DEPLOYMENTS <= converging["patch modeldeployments/status"] <= (2 + PODS_EACH) * DEPLOYMENTS
        assert converging["create events"] <= 2 * DEPLOYMENTS
        known = {*CHILDREN, "patch modeldeployments/status", "create events", "create secrets"}
        assert converging.keys() <= known

        async def late_writes() -> int:
            """Ready may be reported before the last count is."""
            return len(fleet.writes(time.time() - QUIET_SECONDS))

        await fleet.until(late_writes, 0, seconds=30)
        restarted = time.time()
        await fleet.restart_operator()
        pid = await fleet.operator_pid()
        await fleet.until(fleet.looked_at_count, DEPLOYMENTS, seconds=30)
        assert by_kind(fleet.writes(restarted)) == {}
        assert Usage.of(pid).peak_resident_bytes < 150 * 2**20

        await fleet.delete_all()
        await fleet.until(fleet.left_count, 0, seconds=COLLECTED_SECONDS)
