"""Admits requests, queues what exceeds capacity, assigns workers.

`InFlightLimits.enter` gives a ticket before the body is read, and the ticket a slot for decoding and encoding
a large one; `waking_queue` holds requests while their model sleeps; `Admission.reserve` checks before the
prompt is encoded; `Admission.submit` takes a `QueuedRequest` and returns a `Dispatch`; `Admission.retry`
replaces one that failed. Ticket and dispatch give back what they took.

Public: `in_flight_limits`, `encoding_slots`, `admission` (with its `waking`, a `WakingQueue`),
`queued_request`, `dispatch` and `queue_bounds`. A bound is a field of `AdmissionSettings`, with a flag in the
router's `settings` and a reason among `OverloadReason` of `metrics` for what it refuses.
May import `metrics`, `economics`, `routing`, `workers`, `error_responses` and `tenants`, never `proxy` or
`api`.
"""
