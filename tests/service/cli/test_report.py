from __future__ import annotations

import pytest

from tilewright.service.cli.report import print_best
from tilewright.service.operations.answers import BestAnswer, LaunchAnswer, LibraryAnswer, ProblemAnswer

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
        time_ms=1.0,
        expected_loss=0,
        environment=None,
        verified_at=None,
        source_hash="",
        **{"library": None} | more,
    )


@pytest.mark.parametrize(
    ("best", "line"),
    [
        (
            answer(accuracy="fp32", bound_ratio=0.25, library=LIBRARY),
            "fp32, error at most 0.25 of its bound, the library's 0.50",
        ),
        (answer(accuracy="tf32", bound_ratio=0.25), "tf32, error at most 0.25 of its bound"),
        (answer(accuracy="tf32"), "tf32"),
        (answer("float64", bound_ratio=0.25), "float64, error at most 0.25 of its bound"),
    ],
)
def test_accuracy_and_errors_have_a_line(capsys, best, line):
    print_best(best)
    shown = [text.split(maxsplit=1)[1] for text in capsys.readouterr().out.splitlines() if text.startswith("accuracy")]
    assert shown == [line]
