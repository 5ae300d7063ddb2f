"""gemm's variant `register` on this machine's GPU: checked at odd shapes, explored at random beside the library.

    python benchmarks/searches/register_gemm.py check --configurations 500
    python benchmarks/searches/register_gemm.py explore --shape 4096x4096x4096 --configurations 150 [--try WPT_M=8,16]
    python benchmarks/searches/register_gemm.py once --shape 100x130x70 --set WPT_N=16 [--library]

`explore` draws random feasible configurations, verifies and times each once, then times the leading ones and the
library again in interleaved rounds. `once` launches in this process, for a profiler or compute-sanitizer.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration, Values
from tilewright.tuner.devices.device import Bench, Device
from tilewright.tuner.devices.local import DeviceSpec, find_device, open_device
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.loop.outcome import Executable

SIZES = (1, 3, 7, 16, 31, 33, 64, 100, 127, 128, 130, 192, 255, 256, 260, 300, 513)
DEPTHS = (1, 2, 7, 8, 9, 17, 32, 63, 64, 100, 130, 256, 500, 1025)
FINALS, ROUNDS = 10, 9


def draw(
    kernel: Kernel, problem: Problem, limits: Limits, count: int, tried: dict[str, list[int]], generator: random.Random
) -> list[Configuration]:
    """Random feasible configurations; the lists of `tried` replace a parameter's values, or add a macro."""
    space = kernel.variant("register").space()
    values = {p.name: list(p.values) for p in space.parameters} | tried
    drawn: dict[Configuration, None] = {}
    for _ in range(4000 * count):
        point = {name: generator.choice(choices) for name, choices in values.items()}
        if space.violated(Values(point), problem, limits) is None:
            drawn[Configuration.of("register", point)] = None
        if len(drawn) == count:
            break
    return list(drawn)


def random_problem(kernel: Kernel, dtype: str, generator: random.Random) -> Problem:
    """An odd shape with random options."""
    shape = {"m": generator.choice(SIZES), "n": generator.choice(SIZES), "k": generator.choice(DEPTHS)}
    admitted = (option for option in kernel.options if dtype in (option.only_dtypes or kernel.dtypes))
    return kernel.problem(shape, dtype, {o.name: generator.choice(o.values) for o in admitted})


def check(device: Device, kernel: Kernel, count: int, tried: dict[str, list[int]], generator: random.Random) -> int:
    """How many of `count` random configurations of random problems failed; each failure is printed."""
    outcomes: Counter[str] = Counter()
    per_problem = 8
    while outcomes.total() < count:
        problem = random_problem(kernel, generator.choice(kernel.dtypes), generator)
        chosen = draw(kernel, problem, device.model.limits, per_problem, tried, generator)
        bench = device.bench(kernel, problem, generator.randrange(2**31))
        bench.compile_ahead(chosen)
        for configuration in chosen:
            message = "right"
            try:
                verification = bench.verify(bench.compile(configuration))
                if verification.wrong:
                    message = f"wrong: {verification.message()}"
            except TrialFailure as failure:
                message = f"{failure.outcome}: {failure.log[:400]}"
            outcomes[message.split(":")[0]] += 1
            if message != "right":
                print(problem, dict(problem.options), configuration, message, flush=True)
        bench.close()
    print("check:", dict(outcomes), flush=True)
    return outcomes.total() - outcomes["right"]


def first_times(bench: Bench, chosen: list[Configuration]) -> list[tuple[float, Configuration, Executable]]:
    """The configurations that are right, with a first time in ms, fastest first."""
    timed = []
    for configuration in chosen:
        try:
            executable = bench.compile(configuration)
            verification = bench.verify(executable)
            if verification.wrong:
                print("WRONG", configuration, verification.message(), flush=True)
                continue
            timed.append((min(bench.sample(executable, "warm", 4)), configuration, executable))
        except TrialFailure as failure:
            print(failure.outcome, configuration, failure.log[:300], flush=True)
    return sorted(timed, key=lambda row: row[0])


