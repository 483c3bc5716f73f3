"""What `warmfleet simulate` costs, and how far it can be trusted. May import the product.

Each module is a benchmark by itself; all need `benchmarks` on PYTHONPATH.

- `simulated_fleet`: time and memory for a large fleet.
- `simulated_trace`: hit rates of a replica against those of a naive cache.
- `simulator_truth`: hit rates and times against those of a real fleet.
"""
