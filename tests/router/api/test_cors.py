"""Pages of other origins in a browser."""

import pytest

from warmfleet_router.settings import parse_settings
from warmfleet_testing.router.guarded_router import guarded, status_of
from warmfleet_testing.router.planted_keys import bearer


async def test_a_browser_may_ask_from_the_listed_origins_and_read_why_it_was_refused(stub, keys, tmp_path):
    key = keys.add("a")
    page = {"origin": "https://chat.example.com"}
    preflight = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,x-mine",
    }
    async with guarded(stub, tmp_path, keys, cors_origins=("https://chat.example.com",)) as router:
        url = router.url + "/v1/chat/completions"
        async with router.http.options(url, headers={**page, **preflight}) as response:
            assert response.headers["x-request-id"]
            assert response.status == 200
            assert response.headers["access-control-allow-origin"] == page["origin"]
            assert "authorization" in response.headers["access-control-allow-headers"]
            assert "access-control-allow-credentials" not in response.headers
        async with router.http.options(
            url, headers={**preflight, "origin": "https://evil.example"}
        ) as response:
            assert "access-control-allow-origin" not in response.headers
        async with router.http.get(router.url + "/v1/models", headers={**page, **bearer(key)}) as response:
            assert response.status == 200
            assert "x-request-id" in response.headers["access-control-expose-headers"]
        async with router.http.get(router.url + "/v1/models", headers=page) as response:
            assert response.status == 401
            assert response.headers["access-control-allow-origin"] == page["origin"]
        assert await status_of(router, "OPTIONS", "/v1/models", page) == 401  # no preflight: wants a key


async def test_without_the_setting_no_origin_gets_a_header(stub, keys, tmp_path):
    keys.add("a")
    headers = {"origin": "https://chat.example.com", "access-control-request-method": "POST"}
    async with (
        guarded(stub, tmp_path, keys) as router,
        router.http.options(router.url + "/v1/models", headers=headers) as response,
    ):
        assert response.status == 401
        assert not [name for name in response.headers if name.lower().startswith("access-control")]


@pytest.mark.parametrize(
    ("origin", "is_good"),
    [
        ("*", True),
        ("https://chat.example.com", True),
        ("http://127.0.0.1:3000", True),
        ("http://[::1]:3000", True),
        ("https://chat.example.com/", False),
        ("https://chat.example.com/path", False),
        ("chat.example.com", False),
        ("https://*.example.com", False),
        ("null", False),
        ("", False),
    ],
)
def test_an_origin_is_written_as_browsers_send_it(capsys, origin, is_good):
    if is_good:
        assert parse_settings(["--cors-origin", origin], {}).cors_origins == (origin,)
        return
    with pytest.raises(SystemExit):
        parse_settings(["--cors-origin", origin], {})
    assert "--cors-origin: expected scheme://host[:port]" in capsys.readouterr().err