def explore(
    device: Device, kernel: Kernel, problem: Problem, chosen: list[Configuration], generator: random.Random
) -> dict[str, Any]:
    """First times of all, and medians of interleaved rounds of the leaders and the library."""
    start = time.perf_counter()
    bench = device.bench(kernel, problem, generator.randrange(2**31))
    bench.compile_ahead(chosen)
    timed = first_times(bench, chosen)
    library = bench.library()
    if library is None:
        raise SystemExit("this device has no library")
    samples: dict[int, list[float]] = {}
    runners = [library, *(executable for _, _, executable in timed[:FINALS])]
    for _ in range(ROUNDS):  # interleaved, so that clocks and neighbours meet all alike
        for i, executable in enumerate(runners):
            samples.setdefault(i, []).extend(bench.sample(executable, "warm", 3)[1:])
    library_ms = statistics.median(samples[0])
    print(
        f"\n{problem} {dict(problem.options)}: {len(timed)} of {len(chosen)} timed, {bench.library_name()} "
        f"{library_ms:.5f} ms = {kernel.flops(problem) / library_ms / 1e9:.2f} TFLOP/s, {bench.state()}, "
        f"{time.perf_counter() - start:.0f} s"
    )
    finals = []
    for i, (_, configuration, executable) in enumerate(timed[:FINALS], 1):
        time_ms = statistics.median(samples[i])
        r = executable.resources
        finals.append((library_ms / time_ms, time_ms, configuration.as_json(), r.registers, r.shared_bytes))
    finals.sort(key=lambda row: -row[0])
    for speedup, time_ms, configuration_json, registers, shared_bytes in finals:
        text = " ".join(f"{k}={v}" for k, v in configuration_json.items() if k != "variant")
        print(f"  x{speedup:.3f}  {time_ms:.5f} ms  {registers} regs {shared_bytes} B  {text}", flush=True)
    bench.close()
    first = [(time_ms, c.as_json(), e.resources.registers, e.resources.spill_bytes) for time_ms, c, e in timed]
    return {"problem": problem.as_json(), "library_ms": library_ms, "finals": finals, "first": first}


def once(kernel: Kernel, problem: Problem, settings: list[str], *, library: bool) -> int:
    """Launches default configurations with these settings in this process, and compares; 1 where one is wrong."""
    device = DeviceSpec(find_device("cuda:0").uuid).open()
    bench = device.bench(kernel, problem, 1)
    wrong = 0
    for text in settings or [""]:
        changed = {name: int(value) for name, value in (word.split("=") for word in text.split())}
        configuration = Configuration.of("register", {**kernel.variant("register").space().default().values, **changed})
        verification = bench.verify(bench.compile(configuration))
        print(problem, text, verification.message())
        wrong += verification.wrong
    call = bench.library() if library else None
    if call is not None:
        bench.verify(call)
    bench.close()
    device.close()
    return int(wrong > 0)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("check", "explore", "once"))
    parser.add_argument("--shape", action="append", default=[], help="m x n x k; may be repeated")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--option", action="append", default=[], help="a flag of gemm to set; may be repeated")
    parser.add_argument("--configurations", type=int, default=150)
    parser.add_argument(
        "--try", dest="tried", action="append", default=[], help="PARAMETER=1,2,3 instead of its values"
    )
    parser.add_argument("--set", dest="settings", action="append", default=[], help='for `once`: "WPT_M=16 WPT_N=8"')
    parser.add_argument(
        "--configuration", action="append", default=[], help="for `explore`: also this one, as for --set"
    )
    parser.add_argument("--library", action="store_true", help="for `once`: the library too")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> int:
    """Does what the command line says; 1 where something was wrong."""
    arguments = parse()
    generator = random.Random(arguments.seed)
    kernel = catalogue().get("gemm")
    flags = dict.fromkeys(arguments.option, True)
    shapes = [tuple(int(size) for size in text.split("x")) for text in arguments.shape]
    problems = [kernel.problem(dict(zip(kernel.axes, sizes, strict=True)), arguments.dtype, flags) for sizes in shapes]
    if arguments.what == "once":
        return max(once(kernel, p, arguments.settings, library=arguments.library) for p in problems)
    device = open_device("cuda:0")
    print(device.model.name, device.environment, flush=True)
    tried = {name: [int(v) for v in values.split(",")] for name, values in (t.split("=") for t in arguments.tried)}
    if arguments.what == "check":
        failed = check(device, kernel, arguments.configurations, tried, generator)
        device.close()
        return int(failed > 0)
    default = dict(kernel.variant("register").space().default().values)
    named = [
        Configuration.of("register", default | {name: int(v) for name, v in (w.split("=") for w in text.split())})
        for text in arguments.configuration
    ]
    rows = []
    for problem in problems:
        space = kernel.variant("register").space()
        feasible = [c for c in named if space.violated(c.values, problem, device.model.limits) is None]
        chosen = feasible + draw(kernel, problem, device.model.limits, arguments.configurations, tried, generator)
        rows.append(explore(device, kernel, problem, list(dict.fromkeys(chosen)), generator))
        leaders = [Configuration.from_json(row[2]) for row in rows[-1]["finals"]]
        named = list(dict.fromkeys([*named, *leaders]))
    device.close()
    if arguments.json:
        arguments.json.write_text(json.dumps(rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
