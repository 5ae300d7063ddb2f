"""`tilewright.lock`: what was chosen for a model, so that another process has exactly the same choices."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from tilewright import __version__
from tilewright.kernels.catalogue import Catalogue
from tilewright.kernels.errors import KernelError
from tilewright.kernels.family import Family
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.compile import nvrtc
from tilewright.tuner.compile.cache import write_whole
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.errors import TunerError
from tilewright.tuner.pytorch import plans
from tilewright.tuner.pytorch.acceleration.installation.installed import Replacement, plain_class
from tilewright.tuner.pytorch.operator import OPERATORS
from tilewright.tuner.runtime.any_size.ranges import Ranges
from tilewright.tuner.runtime.any_size.tables import ranges_of
from tilewright.tuner.runtime.choice import Choice
from tilewright.tuner.runtime.first_use.first_use import UNVERIFIED
from tilewright.tuner.runtime.launches.devices import place_of, resolved
from tilewright.tuner.runtime.launches.gpu import driver_words
from tilewright.tuner.runtime.launches.library_calls import call_of

FORMAT = "tilewright-lock/1"


class LockError(TunerError):
    """The lock file is not one, was made for another model or environment, or was changed by hand."""


@dataclass(frozen=True)
class Lock:
    """The choices: configurations by problem, the replacements, and whether gradients were recorded.

    `matches`: of configurations that were never verified at their shape, how they match it. `calls`: the library's,
    which were faster than these configurations. `tables`: the ranges of families, for launchers of every size.
    `sites`: what was measured. `device`: here. `corrected`: the kernels and variants of those that were measured with a
    faulty source, which has been corrected since.
    """

    configurations: Mapping[Problem, Configuration]
    matches: Mapping[Problem, str]
    calls: Mapping[Problem, str]
    corrected: Sequence[str]
    stands: Sequence[Replacement]
    with_gradients: bool
    tables: Mapping[Family, Ranges]
    sites: Sequence[Mapping[str, Any]]
    device: str


def environment(device: torch.device) -> dict[str, str]:
    """The facts that choices depend on, as words; raises TunerError where nothing can make code for the device."""
    facts = {"tilewright": __version__, "torch": torch.__version__}
    if device.type == "cpu":
        cpu = CpuDevice()
        compiler = f"{cpu.environment.compiler} {cpu.environment.compiler_version}"
        return facts | {"device_model": cpu.model.slug, "driver": "host", "compiler": compiler}
    compiler = f"nvrtc {nvrtc.version()}" if nvrtc.is_available() else "nvcc"
    slug = place_of(f"cuda:{device.index or 0}").slug
    return facts | {"device_model": slug, "driver": driver_words(), "compiler": compiler}


def structure(model: nn.Module) -> str:
    """SHA-256 of the names and classes of all modules, and of the shapes and dtypes of all parameters."""
    modules = [(name, plain_class(one).__qualname__) for name, one in model.named_modules()]
    parameters = [(name, list(one.shape), str(one.dtype)) for name, one in model.named_parameters()]
    return _hash([modules, parameters])


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Writes a lock, whole or not at all, with the hash of everything else in it; raises OSError."""
    body = {"format": FORMAT, **document}
    write_whole(path, (json.dumps({**body, "sha256": _hash(body)}, indent=1) + "\n").encode())


def read(
    path: Path,
    model: nn.Module,
    device: torch.device,
    kernels: Catalogue,
    *,
    other_environment: bool,
    origin: str = "pinned",
) -> Lock:
    """The choices for this model here; raises LockError, with the first thing that differs.

    `origin`: of the ranges of families; where it is not pinned, the first calls decide in those that were not measured.
    """
    try:
        document = json.loads(path.read_bytes())
        body = {name: value for name, value in document.items() if name != "sha256"}
        if body["format"] != FORMAT or document["sha256"] != _hash(body):
            raise LockError(f"{path}: it is not a {FORMAT}, or was changed after it was written")
        _check(path, body, model, device, other_environment=other_environment)
        kept = [_configuration(path, one, kernels) for one in body["kernels"]]
        stands = [stand_from_json(one) for one in body["replacements"]]
        for stand in stands:
            for name in stand.modules:
                for one in name.split("+"):
                    model.get_submodule(one)
        return Lock(
            {one.problem: one.configuration for one in kept},
            {one.problem: one.match for one in kept if one.match in UNVERIFIED | {"range"}},
            {one.problem: one.call for one in kept if one.call},
            sorted({f"{one.problem.kernel}'s {one.configuration.variant}" for one in kept if one.is_corrected}),
            stands,
            bool(body["with_gradients"]),
            dict(_table(path, one, kernels, device, origin) for one in body.get("tables", ())),
            body.get("measured", {}).get("sites", ()),
            str(device),
        )
    except OSError as error:
        raise LockError(f"{path}: {error.strerror}") from error
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, KernelError) as error:
        raise LockError(f"{path}: it cannot be read as a {FORMAT}: {error!r}") from error


