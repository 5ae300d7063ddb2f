"""What a page costs: CPU time of this process and of PostgreSQL, which is the same however busy the machine is."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import text

from tilewright.service.store import session as store_session

BACKENDS = text("SELECT pid FROM pg_stat_activity WHERE datname = current_database()")


def of_postgresql_s() -> float:
    """CPU time of the backends that serve this database; the system counts it in hundredths of a second."""
    with store_session.session_scope() as session:
        pids = session.scalars(BACKENDS).all()
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(of[11]) + int(of[12]) for of in fields) / os.sysconf("SC_CLK_TCK")


def cost_s(show: Callable[[], object]) -> float:
    """Of one call of `show`."""
    before, began = of_postgresql_s(), time.process_time()
    show()
    own_s = time.process_time() - began
    return own_s + of_postgresql_s() - before
