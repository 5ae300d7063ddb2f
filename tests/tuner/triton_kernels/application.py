"""An application with a Triton kernel, in a process of its own: Triton's interpreter launches it on CPU tensors.

`python application.py` would do as well; tests start it by `serve_calls` and tell it what to launch.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from triton_kernels.scaled import SOURCE, scaled_in

from tilewright.kernels.catalogue import Catalogue
from tilewright.tuner.runtime import Runtime
from tilewright.tuner.runtime.known.answers import AnswerCache


@dataclass(frozen=True)
class Call:
    """One process's use of the function: how it is declared, and as what the application has it; some launches."""

    folder: str
    settings: dict[str, Any] = field(default_factory=dict)  # of the runtime
    source: str = SOURCE  # the application's
    is_declared: bool = True
    sizes: tuple[int, ...] = (100,)
    stride: int = 1  # between the elements of x
    rank: int | None = None  # of two
    is_pruned: bool = False  # to blocks that hold a row


def serve_calls(connection):
    """Answers each Call with what was launched, until the pipe closes."""
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    while True:
        try:
            call = connection.recv()
        except EOFError:
            return
        connection.send(launched(call))


def launched(call):
    """The configurations, whether results were right, and the warnings."""
    import torch  # noqa: PLC0415
    import triton  # noqa: PLC0415

    from tilewright.triton import autotune  # noqa: PLC0415

    if call.rank is not None:
        store = f"file://{call.folder}/ranks"
        torch.distributed.init_process_group("gloo", init_method=store, rank=call.rank, world_size=2)
    folder = Path(call.folder)
    kernels = Catalogue({"scaled": scaled_in(folder)} if call.is_declared else {})
    runtime = Runtime(kernels=kernels, answers=AnswerCache(folder / "answers"), **call.settings)
    configs = [triton.Config({"BLOCK": 16}, num_warps=8), triton.Config({"BLOCK": 512})]
    prunes = {"early_config_prune": lambda all_, _, **named: [c for c in all_ if c.kwargs["BLOCK"] >= named["n"]]}
    named = {"prune_configs_by": prunes} if call.is_pruned else {}
    scale = autotune(configs, ["n"], runtime=runtime, **named)(_function(folder, call.source))
    found, right = [], []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in call.sizes:
            x, y = torch.randn(n * call.stride)[:: call.stride], torch.zeros(n)
            given = x.contiguous() if call.stride == 1 else x
            scale[lambda meta, n=n: (triton.cdiv(n, meta["BLOCK"]),)](x=given, y=y, n=n, step=1, factor=2.0)
            found.append((scale.best_config.kwargs, scale.best_config.num_warps))
            right.append(torch.equal(y, given * 2.0))
    said = [(w.category.__name__, str(w.message)) for w in caught if w.category.__module__.startswith("tilewright")]
    if call.rank is not None:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    return found, right, said


def _function(folder, source):
    path = folder / "application_kernels.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("application_kernels", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.scale
