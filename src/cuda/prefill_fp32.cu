// SPDX-License-Identifier: Apache-2.0
//
// Attention for many queries in fp32: o = softmax(q k^T scale) v by multiply-adds, for fp32 tensors and for mixes of types.
// (Tensor cores round fp32 operands to 11 bits: an error a thousand times the one that is allowed here.)
//
//     block    WARPS warps of 4 ROWS queries; a warp's lanes are 4 x 8: lane 8 y + x has rows y + 4 m (m < ROWS), of the scores
//              keys x + 8 n, of the output columns 4 x + 32 n .. + 3
//     shared   q, one tile of KEYS keys, one of values, and p on its way from the scores' owners to the output's; rows padded so
//              that eight neighbouring ones lie in different banks
//     loop     while scores are made of tile t, its values are on their way; while p v is added, the keys of t - 1 are
//
// Work: 4 D multiply-adds a pair of query and key. Loads from shared memory for them: for each thread 16 bytes serve ROWS or
// KEYS / 8 of four multiply-adds each: with ROWS = 8 a warp reads 0.05 to 0.1 vectors for each multiply-add, a third of what
// shared memory yields.
#include "cuda/attention_fp32.cuh"

template <int D_, int ROWS_, int KEYS_, int WARPS_, int BLOCKS_> struct kf_prefill_fp32 {
    static constexpr int D = D_, DV = D_, ROWS = ROWS_, KEYS = KEYS_, WARPS = WARPS_, BLOCKS = BLOCKS_;
    static constexpr int THREADS = WARPS * 32, WARP_ROWS = 4 * ROWS, TILE = WARPS * WARP_ROWS;
    static constexpr int SCORES = KEYS / 8, COLUMNS = DV / 32; // of a thread: keys; vectors of four columns
    static constexpr int Q_STRIDE = D + 4, K_STRIDE = D + 4, V_STRIDE = DV, P_STRIDE = KEYS + 8;
    static constexpr int Q_FLOATS = TILE * Q_STRIDE, K_FLOATS = KEYS * K_STRIDE, V_FLOATS = KEYS * V_STRIDE;
    static constexpr int SHARED = (Q_FLOATS + K_FLOATS + V_FLOATS + TILE * P_STRIDE) * 4 + TILE * 8 + 16;
    static_assert(KEYS % 8 == 0 && KEYS <= 64 && D % 32 == 0 && ROWS <= 8, "");

    struct state {
        float o[ROWS][COLUMNS][4], m[ROWS], d[ROWS]; // d: of this thread's keys
    };
    using scores = float[ROWS][SCORES];

    // Keys first .. of k or v to a tile of floats.
    template <int STRIDE>
    static __device__ __forceinline__ void load(float *to, const kf_cuda_attention &a, const kf_block &w,
                                                const char *base, int64_t stride, int32_t first, int width) {
        const int size = kf_size_of(a.kv_type), thread = threadIdx.x;
        if (a.kv_type == KF_F32 && a.aligned) {
            constexpr int CHUNKS = D / 4;
#pragma unroll 4
            for (int i = thread; i < KEYS * CHUNKS; i += THREADS) {
                const int row = i / CHUNKS, chunk = i % CHUNKS, j = first + row;
                const bool there = j >= w.lo && j < w.hi && 4 * chunk < width;
                const char *from = base + 4 * (j * stride + 4 * chunk);
                kf_copy16(kf_shared(to + row * STRIDE + 4 * chunk), there ? from : base, there ? 16 : 0);
            }
            return;
        }
        constexpr int CHUNKS = D / KF_CHUNK;
#pragma unroll 1
        for (int i = thread; i < KEYS * CHUNKS; i += THREADS) {
            const int row = i / CHUNKS, chunk = i % CHUNKS, j = first + row;
            float x[KF_CHUNK] = {};
            if (j >= w.lo && j < w.hi && KF_CHUNK * chunk < width)
                kf_load8(x, base + size * (j * stride + KF_CHUNK * chunk), a.kv_type, a.aligned);
            kf_store8(to + row * STRIDE + KF_CHUNK * chunk, x);
        }
    }

    // q and k: this thread's first rows.
    static __device__ __forceinline__ void products(const float *q, const float *k, scores &s) {
#pragma unroll
        for (int m = 0; m < ROWS; m++)
#pragma unroll
            for (int n = 0; n < SCORES; n++) s[m][n] = 0.0f;
#pragma unroll 1
        for (int c = 0; c < D; c += 4) {
            float4 x[ROWS];
#pragma unroll
            for (int m = 0; m < ROWS; m++) x[m] = *reinterpret_cast<const float4 *>(q + 4 * m * Q_STRIDE + c);
#pragma unroll
            for (int n = 0; n < SCORES; n++) {
                const float4 y = *reinterpret_cast<const float4 *>(k + 8 * n * K_STRIDE + c);
#pragma unroll
                for (int m = 0; m < ROWS; m++) {
                    s[m][n] = fmaf(x[m].x, y.x, s[m][n]), s[m][n] = fmaf(x[m].y, y.y, s[m][n]);
                    s[m][n] = fmaf(x[m].z, y.z, s[m][n]), s[m][n] = fmaf(x[m].w, y.w, s[m][n]);
                }
            }
        }
    }

    // Products to logits, -inf outside of the rows' intervals. Returns which keys of the tile some row of the warp sees.
    static __device__ __forceinline__ uint64_t logits(const kf_cuda_attention &a, const kf_block &w, scores &s,
                                                      const int2 *keys, int32_t first, int row0, int lane) {
        const bool general = kf_is_general(a);
        uint32_t mine = 0;
#pragma unroll
        for (int m = 0; m < ROWS; m++) {
            const int row = row0 + lane / 8 + 4 * m;
            const int2 see = keys[row];
            kf_logit_row view = {};
            if (general) view = kf_logit_row_find(a, w, row);
#pragma unroll
            for (int n = 0; n < SCORES; n++) {
                const int32_t j = first + lane % 8 + 8 * n;
                float &x = s[m][n];
                x = j < see.x || j >= see.y ? -INFINITY : general ? kf_logit(a, view, j, x) : x * a.scale;
                if (x != -INFINITY) mine |= 1u << n;
            }
        }
        uint64_t seen = 0;
#pragma unroll
        for (int n = 0; n < SCORES; n++) {
            uint32_t some = __ballot_sync(0xffffffffu, mine >> n & 1);
            some |= some >> 16, some |= some >> 8; // over the four rows of lanes
            seen |= (uint64_t)(some & 0xffu) << 8 * n;
        }
        return seen;
    }

    // The rows' maxima grow; p = e^(s - m) takes the scores' place; d and o follow.
    static __device__ __forceinline__ void probabilities(state &x, scores &s) {
        float factor[ROWS];
        bool changed = false;
#pragma unroll
        for (int m = 0; m < ROWS; m++) {
            float top = x.m[m];
#pragma unroll
            for (int n = 0; n < SCORES; n++) top = fmaxf(top, s[m][n]);
#pragma unroll
            for (int step = 1; step < 8; step *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
            const float origin = kf_part_origin(top);
            factor[m] = kf_exp2_fast((x.m[m] - origin) * KF_LOG2E);
            changed |= factor[m] != 1.0f;
            x.m[m] = top;
            float sum = 0.0f;
#pragma unroll
            for (int n = 0; n < SCORES; n++) {
                s[m][n] = kf_exp2_fast((s[m][n] - origin) * KF_LOG2E);
                sum += s[m][n];
            }
            x.d[m] = fmaf(x.d[m], factor[m], sum);
        }
        if (!__any_sync(0xffffffffu, changed)) return;
#pragma unroll
        for (int m = 0; m < ROWS; m++)
#pragma unroll
            for (int n = 0; n < COLUMNS; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) x.o[m][n][e] *= factor[m];
    }

    // o += p v. p: this thread's first row; v: its first column. SPARSE: values of keys outside of `seen` count as zero.
    template <bool SPARSE>
    static __device__ __forceinline__ void fold(state &x, const float *p, const float *v, uint64_t seen) {
#pragma unroll 1
        for (int j = 0; j < KEYS; j += 4) {
            float4 weight[ROWS];
#pragma unroll
            for (int m = 0; m < ROWS; m++) weight[m] = *reinterpret_cast<const float4 *>(p + 4 * m * P_STRIDE + j);
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int n = 0; n < COLUMNS; n++) {
                    float4 y = *reinterpret_cast<const float4 *>(v + (j + i) * V_STRIDE + 32 * n);
                    if (SPARSE && !(seen >> (j + i) & 1)) y = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
                    for (int m = 0; m < ROWS; m++) {
                        const float u = i == 0   ? weight[m].x
                                        : i == 1 ? weight[m].y
                                        : i == 2 ? weight[m].z
                                                 : weight[m].w;
                        x.o[m][n][0] = fmaf(u, y.x, x.o[m][n][0]), x.o[m][n][1] = fmaf(u, y.y, x.o[m][n][1]);
                        x.o[m][n][2] = fmaf(u, y.z, x.o[m][n][2]), x.o[m][n][3] = fmaf(u, y.w, x.o[m][n][3]);
                    }
                }
            }
        }
    }

    // Of the eight lanes that share rows, lane m finishes row m: where o goes (in elements), and its factor.
    static __device__ __forceinline__ int64_t finish_row(const kf_cuda_attention &a, const kf_block &w, int row,
                                                         float m, float d, float *factor) {
        *factor = 1.0f;
        if (row >= w.rows) return -1;
        const int32_t r = w.row0 + row;
        const int2 at = kf_block_row(a, r);
        const int32_t query = at.x, head = w.head0 + at.y;
        if (a.splits > 1) {
            const int64_t place = ((int64_t)w.list * a.rows + r) * a.splits + w.split;
            reinterpret_cast<float2 *>(a.part_state)[place] = make_float2(m, d);
            return place * a.Dv;
        }
        const kf_row_end end = kf_row_finish(a, head, m, d);
        if (a.lse) a.lse[w.b * a.lse_stride[0] + head * a.lse_stride[1] + query * a.lse_stride[2]] = end.lse;
        *factor = end.factor;
        return w.b * a.o_stride[0] + head * a.o_stride[1] + query * a.o_stride[2];
    }

    static __device__ __forceinline__ void finish(const kf_cuda_attention &a, const kf_block &w, const state &x,
                                                  int row0, int lane) {
        const int lane_row = lane % 8, lane_rows = lane & 24;
        float my_m = -INFINITY, my_d = 0.0f, my_factor = 0.0f;
#pragma unroll
        for (int m = 0; m < ROWS; m++) {
            float d = x.d[m];
#pragma unroll
            for (int step = 1; step < 8; step *= 2) d += __shfl_xor_sync(0xffffffffu, d, step);
            if (lane_row == m) my_m = kf_maximum_fp32(x.m[m]), my_d = d;
        }
        int64_t my_place = -1;
        if (lane_row < ROWS) my_place = finish_row(a, w, row0 + lane / 8 + 4 * lane_row, my_m, my_d, &my_factor);
        char *const to = a.splits > 1 ? reinterpret_cast<char *>(a.part_o) : a.o;
        const int type = a.splits > 1 ? (int)KF_F32 : a.o_type, size = kf_size_of(type);
#pragma unroll
        for (int m = 0; m < ROWS; m++) {
            const int64_t place = __shfl_sync(0xffffffffu, my_place, lane_rows + m);
            const float factor = __shfl_sync(0xffffffffu, my_factor, lane_rows + m);
            if (place < 0) continue;
#pragma unroll
            for (int n = 0; n < COLUMNS; n++) {
                const int column = 4 * lane_row + 32 * n;
                if (column >= a.Dv) continue;
                char *const at = to + size * (place + column);
                float y[4];
#pragma unroll
                for (int e = 0; e < 4; e++) y[e] = x.o[m][n][e] * factor;
                if (type == KF_F32 && (a.aligned || a.splits > 1))
                    *reinterpret_cast<float4 *>(at) = make_float4(y[0], y[1], y[2], y[3]);
                else
#pragma unroll
                    for (int e = 0; e < 4; e++) kf_store_element(at + size * e, type, y[e]);
            }
        }
    }

    static __device__ __forceinline__ void run(const kf_cuda_attention &a) {
        extern __shared__ __align__(128) float numbers[];
        float *const q = numbers, *const k = q + Q_FLOATS, *const v = k + K_FLOATS, *const p = v + V_FLOATS;
        int2 *const keys = reinterpret_cast<int2 *>(p + TILE * P_STRIDE);
        int *const ends = reinterpret_cast<int *>(keys + TILE);
        const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5, row0 = warp * WARP_ROWS;
        const int size = kf_size_of(a.kv_type);
        kf_wait_for_previous();
        kf_block w = kf_block_find(a, blockIdx.x, TILE);
        kf_block_range<THREADS>(a, w, ends);
        const char *const k_base = a.k + size * (w.b * a.k_stride[0] + w.kv_head * a.k_stride[1]);
        const char *const v_base = a.v + size * (w.b * a.v_stride[0] + w.kv_head * a.v_stride[1]);
        const int32_t t0 = w.lo / KEYS, t1 = w.hi > w.lo ? (w.hi + KEYS - 1) / KEYS : t0;
        const int32_t f0 = (w.full_lo + KEYS - 1) / KEYS, f1 = w.full_hi / KEYS;
        if (t1 > t0) load<K_STRIDE>(k, a, w, k_base, a.k_stride[2], (t1 - 1) * KEYS, a.D);
        kf_copy_commit();
        kf_launch_dependents();
        kf_load_queries_fp32<TILE, D, Q_STRIDE, THREADS>(q, a, w, thread);
        for (int row = thread; row < TILE; row += THREADS) keys[row] = kf_block_row_keys(a, w, row);
        if (a.rope.q) {
            __syncthreads();
            kf_rotate_queries<1>(a, w, kf_rope_tile_fp32<Q_STRIDE>{q}, row0, row0 + WARP_ROWS, lane);
        }
        state x;
#pragma unroll
        for (int m = 0; m < ROWS; m++) {
            x.m[m] = -INFINITY, x.d[m] = 0.0f;
#pragma unroll
            for (int n = 0; n < COLUMNS; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) x.o[m][n][e] = 0.0f;
        }
        const float *const my_q = q + (row0 + lane / 8) * Q_STRIDE, *const my_k = k + lane % 8 * K_STRIDE;
        float *const my_p = p + (row0 + lane / 8) * P_STRIDE;
        const bool plain = !kf_is_general(a), sparse = kf_is_sparse(a);
#pragma unroll 1
        for (int32_t t = t1 - 1; t >= t0; t--) {
            scores s;
            uint64_t seen = ~(uint64_t)0;
            kf_copy_wait<0>();
            __syncthreads(); // tile t of k is there, and no warp reads v of tile t + 1 any more
            load<V_STRIDE>(v, a, w, v_base, a.v_stride[2], t * KEYS, a.Dv);
            kf_copy_commit();
            if (a.rope.k) {
                for (int row = warp; row < KEYS; row += WARPS)
                    kf_rotate_keys<1>(a, kf_rope_tile_fp32<K_STRIDE>{k}, t * KEYS, row, row + 1, lane);
                __syncthreads();
            }
            products(my_q, my_k, s);
            __syncthreads(); // k is free
            if (t > t0) load<K_STRIDE>(k, a, w, k_base, a.k_stride[2], (t - 1) * KEYS, a.D);
            kf_copy_commit();
            if (plain && t < f1 && t >= f0) {
#pragma unroll
                for (int m = 0; m < ROWS; m++)
#pragma unroll
                    for (int n = 0; n < SCORES; n++) s[m][n] *= a.scale;
            } else {
                seen = logits(a, w, s, keys, t * KEYS, row0, lane);
            }
            probabilities(x, s);
#pragma unroll
            for (int m = 0; m < ROWS; m++)
#pragma unroll
                for (int n = 0; n < SCORES; n++) my_p[4 * m * P_STRIDE + lane % 8 + 8 * n] = s[m][n];
            kf_copy_wait<1>(); // v, and not yet the next tile of k
            __syncthreads();
            if (sparse)
                fold<true>(x, my_p, v + 4 * (lane % 8), seen);
            else
                fold<false>(x, my_p, v + 4 * (lane % 8), seen);
        }
        kf_copy_wait<0>();
        finish(a, w, x, row0, lane);
    }
};

