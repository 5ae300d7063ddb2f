"""The fuzz and the check on a GPU, as far as they run without one."""

import argparse
import dataclasses
import random
import shutil

import gpu_check
import pytest
from contracts.variant import H200

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.own import limits_of
from tilewright.kernels.space import Configuration

torch = pytest.importorskip("torch")

import gpu_fuzz  # noqa: E402
from fuzz import launches, numbers, oracles  # noqa: E402
from fuzz.cases import Case, random_case  # noqa: E402

NAIVE = Configuration.of("naive", {"BLOCK_X": 32, "BLOCK_Y": 1})


@pytest.fixture(autouse=True)
def caches(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "fuzz"))


@pytest.mark.parametrize("name", ["gemm", "softmax", "linear_quantized"])
def test_every_variant_gets_a_problem_that_it_serves_and_the_same_for_the_same_seed(name):
    kernel = catalogue().get(name)
    for variant in kernel.variants:
        if variant.name in {"tensor_fp64", "tensor3xtf32_sliced"}:
            continue  # seconds
        case = random_case(kernel, variant, H200, random.Random("1 a"))
        assert case == random_case(kernel, variant, H200, random.Random("1 a"))
        assert case.configuration.variant == variant.name
        assert variant.admits(case.problem, H200)
        assert variant.space().violated(case.configuration.values, case.problem, H200) is None


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_factors_of_every_kind_are_of_the_dtype_and_lie_along_the_axis(dtype):
    drawn, kind_of = numbers.Numbers("cpu", 3), getattr(torch, dtype)
    for kind in numbers.FACTORS:
        for place, axis in ((0, 1), (1, 0)):
            factor = drawn.factor(kind, (24, 40), axis, place, kind_of)
            assert factor.shape == (24, 40)
            assert factor.dtype == kind_of
            assert kind == "special" or factor.isfinite().all()
    assert (drawn.factor("one_hot", (24, 40), 1, 0, kind_of).sum(1) == 1).all()
    assert (drawn.factor("one_hot", (24, 40), 0, 0, kind_of).sum(0) == 1).all()
    exponents = drawn.factor("lines_of_second", (24, 400), 0, 1, kind_of).abs().amax(0).log2()
    assert exponents.max() - exponents.min() > numbers.REACH[kind_of]


def checks(kernel, case, kinds=None):
    """What is found for each kind of numbers."""
    placed = launches.CaseOnDevice(kernel, case, "cpu", 7)
    return {kind: placed.check(kind) for kind in kinds or placed.kinds}


VIEWS = {"batch": 2, "lda": 12, "ldb": 40, "ldc": 9, "stride_a": 0}


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(
    ("shape", "dtype", "options"),
    [
        ({"m": 5, "n": 7, "k": 9}, "float32", {}),
        ({"m": 5, "n": 7, "k": 9, **VIEWS}, "float32", {"trans_b": True, "beta_zero": False}),
        ({"m": 6, "n": 5, "k": 33}, "bfloat16", {"trans_a": True, "packed_b": True, "output": "float32"}),
    ],
)
def test_a_right_kernel_is_right_for_every_kind_in_views_and_packed(shape, dtype, options):
    kernel = catalogue().get("gemm")
    case = Case(kernel.problem(shape, dtype, options), NAIVE)
    found = checks(kernel, case)
    assert not {kind: check for kind, check in found.items() if not check.is_right}
    assert all(check.findings.judged > 0 for kind, check in found.items() if kind != "large")


def faulty(tmp_path, old, new):
    """gemm with that change in its simplest source or the one that stores."""
    shutil.copytree(catalogue().get("gemm").folder.parent, tmp_path / "kernels")
    for path in (tmp_path / "kernels" / "gemm").glob("[np]*.cu*"):
        path.write_text(path.read_text().replace(old, new))
    return dataclasses.replace(catalogue().get("gemm"), folder=tmp_path / "kernels" / "gemm")


@pytest.mark.parametrize(
    ("old", "new", "kinds"),
    [
        ("p < K; ++p", "p < K - 1; ++p", {"normal", "ones", "integers", "lines_of_both"}),
        ("column >= N) return", "column >= N - 1) return", {"normal"}),
    ],
)
def test_a_wrong_kernel_is_found_out(tmp_path, old, new, kinds):
    kernel = faulty(tmp_path, old, new)
    assert new in "".join(kernel.source("naive"))
    case = Case(kernel.problem({"m": 5, "n": 7, "k": 9}), NAIVE)
    found = checks(kernel, case, kinds)
    assert all(not check.is_right for check in found.values())


