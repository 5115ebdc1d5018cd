// SPDX-License-Identifier: Apache-2.0
//
// The keys of a prefill that rotates them, once, into the workspace: what follows reads them as it reads any keys.
//
//     bf16 keys become fp16, three bits more: rotated and rounded to bf16 again, single outputs erred by 1.4e-2. The ends of fp16 are nearer
//     than bf16's, so a key whose largest element is far from 1 is stored times a power of two, and its scores are multiplied by
//     key_scales[key]; odd_keys[] says of each 32 keys whether there is such a one. fp16 keys stay what they are.
//
//     whole    32 keys of up to 8 KV heads a block, where all of a row turns and lies at addresses of 16 bytes: a thread has 8 pairs of a key in
//              each head, one after another; it finds their angles once and turns them in registers
//     other    32 keys of one KV head a block: to shared memory, turned there, and out; a warp has 16 of them
//
// Bytes: k once in, once out. Keys past a sequence's length are neither read nor written.
#include "cuda/prefill_rotated.cuh"

enum { WARP_KEYS = 16, WARPS = KF_ROTATED_KEYS / WARP_KEYS, THREADS = 32 * WARPS };

template <int COLS> struct kf_whole_keys {
    static constexpr int PARTS = COLS / (2 * KF_CHUNK), THREADS = KF_ROTATED_KEYS * PARTS;
    // Of a multiprocessor: 64 registers a thread, so that a block of the prefill soon finds room beside, and turns its q. With the keys of 4 heads
    // on their way a thread this kernel is faster (11.7 us to 13.4 at (2,32/8,4096,128)), and the two together are slower.
    static constexpr int BLOCKS = 1024 / THREADS;
};

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

// A thread's place: its first chunk of its key in the first of the block's heads.
struct kf_key_place {
    const char *from;
    char *to;
    float *unscales; // of its key in that head; NULL: another thread's
    bool live;       // the key is within the sequence's length
};

// Bytes from a thread's first chunk to its second one.
template <int COLS, bool SPLIT> constexpr int kf_second_chunk = SPLIT ? 16 * kf_whole_keys<COLS>::PARTS : 16;

// Both chunks in head h; zero where there is no such head or key.
template <int SECOND>
static __device__ __forceinline__ void load_head(const kf_cuda_attention &a, const kf_key_place &place, int h,
                                                 int heads, uint4 (&in)[2]) {
    in[0] = in[1] = make_uint4(0, 0, 0, 0);
    if (!place.live || h >= heads) return;
    const char *const from = place.from + 2 * (h * a.k_stride[1]);
    in[0] = __ldcs(reinterpret_cast<const uint4 *>(from));
    in[1] = __ldcs(reinterpret_cast<const uint4 *>(from + SECOND));
}

// A thread has 8 pairs of a key in `heads` heads. It computes their angles while its first keys are on their way, and turns these pairs in
// registers. Only where some row of the warp does not suit fp16 as it is, its elements are looked at before they turn. Bit h: whether head h's
// key is kept times another number than 1.
template <class T, int COLS, bool SPLIT>
static __device__ __forceinline__ uint32_t rotate_heads(const kf_cuda_attention &a, const kf_key_place &place,
                                                        int32_t key, int part, int heads) {
    constexpr bool MIXED = kf_is_mixed<T, __half>;
    constexpr int PARTS = kf_whole_keys<COLS>::PARTS, SECOND = kf_second_chunk<COLS, SPLIT>;
    uint4 in[2];
    load_head<SECOND>(a, place, 0, heads, in);
    float2 angle[KF_CHUNK];
#pragma unroll
    for (int e = 0; e < KF_CHUNK; e++) {
        angle[e] = kf_rope_angle_16(a.rope.turns[KF_CHUNK * part + e], key);
        angle[e].x *= a.rope.magnitude, angle[e].y *= a.rope.magnitude;
    }
    uint32_t odd = 0;
#pragma unroll 1
    for (int h = 0; h < heads; h++) {
        uint32_t turned[KF_CHUNK];
        float scale = 1.0f;
        kf_turn_chunks<T, __half, SPLIT>(in, angle, 1.0f, turned);
        if constexpr (MIXED) {
            const uint32_t most = kf_most_of_row<PARTS>(turned); // of all lanes, whether their keys are there or not
            const bool suits = !place.live || kf_suits_half(most);
            if (!__all_sync(0xffffffffu, suits)) {
                scale = kf_turn_scaled<PARTS, SPLIT>(in, angle, a.rope.magnitude, suits, turned);
                odd |= (uint32_t)(scale != 1.0f) << h;
            }
        }
        if (place.live) {
            char *const to = place.to + 2 * (h * (int64_t)a.Nk * COLS);
            *reinterpret_cast<uint4 *>(to) = make_uint4(turned[0], turned[1], turned[2], turned[3]);
            *reinterpret_cast<uint4 *>(to + SECOND) = make_uint4(turned[4], turned[5], turned[6], turned[7]);
            if (MIXED && place.unscales) place.unscales[h * (int64_t)a.Nk] = kf_row_unscale(scale);
        }
        load_head<SECOND>(a, place, h + 1, heads, in);
    }
    return odd;
}

