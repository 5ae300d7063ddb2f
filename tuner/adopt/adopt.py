"""Folders of kernels from a script: it runs with its calls intercepted, and each call becomes a folder."""

from __future__ import annotations

import contextlib
import json
import math
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.errors import BrokenDeclarationError
from tilewright.kernels.own import own_kernel
from tilewright.tuner.adopt.declaration import Declaration
from tilewright.tuner.adopt.host_function import with_kernel_of_host
from tilewright.tuner.adopt.meaning import LIMIT_S, candidates, meaning, posed
from tilewright.tuner.adopt.run import AdoptionError, intercepted
from tilewright.tuner.adopt.source import Arguments, is_known, variant_source, with_cut, with_texture_objects
from tilewright.tuner.cuda_source.proposed import unique_name
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.errors import TunerError

Record = Mapping[str, Any]

USELESS_FLAGS = re.compile(r"-O\d|-?-arch=.*|-?-gpu-architecture=.*|-?-generate-code.*|-gencode.*|-lineinfo|-?-std=.*|-v|-w|-Xptxas.*|-Wno-.*|-Xcompiler.*|-lcuda.*|-fPIC|-allow-unsupported-compiler")  # fmt: skip  # noqa: E501
"""Flags that Tilewright gives itself, or that mean nothing to NVRTC."""

OF_PARTS = "each block writes a part; their sums are compared: change `check` where they are no summands"


@dataclass(frozen=True)
class Adopted:
    """One call: the folder it became, or why it did not, and what its user should know."""

    call: int
    kernel_name: str
    folder: Path | None
    refused: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Adoption:
    """All calls of a script; `notes` are about the script as a whole."""

    calls: list[Adopted]
    notes: list[str]


def adopt(
    script: Path,
    arguments: Sequence[str] = (),
    *,
    target: Path,
    python: str,
    limit_s: float,
    limit_bytes: int,
    others: Sequence[Path] = (),
) -> Adoption:
    """Runs the script and makes folders in `target`, which appear together at the end; raises AdoptionError.

    `others` are folders of kernels whose names are taken.
    """
    with workplace(target) as (run, made):
        calls = intercepted(script, arguments, run, python=python, limit_s=limit_s, limit_bytes=limit_bytes)
        is_tuned = any(not record["is_run"] for record in calls.records)
        taken = set(catalogue().by_name)
        adopted = []
        until = time.monotonic() + LIMIT_S
        for number, record in _joined(list(enumerate(calls.records, 1))):
            if is_tuned and record["is_run"]:
                continue
            one = made_from(number, record, run, made, taken, others, limit_s=until - time.monotonic())
            adopted.append(one)
            if one.folder is not None:
                taken.add(one.folder.name)
        return Adoption(placed(adopted, target), calls.notes)


def _joined(calls: list[tuple[int, Record]]) -> list[tuple[int, Record]]:
    """The calls with their numbers; calls of `run_kernel` that differ only in parameters' values become one."""
    groups: dict[str, list[tuple[int, Record]]] = {}
    for number, record in calls:
        is_alone = not record["is_run"] or "refused" in record
        same = [number] if is_alone else [
            [record[one] for one in ("kernel_name", "sources", "grid", "block", "shared", "constants", "flags")],
            [{**one, "contents": ""} for one in record["arguments"]],
            [*record["parameters"]],
        ]  # fmt: skip
        groups.setdefault(json.dumps(same), []).append((number, record))
    return [one for group in groups.values() for one in _one_of(group)]


def _one_of(group: list[tuple[int, Record]]) -> list[tuple[int, Record]]:
    """One call with all values, where the calls have every combination of them."""
    number, first = group[0]
    values = {name: list(dict.fromkeys(one["default"][name] for _, one in group)) for name in first.get("default", ())}
    combinations = {tuple(one["default"].values()) for _, one in group} if values else set()
    if len(group) == 1 or len(combinations) != math.prod(map(len, values.values())):
        return group
    notes = [*first["notes"], f"the values of {len(combinations)} calls of run_kernel are those of its parameters"]
    return [(number, {**first, "parameters": values, "notes": notes})]


@contextlib.contextmanager
def workplace(target: Path) -> Iterator[tuple[Path, Path]]:
    """Two temporary folders on the file system of `target`: for files, and for folders that will move there."""
    try:
        temporary = tempfile.TemporaryDirectory(
            prefix=".adopt-", dir=next(one for one in _upwards(target) if one.exists())
        )
    except OSError as error:
        raise AdoptionError(f"{target} cannot be written: {error.strerror}") from error
    with temporary as made_in:
        run, made = Path(made_in) / "run", Path(made_in) / "made"
        run.mkdir()
        made.mkdir()
        yield run, made


def placed(adopted: Sequence[Adopted], target: Path) -> list[Adopted]:
    """The same with their folders in `target`; raises AdoptionError, and moves none, where one exists already."""
    there = [one.folder.name for one in adopted if one.folder and (target / one.folder.name).exists()]
    if there:
        raise AdoptionError(f"{target / there[0]} exists already: name another place by --folder")
    for one in adopted:
        if one.folder is not None:
            target.mkdir(parents=True, exist_ok=True)
            one.folder.rename(target / one.folder.name)
    return [replace(one, folder=one.folder and target / one.folder.name) for one in adopted]


def _upwards(folder: Path) -> list[Path]:
    """The folder and its parents: those that have to be made will be on the same file system."""
    return [folder.absolute(), *folder.absolute().parents]


