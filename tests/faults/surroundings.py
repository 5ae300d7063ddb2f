"""Disks that a test can fill, a network that it can cut, a clock that it can turn."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest


def run(*command: object, refused: str) -> None:
    """Skips the test where the system refuses the command."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"{refused} is refused here: {done.stderr.strip()}")


@dataclass
class SmallDisk:
    """A file system of some megabytes, in memory."""

    folder: Path

    @classmethod
    def mount(cls, folder: Path, megabytes: int) -> SmallDisk:
        folder.mkdir()
        run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0700", "test", folder, refused="mounting")
        return cls(folder)

    def fill(self) -> None:
        """Nothing more can be written to it."""
        with (self.folder / "ballast").open("wb", buffering=0) as file:
            for size in (1 << 20, 4096):
                with suppress(OSError):
                    while file.write(bytes(size)):
                        pass
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            (self.folder / "more").write_bytes(bytes(4096))
        (self.folder / "more").unlink(missing_ok=True)

    def make_room(self) -> None:
        (self.folder / "ballast").unlink()

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", self.folder], check=True)


@dataclass
class Network:
    """A cable between this machine and another one that is a network namespace of it."""

    name: str = field(default_factory=lambda: f"tw{os.getpid() % 100_000}")
    third: int = field(default_factory=lambda: os.getpid() % 250)

    @property
    def address(self) -> str:
        """Ours, as the other machine knows it."""
        return f"10.213.{self.third}.1"

    @property
    def inside(self) -> tuple[str, ...]:
        """Put before a command that is to run there."""
        return ("ip", "netns", "exec", self.name)

    def lay(self) -> None:
        ours, theirs = f"{self.name}h", f"{self.name}n"
        ip = ["ip", "-n", self.name]
        for command in (
            ["ip", "netns", "add", self.name],
            ["ip", "link", "add", ours, "type", "veth", "peer", "name", theirs],
            ["ip", "link", "set", theirs, "netns", self.name],
            ["ip", "address", "add", f"{self.address}/30", "dev", ours],
            [*ip, "address", "add", f"10.213.{self.third}.2/30", "dev", theirs],
            ["ip", "link", "set", ours, "up"],
            [*ip, "link", "set", theirs, "up"],
        ):
            run(*command, refused="a network namespace")

    def cut(self) -> None:
        """Nothing arrives any more, in either direction, and nobody is told."""
        subprocess.run(["ip", "link", "set", f"{self.name}h", "down"], check=True)

    def mend(self) -> None:
        subprocess.run(["ip", "link", "set", f"{self.name}h", "up"], check=True)

    def remove(self) -> None:
        for command in (["ip", "link", "delete", f"{self.name}h"], ["ip", "netns", "delete", self.name]):
            subprocess.run(command, capture_output=True, check=False)


@dataclass
class MemoryGroup:
    """A control group with so much memory, of whichever version this machine has."""

    folder: Path

    @classmethod
    def make(cls, name: str, megabytes: int) -> MemoryGroup:
        mount = Path("/sys/fs/cgroup")
        is_first = (mount / "memory").is_dir()
        folder = (mount / "memory" if is_first else mount) / name
        limit = folder / ("memory.limit_in_bytes" if is_first else "memory.max")
        try:
            folder.mkdir()
            limit.write_text(str(megabytes << 20))
        except OSError as error:
            pytest.skip(f"a control group for memory cannot be made here: {error}")
        return cls(folder)

    @property
    def inside(self) -> tuple[str, ...]:
        """Put before a command that is to run there."""
        return ("sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.folder / "cgroup.procs"))

    def remove(self) -> None:
        """Waits for the last process to be gone from it."""
        deadline = time.monotonic() + 30
        while (self.folder / "cgroup.procs").read_text() and time.monotonic() < deadline:
            time.sleep(0.1)
        self.folder.rmdir()


CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long offset(void) {
  static const long* ahead_s;
  if (!ahead_s) {
    const int file = open(getenv("FAULT_CLOCK"), O_RDONLY | O_CLOEXEC);
    void* const page = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page == MAP_FAILED) return 0;
    ahead_s = page;
  }
  return *(const volatile long*)ahead_s;
}

int clock_gettime(clockid_t id, struct timespec* now) {
  static int (*real)(clockid_t, struct timespec*);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  const int status = real(id, now);
  if (!status && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += offset();
  return status;
}

int gettimeofday(struct timeval* restrict now, void* restrict zone) {
  struct timespec exact;
  (void)zone;
  if (clock_gettime(CLOCK_REALTIME, &exact)) return -1;
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* at) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (at) *at = now.tv_sec;
  return now.tv_sec;
}
"""


@dataclass
class Clock:
    """The time of day as processes with this environment see it; what measures durations is left alone."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> Clock:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            pytest.skip("there is no C compiler to make a clock with")
        (folder / "clock.c").write_text(CLOCK)
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", folder / "clock.so", folder / "clock.c", "-ldl"]
        subprocess.run(command, check=True)
        clock = cls(folder)
        clock.jump(0)
        return clock

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self.folder / "clock.so"), "FAULT_CLOCK": str(self.folder / "ahead")}

    def jump(self, ahead_s: int) -> None:
        """From now on it is so much ahead of the true time."""
        with (self.folder / "ahead").open("r+b" if (self.folder / "ahead").exists() else "wb") as file:
            file.write(ahead_s.to_bytes(8, "little", signed=True))


Mounts = Callable[[str, int], SmallDisk]
