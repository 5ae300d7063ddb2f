"""A bundle's cubin of a Triton kernel comes with what its compiler decided, which no declaration says."""

import base64
import hashlib
import json

import pytest
from made_bundles import CUBIN, PLACE
from triton_kernels.scaled import CONFIGURATION, PROBLEM, scaled_in

from tilewright.tuner.compile.compilation import CompiledLaunch
from tilewright.tuner.runtime.bundles.bundle import Bundle
from tilewright.tuner.runtime.bundles.folder import BrokenBundleError

LAUNCH = {"symbol": "scale", "threads": 64, "shared_bytes": 1024, "scratch_bytes": 256}


def bundle(kernel, launch, *, is_trusted=True):
    """As it is after its folder was checked."""
    name = hashlib.sha256(CUBIN).hexdigest()
    result = {
        **PROBLEM.as_json(),
        "variant": "blocks",
        "configuration": dict(CONFIGURATION.items),
        "source": kernel.source_hash("blocks"),
        "time_ms": 0.5,
        "cubin": name,
        "compiled_launch": launch,
    }
    document = {
        "format": "tilewright-bundle/1",
        "device_model": {"slug": PLACE.slug},
        "results": [result],
        "cubins": {name: base64.b64encode(CUBIN).decode()},
    }
    made = Bundle("b", is_trusted, {})
    made._add("test-gpu.json", json.dumps(document).encode())
    return made


def test_a_signed_cubin_has_its_launch(tmp_path):
    kernel = scaled_in(tmp_path)
    choice = bundle(kernel, LAUNCH).find(kernel, PROBLEM, PLACE)
    assert (choice.cubin, choice.launch) == (CUBIN, CompiledLaunch("scale", 64, 1024, 256))


def test_without_a_signature_there_is_neither(tmp_path):
    kernel = scaled_in(tmp_path)
    choice = bundle(kernel, LAUNCH, is_trusted=False).find(kernel, PROBLEM, PLACE)
    assert (choice.cubin, choice.launch) == (None, None)
    assert choice.configuration == CONFIGURATION


def test_a_launch_that_is_none_is_a_broken_bundle(tmp_path):
    kernel = scaled_in(tmp_path)
    with pytest.raises(BrokenBundleError, match="compiled_launch"):
        bundle(kernel, {"threads": 64}).find(kernel, PROBLEM, PLACE)
