"""The HTTP server of router, worker and operator: uvicorn with bounds, request ids and OpenAI's errors.

`app` answers every error in OpenAI's shape, `edge` is the outermost layer (request id, header bound, one
log line per request), `protocol` bounds the request head, `body` reads bodies, `event_stream`,
`response_body` and `disconnect` serve streams, `connections` and `descriptors` limit how many there are,
`listener` and `server` open the socket and serve, `document` serves an OpenAPI document. Imports contracts;
only here and in components are starlette and uvicorn imported.
"""
