"""Bundles at run time: the results for each device model, from one file or a folder of them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.tuner.compile.compilation import CompiledLaunch
from tilewright.tuner.runtime.any_size.ranges import Ranges
from tilewright.tuner.runtime.any_size.tables import ranges_of
from tilewright.tuner.runtime.bundles.dates import files_not_older
from tilewright.tuner.runtime.bundles.folder import (
    FORMAT,
    MAX_FILE_BYTES,
    BrokenBundleError,
    UntrustedBundleError,
    read_file,
)
from tilewright.tuner.runtime.choice import Choice, TargetDevice, is_admitted
from tilewright.tuner.runtime.errors import BundleWarning, warn

Key = tuple[str, str, tuple[tuple[str, int], ...], str, tuple[tuple[str, bool | str], ...]]


@dataclass
class Bundle:
    """Results by device model and problem. `is_trusted`: signed by the key that the caller named."""

    name: str
    is_trusted: bool
    results: dict[Key, Mapping[str, Any]]
    cubins: dict[str, str] = field(default_factory=dict, repr=False)
    tables: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict, repr=False)  # by device and family
    _told: set[str] = field(default_factory=set, repr=False)

    @classmethod
    def open(cls, path: Path, public_key: Path | None = None, *, allow_older: bool = False) -> Bundle:
        """A folder that `tilewright bundle` wrote, or one of its files; raises BrokenBundleError.

        With a key the folder must be signed by it (UntrustedBundleError), and without `allow_older` be no older than
        what was used here before (OlderBundleError); a single file has no signature.
        """
        if path.is_dir():
            contents = files_not_older(path, public_key, allow_older=allow_older).contents
        elif public_key is not None:
            raise UntrustedBundleError(
                f"{path.name} is not a folder with a signature. With a key, only signed folders are used."
            )
        else:
            contents = {path.name: read_file(path, MAX_FILE_BYTES)}
        bundle = cls(path.name, public_key is not None, {})
        for name, content in contents.items():
            bundle._add(name, content)
        return bundle

    def find(self, kernel: Kernel, problem: Problem, place: TargetDevice) -> Choice | None:
        """The result of exactly this problem on this device model, where this version can use it."""
        facts = self.results.get(_key(place.slug, problem.as_json()))
        if facts is None:
            return None
        choice = Choice.from_facts(facts, "bundle")
        if not is_admitted(kernel, problem, place, choice.configuration):
            self._left_aside(f"{problem}: {choice.configuration} is not in this version's search space")
            return None
        variant, source = choice.configuration.variant, str(facts.get("source"))
        if kernel.was_corrected(variant, source):
            warn(
                f"bundle {self.name}: {problem}: measured with a faulty source of {variant}, which has been corrected "
                "since; its configuration is a prediction, checked at its first use; its machine code is not loaded",
                BundleWarning,
            )
            return replace(choice, match="predicted")
        if not kernel.has_source(variant, source):
            self._left_aside(f"{problem}: measured with a source that this version does not have")
            return None
        return self._with_cubin(choice, facts)

    def ranges(self, kernel: Kernel, family: Family, place: TargetDevice) -> Ranges | None:
        """The ranges of that family's table for this device model, where this version can use it."""
        table = self.tables.get((place.slug, family.hash))
        found = None if table is None else ranges_of(table, kernel, family, place, self._with_cubin)
        if table is not None and found is None:
            self._left_aside(f"{family}: its table is of sources or configurations that this version does not have")
        return found

    def _with_cubin(self, choice: Choice, facts: Mapping[str, Any]) -> Choice:
        """The choice with its machine code, where the bundle has it and is trusted."""
        cubin = self._cubin(facts.get("cubin")) if self.is_trusted else None
        if cubin is None:
            return choice
        shared = self._cubin(facts.get("shared_cubin")) or b""  # older bundles have one cubin with every function
        return replace(choice, cubin=cubin, shared_cubin=shared, launch=_launch(facts))

    def _cubin(self, name: object) -> bytes | None:
        text = self.cubins.get(name) if isinstance(name, str) else None
        if text is None:
            return None
        try:
            cubin = base64.b64decode(text, validate=True)
        except binascii.Error as error:
            raise BrokenBundleError(f"{self.name}: the cubin {name} is not base64.") from error
        if hashlib.sha256(cubin).hexdigest() != name:
            raise BrokenBundleError(f"{self.name}: the cubin {name} does not match its hash.")
        return cubin

    def _left_aside(self, reason: str) -> None:
        if reason not in self._told:
            self._told.add(reason)
            warn(f"bundle {self.name}: {reason}; it is left aside", BundleWarning)

    def _add(self, name: str, content: bytes) -> None:
        try:
            document = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise BrokenBundleError(f"{name} is not JSON: {error}") from error
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            named = document.get("format") if isinstance(document, dict) else None
            raise BrokenBundleError(f"{name} is not a {FORMAT} but {named!r}. Write it again with: tilewright bundle")
        try:
            slug = str(document["device_model"]["slug"])
            for result in document["results"]:
                Choice.from_facts(result, "bundle")
                self.results[_key(slug, result)] = result
            self.cubins.update(document.get("cubins", {}).items())
            self.tables |= {(slug, str(table["family_hash"])): table for table in document.get("tables", ())}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BrokenBundleError(f"{name} lacks a part of a {FORMAT}: {error!r}") from error


def _launch(facts: Mapping[str, Any]) -> CompiledLaunch | None:
    """The compiler's decisions about the cubin's launch, where the bundle has them; raises BrokenBundleError."""
    stated = facts.get("compiled_launch")
    try:
        return None if stated is None else CompiledLaunch(**stated)
    except TypeError as error:
        raise BrokenBundleError(f"compiled_launch is not one: {error}") from error


def _key(slug: str, facts: Mapping[str, Any]) -> Key:
    shape, options = sorted(facts["shape"].items()), sorted(facts["options"].items())
    return slug, facts["kernel"], tuple(shape), facts["dtype"], tuple(options)
