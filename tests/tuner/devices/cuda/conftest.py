import pytest
from contracts.launches_on_host import needs_compiler
from contracts.made_gpu import MadeGpu


@pytest.fixture(scope="module")
def gpu(tmp_path_factory):
    needs_compiler()
    return MadeGpu(tmp_path_factory.mktemp("checks"))
