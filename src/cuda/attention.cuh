// SPDX-License-Identifier: Apache-2.0
//
// What the prefill and the decode kernel share: which rows and keys are a block's, the loads of tiles, what makes scores
// into logits, the end of a row.
//
// A row's numbers, beside o:
//     origin     what the exponents are taken relative to; KF_NO_ORIGIN while no key was seen
//     d          sum of p
// Plain kernels: origin in units of log2, p = 2^(c s - origin) with s = q . k and c = scale log2(e), one multiply-add. General
// kernels: origin in the logits' own units, p = 2^((s - origin) log2(e)), for a bias may be the smallest number there is. What leaves
// a kernel is in its own unit; kf_cuda_attention.unit says which.
// origin follows the row's maximum only when a score passes it by KF_SLACK: o and d then need no factor in almost every tile, p is
// at most 2^KF_SLACK, and o / d is the same number. Each thread compares its own scores with its rows' origins; only where
// one passes does the warp find the true maxima.
#ifndef KF_CUDA_ATTENTION_CUH
#define KF_CUDA_ATTENTION_CUH

#include <float.h>

#include "cuda/attention.h"
#include "cuda/mma.cuh"
#include "math/alibi.h"
#include "math/mask.h"
#include "math/state.h"

// p stays below 2^8 (e^8 in general kernels), far from the end of fp16; each factor of 2 costs nothing in a floating-point sum.
#define KF_SLACK 8.0f

// Lies below every other number by more than KF_SLACK, and an infinite score less it is still infinite. The one score that equals it
// has the weight 1, as it should.
#define KF_NO_ORIGIN (-FLT_MAX)

// What exponents of partial states are taken relative to. Where all are -inf, so is m, and -inf - -inf would be NaN: then 0.
__device__ __forceinline__ float kf_part_origin(float m) { return m == -INFINITY ? 0.0f : m; }

// m of a finished row; -inf for one that saw nothing.
__device__ __forceinline__ float kf_maximum(float origin, float d) { return d == 0.0f ? -INFINITY : origin; }

// A product of q and k less the origin, in units of log2 in plain kernels; p; and the factor of what was relative to `before`.
template <bool GENERAL> __device__ __forceinline__ float kf_exponent(float s, float c, float origin) {
    return GENERAL ? s - origin : fmaf(s, c, -origin);
}
template <bool GENERAL> __device__ __forceinline__ float kf_power(float exponent) {
    return kf_exp2_fast(GENERAL ? exponent * KF_LOG2E : exponent);
}
template <bool GENERAL> __device__ __forceinline__ float kf_probability(float s, float c, float origin) {
    return kf_power<GENERAL>(kf_exponent<GENERAL>(s, c, origin));
}

// Some score passed its row's origin by too much: the rows' true maxima become the origins. o as accumulators of tiles of 16 rows.
template <bool GENERAL, int TILES, int BLOCKS>
__device__ __forceinline__ void kf_rescale(float (&o)[TILES][BLOCKS][4], float (&origin)[TILES][2],
                                           float (&d)[TILES][2], const float (&most)[TILES][2], float c) {
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float before = origin[m][half], top = kf_quad_max(most[m][half]) * c;
            if (top > before) origin[m][half] = top;
            const float factor = kf_power<GENERAL>(before - origin[m][half]);
            d[m][half] *= factor;
#pragma unroll
            for (int n = 0; n < BLOCKS; n++) o[m][n][2 * half] *= factor, o[m][n][2 * half + 1] *= factor;
        }
}

enum { KF_F32 = 1, KF_F16 = 2, KF_BF16_TYPE = 3 }; // kf_type of core/internal.h; checked in attention.c

// The work item of this block.
struct kf_block {
    int32_t b, head0, kv_head; // sequence, first query head of the list, its KV head
    int32_t list, tile, split;
    int32_t row0, rows;       // first row of the tile, rows in it
    int32_t length, offset;   // key length; query i stands at position i + offset, unless positions are given
    int32_t lo, hi;           // keys that some row of the tile sees, within the split
    int32_t full_lo, full_hi; // keys that every row sees
};

