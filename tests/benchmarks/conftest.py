import importlib
import importlib.util
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="session")
def benchmark_module():
    """A function that imports a script of benchmarks/ by name, as it is when run from there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)

        def load(name):
            if name != "kernels":
                return importlib.import_module(name)
            spec = importlib.util.spec_from_file_location("bench_kernels", FOLDER / "kernels.py")
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module

        yield load
