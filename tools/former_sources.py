"""Writes kernels/sources/former_sources.txt: which sources of an earlier commit have today's machine code.

Run it after the last change of a source, with the environment of `make test` (NVRTC, no GPU):

    .venv/bin/python tools/former_sources.py --corrected tensor3xfp16_sm90 --corrected pointwise3xfp16_sm90

A source whose tokens differ from today's is compiled both ways, for problems of every dtype and of several options;
it is the same if each cubin runs the same code. What is not is left out, which makes results with it stale, unless
`--corrected` says that it was faulty: then its configurations and times are predictions. With `--moved COMMIT` the rows
stay, and the hash of the code of each source that has changed since, and makes the same machine code, is added; of
`--alike` variants too, whose results are the same in no more time: what was verified holds, and times are bounds.
"""

from __future__ import annotations

import argparse
import io
import struct
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.kernel import Kernel, Variant
from tilewright.kernels.problem import OptionValue, Problem
from tilewright.kernels.sources.identity import FORMER, PREFIX, code_hash, text_hash
from tilewright.kernels.sources.source import resolved
from tilewright.kernels.space import Configuration
from tilewright.tuner.compile import nvrtc
from tilewright.tuner.compile.compilation import OPTIONS, arch_of
from tilewright.tuner.predict.shipped import shipped_models

BASE = "38fc7d8"
HEADER = """\
# What became of the sources of version {base}, which are known by the hash of their text: `same` has the machine code
# of the source with the second hash, `corrected` was faulty. Made by tools/former_sources.py.
"""
PIXELS = {"batch": 8, "height": 32, "width": 32, "channels": 128, "filters": 128, "kernel_h": 1, "kernel_w": 1}
SHAPES = (
    *(
        {"m": m, "n": n, "k": k} | PIXELS
        for m, n, k in ((128, 128, 128), (8, 8191, 4095), *((m, 8192, 8192) for m in (8, 16, 64)))
    ),
    {"m": 4096, "n": 4096, "k": 4096} | PIXELS | {"kernel_h": 3, "kernel_w": 3, "padding": 1},
)
"""Shapes of every kernel: one of them or its example is admitted by each variant."""

PROBLEMS = 2
"""Of a dtype, each compiled at one configuration."""

RUN = (b".text", *(b".nv.constant%d" % bank for bank in (0, 2, 3)), b".nv.shared")
NO_BITS = 8  # SHT_NOBITS of an ELF file: a section without bytes in it

LIMITS = shipped_models()["nvidia-h200"][1]


def main() -> None:
    """The file, written anew."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base", default=BASE, help="the commit whose results are out there")
    parser.add_argument("--corrected", action="append", default=[], help="a variant whose source was faulty")
    parser.add_argument("--moved", metavar="COMMIT", help="only follow what has changed, or was corrected, since that")
    parser.add_argument("--alike", action="append", default=[], help="a variant that computes the same, no slower")
    parser.add_argument("--kernel", action="append", default=[], help="only its rows; those of others stay")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        base = arguments.moved or arguments.base
        archive = subprocess.run(["git", "archive", base, "kernels"], check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        if arguments.moved:
            kernels = [k for k in catalogue().kernels() if not arguments.kernel or k.name in arguments.kernel]
            then = Path(folder) / "kernels"
            alike, corrected = set(arguments.alike), set(arguments.corrected)
            _follow([move for kernel in kernels for move in _moves(kernel, then, alike, corrected)])
            return
        rows: dict[str, None] = {}
        others = {
            digest
            for k in catalogue().kernels()
            if k.name not in arguments.kernel
            for digest in k.source_hashes.values()
        }
        if arguments.kernel:
            rows = dict.fromkeys(row for row in FORMER.read_text("utf-8").splitlines() if row[-64:] in others)
        for kernel in catalogue().kernels():
            if arguments.kernel and kernel.name not in arguments.kernel:
                continue
            for row in _rows(kernel, Path(folder) / "kernels", set(arguments.corrected)):
                rows[row] = None
    FORMER.write_text(HEADER.format(base=arguments.base) + "".join(f"{row}\n" for row in sorted(rows)), "utf-8")
    print(f"{FORMER}: {len(rows)} sources")


def _follow(moves: list[tuple[str, str, str]]) -> None:
    """Has the rows of the file point at today's sources, with a row for each earlier one; faulty ones say so."""
    header, rows = (lines := FORMER.read_text("utf-8").splitlines())[:2], lines[2:]
    for kind, then, now in moves:
        for place, row in enumerate(rows):
            was, earlier, of = row.split()
            if of == then:
                rows[place] = f"{was if kind == 'same' else kind} {earlier} {now}"
        rows.append(f"{kind} {then[:PREFIX]} {now}")
    FORMER.write_text("\n".join([*header, *sorted(dict.fromkeys(rows)), ""]), "utf-8")
    print(f"{FORMER}: {len(moves)} sources moved")


