"""The limits of this machine, measured once, and how near the engine's steps come to them.

`measurement` decides what is read and multiplied, within its time; `memory_reader` reads,
`products` multiplies; `gpu` does both where a GPU would compute. `limits_file` keeps the result for all
processes of a user, and has the lock of the machine. `measure_now` measures at once, and `python -m` this
room prints that. `engine_roofline` is the engine process's: while there is nothing else to do it has a
`measuring_process` measure. Imports torch (`products` and `gpu`, outside engines), `engine`, `runtime`.
"""
