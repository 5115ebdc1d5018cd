// SPDX-License-Identifier: Apache-2.0
//
// Attention for many queries in fp32, for fp32 tensors and for mixes of types: o = softmax(q k^T scale) v.
//
// The tensor cores take 11 bits of an fp32 operand (TF32); used as they are, they err a thousand times more than fp32 may. So each operand
// is two numbers of 11 bits, x = high + low, and a product is three:
//
//     x y = high high + (high low + low high)        what is left out, low low and the end of low, is 2^-23 of it
//
// Their sums are cut off, not rounded, which over hundreds of keys would add up in one direction: so a product over 32 dimensions, or over the
// keys of a tile, begins at zero, and joins the running sum by an addition that rounds.
//
//     block    WARPS warps of 16 queries
//     shared   q, one tile of KEYS keys, one of values, as floats; rows padded by 8 (v: 4), which makes the loads of a fragment free of
//              conflicts. A fragment of q or k takes columns 2t, 2t + 1 where the instruction's own order is t, t + 4: one load, and the
//              contraction does not mind as long as both do
//     loop     while scores are made of tile t, its values are on their way; while p v is added, the keys of t - 1 are
//     p        a C fragment's columns 2t, 2t + 1 serve as an A fragment's columns t, t + 4: that is an order of the keys, and v's rows are
//              taken in the same one
//
// Work: 12 KEYS TILE D operations of the tensor cores a tile, three times a 16-bit kernel's at half the rate. Plain multiply-adds were
// tried first: 36 TFLOP/s at D = 64, and 24 at D = 128, where registers and shared memory leave a multiprocessor six warps. An infinity has
// no low part (infinity less infinity): it leaves NaN in its sums, and a row that ends with NaN is computed again by plain multiply-adds,
// where infinities are what they are.
//
// General instances take what the 16-bit general kernels take (prefill.cuh), and rotate keys.
#include "cuda/attention_fp32.cuh"

