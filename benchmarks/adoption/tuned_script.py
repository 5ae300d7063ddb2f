"""A script of Kernel Tuner's: its adopted folders, and its process, which waits with Kernel Tuner at each call."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripts import TILEWRIGHT

LIMITED_CALLS = Path(__file__).with_name("limited_calls.py")
CALLS = "calls.json"

Row = dict[str, Any]


class Script:
    """A script beside its adopted folders, which are in `folder`."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.path, self.title, self._folder = path, path.name, folder
        self._log = folder.parent / f"{path.stem}.log"
        self._lines: queue.Queue[str] = queue.Queue()  # an empty one at the end
        self._process: subprocess.Popen[str] | None = None
        self._listener = threading.Thread(target=self._listen, daemon=True)

    @property
    def is_adopted(self) -> bool:
        """Whether its folders, or what it was refused for, are there."""
        return (self._folder / CALLS).exists()

    def adopted(self) -> list[Row]:
        """Its calls, as `kernels adopt` says them; it adopts the script where that was not done before."""
        known = self._folder / CALLS
        if not self.is_adopted:
            command = [*TILEWRIGHT, "kernels", "adopt", str(self.path), "--folder", str(self._folder), "--json"]
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
            said = ran.stderr.strip().splitlines() or ["it said nothing"]
            calls = json.loads(ran.stdout)["calls"] if ran.stdout else []
            calls = calls or [{"folder": None, "kernel_name": "", "refused": said[-1]}]
            for call in calls:
                call["folder"] = call["folder"] and Path(call["folder"]).name
            self._folder.mkdir(parents=True, exist_ok=True)
            known.write_text(json.dumps(calls, indent=1) + "\n")
        calls = json.loads(known.read_text())
        for call in calls:
            call["folder"] = call["folder"] and self._folder / call["folder"]
        return calls

    def start(self) -> None:
        """Its process begins, and stops at the first call."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(LIMITED_CALLS), str(self.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                bufsize=1,
            )
        self._listener.start()

    def heard(self, limit_s: float) -> Row:
        """The next line of the script's process, or a failure."""
        try:
            line = self._lines.get(timeout=limit_s)
        except queue.Empty:
            self.end()
            return {"failure": f"nothing was heard of it for {limit_s:.0f} s"}
        if not line:
            self._lines.put("")  # the end stays the end
        answer: Row = json.loads(line) if line else {"failure": f"the script ended: {self._last_line()}"}
        return answer

    def tell(self, what: Mapping[str, Any] | None) -> None:
        """Lets the call go that waits."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):  # it has ended, or was
                self._process.stdin.write(json.dumps(what) + "\n")

    def end(self) -> None:
        """Ends its process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._listener.join(5)
            if self._process.stdin is not None:
                with contextlib.suppress(OSError):  # what it was told and did not read
                    self._process.stdin.close()

    def _listen(self) -> None:
        assert self._process is not None  # noqa: S101 - it was started
        assert self._process.stdout is not None  # noqa: S101 - it was asked for
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put("")

    def _last_line(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "it said nothing"
