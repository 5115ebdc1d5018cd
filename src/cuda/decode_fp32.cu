// SPDX-License-Identifier: Apache-2.0
//
// Attention for few queries in fp32, or of fp32 queries (any type, in fact) with 16-bit keys and values: up to 16 rows of a list
// against a range of keys, by multiply-adds. The frame is that of decode.cuh: a warp takes every WARPS-th tile of KEYS keys
// through a ring of its own in shared memory, in the type that it has in memory; the states meet at the end (decode_end.cuh).
//
//     scores    lane: one key of the tile, R of the rows: 16 bytes of a key serve R multiply-adds an element
//     p         through shared memory, [KEYS][ROWS]
//     output    lane: D / 32 columns of all rows: 16 bytes of a value serve ROWS multiply-adds an element
//
// Bytes: B (D + Dv) a key, B bytes an element. Multiply-adds: 2 ROWS D a key, whether rows are there or not: with 16 rows, D = 128 and 16-bit
// keys half of what a multiprocessor does while they arrive, so there is an instance for 4 rows.
//
// A ring's rows have chunks of 16 bytes, chunk c of row r at c ^ (r mod 8): lanes that read the same chunk of eight rows, or eight
// chunks of a row, meet no bank twice.
#include "cuda/attention_fp32.cuh"
#include "cuda/decode_end.cuh"

enum { BLOCK_SHARED = 99 << 10 }; // bytes: what consumer Ampere and Ada allow a block

// A tile in the ring for the rotation of its keys.
template <int BYTES, int D> struct ring_tile {
    char *base;
    bool is_half;
    __device__ __forceinline__ char *at(int row, int column) const {
        const int chunk = column * BYTES / 16;
        return base + row * (D * BYTES) + (chunk ^ (row & 7)) * 16 + column * BYTES % 16;
    }
    __device__ __forceinline__ float load(int row, int column) const {
        return kf_load_float(at(row, column), BYTES == 4 ? (int)KF_F32 : is_half ? (int)KF_F16 : (int)KF_BF16_TYPE, 0);
    }
    __device__ __forceinline__ void store(int row, int column, float x) const {
        kf_store_element(at(row, column), BYTES == 4 ? (int)KF_F32 : is_half ? (int)KF_F16 : (int)KF_BF16_TYPE, x);
    }
};

