"""A best configuration as text: its values, its gain, the comparison with the library, how to query it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from tilewright.service.cli.arguments import describe
from tilewright.service.cli.output import data, print_facts

if TYPE_CHECKING:
    from tilewright.service.operations.answers import BestAnswer, JobAnswer
    from tilewright.service.operations.best.results import ResultAnswer


def print_best(best: BestAnswer, *, url: str | None = None) -> None:
    """Prints the answer; with `url`, also the command that gets it from the API there."""
    data.print(f"{describe(best.problem)} on {best.device_model}", style="bold")
    print_facts(
        [
            ("best", " ".join([best.variant, *(f"{name}={value}" for name, value in best.configuration.items())])),
            ("launch", f"grid {_triple(best.launch.grid)}, block {_triple(best.launch.block)}{_shared(best)}"),
            ("time", _time(best)),
            ("gain", _gain(best)),
            ("library", _library(best)),
            ("accuracy", _accuracy(best)),
            ("found by", _match(best)),
            ("verified", _verified(best)),
            ("origin", _origin(best)),
            ("query it", curl_line(best, url) if url else None),
        ]
    )


def trials_done(job: JobAnswer) -> str:
    """`24 of 40 (every configuration has been tried)`."""
    trials = None if job.problem.is_family else job.budget.get("trials")  # of its searches, not of all
    done = f"{job.trials_done} of {trials:.0f}" if trials else str(job.trials_done)
    return f"{done} ({job.why_stopped})" if job.why_stopped else done


def curl_line(best: BestAnswer, url: str) -> str:
    """The shell command that asks the API at `url` for this answer."""
    from tilewright.service.client import Client
    from tilewright.service.operations.catalog import options_that_differ

    asked = best.problem
    path = Client.best_path(asked.kernel, best.device_model, asked.shape, asked.dtype, options_that_differ(asked))
    return f"curl {shlex.quote(url.rstrip('/') + path)}"


def _triple(sizes: tuple[int, int, int]) -> str:
    return " x ".join(str(size) for size in sizes)


def _shared(best: BestAnswer) -> str:
    return f", {best.launch.shared_bytes} bytes of dynamic shared memory" if best.launch.shared_bytes else ""


def milliseconds(time_ms: float) -> str:
    """Four significant digits, with the unit."""
    return f"{time_ms:.4g} ms"


def _time(best: BestAnswer) -> str:
    if best.time_ms is None:
        return "not measured"
    parts = [milliseconds(best.time_ms)]
    if best.ci_ms is not None:
        parts.append(f"(between {best.ci_ms[0]:.4g} and {best.ci_ms[1]:.4g})")
    rates = [f"{best.gflops:.4g} GFLOP/s"] if best.gflops else []  # a kernel that only moves data counts none
    rates += [f"{best.gb_per_s:.4g} GB/s"] if best.gb_per_s else []
    if rates:
        parts.append(f"= {', '.join(rates)}")
    if best.roof_ratio is not None:
        parts.append(f"= {100 * best.roof_ratio:.1f} % of the roof")
    return " ".join(parts) + packing(best)


def packing(best: BestAnswer | ResultAnswer) -> str:
    """`, and 0.012 ms once to pack W`; empty where nothing is packed ahead."""
    if best.pack_ms is None:
        return ""
    from tilewright.service.operations.catalog import packed_input

    return f", and {milliseconds(best.pack_ms)} once to pack {packed_input(best.problem.kernel)}"


def _gain(best: BestAnswer) -> str:
    gains = [
        f"{ratio:.2f} times as fast as {what}"
        for ratio, what in (
            (best.gain_over_default, "the default configuration"),
            (best.gain_over_slowest, "the slowest one tried"),
        )
        if ratio is not None
    ]
    return ", ".join(gains)


def _library(best: BestAnswer) -> str:
    library = best.library
    if library is None:
        return "no library was timed"
    advice = "launchers make this call" if library.launched else "use the library here"
    if library.expected:
        verdict = "this kernel should be faster" if library.speedup >= 1 else "tuning may well beat it"
        verdict = f"{advice}: it may well be faster" if library.faster else verdict
        return f"{library.name}: {milliseconds(library.time_ms)} expected, not timed; {verdict} ({library.speedup:.2f})"
    if library.faster:
        verdict = f"{advice}: it is {1 / library.speedup:.2f} times as fast as this kernel"
    else:
        verdict = f"this kernel is {library.speedup:.2f} times as fast"
    return f"{library.name}: {milliseconds(library.time_ms)}; {verdict}"


def _accuracy(best: BestAnswer) -> str | None:
    if best.verified is not None:
        return f"{best.accuracy or best.problem.dtype}, verified {best.verified}"
    if best.bound_ratio is None:
        return best.accuracy
    from tilewright.tuner.loop.verify import C_DEFAULT  # here: other commands do without NumPy

    words = [best.accuracy or best.problem.dtype, f"off by {best.bound_ratio / C_DEFAULT:.0%} of the allowed error"]
    if best.library is not None and best.library.bound_ratio is not None:
        words.append(f"the library by {best.library.bound_ratio / C_DEFAULT:.0%}")
    return ", ".join(words)


def _match(best: BestAnswer) -> str:
    stale = f"stale ({', '.join(best.stale_because)})" if best.stale_because else "stale"
    marks = [word for word, holds in ((stale, best.stale), ("improvable", best.improvable)) if holds]
    source = ""
    if best.match.value != "exact" and best.tuned_problem is not None:
        source = f", tuned for {describe(best.tuned_problem)}"
    if best.sizes is not None:
        source = f", for {best.sizes}"
    loss = ""
    if best.expected_loss:
        loss = f", expected {100 * best.expected_loss:.0f} % above the best possible time"
    return f"{best.match.value} match{source}{loss}{''.join(f', {mark}' for mark in marks)}"


def _origin(best: BestAnswer) -> str | None:
    if best.shipped is not None:
        return f"{best.match.value} from {best.shipped}"
    if not best.origins:
        return None
    return f"{'imported' if best.environment else 'rests on results imported'} from {', '.join(best.origins)}"


def _verified(best: BestAnswer) -> str | None:
    if best.verified_at is None:
        return None
    compiler = f", {best.environment.compiler} {best.environment.compiler_version}" if best.environment else ""
    return f"{best.verified_at:%Y-%m-%d %H:%M:%S %Z}{compiler}"
