// Put before each kernel's source by the compiler of a chaos run: a witness, independent of Tilewright's own locks, of
// who evaluates on a device. Every evaluating process locks a file of its own in the device's folder and then looks
// whether a process of another runner (another parent) holds one. The kernel of the system frees the lock when the
// process is gone, however it went; so one that is held belongs to an evaluation that lives at this moment.
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static void witness_say(const char* folder, const char* file, const char* text) {
  char path[768];
  snprintf(path, sizeof path, "%s/%s", folder, file);
  const int out = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (out >= 0 && write(out, text, strlen(text)) < 0) perror("witness");
  close(out);
}

__attribute__((constructor)) static void witness() {
  const char* const folder = getenv("CHAOS_WITNESS");
  if (!folder) return;
  char machine[33] = "machine";  // CPU devices are told apart by the machine's id
  const int id = open("/etc/machine-id", O_RDONLY | O_CLOEXEC);
  if (id >= 0 && read(id, machine, 32) < 0) perror("witness");
  close(id);
  char devices[640], own[64], text[512];
  snprintf(devices, sizeof devices, "%s/%s", folder, machine);
  mkdir(devices, 0700);
  const int parent = getppid();
  snprintf(own, sizeof own, "%d.%d", parent, getpid());
  const int device = open(devices, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const int mine = openat(device, own, O_RDWR | O_CREAT, 0600);  // open, and locked, until this process ends
  if (mine < 0 || flock(mine, LOCK_EX) != 0) {
    witness_say(folder, "violations", "the witness cannot lock its file\n");
    return;
  }
  DIR* const all = fdopendir(dup(device));
  for (dirent* entry = readdir(all); entry; entry = readdir(all)) {
    if (entry->d_name[0] == '.' || atoi(entry->d_name) == parent) continue;
    const int other = openat(device, entry->d_name, O_RDONLY | O_CLOEXEC);
    if (other < 0) continue;  // ended, and swept away
    if (flock(other, LOCK_SH | LOCK_NB) != 0) {
      snprintf(text, sizeof text, "device %s: %s (runner.evaluation) began while %s lived\n", machine, own,
               entry->d_name);
      witness_say(folder, "violations", text);
    }
    close(other);
  }
  closedir(all);
  snprintf(text, sizeof text, "%s %s\n", machine, own);
  witness_say(folder, "begun", text);
}