def test_writes_beside_the_output_are_found_out():
    kernel = catalogue().get("gemm")
    case = Case(kernel.problem({"m": 5, "n": 7, "k": 9, "ldc": 9}), NAIVE)
    placed = launches.CaseOnDevice(kernel, case, "cpu", 7)
    launch = placed.launcher

    def writing(**arrays):
        launch(**arrays)
        arrays["C"].as_strided((5, 9), (9, 1))[0, 7] = 1.0

    placed.launcher = writing
    assert "elements of C" in placed.check("normal").trespasses


@pytest.mark.parametrize(
    ("right", "got", "is_wrong"),
    [
        (65519.0, float("inf"), True),
        (65520.0, float("inf"), False),  # half a step above the largest float16: it rounds to infinity
        (65533.4, float("inf"), False),
        (65519.0, 65504.0, False),
        (-65533.4, float("inf"), True),
    ],
)
def test_only_what_rounds_to_infinity_may_be_infinite(right, got, is_wrong):
    one = torch.tensor([right], dtype=torch.float64)
    expected = oracles.Right(one, torch.full_like(one, 1e-3), one.abs())
    findings = oracles.judged(torch.tensor([got], dtype=torch.float16), expected, torch.float16, is_whole=False)
    assert bool(findings.wrong) == is_wrong


def test_numbers_near_the_end_of_every_dtype_are_judged():
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        one = torch.ones(1, dtype=torch.float64)
        right = oracles.Right(one, torch.full_like(one, 1e-9), one)
        assert not oracles.judged(torch.ones(1, dtype=dtype), right, dtype, is_whole=False).wrong


@pytest.mark.parametrize(("dtype", "options"), [("float32", {"accuracy": "tf32"}), ("float16", {})])
def test_subnormal_factors_are_as_coarse_as_tensor_cores_have_them(dtype, options):
    problem = catalogue().get("gemm").problem
    kind = getattr(torch, dtype)
    a = torch.full((1, 8), 3 * torch.finfo(kind).smallest_normal * 2.0**-9, dtype=kind)
    b, c = torch.ones((8, 1), dtype=kind), torch.zeros((1, 1), dtype=kind)
    posed = problem({"m": 1, "n": 1, "k": 8}, dtype, options)
    right = oracles.gemm(posed, {"A": a, "B": b, "C": c}, {"alpha": 1.0, "beta": 0.0})["C"]
    normal = oracles.gemm(posed, {"A": a * 2.0**10, "B": b, "C": c}, {"alpha": 1.0, "beta": 0.0})["C"]
    assert float(right.bound / right.value) > 30 * float(normal.bound / normal.value)


def test_a_run_says_what_it_checked(monkeypatch, capsys):
    tally = gpu_fuzz.Tally()
    options = argparse.Namespace(seed=1, device="cpu", kinds=2, minutes=0.0)
    limits = gpu_fuzz.host.host_place().limits
    monkeypatch.setattr(gpu_fuzz, "cases", lambda *_, **__: iter([(random_case(*GEMV, limits, random.Random(5)), "")]))
    gpu_fuzz.run([("gemv", "naive")], options, limits, tally)
    [row] = tally.rows()
    assert (row["kernel"], row["variant"], row["configurations"], row["checks"], row["wrong"]) == (
        *("gemv", "naive", 1, 2, 0),
    )
    assert "gemv" in tally.table()[1]
    tally.fail(random_case(*GEMV, limits, random.Random(5)), "it does not compile")
    assert tally.rows()[0]["wrong"] == 1
    assert "does not compile" in capsys.readouterr().out


GEMV = catalogue().get("gemv"), catalogue().get("gemv").variant("naive")


HOPPER = limits_of((9, 0))


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("kernel", catalogue().kernels(), ids=lambda kernel: kernel.name)
def test_twelve_shapes_bring_every_variant_to_problems_that_it_serves(kernel):
    assert len(gpu_check.shapes(kernel)) == 12
    problems = list(gpu_check.problems(kernel))
    for variant in kernel.variants:
        served = [problem for problem in problems if kernel.usable_variants(problem, HOPPER, [variant.name])]
        assert len({tuple(problem.shape.items()) for problem in served}) >= 2, variant.name
