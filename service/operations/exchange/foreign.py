"""Reads T4 files, Kernel Tuner's caches and KTT's results: unverified times, for a problem that the caller names.

These formats name the tuned problem differently or not at all; files written by this product name it in an extra
member. Times are milliseconds unless a T4 file names another unit.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from tilewright.kernels.kernel import Kernel
from tilewright.service.errors import InvalidRequestError
from tilewright.service.operations.exchange.document import MAX_TRIALS, OwnPart, ProblemPart
from tilewright.service.operations.exchange.foreign_rows import NoRowError, Rows, same_name
from tilewright.service.operations.exchange.incoming import (
    ImportOptions,
    IncomingDocument,
    IncomingStudy,
    UnreadableRow,
    refused,
)
from tilewright.service.operations.registry import catalogue
from tilewright.service.operations.strict_json import escape
from tilewright.tuner.devices.cuda.model import slug_of
from tilewright.tuner.devices.device import DeviceModel, Environment
from tilewright.tuner.devices.known_models import known_model, model_of_product, product_of
from tilewright.tuner.outcome import Outcome
from tilewright.tuner.recorded.recordings import foreign_outcome

OWN = "tilewright"
"""The member for fields that those formats do not have."""

T4, KERNEL_TUNER, KTT = "T4", "Kernel Tuner", "KTT"
UNITS_MS = {"milliseconds": 1.0, "ms": 1.0, "seconds": 1e3, "s": 1e3, "microseconds": 1e-3, "us": 1e-3}
UNITS_MS |= {"nanoseconds": 1e-6, "ns": 1e-6}
UNITS_MS["miliseconds"] = 1.0  # a misspelling in published files


NO_TIME_MS = 1e19
"""Older versions of Kernel Tuner write 1e20 for a configuration that failed."""

KTT_OUTCOMES = {
    "Ok": Outcome.MEASURED,
    "CompilationFailed": Outcome.COMPILE_FAILED,
    "ComputationFailed": Outcome.LAUNCH_FAILED,
    "DeviceLimitsExceeded": Outcome.LAUNCH_FAILED,
    "ValidationFailed": Outcome.WRONG_RESULT,
}

_Row = tuple[Any, Outcome, float | None, Any]
"""Configuration, outcome, time, time of compiling."""


def read_kernel_tuner(data: Mapping[str, Any], target: ImportOptions) -> IncomingDocument:
    """The cache as a study; raises InvalidRequestError for one without its header."""
    own = _own(data.get(OWN))
    cache, names = data["cache"], data["tune_params_keys"]
    if not isinstance(cache, dict) or len(cache) > MAX_TRIALS:
        raise InvalidRequestError("cache", f"must be an object of at most {MAX_TRIALS} rows.")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidRequestError("tune_params_keys", "must be a list of names.")
    problem = _problem(target, own, data.get("kernel_name"), data.get("problem_size"))
    rows = Rows(catalogue().get(problem.kernel), target, own)
    for key, row in cache.items():
        pointer = f"/cache/{escape(key)}"
        try:
            rows.add(pointer, *_kernel_tuner_row(row, names))
        except NoRowError as error:
            rows.unread.append(UnreadableRow(pointer, str(error)))
    return _incoming(KERNEL_TUNER, target, own, problem, rows, data.get("device_name"))


def _kernel_tuner_row(row: Any, names: Sequence[str]) -> _Row:
    """A row of the cache: a failure's word instead of a time, else the median of the times, if they are kept."""
    if not isinstance(row, dict):
        raise NoRowError("the row is not a JSON object")
    configuration = {name: row[name] for name in names if name in row}
    time, times = row.get("time"), row.get("times")
    if isinstance(time, str):
        return configuration, _failure(time), None, row.get("compile_time")
    return configuration, Outcome.MEASURED, _median_ms(times or [time], 1.0), row.get("compile_time")


