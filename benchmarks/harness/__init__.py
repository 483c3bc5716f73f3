"""What benchmarks are made of, and no benchmark by itself. May import the product.

- Servers: `stub_fleet` (workers without a model; `stub_seats` is how fast they are), `measured_router`,
  `watched_router` (a router that notes pauses of its event loop), `tenant_fleet` (router and workers with
  keys), `memory_workers` (event streams that are read from memory), `local_fleet` (what `warmfleet up`
  starts).
- Clients: `event_client` (streams), `probe_client` (one request at a time, timed), `hostile_client`.
- For both: `idle_connections`, `tenant_keys`.
- Results: `separability` (statistics), `overload_figures` (those of `overload.py`), `other_processes` (what
  they took of the machine), `report` (what each benchmark prints and writes).
"""
