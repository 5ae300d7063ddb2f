"""`accelerate`: tuned kernels in a model where they make the whole of it faster, and nowhere else."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from tilewright.tuner.errors import TunerError
from tilewright.tuner.pytorch import plans
from tilewright.tuner.pytorch.acceleration import lock as locks
from tilewright.tuner.pytorch.acceleration.deciding import (
    NothingKnownError,
    NothingReplacedError,
    Request,
    decided,
    device_of,
)
from tilewright.tuner.pytorch.acceleration.installation.installed import install, uninstall
from tilewright.tuner.pytorch.acceleration.judgement.judge import Compiles
from tilewright.tuner.pytorch.acceleration.judgement.sample import Sample
from tilewright.tuner.pytorch.acceleration.result import Acceleration, AccelerationWarning
from tilewright.tuner.runtime.errors import ServiceWarning, WrongResultWarning, warn

ROUNDS, LIMIT_S, TUNE_S = 15, 90.0, 5.0


def accelerate(
    model: nn.Module,
    sample: Any = None,
    *,
    lock: Path | str | None = None,
    other_environment: bool = False,
    tune: Literal["now"] | None = None,
    tune_seconds: float = TUNE_S,
    tolerance: float | None = None,
    rounds: int = ROUNDS,
    limit_s: float = LIMIT_S,
    compiles: Compiles | None = torch.compile,
    graph: bool = True,
    weights: Literal["int8"] | None = None,
    keep: bool = True,
    progress: bool | None = None,
    samples: Sequence[Any] = (),
) -> Acceleration:
    """The replacements in the model and their gain; `print` shows them as tables.

    `sample`: a tensor, a tuple of positional or a mapping of named arguments, as the model will be called; it is called
    as in `eval()`, and with gradients where they are recorded now. With `lock`, a file that `save` wrote, there is no
    sample and nothing is measured; `other_environment` takes a lock that was made in another one. `tune="now"` searches
    each problem without a result for `tune_seconds` in this process. `tolerance`: of the output, the norm of its error
    over its norm; by default 1.5 times that of PyTorch's own, both taken from the model in float64.
    `limit_s` is what all of it may take but tuning, in sets of at most `rounds` rounds; torch.compile's ways are left
    out first, and a remark says so. `compiles`: what makes the compiled model that is timed too; None leaves that out.
    `graph`: on a GPU and without gradients, whether the model may become a CUDA graph where that is right and faster.
    `weights="int8"` allows another result: those of linear layers may become whole numbers of 8 bits.
    `keep`: whether the decision is kept on this machine's disk, and taken from there if it was made before for such a
    model and sample. `progress`: whether a line on the standard error says what is done; by default on a terminal.
    `samples`: others of other sizes, for which the output is compared too; with the sample's, four graphs are kept.

    Whatever goes wrong leaves the model as it was, with one AccelerationWarning.
    """
    if sample is None and samples:
        sample, samples = samples[0], samples[1:]
    target = getattr(model, "_orig_mod", model)  # what torch.compile returned: the model that it compiles
    uninstall(target)
    try:
        with _quietly() as said:
            if lock is not None:
                result = _locked(target, Path(lock), other_environment=other_environment)
            else:
                request = Request(
                    tune, tune_seconds, tolerance, rounds, limit_s, compiles, graph, weights, keep, progress, samples
                )
                result = decided(target, _sample_of(sample), request, said)
    except Exception as error:  # noqa: BLE001 - a model is somebody else's code, and the program must go on
        uninstall(target)
        words = str(error).strip() or type(error).__name__
        reason = words if isinstance(error, TunerError) else f"{type(error).__name__}: {words.splitlines()[0]}"
        warn(f"the model runs as it was: {reason}", AccelerationWarning)
        found = error.candidates if isinstance(error, NothingKnownError) else ()
        return Acceleration(target, candidates=found, reason=reason)
    if lock is not None:
        for remark in result.remarks[1:]:
            warn(remark, AccelerationWarning)
        return result
    for one in said:
        if isinstance(one, WrongResultWarning):
            result.remarks.append(str(one))
            warn(str(one), WrongResultWarning)
    if result.untraced and not any(one.site.fusion for one in result.candidates):
        warn(f"nothing is fused: {result.untraced_words}", AccelerationWarning)
    if away := next((str(one) for one in said if isinstance(one, ServiceWarning)), ""):
        result.remarks.append(away)  # here something else had the answers, or some of them
        warn(f"some problems may have no answer: {away}", AccelerationWarning)
    return result


def _locked(model: nn.Module, path: Path, *, other_environment: bool) -> Acceleration:
    device = device_of(model)
    found = locks.read(path, model, device, plans.runtime().kernels, other_environment=other_environment)
    locks.pin(found, locks.environment(device)["device_model"])
    install(model, found.stands, with_gradients=found.with_gradients)
    return Acceleration(
        model,
        found.stands,
        with_gradients=found.with_gradients,
        environment=locks.environment(device),
        remarks=[f"{len(found.stands)} replacements by {path}; nothing was measured here.", *_corrected(path, found)],
    )


def _corrected(path: Path, found: locks.Lock) -> list[str]:
    """Remarks on configurations that were measured with a faulty source."""
    if not found.corrected:
        return []
    words = (
        f"{path} was made with a faulty source of {', '.join(found.corrected)}, which has been corrected since: its "
        "configurations are predictions, which are checked at their first use. Make it again: accelerate(model)"
    )
    return [words]


def _sample_of(sample: Any) -> Sample:
    if sample is None:
        raise NothingReplacedError("sample: give a tensor, a tuple of arguments or a mapping of named ones, or a lock")
    return Sample(sample)


@contextmanager
def _quietly() -> Iterator[list[Warning]]:
    """The warnings of ours in the block, which are told in one; other warnings are shown."""
    said: list[Warning] = []
    show = warnings.showwarning
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)

        def note(message: Warning | str, category: type[Warning], *place: Any, **named: Any) -> None:
            if category.__module__.startswith("tilewright."):
                said.append(message if isinstance(message, Warning) else category(message))
            else:
                show(message, category, *place, **named)

        warnings.showwarning = note
        yield said