__device__ __forceinline__ int64_t kf_integer(const char *data, int wide, int64_t index) {
    return wide ? reinterpret_cast<const int64_t *>(data)[index] : reinterpret_cast<const int32_t *>(data)[index];
}

// Lengths live on the device, so no host has checked them: those out of range are taken as the nearest in range.
__device__ __forceinline__ int32_t kf_key_length(const kf_cuda_attention &a, int32_t b) {
    const int64_t length = a.key_lengths ? kf_integer(a.key_lengths, a.length_wide, b * a.length_stride) : a.Nk;
    return (int32_t)kf_min64(kf_max64(length, 0), a.Nk);
}

// Sections of lists; in a section the last tiles first (under a causal mask these see the most keys, and what is heavy
// should start early), lists innermost. Nothing is read from memory: what depends on the sequence's length is not set yet.
__device__ __forceinline__ kf_block kf_block_place(const kf_cuda_attention &a, uint32_t index, int tile_rows) {
    kf_block w;
    const uint32_t per_list = (uint32_t)(a.tiles * a.splits), per_section = per_list * a.section;
    const uint32_t section = index / per_section, rest = index - section * per_section;
    const uint32_t first = section * a.section, width = min((uint32_t)a.section, a.lists - first);
    const uint32_t place = rest / width;
    w.list = first + (rest - place * width);
    const uint32_t tile = a.splits == 1 ? place : place / a.splits;
    w.tile = a.tiles - 1 - tile;
    w.split = place - tile * a.splits;
    w.b = (uint32_t)w.list / (uint32_t)a.sequence_lists;
    const uint32_t of_sequence = w.list - w.b * a.sequence_lists;
    w.head0 = of_sequence * a.heads;
    w.kv_head = a.kv_lists == 1 ? of_sequence : of_sequence / a.kv_lists;
    w.row0 = w.tile * tile_rows;
    w.rows = min(tile_rows, a.rows - w.row0);
    return w;
}

__device__ __forceinline__ void kf_block_set_length(const kf_cuda_attention &a, kf_block &w) {
    w.length = kf_key_length(a, w.b);
    w.offset = w.length - a.Nq;
}

__device__ __forceinline__ kf_block kf_block_find(const kf_cuda_attention &a, uint32_t index, int tile_rows) {
    kf_block w = kf_block_place(a, index, tile_rows);
    kf_block_set_length(a, w);
    return w;
}

__device__ __forceinline__ int64_t kf_block_position(const kf_cuda_attention &a, const kf_block &w, int32_t query) {
    if (!a.positions) return (int64_t)query + w.offset;
    return kf_integer(a.positions, a.position_wide, w.b * a.position_stride[0] + query * a.position_stride[1]);
}

// Row r of the list is query .x of head head0 + .y.
__device__ __forceinline__ int2 kf_block_row(const kf_cuda_attention &a, int32_t r) {
    if (a.heads == 1) return make_int2(r, 0); // no division where nothing is packed
    const int32_t query = (uint32_t)r / (uint32_t)a.heads;
    return make_int2(query, r - query * a.heads);
}

// The keys of row `row` of the tile. Rows past the end see nothing.
__device__ __forceinline__ int2 kf_block_row_keys(const kf_cuda_attention &a, const kf_block &w, int32_t row) {
    if (row >= w.rows) return make_int2(0, 0);
    const kf_mask mask = {w.length, a.window_left, a.window_right};
    const kf_interval keys = kf_mask_row(&mask, kf_block_position(a, w, kf_block_row(a, w.row0 + row).x));
    // An interval that ends before the first key must not reach 32 bits.
    return make_int2((int32_t)kf_min64(keys.lo, INT32_MAX), (int32_t)kf_min64(kf_max64(keys.hi, 0), INT32_MAX));
}

