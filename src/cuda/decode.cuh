// SPDX-License-Identifier: Apache-2.0
//
// Attention for few queries (FlashDecoding): 16 or 32 rows of a list, the queries of all heads that share a KV head, against
// a range of keys. The time is that of reading K and V once.
//
//     block    one split of the keys of one list; WARPS warps, all with the same TILES times 16 rows of q
//     warp     takes every WARPS-th tile of 16 keys of the split through a ring of STAGES tiles of its own in shared memory:
//              no barrier in the loop, and STAGES - 1 tiles of k and v always on their way
//     end      the warps' states are merged in shared memory. Where there is one split, the output leaves the block; where the
//              splits of a list are a cluster (Hopper), each block merges a share of the outputs from all blocks' shared
//              memory; else one state leaves the block for the merge kernel
//
// Bytes: 2 (D + Dv) a key. On their way in one block: WARPS (STAGES - 1) 16 times that; at D = 128 with 4 warps and 3
// stages 64 KB, where 4.3 TB/s over 132 multiprocessors at a microsecond ask for 33. Where unsplit lists fill the machine, 8 warps: as one
// multiprocessor after the other ends, the block of the next kernel asks for its first keys there, and those still at work have 128 KB on their way.
#ifndef KF_CUDA_DECODE_CUH
#define KF_CUDA_DECODE_CUH

#include "cuda/decode_end.cuh"
#include "cuda/decode_turn.cuh"

// TURN: keys of D dimensions that all turn (a.D and a.rope.dims are D).
template <class T_, int D_, int DV_, int TILES_, int WARPS_, int STAGES_, int BLOCKS_, bool GENERAL_, int AHEAD_,
          bool TURN_ = false>
struct kf_decode {
    using T = T_;
    static constexpr int D = D_, DV = DV_, TILES = TILES_, WARPS = WARPS_, STAGES = STAGES_, BLOCKS = BLOCKS_;
    static constexpr int AHEAD = AHEAD_;
    static constexpr bool GENERAL = GENERAL_, TURN = TURN_;
    static constexpr int TILE = 16, ROWS = TILES * TILE, KEYS = 16, THREADS = WARPS * 32, LINE = 128;
    // q's fragments stay in registers where these suffice, else they are loaded for every tile.
    static constexpr bool Q_STAYS = TILES * D <= 128;
    static constexpr int Q_FRAGMENTS = Q_STAYS ? D / 16 : 1;
    // Sums of a block of scores that are made beside each other: two of one tile, for the product's latency.
    static constexpr int CHAINS = TILES == 1 ? 2 : 1;
    static constexpr int K_BYTES = KEYS * D * 2, V_BYTES = KEYS * DV * 2, STAGE_BYTES = K_BYTES + V_BYTES;
    static constexpr int RING_BYTES = STAGES * STAGE_BYTES, Q_BYTES = ROWS * D * 2, O_BYTES = ROWS * DV * 4;
    static constexpr int VIEW_BYTES = GENERAL ? ROWS * (int)sizeof(kf_logit_row) : 0;
    static constexpr int ROW_BYTES = ROWS * 8 + 16 + VIEW_BYTES + (WARPS + 1) * ROWS * 8;
    using turns = kf_key_turns<T, D>;
    static constexpr int SHARED = Q_BYTES + WARPS * RING_BYTES + ROW_BYTES + (TURN ? turns::SHARED_BYTES : 0);
    static_assert(!TURN || (TILES == 1 && !GENERAL && turns::START_BYTES <= STAGE_BYTES), "");
    static_assert(THREADS * 4 <= (WARPS + 1) * ROWS * 8, "a word of `states` for each thread");
    using ending = kf_decode_end<DV, ROWS, WARPS, RING_BYTES>;

    struct state {
        float o[TILES][DV / 8][4], origin[TILES][2], d[TILES][2];
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

