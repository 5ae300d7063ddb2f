"""Proposals made ahead of their trials, so that compilers work while the device measures."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from tilewright.kernels.space import Configuration
from tilewright.tuner.loop.bench import Bench
from tilewright.tuner.outcome import Evaluation
from tilewright.tuner.search.searcher import Searcher

LOOKAHEAD = 8
"""Proposals beside the next one where the bench does not say how many it compiles at a time, and in small budgets."""

READY = 3
"""Compiled configurations in stock: with more, the device is what limits, and a search should rather learn first."""

SHARE_OF_BUDGET = 10
"""At most a tenth of the trials are chosen before the first of them is known: what is ahead was chosen blindly."""


Claim = Callable[[Configuration], bool]


class Proposals:
    """A search's proposals in the order in which they can be tried: on a bench with many compilers, as they are ready.

    `trials`: of the whole budget, infinite where time alone limits it. A configuration that `claim` refuses is being
    tried elsewhere; the search goes on with it as with any proposal that still runs. On such a bench the search thinks
    while the device measures; results therefore go to it by `tell` here.
    """

    def __init__(self, bench: Bench, searcher: Searcher, trials: float, claim: Claim) -> None:
        self._bench, self._searcher, self._claim = bench, searcher, claim
        self._ahead: list[Configuration] = []
        self._is_first = True
        self._blind = max(LOOKAHEAD, trials / SHARE_OF_BUDGET)  # infinity // 10 would be no number
        self._thinking: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, "propose") if bench.compilers else None

    def next(self, left: float, *, wait: bool = True) -> Configuration | None:
        """The next configuration to try, `left` trials before the budget's end; None when the space is exhausted.

        Without `wait` also None where nothing is ready.
        """
        self._wait()
        if not self._ahead or self._thread is None:
            self._propose(left)
        if not self._ahead:
            return None
        # The first is waited for: it is the default, and what is raced against it may be a hundred times slower.
        ready = self._ahead[:1] if self._is_first else self._bench.ready(self._ahead, wait=wait)
        if not ready:
            return None
        chosen, self._is_first = ready[0], False
        self._ahead.remove(chosen)
        if self._thread is not None:
            self._thinking = self._thread.submit(self._propose, left - 1)
        return chosen

    def tell(self, configuration: Configuration, evaluation: Evaluation) -> None:
        """Tells the search the trial's result, between two proposals."""
        self._wait()
        self._searcher.tell(configuration, evaluation)

    def close(self) -> None:
        """Ends the planning thread, and frees the compilers of what will not be tried."""
        if self._thread is not None:
            self._thread.shutdown()
        self._bench.drop(self._ahead)

    def _wait(self) -> None:
        if self._thinking is not None:
            thinking, self._thinking = self._thinking, None
            thinking.result()

    @property
    def _most(self) -> int:
        """The number of proposals beyond the next one: a choice is better made when a compiler is free."""
        if self._thread is not None:
            return int(min(self._bench.compilations, self._blind))
        return LOOKAHEAD if self._bench.compiles_ahead else 0

    def _propose(self, left: float) -> None:
        ready = len(self._bench.ready(self._ahead, wait=False))
        room = min(left, 1 + self._most + (ready if self._thread is not None else 0)) - len(self._ahead)
        room = min(room, READY + 1 - ready) if ready else room
        while room > 0:
            proposal = self._searcher.propose()
            if proposal is None:
                return
            if not self._claim(proposal):
                continue
            # At once: the search may take as long for the next as a compiler for this one.
            self._bench.compile_ahead([proposal])
            self._ahead.append(proposal)
            room -= 1
