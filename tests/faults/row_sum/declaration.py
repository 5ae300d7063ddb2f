"""row_sum with its bugs, as a folder of kernels that the settings can name: one configuration of each wrong variant."""

import importlib.util
from dataclasses import replace
from pathlib import Path

from tilewright.kernels.space import powers_of_two

_PATH = Path(__file__).parents[2] / "contracts" / "row_sum.py"
_SPEC = importlib.util.spec_from_file_location("tilewright_row_sum", _PATH)
_MODULE = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_MODULE)


def _once(variant):
    return replace(variant, parameters=(powers_of_two("THREADS", 128, 128, default=128),))


KERNEL = replace(
    _MODULE.ROW_SUM,
    variants=tuple(v if v.name == "good" else _once(v) for v in _MODULE.ROW_SUM.variants),
)
