"""Ids of rows."""

import time
import uuid

from tilewright.service.store.models import uuid7


def test_ids_sort_by_the_moment_they_were_made():
    ids, begun_ms = [], time.time_ns() // 1_000_000
    for _ in range(300):
        ids.append(uuid7())
        time.sleep(1e-6)  # longer than the 244 ns that an id tells apart
    assert ids == sorted(ids)
    assert {(one.version, one.variant) for one in ids} == {(7, uuid.RFC_4122)}
    assert begun_ms <= ids[0].int >> 80 <= ids[-1].int >> 80 <= time.time_ns() // 1_000_000
