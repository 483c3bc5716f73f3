"""Routing: which worker gets a request, and what the request is charged there.

Public: `picker` (`Picker`, `PickedWorker`), `leases` (`Leases`, `Lease`), `decisions` (`Decision` and its
parts), `decision_recorder` (`DecisionRecorder`), `decision_ring` (`DecisionRing`), `capacity`,
`prompt_hashes` (`RequestPrompts`), `block_hash_memory` (`BlockHashMemory`), `slow_workers`, `policies`
(`POLICIES`, `Candidate`), `cost` (`CostTerms`), `fleet_snapshot` (`FleetSnapshot`), `prediction`
(`Prediction`) and `miss_causes`. The picker predicts, prices and ranks, and changes nothing; `leases`, with
`open_dispatches` and `pending_blocks`, is the state that dispatches change. Imports `workers`, `economics`
and `discovery`, no I/O.
"""
