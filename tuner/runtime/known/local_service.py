"""The service that runs on this machine: its API notes its address in the data folder, where the launcher finds it."""

from __future__ import annotations

import fcntl
import logging
import os
from io import TextIOWrapper
from pathlib import Path

from platformdirs import user_data_path

log = logging.getLogger(__name__)


def local_address() -> str | None:
    """The address of an API that runs with this user's data folder; None where none does."""
    named = os.environ.get("TILEWRIGHT_DATA_DIR")
    folder = Path(named) if named else user_data_path("tilewright")
    for path in sorted(folder.glob("api-*.address")):
        try:
            with path.open() as noted:
                if _is_held(noted):
                    return noted.read().strip() or None
        except OSError:
            continue
    return None


class NotedAddress:
    """An address that can be found in the data folder from `start` to `stop`, or to the end of the process.

    Whether somebody listens is told by a lock, which ends with the process, however that ends. Processes of one port
    share it.
    """

    def __init__(self, folder: Path, host: str, port: int) -> None:
        reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared only
        self.address = f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"
        self._path = folder / f"api-{port}.address"
        self._file: TextIOWrapper | None = None

    def start(self) -> None:
        """Writes the address down; a folder that cannot be written is logged: launchers then need TILEWRIGHT_URL."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a")
            fcntl.flock(self._file, fcntl.LOCK_SH)
            os.truncate(self._path, 0)
            self._file.write(self.address + "\n")
            self._file.flush()
        except OSError as error:
            log.warning("Launchers on this machine do not find this API by themselves: %s", error)

    def stop(self) -> None:
        """Removes the file that names the service's address."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _is_held(noted: TextIOWrapper) -> bool:
    try:
        fcntl.flock(noted, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(noted, fcntl.LOCK_UN)
    return False
