"""Has workers compute prefixes ahead of requests: new ones, and those that stay when others go.

Public: `hot_prefixes` (`HotPrefixes`: beginnings of prompts that came again; pure), `prewarmer` (`Prewarmer`:
has each newcomer compute the best of them), `handover_plan` (which prefixes of workers that go are computed
where; pure), `handover` (`Handovers`: has them computed) and `worker_prewarms` (`WorkerPrewarms`: requests to
workers, bounded in bytes). Imports `metrics`, `routing`, `workers` and contracts.
"""
