"""The search box of the overview as filters: words of each kind in any order, or a job."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from tilewright.kernels.kernel import Kernel
from tilewright.service.errors import InvalidRequestError
from tilewright.service.operations.answers import DeviceModelAnswer
from tilewright.service.operations.shape_filter import SIZES

EXAMPLE = "gemm 512x512x512 h200"
SEARCHED = (
    "kernels (gemm), device models (h200), types (float32), options (accuracy=tf32), "
    "shapes (4096, 4096x4096x4096, m=4096) and ids of jobs"
)

_ID = re.compile(r"(?=.*[a-f-])[0-9a-f]{8}[0-9a-f-]{0,28}", re.IGNORECASE)
"""A job's id or its beginning; digits alone are a size."""


def job_path(text: str) -> str | None:
    """The page of the job with that id, or of jobs whose ids begin so; None for any other text."""
    word = text.strip()
    if not _ID.fullmatch(word):
        return None
    try:
        return f"/jobs/{UUID(word)}"
    except ValueError:
        return f"/jobs?search={word}"


def searched(
    text: str, kernel: str, kernels: Mapping[str, Kernel], models: Sequence[DeviceModelAnswer]
) -> dict[str, str]:
    """The filters of the overview that the words mean; `kernel`: the one shown where none is named.

    Raises InvalidRequestError naming `q` for a word that means nothing here, or more than one thing.
    """
    words = text.split()
    named = [name for word in words for name in _like(word, kernels)]
    chosen = kernels.get(named[0] if named else kernel)
    filters: dict[str, str] = {"kernel": named[0]} if named else {}
    for word in words:
        if _like(word, kernels):
            continue
        name, value = _meaning(word, chosen, models)
        filters[name] = f"{filters[name]},{value}" if name in filters and name in {"shape", "options"} else value
    return filters


def _meaning(word: str, kernel: Kernel | None, models: Sequence[DeviceModelAnswer]) -> tuple[str, str]:
    """A filter's name and its value."""
    name, is_pair, _ = word.partition("=")
    if SIZES.fullmatch(word):
        return "shape", word
    if is_pair:
        is_option = kernel is not None and name in {option.name for option in kernel.options}
        return "options" if is_option else "shape", word
    if kernel is not None and word.lower() in kernel.dtypes:
        return "dtype", word.lower()
    slugs = [model.slug for model in models if word.lower() in {model.slug.lower(), model.name.lower()}]
    slugs = slugs or [model.slug for model in models if word.lower() in f"{model.slug} {model.name}".lower()]
    if len(slugs) == 1:
        return "device_model", slugs[0]
    found = f"may be {', '.join(slugs[:5])}; write more of it." if slugs else f"was not found. Search for {SEARCHED}."
    raise InvalidRequestError("q", f"{word[:40]!r} {found}", EXAMPLE)


def _like(word: str, names: Collection[str]) -> list[str]:
    """The kernel that the word names, or begins to name as no other does; else none."""
    if word in names:
        return [word]
    begun = [name for name in names if name.startswith(word.lower())]
    return begun if len(begun) == 1 and len(word) > 1 else []
