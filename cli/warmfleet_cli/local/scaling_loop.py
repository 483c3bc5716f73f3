"""Changes the number of workers of a local fleet, tick after tick."""

import asyncio
import time
from collections.abc import Callable

from warmfleet_cli.local.autoscaler import ASLEEP_TICK_SECONDS, Change, LocalAutoscaler, LocalReplica
from warmfleet_cli.local.events import Emit
from warmfleet_cli.local.fleet_routers import FleetRouters
from warmfleet_cli.local.members import Members
from warmfleet_cli.local.plan import FleetPlan
from warmfleet_cli.local.state import ScaleChange
from warmfleet_contracts.resources.autoscaling_spec import AutoscalingSpec
from warmfleet_operator.replicas.shrink_step import MOVING_SECONDS
from warmfleet_operator.scaling.policy import AutoscalingPolicy


class ScalingLoop:
    """Reads the routers, decides, and adds or removes workers. `run` goes on until it is cancelled."""

    def __init__(
        self,
        plan: FleetPlan,
        members: Members,
        *,
        emit: Emit,
        on_scaled: Callable[[ScaleChange], None],
        tick_seconds: float,
    ) -> None:
        self._plan = plan
        self._members = members
        self._emit = emit
        self._on_scaled = on_scaled
        self._tick_seconds = tick_seconds
        self._going: set[str] = set()
        """Names of workers that are handed over."""
        self._obstacle = ""
        """Why the fleet does not grow although it should, as it was last reported; empty if it does."""
        self._asleep = False
        """Whether it was last reported that no worker is left."""

    async def run(self) -> None:
        """Decide every few seconds. A tick that fails changes nothing."""
        policy = AutoscalingPolicy.of(AutoscalingSpec.model_validate(self._plan.autoscaling))
        autoscaler = LocalAutoscaler(policy, self._plan.served_names, routers=len(self._plan.routers))
        async with (
            FleetRouters(self._plan.urls, self._members.operator_token) as routers,
            asyncio.TaskGroup() as removals,
        ):
            while True:
                await asyncio.sleep(
                    min(self._tick_seconds, ASLEEP_TICK_SECONDS) if self._asleep else self._tick_seconds
                )
                readings = await routers.readings()
                self._notice_sleep()
                try:
                    change = autoscaler.tick(readings, self._replicas(), time.monotonic())
                    self._carry_out(change)
                    for victim in change.victims if change is not None else ():
                        self._going.add(victim.name)
                        removals.create_task(self._remove(routers, victim, policy.payback_seconds))
                except Exception as error:  # noqa: BLE001 - the fleet serves on without a decision
                    self._report_obstacle(f"no decision: {error!r}")

    def _notice_sleep(self) -> None:
        """Report once that the last worker has ended."""
        asleep = not self._members.workers()
        if asleep and not self._asleep:
            self._emit("Asleep", "", f"asleep: a request for {self._plan.served_names[0]} starts a worker")
        self._asleep = asleep

    def _replicas(self) -> list[LocalReplica]:
        return [
            LocalReplica(
                name=member.plan.name,
                uid=member.plan.uid,
                ready=member.phase == "Ready",
                leaving=member.is_leaving or member.plan.name in self._going,
                fails_to_start=member.fails_to_start,
                created_seconds=member.created_unix_seconds,
            )
            for member in self._members.workers()
        ]

    def _carry_out(self, change: Change | None) -> None:
        """Start workers and report the change; None: the number is right."""
        if change is None:
            self._obstacle = ""
            return
        number, obstacle = change.from_replicas, ""
        while number < change.to_replicas and not obstacle:
            obstacle = self._members.add_worker()
            number += not obstacle
        number -= len(change.victims)
        if number != change.from_replicas:
            self._report_change(change, number)
        if obstacle:
            wanted = f"{change.to_replicas} replicas are wanted, {number} run"
            self._report_obstacle(f"{wanted}: {obstacle}")

    async def _remove(self, routers: FleetRouters, victim: LocalReplica, payback_seconds: float) -> None:
        """Drain a worker once others have what only it holds, or the time for that is over."""
        if victim.ready:
            moved = await routers.hand_over(
                victim.uid, seconds=MOVING_SECONDS, payback_seconds=payback_seconds
            )
            if moved:
                text = f"{moved} prefixes of {victim.name} are computed elsewhere before it goes"
                self._emit("HandedOver", victim.name, text)
        self._going.discard(victim.name)
        self._members.remove_worker(victim.name)

    def _report_change(self, change: Change, number: int) -> None:
        text = f"{change.from_replicas} -> {number} replicas: {change.reason}"
        if change.victims:
            names = ", ".join(victim.name for victim in change.victims)
            text += f"; {names} goes{_why(change.victims[0]) if number else ''}"
        self._emit("Scaled", "", text)
        self._on_scaled(
            ScaleChange(
                unix_seconds=time.time(),
                from_replicas=change.from_replicas,
                to_replicas=number,
                reason=change.reason,
            )
        )

    def _report_obstacle(self, text: str) -> None:
        """Once, as long as it stays the same."""
        if text != self._obstacle:
            self._emit("NotScaled", "", text)
        self._obstacle = text


def _why(victim: LocalReplica) -> str:
    """By which of the rules of `removal_order` it goes before the others."""
    return ", as its cache is worth least" if victim.ready else ", as it is not ready"
