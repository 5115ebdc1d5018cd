// SPDX-License-Identifier: Apache-2.0
//
// What a bf16 prefill with rotated keys does otherwise: its q and k are fp16 (rotate_keys.cu says why), p and v stay bf16.
//
//     a row whose largest element is far from 1 is kept as row 2^e, so that fp16 holds it; a score of such a row or key is multiplied by
//     2^-e. Where a block has none, as usual, nothing is multiplied.
//
// What is converted is converted in place, in shared memory: both types have two bytes.
#ifndef KF_CUDA_PREFILL_ROTATED_CUH
#define KF_CUDA_PREFILL_ROTATED_CUH

#include "cuda/attention_rope.cuh"

template <class T, class TQ> constexpr bool kf_is_mixed = false;
template <> constexpr bool kf_is_mixed<__nv_bfloat16, __half> = true;

// What a block of such a prefill keeps in shared memory, registers being scarce in its loop: where the keys and values of its head begin, the
// factors of the keys' scores, and whether one of these or of the rows' is not 1.
struct kf_mixed_block {
    const char *k, *v;
    const float *key_scales;
    int odd;
};

// A tile of bf16 rows that become fp16 rows times scale[row].
template <int COLS> struct kf_mixed_tile {
    char *base;
    const float *scale;
    __device__ __forceinline__ char *at(int row, int column) const {
        return base + kf_swizzle<COLS>(row, column / KF_CHUNK) + 2 * (column % KF_CHUNK);
    }
    __device__ __forceinline__ float load(int row, int column) const {
        return (float)*reinterpret_cast<const __nv_bfloat16 *>(at(row, column)) * scale[row];
    }
    __device__ __forceinline__ void store(int row, int column, float x) const {
        *reinterpret_cast<__half *>(at(row, column)) = __float2half_rn(x);
    }
    __device__ __forceinline__ void load_chunk(int row, int chunk, float *x) const {
        kf_chunk_load<__nv_bfloat16>(base + kf_swizzle<COLS>(row, chunk), x);
#pragma unroll
        for (int e = 0; e < KF_CHUNK; e++) x[e] *= scale[row];
    }
    __device__ __forceinline__ void store_chunk(int row, int chunk, const float *x) const {
        kf_chunk_store<__half>(base + kf_swizzle<COLS>(row, chunk), x);
    }
};

// The power of two that a row is kept times: 1 where its largest element, turned, lies between 2^-12 and 2^15. `largest`: bits of a bf16
// without its sign.
__device__ __forceinline__ float kf_row_scale(uint32_t largest, float magnitude) {
    const float most = 1.5f * magnitude * __uint_as_float(largest << 16); // a pair (x, x) turns into (1.42 x, 0)
    if (largest == 0 || (most >= 0x1p-12f && most < 0x1p15f)) return 1.0f;
    const int exponent = min(most < INFINITY ? (int)(__float_as_uint(most) >> 23) - 127 : 128, 127);
    return exponent <= -127 ? 0x1p126f : __uint_as_float((uint32_t)(127 - min(exponent, 126)) << 23);
}

// 1 / scale, which is a power of two again: a division would be a call.
__device__ __forceinline__ float kf_row_unscale(float scale) {
    return __uint_as_float(0x7f000000u - __float_as_uint(scale));
}

// Largest magnitudes of two rows in fp16, 16 elements of each in every of LANES neighbouring lanes: bits of one in the lower half, of the other in the
// upper one.
__device__ __forceinline__ __half2 kf_most_of(const uint32_t (&x)[KF_CHUNK]) {
    __half2 most = __habs2(*reinterpret_cast<const __half2 *>(&x[0]));
#pragma unroll
    for (int i = 1; i < KF_CHUNK; i++) most = __hmax2(most, __habs2(*reinterpret_cast<const __half2 *>(&x[i])));
    return most;
}
template <int LANES>
__device__ __forceinline__ uint32_t kf_most_of_rows(const uint32_t (&x)[KF_CHUNK], const uint32_t (&y)[KF_CHUNK]) {
    const __half2 a = kf_most_of(x), b = kf_most_of(y);
    __half2 most = __hmax2(__lows2half2(a, b), __highs2half2(a, b));
#pragma unroll
    for (int i = 1; i < LANES; i *= 2) most = __hmax2(most, __shfl_xor_sync(0xffffffffu, most, i));
    return *reinterpret_cast<const uint32_t *>(&most);
}

