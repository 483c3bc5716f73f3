"""Traces: requests with the times of their arrivals, read one after the other.

Public: `request` (`TraceRequest`, `Segment`) and `mooncake` (`read_mooncake`, `TraceFile`).
"""