// Sets lo, hi, full_lo, full_hi. All threads of the block call it; ends[] are four integers in shared memory.
template <int THREADS>
__device__ __forceinline__ void kf_block_range(const kf_cuda_attention &a, kf_block &w, int *ends) {
    if (!a.positions) {
        const kf_mask mask = {w.length, a.window_left, a.window_right};
        const int64_t p0 = (int64_t)kf_block_row(a, w.row0).x + w.offset;
        const int64_t p1 = (int64_t)kf_block_row(a, w.row0 + w.rows - 1).x + w.offset;
        const kf_interval first = kf_mask_row(&mask, p0), last = kf_mask_row(&mask, p1);
        w.lo = (int32_t)kf_min64(first.lo, INT32_MAX), w.hi = (int32_t)kf_max64(last.hi, 0);
        w.full_lo = (int32_t)kf_min64(last.lo, INT32_MAX), w.full_hi = (int32_t)kf_max64(first.hi, 0);
    } else { // any order: the ends of all rows
        if (threadIdx.x == 0) ends[0] = ends[3] = INT32_MAX, ends[1] = ends[2] = 0;
        __syncthreads();
        for (int row = threadIdx.x; row < w.rows; row += THREADS) {
            const int2 mine = kf_block_row_keys(a, w, row);
            if (mine.y > mine.x) atomicMin(&ends[0], mine.x), atomicMax(&ends[1], mine.y);
            atomicMax(&ends[2], mine.x), atomicMin(&ends[3], mine.y);
        }
        __syncthreads();
        w.lo = ends[0], w.hi = ends[1], w.full_lo = ends[2], w.full_hi = ends[3];
    }
    if (a.splits > 1) {
        const int64_t first = (int64_t)w.split * a.split;
        w.lo = (int32_t)kf_max64(w.lo, first), w.hi = (int32_t)kf_min64(w.hi, first + a.split);
    }
    if (w.hi < w.lo) w.hi = w.lo;
}

__device__ __forceinline__ const char *kf_keys_at(const kf_cuda_attention &a, const kf_block &w) {
    return a.k + 2 * (w.b * a.k_stride[0] + w.kv_head * a.k_stride[1]);
}
__device__ __forceinline__ const char *kf_values_at(const kf_cuda_attention &a, const kf_block &w) {
    return a.v + 2 * (w.b * a.v_stride[0] + w.kv_head * a.v_stride[1]);
}

// One chunk of a row, 8 elements of which `left` are there, without any alignment: ordinary stores.
__device__ __forceinline__ void kf_copy_chunk_slow(uint32_t to, const char *from, int left) {
    uint32_t word[4] = {0, 0, 0, 0};
    const uint16_t *x = reinterpret_cast<const uint16_t *>(from);
#pragma unroll
    for (int i = 0; i < KF_CHUNK; i++)
        if (i < left) word[i / 2] |= (uint32_t)x[i] << (i % 2 * 16);
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(word[0]), "r"(word[1]), "r"(word[2]),
                 "r"(word[3])
                 : "memory");
}

// Rows first .. first + ROWS - 1 of a matrix of `width` columns to a tile of COLS columns in shared memory, by THREADS
// threads of which this is `thread`. Rows outside [lo, hi) and columns from `width` on become zero and are not read.
template <int ROWS, int COLS, int THREADS, bool GENERAL>
__device__ __forceinline__ void kf_load_tile(uint32_t to, const char *base, int64_t stride, int32_t first, int32_t lo,
                                             int32_t hi, int32_t width, bool aligned, int thread) {
    constexpr int CHUNKS = COLS / KF_CHUNK;
#pragma unroll 1
    for (int i = thread; i < ROWS * CHUNKS; i += THREADS) {
        const int row = i / CHUNKS, chunk = i % CHUNKS, j = first + row;
        const int left = j >= lo && j < hi ? width - chunk * KF_CHUNK : 0;
        const char *from = base + 2 * ((int64_t)j * stride) + chunk * 16;
        const uint32_t place = to + kf_swizzle<COLS>(row, chunk);
        if (!GENERAL || aligned)
            kf_copy16(place, left > 0 ? from : base, left > 0 ? 16 : 0);
        else
            kf_copy_chunk_slow(place, from, left);
    }
}

