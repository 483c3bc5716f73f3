"""Policies of other autoscalers, to compare with: each reads what it can read of a real fleet.

Public: `catalog` (`AUTOSCALERS`, `check_setting`, `make_autoscaler`: all of them by name and setting). `hpa`
has the algorithm of Kubernetes' HorizontalPodAutoscaler, through which all act; `requests_per_second`,
`kv_utilization`, `request_counts` (queued, or in flight), `token_supply` (llm-d's WVA) and
`predicted_latency` one policy each; `lookback` compares counters with earlier ones. Imports `scaling`.
"""
