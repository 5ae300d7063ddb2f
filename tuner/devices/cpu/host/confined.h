// What a kernel's process may not do: its code is somebody's.
#pragma once

// From here on this process starts no process (unless `may_fork`) and no thread, opens nothing for writing, has no
// network, and looks into no other process. Where the system refuses a part of that, the rest holds.
void confine(bool may_fork);

// Seconds of CPU time of this process, asked of the system itself: a source may define functions with the C library's
// names, and work in another thread counts.
double cpu_seconds();
