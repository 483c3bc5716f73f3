"""The limits of this machine, measured once, and how near the engine's steps come to them.

`measurement` decides what is read and multiplied, in slices and within its time; `memory_reader` reads,
`products` multiplies. `limits_file` keeps the result for all processes of a user, and has the lock of the
machine. `engine_roofline` is the engine process's: it measures while there is nothing else to do;
`measure_now` measures at once, and `python -m` this room prints that. Imports torch (`products`), `engine`,
`runtime`.
"""