template <class P>
__global__ void __launch_bounds__(P::THREADS, P::BLOCKS)
    kf_prefill_fp32_kernel(const __grid_constant__ kf_cuda_attention a) {
    P::run(a);
}

#define KF_PREFILL_FP32_ROW(D, ROWS, KEYS, WARPS, BLOCKS)                                                              \
    {                                                                                                                  \
        KF_CUDA_PREFILL, KF_F32, 0, D, D, 0, kf_prefill_fp32<D, ROWS, KEYS, WARPS, BLOCKS>::TILE, KEYS, (WARPS)*32,    \
            BLOCKS, kf_prefill_fp32<D, ROWS, KEYS, WARPS, BLOCKS>::SHARED, 80,                                         \
            (const void *)kf_prefill_fp32_kernel<kf_prefill_fp32<D, ROWS, KEYS, WARPS, BLOCKS>>,                       \
            "prefill, fp32 multiply-adds, " #KEYS " keys, D=" #D                                                       \
    }

// D = 128: 96 queries are what fits 99 KB of shared memory.
extern "C" const kf_cuda_attention_kernel kf_cuda_prefill_fp32[] = {
    KF_PREFILL_FP32_ROW(64, 8, 32, 4, 3),
    KF_PREFILL_FP32_ROW(128, 8, 32, 3, 2),
    KF_PREFILL_FP32_ROW(256, 4, 16, 3, 2),
    {},
};
