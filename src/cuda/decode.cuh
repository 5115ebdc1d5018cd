// SPDX-License-Identifier: Apache-2.0
//
// Attention for few queries (FlashDecoding): up to 16 rows of a list, the queries of all heads that share a KV head, against
// a range of keys. The time is that of reading K and V once.
//
//     block    one split of the keys of one list; WARPS warps, all with the same 16 rows of q in registers
//     warp     takes every WARPS-th tile of 16 keys of the split through a ring of STAGES tiles of its own in shared memory:
//              no barrier in the loop, and STAGES - 1 tiles of k and v always on their way
//     end      the warps' states are merged in shared memory. Where there is one split, the output leaves the block; where the
//              splits of a list are a cluster (Hopper), each block merges a share of the outputs from all blocks' shared
//              memory; else one state leaves the block for the merge kernel
//
// Bytes: 2 (D + Dv) a key. On their way in one block: WARPS (STAGES - 1) 16 times that; at D = 128 with 4 warps and 4
// stages 96 KB, where 4.3 TB/s over 132 multiprocessors at a microsecond ask for 33.
#ifndef KF_CUDA_DECODE_CUH
#define KF_CUDA_DECODE_CUH

#include "cuda/attention_rope.cuh"
#include "cuda/decode_end.cuh"

