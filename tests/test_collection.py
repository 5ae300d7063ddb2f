"""What the tests need that somebody has installed who runs only some of them; the scripts of tools/ start."""

import subprocess
import sys
from pathlib import Path

import pytest
import sampling

ROOT = Path(__file__).parents[1]

# What pytest-benchmark says when it is loaded beside xdist, which the settings turn into an error.
PLUGIN = """
import warnings

import pytest
import sampling


@pytest.fixture
def benchmark():
    pass


def pytest_configure(config):
    warnings.warn("Benchmarks are automatically disabled because xdist plugin is active.", UserWarning, stacklevel=1)
"""


@pytest.mark.in_turn(3)
def test_gpu_tests_are_collected_without_schemathesis_and_beside_pytest_benchmark(tmp_path):
    (tmp_path / "like_benchmark.py").write_text(PLUGIN)
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'schemathesis': raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    )
    folders = ["tests/gpu", "tests/service/api/test_openapi.py"]
    words = ["-p", "no:schemathesis", "-p", "like_benchmark", "-n", "0", "-q", "-m", "gpu", "--collect-only", *folders]
    ran = subprocess.run([sys.executable, "-c", script, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    assert "tests/gpu/test_every_kernel.py::" in ran.stdout


TOOLS = Path(__file__).parents[1] / "tools"


def test_a_tool_tells_how_it_is_used():
    told = subprocess.run(
        [sys.executable, TOOLS / "screenshots.py", "--help"], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith("usage: ")


class Case:
    """As much of a collected test as its turn depends on."""

    nodeid = "test_it[0]"

    def __init__(self):
        self.marks = [pytest.mark.in_turn(3).mark]

    def get_closest_marker(self, name):
        return next((mark for mark in self.marks if mark.name == name), None)

    def add_marker(self, decorator):
        self.marks.append(decorator.mark)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_every_case_of_a_sweep_has_its_turn_and_no_commit_is_without_one(monkeypatch, count):
    run = []
    for commit in range(40):
        monkeypatch.setattr(sampling, "current_commit", lambda commit=commit: f"{commit:040x}")
        cases = [Case() for _ in range(count)]
        sampling.take_turns(cases)
        run.append({place for place, case in enumerate(cases) if case.get_closest_marker("exhaustive") is None})
    assert set().union(*run) == set(range(count))
    assert all(run) is (count > 1)
    assert max(len(places) for places in run) == -(-count // 3)
