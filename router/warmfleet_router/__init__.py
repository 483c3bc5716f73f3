"""The router: one HTTP address for the fleet. It sends each request to the worker where it costs least.

Rooms, each of which may import those after it: `api` (endpoints, API keys), `proxy` (one request to one
worker), `admission` (limits, queue), `routing` (prediction, cost, policies), `workers` (what is known of
each worker), `discovery` (where endpoints come from). `app` builds them from `settings`: `rooms` states what
each consists of, `routes` makes the endpoints. Every room may import `errors`; `metrics` lies between
`admission` and `routing`, `error_responses` and `tenants` below `discovery`. `settings` takes the
release's keys from `root_keys`.
"""