template <int BYTES_, int D_, int ROWS_, int WARPS_> struct kf_decode_fp32 {
    static constexpr int BYTES = BYTES_, D = D_, DV = D_, ROWS = ROWS_, WARPS = WARPS_, THREADS = WARPS * 32;
    static constexpr int KEYS = BYTES == 2 ? 16 : 8, CHUNK = 16 / BYTES, CHUNKS = D / CHUNK;
    static constexpr int GROUPS = 32 / KEYS, R = ROWS / GROUPS; // lanes that share a key; rows of a lane
    static constexpr int ROW_BYTES = D * BYTES, TILE_BYTES = KEYS * ROW_BYTES, STAGE_BYTES = 2 * TILE_BYTES;
    static constexpr int COLUMNS = D / 32,
                         VECTOR = COLUMNS < CHUNK ? COLUMNS : CHUNK;      // of a lane's output; of one load
    static constexpr int Q_STRIDE = D + 4, P_FLOATS = KEYS * ROWS + ROWS; // p, then factors
    static constexpr int FIXED_BYTES =
        (ROWS * Q_STRIDE + WARPS * P_FLOATS) * 4 + ROWS * 8 + 16 + (WARPS + 1) * ROWS * 8;
    static constexpr int FIT = (BLOCK_SHARED - FIXED_BYTES) / (WARPS * STAGE_BYTES), STAGES = FIT < 4 ? FIT : 4;
    static constexpr int RING_BYTES = STAGES * STAGE_BYTES, SHARED = FIXED_BYTES + WARPS * RING_BYTES;
    static_assert(STAGES >= 2 && R >= 1, "");
    using ending = kf_decode_end<DV, ROWS, WARPS, RING_BYTES>;

    struct state {
        float o[ROWS][COLUMNS], m[R], d[R];
    };

    // Column e of this lane's: vectors of VECTOR columns, lanes side by side.
    static __device__ __forceinline__ int column(int e, int lane) {
        return e / VECTOR * (32 * VECTOR) + lane * VECTOR + e % VECTOR;
    }

    static __device__ __forceinline__ void load_part(char *to, const kf_cuda_attention &a, const kf_block &w,
                                                     const char *base, int64_t stride, int32_t first, int width,
                                                     int lane) {
        if (a.aligned && width == D && first >= w.lo && first + KEYS <= w.hi) {
            constexpr int STEP = 32 / CHUNKS > 0 ? 32 / CHUNKS : 1;
#pragma unroll
            for (int i = 0; i < KEYS * CHUNKS / 32; i++) {
                const int row = CHUNKS <= 32 ? lane / CHUNKS + i * STEP : i / (CHUNKS / 32);
                const int chunk = CHUNKS <= 32 ? lane % CHUNKS : lane + 32 * (i % (CHUNKS / 32 > 0 ? CHUNKS / 32 : 1));
                kf_copy16_once(kf_shared(to) + row * ROW_BYTES + (chunk ^ (row & 7)) * 16,
                               base + BYTES * ((int64_t)(first + row) * stride) + 16 * chunk);
            }
            return;
        }
#pragma unroll 1
        for (int i = lane; i < KEYS * CHUNKS; i += 32) {
            const int row = i / CHUNKS, chunk = i % CHUNKS, j = first + row;
            const int left = j >= w.lo && j < w.hi ? width - CHUNK * chunk : 0;
            const char *from = base + BYTES * ((int64_t)j * stride + CHUNK * chunk);
            const uint32_t place = kf_shared(to) + row * ROW_BYTES + (chunk ^ (row & 7)) * 16;
            if (a.aligned) {
                kf_copy16(place, left > 0 ? from : base, left > 0 ? 16 : 0);
            } else if (BYTES == 2) {
                kf_copy_chunk_slow(place, from, left);
            } else {
                float x[4] = {};
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (e < left) x[e] = reinterpret_cast<const float *>(from)[e];
                *reinterpret_cast<float4 *>(to + row * ROW_BYTES + (chunk ^ (row & 7)) * 16) =
                    make_float4(x[0], x[1], x[2], x[3]);
            }
        }
    }

    // COUNT neighbouring elements of a ring's row, inside one chunk.
    template <int COUNT>
    static __device__ __forceinline__ void read(float (&x)[COUNT], const char *from, bool is_half) {
        constexpr int WORDS = COUNT * BYTES / 4;
        uint32_t word[WORDS];
        if constexpr (WORDS == 4) {
            const uint4 all = *reinterpret_cast<const uint4 *>(from);
            word[0] = all.x, word[1] = all.y, word[2] = all.z, word[3] = all.w;
        } else if constexpr (WORDS == 2) {
            const uint2 all = *reinterpret_cast<const uint2 *>(from);
            word[0] = all.x, word[1] = all.y;
        } else {
            word[0] = *reinterpret_cast<const uint32_t *>(from);
        }
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            if constexpr (BYTES == 4) {
                x[i] = __uint_as_float(word[i]);
            } else {
                const float2 two = kf_widen(word[i], is_half);
                x[2 * i] = two.x, x[2 * i + 1] = two.y;
            }
        }
    }

    // s: this lane's rows and its key.
    static __device__ __forceinline__ void products(const float *q, const char *tile, int key, bool is_half,
                                                    float (&s)[R]) {
        float sum[R][4] = {}; // four chains: a multiply-add takes four cycles
#pragma unroll 4
        for (int c = 0; c < CHUNKS; c++) {
            float k[CHUNK];
            read(k, tile + key * ROW_BYTES + (c ^ (key & 7)) * 16, is_half);
#pragma unroll
            for (int r = 0; r < R; r++)
#pragma unroll
                for (int part = 0; part < CHUNK; part += 4) {
                    const float4 x = *reinterpret_cast<const float4 *>(q + r * Q_STRIDE + c * CHUNK + part);
                    sum[r][0] = fmaf(x.x, k[part], sum[r][0]), sum[r][1] = fmaf(x.y, k[part + 1], sum[r][1]);
                    sum[r][2] = fmaf(x.z, k[part + 2], sum[r][2]), sum[r][3] = fmaf(x.w, k[part + 3], sum[r][3]);
                }
        }
#pragma unroll
        for (int r = 0; r < R; r++) s[r] = (sum[r][0] + sum[r][1]) + (sum[r][2] + sum[r][3]);
    }

    // Products to logits, -inf outside of the rows' intervals. Returns which keys of the tile some row sees.
    static __device__ __forceinline__ uint32_t logits(const kf_cuda_attention &a, const kf_block &w, float (&s)[R],
                                                      const int2 *keys, int32_t j, int row0) {
        const bool general = kf_is_general(a);
        bool some = false;
#pragma unroll
        for (int r = 0; r < R; r++) {
            const int2 see = keys[row0 + r];
            const bool inside = j >= see.x && j < see.y;
            if (inside && general)
                s[r] = kf_logit<true>(a, kf_logit_row_find(a, w, row0 + r), j, s[r]);
            else
                s[r] = inside ? s[r] * a.scale : -INFINITY;
            some |= s[r] != -INFINITY;
        }
        uint32_t seen = __ballot_sync(0xffffffffu, some);
#pragma unroll
        for (int step = 16; step >= KEYS; step /= 2) seen |= seen >> step;
        return seen;
    }

    // Some score is above its row's maximum.
    static __device__ __forceinline__ void raise(state &x, const float (&s)[R], float *factors, int key, int row0) {
        __syncwarp(); // all have read what is overwritten
#pragma unroll
        for (int r = 0; r < R; r++) {
            float top = fmaxf(x.m[r], s[r]);
#pragma unroll
            for (int step = 1; step < KEYS; step *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
            const float factor = kf_exp2_fast((x.m[r] - kf_part_origin(top)) * KF_LOG2E);
            x.m[r] = top;
            x.d[r] *= factor;
            if (key == 0) factors[row0 + r] = factor;
        }
        __syncwarp();
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            const float factor = factors[row];
#pragma unroll
            for (int e = 0; e < COLUMNS; e++) x.o[row][e] *= factor;
        }
    }

    static __device__ __forceinline__ void fold(state &x, const float *p, const char *tile, uint32_t seen, bool is_half,
                                                int lane) {
#pragma unroll 4
        for (int key = 0; key < KEYS; key++) {
            float v[COLUMNS];
#pragma unroll
            for (int e = 0; e < COLUMNS; e += VECTOR) {
                const int at = column(e, lane) * BYTES;
                float part[VECTOR];
                read(part, tile + key * ROW_BYTES + (at / 16 ^ (key & 7)) * 16 + at % 16, is_half);
#pragma unroll
                for (int i = 0; i < VECTOR; i++) v[e + i] = seen >> key & 1 ? part[i] : 0.0f; // no 0 * NaN
            }
#pragma unroll
            for (int row = 0; row < ROWS; row += 4) {
                const float4 weight = *reinterpret_cast<const float4 *>(p + key * ROWS + row);
#pragma unroll
                for (int e = 0; e < COLUMNS; e++) {
                    x.o[row][e] = fmaf(weight.x, v[e], x.o[row][e]);
                    x.o[row + 1][e] = fmaf(weight.y, v[e], x.o[row + 1][e]);
                    x.o[row + 2][e] = fmaf(weight.z, v[e], x.o[row + 2][e]);
                    x.o[row + 3][e] = fmaf(weight.w, v[e], x.o[row + 3][e]);
                }
            }
        }
    }

    // A warp's state to shared memory: o to the beginning of its ring.
    static __device__ __forceinline__ void leave(const state &x, float2 *states, float *o, int row0, int key,
                                                 int lane) {
#pragma unroll
        for (int r = 0; r < R; r++) {
            float d = x.d[r];
#pragma unroll
            for (int step = 1; step < KEYS; step *= 2) d += __shfl_xor_sync(0xffffffffu, d, step);
            if (key == 0) states[row0 + r] = make_float2(x.m[r], d);
        }
#pragma unroll
        for (int row = 0; row < ROWS; row++)
#pragma unroll
            for (int e = 0; e < COLUMNS; e++) o[row * DV + column(e, lane)] = x.o[row][e];
    }

    static __device__ __forceinline__ void run(const kf_cuda_attention &a) {
        extern __shared__ __align__(128) char memory[];
        char *const rings = memory;
        float *const q = reinterpret_cast<float *>(rings + WARPS * RING_BYTES);
        float *const p_all = q + ROWS * Q_STRIDE;
        int2 *const keys = reinterpret_cast<int2 *>(p_all + WARPS * P_FLOATS);
        int *const ends = reinterpret_cast<int *>(keys + ROWS);
        float2 *const states = reinterpret_cast<float2 *>(ends + 4);
        const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
        const int key = lane % KEYS, row0 = lane / KEYS * R;
        char *const ring = rings + warp * RING_BYTES;
        float *const p = p_all + warp * P_FLOATS, *const factors = p + KEYS * ROWS;
        const bool is_half = a.kv_type == KF_F16, plain = !kf_is_general(a);
        const kf_block w = kf_decode_begin<THREADS>(a, ROWS, ends, [](const kf_block &) {});
        const char *const k_base = a.k + BYTES * (w.b * a.k_stride[0] + w.kv_head * a.k_stride[1]);
        const char *const v_base = a.v + BYTES * (w.b * a.v_stride[0] + w.kv_head * a.v_stride[1]);
        const int32_t tile0 = w.lo / KEYS + warp, tiles = w.hi > w.lo ? (w.hi + KEYS - 1) / KEYS : 0;
        auto load = [&](int32_t t, int stage) {
            if (t < tiles) {
                char *const to = ring + stage * STAGE_BYTES;
                load_part(to, a, w, k_base, a.k_stride[2], t * KEYS, a.D, lane);
                load_part(to + TILE_BYTES, a, w, v_base, a.v_stride[2], t * KEYS, a.Dv, lane);
            }
            kf_copy_commit(); // groups are counted, so an empty one is committed too
        };
#pragma unroll
        for (int stage = 0; stage < STAGES - 1; stage++) load(tile0 + stage * WARPS, stage);
        kf_load_queries_fp32<ROWS, D, Q_STRIDE, THREADS>(q, a, w, thread);
        kf_launch_dependents();
        for (int row = thread; row < ROWS; row += THREADS) keys[row] = kf_block_row_keys(a, w, row);
        __syncthreads();
        if (a.rope.q) {
            for (int row = warp; row < w.rows; row += WARPS)
                kf_rotate_queries<1, true>(a, w, kf_rope_tile_fp32<Q_STRIDE>{q}, row, lane);
            __syncthreads();
        }
        state x;
#pragma unroll
        for (int r = 0; r < R; r++) x.m[r] = -INFINITY, x.d[r] = 0.0f;
#pragma unroll
        for (int row = 0; row < ROWS; row++)
#pragma unroll
            for (int e = 0; e < COLUMNS; e++) x.o[row][e] = 0.0f;
        int stage = 0;
#pragma unroll 1
        for (int32_t t = tile0; t < tiles; t += WARPS) {
            kf_copy_wait<STAGES - 2>();
            __syncwarp(); // the other lanes' copies are seen, and none of them still reads the place that is filled next
            load(t + (STAGES - 1) * WARPS, stage == 0 ? STAGES - 1 : stage - 1);
            char *const tile = ring + stage * STAGE_BYTES;
            const int32_t first = t * KEYS;
            if (a.rope.k) {
                for (int row = 0; row < KEYS; row++)
                    kf_rotate_row(a.rope, ring_tile<BYTES, D>{tile, is_half}, row, (int64_t)first + row, lane);
                __syncwarp();
            }
            float s[R];
            products(q + row0 * Q_STRIDE, tile, key, is_half, s);
            uint32_t seen = ~0u;
            if (plain && first >= w.full_lo && first >= w.lo && first + KEYS <= w.full_hi && first + KEYS <= w.hi) {
#pragma unroll
                for (int r = 0; r < R; r++) s[r] *= a.scale;
            } else {
                seen = logits(a, w, s, keys, first + key, row0);
            }
            bool above = false;
#pragma unroll
            for (int r = 0; r < R; r++) above |= s[r] > x.m[r];
            if (__any_sync(0xffffffffu, above)) raise(x, s, factors, key, row0);
#pragma unroll
            for (int r = 0; r < R; r++) {
                const float weight = kf_exp2_fast((s[r] - kf_part_origin(x.m[r])) * KF_LOG2E);
                x.d[r] += weight;
                p[key * ROWS + row0 + r] = weight;
            }
            __syncwarp();
            fold(x, p, tile + TILE_BYTES, seen, is_half, lane);
            stage = stage + 1 == STAGES ? 0 : stage + 1;
        }
        kf_copy_wait<0>();
        __syncwarp();
        leave(x, states + warp * ROWS, reinterpret_cast<float *>(ring), row0, key, lane);
        __syncthreads();
        ending::finish(a, w, states, rings, thread);
    }
};

