from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.tuner.compile.compilation import Compilation
from tilewright.tuner.compile.compiler import compile_now


@pytest.fixture(scope="module")
def stages(benchmark_module):
    return benchmark_module("compile_stages")


def told(stages, monkeypatch, capsys, *arguments):
    small = ["--variant", "tiled", "--shape", "64x64x64", "--configurations", "2", "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", ["compile_stages.py", *small, *map(str, arguments)])
    stages.main()
    return capsys.readouterr().out.splitlines()


def test_the_stages_make_up_the_whole_and_other_machine_code_is_noticed(stages, monkeypatch, capsys, tmp_path):
    before = tmp_path / "before.json"
    row = json.loads(told(stages, monkeypatch, capsys, "--out", before)[0])
    assert sum(row["shares"].values()) == pytest.approx(1, abs=0.01)
    assert all(share > 0 for share in row["shares"].values())
    assert 0 < row["empty_kernel_cpu_ms"] < row["mean_cpu_ms"] <= row["slowest_cpu_ms"]

    document = json.loads(before.read_text())
    document["cubins"][1] = "another"
    before.write_text(json.dumps(document))
    assert told(stages, monkeypatch, capsys, "--against", before)[1].startswith("1 of 2 cubins are the same")


def test_a_softmax_has_the_same_machine_code_for_more_rows_and_another_for_longer_ones(benchmark_module):
    every_variant = benchmark_module("stages.every_variant")
    kernel = catalogue().get("softmax")
    problem = kernel.problem({"m": 4096, "n": 1000})

    def default_of(kernel, problem, variant, limits):
        return kernel.space(problem, limits, [variant]).defaults()

    rows = every_variant.rows(iter([(kernel, problem)]), default_of, lambda _works: {}, with_kept=True)
    by_variant = {(row["variant"], row["arch"]): row for row in rows}
    assert by_variant.keys() == {
        (v.name, arch) for v in kernel.variants if v.supports(problem) for arch in ("sm_90", "sm_80")
    }
    kept = by_variant["online", "sm_90"]["kept"]
    assert (kept["m"], kept["n"], kept["BLOCK"]) == (1, 0, 0)


def test_of_several_functions_those_that_are_the_same_count_by_their_bytes(benchmark_module):
    part_kept = benchmark_module("stages.machine_code").part_kept
    small, large = {"gemm": (10, "a"), "gemm_pack": (30, "b")}, {"gemm": (20, "c"), "gemm_pack": (30, "b")}
    assert part_kept(small, large) == 0.75


@pytest.mark.parametrize(
    ("kernel_name", "variant", "shape"),
    [
        ("gemm", "tensor3xfp16_sm90", {"m": 1023, "n": 1025, "k": 1027}),
        pytest.param("linear", "tensor3xfp16_sm90", {"m": 300, "n": 512, "k": 2048}, marks=pytest.mark.exhaustive),
        pytest.param(
            "conv2d",
            "pointwise3xfp16_sm90",
            {"channels": 256, "filters": 512, "kernel_h": 1, "kernel_w": 1},
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_what_configurations_share_has_the_same_code_in_each_of_them(benchmark_module, kernel_name, variant, shape):
    functions_of = benchmark_module("stages.machine_code").functions_of
    kernel = catalogue().get(kernel_name)
    images = dict.fromkeys(("batch", "height", "width"), 28) if "channels" in shape else {}
    problem = kernel.problem(images | shape)
    feasible = kernel.space(problem, benchmark_module("stages.every_variant").H200, [variant]).feasible
    work = Compilation.of(kernel, problem, feasible[len(feasible) - 1], "sm_90", "nvrtc")
    assert work.shared is not None
    assert work.shared == Compilation.of(kernel, problem, feasible[0], "sm_90", "nvrtc").shared
    assert dict(work.definitions) != dict(work.shared.definitions)
    shared = functions_of(compile_now(work.shared).cubin)
    assert shared.keys() == {f"{kernel_name}_survey"}
    whole = functions_of(compile_now(replace(work, source=kernel.source(variant))).cubin)
    assert whole == shared | functions_of(compile_now(replace(work, shared=None)).cubin)
