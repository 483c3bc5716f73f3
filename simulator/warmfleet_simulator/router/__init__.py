"""The production router without HTTP: fleet, index, picker, leases and admission over replicas in memory.

Public: `router` (`SimulatedRouter`), `admission_bounds` (`bounds_of_fleet`), `fleet` (`SimulatedFleet`),
`outcome` (`Outcome`), `routings` (`ROUTINGS`), `network` (`Network`, `Delays`), `placed_picker`
(`PlacedPicker`, `prompt_key`) and `remembered_blocks` (`RememberedBlocks`). Imports `warmfleet_router`,
`replica` and `traces`.
"""