// The same where all rows are there.
template <int ROWS, int COLS, int THREADS, bool GENERAL>
__device__ __forceinline__ void kf_load_whole_tile(uint32_t to, const char *base, int64_t stride, int32_t first,
                                                   int32_t width, bool aligned, int thread) {
    constexpr int CHUNKS = COLS / KF_CHUNK;
    static_assert(ROWS * CHUNKS % THREADS == 0, "every thread copies as many chunks");
    if (width != COLS || (GENERAL && !aligned)) {
        kf_load_tile<ROWS, COLS, THREADS, GENERAL>(to, base, stride, first, 0, INT32_MAX, width, aligned, thread);
        return;
    }
    if constexpr (THREADS % CHUNKS == 0) { // the same chunk of every (THREADS / CHUNKS)-th row
        constexpr int STEP = THREADS / CHUNKS;
        const int row = thread / CHUNKS, chunk = thread % CHUNKS;
        const char *from = base + 2 * ((int64_t)(first + row) * stride) + chunk * 16;
#pragma unroll
        for (int i = 0; i < ROWS * CHUNKS / THREADS; i++) {
            kf_copy16(to + kf_swizzle<COLS>(row + i * STEP, chunk), from);
            from += 2 * STEP * stride;
        }
    } else {
#pragma unroll 1
        for (int i = thread; i < ROWS * CHUNKS; i += THREADS) {
            const int row = i / CHUNKS, chunk = i % CHUNKS;
            kf_copy16(to + kf_swizzle<COLS>(row, chunk), base + 2 * ((int64_t)(first + row) * stride) + chunk * 16);
        }
    }
}

// The rows of a tile of queries: gathered from the heads of the list.
template <int ROWS, int COLS, int THREADS, bool GENERAL>
__device__ __forceinline__ void kf_load_queries(uint32_t to, const kf_cuda_attention &a, const kf_block &w,
                                                int thread) {
    constexpr int CHUNKS = COLS / KF_CHUNK;
    const char *base = a.q + 2 * (w.b * a.q_stride[0]);
    if (ROWS * CHUNKS % THREADS == 0 && a.heads == 1 && w.rows == ROWS) {
        kf_load_whole_tile<ROWS, COLS, THREADS, GENERAL>(to, base + 2 * (w.head0 * a.q_stride[1]), a.q_stride[2],
                                                         w.row0, a.D, a.aligned, thread);
        return;
    }
#pragma unroll 1
    for (int i = thread; i < ROWS * CHUNKS; i += THREADS) {
        const int row = i / CHUNKS, chunk = i % CHUNKS, r = w.row0 + row;
        const int left = row < w.rows ? a.D - chunk * KF_CHUNK : 0;
        const int2 at = kf_block_row(a, r);
        const char *from = base + 2 * ((w.head0 + at.y) * a.q_stride[1] + at.x * a.q_stride[2]) + chunk * 16;
        const uint32_t place = to + kf_swizzle<COLS>(row, chunk);
        if (!GENERAL || a.aligned)
            kf_copy16(place, left > 0 ? from : base, left > 0 ? 16 : 0);
        else
            kf_copy_chunk_slow(place, from, left);
    }
}

// ---------------------------------------------------------------------------------------------------------- logits

__device__ __forceinline__ float kf_load_float(const char *data, int type, int64_t index) {
    if (type == KF_F32) return reinterpret_cast<const float *>(data)[index];
    const uint16_t bits = reinterpret_cast<const uint16_t *>(data)[index];
    if (type == KF_F16) return __half2float(__ushort_as_half(bits));
    return __uint_as_float((uint32_t)bits << 16);
}

// A row as the general kernels see it.
struct kf_logit_row {
    int64_t position;
    const char *bias;    // at key 0; NULL: none
    const uint8_t *mask; // likewise
    float slope;
};

