"""Whose turn it is in a process that predicts."""

from collections import deque

from tilewright.service.operations.best_pool.pool import Work, _Lane
from tilewright.service.operations.best_pool.process import Slice


def work(caller, sizes=3):
    shapes = tuple({"m": size, "n": 8, "k": 8} for size in range(1, sizes + 1))
    return Work(Slice("gemm", "nvidia-h200", "float32", (), None, None, shapes, 1.0), caller, lambda _answers: None)


def test_what_nobody_waits_for_takes_turns_by_caller():
    lane = _Lane("test")
    pages, batch = [work("") for _ in range(3)], work("a key")
    lane._later.extend([*pages, batch])
    assert [lane._next() for _ in range(4)] == [pages[0], batch, pages[0], batch]
    batch.end()
    assert [lane._next() for _ in range(2)] == [pages[0], pages[0]]
    pages[0].end()
    assert lane._next() is pages[1]


def test_a_question_that_somebody_waits_for_goes_first():
    lane = _Lane("test")
    later, asked = work(""), work("a key")
    lane._later.append(later)
    lane._turns.setdefault("a key", deque()).append(asked)
    assert lane._next() is asked
