// SPDX-License-Identifier: Apache-2.0
//
// The keys of a prefill that rotates them, once, into the workspace: what follows reads them as it reads any keys.
//
//     bf16 keys become fp16, three bits more: rotated and rounded to bf16 again, single outputs erred by 1.4e-2. The ends of fp16 are nearer
//     than bf16's, so a key whose largest element is far from 1 is stored times a power of two, and its scores are multiplied by
//     key_scales[key]; odd_keys[] says of each 64 keys whether there is such a one. fp16 keys stay what they are.
//
//     block    64 keys of one KV head: to shared memory, turned there, and out; a warp has 16 of them
//
// Bytes: k once in, once out. Keys past a sequence's length are neither read nor written.
#include "cuda/prefill_rotated.cuh"

enum { WARPS = 4, WARP_KEYS = KF_ROTATED_KEYS / WARPS, THREADS = 32 * WARPS };

// The keys of a warp; `first` is the block's.
template <int COLS, class Tile>
static __device__ __forceinline__ void rotate(const kf_cuda_attention &a, Tile keys, int row0, int32_t first,
                                              const char *table, int lane) {
    if (a.rope.dims == COLS)
        kf_rope_chunks<COLS>::template run<WARP_KEYS>(a.rope, keys, row0, table, lane);
    else
        kf_rotate_run<WARP_KEYS>(a.rope, keys, row0, (int64_t)first + row0, lane);
}

template <class T, int COLS>
__global__ void __launch_bounds__(THREADS) kf_rotate_keys_kernel(const __grid_constant__ kf_cuda_attention a) {
    constexpr bool MIXED = kf_is_mixed<T, __half>;
    __shared__ __align__(128) char memory[KF_ROTATED_KEYS * COLS * 2];
    __shared__ float scales[KF_ROTATED_KEYS];
    __shared__ __align__(16) char tables[WARPS][kf_rope_chunks<COLS>::TABLE_BYTES];
    const int thread = threadIdx.x, lane = thread & 31, row0 = (thread >> 5) * WARP_KEYS;
    const uint32_t tiles = (a.Nk + KF_ROTATED_KEYS - 1) / KF_ROTATED_KEYS, head = blockIdx.x / tiles;
    const uint32_t tile = blockIdx.x - head * tiles, b = head / (uint32_t)a.Hkv;
    kf_wait_for_previous();
    kf_launch_dependents();
    const int32_t first = tile * KF_ROTATED_KEYS, length = kf_key_length(a, b);
    if (first >= length) return;
    const char *const from = a.k + 2 * (b * a.k_stride[0] + (head - b * a.Hkv) * a.k_stride[1]);
    kf_load_tile<KF_ROTATED_KEYS, COLS, THREADS, true>(kf_shared(memory), from, a.k_stride[2], first, 0, length, a.D,
                                                       a.aligned, thread);
    kf_copy_commit();
    if (a.rope.dims == COLS) // while the keys are on their way
        kf_rope_chunks<COLS>::prepare(a.rope, tables[thread >> 5], (int64_t)first + row0, lane);
    kf_copy_wait<0>();
    __syncthreads();
    if constexpr (MIXED) {
        const bool odd = kf_find_scales<WARP_KEYS, COLS>(memory, scales, row0, a.rope.magnitude, lane);
        const kf_mixed_tile<COLS> keys = {memory, scales};
        if (a.rope.k) rotate<COLS>(a, keys, row0, first, tables[thread >> 5], lane);
        kf_narrow<WARP_KEYS, COLS>(keys, row0, a.rope.k ? a.rope.dims : 0, lane); // k as it is, where q alone turns
        if (lane < WARP_KEYS && first + row0 + lane < length)
            a.key_scales[(int64_t)head * a.Nk + first + row0 + lane] = kf_row_unscale(scales[row0 + lane]);
        const int some = __syncthreads_or(odd);
        if (thread == 0) a.odd_keys[blockIdx.x] = some;
    } else {
        rotate<COLS>(a, kf_rope_tile<T, COLS>{memory}, row0, first, tables[thread >> 5], lane);
    }
    __syncwarp();
    constexpr int CHUNKS = COLS / KF_CHUNK;
    char *const to = a.rotated_k + 2 * (((int64_t)head * a.Nk + first) * a.D);
#pragma unroll 4
    for (int i = lane; i < WARP_KEYS * CHUNKS; i += 32) {
        const int row = row0 + i / CHUNKS, chunk = i % CHUNKS;
        if (first + row >= length || chunk * KF_CHUNK >= a.D) continue;
        *reinterpret_cast<uint4 *>(to + 2 * ((int64_t)row * a.D) + 16 * chunk) =
            *reinterpret_cast<const uint4 *>(memory + kf_swizzle<COLS>(row, chunk));
    }
}

#define KEYS_ROW(T, TYPE, COLS)                                                                                        \
    {                                                                                                                  \
        KF_CUDA_ROTATE_KEYS, TYPE, 2, COLS, COLS, 1, 0, KF_ROTATED_KEYS, THREADS, 1, 0, 80,                            \
            (const void *)kf_rotate_keys_kernel<T, COLS>, "rotation of keys into the workspace, D=" #COLS              \
    }

extern "C" const kf_cuda_attention_kernel kf_cuda_rotate_keys[] = {
    KEYS_ROW(__nv_bfloat16, KF_BF16_TYPE, 64),
    KEYS_ROW(__nv_bfloat16, KF_BF16_TYPE, 128),
    KEYS_ROW(__half, KF_F16, 64),
    KEYS_ROW(__half, KF_F16, 128),
    KEYS_ROW(__half, KF_F16, 256),
    {},
};
