"""Decisions of `accelerate` on this machine: the next start of the same program takes a second or two."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tilewright.kernels.errors import KernelError
from tilewright.tuner.compile.cache import default_folder
from tilewright.tuner.errors import TunerError
from tilewright.tuner.pytorch import plans
from tilewright.tuner.pytorch.acceleration import lock as locks
from tilewright.tuner.pytorch.acceleration.graphs.graph import graph_of
from tilewright.tuner.pytorch.acceleration.installation.installed import install, uninstall
from tilewright.tuner.pytorch.acceleration.judgement import outputs
from tilewright.tuner.pytorch.acceleration.judgement.sample import Sample
from tilewright.tuner.pytorch.acceleration.judgement.standard import NONE, Standard
from tilewright.tuner.pytorch.acceleration.judgement.trees import Parts, apart
from tilewright.tuner.pytorch.acceleration.result import BOTH_GRAPH, COMPILED_GRAPH, EAGER, OURS, Acceleration
from tilewright.tuner.pytorch.precision import setting

FRESH_S = 86_400.0
"""A day, as with answers of a service, which may know more by then."""


def folder() -> Path:
    """TILEWRIGHT_CACHE_DIR where set, else the user's cache folder; `accelerated` inside it."""
    return default_folder().parent / "accelerated"


def path_of(model: nn.Module, run: Sample, device: torch.device, asked: Mapping[str, Any]) -> Path:
    """The file for this model with a like sample here; `asked`: the other facts that decide."""
    form = apart((run.positional, run.named), Parts(), strict=False)
    facts = [locks.structure(model), locks.environment(device), form, torch.is_grad_enabled(), setting(), dict(asked)]
    key = hashlib.sha256(json.dumps(facts, default=_word, sort_keys=True).encode()).hexdigest()
    return folder() / f"{key}.json"


def _word(value: Any) -> str:
    """A word for a value that JSON has no form for, the same in every process."""
    if isinstance(value, partial):
        return f"{_word(value.func)} {value.args} {sorted(value.keywords.items())}"
    if isinstance(value, type) or callable(value):
        kind = value if hasattr(value, "__qualname__") else type(value)
        return f"{kind.__module__}.{kind.__qualname__}"
    return str(value) if isinstance(value, torch.dtype | torch.device | torch.layout) else type(value).__qualname__


def keep(path: Path, result: Acceleration) -> None:
    """Stores the decision, if the disk allows it."""
    verdict = result.verdict
    document = result.document() | {
        "way": result.way,
        "installed": result.is_installed,
        "rounds_ms": {way: list(times) for way, times in result.times_ms.items()},
        "differs": 0.0 if verdict is None else 2 * (verdict.error.whole + verdict.eager.whole),
    }
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        locks.write(path, document)


def restore(
    path: Path, model: nn.Module, run: Sample, device: torch.device, compiles: Callable[..., Any] | None
) -> Acceleration | None:
    """The model as decided earlier, compared with its own output once; None where it has to be decided anew."""
    try:
        document = json.loads(path.read_bytes())
        is_old = plans.runtime().asks_service and time.time() - path.stat().st_mtime > FRESH_S
        found = locks.read(path, model, device, plans.runtime().kernels, other_environment=False, origin="kept")
    except (OSError, ValueError, TunerError, KernelError):
        return None
    if is_old or found.corrected:
        return None
    try:
        return _restored(document, found, model, run, compiles)
    except Exception:  # noqa: BLE001 - whatever does not work any more is decided anew
        uninstall(model)
        return None


def _restored(
    document: Mapping[str, Any],
    found: locks.Lock,
    model: nn.Module,
    run: Sample,
    compiles: Callable[..., Any] | None,
) -> Acceleration | None:
    way, expected = document["way"], outputs.leaves(run.learn(model))
    locks.pin(found, document["environment"]["device_model"])
    install(model, found.stands, with_gradients=found.with_gradients)
    compiled = None
    if way in {COMPILED_GRAPH, BOTH_GRAPH}:
        compiled = (compiles or torch.compile)(model)
        run(compiled)
    differs = max(float(document["differs"]), outputs.tolerance_of(expected))
    standard = Standard(expected, expected, [NONE] * len(expected), differs, "PyTorch's own")
    verdict = standard.verdict(run(model))
    if not verdict.is_right:
        uninstall(model)
        return None
    if way not in {EAGER, OURS}:
        graph = graph_of(model, run, standard, compiled)
        install(model, found.stands if document["installed"] else [], with_gradients=found.with_gradients)
        graph.put()
    return Acceleration(
        model,
        found.stands,
        times_ms=document["rounds_ms"],
        way=way,
        verdict=verdict,
        measure=standard.measure,
        with_gradients=found.with_gradients,
        environment=document["environment"],
        reason=document["measured"]["reason"],
        remarks=[*document["measured"]["remarks"], f"As was decided at {document['made_at']}; anew: keep=False."],
        left=document["measured"]["left"],
        kept_sites=document["measured"]["sites"],
    )
