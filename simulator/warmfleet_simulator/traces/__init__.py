"""Traces: requests with the times of their arrivals, read one after the other.

Public: `request` (`TraceRequest`, `Segment`), `traffic` (`Traffic`, `RecordedTraffic`) and `mooncake`
(`read_mooncake`, `TraceFile`).
"""