    // A tile of keys or values to the L2 cache, by one warp. (A row that begins within a line ends in one that is not asked for.)
    template <int COLS>
    static __device__ __forceinline__ void ask(const char *base, int64_t stride, int32_t first, int32_t width,
                                               int lane) {
        constexpr int LINES = (2 * COLS + LINE - 1) / LINE;
#pragma unroll
        for (int i = lane; i < KEYS * LINES; i += 32) {
            const int row = i / LINES, at = i % LINES * LINE;
            if (at < 2 * width) kf_ask(base + 2 * ((int64_t)(first + row) * stride) + at);
        }
    }

    // The first AHEAD tiles of a warp.
    static __device__ __forceinline__ void ask_ahead(const kf_cuda_attention &a, const kf_block &w, int32_t tile0,
                                                     int lane) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int32_t first = (tile0 + i * WARPS) * KEYS;
            if (first < w.lo || first + KEYS > w.hi) continue;
            ask<D>(kf_keys_at(a, w), a.k_stride[2], first, a.D, lane);
            ask<DV>(kf_values_at(a, w), a.v_stride[2], first, a.Dv, lane);
        }
    }

    // s = q k^T of a tile of 16 keys.
    static __device__ __forceinline__ void products(float (&s)[TILES][2][4], const uint32_t (&q)[TILES][Q_FRAGMENTS][4],
                                                    uint32_t q_shared, uint32_t k, int lane) {
        const int kr = (lane >> 4) * 8 + (lane & 7), kc = lane >> 3 & 1;
        float more[TILES][2][4];
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) s[m][n][e] = more[m][n][e] = 0.0f;
#pragma unroll
        for (int kk = 0; kk < D / 16; kk++) {
            uint32_t b[4];
            kf_load_matrix(b, k + kf_swizzle<D>(kr, 2 * kk + kc));
#pragma unroll
            for (int m = 0; m < TILES; m++) {
                uint32_t a[4];
                if constexpr (Q_STAYS) {
#pragma unroll
                    for (int i = 0; i < 4; i++) a[i] = q[m][kk % Q_FRAGMENTS][i];
                } else {
                    kf_load_matrix(a, q_shared + kf_swizzle<D>(m * TILE + (lane & 15), 2 * kk + (lane >> 4)));
                }
                float(&to)[2][4] = CHAINS == 2 && kk % 2 ? more[m] : s[m];
                kf_mma<T>(to[0], a, b[0], b[1]);
                kf_mma<T>(to[1], a, b[2], b[3]);
            }
        }
        if constexpr (CHAINS == 2)
#pragma unroll
            for (int m = 0; m < TILES; m++)
