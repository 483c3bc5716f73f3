"""Liveness probes of local processes, as a kubelet probes a pod."""

import asyncio
from dataclasses import dataclass

import httpx


@dataclass(frozen=True, slots=True)
class LivenessPolicy:
    """When a process that hangs is killed.

    Only `/livez` counts: it reports the step watchdog alone, so a worker that is busy, draining or not
    ready is never killed.
    """

    period_seconds: float = 2.0
    timeout_seconds: float = 5.0
    failures: int = 3
    """In a row. With the periods and timeouts above, a hung process is killed after about 20 seconds."""


async def until_unresponsive(url: str, policy: LivenessPolicy) -> str:
    """Probe `url`/livez until it fails `policy.failures` times in a row; returns the last failure."""
    failures = 0
    # trust_env off: a proxy meant for the internet must not see loopback probes.
    async with httpx.AsyncClient(trust_env=False, timeout=policy.timeout_seconds) as client:
        while True:
            await asyncio.sleep(policy.period_seconds)
            failure = await _probe_failure(client, url)
            failures = failures + 1 if failure else 0
            if failures >= policy.failures:
                return failure


async def _probe_failure(client: httpx.AsyncClient, url: str) -> str:
    """Why the probe failed; empty if it succeeded."""
    try:
        status = (await client.get(f"{url}/livez")).status_code
    except httpx.TimeoutException:
        return f"no answer within {client.timeout.read:g} s"
    except httpx.HTTPError:
        return "no answer"
    return "" if status == httpx.codes.OK else f"status {status}"
