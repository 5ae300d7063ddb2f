"""Packs best configurations into bytes, which the garbage collector never visits; values that recur are kept once."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Hashable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from tilewright.kernels.problem import OptionValue
from tilewright.kernels.space import Configuration
from tilewright.service.operations.best.stored import StoredBest
from tilewright.service.operations.staleness.standing import Standing

SHARED = ("device_model", "configuration", "source", "seen", "environment", "l2", "library_name")
"""Fields with few values, each kept once and written as its number; `library_name` may be None, which is one more.
After them comes the standing, None where the configuration does not fit its own problem (any more)."""

WHOLE = ("id", "environment_id", "study_id", "trial_number", "ties")
REAL = ("time_ms", "ci_low_ms", "ci_high_ms")
PERHAPS = (
    *("gflops", "gb_per_s", "roof_ratio", "default_ms", "slowest_ms"),
    *("bound_ratio", "library_ms", "library_bound_ratio", "pack_ms"),
)
_SHARED_BYTES = 4 * (len(SHARED) + 1)
_CONFIGURATION, _STANDING = 4 * SHARED.index("configuration"), 4 * len(SHARED)
_OWN_LAYOUT = f"{len(WHOLE)}i{len(REAL) + len(PERHAPS)}dqb"
_LAYOUT = struct.Struct(f"<{len(SHARED) + 1}i{_OWN_LAYOUT}")
_OWN = struct.Struct(f"<{_OWN_LAYOUT}").unpack_from
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FASTER = {None: -1, False: 0, True: 1}
_IS_FASTER = {number: word for word, number in _FASTER.items()}


FIGURES = (
    "time_ms", "ci_low_ms", "ci_high_ms", "gflops", "gb_per_s", "roof_ratio", "gain_over_default", "gain_over_slowest",
    "library_ms", "library_speedup", "library_faster", "library_bound_ratio",
    "verified_at", "bound_ratio", "ties", "study_id", "trial_number", "pack_ms",
)  # fmt: skip
"""The values that differ from row to row, as an answer shows them; named as in the answer where it has the field."""


class Packer:
    """Rows to bytes and back. One thread packs; any may unpack."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._words: list[Any] = []

    def pack(self, best: StoredBest, standing: Standing | None) -> bytes:
        """The row without its problem, together with its standing for that problem."""
        named = best._asdict()
        # A standing's facts hold a mapping, which cannot be a dictionary's key.
        seen = (best.seen.moved, best.seen.tried, tuple(best.seen.space_by_source))
        keys: dict[str, Hashable] = {name: seen if name == "seen" else named[name] for name in SHARED}
        if best.library_ms is None:
            keys["library_name"] = named["library_name"] = None  # so that `shared` tells where no library was timed
        return _LAYOUT.pack(
            *(self._number(name, keys[name], named[name]) for name in SHARED),
            self._number("standing", standing, standing),
            *(named[name] for name in WHOLE),
            *(named[name] for name in REAL),
            *(math.nan if named[name] is None else named[name] for name in PERHAPS),
            (best.verified_at - _EPOCH) // _MICROSECOND,
            _FASTER[best.library_faster],
        )

    def unpack(
        self, packed: bytes, shape: Mapping[str, int], dtype: str, options: Mapping[str, OptionValue]
    ) -> tuple[StoredBest, Standing | None]:
        """The row that was packed, of this problem, and its standing."""
        words = self._words
        (
            model, configuration, source, seen, environment, l2, library_name, standing,
            row_id, environment_id, study_id, trial_number, ties,
            time_ms, ci_low_ms, ci_high_ms, gflops, gb_per_s,
            roof_ratio, default_ms, slowest_ms, bound_ratio, library_ms, library_bound_ratio, pack_ms,
            verified_us, faster,
        ) = _LAYOUT.unpack(packed)  # fmt: skip
        best = StoredBest(
            row_id,
            words[model],
            shape,
            dtype,
            options,
            words[configuration],
            words[source],
            words[seen],
            words[environment],
            environment_id,
            study_id,
            trial_number,
            _EPOCH + verified_us * _MICROSECOND,
            words[l2],
            ties,
            time_ms,
            ci_low_ms,
            ci_high_ms,
            _known(gflops),
            _known(gb_per_s),
            _known(roof_ratio),
            _known(default_ms),
            _known(slowest_ms),
            _known(bound_ratio),
            words[library_name],
            _known(library_ms),
            _IS_FASTER[faster],
            _known(library_bound_ratio),
            _known(pack_ms),
        )
        return best, words[standing]

    @staticmethod
    def figures(packed: bytes) -> tuple[float | datetime, ...]:
        """The row's FIGURES, without unpacking the rest; NaN for what is not known."""
        (
            _, _, study_id, trial_number, ties,
            time_ms, ci_low_ms, ci_high_ms, gflops, gb_per_s,
            roof_ratio, default_ms, slowest_ms, bound_ratio, library_ms, library_bound_ratio, pack_ms,
            verified_us, faster,
        ) = _OWN(packed, _SHARED_BYTES)  # fmt: skip
        return (
            time_ms, ci_low_ms, ci_high_ms, gflops, gb_per_s, roof_ratio, default_ms / time_ms, slowest_ms / time_ms,
            library_ms, library_ms / time_ms, faster == 1, library_bound_ratio,
            _EPOCH + verified_us * _MICROSECOND, bound_ratio, ties, study_id, trial_number, pack_ms,
        )  # fmt: skip

    def configuration(self, packed: bytes) -> Configuration:
        """The row's configuration, without unpacking the rest."""
        configuration: Configuration = self._words[_WORD(packed, _CONFIGURATION)[0]]
        return configuration

    def standing(self, packed: bytes) -> Standing | None:
        """The row's standing for its own problem, without unpacking the rest."""
        standing: Standing | None = self._words[_WORD(packed, _STANDING)[0]]
        return standing

    @staticmethod
    def shared(packed: bytes) -> bytes:
        """Equal for rows that differ in nothing but their problem, device model and figures, of this packer."""
        return packed[_CONFIGURATION:_SHARED_BYTES]

    @staticmethod
    def row_id(packed: bytes) -> int:
        """The row's id, without unpacking the rest."""
        row_id: int = _ROW_ID(packed, _SHARED_BYTES)[0]
        return row_id

    @staticmethod
    def time_ms(packed: bytes) -> float:
        """The row's time, without unpacking the rest."""
        time_ms: float = _TIME_MS(packed, _SHARED_BYTES + 4 * len(WHOLE))[0]
        return time_ms

    def _number(self, name: str, key: Hashable, value: object) -> int:
        number = self._numbers.setdefault((name, key), len(self._words))
        if number == len(self._words):
            self._words.append(value)
        return number


_WORD: Callable[[bytes, int], tuple[int]] = struct.Struct("<i").unpack_from
_ROW_ID = _WORD
_TIME_MS: Callable[[bytes, int], tuple[float]] = struct.Struct("<d").unpack_from


def _known(number: float) -> float | None:
    return None if number != number else number  # noqa: PLR0124 - NaN, several times as fast as math.isnan
