"""A family on a device that works in rounds of whole tiles: ranges end with tiles, and few configurations are timed."""

import hashlib
import math
from collections import Counter
from statistics import geometric_mean

import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.family import Family
from tilewright.tuner.devices.device import Environment
from tilewright.tuner.devices.known_models import known_model
from tilewright.tuner.families.cover import serving
from tilewright.tuner.families.limits import FamilyBudget
from tilewright.tuner.families.proposals import shipped_records
from tilewright.tuner.families.tune import tune_family
from tilewright.tuner.loop.bench import Bench
from tilewright.tuner.loop.measure import timing
from tilewright.tuner.outcome import ALL_KINDS, Evaluation, Outcome, Verification
from tilewright.tuner.predict.tiles import Tiles

GEMM = catalogue().get("gemm")
FAMILY = Family.of(GEMM, {"m": (1, 8192), "n": 4096, "k": 4096})
H200 = known_model("NVIDIA H200")
TILES = Tiles(GEMM)


def time_ms(configuration, size):
    """Rounds of tiles on 132 multiprocessors; how fast a tile is depends on its size and on what else is chosen."""
    tiling = TILES.tiling(FAMILY.at(size), configuration)
    area = math.prod(extent for _, extent in tiling.whole.axes[:2])
    rest = sorted(item for item in configuration.items if not item[0].startswith("TILE"))
    luck = int(hashlib.sha256(f"{configuration.variant} {rest}".encode()).hexdigest()[:4], 16) / 65536
    rate = (0.7 + 0.3 * luck) * area / (area + 6000)
    return max(0.008, math.ceil(tiling.count / 132) * area / rate * 5e-6)


class Rounds(Bench):
    """A bench of that device, which counts its trials. There is no library."""

    def __init__(self, size, counts):
        self.size, self.counts = size, counts

    def compile(self, configuration):
        return configuration

    def verify(self, _executable):
        return Verification(bound_ratio=0.1, wrong=0)

    def verify_each_kind(self, executable, _part=ALL_KINDS):
        return (self.verify(executable),)

    def sample(self, executable, _l2, count):
        return [time_ms(executable, self.size)] * count

    def evaluate(self, configuration, _ranking_l2, _plan=None, _incumbent_ms=None, **_):
        self.counts[configuration] += 1
        return Evaluation(Outcome.MEASURED, warm=timing([time_ms(configuration, self.size)], "warm"), ranking_l2="warm")

    def close(self):
        pass


class RoundsDevice:
    uuid, model, environment = "rounds", H200, Environment("1", "13", "nvrtc", "13", "rounds", "default")

    def __init__(self):
        self.counts = Counter()

    def bench(self, _kernel, problem, _seed):
        return Rounds(problem.shape["m"], self.counts)


@pytest.fixture(scope="module")
def tuned():
    device, records = RoundsDevice(), shipped_records(GEMM, FAMILY, H200)
    table = tune_family(device, GEMM, FAMILY, FamilyBudget(seconds=0, sizes=12), seed=1, records=records)
    return table, device.counts


def test_ranges_end_where_whole_tiles_do(tuned):
    table, _ = tuned
    heights = [TILES.extents(FAMILY.largest, span.configuration)[0] for span in table.spans]
    ends = [span.high for span in table.spans[:-1]]
    whole = [end % height == 0 for end, height in zip(ends, heights, strict=False)]
    assert len(ends) > 5
    assert sum(whole) > 0.7 * len(whole)


def test_a_configuration_is_timed_where_it_may_win(tuned):
    table, counts = tuned
    assert counts.total() == table.trials < 12 * len(table.sizes)
    assert counts.total() < 0.12 * len(counts) * len(table.sizes)


def test_sizes_that_nobody_measured_lose_little(tuned):
    table, counts = tuned
    shares = [
        min(time_ms(one, size) for one in counts) / time_ms(serving(table.spans, size), size)
        for size in (round(8192 ** (place / 60)) for place in range(1, 60))
        if size not in table.sizes
    ]
    assert len(shares) > 20
    assert geometric_mean(shares) > 0.97
    assert min(shares) > 0.85
