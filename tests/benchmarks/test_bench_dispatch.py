"""The table of docs/launcher.md is what was measured."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_on_the_launcher_says_what_was_measured():
    measured = json.loads((ROOT / "benchmarks/results/h200/dispatch.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs/launcher.md").read_text(encoding="utf-8")
    stated = {
        name: (middle, over)
        for name, middle, over in re.findall(r"^\| `(.+?)` \| ([\d.]+) \| ([-+][\d.]+|) \|", page, re.MULTILINE)
    }
    for row in measured["rows"]:
        name = row["call"].removeprefix("PyCUDA ")
        over = f"{row['over_prepared_us']:+.1f}" if row["over_prepared_us"] else ""
        assert stated.pop(name) == (f"{row['median_us']:.1f}", over)
    assert not stated
    for fact in (measured["device"], measured["driver"], measured["date"][:10], measured["command"]):
        assert fact in page
