"""The router's HTTP endpoints: one module per endpoint or per check that stands before it.

`completions` and `tokenize` serve inference, `models`, `health`, `fleet_totals` and `debug` describe the
fleet; `handover` has prefixes moved before workers go; `metrics` exposes counters; `cors` decides which
pages of other origins may read answers.
Top of the router: may import every other room; only `app`, `routes`, `rooms` and `settings` import it.
"""
