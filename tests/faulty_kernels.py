"""Kernels with a fault in a source, as a wrong prediction would meet it; a table that says a source had one."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from tilewright.kernels.catalogue import Catalogue, catalogue
from tilewright.kernels.gemm.declaration import KERNEL as GEMM
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.sources import identity
from tilewright.kernels.sources.source import INCLUDE
from tilewright.tuner.runtime.known.answers import AnswerCache


def with_change(kernel: Kernel, folder: Path, file: str, right: str, wrong: str, most: int = -1) -> Kernel:
    """The kernel by a copy of all sources, in whose `file`, seen from the kernel's folder, `wrong` replaces `right`."""
    for source in INCLUDE.parent.rglob("*.cu*"):
        place = source.relative_to(INCLUDE if source.is_relative_to(INCLUDE) else INCLUDE.parent)
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, folder / place)  # headers lie beside the folder, where they are found first
    path = folder / kernel.folder.name / file
    text = path.read_text(encoding="utf-8")
    assert right in text
    path.write_text(text.replace(right, wrong, most), encoding="utf-8")
    return replace(kernel, folder=folder / kernel.folder.name)


def faulty(folder: Path, kernel: str, source: str, right: str, wrong: str) -> Catalogue:
    """The catalogue with that kernel's source changed."""
    return Catalogue(catalogue().by_name | {kernel: with_change(catalogue().get(kernel), folder, source, right, wrong)})


def planted(folder: Path, kernels: Catalogue, problem, place, configuration, match="predicted") -> AnswerCache:
    """An answer that names this configuration, as if a service had predicted it."""
    answers = AnswerCache(folder)
    kernel = kernels.get(problem.kernel)
    answers.put(
        problem,
        place,
        {
            "variant": configuration.variant,
            "configuration": dict(configuration.values),
            "match": match,
            "time_ms": 0.25,
            "library": None,
            "source_hash": kernel.source_hash(configuration.variant),
        },
    )
    return answers


FAULTY = "f" * 64


def say_that_tiled_was_faulty(folder, monkeypatch, kernel=GEMM):
    """The table, in place of the package's, until the test ends."""
    path = folder / "former.txt"
    path.write_text(f"# A table.\ncorrected {FAULTY[: identity.PREFIX]} {kernel.source_hash('tiled')}\n")
    rows = identity._read_former(path)
    monkeypatch.setattr(identity, "_former_sources", lambda: rows)