def pin(lock: Lock, device_model: str) -> None:
    """Makes the operators take the lock's configurations and tables from now on."""
    runtime = plans.runtime()
    runtime.pin(lock.configurations, lock.matches, lock.calls)
    runtime.families.pin(lock.tables, device_model)
    plans.look_again()
    settle(lock.sites, runtime.kernels, lock.device)


def settle(sites: Sequence[Mapping[str, Any]], kernels: Catalogue, device: str) -> None:
    """Makes ours serve the ranges of problems at which it was measured faster; no calls take turns there."""
    for site in sites:
        times_ms, stated = (site["ours_here_ms"], site["pytorch_here_ms"]), site["problem"]
        if site["replaced"] and stated and None not in times_ms:
            problem = kernels.get(stated["kernel"]).problem(stated["shape"], stated["dtype"], stated["options"])
            with suppress(TunerError, KernelError):  # then its first calls decide
                OPERATORS[site["operator"]].plans.settle(problem, resolved(device), *times_ms)


def _table(
    path: Path, stated: Mapping[str, Any], kernels: Catalogue, device: torch.device, origin: str
) -> tuple[Family, Ranges]:
    kernel = kernels.get(stated["kernel"])
    family = Family.of(kernel, stated["shape"], stated["dtype"], stated["options"])
    place = place_of("cpu" if device.type == "cpu" else f"cuda:{device.index or 0}")
    ranges = ranges_of(stated, kernel, family, place, lambda choice, _facts: replace(choice, origin=origin))
    if ranges is None:
        raise LockError(f"{path}: {kernel.name}'s source or space has changed since. Make it again: accelerate(model)")
    return family, ranges


def kernel_as_json(problem: Problem, choice: Choice, source_hash: str) -> dict[str, Any]:
    """A configuration with its problem, its match, and the library's call where that is launched."""
    configuration, call = choice.configuration, call_of(problem, choice)[0]
    values = {"variant": configuration.variant, "configuration": dict(configuration.values)}
    return {**problem.as_json(), **values, "match": choice.match, "library": call, "source_hash": source_hash}


def stand_as_json(stand: Replacement) -> dict[str, Any]:
    """The replacement as JSON."""
    entry = _plain(stand.entry)
    places = {"modules": list(stand.modules), "function": stand.function, "fusion": stand.fusion}
    rest = {"compiled": stand.compiled, "weights": stand.weights, "any_rows": stand.any_rows}
    return {**places, "entry": entry, **rest}


def stand_from_json(stated: Mapping[str, Any]) -> Replacement:
    """The replacement that `stand_as_json` wrote."""
    where = tuple(stated["modules"]), stated["function"], bool(stated["compiled"]), stated.get("fusion", "")
    any_rows = bool(stated.get("any_rows", False))
    return Replacement(_hashable(stated["entry"]), *where, stated.get("weights", ""), any_rows)


def _check(
    path: Path, body: Mapping[str, Any], model: nn.Module, device: torch.device, *, other_environment: bool
) -> None:
    if body["model"] != structure(model):
        raise LockError(f"{path}: it was made for a model of other modules or shapes. Make it again: accelerate(model)")
    here, there = environment(device), body["environment"]
    differs = [
        f"{name} is {here[name]} here and {there.get(name)} there" for name in here if here[name] != there.get(name)
    ]
    if differs and not other_environment:
        raise LockError(
            f"{path}: it was made in another environment: {', '.join(differs)}. "
            "Make it again, or take it as it is: other_environment=True"
        )


class _Kept(NamedTuple):
    """A configuration of a lock."""

    problem: Problem
    configuration: Configuration
    match: str
    is_corrected: bool
    call: str | None


def _configuration(path: Path, stated: Mapping[str, Any], kernels: Catalogue) -> _Kept:
    kernel, source_hash = kernels.get(stated["kernel"]), stated["source_hash"]
    problem = kernel.problem(stated["shape"], stated["dtype"], stated["options"])
    configuration = Configuration.from_json({**stated["configuration"], "variant": stated["variant"]})
    if kernel.was_corrected(configuration.variant, source_hash):
        return _Kept(problem, configuration, "predicted", is_corrected=True, call=None)
    if not kernel.has_source(configuration.variant, source_hash):
        raise LockError(f"{path}: {kernel.name}'s source has changed since. Make it again: accelerate(model)")
    match = str(stated.get("match", "exact"))
    return _Kept(problem, configuration, match, is_corrected=False, call=stated.get("library"))


def _plain(value: Hashable) -> Any:
    """The value in a form for JSON: a dtype as a word, a tuple as a list."""
    if isinstance(value, torch.dtype):
        return str(value)
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


def _hashable(value: Any) -> Hashable:
    if isinstance(value, list):
        return tuple(_hashable(one) for one in value)
    if isinstance(value, str) and value.startswith("torch."):
        return getattr(torch, value.removeprefix("torch."))  # type: ignore[no-any-return]
    return value  # type: ignore[no-any-return]


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
