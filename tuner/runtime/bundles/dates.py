"""The newest date of each bundle that was used here, by the key that signed it: an older one is refused.

Whoever can replace a folder of bundles can put an old one there, whose signature is as good as that of the new one.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path

import platformdirs

from tilewright.tuner.runtime.bundles.folder import (
    BrokenBundleError,
    CheckedFolder,
    OlderBundleError,
    checked_files,
    key_id,
)
from tilewright.tuner.runtime.errors import BundleWarning, warn


def files_not_older(folder: Path, public_key: Path | None, *, allow_older: bool) -> CheckedFolder:
    """The `checked_files`; with a key raises OlderBundleError where a newer bundle of that key was used here.

    With `allow_older` the folder is taken all the same, and its date counts from then on.
    """
    checked = checked_files(folder, public_key)
    if public_key is None:
        return checked
    key = key_id(public_key)
    latest = newest(key, checked.contents)
    if checked.date < latest and not allow_older:
        made = f"was made at {checked.date}" if checked.date else "has no date"
        raise OlderBundleError(
            f"{folder.name} {made}, but a bundle of the same key made at {latest} has been used here: an old one may "
            "have been put in its place. Take the newer one; to go back on purpose: "
            "tilewright bundle --check FOLDER --public-key FILE --allow-older"
        )
    remember(key, checked.contents, min(checked.date, _now()))
    return checked


def state_folder() -> Path:
    """TILEWRIGHT_STATE_DIR where set, else the user's folder for state; `bundles` inside it."""
    root = os.environ.get("TILEWRIGHT_STATE_DIR")
    return (Path(root) if root else platformdirs.user_state_path("tilewright")) / "bundles"


def newest(key_id: str, names: Collection[str]) -> str:
    """The newest date under which one of these files, signed by that key, was used here; empty without one."""
    dates = _read(key_id)
    # A date in the future, which an earlier version has kept, would bar every bundle until then.
    return max((date for name in names if (date := dates.get(name, "")) <= _now()), default="")


def remember(key_id: str, names: Collection[str], date: str) -> None:
    """Notes that these files have that date. If it cannot be written, that is logged and no error."""
    path = _path(key_id)
    dates = _read(key_id)
    if all(dates.get(name, "") == date for name in names):
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".", suffix=".new", delete=False) as file:
            json.dump(dates | dict.fromkeys(names, date), file)
        Path(file.name).replace(path)
    except OSError as error:
        warn(
            f"the date of this bundle cannot be kept ({error}), so that an older one would not be noticed. "
            "Name a folder that can be written in TILEWRIGHT_STATE_DIR",
            BundleWarning,
        )


def _now() -> str:
    """The present time as bundles state dates."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _path(key_id: str) -> Path:
    return state_folder() / f"{key_id}.json"


def _read(key_id: str) -> dict[str, str]:
    path = _path(key_id)
    try:
        noted = json.loads(path.read_bytes())
    except OSError:
        return {}
    except ValueError:
        noted = None
    if not isinstance(noted, dict) or not all(isinstance(date, str) for date in noted.values()):
        raise BrokenBundleError(f"{path} is damaged. Remove it to start again without the dates of older bundles.")
    return noted