// Of one row.
template <int LANES> __device__ __forceinline__ uint32_t kf_most_of_row(const uint32_t (&x)[KF_CHUNK]) {
    __half2 most = kf_most_of(x);
#pragma unroll
    for (int i = 1; i < LANES; i *= 2) most = __hmax2(most, __shfl_xor_sync(0xffffffffu, most, i));
    const uint32_t both = *reinterpret_cast<const uint32_t *>(&most);
    return max(both & 0xffffu, both >> 16);
}

// Whether a row of this largest magnitude, as bits of fp16, is good as fp16: from 2^-12 on and below 2^15. NaN is not, nor is 0: what was not 0 may
// have become it.
__device__ __forceinline__ bool kf_suits_half(uint32_t most) { return most - 0x0c00u < 0x7800u - 0x0c00u; }

// Bits of the largest magnitude of a row of bf16 that LANES neighbouring lanes have.
template <int LANES> __device__ __forceinline__ uint32_t kf_row_largest(const uint4 (&x)[2]) {
    const uint32_t word[KF_CHUNK] = {x[0].x, x[0].y, x[0].z, x[0].w, x[1].x, x[1].y, x[1].z, x[1].w};
    __nv_bfloat162 most = __floats2bfloat162_rn(0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < KF_CHUNK; i++)
        most = __hmax2(most, __habs2(*reinterpret_cast<const __nv_bfloat162 *>(&word[i])));
    const uint32_t both = *reinterpret_cast<const uint32_t *>(&most);
    uint32_t largest = max(both & 0xffffu, both >> 16);
#pragma unroll
    for (int i = 1; i < LANES; i *= 2) largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, i));
    return largest;
}

// Scales of rows row0 .. row0 + COUNT - 1, by one warp: a lane, or two of them, look through a row, each beginning at another chunk, so that they
// meet no bank twice. NaN has no say; a row with an infinity has infinite scores, whatever becomes of the rest. Whether a scale is not 1.
template <int COUNT, int COLS>
__device__ __forceinline__ bool kf_find_scales(const char *tile, float *scales, int row0, float magnitude, int lane) {
    static_assert(COUNT == 16 || COUNT == 32, "");
    constexpr int CHUNKS = COLS / KF_CHUNK, MINE = CHUNKS * COUNT / 32;
    const int row = row0 + lane % COUNT, first = lane / COUNT * MINE;
    __nv_bfloat162 most = __floats2bfloat162_rn(0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        const int chunk = first + (i + lane) % MINE; // the order of the swizzle does not matter
        const uint4 all = *reinterpret_cast<const uint4 *>(tile + row * (COLS * 2) + 16 * chunk);
        const uint32_t word[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
        for (int e = 0; e < 4; e++) most = __hmax2(most, __habs2(*reinterpret_cast<const __nv_bfloat162 *>(&word[e])));
    }
    const uint32_t both = *reinterpret_cast<const uint32_t *>(&most);
    uint32_t largest = max(both & 0xffffu, both >> 16);
    if (COUNT == 16) largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, 16));
    const float scale = kf_row_scale(largest, magnitude);
    if (lane < COUNT) scales[row] = scale;
    __syncwarp();
    return __any_sync(0xffffffffu, scale != 1.0f);
}

// The columns that were not turned, those from `column` on, in COUNT rows.
template <int COUNT, int COLS>
__device__ __forceinline__ void kf_narrow(kf_mixed_tile<COLS> tile, int row0, int column, int lane) {
    if (column >= COLS) return;
    for (int row = row0; row < row0 + COUNT; row++)
        for (int c = column + lane; c < COLS; c += 32) tile.store(row, c, tile.load(row, c));
}

// A row of bf16 that does not suit fp16 as it is, turned again, times a power of two, which is returned.
template <int LANES, bool SPLIT>
__device__ __forceinline__ float kf_turn_scaled(const uint4 (&x)[2], const float2 (&angle)[KF_CHUNK], float magnitude,
                                                bool suits, uint32_t (&turned)[KF_CHUNK]) {
    const uint32_t largest = kf_row_largest<LANES>(x);
    const float scale = suits ? 1.0f : kf_row_scale(largest, magnitude);
    kf_turn_chunks<__nv_bfloat16, __half, SPLIT>(x, angle, scale, turned);
    return scale;
}

