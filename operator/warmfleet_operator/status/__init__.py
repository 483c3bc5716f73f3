"""What the operator reports of a ModelDeployment: conditions, status, events, and what routers measured.

`conditions` and `status` are pure functions of `facts`; `routers` asks the routers. Imports `objects`,
`watch`.
"""