def read_t4(data: Mapping[str, Any], target: ImportOptions) -> IncomingDocument:
    """The file as a study; raises InvalidRequestError for another version or one without rows."""
    version, results, metadata = data["schema_version"], data["results"], data.get("metadata")
    if not isinstance(version, str) or not version.startswith("1."):
        raise InvalidRequestError("schema_version", f"is {str(version)[:40]!r}; this version reads 1.x.", "1.0.0")
    if not isinstance(results, list) or len(results) > MAX_TRIALS:
        raise InvalidRequestError("results", f"must be a list of at most {MAX_TRIALS} rows.")
    metadata = metadata if isinstance(metadata, dict) else {}
    unit = metadata.get("timeunit", "milliseconds")
    if not isinstance(unit, str) or unit not in UNITS_MS:
        raise InvalidRequestError("metadata.timeunit", f"must be one of {', '.join(UNITS_MS)}.", "milliseconds")
    own = _own(metadata.get(OWN))
    problem = _problem(target, own, None, None)
    rows = Rows(catalogue().get(problem.kernel), target, own)
    for place, row in enumerate(results):
        try:
            rows.add(f"/results/{place}", *_t4_row(row, unit))
        except NoRowError as error:
            rows.unread.append(UnreadableRow(f"/results/{place}", str(error)))
    return _incoming(T4, target, own, problem, rows)


def _t4_row(row: Any, unit: str) -> _Row:
    if not isinstance(row, dict) or not isinstance(row.get("times"), dict):
        raise NoRowError("the row has no times")
    outcome = _failure(row.get("invalidity"))
    time_ms = _t4_time_ms(row, unit) if outcome is Outcome.MEASURED else None
    compile_ms = row["times"].get("compilation", row["times"].get("compilation_time"))
    return row.get("configuration"), outcome, time_ms, compile_ms


def _t4_time_ms(row: Mapping[str, Any], unit: str) -> float:
    """The median run time, else the measurement that is called `time`."""
    runtimes = row["times"].get("runtimes")
    if runtimes:
        return _median_ms(runtimes, UNITS_MS[unit])
    measurements = row.get("measurements")
    for measured in measurements if isinstance(measurements, list) else ():
        if isinstance(measured, dict) and measured.get("name") == "time":
            own_unit = measured.get("unit") or unit
            factor = UNITS_MS.get(own_unit, math.nan) if isinstance(own_unit, str) else math.nan
            return _median_ms([measured.get("value")], factor)
    raise NoRowError("the run time is missing")


def read_ktt(data: Mapping[str, Any], target: ImportOptions) -> IncomingDocument:
    """The results of KTT as a study; raises InvalidRequestError for a file without its unit of time."""
    metadata, results = data["Metadata"], data["Results"]
    if not isinstance(results, list) or len(results) > MAX_TRIALS:
        raise InvalidRequestError("Results", f"must be a list of at most {MAX_TRIALS} rows.")
    unit = str(metadata.get("TimeUnit") if isinstance(metadata, dict) else None).lower()
    if unit not in UNITS_MS:
        raise InvalidRequestError("Metadata.TimeUnit", "must be a unit of time, such as Microseconds.", "Microseconds")
    names = {row.get("KernelName") for row in results if isinstance(row, dict)}
    problem = _problem(target, None, names.pop() if len(names) == 1 else None, None)
    rows = Rows(catalogue().get(problem.kernel), target, None)
    for place, row in enumerate(results):
        try:
            rows.add(f"/Results/{place}", *_ktt_row(row, UNITS_MS[unit]))
        except NoRowError as error:
            rows.unread.append(UnreadableRow(f"/Results/{place}", str(error)))
    return _incoming(KTT, target, None, problem, rows, metadata.get("Device"))


def _ktt_row(row: Any, factor: float) -> _Row:
    pairs = row.get("Configuration") if isinstance(row, dict) else None
    if not isinstance(pairs, list) or not all(isinstance(pair, dict) and "Name" in pair for pair in pairs):
        raise NoRowError("the row has no configuration")
    configuration = {str(pair["Name"]): pair.get("Value") for pair in pairs}
    outcome = KTT_OUTCOMES.get(str(row.get("Status")))
    if outcome is None:
        raise NoRowError(f"{str(row.get('Status'))[:40]!r} is not a known status")
    is_measured = outcome is Outcome.MEASURED
    return configuration, outcome, _median_ms([row.get("TotalDuration")], factor) if is_measured else None, None