template <class T_, int D_, int DV_, int WARPS_, int STAGES_, int BLOCKS_, bool GENERAL_> struct kf_decode {
    using T = T_;
    static constexpr int D = D_, DV = DV_, WARPS = WARPS_, STAGES = STAGES_, BLOCKS = BLOCKS_;
    static constexpr bool GENERAL = GENERAL_;
    static constexpr int ROWS = 16, KEYS = 16, THREADS = WARPS * 32;
    // q's fragments stay in registers where these suffice, else they are loaded for every tile.
    static constexpr bool Q_STAYS = D <= 128;
    static constexpr int Q_FRAGMENTS = Q_STAYS ? D / 16 : 1;
    static constexpr int K_BYTES = KEYS * D * 2, V_BYTES = KEYS * DV * 2, STAGE_BYTES = K_BYTES + V_BYTES;
    static constexpr int RING_BYTES = STAGES * STAGE_BYTES, Q_BYTES = ROWS * D * 2, O_BYTES = ROWS * DV * 4;
    static constexpr int ROW_BYTES = ROWS * 8 + 16 + (WARPS + 1) * ROWS * 8;
    static constexpr int SHARED = Q_BYTES + WARPS * RING_BYTES + ROW_BYTES;
    using ending = kf_decode_end<DV, ROWS, WARPS, RING_BYTES>;

    struct state {
        float o[DV / 8][4], origin[2], d[2];
    };

    // A tile of keys or values that are all there, by one warp.
    template <int COLS>
    static __device__ __forceinline__ void load_whole(uint32_t to, const char *base, int64_t stride, int32_t first,
                                                      int32_t width, bool aligned, int lane) {
        constexpr int CHUNKS = COLS / KF_CHUNK, STEP = 32 / CHUNKS;
        if (width != COLS || (GENERAL && !aligned)) {
            kf_load_whole_tile<KEYS, COLS, 32, GENERAL>(to, base, stride, first, width, aligned, lane);
            return;
        }
        const int row = lane / CHUNKS, chunk = lane % CHUNKS;
        const char *from = base + 2 * ((int64_t)(first + row) * stride) + chunk * 16;
#pragma unroll
        for (int i = 0; i < KEYS / STEP; i++) {
            kf_copy16_once(to + kf_swizzle<COLS>(row + i * STEP, chunk), from);
            from += 2 * STEP * stride;
        }
    }

    static __device__ __forceinline__ void rescale(state &x, const float (&most)[2], float c) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float before = x.origin[half], top = kf_quad_max(most[half]) * c;
            if (top > before) x.origin[half] = top;
            const float factor = kf_power<GENERAL>(before - x.origin[half]);
            x.d[half] *= factor;
#pragma unroll
            for (int n = 0; n < DV / 8; n++) x.o[n][2 * half] *= factor, x.o[n][2 * half + 1] *= factor;
        }
    }

    // One tile of 16 keys, from `first` on, in the ring at k.
    static __device__ __forceinline__ void tile(const kf_cuda_attention &a, const kf_block &w, state &x,
                                                const uint32_t (&q)[Q_FRAGMENTS][4], uint32_t q_shared, uint32_t k,
                                                int32_t first, const int2 *keys, const kf_logit_row (&views)[2],
                                                float c, int lane) {
        const int kr = (lane >> 4) * 8 + (lane & 7), kc = lane >> 3 & 1, vr = lane & 15, vc = lane >> 4;
        const uint32_t v = k + K_BYTES;
        float s[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}}, more[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
#pragma unroll
        for (int kk = 0; kk < D / 16; kk++) { // two chains of sums a block, for the product's latency
            uint32_t b[4], fresh[4];
            if (!Q_STAYS) kf_load_matrix(fresh, q_shared + kf_swizzle<D>(lane & 15, 2 * kk + (lane >> 4)));
            if (Q_STAYS)
#pragma unroll
                for (int i = 0; i < 4; i++) fresh[i] = q[kk % Q_FRAGMENTS][i];
            kf_load_matrix(b, k + kf_swizzle<D>(kr, 2 * kk + kc));
            kf_mma<T>(kk % 2 ? more[0] : s[0], fresh, b[0], b[1]);
            kf_mma<T>(kk % 2 ? more[1] : s[1], fresh, b[2], b[3]);
        }
        float most[2];
        uint32_t seen = 0;
        const bool whole = first >= w.full_lo && first >= w.lo && first + KEYS <= w.full_hi && first + KEYS <= w.hi;
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[n][e] += more[n][e];
        if (GENERAL || !whole) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int2 mine = keys[8 * half + lane / 4];
#pragma unroll
                for (int n = 0; n < 2; n++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        const int32_t j = first + 8 * n + 2 * (lane & 3) + e;
                        float &y = s[n][2 * half + e];
                        // A split ends where the next one begins; the tile may reach past it only at the end of all keys.
                        const bool inside = j >= mine.x && j < mine.y;
                        y = !inside ? -INFINITY : GENERAL ? kf_logit(a, views[half], j, y) : y;
                        if (y != -INFINITY) seen |= 1u << (2 * n + e);
                    }
            }
            if (GENERAL) {
                seen |= __shfl_xor_sync(0xffffffffu, seen, 4);
                seen |= __shfl_xor_sync(0xffffffffu, seen, 8);
                seen |= __shfl_xor_sync(0xffffffffu, seen, 16);
            }
        }
        bool passed = false;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            most[half] = fmaxf(fmaxf(s[0][2 * half], s[0][2 * half + 1]), fmaxf(s[1][2 * half], s[1][2 * half + 1]));
            passed |= kf_exponent<GENERAL>(most[half], c, x.origin[half]) > KF_SLACK;
        }
        if (__any_sync(0xffffffffu, passed)) rescale(x, most, c);
        uint32_t p[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int n = i / 2, half = i % 2;
            const float p0 = kf_probability<GENERAL>(s[n][2 * half], c, x.origin[half]);
            const float p1 = kf_probability<GENERAL>(s[n][2 * half + 1], c, x.origin[half]);
            x.d[half] += p0 + p1;
            p[i] = kf_pack<T>(p0, p1);
        }
        uint32_t keep[2];
#pragma unroll
        for (int i = 0; i < 2; i++) keep[i] = (seen >> 2 * i & 1 ? 0xffffu : 0) | (seen >> 2 * i & 2 ? 0xffff0000u : 0);
