"""Texture references, which CUDA 12 removed, as the texture objects that a kernel takes in their place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tilewright.tuner.adopt.run import AdoptionError
from tilewright.tuner.cuda_source.tree import CudaSource, names_in

_REFERENCE = r"\b(?:static\s+)?texture\s*<\s*([\w ]+?)\s*(?:,[^<>;]*)?>\s*{name}\s*;"
_FETCH = r"\b(tex(?:1Dfetch|[123]D))\s*(?:<[^<>()]*>)?\s*\(\s*{name}\b"


def with_texture_objects(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record whose kernel takes a `cudaTextureObject_t` for each texture reference, behind its other arguments.

    Raises AdoptionError where another function reads one, which would have to be given it.
    """
    sources = list(record["sources"])
    arguments = []
    for name, texture in record.get("textures", {}).items():
        sources = [{**one, "text": _taken_by(one["text"], record["kernel_name"], name)} for one in sources]
        is_linear = any(re.search(rf"\btex1Dfetch<[^>]*>\({name}\b", one["text"]) for one in sources)
        arguments.append({**texture, "texture": {"memory": "linear"} if is_linear else texture["texture"]})
    return {**record, "sources": sources, "arguments": [*record["arguments"], *arguments]}


def _taken_by(text: str, entry: str, name: str) -> str:
    """The source in which the function takes the texture."""
    reference = re.search(_REFERENCE.format(name=name), text)
    if reference is None:
        raise AdoptionError(f"the source has no texture reference {name}, which texmem_args fill")
    text = text[: reference.start()] + text[reference.end() :]
    text = re.sub(_FETCH.format(name=name), rf"\1<{reference[1]}>({name}", text)
    source = CudaSource(text)
    kernel = next((one for one in source.kernels if one.name == entry), None)
    elsewhere = (one for one in source.root.named_children if kernel is None or one.id != kernel.node.id)
    if kernel is None or any(name in names_in(one) for one in elsewhere):
        raise AdoptionError(
            f"the texture {name} is read by another function than {entry}: let both take a cudaTextureObject_t, and "
            "declare it by hand (docs/adding-a-kernel.md, Textures)"
        )
    end = kernel.parameters_end
    data = source.data
    return f"{data[:end].decode()}{', ' * bool(kernel.parameters)}cudaTextureObject_t {name}{data[end:].decode()}"
