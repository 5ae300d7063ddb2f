"""What a declaration may not say."""

from dataclasses import replace

import numpy as np
import pytest
from contracts.partial_sums import PARTIAL_SUMS, PROBLEM, with_block


def test_an_output_sized_by_the_configuration_needs_a_check():
    with pytest.raises(ValueError, match="partial_sums: sums: written is for outputs of a kernel with a check"):
        replace(PARTIAL_SUMS, check=None)


def test_it_is_cut_to_what_a_configuration_writes():
    outputs = {"sums": np.arange(16.0)}
    assert PARTIAL_SUMS.written_by(with_block(256), PROBLEM, outputs)["sums"].tolist() == outputs["sums"][:4].tolist()