#pragma unroll
                for (int n = 0; n < 2; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++) s[m][n][e] += more[m][n][e];
    }

    // s = q k^T of a tile of 16 keys that turn on the way.
    static __device__ __forceinline__ void products(float (&s)[TILES][2][4], const uint32_t (&q)[TILES][Q_FRAGMENTS][4],
                                                    turns &walk, const float2 *table, bool split_halves, uint32_t k,
                                                    int lane) {
        const int kr = (lane >> 4) * 8 + (lane & 7), kc = lane >> 3 & 1;
        float more[2][4];
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[0][n][e] = more[n][e] = 0.0f;
        const auto multiply = [&](int kk, float(&to)[2][4], const uint32_t(&b)[4]) {
            kf_mma<T>(to[0], q[0][kk], b[0], b[1]);
            kf_mma<T>(to[1], q[0][kk], b[2], b[3]);
        };
        if (split_halves) {
#pragma unroll
            for (int kk = 0; kk < D / 32; kk++) {
                uint32_t b[4], c[4];
                kf_load_matrix(b, k + kf_swizzle<D>(kr, 2 * kk + kc));
                kf_load_matrix(c, k + kf_swizzle<D>(kr, 2 * (kk + D / 32) + kc));
                walk.turn_apart(table, kk, b, c, lane);
                multiply(kk, s[0], b);
                multiply(kk + D / 32, more, c);
            }
        } else {
#pragma unroll
            for (int kk = 0; kk < D / 16; kk++) {
                uint32_t b[4];
                kf_load_matrix(b, k + kf_swizzle<D>(kr, 2 * kk + kc));
                walk.turn_together(table, kk, b, lane);
                multiply(kk, kk % 2 ? more : s[0], b);
            }
        }
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[0][n][e] += more[n][e];
    }

    // Scores into logits, -inf where a row doesn't see a key. Returns which of the lane's keys some row sees: bit 2 n + e.
    static __device__ __forceinline__ uint32_t mask(const kf_cuda_attention &a, float (&s)[TILES][2][4], int32_t first,
                                                    const int2 *keys, const kf_logit_row *views, int lane) {
        uint32_t seen = 0;
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = TILE * m + 8 * half + lane / 4;
                const int2 mine = keys[row];
#pragma unroll
                for (int n = 0; n < 2; n++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        const int32_t j = first + 8 * n + 2 * (lane & 3) + e;
                        float &y = s[m][n][2 * half + e];
                        // A split ends where the next one begins; the tile may reach past it only at the end of all keys.
                        const bool inside = j >= mine.x && j < mine.y;
                        y = !inside ? -INFINITY : GENERAL ? kf_logit(a, views[row], j, y) : y;
                        if (y != -INFINITY) seen |= 1u << (2 * n + e);
                    }
            }
        if (GENERAL) {
            seen |= __shfl_xor_sync(0xffffffffu, seen, 4);
            seen |= __shfl_xor_sync(0xffffffffu, seen, 8);
            seen |= __shfl_xor_sync(0xffffffffu, seen, 16);
        }
        return seen;
    }

    // One tile of 16 keys, from `first` on, in the ring at k.
    static __device__ __forceinline__ void tile(const kf_cuda_attention &a, const kf_block &w, state &x,
                                                const uint32_t (&q)[TILES][Q_FRAGMENTS][4], uint32_t q_shared,
                                                uint32_t k, int32_t first, const int2 *keys, const kf_logit_row *views,
                                                float c, turns &walk, const float2 *table, int lane) {
        const int vr = lane & 15, vc = lane >> 4;
        const uint32_t v = k + K_BYTES;
        float s[TILES][2][4], most[TILES][2];
        if constexpr (TURN)
            products(s, q, walk, table, a.rope.split_halves, k, lane);
        else
            products(s, q, q_shared, k, lane);
        uint32_t seen = 0;
        const bool whole = first >= w.full_lo && first >= w.lo && first + KEYS <= w.full_hi && first + KEYS <= w.hi;
        if (GENERAL || !whole) seen = mask(a, s, first, keys, views, lane);
        bool passed = false;
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                most[m][half] = fmaxf(fmaxf(s[m][0][2 * half], s[m][0][2 * half + 1]),
                                      fmaxf(s[m][1][2 * half], s[m][1][2 * half + 1]));
                passed |= kf_exponent<GENERAL>(most[m][half], c, x.origin[m][half]) > KF_SLACK;
            }
        if (__any_sync(0xffffffffu, passed)) kf_rescale<GENERAL>(x.o, x.origin, x.d, most, c);
        uint32_t p[TILES][4];
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int n = i / 2, half = i % 2;
                const float p0 = kf_probability<GENERAL>(s[m][n][2 * half], c, x.origin[m][half]);
                const float p1 = kf_probability<GENERAL>(s[m][n][2 * half + 1], c, x.origin[m][half]);
                x.d[m][half] += p0 + p1;
                p[m][i] = kf_pack<T>(p0, p1);
            }
        uint32_t keep[2];
#pragma unroll
        for (int i = 0; i < 2; i++) keep[i] = (seen >> 2 * i & 1 ? 0xffffu : 0) | (seen >> 2 * i & 2 ? 0xffff0000u : 0);
