"""Whether a process still answers for itself: what a kubelet's liveness probe does for a pod."""

import asyncio
from dataclasses import dataclass

import httpx


@dataclass(frozen=True, slots=True)
class LivenessPolicy:
    """When a process that hangs without ending is given up.

    Only `/livez` counts: it speaks for the step watchdog alone, so a worker that is busy, draining or not
    ready is never killed for it.
    """

    period_seconds: float = 2.0
    timeout_seconds: float = 5.0
    failures: int = 3
    """In a row. With the periods and timeouts above, a hung process is killed after about 20 seconds."""


async def until_lifeless(url: str, policy: LivenessPolicy) -> str:
    """Probe `url`/livez until it has failed too often in a row; returns what the last probe met."""
    failures = 0
    # trust_env off: a proxy meant for the internet must not see loopback probes.
    async with httpx.AsyncClient(trust_env=False, timeout=policy.timeout_seconds) as client:
        while True:
            await asyncio.sleep(policy.period_seconds)
            trouble = await _trouble(client, url)
            failures = failures + 1 if trouble else 0
            if failures >= policy.failures:
                return trouble


async def _trouble(client: httpx.AsyncClient, url: str) -> str:
    """What is wrong with the answer, empty if nothing is."""
    try:
        status = (await client.get(f"{url}/livez")).status_code
    except httpx.TimeoutException:
        return f"no answer within {client.timeout.read:g} s"
    except httpx.HTTPError:
        return "no answer"
    return "" if status == httpx.codes.OK else f"status {status}"
