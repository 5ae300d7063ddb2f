"""autotune() in the place of Triton's own: which configuration a call is launched with, and that results are right."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from triton_kernels.application import Call, serve_calls
from triton_kernels.scaled import PROBLEM, SCALED, SOURCE, scaled_in

from tilewright.kernels.space import Configuration
from tilewright.tuner.child import Child
from tilewright.tuner.runtime.known.answers import AnswerCache
from tilewright.tuner.runtime.launches.host import host_place

pytest.importorskip("triton")
pytest.importorskip("torch")

FIRST, DEFAULT = ({"BLOCK": 16}, 8), ({"BLOCK": 32}, 1)
"""The first of the application's own configurations, and the declared kernel's default."""


@pytest.fixture(scope="module")
def application():
    """Launches in one process that has torch and Triton loaded."""
    child = Child(serve_calls, dies_with_parent=True)

    def answer(call):
        child.connection.send(call)
        return child.connection.recv()

    yield answer
    child.close()


def pinned(block, warps):
    return {"pinned": {PROBLEM: Configuration.of("blocks", {"BLOCK": block, "num_warps": warps})}}


def test_what_is_known_is_launched(application, tmp_path):
    kernel = scaled_in(tmp_path)
    known = {
        "variant": "blocks",
        "configuration": {"BLOCK": 128, "num_warps": 2},
        "match": "exact",
        "source_hash": kernel.source_hash("blocks"),
    }
    AnswerCache(tmp_path / "answers").put(PROBLEM, host_place(), known)
    assert application(Call(str(tmp_path))) == ([({"BLOCK": 128}, 2)], [True], [])


def test_what_is_pinned_goes_first_and_calls_like_it_follow(application, tmp_path):
    found, right, said = application(Call(str(tmp_path), pinned(64, 2), sizes=(100, 100)))
    assert (found, right, said) == ([({"BLOCK": 64}, 2)] * 2, [True] * 2, [])


def test_what_is_not_known_is_launched_by_default_with_one_warning_a_problem(application, tmp_path):
    found, right, said = application(Call(str(tmp_path), sizes=(100, 100, 61)))
    assert (found, right) == ([DEFAULT] * 3, [True] * 3)
    assert [category for category, _ in said] == ["UntunedWarning"] * 2
    assert "tilewright tune scaled --shape n=61" in said[1][1]


def test_a_service_that_is_away_costs_a_warning(application, tmp_path):
    found, right, said = application(Call(str(tmp_path), {"url": "http://127.0.0.1:9"}, sizes=(100, 61)))
    assert (found, right) == ([DEFAULT] * 2, [True] * 2)
    assert [category for category, _ in said].count("ServiceWarning") == 1


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"is_declared": False}, "no kernel folder declares the function scale"),
        ({"source": SOURCE.replace("x + place", "place + x")}, "scaled declares another function of that name"),
        ({"stride": 2}, "x has the shape (100,) and other strides"),
    ],
)
def test_a_call_that_is_no_declared_problem_has_the_first_configuration(application, tmp_path, changes, told):
    found, _, said = application(Call(str(tmp_path), pinned(64, 2), **changes, sizes=(100, 100)))
    assert found == [FIRST] * 2
    [(category, message)] = said
    assert category == "UntunedWarning"
    assert told in message


def test_what_the_application_prunes_is_not_launched(application, tmp_path):
    found, right, _ = application(Call(str(tmp_path), is_declared=False, is_pruned=True, sizes=(100, 10)))
    assert found == [({"BLOCK": 512}, 4), FIRST]
    assert right == [True, True]


def test_ranks_that_would_differ_launch_the_same(application, tmp_path):
    """Each has another configuration pinned, as ranks have that asked before and after a new result."""
    other = Child(serve_calls, dies_with_parent=True)
    try:
        other.connection.send(Call(str(tmp_path), pinned(128, 1), rank=1))
        with ThreadPoolExecutor(1) as thread:
            mine = thread.submit(application, Call(str(tmp_path), pinned(64, 2), rank=0))
            theirs = other.connection.recv()
        assert theirs == mine.result()
        assert theirs[1:] == ([True], [])
        assert theirs[0][0] in (({"BLOCK": 64}, 2), ({"BLOCK": 128}, 1))
    finally:
        other.close()


COMPILED = """
import sys
import torch, triton
from triton_kernels.application import _function
from triton_kernels.scaled import SOURCE
from pathlib import Path
from tilewright.triton import autotune

scale = autotune([triton.Config({"BLOCK": 64})], ["n"])(_function(Path(sys.argv[1]), SOURCE))

def doubled(x):
    y = torch.empty_like(x)
    scale[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x=x, y=y, n=x.numel(), step=1, factor=2.0)
    return y

operator = torch.library.custom_op("app::doubled", doubled, mutates_args=(), schema="(Tensor x) -> Tensor")
operator.register_fake(torch.empty_like)
x = torch.randn(100)
compiled = torch.compile(lambda x: operator(x) + 1, fullgraph=True, backend="eager")
print(torch.equal(compiled(x), 2 * x + 1))
try:
    torch.compile(doubled, fullgraph=True, backend="eager")(x)
except Exception as error:
    print("launch it in a torch.library.custom_op" in str(error))
"""


def test_a_compiled_program_launches_it_in_an_operator_and_is_told_so(tmp_path):
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-W", "ignore", "-c", COMPILED, str(tmp_path)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout == "True\nTrue\n"


def test_the_default_is_the_declared_one():
    values = SCALED.variants[0].space().default().values
    assert (values["BLOCK"], values["num_warps"]) == (DEFAULT[0]["BLOCK"], DEFAULT[1])