#pragma unroll
        for (int n = 0; n < DV / 16; n++) {
            uint32_t b[4];
            kf_load_matrix_transposed(b, v + kf_swizzle<DV>(vr, 2 * n + vc));
            if (GENERAL) b[0] &= keep[0], b[1] &= keep[1], b[2] &= keep[0], b[3] &= keep[1];
#pragma unroll
            for (int m = 0; m < TILES; m++) {
                kf_mma<T>(x.o[m][2 * n], p[m], b[0], b[1]);
                kf_mma<T>(x.o[m][2 * n + 1], p[m], b[2], b[3]);
            }
        }
    }

    static __device__ __forceinline__ void run(const kf_cuda_attention &a) {
        extern __shared__ __align__(128) char memory[];
        char *const rings = memory + Q_BYTES;
        int2 *keys = reinterpret_cast<int2 *>(rings + WARPS * RING_BYTES);
        int *ends = reinterpret_cast<int *>(keys + ROWS);
        kf_logit_row *views = reinterpret_cast<kf_logit_row *>(ends + 4);
        float2 *states = reinterpret_cast<float2 *>(reinterpret_cast<char *>(views) + VIEW_BYTES);
        float2 *const table = states + (WARPS + 1) * ROWS; // of turns
        const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
        const uint32_t ring = kf_shared(rings + warp * RING_BYTES);
        // The last place of a warp's ring is still empty.
        turns turning;
        const auto tables = [&](const kf_block &x) {
            turns::template prepare<THREADS>(a.rope, table, kf_block_position(a, x, 0), WARPS * KEYS, thread);
            turning.begin(a.rope, rings + warp * RING_BYTES + (STAGES - 1) * STAGE_BYTES,
                          (int64_t)(x.lo / KEYS + warp) * KEYS, lane);
        };
        const auto ask = [&](const kf_block &x) {
            ask_ahead(a, x, x.lo / KEYS + warp, lane);
            if constexpr (TURN) tables(x);
        };
        kf_touch_arguments(a, reinterpret_cast<int *>(states) + thread);
        const kf_block w = kf_decode_begin<THREADS>(a, ROWS, ends, ask);
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
        for (int row = thread; row < ROWS; row += THREADS) {
            keys[row] = kf_block_row_keys(a, w, row);
            if (GENERAL) views[row] = kf_logit_row_find(a, w, row);
        }
        if constexpr (TURN)
            if (a.key_lengths || a.positions) tables(w);
        kf_copy_wait<STAGES - 2>();
        __syncthreads(); // q, keys and views are there
        if (a.rope.q) {
            for (int row = warp; row < w.rows; row += WARPS)
                if (TURN && a.Nq == 1)
                    turns::turn_query(a.rope, table, kf_rope_tile<T, D>{memory}, row, lane);
                else
                    kf_rotate_queries<1, true>(a, w, kf_rope_tile<T, D>{memory}, row, lane);
            __syncthreads();
        }
        uint32_t q[TILES][Q_FRAGMENTS][4];
        state x;
#pragma unroll
        for (int m = 0; m < TILES; m++) {
            if (Q_STAYS)
#pragma unroll
                for (int kk = 0; kk < Q_FRAGMENTS; kk++)
                    kf_load_matrix(q[m][kk],
                                   kf_shared(memory) + kf_swizzle<D>(m * TILE + (lane & 15), 2 * kk + (lane >> 4)));
#pragma unroll
            for (int half = 0; half < 2; half++) x.origin[m][half] = KF_NO_ORIGIN, x.d[m][half] = 0.0f;
#pragma unroll
            for (int n = 0; n < DV / 8; n++) x.o[m][n][0] = x.o[m][n][1] = x.o[m][n][2] = x.o[m][n][3] = 0.0f;
        }
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
            tile(a, w, x, q, kf_shared(memory), ring + stage * STAGE_BYTES, t * KEYS, keys, views, c, turning, table,
                 lane);
            stage = stage + 1 == STAGES ? 0 : stage + 1;
        }
        kf_copy_wait<0>();
        __syncwarp();
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = m * TILE + 8 * half + lane / 4;
                const float d = kf_quad_sum(x.d[m][half]), most = kf_maximum(x.origin[m][half], d);
                if (row >= w.rows) continue; // nobody reads it, and eight rows lie in the same banks
                if ((lane & 3) == 0) states[warp * ROWS + row] = make_float2(most, d);
                float *to = reinterpret_cast<float *>(rings + warp * RING_BYTES) + row * DV + 2 * (lane & 3);