#pragma unroll
        for (int n = 0; n < DV / 16; n++) {
            uint32_t b[4];
            kf_load_matrix_transposed(b, v + kf_swizzle<DV>(vr, 2 * n + vc));
            if (GENERAL) b[0] &= keep[0], b[1] &= keep[1], b[2] &= keep[0], b[3] &= keep[1];
            kf_mma<T>(x.o[2 * n], p, b[0], b[1]);
            kf_mma<T>(x.o[2 * n + 1], p, b[2], b[3]);
        }
    }

    static __device__ __forceinline__ void run(const kf_cuda_attention &a) {
        extern __shared__ __align__(128) char memory[];
        char *const rings = memory + Q_BYTES;
        int2 *keys = reinterpret_cast<int2 *>(rings + WARPS * RING_BYTES);
        int *ends = reinterpret_cast<int *>(keys + ROWS);
        float2 *states = reinterpret_cast<float2 *>(ends + 4);
        const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
        const uint32_t ring = kf_shared(rings + warp * RING_BYTES);
        // The splits of a list are neighbours, so that they can be a cluster.
        const uint32_t list = a.splits == 1 ? blockIdx.x : blockIdx.x / a.splits;
        kf_wait_for_previous();
        kf_block w = kf_block_find(a, (blockIdx.x - list * a.splits) * a.lists + list, ROWS);
        kf_block_range<THREADS>(a, w, ends);
        const char *const k_base = kf_keys_at(a, w), *const v_base = kf_values_at(a, w);
        const int32_t tile0 = w.lo / KEYS + warp, tiles = w.hi > w.lo ? (w.hi + KEYS - 1) / KEYS : 0;
        auto load = [&](int32_t t, int stage) {
            const uint32_t to = ring + stage * STAGE_BYTES;
            const int32_t first = t * KEYS;
            if (first >= w.lo && first + KEYS <= w.hi) {
                load_whole<D>(to, k_base, a.k_stride[2], first, a.D, a.aligned, lane);
                load_whole<DV>(to + K_BYTES, v_base, a.v_stride[2], first, a.Dv, a.aligned, lane);
            } else if (t < tiles) {
                kf_load_tile<KEYS, D, 32, GENERAL>(to, k_base, a.k_stride[2], first, w.lo, w.hi, a.D, a.aligned, lane);
                kf_load_tile<KEYS, DV, 32, GENERAL>(to + K_BYTES, v_base, a.v_stride[2], first, w.lo, w.hi, a.Dv,
                                                    a.aligned, lane);
            }
        };
        // Groups are counted, so an empty one is committed too. q comes with the first tile, after it: what takes long to
        // arrive is asked for first.
        load(tile0, 0);
        kf_load_queries<ROWS, D, THREADS, GENERAL>(kf_shared(memory), a, w, thread);
        kf_copy_commit();
#pragma unroll
        for (int stage = 1; stage < STAGES - 1; stage++) {
            load(tile0 + stage * WARPS, stage);
            kf_copy_commit();
        }
        kf_launch_dependents();
        for (int row = thread; row < ROWS; row += THREADS) keys[row] = kf_block_row_keys(a, w, row);
        kf_copy_wait<STAGES - 2>();
        __syncthreads(); // q and keys are there
        if (a.rope.q) {
            for (int row = warp; row < w.rows; row += WARPS)
                kf_rotate_queries<1, true>(a, w, kf_rope_tile<T, D>{memory}, row, lane);
            __syncthreads();
        }
        uint32_t q[Q_FRAGMENTS][4];
#pragma unroll
        for (int kk = 0; kk < Q_FRAGMENTS; kk++)
            kf_load_matrix(q[kk], kf_shared(memory) + kf_swizzle<D>(lane & 15, 2 * kk + (lane >> 4)));
        state x;
#pragma unroll
        for (int half = 0; half < 2; half++) x.origin[half] = KF_NO_ORIGIN, x.d[half] = 0.0f;
#pragma unroll
        for (int n = 0; n < DV / 8; n++) x.o[n][0] = x.o[n][1] = x.o[n][2] = x.o[n][3] = 0.0f;
        kf_logit_row views[2] = {};
        if (GENERAL) views[0] = kf_logit_row_find(a, w, lane / 4), views[1] = kf_logit_row_find(a, w, 8 + lane / 4);
        kf_rope_walk<(D + 63) / 64> walk;
        if (GENERAL && a.rope.k) walk.begin(a.rope, (int64_t)tile0 * KEYS, WARPS * KEYS, lane);
        const float c = GENERAL ? 1.0f : a.scale * KF_LOG2E;
        int stage = 0;
#pragma unroll 1
        for (int32_t t = tile0; t < tiles; t += WARPS) {
            kf_copy_wait<STAGES - 2>();
            __syncwarp(); // the other lanes' copies are seen, and none of them still reads the place that is filled next
            const int ahead = stage == 0 ? STAGES - 1 : stage - 1;
            load(t + (STAGES - 1) * WARPS, ahead);
            kf_copy_commit();
            if (GENERAL && a.rope.k) {
                char *const place = rings + warp * RING_BYTES + stage * STAGE_BYTES;
                walk.template next<KEYS>(a.rope, kf_rope_tile<T, D>{place}, lane);
                __syncwarp();
            }
            tile(a, w, x, q, kf_shared(memory), ring + stage * STAGE_BYTES, t * KEYS, keys, views, c, lane);
            stage = stage + 1 == STAGES ? 0 : stage + 1;
        }
        kf_copy_wait<0>();
        __syncwarp();
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = 8 * half + lane / 4;
            const float d = kf_quad_sum(x.d[half]), m = kf_maximum(x.origin[half], d);
            if ((lane & 3) == 0) states[warp * ROWS + row] = make_float2(m, d);
            float *to = reinterpret_cast<float *>(rings + warp * RING_BYTES) + row * DV + 2 * (lane & 3);
#pragma unroll
            for (int n = 0; n < DV / 8; n++)
                *reinterpret_cast<float2 *>(to + 8 * n) = make_float2(x.o[n][2 * half], x.o[n][2 * half + 1]);
        }
        __syncthreads();
        ending::finish(a, w, states, rings, thread);
    }
};