def made_from(
    number: int,
    record: Mapping[str, Any],
    run: Path,
    made: Path,
    taken: Collection[str],
    others: Sequence[Path],
    *,
    limit_s: float = LIMIT_S,
) -> Adopted:
    """One call's folder in `made`; its arrays' files are in `run`. Parameters' meanings are compared for `limit_s`."""
    kernel_name = record["kernel_name"]
    reason = record.get("refused")
    try:
        record = with_kernel_of_host(record) if record.get("initialisers") is not None else record
        record = record if reason else with_texture_objects(record)
        reason = reason or _refusal(record)
    except AdoptionError as error:
        reason = str(error)
    if reason:
        return Adopted(number, kernel_name, None, reason)
    if record.get("answer_run"):
        record = with_answers(record, run, lambda call, inside: _folder_of(call, run, inside, others))
    kept = [flag for flag in record["flags"] if not USELESS_FLAGS.fullmatch(flag)]
    notes = [*record["notes"]]
    if len(kept) < len(record["flags"]):
        notes.append(f"without the flags {' '.join(flag for flag in record['flags'] if flag not in kept)}")
    record = with_cut({**record, "flags": kept})
    kernel_name = record["kernel_name"]
    folder = made / unique_name(kernel_name, taken)
    try:
        declaration = _write(record, folder, run)
        found = meaning(own_kernel(folder, others), candidates(record), limit_s)
        if found.changing:
            shutil.rmtree(folder)
            declaration = _write(posed(record, found.changing), folder, run)
            own_kernel(folder, others)
    except AdoptionError as error:
        return Adopted(number, kernel_name, None, str(error))
    except BrokenDeclarationError as error:
        shutil.rmtree(folder)
        return Adopted(number, kernel_name, None, f"its declaration cannot be loaded: {error.reason}")
    notes += found.notes
    notes += [f"{one} is all zeros and is read: random numbers take their place" for one in declaration.zero_inputs]
    notes += [f"{one}: {OF_PARTS}" for one in declaration.parts]
    notes += [f"{one} is a texture object now, which the function takes last" for one in record.get("textures", ())]
    if not declaration.knows_shared_bytes:
        notes.append("its static shared memory could not be told: declare static_shared_bytes")
    if not declaration.is_for_any_size:
        notes.append("for this size only")
    return Adopted(number, kernel_name, folder, "", tuple(notes))


def _folder_of(record: Mapping[str, Any], run: Path, inside: Path, others: Sequence[Path]) -> Path:
    """The folder of a call, made inside another; raises AdoptionError."""
    one = made_from(0, record, run, inside, set(), others)
    if one.folder is None:
        raise AdoptionError(one.refused)
    return one.folder


def _write(record: Mapping[str, Any], folder: Path, run: Path) -> Declaration:
    """The declaration, which is in the folder with all its files; raises AdoptionError, and writes nothing then."""
    source = f"{folder.name}.cu"
    text = variant_source(record)
    declaration = Declaration(record, folder.name, source)
    folder.mkdir()
    (folder / source).write_text(text, encoding="utf-8")
    (folder / "declaration.py").write_text(declaration.text, encoding="utf-8")
    for header, content in record["headers"].items():
        (folder / header).write_text(content, encoding="utf-8")
    for file, kept_as in declaration.files().items():
        shutil.copy(run / file, folder / kept_as)
    return declaration


def _refusal(record: Mapping[str, Any]) -> str | None:
    """The reason why a call cannot be taken over although its record does not say so; None where it can."""
    unknown = [one["dtype"] for one in record["arguments"] if not is_known(one["dtype"])]
    if unknown:
        return f"an argument is of {unknown[0]}, which is not supported"
    count = Arguments(record).count
    if count is not None and count != len(record["arguments"]):
        return f"the function takes {count} arguments, and {len(record['arguments'])} are passed"
    if not any(one["kind"] == "tensor" for one in record["arguments"]):
        return "it has no array among its arguments"
    return None


Folder = Callable[[Mapping[str, Any], Path], Path]
"""Makes the folder of a call inside another one; raises AdoptionError."""


def with_answers(record: Mapping[str, Any], files: Path, folder_of: Folder) -> dict[str, Any]:
    """The record with the answer in files; without an answer, and with a note, where it cannot be computed here."""
    call = record["answer_run"]
    try:
        with tempfile.TemporaryDirectory(dir=files) as temporary:
            results = _results(folder_of({**call, "answer_run": None}, Path(temporary)))
        for place, of in call["places"].items():
            if results[of] is None:
                raise AdoptionError(f"{call['kernel_name']} does not write argument {of + 1}")
            np.save(files / str(record["answer"][int(place)]), results[of])
    except TunerError as error:
        reason = str(error).strip().splitlines()[0]
        note = (
            f"the answer is what {call['kernel_name']} computes, which failed on the CPU device: it is not taken over"
        )
        return {**record, "answer": None, "verify": None, "notes": [*record["notes"], f"{note} ({reason})"]}
    note = f"the answer is what {call['kernel_name']} computes on the CPU device"
    return {**record, "notes": [*record["notes"], note]}


def _results(folder: Path) -> list[np.ndarray[Any, Any] | None]:
    """The contents of each argument after a run of the kernel's only configuration; None for one not written."""
    kernel, device = own_kernel(folder), CpuDevice()
    problem = kernel.problem(kernel.example_shape, kernel.dtypes[0])
    try:
        bench = device.bench(kernel, problem, seed=1)
        bench.close()
        written = {tensor.name: tensor.dtype_for(problem) for tensor in kernel.outputs}
        values = bench.expected.references
        return [values[a.name].value.astype(written[a.name]) if a.name in written else None for a in kernel.arguments]
    finally:
        device.close()