#pragma unroll
                for (int n = 0; n < DV / 8; n++)
                    *reinterpret_cast<float2 *>(to + 8 * n) = make_float2(x.o[m][n][2 * half], x.o[m][n][2 * half + 1]);
            }
        __syncthreads();
        ending::finish(a, w, states, rings, thread);
    }
};

template <class P>
__global__ void __launch_bounds__(P::THREADS, P::BLOCKS) kf_decode_kernel(const __grid_constant__ kf_cuda_attention a) {
    P::run(a);
}

// WHAT: "" or what else there is to say of it.
#define KF_DECODE_ROW(T, TYPE, D, DV, TILES, WARPS, STAGES, BLOCKS, GENERAL, AHEAD, TURN, WHAT)                        \
    {                                                                                                                  \
        KF_CUDA_DECODE, TYPE, 0, D, DV, GENERAL, 16 * TILES, 16, WARPS * 32, BLOCKS,                                   \
            kf_decode<T, D, DV, TILES, WARPS, STAGES, BLOCKS, GENERAL, AHEAD, TURN>::SHARED, 80,                       \
            (const void *)kf_decode_kernel<kf_decode<T, D, DV, TILES, WARPS, STAGES, BLOCKS, GENERAL, AHEAD, TURN>>,   \
            "decode" WHAT ", " #WARPS " warps of 16 keys, " #TILES " x 16 rows, D=" #D " Dv=" #DV                      \
            ", mma.sync m16n8k16"                                                                                      \
    }

// TILES tiles of 16 rows of q.
#define KF_DECODE_ROWS(D, DV, TILES, WARPS, STAGES, BLOCKS)                                                            \
    KF_DECODE_ROW(__nv_bfloat16, KF_BF16_TYPE, D, DV, TILES, WARPS, STAGES, BLOCKS, false, 0, false, ""),              \
        KF_DECODE_ROW(__half, KF_F16, D, DV, TILES, WARPS, STAGES, BLOCKS, false, 0, false, ""),                       \
        KF_DECODE_ROW(__nv_bfloat16, KF_BF16_TYPE, D, DV, TILES, WARPS, STAGES, BLOCKS, true, 0, false, ""),           \
        KF_DECODE_ROW(__half, KF_F16, D, DV, TILES, WARPS, STAGES, BLOCKS, true, 0, false, "")

// For unsplit lists that fill the machine.
#define KF_DECODE_FULL(D, DV, WARPS, STAGES, AHEAD)                                                                    \
    KF_DECODE_ROW(__nv_bfloat16, KF_BF16_TYPE, D, DV, 1, WARPS, STAGES, 1, false, AHEAD, false, ""),                   \
        KF_DECODE_ROW(__half, KF_F16, D, DV, 1, WARPS, STAGES, 1, false, AHEAD, false, "")

// Where keys turn, with all their dimensions.
#define KF_DECODE_TURN(D, WARPS, STAGES, BLOCKS)                                                                       \
    KF_DECODE_ROW(__nv_bfloat16, KF_BF16_TYPE, D, D, 1, WARPS, STAGES, BLOCKS, false, 0, true, " of keys that turn"),  \
        KF_DECODE_ROW(__half, KF_F16, D, D, 1, WARPS, STAGES, BLOCKS, false, 0, true, " of keys that turn")

#endif
