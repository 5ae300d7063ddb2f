// Atomics of every type and scope: relaxed, as in CUDA. One block is in flight at a time, so that the scopes are one.
//
// HOST_BUILTIN marks a template that is none but in name: a function of the same parameters in the user's file wins.
#pragma once
#define HOST_BUILTIN template <int host_builtin = 0> static inline

#define HOST_SCOPES(name, T)                                              \
  HOST_BUILTIN T name##_block(T* p, T value) { return name(p, value); }   \
  HOST_BUILTIN T name##_system(T* p, T value) { return name(p, value); }
#define HOST_FETCH(name, T, builtin)                                                       \
  HOST_BUILTIN T name(T* p, T value) { return builtin(p, value, __ATOMIC_RELAXED); }       \
  HOST_SCOPES(name, T)
#define HOST_UPDATE(name, T, result)                                                                         \
  HOST_BUILTIN T name(T* p, T value) {                                                                       \
    T old, replacement;                                                                                      \
    __atomic_load(p, &old, __ATOMIC_RELAXED);                                                                \
    do replacement = (result);                                                                               \
    while (!__atomic_compare_exchange(p, &old, &replacement, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));    \
    return old;                                                                                              \
  }                                                                                                          \
  HOST_SCOPES(name, T)
#define HOST_CAS(T)                                                                                  \
  HOST_BUILTIN T atomicCAS(T* p, T expected, T value) {                                              \
    __atomic_compare_exchange_n(p, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);     \
    return expected;                                                                                 \
  }                                                                                                  \
  HOST_BUILTIN T atomicCAS_block(T* p, T expected, T value) { return atomicCAS(p, expected, value); } \
  HOST_BUILTIN T atomicCAS_system(T* p, T expected, T value) { return atomicCAS(p, expected, value); }
#define HOST_EACH_INTEGER(one) one(int) one(unsigned) one(unsigned long long)
#define HOST_BITWISE(T)                        \
  HOST_FETCH(atomicAnd, T, __atomic_fetch_and) \
  HOST_FETCH(atomicOr, T, __atomic_fetch_or)   \
  HOST_FETCH(atomicXor, T, __atomic_fetch_xor) \
  HOST_FETCH(atomicAdd, T, __atomic_fetch_add) \
  HOST_FETCH(atomicExch, T, __atomic_exchange_n) \
  HOST_CAS(T)
#define HOST_EXTREMES(T)                             \
  HOST_UPDATE(atomicMax, T, old > value ? old : value) \
  HOST_UPDATE(atomicMin, T, old < value ? old : value)
HOST_EACH_INTEGER(HOST_BITWISE)
HOST_EACH_INTEGER(HOST_EXTREMES) HOST_EXTREMES(long long)
HOST_CAS(unsigned short)
HOST_FETCH(atomicSub, int, __atomic_fetch_sub)
HOST_FETCH(atomicSub, unsigned, __atomic_fetch_sub)
HOST_UPDATE(atomicAdd, float, old + value)
HOST_UPDATE(atomicAdd, double, old + value)
HOST_UPDATE(atomicExch, float, value)
HOST_UPDATE(atomicInc, unsigned, old >= value ? 0 : old + 1)
HOST_UPDATE(atomicDec, unsigned, old == 0 || old > value ? value : old - 1)
#undef HOST_SCOPES
#undef HOST_FETCH
#undef HOST_UPDATE
#undef HOST_CAS
#undef HOST_EACH_INTEGER
#undef HOST_BITWISE
#undef HOST_EXTREMES