template <class P>
__global__ void __launch_bounds__(P::THREADS, 2) kf_decode_fp32_kernel(const __grid_constant__ kf_cuda_attention a) {
    P::run(a);
}

#define KF_DECODE_FP32_ROW(BYTES, D, ROWS, WARPS)                                                                      \
    {                                                                                                                  \
        KF_CUDA_DECODE, KF_F32, BYTES, D, D, 0, ROWS, kf_decode_fp32<BYTES, D, ROWS, WARPS>::KEYS, (WARPS)*32, 2,      \
            kf_decode_fp32<BYTES, D, ROWS, WARPS>::SHARED, 80,                                                         \
            (const void *)kf_decode_fp32_kernel<kf_decode_fp32<BYTES, D, ROWS, WARPS>>,                                \
            "decode, fp32 multiply-adds, " #ROWS " rows, keys of " #BYTES " bytes, D=" #D                              \
    }
#define KF_DECODE_FP32_ROWS(BYTES, D, WARPS)                                                                           \
    KF_DECODE_FP32_ROW(BYTES, D, 4, WARPS), KF_DECODE_FP32_ROW(BYTES, D, 16, WARPS)

extern "C" const kf_cuda_attention_kernel kf_cuda_decode_fp32[] = {
    KF_DECODE_FP32_ROWS(4, 64, 4),
    KF_DECODE_FP32_ROWS(2, 64, 4),
    KF_DECODE_FP32_ROWS(4, 128, 4),
    KF_DECODE_FP32_ROWS(2, 128, 4),
    KF_DECODE_FP32_ROWS(4, 256, 2),
    KF_DECODE_FP32_ROWS(2, 256, 2),
    {},
};
