"""Slots for large requests: bounded, in rotation between tenants, given back however a request ends."""

import asyncio

from warmfleet_router.admission.encoding_slots import EncodingSlots
from warmfleet_router.tenants import ANONYMOUS, Tenant


class Users:
    """Tasks that hold a slot until they are let go; `order` is in which they got one."""

    def __init__(self, slots: int = 2) -> None:
        self.slots = EncodingSlots(slots)
        self.order: list[str] = []
        self.holding: list[tuple[str, asyncio.Event]] = []

    def begin(self, name: str, tenant: str | Tenant) -> asyncio.Task[None]:
        owner = Tenant(name=tenant) if isinstance(tenant, str) else tenant
        return asyncio.create_task(self._use(name, owner))

    async def _use(self, name: str, tenant: Tenant) -> None:
        async with self.slots.slot(tenant):
            self.order.append(name)
            held = (name, asyncio.Event())
            self.holding.append(held)
            try:
                await held[1].wait()
            finally:
                self.holding.remove(held)

    async def settled(self) -> list[str]:
        for _ in range(5):
            await asyncio.sleep(0)
        return [name for name, _ in self.holding]

    async def let_go(self, name: str) -> list[str]:
        next(event for held, event in self.holding if held == name).set()
        return await self.settled()


async def test_a_tenant_leaves_a_slot_to_the_next_one() -> None:
    users = Users()
    tasks = [users.begin(f"a{number}", "a") for number in range(3)]
    assert await users.settled() == ["a0"]

    tasks.append(users.begin("b0", "b"))

    assert await users.settled() == ["a0", "b0"]
    for name in ("a0", "b0", "a1", "a2"):
        await users.let_go(name)
    await asyncio.gather(*tasks)
    assert users.order == ["a0", "b0", "a1", "a2"]


async def test_waiting_tenants_are_served_in_rotation() -> None:
    users = Users()
    tasks = [users.begin(f"{tenant}{number}", tenant) for tenant in "abc" for number in range(3)]
    await users.settled()

    while users.holding:
        await users.let_go(users.holding[0][0])

    await asyncio.gather(*tasks)
    assert users.order == ["a0", "b0", "a1", "b1", "c0", "a2", "b2", "c1", "c2"]


async def test_without_keys_all_slots_are_used() -> None:
    users = Users()
    tasks = [users.begin(f"{number}", ANONYMOUS) for number in range(3)]

    assert await users.settled() == ["0", "1"]
    assert await users.let_go("0") == ["1", "2"]
    for name in ("1", "2"):
        await users.let_go(name)
    await asyncio.gather(*tasks)


async def test_a_tenant_of_the_same_name_as_the_only_one_is_one_of_several() -> None:
    users = Users()
    tasks = [users.begin(f"{number}", ANONYMOUS.name) for number in range(2)]

    assert await users.settled() == ["0"]
    for name in ("0", "1"):
        await users.let_go(name)
    await asyncio.gather(*tasks)


async def test_a_cancelled_request_gives_back_its_slot_or_its_place() -> None:
    users = Users()
    holder, waits, other = (users.begin(name, "a") for name in ("holder", "waits", "other"))
    await users.settled()

    waits.cancel()
    holder.cancel()
    assert await users.settled() == ["other"]
    granted = users.begin("granted", "a")
    await asyncio.sleep(0)
    other.cancel()
    await asyncio.sleep(0)  # `other` ends and hands its slot over, and `granted` has not run since
    granted.cancel()
    await asyncio.gather(holder, waits, other, granted, return_exceptions=True)
    assert users.order == ["holder", "other"]

    last = [users.begin(name, tenant) for name, tenant in (("x", "x"), ("y", "y"))]
    assert await users.settled() == ["x", "y"]
    for name in ("x", "y"):
        await users.let_go(name)
    await asyncio.gather(*last)
