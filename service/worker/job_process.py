"""A job's process, put together: the runner, and what a device does between its trials.

`python -m tilewright.service.worker.job_process JOB EPOCH DEVICE PARENT_PID`
"""

from __future__ import annotations

import sys

from tilewright.service.worker import runner
from tilewright.service.worker.digits.desk import DigitsBetween
from tilewright.service.worker.ending import leave

if __name__ == "__main__":
    leave(runner.main(sys.argv[1:], [DigitsBetween]))
