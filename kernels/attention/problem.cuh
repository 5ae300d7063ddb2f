// The problem: O = softmax(Q Kᵀ scale + mask) V for each head of a batch. A row of Q, K, V and O has DEPTH numbers; rows, heads
// and elements of the batch lie as far apart as ROW_, HEAD_ and BATCH_ say. Each KV_HEADS-th part of the heads shares a head of
// K and V. The mask is none, causal (key j counts for query i where j <= i), or M, which is added.
#pragma once
#include "common/integers.cuh"
#include "common/real.cuh"

#ifndef SHAPE_BATCH
#define SHAPE_BATCH 8      // elements of the batch
#define SHAPE_HEADS 12     // heads of Q and O
#define SHAPE_QUERIES 512  // rows of Q and O, of a head
#define SHAPE_KEYS 512     // rows of K and V
#define SHAPE_DEPTH 64     // numbers of a row
#define MASK_NONE
#define HEADS_INSIDE 0     // 1: heads lie behind rows, in O and, unless distances say otherwise, in Q, K and V
#endif
#ifndef SHAPE_KV_HEADS
#define SHAPE_KV_HEADS SHAPE_HEADS   // heads of K and V
#endif
// From a row, a head and an element of the batch to the next.
#ifndef SHAPE_ROW_Q
#define SHAPE_ROW_Q (SHAPE_DEPTH * (HEADS_INSIDE ? SHAPE_HEADS : 1))
#endif
#ifndef SHAPE_ROW_K
#define SHAPE_ROW_K (SHAPE_DEPTH * (HEADS_INSIDE ? SHAPE_KV_HEADS : 1))
#endif
#ifndef SHAPE_ROW_V
#define SHAPE_ROW_V (SHAPE_DEPTH * (HEADS_INSIDE ? SHAPE_KV_HEADS : 1))
#endif
#ifndef SHAPE_ROW_M
#define SHAPE_ROW_M SHAPE_KEYS
#endif
#ifndef SHAPE_HEAD_Q
#define SHAPE_HEAD_Q (SHAPE_DEPTH * (HEADS_INSIDE ? 1 : SHAPE_QUERIES))
#endif
#ifndef SHAPE_HEAD_K
#define SHAPE_HEAD_K (SHAPE_DEPTH * (HEADS_INSIDE ? 1 : SHAPE_KEYS))
#endif
#ifndef SHAPE_HEAD_V
#define SHAPE_HEAD_V (SHAPE_DEPTH * (HEADS_INSIDE ? 1 : SHAPE_KEYS))
#endif
#ifndef SHAPE_HEAD_M
#define SHAPE_HEAD_M (size_t{SHAPE_KEYS} * SHAPE_QUERIES)
#endif
#ifndef SHAPE_BATCH_Q
#define SHAPE_BATCH_Q (size_t{SHAPE_DEPTH} * SHAPE_HEADS * SHAPE_QUERIES)
#endif
#ifndef SHAPE_BATCH_K
#define SHAPE_BATCH_K (size_t{SHAPE_DEPTH} * SHAPE_KV_HEADS * SHAPE_KEYS)
#endif
#ifndef SHAPE_BATCH_V
#define SHAPE_BATCH_V (size_t{SHAPE_DEPTH} * SHAPE_KV_HEADS * SHAPE_KEYS)
#endif
#ifndef SHAPE_BATCH_M
#define SHAPE_BATCH_M (size_t{SHAPE_KEYS} * SHAPE_HEADS * SHAPE_QUERIES)
#endif

[[maybe_unused]] constexpr unsigned BATCH = SHAPE_BATCH, HEADS = SHAPE_HEADS, KV_HEADS = SHAPE_KV_HEADS;
constexpr unsigned QUERIES = SHAPE_QUERIES, KEYS = SHAPE_KEYS, DEPTH = SHAPE_DEPTH;
#ifdef MASK_CAUSAL
constexpr bool IS_CAUSAL = true;
#else
constexpr bool IS_CAUSAL = false;
#endif
#ifdef MASK_ADDITIVE
constexpr bool HAS_MASK = true;
#else
constexpr bool HAS_MASK = false;
#endif
constexpr size_t ROW_Q = SHAPE_ROW_Q, ROW_K = SHAPE_ROW_K, ROW_V = SHAPE_ROW_V, HEAD_Q = SHAPE_HEAD_Q, HEAD_K = SHAPE_HEAD_K;
constexpr size_t HEAD_V = SHAPE_HEAD_V, BATCH_Q = SHAPE_BATCH_Q, BATCH_K = SHAPE_BATCH_K, BATCH_V = SHAPE_BATCH_V;
[[maybe_unused]] constexpr size_t ROW_M = SHAPE_ROW_M, HEAD_M = SHAPE_HEAD_M, BATCH_M = SHAPE_BATCH_M;
constexpr size_t ROW_O = HEADS_INSIDE ? HEADS * DEPTH : DEPTH, HEAD_O = HEADS_INSIDE ? DEPTH : size_t{QUERIES} * DEPTH;
constexpr size_t BATCH_O = size_t{HEADS} * QUERIES * DEPTH;
// Whether four neighbours of a row are one access, in Q, and in K and V.
[[maybe_unused]] constexpr bool Q_ALIGNED = ROW_Q % 4 == 0 && HEAD_Q % 4 == 0 && BATCH_Q % 4 == 0;
[[maybe_unused]] constexpr bool K_ALIGNED = ROW_K % 4 == 0 && HEAD_K % 4 == 0 && BATCH_K % 4 == 0;
[[maybe_unused]] constexpr bool V_ALIGNED = ROW_V % 4 == 0 && HEAD_V % 4 == 0 && BATCH_V % 4 == 0;

// A head of the batch, and where its arrays begin.
struct Head {
  unsigned batch, head, kv_head;
  __device__ __forceinline__ explicit Head(unsigned number)
      : batch(number / HEADS), head(number % HEADS), kv_head(number % HEADS / (HEADS / KV_HEADS)) {}
  __device__ __forceinline__ size_t q() const { return BATCH_Q * batch + HEAD_Q * head; }
  __device__ __forceinline__ size_t k() const { return BATCH_K * batch + HEAD_K * kv_head; }
  __device__ __forceinline__ size_t v() const { return BATCH_V * batch + HEAD_V * kv_head; }
  __device__ __forceinline__ size_t m() const { return BATCH_M * batch + HEAD_M * head; }
  __device__ __forceinline__ size_t o() const { return BATCH_O * batch + HEAD_O * head; }
};