// The usual case: whole rows of COLS elements, all of which turn, at addresses of 16 bytes.
template <class T, int COLS>
__global__ void __launch_bounds__(kf_whole_keys<COLS>::THREADS, kf_whole_keys<COLS>::BLOCKS)
    kf_rotate_whole_keys_kernel(const __grid_constant__ kf_cuda_attention a) {
    constexpr bool MIXED = kf_is_mixed<T, __half>;
    constexpr int PARTS = kf_whole_keys<COLS>::PARTS, HEADS = KF_ROTATED_HEADS;
    __shared__ uint32_t odd_heads;
    const int thread = threadIdx.x, row = thread / PARTS, part = thread % PARTS;
    const uint32_t tiles = (a.Nk + KF_ROTATED_KEYS - 1) / KF_ROTATED_KEYS, groups = (a.Hkv + HEADS - 1) / HEADS;
    const uint32_t item = blockIdx.x / groups, head0 = (blockIdx.x - item * groups) * HEADS;
    const uint32_t b = item / tiles, tile = item - b * tiles;
    const int heads = min(HEADS, a.Hkv - (int)head0);
    if (thread == 0) odd_heads = 0;
    kf_wait_for_previous();
    kf_launch_dependents();
    const int32_t first = tile * KF_ROTATED_KEYS, key = first + row, length = kf_key_length(a, b);
    if (first >= length) return;
    const int64_t to = ((int64_t)b * a.Hkv + head0) * a.Nk + key;
    const int chunk = 16 * (a.rope.split_halves ? part : 2 * part);
    const kf_key_place place = {
        .from = a.k + 2 * (b * a.k_stride[0] + head0 * a.k_stride[1] + key * a.k_stride[2]) + chunk,
        .to = a.rotated_k + 2 * (to * COLS) + chunk,
        .unscales = MIXED && part == 0 ? a.key_scales + to : NULL,
        .live = key < length,
    };
    const uint32_t odd = a.rope.split_halves ? rotate_heads<T, COLS, true>(a, place, key, part, heads)
                                             : rotate_heads<T, COLS, false>(a, place, key, part, heads);
    if constexpr (MIXED) {
        __syncthreads(); // odd_heads is 0
        if (odd) atomicOr(&odd_heads, odd);
        __syncthreads();
        if (thread < heads) a.odd_keys[((int64_t)b * a.Hkv + head0 + thread) * tiles + tile] = odd_heads >> thread & 1;
    }
}

#define KEYS_ROW(T, TYPE, COLS)                                                                                        \
    {                                                                                                                  \
        KF_CUDA_ROTATE_KEYS, TYPE, 2, COLS, COLS, 1, 0, KF_ROTATED_KEYS, THREADS, 1, 0, 80,                            \
            (const void *)kf_rotate_keys_kernel<T, COLS>, "rotation of keys into the workspace, D=" #COLS              \
    }

#define WHOLE_KEYS_ROW(T, TYPE, COLS)                                                                                  \
    {                                                                                                                  \
        KF_CUDA_ROTATE_KEYS, TYPE, 2, COLS, COLS, 0, KF_ROTATED_HEADS, KF_ROTATED_KEYS, kf_whole_keys<COLS>::THREADS,  \
            1, 0, 80, (const void *)kf_rotate_whole_keys_kernel<T, COLS>,                                              \
            "rotation of whole keys into the workspace, D=" #COLS                                                      \
    }

extern "C" const kf_cuda_attention_kernel kf_cuda_rotate_keys[] = {
    WHOLE_KEYS_ROW(__nv_bfloat16, KF_BF16_TYPE, 64),
    WHOLE_KEYS_ROW(__nv_bfloat16, KF_BF16_TYPE, 128),
    WHOLE_KEYS_ROW(__half, KF_F16, 64),
    WHOLE_KEYS_ROW(__half, KF_F16, 128),
    WHOLE_KEYS_ROW(__half, KF_F16, 256),
    KEYS_ROW(__nv_bfloat16, KF_BF16_TYPE, 64),
    KEYS_ROW(__nv_bfloat16, KF_BF16_TYPE, 128),
    KEYS_ROW(__half, KF_F16, 64),
    KEYS_ROW(__half, KF_F16, 128),
    KEYS_ROW(__half, KF_F16, 256),
    {},
};
