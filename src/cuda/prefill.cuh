// SPDX-License-Identifier: Apache-2.0
//
// Attention for many queries: o = softmax(q k^T scale) v, tile by tile (FlashAttention-2's loop, arXiv 2307.08691).
//
//     block    TILE rows of queries, WARPS warps of TILE / WARPS rows (16 or 32) each; q in shared memory
//     loop     over tiles of KEYS keys, k and v in two stages: while a tile is worked on, the next one is on its way
//                s = q k^T           mma, fp32
//                p = 2^(c s - origin)   c = scale log2(e); see attention.cuh for origin
//                o = o + p v         mma, p rounded to 16 bits in registers
//     order    from right to left; only tiles that some row does not see in full are masked. Masked and unmasked tiles share
//              one loop: code that runs for a tile or two comes from L2, which cost 10 us a block when there were two
//
// Work: 4 KEYS TILE D operations of the tensor cores a tile. A warp of 32 rows reads, for each fragment of k or v that
// it takes from shared memory, twice as much use of it as one of 16 does; shared memory's rate is what binds otherwise.
// The exponentials of keys 16 i + 16 .. stand in the program between the products of keys 16 i .., so that the two units
// work at the same time.
#ifndef KF_CUDA_PREFILL_CUH
#define KF_CUDA_PREFILL_CUH

#include "cuda/prefill_rotated.cuh"

// T: of v and p; TQ: of q and k.
template <class T_, int D_, int DV_, int TILE_, int KEYS_, int WARPS_, int BLOCKS_, bool GENERAL_, class TQ_ = T_>
struct kf_prefill {
    using T = T_;
    using TQ = TQ_;
    static constexpr bool MIXED = kf_is_mixed<T, TQ>;
    static constexpr int D = D_, DV = DV_, TILE = TILE_, KEYS = KEYS_, WARPS = WARPS_, BLOCKS = BLOCKS_;
    static constexpr bool GENERAL = GENERAL_;
    static constexpr int THREADS = WARPS * 32, WARP_ROWS = TILE / WARPS, MT = WARP_ROWS / 16;
    static constexpr int Q_BYTES = TILE * D * 2, K_BYTES = KEYS * D * 2, V_BYTES = KEYS * DV * 2;
    static constexpr int ROW_BYTES = TILE * 8 + 16 + sizeof(kf_block); // keys of each row, the ends of all, the block
    static constexpr int O_BYTES = WARP_ROWS * DV * 4; // of a warp, at the end, in the place of q, k and v
    static constexpr int LOOP_BYTES = Q_BYTES + 2 * (K_BYTES + V_BYTES), END_BYTES = WARPS * O_BYTES + TILE * 16;
    static constexpr int MAIN_BYTES = LOOP_BYTES > END_BYTES ? LOOP_BYTES : END_BYTES;
    static constexpr int SHARED =
        MAIN_BYTES + ROW_BYTES + (MIXED ? TILE * 4 + sizeof(kf_mixed_block) : 0); // the rows' scales, and more
    // Whether a tile's exponentials all stand before its products with v, rather than between them. D = 128: 2 to 13 % faster, for weights
    // that wait for their products are registers that it does not have, and the other block of the multiprocessor keeps the tensor cores
    // busy. D = 64: 1 to 3 % slower; D = 256, one block of 16 rows a warp: 8 % slower.
    static constexpr bool IN_TURNS = D == 128 && MT == 2 && !GENERAL;
    static_assert(WARP_ROWS % 16 == 0 && KEYS % 16 == 0 && KEYS <= 128 && DV <= D, "");
    static_assert(WARP_ROWS <= 32, "a lane for each row of a warp");
    // Whether q's rotation finds room for its tables.
    static constexpr bool CHUNKED =
        kf_rope_chunks<D>::POSSIBLE && D == DV && (WARPS / 2) * kf_rope_chunks<D>::TABLE_BYTES <= K_BYTES;

