"""Errors as responses."""

from starlette.responses import Response

from warmfleet_contracts.openai import RequestError


def error_response(error: RequestError) -> Response:
    """The response for `error`: OpenAI's JSON body, the status and its headers."""
    headers = error.headers()
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.status in {408, 413}:
        headers["connection"] = "close"  # the rest of the body is not worth reading
    return Response(error.body(), error.status, headers, media_type="application/json")
