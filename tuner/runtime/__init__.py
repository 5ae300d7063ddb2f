"""The launcher for applications: `launch = best("gemm", m=…, n=…, k=…)`, then `launch(A, B, C)`. See docs/launcher.md.

Importing it starts nothing and needs no GPU: the driver is looked for when arrays of a GPU come.
"""

from tilewright.tuner.runtime.arrays.packed import PackedOperand
from tilewright.tuner.runtime.arrays.quantised import QuantisedWeights, quantise
from tilewright.tuner.runtime.bundles.folder import (
    BrokenBundleError,
    OlderBundleError,
    SigningKeyError,
    UntrustedBundleError,
)
from tilewright.tuner.runtime.choice import Choice
from tilewright.tuner.runtime.errors import (
    ArgumentError,
    BundleWarning,
    ContextError,
    ForkedError,
    LaunchError,
    ServiceWarning,
    UntunedError,
    UntunedWarning,
    WrongDeviceError,
    WrongResultWarning,
)
from tilewright.tuner.runtime.first_use.first_use import CheckedUse
from tilewright.tuner.runtime.known.service import ServiceAddressError
from tilewright.tuner.runtime.launcher import Launcher
from tilewright.tuner.runtime.memory.room import NoRoomError
from tilewright.tuner.runtime.memory.scratch import release
from tilewright.tuner.runtime.packed_launcher import PackedLauncher
from tilewright.tuner.runtime.runtime import Runtime, best

__all__ = [
    "ArgumentError",
    "BrokenBundleError",
    "BundleWarning",
    "CheckedUse",
    "Choice",
    "ContextError",
    "ForkedError",
    "LaunchError",
    "Launcher",
    "NoRoomError",
    "OlderBundleError",
    "PackedLauncher",
    "PackedOperand",
    "QuantisedWeights",
    "Runtime",
    "ServiceAddressError",
    "ServiceWarning",
    "SigningKeyError",
    "UntrustedBundleError",
    "UntunedError",
    "UntunedWarning",
    "WrongDeviceError",
    "WrongResultWarning",
    "best",
    "quantise",
    "release",
]
