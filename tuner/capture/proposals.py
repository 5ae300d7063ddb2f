"""Parameters that a captured launch may be tuned by: macros, integer template arguments, threads of a block.

Which of them change what is computed nobody can tell from one launch; verification does.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.tuner.cuda_source.c_types import COMMENT
from tilewright.tuner.cuda_source.proposed import is_used, names_a_block, values_around
from tilewright.tuner.kernel_check.parameters import default_macros

_DEFINED = re.compile(r"-D(\w{2,})=([1-9]\d*)")
_SHORT = {"--define-macro": "-D", "--include-path": "-I", "--undefine-macro": "-U"}
_JOINED = {"-D", "-I", "-U"}
_WHOLE = re.compile(r"[1-9]\d*")


@dataclass
class Proposals:
    """Parameters with values and defaults; grid, block and shared memory in terms of them; the remaining flags."""

    entry: str
    flags: list[str]
    values: dict[str, list[int]] = field(default_factory=dict)
    default: dict[str, int] = field(default_factory=dict)
    grid: list[dict[str, Any]] = field(default_factory=list)
    block: list[int | str] = field(default_factory=list)
    shared: str | None = None
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, default: int, *, is_block: bool) -> None:
        """Proposes a parameter with the values around its default."""
        self.values[name], self.default[name] = values_around(default, is_block=is_block), default

    def drop(self, name: str) -> None:
        """Takes the value out of the proposals."""
        del self.values[name], self.default[name]


def proposals(launch: Mapping[str, Any], sizes: Sequence[int]) -> Proposals:
    """The proposals for a captured launch. `sizes`: the problem's, those passed as numbers before those of arrays."""
    source = COMMENT.sub(" ", launch["source"])
    entry, *template = _template(launch["entry"], source)
    made = Proposals(entry[0], [])
    flags = joined(launch["options"])
    for name, (default, _) in default_macros(launch["source"], flags).items():
        made.add(name, default, is_block=names_a_block(name))
    for flag in flags:
        defined = _DEFINED.fullmatch(flag)
        if defined and is_used(defined[1], source):
            made.add(defined[1], int(defined[2]), is_block=names_a_block(defined[1]))
        else:
            made.flags.append(flag)
    for name, default in template:
        made.add(name, default, is_block=names_a_block(name))
    block = [*launch["block"], 1, 1, 1][:3]
    for name, default in dict(made.default).items():
        if default in sizes and default not in block:
            made.drop(name)
            made.notes.append(f"{name} is not proposed: arrays have that size")
    made.block = [_threads(place, count, source, made) for place, count in enumerate(block)]
    grid = [*launch["grid"], 1, 1, 1][:3]
    made.grid = [_blocks(place, count, sizes, source, made) for place, count in enumerate(grid)]
    made.shared = _shared(launch["shared_bytes"], block, made)
    return made


def joined(options: Sequence[str]) -> list[str]:
    """The options with each macro and each header folder in one word: `-D`, `N=4` becomes `-DN=4`."""
    words: list[str] = []
    for option in options:
        name, is_long, value = option.partition("=")
        if words and words[-1] in _JOINED:
            words[-1] += option
        elif name in _SHORT:
            words.append(f"{_SHORT[name]}{value}" if is_long else _SHORT[name])
        else:
            words.append(re.sub("^-([DIU]) +", r"-\1", option))
    return words


def _template(entry: str, source: str) -> list[tuple[Any, ...]]:
    """The entry with macros for its integer arguments; then each macro with its value."""
    bare, bracket, rest = entry.partition("<")
    if not bracket:
        return [(entry,)]
    given = [one.strip() for one in _parts(rest.rpartition(">")[0])]
    name = bare.rpartition("::")[2].strip()
    declared = re.search(rf"template\s*<([^;{{}}]*?)>\s*__global__[^;{{}}]*?\b{re.escape(name)}\s*\(", source)
    names = [re.findall(r"\w+", one.partition("=")[0])[-1] for one in _parts(declared[1])] if declared else []
    found, words = [], []
    for place, one in enumerate(given):
        if _WHOLE.fullmatch(one):
            macro = f"GIVEN_{names[place] if place < len(names) else place + 1}"
            found.append((macro, int(one)))
            words.append(macro)
        else:
            words.append(one)
    return [(f"{bare}<{', '.join(words)}>",), *found]


def _parts(text: str) -> list[str]:
    """The parts of the text between its commas; those within brackets do not count."""
    parts, depth = [""], 0
    for character in text:
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts if text.strip() else []


def _threads(place: int, count: int, source: str, made: Proposals) -> int | str:
    """Threads along an axis: a parameter's, a new one's where the source asks `blockDim`, else the number."""
    if count == 1:
        return 1
    equal = [name for name, default in made.default.items() if default == count]
    axis = "xyz"[place]
    named = [name for name in equal if names_a_block(name)]
    along = [name for name in named if name.lower().endswith(axis)]
    for choice in (along, named, equal):
        if len(choice) == 1:
            return f"c.{choice[0]}"
    asks = re.search(rf"\bblockDim\s*\.\s*{axis}\b", source) is not None
    if equal or not asks or re.search(rf"(?<![\w.]){count}(?![\w.])", source):
        return count
    made.add(f"block_size_{axis}", count, is_block=True)
    return f"c.block_size_{axis}"


def _blocks(place: int, count: int, sizes: Sequence[int], source: str, made: Proposals) -> dict[str, Any]:
    """Blocks along an axis: a size over parameters, rounded up, where one fits; else the number."""
    threads, axis = made.block[place], "xyz"[place]
    if count == 1:
        return {"size": 1, "divisors": []}
    own = [threads.removeprefix("c.")] if isinstance(threads, str) else []
    others = [name for name, default in made.default.items() if name not in own and default > 1]
    fixed = [str(threads)] if isinstance(threads, int) and threads > 1 else []
    for first in [own, []] if own else [fixed, []] if fixed else [[]]:
        for length in range(min(len(others), 3) + 1):
            for more in itertools.combinations(others, length):
                names = [*first, *more]
                product = math.prod(made.default.get(name) or int(name) for name in names)
                size = next((one for one in sizes if one > 1 and -(-one // product) == count), None)
                if size is not None:
                    return {"size": size, "divisors": [name if name.isdecimal() else f"c.{name}" for name in names]}
    strides = re.search(rf"\bgridDim\s*\.\s*{axis}\b", source) is not None
    if own and own[0] in made.default and not strides:
        made.block[place] = made.default[own[0]]
        made.drop(own[0])
        made.notes.append(f"{own[0]} is not proposed: nothing says how {count} blocks along {axis} follow from it")
    return {"size": str(count), "divisors": []}


def _shared(shared_bytes: int, block: Sequence[int], made: Proposals) -> str | None:
    """Dynamic shared memory, in proportion to the threads where it is a multiple of theirs."""
    if not shared_bytes:
        return None
    threads = math.prod(block)
    named = [one for one in made.block if isinstance(one, str)]
    if not named or shared_bytes % threads:
        return str(shared_bytes)
    return " * ".join([str(shared_bytes // threads), *(str(one) for one in made.block if one != 1)])
