// A stack of one's own: what a CUDA thread needs to wait at a barrier while others run. Linux on x86-64 and aarch64.
//
// A switch saves the registers that the platform's calling convention has the callee keep, nothing else: the compiler
// has spilled the rest around the call. HOST_ASAN and HOST_TSAN tell the sanitizers which stack runs.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct Fiber {
  void* stack_pointer = nullptr;
  char* stack = nullptr;  // lowest address
  size_t stack_bytes = 0;
  void* fake_stack = nullptr;  // AddressSanitizer's
  void* tsan = nullptr;        // ThreadSanitizer's
};

extern "C" void host_swap_stacks(void** save, void* load);

#if defined(__x86_64__)
asm(R"(
.text
.globl host_swap_stacks
.type host_swap_stacks, @function
host_swap_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size host_swap_stacks, .-host_swap_stacks
)");
static constexpr int saved_words = 8;   // six registers, the return address, a null caller for debuggers
static constexpr int entry_word = 6;    // where `ret` finds the entry; leaves the stack 8 off 16, as a call does
#elif defined(__aarch64__)
asm(R"(
.text
.globl host_swap_stacks
.type host_swap_stacks, %function
host_swap_stacks:
  sub sp, sp, #160
  stp x19, x20, [sp]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size host_swap_stacks, .-host_swap_stacks
)");
static constexpr int saved_words = 20;
static constexpr int entry_word = 11;   // x30
#else
#error "the CPU device knows x86-64 and aarch64"
#endif

#if defined(HOST_ASAN)
extern "C" void __sanitizer_start_switch_fiber(void** save, const void* bottom, size_t bytes);
extern "C" void __sanitizer_finish_switch_fiber(void* saved, const void** old_bottom, size_t* old_bytes);
#endif
#if defined(HOST_TSAN)
extern "C" void* __tsan_get_current_fiber(void);
extern "C" void* __tsan_create_fiber(unsigned flags);
extern "C" void __tsan_switch_to_fiber(void* fiber, unsigned flags);
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
#endif

// What happened before `release(p)` in one fiber is visible after `acquire(p)` in another; for the race detector only.
static inline void release([[maybe_unused]] void* address) {
#if defined(HOST_TSAN)
  __tsan_release(address);
#endif
}
static inline void acquire([[maybe_unused]] void* address) {
#if defined(HOST_TSAN)
  __tsan_acquire(address);
#endif
}

// Makes the fiber start in `entry`, which must never return, `colour` bytes below the top of its stack.
static inline void prepare(Fiber& fiber, void (*entry)(), size_t colour) {
  const uintptr_t top = (reinterpret_cast<uintptr_t>(fiber.stack) + fiber.stack_bytes - colour) & ~uintptr_t(63);
  void** words = reinterpret_cast<void**>(top) - saved_words;
  memset(words, 0, saved_words * sizeof(void*));
  words[entry_word] = reinterpret_cast<void*>(entry);
  fiber.stack_pointer = words;
#if defined(HOST_TSAN)
  if (!fiber.tsan) fiber.tsan = __tsan_create_fiber(0);
#endif
}

// First thing in an entry: the switch that led here is complete. `origin` learns the stack that it came from.
static inline void entered([[maybe_unused]] Fiber& origin) {
#if defined(HOST_ASAN)
  const void* bottom = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
  if (!origin.stack) {
    origin.stack = const_cast<char*>(static_cast<const char*>(bottom));
    origin.stack_bytes = bytes;
  }
#endif
}

// Goes on in `to`; comes back when somebody switches to `from`.
static inline void switch_fiber(Fiber& from, Fiber& to) {
#if defined(HOST_ASAN)
  __sanitizer_start_switch_fiber(&from.fake_stack, to.stack, to.stack_bytes);
#endif
#if defined(HOST_TSAN)
  __tsan_switch_to_fiber(to.tsan, 1);  // 1: the switch itself orders nothing
#endif
  host_swap_stacks(&from.stack_pointer, to.stack_pointer);
#if defined(HOST_ASAN)
  __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}
