"""Scratch memory keeps its limit and is given back; a launch without room for it runs another configuration."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.kernels.catalogue import Catalogue, catalogue
from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.own import own_kernel
from tilewright.kernels.space import Configuration
from tilewright.tuner.runtime import NoRoomError, Runtime, UntunedWarning, release
from tilewright.tuner.runtime.any_size.ranges import Ranges, SizeRange
from tilewright.tuner.runtime.any_size.tables import as_table
from tilewright.tuner.runtime.choice import Choice
from tilewright.tuner.runtime.errors import LaunchError
from tilewright.tuner.runtime.known.answers import AnswerCache
from tilewright.tuner.runtime.launches.host import host_place
from tilewright.tuner.runtime.memory.host import HostWorkspace
from tilewright.tuner.runtime.memory.room import HOST, REFUSED_S, ROOM, SETTING, Room, limit_bytes

MB = 10**6
SOURCE = """
#include "common/at_launch.cuh"
#ifndef SHAPE_M
#define SHAPE_M 8
#endif
extern "C" __global__ void twice(const float* x, float* y SIZE_PARAMETER
#if KEEPS
    , unsigned char* __restrict__ workspace
#endif
) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= SHAPE_M) return;
#if KEEPS
  float* kept = reinterpret_cast<float*>(workspace + (1 << 16));
  kept[i] = x[i];
  y[i] = 2 * kept[i];
#else
  y[i] = 2 * x[i];
#endif
}
"""
DECLARATION = """
from tilewright.kernels.kernel import Kernel, Tensor, Variant, covering, shape_of
from tilewright.kernels.space import choice

def variant(name, keeps, of_size=lambda m: 0):
    return Variant(
        name, "twice.cu", covering("m", block=("threads",)), (choice("threads", 32, 64), choice("KEEPS", keeps)),
        workspace_bytes=lambda c, p: of_size(p.shape["m"]), takes_size=lambda p: p.at_launch == "m",
    )

