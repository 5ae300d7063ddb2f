"""Runs tuning jobs: the engine, one child process per job, and maintenance."""

import gc

from tilewright.service import GARBAGE_AFTER

# Before the thousand modules of a worker or of a job's process come: an eighth of the time that importing them takes.
gc.set_threshold(GARBAGE_AFTER, 10, 10)
