"""Routing: which worker gets a request, and what the request is charged there.

Public: `picker` (`Picker`, `PickedWorker`), `leases` (`Leases`, `Lease`), `decisions` (`Decision` and its
parts), `decision_recorder` (`DecisionRecorder`), `decision_ring` (`DecisionRing`), `capacity`,
`prompt_hashes` (`RequestPrompts`), `block_hash_memory` (`BlockHashMemory`), `slow_workers`, `policies`
(`POLICIES`, `Candidate`), `cost` (`CostTerms`), `fleet_snapshot` (`FleetSnapshot`, `KeptFleet`), `prediction`
(`Prediction`) and `miss_causes`. The picker predicts, prices and ranks, and changes nothing:
`matched_prompts` finds what all workers hold of a prompt, `shortlist` those that are worth a price. `leases`,
with `open_dispatches`, `pending_blocks`, `known_loads` and `seat_times`, is the state that dispatches change.
Imports `workers`, `economics` and `discovery`, no I/O.
"""
