from __future__ import annotations

import pytest

from tilewright.service.cli.report import print_best
from tilewright.service.operations.answers import BestAnswer, LaunchAnswer, LibraryAnswer, Match, ProblemAnswer

LIBRARY = LibraryAnswer(name="cuBLAS", time_ms=2.0, faster=False, speedup=2.0, bound_ratio=0.5)


def answer(dtype="float32", **more):
    options = {"accuracy": "fp32"} if dtype == "float32" else {}
    return BestAnswer(
        match="exact",
        problem=ProblemAnswer(kernel="gemm", shape={"m": 1, "n": 2, "k": 3}, dtype=dtype, options=options),
        tuned_problem=None,
        device_model="test",
        variant="naive",
        configuration={},
        launch=LaunchAnswer(grid=(1, 1, 1), block=(32, 1, 1), shared_bytes=0),
        flags=[],
        expected_loss=0,
        environment=None,
        verified_at=None,
        source_hash="",
        **{"library": None, "time_ms": 1.0} | more,
    )


@pytest.mark.parametrize(
    ("best", "line"),
    [
        (
            answer(accuracy="fp32", bound_ratio=0.25, library=LIBRARY),
            "fp32, off by 12% of the allowed error, the library by 25%",
        ),
        (answer(accuracy="tf32", bound_ratio=0.25), "tf32, off by 12% of the allowed error"),
        (answer(accuracy="tf32"), "tf32"),
        (answer("float64", bound_ratio=0.25), "float64, off by 12% of the allowed error"),
    ],
)
def test_accuracy_and_errors_have_a_line(capsys, best, line):
    print_best(best)
    shown = [text.split(maxsplit=1)[1] for text in capsys.readouterr().out.splitlines() if text.startswith("accuracy")]
    assert shown == [line]


@pytest.mark.parametrize(("kernel", "operand"), [("gemm", "B"), ("linear", "W"), ("of_somebody_else", "an input")])
def test_the_time_of_a_pack_is_said_beside_the_time_that_leaves_it_out(capsys, kernel, operand):
    packed = answer(time_ms=0.031, pack_ms=0.012)
    print_best(packed.model_copy(update={"problem": packed.problem.model_copy(update={"kernel": kernel})}))
    assert f"0.031 ms, and 0.012 ms once to pack {operand}\n" in capsys.readouterr().out


def test_what_rests_on_shipped_records_says_so_and_which_to_use(capsys):
    library = LibraryAnswer(name="cuBLAS 13.1", time_ms=0.5, faster=True, speedup=0.5, expected=True)
    more = {"match": Match.PREDICTED, "shipped": "shipped records of an NVIDIA H200 (…)", "library": library}
    print_best(answer().model_copy(update=more))
    shown = " ".join(capsys.readouterr().out.split())
    assert "predicted from shipped records of an NVIDIA H200 (…)" in shown
    assert "cuBLAS 13.1: 0.5 ms expected, not timed; use the library here: it may well be faster (0.50)" in shown


def test_what_comes_from_a_table_names_the_sizes_that_it_serves(capsys):
    more = {"match": Match.RANGE, "sizes": "m=65..1024", "expected_loss": 0.05}
    print_best(answer().model_copy(update=more))
    assert "range match, for m=65..1024, expected 5 % above the best possible time" in capsys.readouterr().out
