"""Forwards one admitted request to its worker and streams the answer back.

`proxy` retries and stops when the client leaves, `exchange` is one attempt at one worker. Imports
`admission`, `routing` and `workers`.
"""
