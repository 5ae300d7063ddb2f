"""A predictor's fit as bytes, an npz file that is read without pickle, its predictions as JSON, and a hash of both."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits
from tilewright.kernels.space import Configuration
from tilewright.tuner.predict.features import RegisterEstimate
from tilewright.tuner.predict.library import LibraryFit, LibraryTime
from tilewright.tuner.predict.model import Smooth, Term
from tilewright.tuner.predict.predictor import Fit
from tilewright.tuner.predict.record import Prediction, Record

Arrays = Mapping[str, NDArray[Any]]


def records_hash(kernel: Kernel, limits: Limits, records: Sequence[Record]) -> str:
    """SHA-256 of all that a fit depends on: the records, the kernel's declaration, the device, and this folder's code.

    Trials count in their order: of two as good ones the first is predicted.
    """
    known = hashlib.sha256(_code_hash())
    device = {name: sorted(v) if isinstance(v, frozenset) else v for name, v in asdict(limits).items()}
    known.update(json.dumps([kernel.declaration, device], sort_keys=True).encode())
    for record in records:
        known.update(repr((record.problem.as_json(), record.origin, record.shipped, record.library)).encode())
        registers = record.registers
        for c, time_ms in record.times_ms.items():
            known.update(repr((c.variant, c.items, time_ms, registers.get(c))).encode())
        known.update(repr(sorted((c.variant, c.items) for c in record.failed)).encode())
    return known.hexdigest()


def packed(fit: Fit) -> bytes:
    """The fit as an npz file. Half of a large one's 1,700 by 1,700 numbers are written: the matrix is symmetric."""
    arrays: dict[str, NDArray[Any]] = {"losses": fit.losses, **_of_smooth("model", fit.model)}
    if fit.library is not None:
        errors = np.array([fit.library.error, fit.library.near_error, fit.library.deviation])
        arrays |= {"library.errors": errors, **_of_smooth("library", fit.library.function)}
    if fit.registers is not None:
        limits = np.array([fit.registers.least, fit.registers.most])
        arrays |= {"registers.limits": limits, **_of_smooth("registers", fit.registers.function)}
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    return file.getvalue()


def unpacked(content: bytes) -> Fit:
    """The fit that `packed` wrote; raises ValueError or KeyError where it is not one."""
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        arrays = dict(file)
    library = registers = None
    if "library.errors" in arrays:
        library = LibraryFit(_smooth("library", arrays), *map(float, arrays["library.errors"]))
    if "registers.limits" in arrays:
        least, most = (int(count) for count in arrays["registers.limits"])
        registers = RegisterEstimate(_smooth("registers", arrays), least, most)
    return Fit(_smooth("model", arrays), arrays["losses"], library, registers)


def prediction_document(made: Prediction) -> dict[str, Any]:
    """The prediction as JSON."""
    return asdict(made) | {
        "configuration": made.configuration.as_json(),
        "near": {name: value for name, value in made.near.as_json().items() if name in {"shape", "dtype", "options"}},
    }


def prediction_of(kernel: Kernel, document: Mapping[str, Any]) -> Prediction:
    """The prediction that `prediction_document` wrote."""
    values, library = dict(document["configuration"]), document["library"]
    return Prediction(
        **{**document, "origins": tuple(document["origins"]), "shipped": tuple(document["shipped"])}
        | {
            "configuration": Configuration.of(values.pop("variant"), values),
            "near": kernel.problem(**document["near"]),
            "library": None if library is None else LibraryTime(**library),
        }
    )


def _of_smooth(name: str, function: Smooth) -> dict[str, NDArray[Any]]:
    lower = np.tril_indices(len(function.inverse))
    return {
        f"{name}.level": np.array(function.level),
        f"{name}.mean": function.mean,
        f"{name}.scale": function.scale,
        f"{name}.weights": function.weights,
        f"{name}.inverse": function.inverse[lower],
        **{f"{name}.columns.{i}": term.columns for i, term in enumerate(function.terms)},
        **{f"{name}.centres.{i}": term.centres for i, term in enumerate(function.terms)},
    }


def _smooth(name: str, arrays: Arrays) -> Smooth:
    own = {key.removeprefix(f"{name}."): array for key, array in arrays.items() if key.startswith(f"{name}.")}
    terms: list[Term] = []
    while f"columns.{len(terms)}" in own:
        terms.append(Term(own[f"columns.{len(terms)}"], own[f"centres.{len(terms)}"]))
    size = len(own["weights"])
    inverse = np.empty((size, size))
    inverse[np.tril_indices(size)] = own["inverse"]
    inverse.T[np.tril_indices(size)] = own["inverse"]
    return Smooth(float(own["level"]), own["mean"], own["scale"], tuple(terms), own["weights"], inverse)


@cache
def _code_hash() -> bytes:
    """The hash of this folder's modules: another way to fit makes other fits."""
    code = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        code.update(path.read_bytes())
    return code.digest()
