"""The exported H200 results as plain values: what benchmarks/results/h200 holds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tilewright.kernels.problem import Limits
from tilewright.tuner.devices.device import DeviceModel, Environment

H200 = Path(__file__).parents[2] / "benchmarks" / "results" / "h200"
KERNELS, DATA = H200 / "kernels.json", Path(__file__).parents[1] / "data"
MAIN_JOB, EARLIER = DATA / "main_job.json", DATA / "main_job_before_tensor_cores.json"
"""The main job with both compilers, some hours before."""


def device_model(described: dict) -> DeviceModel:
    """A device model from its JSON, as the API (with `details`) or a benchmark writes it."""
    details = described.get("details", described)
    limits = {k: tuple(v) if isinstance(v, list) else v for k, v in details["limits"].items() if k != "features"}
    known = {name: details[name] for name in DeviceModel.__dataclass_fields__ if name in details}
    return DeviceModel(**known | {"limits": Limits(**limits, features=frozenset(details["limits"]["features"]))})


def environment(described: dict) -> Environment:
    """An environment from its JSON."""
    return Environment(**{name: described[name] for name in Environment.__dataclass_fields__})


@dataclass(frozen=True)
class Settled:
    """A settled winner as a benchmark wrote it down: columns of its best configuration, and the trials that it kept."""

    kernel: str
    shape: dict[str, int]
    dtype: str
    options: dict | None
    environment: Environment
    source_hash: str | None
    configuration: dict
    trials: list[dict]  # columns of each, with its configuration; the winner's among them
    tried: int
    space_size: int
    search_s: float
    result: dict
    best: dict
    verified_at: datetime


def settled_by_main_job(path: Path = MAIN_JOB) -> list[Settled]:
    """Eight problems tuned through the API on an H200; the finalists are the trials that it kept."""
    found = []
    for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
        result, best, library = row["result"], row["best"], row["result"]["library"]
        if row["compiler"] != best["environment"]["compiler"]:
            continue
        finalists = {json.dumps(f["configuration"], sort_keys=True): f for f in result["finalists"]}
        columns = {name: best[name] for name in ("l2", "gflops", "gb_per_s", "roof_ratio", "bound_ratio")}
        library_columns = {"library_name": library["name"], "library_ms": library["time_ms"]}
        low, high = result["best"]["ci_ms"]
        found.append(
            Settled(
                kernel=row["kernel"],
                shape=row["shape"],
                dtype=row["dtype"],
                options=None,
                environment=environment(best["environment"]),
                source_hash=best.get("source_hash"),
                configuration=result["best"]["configuration"],
                trials=[{"configuration": f["configuration"], "time_ms": f["time_ms"]} for f in finalists.values()],
                tried=row["trials"],
                space_size=row.get("space_size", row["trials"]),
                search_s=row["search_s"],
                result=result,
                best=columns
                | library_columns
                | {"time_ms": result["best"]["time_ms"], "ci_low_ms": low, "ci_high_ms": high}
                | {"default_ms": result["default_ms"], "slowest_ms": result["slowest_ms"], "ties": result["ties"]}
                | {"library_faster": library["faster"]},
                verified_at=datetime.fromisoformat(best["verified_at"]),
            )
        )
    return found


def settled_by_kernels(path: Path = KERNELS) -> list[Settled]:
    """What `make bench-kernels` wrote; the winner is the only trial that it kept."""
    document = json.loads(path.read_text(encoding="utf-8"))
    measured_in = environment(document["environment"])
    same = ("time_ms", "l2", "gflops", "gb_per_s", "default_ms", "ties", "bound_ratio")
    same += ("library_bound_ratio", "library_ms")
    found = []
    for row in document["rows"]:
        low, high = row["ci_ms"]
        clocks = {name: row[name] for name in ("clock_mhz", "temperature_c", "gflops", "gb_per_s", "bound_ratio")}
        found.append(
            Settled(
                **{name: row[name] for name in ("kernel", "shape", "dtype", "options", "search_s")},
                source_hash=row.get("variant_source_hash"),
                environment=measured_in,
                configuration=row["configuration"],
                trials=[
                    {"configuration": row["configuration"], "time_ms": row["time_ms"]}
                    | {"cold_ms": row["cold"]["time_ms"], **row["resources"], **clocks}
                ],
                tried=row["trials"],
                space_size=row["space_size"],
                result={"stopped_by": row["stopped_by"], "dropped": []},
                best={name: row[name] for name in same}
                | {"ci_low_ms": low, "ci_high_ms": high, "roof_ratio": row["percent_of_roof"] / 100}
                | {"library_name": row["library"], "library_faster": row["speedup_ci"][1] < 1},
                verified_at=datetime.fromisoformat(row["measured_at"]),
            )
        )
    return found
