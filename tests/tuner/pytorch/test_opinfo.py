"""Samples of PyTorch's own test suite through our operators and accelerated modules: a part here, all of it nightly."""

import sys
import zlib

import pytest
from sampling import current_commit

pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="PyTorch's own test code imports it")

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(900)]

PARTS = 96
"""A commit runs one part of so many, which follows from its hash, and every fifth plain float32 sample."""


def of_commit(name):
    is_always = "torch.float32" in name and name.endswith("plain operator") and zlib.crc32(name.encode()) % 5 == 0
    return is_always or zlib.crc32(f"{current_commit()} {name}".encode()) % PARTS == 0


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(
    "chosen",
    [pytest.param(of_commit, id="part"), pytest.param(lambda _name: True, marks=pytest.mark.exhaustive, id="all")],
)
def test_no_sample_of_pytorchs_own_suite_differs_and_kernels_of_ours_compute_most(chosen):
    import opinfo  # noqa: PLC0415 - it takes seconds, and these tests are often left out

    found = [one for entry in opinfo.ENTRIES for one in opinfo.outcomes(entry, "cpu", chosen)]
    sys.stdout.write(opinfo.table(found))
    assert [one for one in found if one.verdict == "failed"] == []
    assert opinfo.share_of_ours(found) >= opinfo.LEAST_OURS
