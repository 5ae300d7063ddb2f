"""What tests of turns on a GPU share: a runtime of known answers, and calls until the clock has decided."""

import time

import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.space import Configuration
from tilewright.tuner.runtime import Runtime
from tilewright.tuner.runtime.first_use import first_use
from tilewright.tuner.runtime.known.answers import AnswerCache
from tilewright.tuner.runtime.launches.devices import place_of

LONGEST_S = 90
SLEEP_CYCLES = 4_000_000
"""About 2 ms, in which the host enqueues the calls of a round."""
NAIVE = Configuration.of("naive", {"BLOCK_X": 32, "BLOCK_Y": 8})


def square(size):
    """The product of two matrices of that size."""
    return catalogue().get("gemm").problem({"m": size, "n": size, "k": size})


def facts(problem, configuration, match="predicted", ours_ms=1.0, library_ms=2.0):
    """A service's answer."""
    return {
        "variant": configuration.variant,
        "configuration": dict(configuration.values),
        "match": match,
        "time_ms": ours_ms,
        "library": {"faster": ours_ms > library_ms, "time_ms": library_ms},
        "source_hash": catalogue().get(problem.kernel).source_hash(configuration.variant),
    }


@pytest.fixture
def runtime_of(torch, tmp_path, monkeypatch):
    """Makes a runtime that knows these answers alone, and in which nothing was used yet."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    first_use.forget()

    def made(by_problem, *, only_tuned=True, **named):
        answers = AnswerCache(tmp_path / "answers")
        for problem, answer in by_problem.items():
            answers.put(problem, place_of("cuda:0"), answer)
        return Runtime(answers=answers, only_tuned=only_tuned, **named)

    return made


def settled(torch, call, is_decided, check=lambda: None):
    """Calls on a GPU with work to do until that is decided; what they have computed is checked behind them."""
    begun = time.perf_counter()
    while time.perf_counter() - begun < LONGEST_S:
        torch.cuda._sleep(SLEEP_CYCLES)
        for _ in range(8):
            call()
        torch.cuda.synchronize()
        check()
        if is_decided():
            return
    raise AssertionError(f"undecided after {LONGEST_S} s")
