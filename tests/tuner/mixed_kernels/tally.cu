// Per element of keys: scaled = factor * key, is_large = key > limit, total += key.  Dtypes of all sorts; BUG spoils one.
#ifndef REAL
#define REAL float
#endif
#ifndef block_size
#define block_size 64
#endif
#ifndef BUG
#define BUG 0   // 1: the last is_large is wrong, 2: it is not written, 3: scaled is wrong, 4: keys are changed
#endif

extern "C" __global__ void __launch_bounds__(block_size)
tally(const unsigned char* __restrict__ keys, int n, REAL factor, long long limit, REAL* __restrict__ scaled,
      int* __restrict__ is_large, long long* __restrict__ total) {
  const int i = blockIdx.x * block_size + threadIdx.x;
  if (i >= n) return;
  const bool is_last = i == n - 1;
  scaled[i] = keys[i] * factor + (BUG == 3 && is_last);
  if (!(BUG == 2 && is_last)) is_large[i] = (keys[i] > limit) ^ (BUG == 1 && is_last);
  total[i] += keys[i];
  if (BUG == 4 && is_last) const_cast<unsigned char*>(keys)[i] ^= 1;
}