template <int D_, int KEYS_, int WARPS_, int BLOCKS_, bool GENERAL_> struct kf_prefill_fp32 {
    static constexpr bool GENERAL = GENERAL_;
    static constexpr int D = D_, DV = D_, KEYS = KEYS_, WARPS = WARPS_, BLOCKS = BLOCKS_, WARP_ROWS = 16;
    static constexpr int THREADS = WARPS * 32, TILE = WARPS * WARP_ROWS;
    static constexpr int STRIDE = D + 8, V_STRIDE = D + 4; // floats: of q's and k's rows, of v's
    static constexpr int N = KEYS / 8, NV = DV / 8,
                         DEPTH = 4; // fragments of scores, of the output; of a sum that begins at zero
    // Index [half]: row lane / 4 + 8 half of the warp. Needed once a tile, so they stay in shared memory.
    struct sums {
        float m[2], d[2];
    };
    struct state {
        float o[NV][4];
    };
    using scores = float[N][4];
    // Where this holds, barriers of the warp keep the compiler from loading values many steps ahead: registers would not suffice.
#if __CUDA_ARCH__ >= 900
    static constexpr bool FEW_AHEAD = D > 128;
#else
    static constexpr bool FEW_AHEAD = true;
#endif
    // What of the work item the loop asks for, in shared memory: registers are scarce.
    struct block {
        kf_block w;
        const char *k, *v; // key 0
    };
    static constexpr int SHARED = ((TILE + KEYS) * STRIDE + KEYS * V_STRIDE) * 4 + THREADS * sizeof(sums) + TILE * 8 +
                                  sizeof(block) + 16 + KEYS * 4;
    static_assert(D % (8 * DEPTH) == 0 && KEYS % 8 == 0 && KEYS <= 64, "");

    // The tensor core cuts `low` to 11 bits, by 0.36 units of the last one on average: by so much the sums of the small products are raised.
    static constexpr float CUT = 1.0f + 0.36f / 1024;

    // x = high + low, both of 11 bits.
    static __device__ __forceinline__ void split(float x, uint32_t &high, uint32_t &low) {
        high = (__float_as_uint(x) + 0x1000u) & 0xffffe000u; // to the nearest
        low = __float_as_uint(x - __uint_as_float(high));
    }

    // c += a b
    static __device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
        asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
    // The same in parts: the small products have a sum of their own, where what is cut off is small, too.
    static __device__ __forceinline__ void multiply(float (&c)[4], float (&small)[4], const uint32_t (&high)[4],
                                                    const uint32_t (&low)[4], float b0, float b1) {
        uint32_t h0, l0, h1, l1;
        split(b0, h0, l0), split(b1, h1, l1);
        multiply(small, low, h0, h1);
        multiply(small, high, l0, l1);
        multiply(c, high, h0, h1);
    }

    static __device__ __forceinline__ float2 pair(const float *at) { return *reinterpret_cast<const float2 *>(at); }

    // Keys first .. of k or v to a tile of floats, rows ROW apart.
    template <int ROW>
    static __device__ __forceinline__ void load(float *to, const kf_cuda_attention &a, const kf_block &w,
                                                const char *base, int64_t stride, int32_t first, int width) {
        const int size = kf_size_of(a.kv_type), thread = kf_thread();
        const int32_t lo = w.lo, hi = w.hi;
        if (a.kv_type == KF_F32 && (!GENERAL || a.aligned)) {
            constexpr int CHUNKS = D / 4;
#pragma unroll 2
            for (int i = thread; i < KEYS * CHUNKS; i += THREADS) {
                const int row = i / CHUNKS, chunk = i % CHUNKS, j = first + row;
                const bool there = j >= lo && j < hi && 4 * chunk < width;
                const char *from = base + 4 * (j * stride + 4 * chunk);
                kf_copy16(kf_shared(to + row * ROW + 4 * chunk), there ? from : base, there ? 16 : 0);
            }
            return;
        }
        constexpr int CHUNKS = D / KF_CHUNK;
#pragma unroll 1
        for (int i = thread; i < KEYS * CHUNKS; i += THREADS) {
            const int row = i / CHUNKS, chunk = i % CHUNKS, j = first + row;
            float x[KF_CHUNK] = {};
            if (j >= lo && j < hi && KF_CHUNK * chunk < width)
                kf_load8(x, base + size * (j * stride + KF_CHUNK * chunk), a.kv_type, !GENERAL || a.aligned);
            kf_store8(to + row * ROW + KF_CHUNK * chunk, x);
        }
    }

    // q, k: at this lane's row (lane / 4) and column (2 (lane mod 4)).
    static __device__ __forceinline__ void products(const float *q, const float *k, scores &s) {
#pragma unroll
        for (int n = 0; n < N; n++) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
#pragma unroll 1
        for (int c = 0; c < D; c += 8 * DEPTH) {
            float sum[N][4] = {}, small[N][4] = {};
#pragma unroll
            for (int kk = 0; kk < DEPTH; kk++) {
                const float2 upper = pair(q + c + 8 * kk), lower = pair(q + c + 8 * kk + 8 * STRIDE);
                uint32_t high[4], low[4];
                split(upper.x, high[0], low[0]), split(lower.x, high[1], low[1]);
                split(upper.y, high[2], low[2]), split(lower.y, high[3], low[3]);
#pragma unroll
                for (int n = 0; n < N; n++) {
                    const float2 b = pair(k + c + 8 * kk + 8 * n * STRIDE);
                    multiply(sum[n], small[n], high, low, b.x, b.y);
                }
            }
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) s[n][e] += fmaf(small[n][e], CUT, sum[n][e]);
        }
    }

    // Products to logits, -inf outside of the rows' intervals. Returns, for the keys of this lane, which ones some row of the warp sees.
    static __device__ __forceinline__ uint32_t logits(const kf_cuda_attention &a, const kf_block &w, scores &s,
                                                      const int2 *keys, int32_t first, int row0, int lane) {
        uint32_t seen = 0;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = row0 + 8 * half + lane / 4;
            const int2 see = keys[row];
            kf_logit_row view = {};
            if (GENERAL) view = kf_logit_row_find(a, w, row);
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int32_t j = first + 8 * n + 2 * (lane & 3) + e;
                    float &x = s[n][2 * half + e];
                    x = j < see.x || j >= see.y ? -INFINITY : GENERAL ? kf_logit<true>(a, view, j, x) : x * a.scale;
                    if (GENERAL && x != -INFINITY) seen |= 1u << (2 * n + e);
                }
        }
        if (!GENERAL) return ~0u;
        seen |= __shfl_xor_sync(0xffffffffu, seen, 4);
        seen |= __shfl_xor_sync(0xffffffffu, seen, 8);
        return seen | __shfl_xor_sync(0xffffffffu, seen, 16);
    }

    // The rows' maxima grow; p = e^(s - m) takes the scores' place; d and o follow.
    static __device__ __forceinline__ void probabilities(state &x, sums &md, scores &s) {
        float factor[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float top = md.m[half], sum = 0.0f;
#pragma unroll
            for (int n = 0; n < N; n++) top = fmaxf(top, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
            top = kf_quad_max(top);
            const float origin = kf_part_origin(top);
            factor[half] = kf_exp2_fast((md.m[half] - origin) * KF_LOG2E);
            md.m[half] = top;
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float &p = s[n][2 * half + e];
                    p = kf_exp2_fast((p - origin) * KF_LOG2E);
                    sum += p;
                }
            md.d[half] = fmaf(md.d[half], factor[half], sum);
        }
        if (!__any_sync(0xffffffffu, factor[0] != 1.0f || factor[1] != 1.0f)) return;
#pragma unroll
        for (int n = 0; n < NV; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) x.o[n][e] *= factor[e / 2];
    }

    // Marks the keys that a warp's rows see: the bits that logits gave.
    static __device__ __forceinline__ void mark(int *flags, uint32_t seen, int lane) {
        if (lane >= 4) return; // the other lanes hold the same
#pragma unroll
        for (int i = 0; i < 2 * N; i++)
            if (seen >> i & 1) atomicOr(&flags[i / 2 * 8 + 2 * lane + i % 2], 1);
    }

    // Values of keys that no row of the block sees become zero: no 0 * NaN.
    static __device__ __forceinline__ void forget(float *v, const int *flags, int warp, int lane) {
        for (int row = warp; row < KEYS; row += WARPS)
            for (int c = lane; c < DV && !flags[row]; c += 32) v[row * V_STRIDE + c] = 0.0f;
    }

    // o += p v. v: at this lane's key (2 (lane mod 4)) and column (lane / 4).
    static __device__ __forceinline__ void fold(state &x, const scores &p, const float *v) {
        uint32_t high[N][4], low[N][4];
#pragma unroll
        for (int j = 0; j < N; j++) {
            split(p[j][0], high[j][0], low[j][0]), split(p[j][2], high[j][1], low[j][1]);
            split(p[j][1], high[j][2], low[j][2]), split(p[j][3], high[j][3], low[j][3]);
        }
#pragma unroll
        for (int n = 0; n < NV; n++) {
            float sum[4] = {}, small[4] = {};
#pragma unroll
            for (int j = 0; j < N; j++) {
                if (FEW_AHEAD) __syncwarp();
                multiply(sum, small, high[j], low[j], v[8 * j * V_STRIDE + 8 * n], v[(8 * j + 1) * V_STRIDE + 8 * n]);
            }
#pragma unroll
            for (int e = 0; e < 4; e++) x.o[n][e] += fmaf(small[e], CUT, sum[e]);
        }
    }

    // Of the four lanes that share rows, lane `half` finishes a row: where o goes (in elements), and its factor.
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
                                                  const sums &md, int row0, int lane) {
        float my_m = -INFINITY, my_d = 0.0f, my_factor = 0.0f;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float d = kf_quad_sum(md.d[half]);
            if ((lane & 3) == half) my_m = md.m[half], my_d = d;
        }
        int64_t my_place = -1;
        if ((lane & 3) < 2) my_place = finish_row(a, w, row0 + lane / 4 + 8 * (lane & 3), my_m, my_d, &my_factor);
        char *const to = a.splits > 1 ? reinterpret_cast<char *>(a.part_o) : a.o;
        const int type = a.splits > 1 ? (int)KF_F32 : a.o_type, size = kf_size_of(type);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int64_t place = __shfl_sync(0xffffffffu, my_place, (lane & ~3) + half);
            const float factor = __shfl_sync(0xffffffffu, my_factor, (lane & ~3) + half);
            if (place < 0) continue;
