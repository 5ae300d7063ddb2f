"""Ranges of a table that the library's call serves: found by tuning, cut out of ranges, launched, and given up."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.family import Family
from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.families.cover import Span
from tilewright.tuner.families.library import with_library
from tilewright.tuner.families.limits import FamilyBudget
from tilewright.tuner.families.table import Table
from tilewright.tuner.families.tune import tune_family
from tilewright.tuner.runtime.any_size import host
from tilewright.tuner.runtime.any_size.library import call_of_range
from tilewright.tuner.runtime.any_size.tables import as_table, ranges_of
from tilewright.tuner.runtime.known.answers import AnswerCache
from tilewright.tuner.runtime.launches.host import host_place
from tilewright.tuner.runtime.runtime import Runtime

GEMM = catalogue().get("gemm")
N, K, HIGH = 96, 80, 24
FAMILY = Family.of(GEMM, {"m": (1, HIGH), "n": N, "k": K})
NAIVE = Configuration.of("naive", {"BLOCK_X": 32, "BLOCK_Y": 4})


@pytest.fixture(scope="module")
def table() -> Table:
    """Of one configuration, which one thread of OpenBLAS is far ahead of from a few rows on."""
    device = CpuDevice()
    found = tune_family(device, GEMM, FAMILY, FamilyBudget(seconds=0, sizes=2), seed=1, starts=[NAIVE])
    device.close()
    if found.library is None:
        pytest.skip("NumPy has another BLAS than OpenBLAS here")
    return found


@pytest.fixture
def document(table: Table) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(json.dumps(table.as_json(GEMM)))
    return read


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Configuration]:
    """The configurations of ours that were made ready."""
    made: list[Configuration] = []
    build = host._SizedFunction.__init__

    def noting(self: Any, kernel: Any, family: Any, choice: Any) -> None:
        made.append(choice.configuration)
        build(self, kernel, family, choice)

    monkeypatch.setattr(host._SizedFunction, "__init__", noting)
    return made


def launcher(folder: Path, document: dict[str, Any], **more: Any) -> Any:
    runtime = Runtime(answers=AnswerCache(folder), shipped_records=False)
    runtime.tables.put(FAMILY, host_place().slug, document)
    return runtime.best("gemm", n=N, k=K, device="cpu", **more)


def is_right(launch: Any, m: int, alpha: float = 1.0) -> bool:
    generator = np.random.default_rng(m)
    a = generator.standard_normal((m, K)).astype(np.float32)
    b = generator.standard_normal((K, N)).astype(np.float32)
    found = launch(a, b, np.full((m, N), np.nan, np.float32), alpha=alpha)
    return bool(np.allclose(found, alpha * (a.astype(np.float64) @ b), rtol=1e-4, atol=1e-4))


def test_the_table_says_which_ranges_are_the_librarys(table: Table, document: dict[str, Any]) -> None:
    last = document["ranges"][-1]
    assert last["library"] == {"name": table.own_choice, "faster": True, "launched": True}
    assert {last["low"], HIGH} <= set(last["verified_at"])  # ours, which runs where the call cannot be made
    [largest] = [one for one in document["measured"] if one["size"] == HIGH]
    assert 0 < largest["own_choice_ms"] < largest["time_ms"]


def test_a_range_of_the_library_is_launched_by_its_call(
    table: Table, document: dict[str, Any], tmp_path: Path, built: list[Configuration]
) -> None:
    launch = launcher(tmp_path, document)
    assert all(is_right(launch, m, alpha) for m, alpha in ((HIGH, 1.0), (HIGH - 1, -0.5), (HIGH + 9, 1.0)))
    assert built == []
    choice = launch.ranges().choice(HIGH)
    assert (choice.library_name, choice.is_behind, choice.match) == (table.own_choice, True, "range")


def test_ours_runs_where_another_version_is_installed(
    table: Table, document: dict[str, Any], tmp_path: Path, built: list[Configuration]
) -> None:
    document["ranges"][-1]["library"]["name"] = "OpenBLAS 0.1 of NumPy 1.0 (cblas_sgemm, 1 thread)"
    assert is_right(launcher(tmp_path, document), HIGH)
    assert built == [table.spans[-1].configuration]


def test_a_range_that_does_not_say_so_is_launched_by_its_configuration(
    table: Table, document: dict[str, Any], tmp_path: Path, built: list[Configuration]
) -> None:
    """Tables of versions before have no such word."""
    for one in document["ranges"]:
        one["library"] = {"faster": True}
    assert is_right(launcher(tmp_path, document), HIGH)
    assert built == [table.spans[-1].configuration]


def test_a_lock_keeps_whose_range_it_is(document: dict[str, Any]) -> None:
    found = ranges_of(document, GEMM, FAMILY, host_place())
    assert found is not None
    again = ranges_of(json.loads(json.dumps(as_table(GEMM, FAMILY, found))), GEMM, FAMILY, host_place())
    assert again is not None
    names = [[one.choice.library_name for one in ranges.ranges] for ranges in (found, again)]
    assert names[0] == names[1]
    assert names[0][-1] is not None


def test_rows_that_must_not_depend_on_their_number_are_never_the_librarys(document: dict[str, Any]) -> None:
    device, family = CpuDevice(), Family.of(GEMM, {"m": (1, HIGH), "n": N, "k": K}, batch_invariant=True)
    found = tune_family(device, GEMM, family, FamilyBudget(seconds=None, trials=1, sizes=2), seed=1)
    device.close()
    assert [span.is_library for span in found.spans] == [False]
    ranges = ranges_of(document, GEMM, FAMILY, host_place())
    assert ranges is not None
    choice = ranges.ranges[-1].choice
    assert call_of_range(FAMILY, choice) == choice.library_name
    assert call_of_range(family, choice) is None


@given(st.sets(st.integers(1, 40), min_size=1), st.sets(st.integers(1, 40)), st.integers(1, 39))
def test_ranges_are_cut_where_the_library_gets_ahead(measured: set[int], ahead: set[int], cut: int) -> None:
    other = Configuration.of("naive", {"BLOCK_X": 32, "BLOCK_Y": 8})
    spans = [Span(1, cut, NAIVE), Span(cut + 1, 40, other)]
    times = {NAIVE: dict.fromkeys(measured, 2.0), other: dict.fromkeys(measured, 2.0)}
    library = {size: 1.0 if size in ahead else 3.0 for size in measured}
    found = with_library(spans, times, library, {(one, size) for one in times for size in ahead})
    assert (found[0].low, found[-1].high) == (1, 40)
    assert all(after.low == before.high + 1 for before, after in pairwise(found))
    assert all(span.configuration == (NAIVE if span.high <= cut else other) for span in found)
    for size in measured:
        [serving] = [span for span in found if span.low <= size <= span.high]
        assert serving.is_library == (size in ahead)
    assert all(any(span.low <= size <= span.high for size in measured) for span in found if span.is_library)
