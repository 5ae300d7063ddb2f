#include "confined.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#define HOST_AUDIT_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define HOST_AUDIT_ARCH AUDIT_ARCH_AARCH64
#endif

namespace {

constexpr unsigned x32_calls = 0x40000000, writing_flags = O_WRONLY | O_RDWR | O_CREAT;

// Calls that no kernel needs. What starts processes comes last.
constexpr long refused[] = {
    SYS_socket, SYS_socketpair, SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_execve, SYS_execveat,
    SYS_kill, SYS_tkill, SYS_timer_create, SYS_setitimer, SYS_bpf, SYS_perf_event_open, SYS_userfaultfd, SYS_mount,
    SYS_unlinkat, SYS_renameat2, SYS_linkat, SYS_symlinkat, SYS_mkdirat, SYS_memfd_create, SYS_shmget,
#ifdef SYS_io_uring_setup
    SYS_io_uring_setup,
#endif
#ifdef SYS_openat2
    SYS_openat2,
#endif
#ifdef SYS_pidfd_getfd
    SYS_pidfd_getfd,
#endif
#ifdef SYS_creat
    SYS_creat, SYS_unlink, SYS_rename, SYS_renameat, SYS_link, SYS_symlink, SYS_mkdir,
#endif
};
constexpr long starting[] = {
    SYS_clone,
#ifdef SYS_clone3
    SYS_clone3,
#endif
#ifdef SYS_fork
    SYS_fork, SYS_vfork,
#endif
};

struct Filter {
  sock_filter steps[160];
  unsigned short count = 0;

  void add(unsigned short code, unsigned value, unsigned char if_true = 0, unsigned char if_false = 0) {
    steps[count++] = {code, if_true, if_false, value};
  }
  void load(size_t offset) { add(BPF_LD | BPF_W | BPF_ABS, static_cast<unsigned>(offset)); }
  void give(unsigned verdict) { add(BPF_RET | BPF_K, verdict); }
  void refuse(long number) {
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(number), 0, 1);
    // As if the system did not have it: the C library then tries an older call, which is refused in turn.
    give(SECCOMP_RET_ERRNO | (number == SYS_execve ? EPERM : ENOSYS));
  }
  // An opening call whose flags are that argument: refused where it could write.
  void refuse_writing(long number, int argument) {
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(number), 0, 4);
    load(offsetof(seccomp_data, args) + 8 * static_cast<size_t>(argument));
    add(BPF_JMP | BPF_JSET | BPF_K, writing_flags, 0, 1);
    give(SECCOMP_RET_ERRNO | EACCES);
    give(SECCOMP_RET_ALLOW);
  }
};

}  // namespace

void confine(bool may_fork) {
#if defined(HOST_AUDIT_ARCH) && !defined(HOST_ASAN) && !defined(HOST_TSAN)
  // In a user namespace of its own it may not read its parent's memory, which has what is right.
  (void)unshare(CLONE_NEWUSER);
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  Filter filter;
  filter.load(offsetof(seccomp_data, arch));
  filter.add(BPF_JMP | BPF_JEQ | BPF_K, HOST_AUDIT_ARCH, 1, 0);
  filter.give(SECCOMP_RET_KILL_PROCESS);
  filter.load(offsetof(seccomp_data, nr));
#if defined(__x86_64__)
  filter.add(BPF_JMP | BPF_JGE | BPF_K, x32_calls, 0, 1);
  filter.give(SECCOMP_RET_KILL_PROCESS);
#endif
  for (long number : refused) filter.refuse(number);
  if (!may_fork)
    for (long number : starting) filter.refuse(number);
#ifdef SYS_open
  filter.refuse_writing(SYS_open, 1);
#endif
  filter.refuse_writing(SYS_openat, 2);
  filter.give(SECCOMP_RET_ALLOW);
  const sock_fprog program = {filter.count, filter.steps};
  prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
#else
  (void)may_fork;
#endif
}

double cpu_seconds() {
  timespec now = {};
#if defined(__x86_64__)
  long result = SYS_clock_gettime;
  asm volatile("syscall" : "+a"(result) : "D"(long(CLOCK_PROCESS_CPUTIME_ID)), "S"(&now) : "rcx", "r11", "memory");
#elif defined(__aarch64__)
  register long result asm("x0") = CLOCK_PROCESS_CPUTIME_ID;
  register timespec* where asm("x1") = &now;
  register long number asm("x8") = SYS_clock_gettime;
  asm volatile("svc 0" : "+r"(result) : "r"(where), "r"(number) : "memory");
#else
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
#endif
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}
