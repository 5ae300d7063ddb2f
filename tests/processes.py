"""What the system says of a process."""

from pathlib import Path


def is_running(pid: int) -> bool:
    """Whether it runs; a zombie does not, it waits for its parent to collect it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the second where it ends between opening and reading
        return False