__device__ __forceinline__ kf_logit_row kf_logit_row_find(const kf_cuda_attention &a, const kf_block &w, int32_t row) {
    const int2 at = kf_block_row(a, min(w.row0 + row, a.rows - 1));
    const int32_t query = at.x, head = w.head0 + at.y;
    kf_logit_row x;
    x.position = kf_block_position(a, w, query);
    x.slope = a.alibi_slopes ? a.alibi_slopes[head] : 0.0f;
    x.bias = NULL;
    x.mask = NULL;
    if (a.bias)
        x.bias = a.bias + (w.b * a.bias_stride[0] + head * a.bias_stride[1] + query * a.bias_stride[2]) *
                              (a.bias_type == KF_F32 ? 4 : 2);
    if (a.mask) x.mask = a.mask + w.b * a.mask_stride[0] + head * a.mask_stride[1] + query * a.mask_stride[2];
    return x;
}

// cap tanh(s / cap) as cap (1 - 2 / (e^(2 s / cap) + 1)): right at both ends, to 1e-7 cap.
__device__ __forceinline__ float kf_softcap(float s, float cap) {
    return cap - 2.0f * cap / (kf_exp2_fast(s * (2.0f * KF_LOG2E / cap)) + 1.0f);
}

// The product q . k of a row and key j (visible by its interval) as a logit; -inf where the mask or the bias hides it. EXACT: a
// softcap to fp32's last bits.
template <bool EXACT = false>
__device__ __forceinline__ float kf_logit(const kf_cuda_attention &a, const kf_logit_row &row, int32_t j,
                                          float product) {
    float s = product * a.scale;
    if (a.softcap > 0.0f) s = EXACT ? a.softcap * tanhf(s / a.softcap) : kf_softcap(s, a.softcap);
    if (a.alibi_slopes) s += kf_alibi_bias(row.slope, row.position, j);
    if (row.bias) {
        const float bias = kf_load_float(row.bias, a.bias_type, j * a.bias_stride[3]);
        s = bias == -INFINITY ? -INFINITY : s + bias;
    }
    if (row.mask && row.mask[j * a.mask_stride[3]] == 0) s = -INFINITY;
    return s;
}

// --------------------------------------------------------------------------------------------------------------- ends

// What becomes of a row: o is to be multiplied by `factor`.
struct kf_row_end {
    float factor, lse;
};

// m and d of all keys -> the factor and the LSE. The sink, where there is one, joins here.
__device__ __forceinline__ kf_row_end kf_row_finish(const kf_cuda_attention &a, int32_t head, float m, float d) {
    const kf_state state = {m, d};
    kf_row_end end;
    end.factor = kf_state_finish(a.unit, state, a.sinks ? a.sinks + head : NULL, a.lse ? &end.lse : NULL);
    return end;
}

__device__ __forceinline__ void kf_store_element(char *o, int type, float x) {
    if (type == KF_F32)
        *reinterpret_cast<float *>(o) = x;
    else if (type == KF_F16)
        *reinterpret_cast<__half *>(o) = __float2half_rn(x);
    else
        *reinterpret_cast<__nv_bfloat16 *>(o) = __float2bfloat16_rn(x);
}

// Four neighbours of a row, from a multiple of four on, times `factor`. aligned: rows begin at multiples of 16 bytes.
__device__ __forceinline__ void kf_store_four(char *o, int64_t place, int type, bool aligned, const float (&x)[4],
                                              float factor) {
    const int size = type == KF_F32 ? 4 : 2;
    if (!aligned) {
#pragma unroll
        for (int e = 0; e < 4; e++) kf_store_element(o + size * (place + e), type, x[e] * factor);
    } else if (type == KF_F32) {
        *reinterpret_cast<float4 *>(o + 4 * place) =
            make_float4(x[0] * factor, x[1] * factor, x[2] * factor, x[3] * factor);
    } else if (type == KF_F16) {
        *reinterpret_cast<uint2 *>(o + 2 * place) =
            make_uint2(kf_pack<__half>(x[0] * factor, x[1] * factor), kf_pack<__half>(x[2] * factor, x[3] * factor));
    } else {
        *reinterpret_cast<uint2 *>(o + 2 * place) = make_uint2(kf_pack<__nv_bfloat16>(x[0] * factor, x[1] * factor),
                                                               kf_pack<__nv_bfloat16>(x[2] * factor, x[3] * factor));
    }
}

#endif
