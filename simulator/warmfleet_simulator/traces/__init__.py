"""Traces: requests with the times of their arrivals, read one after the other.

Public: `request` (`TraceRequest`, `Segment`), `traffic` (`Traffic`, `RecordedTraffic`), `reader`
(`read_trace`), `trace_file` (`TraceFile`) and `recorded` (`RecordedRequest`). One module per format
(`mooncake`, `azure`, `recorded`), each of them a `trace_format`.
"""
