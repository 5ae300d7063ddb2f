"""A C++ compiler that waits to be let through, so that a job is where a test wants it whatever the machine's speed."""

from __future__ import annotations

import itertools
import shlex
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from fleet import Fleet

from tilewright.tuner.devices.cpu.compile import find_compiler

# Compiling anything but a kernel passes. A compile whose tuner is gone ends.
SCRIPT = """#!/bin/sh
case "$*" in
  *--version*) {compiler} --version | sed "s/[0-9][0-9]*[.][0-9][0-9]*[.][0-9][0-9]*/${{FAULT_VERSION:-&}}/g"; exit;;
esac
for word in "$@"; do
  case "$word" in */kernel.cpp) grep -q 'HOST_ENTRY(empty)' "$word" || kernel=yes;; esac
done
[ "$kernel" ] || exec {compiler} "$@"
: > "$FAULT_GATE/waiting-$$"
until [ -e "$FAULT_GATE/open" ]; do
  for token in "$FAULT_GATE"/token-*; do
    rm "$token" 2>/dev/null && break 2
  done
  kill -0 "$PPID" || exit 1
  sleep 0.02
done
rm "$FAULT_GATE/waiting-$$"
exec {compiler} "$@"
"""

_rows = itertools.count(24)
_tokens = itertools.count()


@dataclass
class Gate:
    """What workers start with to compile through the gate, and the gate itself."""

    folder: Path
    cache: Path
    # Compiled programs are kept by their text, which holds the shape: with a shape of its own nothing is there yet.
    shape: dict[str, int] = field(default_factory=lambda: {"m": next(_rows), "n": 16, "k": 20})

    @property
    def environment(self) -> dict[str, str]:
        script = self.cache / "c++"
        if not script.exists():
            self.cache.mkdir(exist_ok=True)
            script.write_text(SCRIPT.format(compiler=shlex.join(find_compiler().command)))
            script.chmod(0o755)
        return {
            "CXX": str(script),
            "FAULT_GATE": str(self.folder),
            "TILEWRIGHT_CACHE_DIR": str(self.cache),
            "TILEWRIGHT_SANDBOX": "off",  # the gate is a folder of files, and the script asks for its parent
        }

    def allow(self, count: int) -> None:
        """So many more kernels may be compiled."""
        for _ in range(count):
            (self.folder / f"token-{next(_tokens)}").touch()

    def begin(self, fleet: Fleet, *, trials: int, done: int, allowed: int = 4) -> uuid.UUID:
        """A running job, of whose trials so many at least are done, and of which no more kernels are compiled."""
        job_id = fleet.request(trials=trials, shape=self.shape)
        self.allow(allowed)
        fleet.wait_for_trials(job_id, done)
        return job_id

    def open(self) -> None:
        """From now on everything is compiled."""
        (self.folder / "open").touch()

    def is_waited_at(self) -> bool:
        """Whether a compiler stands before it."""
        return any(self.folder.glob("waiting-*"))
