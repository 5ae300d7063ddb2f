"""What the system says of a process."""

from pathlib import Path


def is_running(pid: int) -> bool:
    """Whether it runs; a zombie does not, it waits for its parent to collect it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the second where it ends between opening and reading
        return False


def children_of(pid: int) -> list[int]:
    """Its children that run, whichever of its threads began them."""
    try:
        listed = [task.read_text().split() for task in Path(f"/proc/{pid}/task").glob("*/children")]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(child) for children in listed for child in children if is_running(int(child))]