#pragma unroll
            for (int n = 0; n < NV; n++) {
                const int column = 8 * n + 2 * (lane & 3);
                if (column >= a.Dv) continue;
                char *const at = to + size * (place + column);
                const float y0 = x.o[n][2 * half] * factor, y1 = x.o[n][2 * half + 1] * factor;
                if (type == KF_F32 && (a.aligned || a.splits > 1))
                    *reinterpret_cast<float2 *>(at) = make_float2(y0, y1);
                else
                    kf_store_element(at, type, y0), kf_store_element(at + size, type, y1);
            }
        }
    }

    // The row once more, by plain multiply-adds: a lane has the columns lane + 32 i. my_q: the row in shared memory.
    static __device__ __forceinline__ void repeat_row(const kf_cuda_attention &a, const block *kept, const float *my_q,
                                                      int2 see, int row, int lane) {
        constexpr int COLUMNS = D / 32;
        const kf_block w = kept->w;
        kf_logit_row view = {};
        if (GENERAL) view = kf_logit_row_find(a, w, row);
        float o[COLUMNS] = {}, m = -INFINITY, d = 0.0f;
#pragma unroll 1
        for (int32_t j = max(see.x, w.lo); j < min(see.y, w.hi); j++) {
            float s = 0.0f;
#pragma unroll
            for (int i = 0; i < COLUMNS; i++)
                if (lane + 32 * i < a.D)
                    s = fmaf(my_q[lane + 32 * i], kf_load_float(kept->k, a.kv_type, j * a.k_stride[2] + lane + 32 * i),
                             s);
#pragma unroll
            for (int step = 16; step; step /= 2) s += __shfl_xor_sync(0xffffffffu, s, step);
            s = GENERAL ? kf_logit<true>(a, view, j, s) : s * a.scale;
            if (s == -INFINITY) continue; // hidden, or of no weight
            const float top = fmaxf(m, s), factor = kf_exp2_fast((m - top) * KF_LOG2E);
            const float p = kf_exp2_fast((s - top) * KF_LOG2E);
            m = top, d = fmaf(d, factor, p);
#pragma unroll
            for (int i = 0; i < COLUMNS; i++)
                if (lane + 32 * i < a.Dv)
                    o[i] = fmaf(p, kf_load_float(kept->v, a.kv_type, j * a.v_stride[2] + lane + 32 * i), o[i] * factor);
        }
        float factor;
        const int64_t place = finish_row(a, w, row, m, d, &factor); // all lanes write the same
        if (place < 0) return;
        char *const to = a.splits > 1 ? reinterpret_cast<char *>(a.part_o) : a.o;
        const int type = a.splits > 1 ? (int)KF_F32 : a.o_type;
#pragma unroll
        for (int i = 0; i < COLUMNS; i++)
            if (lane + 32 * i < a.Dv)
                kf_store_element(to + kf_size_of(type) * (place + lane + 32 * i), type, o[i] * factor);
    }

    // Which of the warp's rows hold NaN: bits 4 (lane / 4) .. of `half`.
    static __device__ __forceinline__ uint32_t broken_rows(const state &x, const sums &md, int half) {
        float all = md.d[half];
#pragma unroll
        for (int n = 0; n < NV; n++) all = fmaf(x.o[n][2 * half] + x.o[n][2 * half + 1], 0.0f, all);
        return __ballot_sync(0xffffffffu, isnan(all));
    }

    // Not where this kernel turns the keys: an infinity among them is NaN then.
    static __device__ __noinline__ void repeat_rows(const kf_cuda_attention &a, const block *kept, uint32_t lanes,
                                                    const float *q, const int2 *keys, int row0, int lane) {
        if (GENERAL && a.rope.k) return;
        while (lanes) {
            const int group = (__ffs(lanes) - 1) / 4, row = row0 + group;
            lanes &= ~(15u << 4 * group);
            repeat_row(a, kept, q + row * STRIDE, keys[row], row, lane);
        }
    }

    static __device__ __forceinline__ void run(const kf_cuda_attention &a) {
        extern __shared__ __align__(128) float numbers[];
        float *const q = numbers, *const k = q + TILE * STRIDE, *const v = k + KEYS * STRIDE;
        sums *const mine = reinterpret_cast<sums *>(v + KEYS * V_STRIDE) + threadIdx.x;
        int2 *const keys = reinterpret_cast<int2 *>(v + KEYS * V_STRIDE + 4 * THREADS);
        block *const kept = reinterpret_cast<block *>(keys + TILE);
        int *const ends = reinterpret_cast<int *>(kept + 1), *const flags = ends + 4;
        const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5, row0 = warp * WARP_ROWS;
        const int size = kf_size_of(a.kv_type);
        kf_wait_for_previous();
        kf_block w = kf_block_find(a, blockIdx.x, TILE);
        kf_block_range<THREADS>(a, w, ends);
        if (thread == 0) {
            kept->w = w;
            kept->k = a.k + size * (w.b * a.k_stride[0] + w.kv_head * a.k_stride[1]);
            kept->v = a.v + size * (w.b * a.v_stride[0] + w.kv_head * a.v_stride[1]);
        }
        __syncthreads();
        // One past the first tile, for they go from right to left.
        int32_t t = w.hi > w.lo ? (w.hi + KEYS - 1) / KEYS : 0;
        if (t > 0) load<STRIDE>(k, a, kept->w, kept->k, a.k_stride[2], (t - 1) * KEYS, a.D);
        kf_copy_commit();
        kf_load_queries_fp32<TILE, D, STRIDE, THREADS>(q, a, w, thread);
        for (int row = thread; row < TILE; row += THREADS) keys[row] = kf_block_row_keys(a, w, row);
        if (a.rope.q) {
            __syncthreads();
            kf_rotate_queries<WARP_ROWS, true>(a, w, kf_rope_tile_fp32<STRIDE>{q}, row0, lane);
        }
        state x;
        *mine = sums{{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
#pragma unroll
        for (int n = 0; n < NV; n++) x.o[n][0] = x.o[n][1] = x.o[n][2] = x.o[n][3] = 0.0f;
        const float *const my_q = q + (row0 + lane / 4) * STRIDE + 2 * (lane & 3);
        const float *const my_k = k + lane / 4 * STRIDE + 2 * (lane & 3);
        const float *const my_v = v + 2 * (lane & 3) * V_STRIDE + lane / 4;
        const bool sparse = GENERAL && kf_is_sparse(a);
#pragma unroll 1
        while (t * KEYS > kept->w.lo) {
            scores s;
            t--;
            uint32_t seen = ~0u;
            kf_copy_wait<0>();
            __syncthreads(); // tile t of k is there, and no warp reads v of tile t + 1 any more
            load<V_STRIDE>(v, a, kept->w, kept->v, a.v_stride[2], t * KEYS, a.Dv);
            kf_copy_commit();
            if (sparse && thread < KEYS) flags[thread] = 0;
            if (GENERAL && a.rope.k) {
                for (int row = warp; row < KEYS; row += WARPS)
                    kf_rotate_row(a.rope, kf_rope_tile_fp32<STRIDE>{k}, row, (int64_t)t * KEYS + row, lane);
                __syncthreads();
            }
            products(my_q, my_k, s);
            __syncthreads(); // k is free
            if (t * KEYS > kept->w.lo) load<STRIDE>(k, a, kept->w, kept->k, a.k_stride[2], (t - 1) * KEYS, a.D);
            kf_copy_commit();
            if (!GENERAL && t * KEYS >= kept->w.full_lo && (t + 1) * KEYS <= kept->w.full_hi) {
#pragma unroll
                for (int n = 0; n < N; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++) s[n][e] *= a.scale;
            } else {
                seen = logits(a, kept->w, s, keys, t * KEYS, row0, lane);
            }
            if (sparse) mark(flags, seen, lane);
            sums md = *mine;
            probabilities(x, md, s);
            *mine = md;
            kf_copy_wait<1>(); // v, and not yet the next tile of k
            __syncthreads();
            if (sparse) {
                forget(v, flags, warp, lane);
                __syncthreads();
            }
            fold(x, s, my_v);
        }
        kf_copy_wait<0>();
        kf_launch_dependents();
        const uint32_t broken[2] = {broken_rows(x, *mine, 0), broken_rows(x, *mine, 1)};
        finish(a, kept->w, x, *mine, row0, lane);
        if (broken[0] | broken[1]) {
            const int again = kf_thread(); // or numbers that are needed here alone stay in registers through the loop
            __syncwarp();                  // what is written twice keeps its order
            for (int half = 0; half < 2; half++)
                repeat_rows(a, kept, broken[half], q, keys, (again >> 5) * WARP_ROWS + 8 * half, again & 31);
        }
    }
};

template <class P>
__global__ void __launch_bounds__(P::THREADS, P::BLOCKS)
    kf_prefill_fp32_kernel(const __grid_constant__ kf_cuda_attention a) {
    P::run(a);
}

#define KF_PREFILL_FP32_ROW(D, KEYS, WARPS, BLOCKS, GENERAL)                                                           \
    {                                                                                                                  \
        KF_CUDA_PREFILL, KF_F32, 0, D, D, GENERAL, kf_prefill_fp32<D, KEYS, WARPS, BLOCKS, GENERAL>::TILE, KEYS,       \
            (WARPS)*32, BLOCKS, kf_prefill_fp32<D, KEYS, WARPS, BLOCKS, GENERAL>::SHARED, 80,                          \
            (const void *)kf_prefill_fp32_kernel<kf_prefill_fp32<D, KEYS, WARPS, BLOCKS, GENERAL>>,                    \
            "prefill, " #WARPS " warps of 16 rows, " #KEYS " keys, D=" #D ", fp32 in two parts, mma.sync m16n8k8"      \
    }
#define KF_PREFILL_FP32_ROWS(D, KEYS, WARPS, BLOCKS)                                                                   \
    KF_PREFILL_FP32_ROW(D, KEYS, WARPS, BLOCKS, false), KF_PREFILL_FP32_ROW(D, KEYS, WARPS, 1, true)

// The first one for 256 takes 203 KB of shared memory, the second one 85.
extern "C" const kf_cuda_attention_kernel kf_cuda_prefill_fp32[] = {
    KF_PREFILL_FP32_ROWS(64, 64, 4, 3),
    KF_PREFILL_FP32_ROWS(128, 32, 4, 2),
    KF_PREFILL_FP32_ROWS(256, 32, 8, 1),
    KF_PREFILL_FP32_ROWS(256, 16, 3, 2),
    {},
};
