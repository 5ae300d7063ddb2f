"""The pages of made-up reports and what real ones measure, as tests/data/report has them.

    PYTHONPATH=tests/tuner:tests/tuner/report python -m recorded_pages

writes them anew, after a change of a page that was meant.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from made_ladder import made_report, time_of

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.enumeration.configuration import Values
from tilewright.kernels.kernel import Variant
from tilewright.tuner.report.ladders import LADDERS
from tilewright.tuner.report.pages import files
from tilewright.tuner.report.scales import scale_of

RECORD = Path(__file__).parents[2] / "data" / "report"


def pages() -> dict[str, str]:
    """All files of a GPU's report, and a page of the CPU device whose last step is slower than the first."""
    report = made_report()
    slower = tuple(replace(s, time=time_of(3.0)) if s.key == "library" else s for s in report.steps)
    on_cpu = made_report(kind="cpu", l2="cold", steps=slower, peaks={}, notes=())
    return {f"cuda-{name}": text for name, text in files(report).items()} | {
        "cpu.md": files(on_cpu)["gemm.md"],
        "plans.txt": "\n".join(plans()),
    }


def plans() -> Iterator[str]:
    """What each ladder measures: its scales, and its steps with how many of random configurations they admit."""
    for ladder in LADDERS.values():
        kernel = catalogue().get(ladder.kernel)
        yield repr(replace(ladder, steps=()))
        yield from (repr(scale_of(ladder, kind, quick=quick)) for kind in ("cuda", "cpu") for quick in (False, True))
        for step in ladder.steps:
            drawn = [values for name in step.variants for values in random_values(kernel.variant(name))]
            yield f"{step!r} {sum(map(step.admits, drawn))} of {len(drawn)}"


def random_values(variant: Variant, count: int = 100) -> Iterator[Values]:
    """Random values of every parameter, the same each time."""
    generator = random.Random(variant.name)
    for _ in range(count):
        yield Values({one.name: generator.choice(one.values) for one in variant.parameters})


if __name__ == "__main__":
    RECORD.mkdir(exist_ok=True)
    for name, text in pages().items():
        (RECORD / name).write_text(text, encoding="utf-8")
