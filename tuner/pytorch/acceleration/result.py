"""The result of accelerating a model: a table, a document, the way back, and the lock file."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torch import nn

from tilewright.kernels.catalogue import Catalogue
from tilewright.tuner.loop import statistics
from tilewright.tuner.pytorch import plans
from tilewright.tuner.pytorch.acceleration import lock
from tilewright.tuner.pytorch.acceleration.graphs.graph import GraphForward
from tilewright.tuner.pytorch.acceleration.installation.installed import Replacement, uninstall
from tilewright.tuner.pytorch.acceleration.judgement.candidates import Candidate
from tilewright.tuner.pytorch.acceleration.judgement.standard import Verdict
from tilewright.tuner.runtime.any_size.tables import as_table

EAGER, OURS, COMPILED, BOTH = "eager", "ours", "torch.compile", "ours in torch.compile"
GRAPH, OURS_GRAPH = "graph", "ours as a graph"
COMPILED_GRAPH, BOTH_GRAPH = "torch.compile as a graph", "ours in torch.compile as a graph"
"""The ways in which a model is timed."""


class AccelerationWarning(UserWarning):
    """The model runs as it was; the message says why."""


@dataclass
class Acceleration:
    """The replacements in a model, and what they brought.

    `times_ms`: times of the whole model by way, one a round; `way` is the one that it has taken. `verdict`,
    `compiled_verdict` (under torch.compile): the errors of its output, from what is in `measure`. `reason`: why nothing
    was replaced, else empty.
    `remarks`: what else there is to say. `untraced`: modules' classes whose code torch.fx could not trace, with the
    reason, so that nothing is fused in it. `left`: classes of modules that are not replaced, and why.
    `is_installed`: whether replacements are used outside of a graph too. `kept_sites`: those of an earlier start.
    """

    model: nn.Module
    stands: Sequence[Replacement] = ()
    candidates: Sequence[Candidate] = ()
    times_ms: Mapping[str, Sequence[float]] = field(default_factory=dict)
    way: str = EAGER
    verdict: Verdict | None = None
    compiled_verdict: Verdict | None = None
    measure: str = ""
    with_gradients: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    remarks: list[str] = field(default_factory=list)
    untraced: Mapping[str, str] = field(default_factory=dict)
    left: Mapping[str, str] = field(default_factory=dict)
    is_installed: bool = True
    kept_sites: Sequence[Mapping[str, Any]] = ()
    kernels: Catalogue | None = field(default=None, repr=False)

    @property
    def is_applied(self) -> bool:
        """Whether anything is replaced."""
        return bool(self.stands)

    @property
    def is_graph(self) -> bool:
        """Whether the model is replayed as a CUDA graph."""
        forward = vars(self.model).get("forward")
        return isinstance(forward, GraphForward) and forward.is_on

    @property
    def replaced(self) -> list[Candidate]:
        """The candidates that won in the model."""
        return [one for one in self.candidates if not one.reason]

    @property
    def untraced_words(self) -> str:
        """A sentence about modules that could not be traced; empty without any."""
        reasons = "; ".join(f"{name} ({reason})" for name, reason in self.untraced.items())
        return f"torch.fx cannot trace the code of {reasons}." if reasons else ""

    def speedup(self, way: str = "", over: str = EAGER) -> tuple[float, float, float] | None:
        """How much faster one way, by default the chosen one, is than another, with its interval; None if not timed.

        It is the median over rounds of the ratio of their times, with its 95 % interval.
        """
        way = way or self.way
        if not (self.times_ms.get(way) and self.times_ms.get(over)):
            return None
        ratio, interval = statistics.ratio_interval(self.times_ms[over], self.times_ms[way])
        return ratio, interval.low, interval.high

    def undo(self) -> None:
        """Puts the model back as it was."""
        uninstall(self.model)
        self.stands, self.way = (), EAGER
        self.reason = self.reason or "it was undone"

    def save(self, path: Path | str = "tilewright.lock") -> Path:
        """Writes the lock file; raises OSError, and LockError where nothing was replaced, or for a graph alone."""
        if not self.is_applied or self.kernels is None:
            raise lock.LockError(f"there is nothing to save: {self.reason}")
        alone = self.speedup(OURS)
        if self.way in {OURS_GRAPH, BOTH_GRAPH} and alone is not None and alone[1] <= 1:
            raise lock.LockError("its replacements are faster in a CUDA graph only, and a lock has none")
        lock.write(Path(path), self.document())
        return Path(path)

    def document(self) -> dict[str, Any]:
        """The contents of a lock file."""
        kernels = {}
        for one in self.replaced if self.is_applied and self.kernels else ():
            if one.problem is not None and one.choice is not None and self.kernels is not None:
                source_hash = self.kernels.get(one.problem.kernel).source_hash(one.choice.configuration.variant)
                kernels[one.problem] = lock.kernel_as_json(one.problem, one.choice, source_hash)
        return {
            "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "environment": dict(self.environment),
            "model": lock.structure(self.model),
            "with_gradients": self.with_gradients,
            "kernels": list(kernels.values()),
            "tables": self._tables({problem.kernel for problem in kernels}),
            "replacements": [lock.stand_as_json(one) for one in self.stands],
            "measured": self.as_json(),
        }

    def _tables(self, kernels: Collection[str]) -> list[dict[str, Any]]:
        """The ranges of these kernels that launchers of every size use on this device model."""
        used = plans.runtime().families.in_use(self.environment["device_model"])
        return [as_table(*one) for one in used if one.family.kernel in kernels]

    def as_json(self) -> dict[str, Any]:
        """All figures, for a file."""
        return {
            "applied": self.is_applied,
            "reason": self.reason,
            "remarks": list(self.remarks),
            "way": self.way,
            "graph": self.is_graph,
            "untraced": dict(self.untraced),
            "left": dict(self.left),
            "times_ms": {way: statistics.median(times) for way, times in self.times_ms.items()},
            "rounds": max(map(len, self.times_ms.values()), default=0),
            "speedup": self.speedup(),
            "speedup_compiled": self.speedup(BOTH, COMPILED),
            **_errors(self.verdict),
            "compiled_error": None if self.compiled_verdict is None else self.compiled_verdict.error.whole,
            "errors_from": self.measure,
            "with_gradients": self.with_gradients,
            "environment": dict(self.environment),
            "sites": [_site(one) for one in self.candidates] or list(self.kept_sites),
        }

    def __str__(self) -> str:
        """A table of the sites, and one of the whole model."""
        parts = [self._sites(), self._whole()]
        if self.verdict is not None:
            there = "" if self.compiled_verdict is None else f" Under torch.compile it is {self.compiled_verdict}."
            parts.append(f"Its output, compared with {self.measure}, is {self.verdict}.{there}")
        if self.reason:
            parts.append(f"Nothing is replaced: {self.reason}")
        left = [f"Left alone: {kind}: {reason}." for kind, reason in self.left.items()]
        return "\n".join([*filter(None, [*parts, *self.remarks, self.untraced_words, *left])])

    def _sites(self) -> str:
        times = ("PyTorch ms", "ours ms")
        head = ("operator", "where", "calls", "problem", *times, "PyTorch off by", "ours off by", "in the model", "")
        rows = [_row(one) for one in self.candidates]
        return _table([head, *rows]) if rows else ""

    def _whole(self) -> str:
        rows = []
        for way, times in self.times_ms.items():
            ratio = self.speedup(way)
            words = f"x {ratio[0]:.3f}  ({ratio[1]:.3f} to {ratio[2]:.3f})" if ratio and way != EAGER else ""
            rows.append((way, f"{statistics.median(times):.4g} ms", words))
        return _table(rows) if rows else ""


def _row(one: Candidate) -> tuple[str, ...]:
    return (
        one.site.call.operator.name,
        one.site.words,
        str(one.site.calls),
        "" if one.problem is None else f"{one.problem.shape_text} {one.problem.dtype}",
        "" if one.pytorch_ms is None else f"{one.pytorch_ms:.4g}",
        "" if one.ours_ms is None else f"{one.ours_ms:.4g}",
        "" if one.verdict is None else f"{one.verdict.eager.whole:.2g}",
        "" if one.verdict is None else f"{one.verdict.error.whole:.2g}",
        "" if one.gain is None else f"x {one.gain:.3f}",
        one.reason or ("replaced" if one.is_compiled else "replaced in eager"),
    )


def _site(one: Candidate) -> dict[str, Any]:
    choice = one.choice
    return {
        "operator": one.site.call.operator.name,
        "modules": list(one.site.modules),
        "function": one.site.function,
        "fusion": one.site.fusion,
        "calls": one.site.calls,
        "problem": None if one.problem is None else one.problem.as_json(),
        "configuration": None if choice is None else str(choice.configuration),
        "library": one.call,
        "found_by": None if choice is None else f"{choice.match}, from {choice.origin}",
        "time_ms": None if choice is None else choice.time_ms,
        "library_ms": None if choice is None else choice.library_ms,
        "pytorch_here_ms": one.pytorch_ms,
        "ours_here_ms": one.ours_ms,
        **_errors(one.verdict),
        "gain_in_model": one.gain,
        "replaced": not one.reason,
        "replaced_in_compiled": one.is_compiled,
        "reason": one.reason,
    }


def _errors(verdict: Verdict | None) -> dict[str, float | None]:
    """The errors of ours and of PyTorch's own: of the whole tensor, and of its largest row."""
    if verdict is None:
        return dict.fromkeys(("error", "row_error", "eager_error", "eager_row_error", "allowed_error"))
    own, eager = verdict.error, verdict.eager
    ours = {"error": own.whole, "row_error": own.row}
    return {**ours, "eager_error": eager.whole, "eager_row_error": eager.row, "allowed_error": verdict.allowed.whole}


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
