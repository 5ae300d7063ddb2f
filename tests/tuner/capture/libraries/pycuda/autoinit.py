from __future__ import annotations

import atexit

from pycuda.driver import Context

atexit.register(Context.pop)
