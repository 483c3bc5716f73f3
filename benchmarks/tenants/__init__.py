"""What one tenant can learn of another, and do to it. May import the product.

Each module is a benchmark by itself; all need `benchmarks` on PYTHONPATH.

- `tenant_isolation`: does any feature of an answer show which prompts another tenant has sent?
- `tenant_flood`: does one tenant's flood make another one wait?
- `antagonist`: does one key with thousands of sockets slow down another tenant?
"""