def _failure(word: Any) -> Outcome:
    outcome = foreign_outcome(word) if isinstance(word, str) else None
    if outcome is None:
        raise NoRowError(f"{str(word)[:40]!r} is not a known outcome")
    return outcome


def _median_ms(times: Any, factor: float) -> float:
    if not isinstance(times, list) or not all(type(time) in {int, float} and time > 0 for time in times):
        raise NoRowError("the time is missing or not above 0")
    if max(times) >= NO_TIME_MS:
        raise NoRowError(f"the time {max(times):g} stands for a failure that the file does not name")
    return float(statistics.median(times)) * factor


def _own(part: Any) -> OwnPart | None:
    if part is None:
        return None
    try:
        return OwnPart.model_validate(part)
    except ValidationError as error:
        raise refused(error, OWN) from None


def _problem(target: ImportOptions, own: OwnPart | None, kernel_name: Any, problem_size: Any) -> ProblemPart:
    """The tuned problem: the caller's if given, else the file's."""
    known = [kernel.name for kernel in catalogue().kernels()]
    name = target.kernel or (own.problem.kernel if own else kernel_name)
    name = same_name(name, known) if isinstance(name, str) else name
    if name not in known:
        given = f"the file says {str(name)[:40]!r}; " if name else ""
        raise InvalidRequestError("kernel", f"{given}name one of {', '.join(known)}.", known[0])
    kernel = catalogue().get(name)
    shape = target.shape or (own.problem.shape if own else _shape_of(kernel, problem_size))
    if not shape:
        example = ",".join(f"{axis}={size}" for axis, size in kernel.example_shape.items())
        raise InvalidRequestError("shape", "the file does not name the shape; give it.", example)
    dtype = target.dtype or (own.problem.dtype if own else kernel.dtypes[0])
    options = target.options if target.options is not None else (own.problem.options if own else {})
    problem = kernel.problem(shape, dtype, options)
    return ProblemPart(kernel=name, shape=problem.stated_shape, dtype=problem.dtype, options=dict(problem.options))


def _shape_of(kernel: Kernel, problem_size: Any) -> dict[str, int] | None:
    """The axes by place, if there are as many whole numbers; else None."""
    sizes: Iterable[Any] = problem_size if isinstance(problem_size, list) else [problem_size]
    sizes = [size for size in sizes if type(size) is int]
    return dict(zip(kernel.axes, sizes, strict=True)) if len(sizes) == len(kernel.axes) else None


def _device_model(name: str, limits: Mapping[str, str] | None) -> tuple[str, DeviceModel | None]:
    """The intended slug, and the model by the caller's facts or else by the known products."""
    try:
        model = known_model(name) if limits is None else model_of_product(name, product_of(limits))
    except ValueError as error:
        example = "compute_capability=8.0,multiprocessors=108,memory_gib=40"
        raise InvalidRequestError("limits", f"{error}.", example) from None
    return (_plain_slug(name), None) if model is None else (model.slug, model)


def _plain_slug(name: str) -> str:
    """The slug in plain form: `cpu:…` keeps its colon; capitals and spaces that people write go."""
    return name.lower() if ":" in name else slug_of(name)


def _incoming(
    name: str, target: ImportOptions, own: OwnPart | None, problem: ProblemPart, rows: Rows, device_name: Any = None
) -> IncomingDocument:
    named = target.device_model or (own.device_model if own else device_name)
    if not isinstance(named, str) or not _plain_slug(named):
        raise InvalidRequestError("device_model", "the file does not name the device model; give it.", "nvidia-h200")
    slug, described = _device_model(named, target.limits)
    study = IncomingStudy(
        pointer="",
        problem=problem,
        device_model=slug,
        environment=Environment("", "", "", "", f"{name}, unverified", ""),
        space_size=None,
        trials=rows.trials,
        unread=rows.unread,
        row_pointers=rows.pointers,
    )
    return IncomingDocument(name, target.origin, [study], {} if described is None else {slug: described})