    // A warp's rows, in registers. Row index [mt][half]: row 16 mt + 8 half + lane / 4 of the warp.
    struct state {
        float o[MT][DV / 8][4];
        float origin[MT][2], d[MT][2];
    };
    using scores = float[MT][KEYS / 8][4];
    // Fragments of q, of 16 columns, that stay in registers: with 16 rows a warp shared memory is the limit, and these are an eighteenth
    // of what is read from it (12 of them: a hundredth slower than 8).
    static constexpr int HELD = D == 256 && TILE == 128 && !GENERAL ? 8 : 0;
    using held_queries = uint32_t[HELD ? HELD : 1][MT][4];

    // Columns 16 kk .. of q, for lane's row and chunk of them.
    static __device__ __forceinline__ void query_fragment(uint32_t (&a)[4], int kk, int mt, uint32_t q,
                                                          const held_queries &held, int qr, int qc) {
        if (kk >= HELD) kf_load_matrix(a, q + kf_swizzle<D>(16 * mt + qr, 2 * kk + qc));
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (kk < HELD) a[e] = held[kk < HELD ? kk : 0][mt][e];
    }

    static __device__ __forceinline__ void products(uint32_t q, uint32_t k, int lane, const held_queries &held,
                                                    scores &s) {
        // Lane's row and chunk within a 16x16 block of q, and within 16 keys of k.
        const int qr = lane & 15, qc = lane >> 4, kr = (lane >> 4) * 8 + (lane & 7), kc = lane >> 3 & 1;
#pragma unroll
        for (int mt = 0; mt < MT; mt++)
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) s[mt][n][e] = 0.0f;
        // Fragments are loaded one step ahead of their products: the load's latency is as long as four products.
        constexpr int N = KEYS / 16, KK = D / 16;
        uint32_t a[2][MT][4], b[2][4];
#pragma unroll
        for (int mt = 0; mt < MT; mt++) query_fragment(a[0][mt], 0, mt, q, held, qr, qc);
        kf_load_matrix(b[0], k + kf_swizzle<D>(kr, kc));
#pragma unroll
        for (int kk = 0; kk < KK; kk++) {
#pragma unroll
            for (int n = 0; n < N; n++) {
                const int now = (kk * N + n) & 1;
                if (n + 1 < N)
                    kf_load_matrix(b[!now], k + kf_swizzle<D>(16 * (n + 1) + kr, 2 * kk + kc));
                else if (kk + 1 < KK)
                    kf_load_matrix(b[!now], k + kf_swizzle<D>(kr, 2 * (kk + 1) + kc));
                if (n == 0 && kk + 1 < KK)
#pragma unroll
                    for (int mt = 0; mt < MT; mt++) query_fragment(a[(kk + 1) & 1][mt], kk + 1, mt, q, held, qr, qc);
#pragma unroll
                for (int mt = 0; mt < MT; mt++) {
                    kf_mma<TQ>(s[mt][2 * n], a[kk & 1][mt], b[now][0], b[now][1]);
                    kf_mma<TQ>(s[mt][2 * n + 1], a[kk & 1][mt], b[now][2], b[now][3]);
                }
            }
        }
    }

    // Products of rows and keys that are kept times powers of two, of the tile that begins at key `first`. Rare, so it computes anew and reads
    // again what registers would hold. Keys past the block's last one have no factor; they become -inf.
    static __device__ __forceinline__ void unscale(scores &s, const volatile float *row_scales,
                                                   volatile kf_mixed_block *mixed, volatile kf_block *kept,
                                                   int32_t first) {
        const int thread = kf_thread(), lane = thread & 31;
        row_scales += (thread >> 5) * WARP_ROWS + lane / 4;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
            const float *const key_scales = mixed->key_scales;
            const int32_t j = first + 8 * n + 2 * (lane & 3), last = kept->hi - 1;
            const float factor[2] = {key_scales[min(j, last)], key_scales[min(j + 1, last)]};
            // Blocks have one row of threads: of such a loop nothing moves out, or all factors would be loaded at once, into registers that are not there.
#pragma unroll 1
            for (unsigned once = 0; once < blockDim.y; once++)
#pragma unroll
                for (int i = 0; i < MT * 4; i++)
                    s[i / 4][n][i % 4] *= factor[i % 2] * row_scales[16 * (i / 4) + 8 * (i % 4 / 2)];
        }
    }

    // On the diagonal the upper warps see nothing of the last tiles.
    static __device__ __forceinline__ bool some_row_sees(const int2 *keys, int32_t first, int lane) {
        const int2 mine = keys[lane % WARP_ROWS];
        return __any_sync(0xffffffffu, mine.x < first + KEYS && mine.y > first && mine.x < mine.y);
    }

    // Makes -inf of the scores outside of the rows' intervals.
    static __device__ __forceinline__ void hide(scores &s, const int2 *keys, int32_t first, int lane) {
#pragma unroll
        for (int mt = 0; mt < MT; mt++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int2 mine = keys[16 * mt + 8 * half + lane / 4];
                const uint32_t from = (uint32_t)(first + 2 * (lane & 3) - mine.x), width = mine.y - mine.x;
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                    for (int e = 0; e < 2; e++)
                        if (from + 8 * n + e >= width) s[mt][n][2 * half + e] = -INFINITY;
            }
    }

    // Scores to logits, outside of the rows' intervals -inf. Returns, for the columns of this lane, which keys some row of the
    // warp sees.
    static __device__ __forceinline__ uint32_t logits(const kf_cuda_attention &a, const kf_block &w, scores &s,
                                                      const int2 *keys, int32_t first, int row0, int lane) {
        uint32_t seen = 0;
#pragma unroll
        for (int mt = 0; mt < MT; mt++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = 16 * mt + 8 * half + lane / 4;
                const int2 mine = keys[row];
                const kf_logit_row view = kf_logit_row_find(a, w, row0 + row);
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        const int32_t j = first + 8 * n + 2 * (lane & 3) + e;
                        float &x = s[mt][n][2 * half + e];
                        x = j >= mine.x && j < mine.y ? kf_logit(a, view, j, x) : -INFINITY;
                        if (x != -INFINITY && n < 16) seen |= 1u << (2 * n + e);
                    }
            }
        seen |= __shfl_xor_sync(0xffffffffu, seen, 4);
        seen |= __shfl_xor_sync(0xffffffffu, seen, 8);
        return seen | __shfl_xor_sync(0xffffffffu, seen, 16);
    }

    static __device__ __forceinline__ void raise_origins(state &x, const scores &s, float c) {
        float most[MT][2];
        bool passed = false;
#pragma unroll
        for (int mt = 0; mt < MT; mt++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float &top = most[mt][half];
                top = -INFINITY;
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++) top = fmaxf(top, fmaxf(s[mt][n][2 * half], s[mt][n][2 * half + 1]));
                passed |= kf_exponent<GENERAL>(top, c, x.origin[mt][half]) > KF_SLACK;
            }
        if (__any_sync(0xffffffffu, passed)) kf_rescale<GENERAL>(x.o, x.origin, x.d, most, c);
    }

    // Probabilities of two neighbouring keys of a row: i counts half rows, then half blocks of 16 keys.
    static __device__ __forceinline__ uint32_t probabilities(state &x, const scores &s, float c, int kk, int mt,
                                                             int i) {
        const int n = 2 * kk + i / 2, half = i % 2;
        const float p0 = kf_probability<GENERAL>(s[mt][n][2 * half], c, x.origin[mt][half]);
        const float p1 = kf_probability<GENERAL>(s[mt][n][2 * half + 1], c, x.origin[mt][half]);
        x.d[mt][half] += p0 + p1;
        return kf_pack<T>(p0, p1);
    }

    // p = 2^(c s - origin), d += p, o += p v. The exponentials of the next 16 keys stand between the products of these, or (IN_TURNS) all of
    // them before.
    static __device__ __forceinline__ void fold(state &x, scores &s, float c, uint32_t v, int lane, uint32_t seen) {
        const int vr = lane & 15, vc = lane >> 4;
        constexpr int N = DV / 16, KK = KEYS / 16, PARTS = MT * 4;
        uint32_t p[IN_TURNS ? KK : 2][MT][4], b[2][4];
        kf_load_matrix_transposed(b[0], v + kf_swizzle<DV>(vr, vc));
#pragma unroll
        for (int i = 0; i < (IN_TURNS ? KK : 1) * PARTS; i++)
            p[i / PARTS][i % PARTS / 4][i % 4] = probabilities(x, s, c, i / PARTS, i % PARTS / 4, i % 4);
            // Blocks have one row of threads, which the compiler does not know: it moves nothing over the edge of this loop.
#pragma unroll 1
        for (unsigned once = 0; once < (IN_TURNS ? blockDim.y : 1); once++)
#pragma unroll
            for (int kk = 0; kk < KK; kk++) {
                const int at = IN_TURNS ? kk : kk & 1;
                uint32_t keep[2] = {~0u, ~0u};
                if (GENERAL) // no 0 * NaN from values that no row of the warp sees
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        const uint32_t bits = seen >> (4 * kk + 2 * i);
                        keep[i] = (bits & 1 ? 0xffffu : 0) | (bits & 2 ? 0xffff0000u : 0);
                    }
#pragma unroll
                for (int n = 0; n < N; n++) {
#if __CUDA_ARCH__ < 900
                    // Not needed; but the compiler then loads less ahead, and D = 128 does without spills.
                    if (n == N / 2) __syncwarp();
#endif
                    const int now = (kk * N + n) & 1;
                    if (n + 1 < N)
                        kf_load_matrix_transposed(b[!now], v + kf_swizzle<DV>(16 * kk + vr, 2 * (n + 1) + vc));
                    else if (kk + 1 < KK)
                        kf_load_matrix_transposed(b[!now], v + kf_swizzle<DV>(16 * (kk + 1) + vr, vc));
                    if (GENERAL)
#pragma unroll
                        for (int i = 0; i < 4; i++) b[now][i] &= keep[i & 1];
#pragma unroll
                    for (int mt = 0; mt < MT; mt++) {
                        kf_mma<T>(x.o[mt][2 * n], p[at][mt], b[now][0], b[now][1]);
                        kf_mma<T>(x.o[mt][2 * n + 1], p[at][mt], b[now][2], b[now][3]);
                    }
#pragma unroll
                    for (int j = 0; j < PARTS; j++) // spread over the steps
                        if (!IN_TURNS && kk + 1 < KK && j * N / PARTS == n)
                            p[(kk + 1) & 1][j / 4][j % 4] = probabilities(x, s, c, kk + 1, j / 4, j % 4);
                }
            }
    }

    // What a row still needs after its last key: where its output goes, and the factor of o.
    struct row_end {
        int64_t place; // in elements of o, or of part_o
        float factor;
    };

    // Row `lane` of the warp: its LSE or the numbers of its partial state are written here.
    static __device__ __forceinline__ row_end finish_row(const kf_cuda_attention &a, const kf_block &w, int row,
                                                         float2 state) {
        row_end end = {-1, 1.0f};
        if (row >= w.rows) return end;
        const int32_t r = w.row0 + row;
        const int2 at = kf_block_row(a, r);
        const int32_t query = at.x, head = w.head0 + at.y;
        if (a.splits > 1) {
            const int64_t place = ((int64_t)w.list * a.rows + r) * a.splits + w.split;
            reinterpret_cast<float2 *>(a.part_state)[place] = state;
            if (state.y != 0.0f) end.place = place * a.Dv; // a part without keys has no o
            return end;
        }
        const kf_row_end finished = kf_row_finish(a, head, state.x, state.y);
        if (a.lse) a.lse[w.b * a.lse_stride[0] + head * a.lse_stride[1] + query * a.lse_stride[2]] = finished.lse;
        end.place = w.b * a.o_stride[0] + head * a.o_stride[1] + query * a.o_stride[2];
        end.factor = finished.factor;
        return end;
    }

    // o leaves through shared memory, so that what needs a row's pointer stands in the program once and not for every
    // register, and stores are whole rows. `o` is the warp's place, [WARP_ROWS][DV] floats in swizzled chunks of 16 bytes.
    static __device__ __forceinline__ void finish(const kf_cuda_attention &a, const kf_block &w, const state &x,
                                                  char *o, row_end *ends, int row0, int lane) {
        float2 *states = reinterpret_cast<float2 *>(ends);
#pragma unroll
        for (int mt = 0; mt < MT; mt++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = 16 * mt + 8 * half + lane / 4;
                const float d = kf_quad_sum(x.d[mt][half]);
                if ((lane & 3) == 0) states[row] = make_float2(kf_maximum(x.origin[mt][half], d), d);
#pragma unroll
                for (int n = 0; n < DV / 8; n++)
                    *reinterpret_cast<float2 *>(o + row * (DV * 4) + ((2 * n + (lane & 2) / 2) ^ (row & 3) * 2) * 16 +
                                                (lane & 1) * 8) =
                        make_float2(x.o[mt][n][2 * half], x.o[mt][n][2 * half + 1]);
            }
        __syncwarp();
        row_end mine = {-1, 0.0f};
        const float2 my_state = lane < WARP_ROWS ? states[lane] : make_float2(0.0f, 0.0f);
        if (lane < WARP_ROWS) mine = finish_row(a, w, row0 + lane, my_state);
        __syncwarp();
        if (lane < WARP_ROWS) ends[lane] = mine;
        __syncwarp();
        constexpr int CHUNKS = DV / KF_CHUNK;
#pragma unroll 2
        for (int i = lane; i < WARP_ROWS * CHUNKS; i += 32) {
            const int row = i / CHUNKS, chunk = i % CHUNKS;
            const row_end end = ends[row];
            if (end.place < 0 || KF_CHUNK * chunk >= a.Dv) continue;
            const float4 *from =
                reinterpret_cast<const float4 *>(o + row * (DV * 4) + (2 * chunk ^ (row & 3) * 2) * 16);
            const float4 y0 = from[0], y1 = from[1];
            float y[KF_CHUNK] = {y0.x, y0.y, y0.z, y0.w, y1.x, y1.y, y1.z, y1.w};
#pragma unroll
            for (int e = 0; e < KF_CHUNK; e++) y[e] *= end.factor;
            const int64_t place = end.place + KF_CHUNK * chunk;
            if (a.splits > 1) {
                float4 *const part = reinterpret_cast<float4 *>(a.part_o + place);
                part[0] = make_float4(y[0], y[1], y[2], y[3]), part[1] = make_float4(y[4], y[5], y[6], y[7]);
                continue;
            }
            if (a.o_type != KF_F32 && a.aligned) {
                *reinterpret_cast<uint4 *>(a.o + 2 * place) = make_uint4(
                    kf_pack<T>(y[0], y[1]), kf_pack<T>(y[2], y[3]), kf_pack<T>(y[4], y[5]), kf_pack<T>(y[6], y[7]));
                continue;
            }
            const int bytes = a.o_type == KF_F32 ? 4 : 2;
#pragma unroll
            for (int e = 0; e < KF_CHUNK; e++) kf_store_element(a.o + bytes * (place + e), a.o_type, y[e]);
        }
    }

    // Where a warp's table of angles is: in the place of the second tile of k, or of v.
    static __device__ __forceinline__ char *tables(char *memory, int stage, int warp) {
        constexpr int HALF = WARPS / 2;
        char *const place = memory + Q_BYTES + (warp < HALF ? stage * K_BYTES : 2 * K_BYTES + stage * V_BYTES);
        return place + warp % HALF * kf_rope_chunks<D>::TABLE_BYTES;
    }

    // A block; false: it found that its rows or keys are kept times powers of two, and must be begun anew with SCALED.
    template <bool SCALED> static __device__ __forceinline__ bool block(const kf_cuda_attention &a) {
        extern __shared__ __align__(128) char memory[];
        const uint32_t q = kf_shared(memory), k = q + Q_BYTES, v = k + 2 * K_BYTES;
        int2 *keys = reinterpret_cast<int2 *>(memory + MAIN_BYTES);
        int *ends = reinterpret_cast<int *>(keys + TILE);
        volatile kf_block *kept = reinterpret_cast<kf_block *>(ends + 4);
        const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5, row0 = warp * WARP_ROWS;
        if (!MIXED) kf_wait_for_previous();
        kf_block w = kf_block_find(a, blockIdx.x, TILE);
        kf_load_queries<TILE, D, THREADS, GENERAL>(q, a, w, thread);
        kf_copy_commit();
        kf_block_range<THREADS>(a, w, ends);
        float *const row_scales = reinterpret_cast<float *>(ends + 4) + sizeof(kf_block) / sizeof(float);
        volatile kf_mixed_block *const mixed = reinterpret_cast<volatile kf_mixed_block *>(row_scales + TILE);
        const int64_t head = (int64_t)w.b * a.Hkv + w.kv_head;
        const char *k_at = kf_keys_at(a, w), *v_at = kf_values_at(a, w);
        if (thread == 0) { // for the loop and the end, instead of registers
            *const_cast<kf_block *>(kept) = w;
            if (SCALED) mixed->k = k_at, mixed->v = v_at, mixed->key_scales = a.key_scales + head * a.Nk;
        }
        // Tiles t0 .. t1 - 1, from right to left.
        w.lo = kf_uniform(w.lo), w.hi = kf_uniform(w.hi);
        int32_t t0 = w.lo / KEYS, t1 = w.hi > w.lo ? (w.hi + KEYS - 1) / KEYS : t0;
        auto load = [&](int32_t t, const char *k_base, const char *v_base) {
            // Read again where registers are scarce, so that none hold this thread's pointers through the loop.
            const int thread = MT > 1 || HELD ? kf_thread() : threadIdx.x;
            const int32_t first = t * KEYS;
            const uint32_t k_to = k + (t & 1) * K_BYTES, v_to = v + (t & 1) * V_BYTES;
            if (a.D == D && a.Dv == DV && first >= w.lo && first + KEYS <= w.hi) {
                kf_load_whole_tile<KEYS, D, THREADS, GENERAL>(k_to, k_base, a.k_stride[2], first, D, a.aligned, thread);
                kf_load_whole_tile<KEYS, DV, THREADS, GENERAL>(v_to, v_base, a.v_stride[2], first, DV, a.aligned,
                                                               thread);
            } else {
                kf_load_tile<KEYS, D, THREADS, GENERAL>(k_to, k_base, a.k_stride[2], first, w.lo, w.hi, a.D, a.aligned,
                                                        thread);
                kf_load_tile<KEYS, DV, THREADS, GENERAL>(v_to, v_base, a.v_stride[2], first, w.lo, w.hi, a.Dv,
                                                         a.aligned, thread);
            }
        };
        auto load_first = [&] {
            if (t1 > t0) load(t1 - 1, k_at, v_at);
            kf_copy_commit();
        };
        if constexpr (!MIXED) load_first();
        // Once a block, before anything else is in registers, while the first tile is on its way.
        if constexpr (MIXED) {
            char *const table = tables(memory, t1 & 1, warp);
            const bool chunks = kf_prepare_queries<D, CHUNKED>(a, w, row0, table, lane);
            // The kernel that turns the keys waited, as it began, for what was before it: only the keys are still to come.
            kf_wait_for_previous();
            load_first();
            kf_odd_keys<THREADS> odd_keys(a, head, w.lo, w.hi, thread);
            kf_copy_wait<1>();
            __syncthreads();
            const bool odd_rows =
                kf_mixed_queries<WARP_ROWS, D, CHUNKED, SCALED>(a, w, memory, row_scales, row0, chunks, table, lane);
            const int odd = __syncthreads_or(odd_rows | odd_keys.some());
            if (SCALED && thread == 0) mixed->odd = odd;
            if (!SCALED && kf_uniform(odd)) return false;
            // Found again, or what the loop goes by is not in uniform registers, and fragments of k come late for their products. At 128 keys a
            // tile the rest of it costs more than it brings.
            constexpr bool ALL = KEYS <= 64;
            w.lo = kf_uniform(kept->lo), w.hi = kf_uniform(kept->hi);
            if (ALL) w.b = kf_uniform(kept->b), w.kv_head = kf_uniform(kept->kv_head);
            t0 = ALL ? kf_uniform(kept->lo / KEYS) : w.lo / KEYS;
            t1 = w.hi > w.lo ? (w.hi + KEYS - 1) / KEYS : t0;
            if (ALL) t1 = kf_uniform(t1);
            k_at = kf_keys_at(a, w), v_at = kf_values_at(a, w);
        } else if (a.rope.q) {
            char *const table = tables(memory, t1 & 1, warp);
            const bool chunks = kf_prepare_queries<D, CHUNKED>(a, w, row0, table, lane);
            kf_copy_wait<1>();
            __syncthreads();
            kf_rotate_tile_queries<WARP_ROWS, D, CHUNKED>(a, w, kf_rope_tile<T, D>{memory}, row0, chunks, table, lane);
        }
        held_queries held;
        if (HELD) {
            kf_copy_wait<1>();
            __syncthreads();
#pragma unroll
            for (int kk = 0; kk < HELD; kk++)
#pragma unroll
                for (int mt = 0; mt < MT; mt++)
                    kf_load_matrix(held[kk][mt],
                                   q + row0 * D * 2 + kf_swizzle<D>(16 * mt + (lane & 15), 2 * kk + (lane >> 4)));
        }
        state x;
#pragma unroll
        for (int mt = 0; mt < MT; mt++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                x.origin[mt][half] = KF_NO_ORIGIN, x.d[mt][half] = 0.0f;
#pragma unroll
                for (int n = 0; n < DV / 8; n++) x.o[mt][n][2 * half] = x.o[mt][n][2 * half + 1] = 0.0f;
            }
        const float c = GENERAL ? 1.0f : a.scale * KF_LOG2E; // what scores are multiplied by
        for (int row = thread; row < TILE; row += THREADS) keys[row] = kf_block_row_keys(a, w, row);
        constexpr bool SPARE = SCALED && !GENERAL; // then registers are so scarce that these, too, are in shared memory
#pragma unroll 1
        for (int32_t t = t1 - 1; t >= (SPARE ? kept->lo / KEYS : t0); t--) {
            scores s;
            uint32_t seen = ~0u;
            const int thread = MT > 1 || HELD ? kf_thread() : threadIdx.x, lane = thread & 31,
                      row0 = (thread >> 5) * WARP_ROWS;
            const uint32_t my_q = q + row0 * D * 2;
            // One barrier a tile: past it, tile t is there for all, and no warp still works on tile t + 1, whose place tile
            // t - 1 takes.
            kf_copy_wait<0>();
            __syncthreads();
            if (t > (SPARE ? kept->lo / KEYS : t0)) {
                load(t - 1, SPARE ? mixed->k : k_at, SPARE ? mixed->v : v_at);
                kf_copy_commit();
            }
            const bool partial = t * KEYS < kept->full_lo || (t + 1) * KEYS > kept->full_hi;
            if (partial && !some_row_sees(keys + row0, t * KEYS, lane)) continue;
            { // Read again, or places in memory that q, k and v have in common stay in registers from here to the end of the tile.
                const int lane = SCALED ? kf_thread() & 31 : thread & 31;
                products(my_q, k + (t & 1) * K_BYTES, lane, held, s);
            }
            if (SCALED && mixed->odd) unscale(s, row_scales, mixed, kept, t * KEYS);
            if (GENERAL || partial) {
                if (GENERAL)
                    seen = logits(a, w, s, keys + row0, t * KEYS, row0, lane);
                else
                    hide(s, keys + row0, t * KEYS, lane);
            }
            raise_origins(x, s, c);
            fold(x, s, c, v + (t & 1) * V_BYTES, SCALED ? kf_thread() & 31 : lane, seen);
        }
        kf_copy_wait<0>();
        __syncthreads(); // q, k and v are no longer read
        // Not earlier: the next kernel's blocks would take places among these, and the last ones share a multiprocessor unevenly.
        kf_launch_dependents();
        w = *const_cast<kf_block *>(kept);
        finish(a, w, x, memory + warp * O_BYTES, reinterpret_cast<row_end *>(memory + WARPS * O_BYTES) + row0, row0,
               lane);
        return true;
    }

    // A loop with powers of two beside the usual one made that one 2 to 3 % slower, for its bounds and pointers left the uniform registers. So where
    // there are any, the block begins again as another one, in a function of its own: the two have nothing in common.
    static __device__ __noinline__ void again(const kf_cuda_attention &a) {
        kf_copy_wait<0>();
        __syncthreads();
        block<true>(a);
    }

    static __device__ __forceinline__ void run(const kf_cuda_attention &a) {
        if constexpr (MIXED && !GENERAL) {
            if (!block<false>(a)) again(a);
        } else {
            block<MIXED>(a);
        }
    }
};

