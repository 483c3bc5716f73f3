import asyncio

import pytest

from warmfleet_router.discovery import MAX_ENDPOINTS, Discovered, DiscoveryState, Endpoint, StaticDiscovery
from warmfleet_router.endpoints import Fleet
from warmfleet_router.errors import DiscoveryError, StreamUnavailableError


def endpoint(number, **changes):
    return Endpoint(
        **{"uid": f"uid-{number}", "name": f"worker-{number}", "url": "http://127.0.0.1:1", **changes}
    )


class Unreachable:
    async def open(self, *_request):
        raise StreamUnavailableError("connection refused")
        yield b""


async def test_a_static_list_is_given_once_as_it_is():
    endpoints = [endpoint(0), endpoint(1)]

    lists = [listed async for listed in StaticDiscovery(endpoints).watch()]

    assert lists == [Discovered(tuple(endpoints))]


@pytest.mark.parametrize("url", ["127.0.0.1:8100", "ftp://host", "http://", ""])
def test_an_address_that_is_no_http_address_is_refused_by_name(url):
    with pytest.raises(DiscoveryError, match="'uid-0'"):
        endpoint(0, url=url)


def test_two_endpoints_never_share_a_uid():
    with pytest.raises(DiscoveryError, match="uid-0"):
        StaticDiscovery([endpoint(0), endpoint(0, name="other")])


def test_a_list_has_a_bound():
    with pytest.raises(DiscoveryError, match=str(MAX_ENDPOINTS)):
        StaticDiscovery(endpoint(number) for number in range(MAX_ENDPOINTS + 1))


def test_a_token_is_not_shown():
    assert "secret" not in repr(endpoint(0, token=b"secret"))


async def test_an_unusable_list_leaves_the_last_good_one_in_place():
    class Flawed:
        state = DiscoveryState()

        async def watch(self):
            yield Discovered((endpoint(0),))
            yield Discovered((endpoint(1), endpoint(1)))
            raise OSError("the source is gone")

    fleet = Fleet(Flawed(), Unreachable())

    await fleet.start()
    await asyncio.sleep(0.02)
    names = [view.endpoint.name for view in fleet.views()]
    await fleet.stop()

    assert names == ["worker-0"]


async def test_discovered_names_decide_over_the_workers_own():
    fleet = Fleet(StaticDiscovery([endpoint(0, served_names=("owned-name",)), endpoint(1)]), Unreachable())

    await fleet.start()
    await asyncio.sleep(0.01)
    served = [view.endpoint.uid for view in fleet.views("owned-name")]
    models = fleet.models()
    await fleet.stop()

    assert served == ["uid-0"]
    assert models == ["owned-name"]
