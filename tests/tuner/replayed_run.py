"""tune() over a recording in place of a device."""

from dataclasses import fields

from tilewright.kernels.space import Configuration
from tilewright.tuner.loop.tune import Hooks, Knowledge, tune
from tilewright.tuner.recorded.replay import replay

BEST = Configuration.of("fine", {"TILE": 16, "UNROLL": 4})
"""The fastest configuration of `made_recordings.valley`."""

HOOKS, KNOWN = ({field.name for field in fields(kind)} for kind in (Hooks, Knowledge))


class Run:
    """tune() over a recording, and what it reported on the way."""

    def __init__(self, recording, budget, *, bench=None, **options):
        device, self.kernel, problem = replay(recording)
        self.space = self.kernel.space(problem, device.model.limits)
        self.bench = bench or device.bench(self.kernel, problem, seed=0)
        self.progress = []
        self.result = None
        hooks, knowledge = ({name: options.pop(name) for name in kind & options.keys()} for kind in (HOOKS, KNOWN))
        options |= {"seed": 0, "hooks": Hooks(**{"on_trial": self.progress.append, **hooks})}
        options |= {"knowledge": Knowledge(**knowledge)}
        self.tune = lambda: tune(self.bench, self.kernel, self.space, budget, **options)

    def go(self):
        self.result = self.tune()
        return self

    @property
    def trials(self):
        return [p.trial for p in self.progress]
