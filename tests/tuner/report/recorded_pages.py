"""The pages of made-up reports, as tests/data/report has them.

    PYTHONPATH=tests/tuner:tests/tuner/report python -m recorded_pages

writes them anew, after a change of a page that was meant.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from made_ladder import made_report, time_of

from tilewright.tuner.report.pages import files

RECORD = Path(__file__).parents[2] / "data" / "report"


def pages() -> dict[str, str]:
    """All files of a GPU's report, and a page of the CPU device whose last step is slower than the first."""
    report = made_report()
    slower = tuple(replace(s, time=time_of(3.0)) if s.key == "library" else s for s in report.steps)
    on_cpu = made_report(kind="cpu", l2="cold", steps=slower, peaks={}, notes=())
    return {f"cuda-{name}": text for name, text in files(report).items()} | {"cpu.md": files(on_cpu)["gemm.md"]}


if __name__ == "__main__":
    RECORD.mkdir(exist_ok=True)
    for name, text in pages().items():
        (RECORD / name).write_text(text, encoding="utf-8")
