"""with_cubins(): a bundle with the compiled code of its results, for applications that have no compiler.

Applications load it only from a folder that a key they know has signed: code is not checked like a configuration is.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import asdict
from typing import Any

from tilewright.kernels.family import Family
from tilewright.kernels.space import Configuration
from tilewright.service.errors import InvalidRequestError
from tilewright.service.operations.bundles.bundle import as_text
from tilewright.service.operations.registry import catalogue, tuned_for
from tilewright.tuner.compile.cache import CubinCache, compiled_by
from tilewright.tuner.compile.compilation import Compilation, Compiled, arch_of
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.runtime.bundles.folder import MAX_FILE_BYTES


def with_cubins(text: str) -> str:
    """The document with `cubins` by hash, and `cubin` in each result and each range; compiled here by NVRTC, or cached.

    Raises NoCompilerError, and InvalidRequestError for a CPU, for code that does not compile and for too large a file.
    """
    document = json.loads(text)
    major, minor = map(int, document["device_model"]["compute_capability"].split("."))
    if (major, minor) == (0, 0):
        raise InvalidRequestError(
            "cubins", f"{document['device_model']['slug']} is not a GPU; cubins exist only for GPUs."
        )
    cache, cubins, size = CubinCache(), dict[str, str](), len(text)
    results = document.pop("results")
    ranges = [({**table, **one}, one) for table in document.get("tables", ()) for one in table["ranges"]]
    for stated, result in [*((result, result) for result in results), *ranges]:
        compiled = _compiled(cache, stated, arch_of((major, minor)))
        if compiled.launch is not None:
            result["compiled_launch"] = asdict(compiled.launch)
        for part, cubin in (("cubin", compiled.cubin), ("shared_cubin", compiled.shared)):
            if not cubin:
                continue
            name = result[part] = hashlib.sha256(cubin).hexdigest()
            if name not in cubins:
                cubins[name] = base64.b64encode(cubin).decode()
                size += len(cubins[name])
        if size > MAX_FILE_BYTES:
            raise InvalidRequestError(
                "cubins", f"the bundle would exceed {MAX_FILE_BYTES} bytes with them; leave them out."
            )
    return as_text({**document, "cubins": dict(sorted(cubins.items()))}, results)


def _compiled(cache: CubinCache, result: dict[str, Any], arch: str) -> Compiled:
    kernel = catalogue().get(result["kernel"])
    asked = tuned_for(kernel, result["shape"], result["dtype"], result["options"])
    problem = asked.largest if isinstance(asked, Family) else asked
    configuration = Configuration.of(result["variant"], result["configuration"])
    try:
        return compiled_by(cache, Compilation.of(kernel, problem, configuration, arch, "nvrtc"))
    except TrialFailure as failure:
        raise InvalidRequestError("cubins", f"{problem}, {configuration} does not compile: {failure.log}") from failure