def _moves(kernel: Kernel, then_folder: Path, alike: set[str], corrected: set[str]) -> Iterator[tuple[str, str, str]]:
    """What became of sources whose code changed, with the hashes then and now.

    They are the same where the machine code is, or that of `alike`; those of `corrected` were faulty.
    """
    of_file: dict[str, list[Variant]] = {}
    for variant in kernel.variants:
        of_file.setdefault(variant.source, []).append(variant)
    for name, variants in of_file.items():
        path = then_folder / kernel.folder.name / name
        text = resolved(path, (then_folder, then_folder / "include")) if path.is_file() else ""
        then, now = code_hash(text, kernel.flags), kernel.source_hash(variants[0].name)
        if not text or then == now:
            continue
        if corrected & {v.name for v in variants}:
            yield "corrected", then, now
        elif all(v.name in alike or _compiles_alike(kernel, v, text) for v in variants):
            yield "same", then, now


def _rows(kernel: Kernel, then_folder: Path, corrected: set[str]) -> Iterator[str]:
    of_file: dict[str, list[Variant]] = {}
    for variant in kernel.variants:
        of_file.setdefault(variant.source, []).append(variant)
    for name, variants in of_file.items():
        path = then_folder / kernel.folder.name / name
        if not path.is_file():
            continue
        text = resolved(path, (then_folder, then_folder / "include"))
        then = "\n".join([text, *(f"// compiled with {flag}" for flag in kernel.flags)])
        now = kernel.source_hash(variants[0].name)
        is_same = code_hash(then, kernel.flags) == now or all(_compiles_alike(kernel, v, then) for v in variants)
        if is_same or corrected & {v.name for v in variants}:
            yield f"{'same' if is_same else 'corrected'} {text_hash(then)[:PREFIX]} {now}"
        else:
            print(f"{kernel.name}: {name} makes other machine code now: results with it are stale", file=sys.stderr)


def _compiles_alike(kernel: Kernel, variant: Variant, then: str) -> bool:
    points = list(_points(kernel, variant))
    for problem, configuration in points:
        print(f"{problem}: {configuration}", flush=True)
        options = _options(kernel, variant, kernel.definitions(problem, configuration))
        # What is the same before optimisations is the same after them; what is not is compared after them.
        for more in (["--Ofast-compile=max"], []):
            both = (nvrtc.compile_cubin(text, [*options, *more])[0] for text in (then, kernel.source(variant.name)))
            if runs_alike(*both):
                break
        else:
            print(f"{kernel.name}: {configuration} of {problem} compiles into something else", file=sys.stderr)
            return False
    if not points:
        print(f"{kernel.name}: no shape that is tried admits {variant.name}", file=sys.stderr)
    return bool(points)


def runs_alike(one: bytes, other: bytes) -> bool:
    """Whether the same code runs on the same constants, but for such as only one of them has.

    Cubins hold more: names with a hash of the whole text, and constants that nothing reads.
    """
    (code, words), (other_code, other_words) = machine_code(one), machine_code(other)
    return code == other_code and (words <= other_words or other_words <= words)


def machine_code(cubin: bytes) -> tuple[bytes, Counter[bytes]]:
    """The sections of machine code, and the contents of global constants."""
    table, size, count, names = (
        *struct.unpack_from("<Q", cubin, 0x28),
        *struct.unpack_from("<HHH", cubin, 0x3A),
    )
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + place * size) for place in range(count)]
    strings, found, words = headers[names][4], list[bytes](), Counter[bytes]()
    for name, kind, _, _, offset, length in headers:
        text = cubin[strings + name : cubin.index(b"\0", strings + name)]
        if text.startswith(RUN):
            found.append(text + b" %d " % length + (b"" if kind == NO_BITS else cubin[offset : offset + length]))
        elif text == b".nv.global.init":
            words.update(cubin[at : at + 4] for at in range(offset, offset + length, 4))
    return b"".join(sorted(found)), words


def _options(kernel: Kernel, variant: Variant, definitions: Mapping[str, str]) -> list[str]:
    capability = max(LIMITS.compute_capability, variant.min_compute_capability)
    macros = (f"-D{name}={value}" for name, value in definitions.items())
    return [f"--gpu-architecture={arch_of(capability)}{variant.architecture_suffix}", *OPTIONS, *kernel.flags, *macros]


def _points(kernel: Kernel, variant: Variant) -> Iterator[tuple[Problem, Configuration]]:
    """An end of the variant's space for problems of each dtype and of several options, the other end for the next."""
    for dtype in kernel.dtypes:
        admitted = [o for o in kernel.options if dtype in (o.only_dtypes or kernel.dtypes)]
        ends: list[dict[str, OptionValue]] = [{o.name: o.values[place] for o in admitted} for place in (-1, 0)]
        single: list[dict[str, OptionValue]] = [{o.name: value} for o in admitted for value in o.values]
        problems = [p for options in ({}, *ends, *single) for p in islice(_usable(kernel, variant, dtype, options), 1)]
        for number, problem in enumerate(list(dict.fromkeys(problems))[:PROBLEMS]):
            yield problem, kernel.space(problem, LIMITS, only=[variant.name]).feasible[-(number % 2)]


def _usable(kernel: Kernel, variant: Variant, dtype: str, options: Mapping[str, OptionValue]) -> Iterator[Problem]:
    """The problems among a few shapes that have configurations of the variant."""
    for shape in (kernel.example_shape, *SHAPES):
        try:
            problem = kernel.problem(kernel.ordered(shape), dtype, options)
        except InvalidProblemError:
            continue
        if variant in kernel.usable_variants(problem, LIMITS) and len(
            kernel.space(problem, LIMITS, only=[variant.name])
        ):
            yield problem


if __name__ == "__main__":
    main()