template <class P>
__global__ void __launch_bounds__(P::THREADS, P::BLOCKS)
    kf_prefill_kernel(const __grid_constant__ kf_cuda_attention a) {
    P::run(a);
}

#define KF_PREFILL_ROW(T, TQ, TYPE, D, DV, TILE, KEYS, WARPS, BLOCKS, GENERAL)                                         \
    {                                                                                                                  \
        KF_CUDA_PREFILL, TYPE, 0, D, DV, GENERAL, TILE, KEYS, (WARPS)*32, BLOCKS,                                      \
            kf_prefill<T, D, DV, TILE, KEYS, WARPS, BLOCKS, GENERAL, TQ>::SHARED, 80,                                  \
            (const void *)kf_prefill_kernel<kf_prefill<T, D, DV, TILE, KEYS, WARPS, BLOCKS, GENERAL, TQ>>,             \
            "prefill " #TILE "x" #KEYS " D=" #D " Dv=" #DV ", mma.sync m16n8k16"                                       \
    }

// Both dtypes. General kernels have 16 rows a warp, for their registers, and serve every plain one with tiles of as many rows.
#define KF_PREFILL_PLAIN(D, DV, TILE, KEYS, WARPS, BLOCKS)                                                             \
    KF_PREFILL_ROW(__nv_bfloat16, __nv_bfloat16, KF_BF16_TYPE, D, DV, TILE, KEYS, WARPS, BLOCKS, false),               \
        KF_PREFILL_ROW(__half, __half, KF_F16, D, DV, TILE, KEYS, WARPS, BLOCKS, false)
#define KF_PREFILL_GENERAL(D, DV, TILE, KEYS)                                                                          \
    KF_PREFILL_ROW(__nv_bfloat16, __nv_bfloat16, KF_BF16_TYPE, D, DV, TILE, KEYS, (TILE / 16), 1, true),               \
        KF_PREFILL_ROW(__half, __half, KF_F16, D, DV, TILE, KEYS, (TILE / 16), 1, true)
#define KF_PREFILL_ROWS(D, DV, TILE, KEYS, WARPS, BLOCKS)                                                              \
    KF_PREFILL_PLAIN(D, DV, TILE, KEYS, WARPS, BLOCKS), KF_PREFILL_GENERAL(D, DV, TILE, KEYS)

// bf16 with rotated keys, one type.
#define KF_PREFILL_ROTATED(D, TILE, KEYS, WARPS, BLOCKS, GENERAL)                                                      \
    KF_PREFILL_ROW(__nv_bfloat16, __half, KF_CUDA_ROTATED_BF16, D, D, TILE, KEYS, (WARPS), BLOCKS, GENERAL)

#endif