KERNEL = Kernel(
    name="twice",
    arguments=(Tensor("x", "input", shape_of("m")), Tensor("y", "output", shape_of("m"))),
    variants=(
        variant("much", 1, lambda m: (1 << 16) + 4000 * m),
        variant("some", 1, lambda m: (1 << 16) + 40 * m),
        variant("none", 0),
    ),
    launch_axes=("m",),
    reference=lambda _problem, arrays, _scalars: 2 * arrays["x"],
    example_shape={"m": 8},
)
"""


def of(variant: str) -> Configuration:
    return Configuration.of(variant, {"threads": 32, "KEEPS": int(variant != "none")})


@pytest.fixture
def twice(tmp_path: Path, cache: None) -> Kernel:
    folder = tmp_path / "twice"
    folder.mkdir()
    (folder / "twice.cu").write_text(SOURCE)
    (folder / "declaration.py").write_text(DECLARATION)
    return own_kernel(folder)


@pytest.fixture(autouse=True)
def nothing_is_kept() -> None:
    release()


def runtime_of(kernel: Kernel, tmp_path: Path, **named: Any) -> Runtime:
    return Runtime(answers=AnswerCache(tmp_path / "answers"), kernels=Catalogue({kernel.name: kernel}), **named)


def with_table(runtime: Runtime, kernel: Kernel, *variants: str) -> Any:
    """A launcher of all sizes, whose ranges end at 10, 20 and so on, with these variants."""
    family = Family.of(kernel, {"m": (1, 8192)})
    ranges = [SizeRange(10 * (i + 1), Choice(of(name), "table", "range")) for i, name in enumerate(variants)]
    runtime.tables.put(family, host_place().slug, as_table(kernel, family, Ranges(ranges, joins=False)))
    return runtime.best("twice", device="cpu")


def check(launch: Any, size: int) -> None:
    x, y = np.random.default_rng(size).standard_normal(size).astype(np.float32), np.full(size, np.nan, np.float32)
    launch(x, y)
    np.testing.assert_array_equal(y, 2 * x)


def test_what_launches_keep_is_counted_and_given_back(twice: Kernel, tmp_path: Path) -> None:
    launch = with_table(runtime_of(twice, tmp_path), twice, "some")
    for size in (1, 900, 30):  # the largest is taken once
        check(launch, size)
    assert ROOM.taken_bytes(HOST) == (1 << 16) + 40 * 900
    assert release() == (1 << 16) + 40 * 900
    assert ROOM.taken_bytes(HOST) == 0
    check(launch, 70)
    assert ROOM.taken_bytes(HOST) == (1 << 16) + 40 * 70


def test_a_range_beyond_the_limit_has_its_neighbours_configuration(
    twice: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SETTING, "0.1")
    launch = with_table(runtime_of(twice, tmp_path), twice, "some", "much", "none")
    assert [one.choice.configuration.variant for one in launch.ranges("cpu").ranges] == ["some", "some", "none"]
    check(launch, 15)


def test_a_size_without_room_runs_another_range_and_its_own_when_there_is_room(
    twice: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = with_table(runtime_of(twice, tmp_path), twice, "some", "much", "none")
    check(launch, 15)
    much = ROOM.taken_bytes(HOST)
    release()
    monkeypatch.setenv(SETTING, "0.1")  # after the ranges were chosen: as if others had taken the memory
    check(launch, 15)
    assert 0 < ROOM.taken_bytes(HOST) < much  # `some`, the nearest that needs less
    monkeypatch.delenv(SETTING)
    check(launch, 15)
    assert ROOM.taken_bytes(HOST) > much


def test_a_family_without_a_smaller_configuration_runs_a_default_or_refuses(
    twice: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = with_table(runtime_of(twice, tmp_path), twice, "much")
    strict = with_table(runtime_of(twice, tmp_path, only_tuned=True), twice, "much")
    check(launch, 3)
    check(strict, 3)
    release()
    monkeypatch.setenv(SETTING, "0")
    with pytest.raises(NoRoomError, match=rf"0\.07.* MB is needed, and 0 MB of {SETTING}=0 are in use"):
        check(strict, 3)
    with pytest.warns(UntunedWarning, match="default configuration"):
        check(launch, 3)
    with warnings.catch_warnings(action="error"):
        check(launch, 4)  # warned of once


def test_an_exact_problem_runs_its_default_where_there_is_no_room(
    twice: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, problem = runtime_of(twice, tmp_path), twice.problem({"m": 8})
    answer = {"variant": "much", "configuration": dict(of("much").values), "match": "exact", "time_ms": 1.0}
    runtime.learn(problem, host_place(), answer | {"source_hash": twice.source_hash("much")})
    launch = runtime.best("twice", m=8)
    check(launch, 8)
    assert ROOM.taken_bytes(HOST) == (1 << 16) + 4000 * 8
    release()
    monkeypatch.setenv(SETTING, "0")
    with pytest.warns(UntunedWarning, match=rf"{SETTING}=0(.|\n)*default configuration"):
        check(launch, 8)
    assert ROOM.taken_bytes(HOST) == 0


def test_answers_beyond_the_limit_are_not_taken(twice: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, problem = runtime_of(twice, tmp_path), twice.problem({"m": 8})
    answer = {"variant": "much", "configuration": dict(of("much").values), "match": "exact", "time_ms": 1.0}
    runtime.learn(problem, host_place(), answer | {"source_hash": twice.source_hash("much")})
    assert runtime.best("twice", m=8).choice("cpu").configuration == of("much")
    monkeypatch.setenv(SETTING, "0.01")
    with pytest.warns(UntunedWarning):
        chosen = runtime_of(twice, tmp_path).best("twice", m=8).choice("cpu")
    assert chosen.configuration.variant == "none"


def test_a_refusal_holds_for_a_while_and_until_something_is_given_back() -> None:
    now = [0.0]
    room = Room(clock=lambda: now[0])
    room.take(0, 7 * MB)
    room.take(0, 5 * MB)
    assert isinstance(room.refuse(0, 5 * MB, "out of memory"), NoRoomError)
    assert room.taken_bytes(0) == 7 * MB
    with pytest.raises(NoRoomError, match="has had no room for 5 MB"):
        room.check(0, 6 * MB)
    room.check(0, 4 * MB)  # less may fit
    room.check(1, 6 * MB)  # and another device has its own
    now[0] = REFUSED_S
    room.check(0, 6 * MB)
    room.take(0, 5 * MB)
    room.refuse(0, 5 * MB, "out of memory")
    room.give_back(0, 7 * MB)
    room.check(0, 6 * MB)
    room.take(0, 5 * MB)
    room.refuse(0, 5 * MB, "out of memory")
    room.ask_again()
    room.check(0, 6 * MB)


def test_a_limit_below_what_is_kept_admits_what_needs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room()
    room.take(0, 3 * MB)
    monkeypatch.setenv(SETTING, "2.5")
    room.check(0, 0)
    with pytest.raises(NoRoomError, match=rf"of 1e-06 MB is needed, and 3 MB of {SETTING}=2.5 are in use"):
        room.check(0, 1)
    room.give_back(0, 3 * MB)
    room.check(0, 2 * MB)


@pytest.mark.parametrize("text", ["much", "-1", "nan", "inf"])
def test_a_limit_that_is_no_number_is_an_error(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(SETTING, text)
    with pytest.raises(LaunchError, match=f"^{SETTING}: '{text}' is not a number of megabytes. Set 256"):
        limit_bytes()


def test_panels_count_as_they_are_launched() -> None:
    gemm = catalogue().get("gemm")
    variant = gemm.variant("tensor3xfp16_sm90")
    values, family = variant.space().default().values, Family.of(gemm, {"m": (1, 8192), "n": 512, "k": 512})
    assert variant.workspace_at_once(values, family.largest) == variant.workspace_bytes(values, family.at(2048))
    exact = family.exact(8192)
    assert variant.workspace_at_once(values, exact) == variant.workspace_bytes(values, exact)


def test_what_a_launcher_that_is_gone_kept_is_counted_no_more():
    before, workspace = ROOM.taken_bytes(HOST), HostWorkspace()
    workspace.memory(4096)
    assert ROOM.taken_bytes(HOST) == before + 4096
    del workspace
    assert ROOM.taken_bytes(HOST) == before