template <class P>
__global__ void __launch_bounds__(P::THREADS, P::BLOCKS) kf_decode_kernel(const __grid_constant__ kf_cuda_attention a) {
    P::run(a);
}

#define KF_DECODE_ROW(T, TYPE, D, DV, WARPS, STAGES, BLOCKS, GENERAL)                                                  \
    {                                                                                                                  \
        KF_CUDA_DECODE, TYPE, 0, D, DV, GENERAL, 16, 16, WARPS * 32, BLOCKS,                                           \
            kf_decode<T, D, DV, WARPS, STAGES, BLOCKS, GENERAL>::SHARED, 80,                                           \
            (const void *)kf_decode_kernel<kf_decode<T, D, DV, WARPS, STAGES, BLOCKS, GENERAL>>,                       \
            "decode, " #WARPS " warps of 16 keys, D=" #D " Dv=" #DV ", mma.sync m16n8k16"                              \
    }

#define KF_DECODE_ROWS(D, DV, WARPS, STAGES, BLOCKS)                                                                   \
    KF_DECODE_ROW(__nv_bfloat16, KF_BF16_TYPE, D, DV, WARPS, STAGES, BLOCKS, false),                                   \
        KF_DECODE_ROW(__half, KF_F16, D, DV, WARPS, STAGES, BLOCKS, false),                                            \
        KF_DECODE_ROW(__nv_bfloat16, KF_BF16_TYPE, D, DV, WARPS, STAGES, BLOCKS, true),                                \
        KF_DECODE_ROW(__half, KF_F16, D, DV, WARPS, STAGES, BLOCKS, true)

#endif
