"""The service: database, job engine, REST API, dashboard, command line."""

GARBAGE_AFTER = 20_000
"""New containers before the garbage collector of a program of ours runs; Python's own 700 are two or three requests."""

STACK_BYTES = 8 << 20
"""The stack of a thread of ours. Under `ulimit -s unlimited` it would be 2 MiB, and OpenBLAS, whose factorisation takes
half a MiB a level, would end the process with the first prediction."""

SWITCH_S = 0.001
"""How long a thread of a server may go on while another waits for its turn. With Python's own 5 ms each answer from
memory would come so much later while a long answer is put together."""
