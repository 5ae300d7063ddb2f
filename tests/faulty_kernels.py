"""Kernels of the catalogue with a fault in a source, as a wrong prediction would meet it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from tilewright.kernels.catalogue import Catalogue, catalogue
from tilewright.tuner.runtime.answers import AnswerCache


def faulty(folder: Path, kernel: str, source: str, right: str, wrong: str) -> Catalogue:
    """The catalogue with that kernel's source changed: `right` stands in it once, and `wrong` in its place."""
    good = catalogue().get(kernel)
    for name in {good.folder.name, "gemm", "norm"}:
        shutil.copytree(good.folder.parent / name, folder / name, dirs_exist_ok=True)
    path = folder / good.folder.name / source
    text = path.read_text(encoding="utf-8")
    assert text.count(right) == 1
    path.write_text(text.replace(right, wrong), encoding="utf-8")
    bad = replace(good, folder=folder / good.folder.name)
    return Catalogue(catalogue().by_name | {kernel: bad})


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
