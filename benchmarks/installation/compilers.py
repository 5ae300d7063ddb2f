"""Compares two compilers on the configurations that studies of one problem measured under both; needs no GPU.

tilewright serve                        # over the database that holds the studies
python benchmarks/installation/compilers.py [--url http://127.0.0.1:8000] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from tilewright.tuner.loop import statistics

PAGE = 200


def items(client: httpx.Client, path: str) -> Iterator[dict[str, Any]]:
    """Everything that a list of the API holds, page after page."""
    cursor: str | None = None
    while True:
        query = {"limit": str(PAGE)} | ({"cursor": cursor} if cursor else {})
        page = client.get(path, params=query).raise_for_status().json()
        yield from page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            return


def times(client: httpx.Client, study: dict[str, Any]) -> dict[str, float]:
    """Time of every measured trial by its configuration."""
    trials = items(client, f"/v1/studies/{study['id']}/trials")
    return {
        json.dumps([trial["variant"], trial["configuration"]], sort_keys=True): trial["time_ms"]
        for trial in trials
        if trial["outcome"] == "measured"
    }


def compare(client: httpx.Client) -> list[dict[str, Any]]:
    """A row per problem and device model with studies under both compilers; ratios are nvcc's time over NVRTC's."""
    studies: dict[str, dict[str, dict[str, Any]]] = {}
    for study in items(client, "/v1/studies"):
        key = json.dumps([study["problem"], study["device_model"]], sort_keys=True)
        studies.setdefault(key, {}).setdefault(study["environment"]["compiler"], study)
    rows = []
    for by_compiler in studies.values():
        if {"nvrtc", "pycuda"} <= by_compiler.keys():
            nvrtc, pycuda = times(client, by_compiler["nvrtc"]), times(client, by_compiler["pycuda"])
            shared = sorted(nvrtc.keys() & pycuda.keys())
            ratios = [pycuda[key] / nvrtc[key] for key in shared]
            interval = statistics.median_interval(ratios)
            rows.append(
                {
                    "problem": by_compiler["nvrtc"]["problem"],
                    "configurations": len(shared),
                    "median_ratio": statistics.median(ratios),
                    "ci": [interval.low, interval.high],
                    "best_nvrtc_ms": min(nvrtc.values()),
                    "best_pycuda_ms": min(pycuda.values()),
                    "nvrtc_best_under_pycuda_ms": pycuda.get(min(nvrtc, key=lambda key: nvrtc[key])),
                    "pycuda_best_under_nvrtc_ms": nvrtc.get(min(pycuda, key=lambda key: pycuda[key])),
                }
            )
    return rows


def text(value: float | None) -> str:
    """Four digits; a dash where that study never tried the configuration."""
    return "-" if value is None else f"{value:.4g}"


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    with httpx.Client(base_url=chosen.url, timeout=30) as client:
        rows = compare(client)
    print("| problem | configurations in both | nvcc / NVRTC | 95 % interval | NVRTC's best (ms) | nvcc's best (ms) |")
    print("|---|---:|---:|---|---:|---:|")
    for row in rows:
        problem = row["problem"]
        shape = ", ".join(str(size) for size in problem["shape"].values())
        print(
            f"| {problem['kernel']} {shape} | {row['configurations']} | {row['median_ratio']:.3f} "
            f"| {row['ci'][0]:.3f} to {row['ci'][1]:.3f} "
            f"| {text(row['best_nvrtc_ms'])}, under nvcc {text(row['nvrtc_best_under_pycuda_ms'])} "
            f"| {text(row['best_pycuda_ms'])}, under NVRTC {text(row['pycuda_best_under_nvrtc_ms'])} |"
        )
    if chosen.out:
        chosen.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
