// Instructions that move data between memories: asynchronous copies from global to shared memory (PTX ISA, "cp.async";
// compute capability 8.0), stores to global memory, and the distributed shared memory of a cluster of blocks (PTX ISA,
// "mapa", "barrier.cluster"; 9.0). Addresses in shared memory are the 32-bit ones of its own address space.

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// WIDTH neighbours to global memory, sixteen bytes as one instruction from the start: to merge four stores is a tenth of
// the optimizer's work on a kernel with many of them. `target` must be aligned as Pack<WIDTH> is.
template <unsigned WIDTH>
__device__ __forceinline__ void store_global(REAL* target, const Pack<WIDTH>& pack) {
  if constexpr (WIDTH == 4 && REAL_BYTES == 4) {
    __stwb(reinterpret_cast<float4*>(target), make_float4(pack.lane[0], pack.lane[1], pack.lane[2], pack.lane[3]));
  } else {
    store_pack<WIDTH>(target, pack);
  }
}

// Starts a copy of BYTES (4, 8 or 16) neighbours, INTO and FROM bytes behind the two addresses. Constants, because only
// those end up inside the instruction. Sixteen bytes bypass the L1 cache.
template <unsigned BYTES, unsigned INTO, long long FROM>
__device__ __forceinline__ void copy_async(unsigned target, const void* source) {
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0 + %2], [%1 + %3], 16;"
                 ::"r"(target), "l"(source), "n"(INTO), "n"(FROM));
  } else {
    asm volatile("cp.async.ca.shared.global [%0 + %2], [%1 + %3], %4;"
                 ::"r"(target), "l"(source), "n"(INTO), "n"(FROM), "n"(BYTES));
  }
}

// The same where `inside`, zeros where not. Nothing is read then, wherever `source` points: no register of its own.
template <unsigned BYTES, unsigned INTO, long long FROM = 0>
__device__ __forceinline__ void copy_async_or_zero(unsigned target, const void* source, bool inside) {
  const unsigned bytes = inside ? BYTES : 0;
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0 + %2], [%1 + %4], 16, %3;"
                 ::"r"(target), "l"(source), "n"(INTO), "r"(bytes), "n"(FROM));
  } else {
    asm volatile("cp.async.ca.shared.global [%0 + %2], [%1 + %5], %3, %4;"
                 ::"r"(target), "l"(source), "n"(INTO), "n"(BYTES), "r"(bytes), "n"(FROM));
  }
}

// Closes the group of copies that the thread has started since the last call.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most PENDING of the thread's youngest groups are under way.
template <unsigned PENDING>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Where `address` of this block lies in the block of that rank.
__device__ __forceinline__ unsigned address_in(unsigned address, unsigned rank) {
  unsigned mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

// Sixteen bytes of any block's shared memory, by what `address_in` gave.
__device__ __forceinline__ Pack<16 / REAL_BYTES> load_cluster(unsigned address) {
  Pack<16 / REAL_BYTES> pack;
#if REAL_BYTES == 4
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(pack.lane[0]), "=f"(pack.lane[1]), "=f"(pack.lane[2]), "=f"(pack.lane[3])
               : "r"(address) : "memory");
#else
  asm volatile("ld.shared::cluster.v2.f64 {%0, %1}, [%2];"
               : "=d"(pack.lane[0]), "=d"(pack.lane[1]) : "r"(address) : "memory");
#endif
  return pack;
}

// A barrier of all threads of the cluster, after which each sees what the others wrote before it.
__device__ __forceinline__ void synchronize_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
