"""Who may ask for what: API keys, the tenants that they name, and what a request may still do after a wait.

Public: `api_keys` (`KeySource`: the keys in force, followed in their file; `read_key_file`), `authentication`
(`Authentication`: before a body is read) and `permission` (`Permissions`: again before each worker is asked).
Imports `metrics`, `error_responses`, `tenants` and contracts, so that `proxy` may ask it.
"""
