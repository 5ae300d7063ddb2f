"""Runs tuning jobs: the engine, one child process per job, and maintenance."""

import gc
import threading

from tilewright.service import GARBAGE_AFTER, STACK_BYTES

# Before the thousand modules of a worker or of a job's process come: an eighth of the time that importing them takes.
gc.set_threshold(GARBAGE_AFTER, 10, 10)
threading.stack_size(STACK_BYTES)