// COUNT rows from `row` on of a tile of bf16 to fp16, turned, by one warp whose table (kf_rope_chunks) was prepared for the first one's position; `rows` of the
// tile are there. Whether all of them are good as fp16: most are, so they are looked at once they have turned.
template <int COUNT, int COLS, bool SPLIT>
__device__ __forceinline__ bool kf_turn_to_half(char *tile, int row, int rows, const char *table, int lane) {
    using chunks = kf_rope_chunks<COLS>;
    constexpr int PARTS = chunks::PARTS, STEP = chunks::AT_ONCE, STEPS = COUNT / (2 * STEP);
    static_assert(COUNT % (2 * STEP) == 0, "");
    const int part = lane % PARTS, low = SPLIT ? part : 2 * part, high = SPLIT ? part + PARTS : 2 * part + 1;
    row += lane / PARTS;
    float2 angle[KF_CHUNK], step[KF_CHUNK];
    chunks::angles(table, lane, angle, step);
    bool suit = true;
#pragma unroll 2
    for (int r = 0; r < STEPS; r++) {
        uint32_t y[2][KF_CHUNK];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            char *const first = tile + kf_swizzle<COLS>(row + (2 * r + i) * STEP, low),
                        *const second = tile + kf_swizzle<COLS>(row + (2 * r + i) * STEP, high);
            const uint4 x[2] = {*reinterpret_cast<const uint4 *>(first), *reinterpret_cast<const uint4 *>(second)};
            kf_turn_chunks<__nv_bfloat16, __half, SPLIT>(x, angle, 1.0f, y[i]);
            *reinterpret_cast<uint4 *>(first) = make_uint4(y[i][0], y[i][1], y[i][2], y[i][3]);
            *reinterpret_cast<uint4 *>(second) = make_uint4(y[i][4], y[i][5], y[i][6], y[i][7]);
#pragma unroll
            for (int e = 0; e < KF_CHUNK; e++) angle[e] = kf_rope_and(angle[e], step[e]);
        }
        const uint32_t bits = kf_most_of_rows<PARTS>(y[0], y[1]);
        suit &= (kf_suits_half(bits & 0xffffu) || row + 2 * r * STEP >= rows) &&
                (kf_suits_half(bits >> 16) || row + (2 * r + 1) * STEP >= rows);
    }
    return __all_sync(0xffffffffu, suit);
}

// The queries of a warp, turned where they are to be, as fp16; scales: what their products are to be multiplied by. Whether one is not 1, or, where they
// were not found (SCALED: they are), may not be.
template <int COUNT, int COLS, bool CHUNKED, bool SCALED>
__device__ __forceinline__ bool kf_mixed_queries(const kf_cuda_attention &a, const kf_block &w, char *tile,
                                                 float *scales, int row0, bool chunks, const char *table, int lane) {
    if constexpr (CHUNKED && !SCALED)
        if (chunks)
            return !(a.rope.split_halves ? kf_turn_to_half<COUNT, COLS, true>(tile, row0, w.rows, table, lane)
                                         : kf_turn_to_half<COUNT, COLS, false>(tile, row0, w.rows, table, lane));
    const kf_mixed_tile<COLS> queries = {tile, scales};
    const bool odd = kf_find_scales<COUNT, COLS>(tile, scales, row0, a.rope.magnitude, lane);
    if (a.rope.q) kf_rotate_tile_queries<COUNT, COLS, CHUNKED>(a, w, queries, row0, chunks, table, lane);
    // Rows past the last query are zero in both types.
    kf_narrow<COUNT, COLS>(queries, row0, a.rope.q ? a.rope.dims : 0, lane);
    __syncwarp();
    if (lane < COUNT) scales[row0 + lane] = kf_row_unscale(scales[row0 + lane]);
    return odd;
}

// Whether one of the keys first .. end - 1 of KV head `head`, counted over the batch, is kept times another number than 1, as far as this thread
// of THREADS looks. It asks for its first flag when it is made, and waits where it is asked.
template <int THREADS> struct kf_odd_keys {
    const int32_t *flags;
    int32_t next, end, flag;

    __device__ __forceinline__ kf_odd_keys(const kf_cuda_attention &a, int64_t head, int32_t first, int32_t last,
                                           int thread)
        : flags(a.odd_keys + head * ((a.Nk + KF_ROTATED_KEYS - 1) / KF_ROTATED_KEYS)),
          next(first / KF_ROTATED_KEYS + thread), end((last + KF_ROTATED_KEYS - 1) / KF_ROTATED_KEYS), flag(0) {
        if (next < end) flag = flags[next];
    }
    __device__ __forceinline__ bool some() {
        for (next += THREADS; next < end; next += THREADS) flag |= flags[next];
        return flag != 0;
    }
};

#endif
