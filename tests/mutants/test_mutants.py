"""The faults fit today's sources, changes of Python are single ones that compile, and the table counts both."""

import ast

import pytest
from sampling import EXHAUSTIVE

from mutants.coverage_record import recorded
from mutants.faults import SOURCES
from mutants.judged_python import judging_tests, modules
from mutants.judged_sources import SHAPES, planted
from mutants.needing_gpu import needing_gpu
from mutants.python_changes import Change, changes, drawn
from mutants.table import Row, missed, summary
from tilewright.kernels.catalogue import catalogue


@pytest.mark.parametrize("place", SOURCES)
def test_every_fault_stands_in_a_source_that_its_variant_has(place):
    kernel = catalogue().get(place.split()[0])
    assert kernel.variant(place.split()[1])
    assert kernel.name in SHAPES
    for fault in SOURCES[place]:
        text = (kernel.folder.parent / fault.file).read_text()
        assert fault.old in text, fault
        assert fault.old != fault.new


def test_there_are_at_least_a_hundred():
    assert sum(map(len, SOURCES.values())) >= 100


def test_a_planted_fault_is_in_what_is_compiled_and_the_kernel_stays_as_it_was(tmp_path):
    gemm = catalogue().get("gemm")
    fault = SOURCES["gemm wpt"][2]
    assert fault.file.startswith("include/")
    changed = planted(gemm, fault, tmp_path)
    assert fault.new in changed.source("wpt")
    assert fault.new not in gemm.source("wpt")
    with pytest.raises(ValueError, match="does not contain"):
        planted(gemm, fault._replace(old="no such text"), tmp_path)


def test_changes_are_made_where_something_is_computed():
    lines = ("def f(a: int, rows) -> int:", '    """Doc."""', "    if a < 3 and rows:", "        rows.close()")
    text = "\n".join((*lines, "    return max(a, 1)", ""))
    made = {(change.old, change.new) for change in changes(text)}
    assert {("a < 3", "(a <= 3)"), ("rows.close()", "pass"), ("max(a, 1)", "(min(a, 1))"), ("3", "(4)")} <= made
    assert not any("Doc" in old for old, _ in made)
    assert all(ast.parse(change.applied(text)) for change in changes(text))


@EXHAUSTIVE  # a run of pytest with coverage
def test_lines_of_processes_that_a_test_starts_are_its_lines(tmp_path):
    record = recorded(tmp_path, 1, ["tests/tuner/adopt/test_adopt.py"])
    module = "tuner/adopt/script/main.py"  # runs beside the user's script, in a process of its own
    assert judging_tests(record, module, Change(line=1, start=0, end=0, old="\n" * 200, new=""))


@EXHAUSTIVE  # a run of pytest with coverage
def test_a_change_is_judged_by_the_tests_that_run_its_line(tmp_path):
    module = "tuner/loop/statistics.py"
    record = recorded(tmp_path, 1, ["tests/tuner/loop/test_measure.py"])
    text = modules()[module]
    change = next(change for change in changes(text) if judging_tests(record, module, change))
    chosen = judging_tests(record, module, change)
    assert all(test.startswith("tests/tuner/loop/test_measure.py::") for test in chosen)
    assert len(chosen) <= len(record.seconds)
    assert all(seconds > 0 for seconds in record.seconds.values())
    far = Change(line=text.count("\n") + 100, start=0, end=0, old="", new="")
    assert set(judging_tests(record, module, far)) >= set(chosen)


def test_modules_that_only_those_of_a_gpu_import_need_one_as_well():
    texts = {
        "tuner/direct.py": "def f():\n    import triton\n",
        "tuner/two.py": "from tilewright.tuner.three import y\n",
        "tuner/three.py": "y = 1\n",
        "tuner/four.py": "",
        "tuner/named.py": "",
        "tuner/used.py": "",
        "tuner/pytorch/any.py": "from tilewright.tuner import named as n, used",
        "tuner/by_name.py": "import_module(f'{__package__}.four')\nimport_module('torch')",
        "tests/test_two.py": "import pytest\npytest.importorskip('torch')\nfrom tilewright.tuner import two, used\n",
        "tests/test_used.py": "import tilewright.tuner.used\n",
    }
    needing = needing_gpu(texts)
    assert needing == {
        "tuner/direct.py",
        "tuner/two.py",
        "tuner/three.py",
        "tuner/named.py",
        "tuner/pytorch/any.py",
        "tests/test_two.py",
    }
    assert "tuner/four.py" in needing_gpu({**texts, "tuner/by_name.py": texts["tuner/by_name.py"] + "\nimport cupy"})


@pytest.mark.in_turn(3)
def test_a_test_that_failed_while_it_was_recorded_judges_nothing(tmp_path):
    (tmp_path / "test_both.py").write_text("def test_right(): pass\n\ndef test_wrong(): assert False\n")
    record = recorded(tmp_path, 1, [str(tmp_path / "test_both.py")])
    assert [test.rpartition("::")[2] for test in record.seconds] == ["test_right"]


@pytest.mark.in_turn(3)
def test_a_seed_draws_the_same_changes():
    texts = {path: text for path, text in modules().items() if path.startswith("tuner/loop/")}
    first = drawn(texts, 5, 3)
    assert first == drawn(texts, 5, 3)
    for path, change in first:
        assert ast.dump(ast.parse(change.applied(texts[path]))) != ast.dump(ast.parse(texts[path]))


def test_the_table_counts_what_was_caught_and_names_what_was_not():
    rows = [Row("gemm", "a.cu", "one", "wrong result"), Row("gemm", "a.cu", "a < b", "")]
    assert summary(rows)[-1] == "| **all** | **2** | **1** (50%) |"
    assert missed(rows) == ["| gemm | `a.cu` | a &lt; b |"]
