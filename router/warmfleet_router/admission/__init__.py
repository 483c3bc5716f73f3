"""Admits requests, queues what exceeds capacity, assigns workers.

`InFlightLimits.enter` gives a ticket before the body is read; `Admission.reserve` checks before the prompt is
encoded; `Admission.submit` takes a `QueuedRequest` and returns a `Dispatch`; `Admission.retry`
replaces one that failed. Ticket and dispatch give back what they took. May import `metrics`, `routing` and
`workers`, never `proxy` or `api`.
"""
