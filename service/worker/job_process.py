"""The program of a job's process: `python -m tilewright.service.worker.job_process JOB EPOCH DEVICE PARENT_PID`."""

from __future__ import annotations

import sys

from tilewright.service.worker import runner
from tilewright.service.worker.ending import leave

if __name__ == "__main__":
    leave(runner.main(sys.argv[1:]))
