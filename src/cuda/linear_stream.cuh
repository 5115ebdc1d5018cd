// SPDX-License-Identifier: Apache-2.0
//
// Up to eight rows of x: y[t, n] = sum_k x[t, k] w[n, k] + bias[n], W read once at the rate of memory.
//
//     block     one or two octets of W (then the next ones, a grid on); a warp takes one slice of the columns
//     weights   come through a ring of the warp's own in shared memory (cp.async), so no warp waits for another while they come, and
//               the ring does not run dry between octets. The first ones are asked for, and decoded, before the kernel before this one
//               has ended
//     x         the warp brings its own columns into form once, into shared memory: [block][part][row][4 lanes], 16 bytes
//     product   mma.sync with the weights as its 16 rows (one octet: eight of them): of its eight columns as many are used as x has rows
//     sums      of the slices go to shared memory, two sets in turn, and are added in the order of the slices
//
//     shared    [ rings | x in form | scale, sum of x: [block][8] | sums: [2][warps][rows of W][8] ]
//
// One octet a block where W is small: the work of a warp is what such a product waits for. Else two: x's fragments, the loop and the
// products serve twice the weights.
//
// Bytes: those of W, once; x once a block, from L2. Called by linear.c for T <= 8.
#ifndef KF_CUDA_LINEAR_STREAM_CUH
#define KF_CUDA_LINEAR_STREAM_CUH

#include "cuda/linear.cuh"

template <int TYPE, int MODE, int OCTETS> struct kf_stream {
    static const bool DENSE = kf_is_dense(TYPE);
    static const bool HAS_SUMS = kf_is_affine(TYPE) || MODE == KF_X_INT8, HAS_SCALES = MODE == KF_X_INT8;
    static const int ELEMENT = TYPE == KF_WEIGHT_F32 ? 4 : 2;                                          // bytes, dense
    static const int BLOCKS = DENSE ? (TYPE == KF_WEIGHT_F32 && OCTETS == 2 ? 2 : 4) : KF_UNIT_BLOCKS; // of a slot
    static const int OCTET_BYTES = DENSE ? KF_OCTET * BLOCKS * 32 * ELEMENT : KF_OCTET * kf_row_unit(TYPE);
    static const int SLOT = OCTETS * OCTET_BYTES;
    static const int PER_UNIT = kf_unit_blocks(TYPE) / BLOCKS; // slots of a unit
    // About 8 KB a warp: three blocks of eight warps fit a multiprocessor, and 190 KB are on their way to it.
    static const int SLOTS = 8704 / SLOT > 4 ? 4 : 8704 / SLOT > 1 ? 8704 / SLOT : 2;
    static const int FORM = MODE == KF_X_INT8 ? 8 : 16, PARTS = kf_x_parts(MODE); // bytes of a lane and part of x
};

// A lane's part of x in form.
struct kf_form {
    uint4 part[3];
    uint2 bytes;
};

// Eight values of a row of x (lane `part` of a quad, block `block` of the warp's own) into form. All of the warp call it.
template <int TYPE, int MODE>
__device__ __forceinline__ void kf_stream_item(const float (&v)[8], int block, int t, int part, int T, bool live,
                                               char *form, float *scales, float *sums) {
    constexpr int PARTS = kf_x_parts(MODE);
    if constexpr (MODE == KF_X_INT8) {
        float scale, sum;
        const uint2 bytes = kf_x_int8(v, &scale, &sum);
        if (!live) return;
        *reinterpret_cast<uint2 *>(form + ((block * T + t) * 4 + part) * 8) = bytes;
        if (part == 0) scales[block * 8 + t] = scale, sums[block * 8 + t] = sum;
    } else {
        const float sum = kf_is_affine(TYPE) ? kf_block_sum(v) : 0.0f;
        if (!live) return;
        uint4 parts[3];
        kf_x_form<MODE, kf_is_dense(TYPE)>(v, parts);
#pragma unroll
        for (int p = 0; p < PARTS; p++)
            *reinterpret_cast<uint4 *>(form + (((block * PARTS + p) * T + t) * 4 + part) * 16) = parts[p];
        if (kf_is_affine(TYPE) && part == 0) sums[block * 8 + t] = sum;
    }
}

// Brings the columns of blocks first .. first + count - 1 into form; those from a.blocks on are zeros.
template <int TYPE, int MODE>
__device__ __forceinline__ void kf_stream_x(const kf_cuda_linear &a, int first, int count, char *form, float *scales,
                                            float *sums, int lane) {
    constexpr bool DENSE = kf_is_dense(TYPE);
    constexpr int AHEAD = 4; // rows whose loads are on their way at a time
    const int type = MODE == KF_X_BF16 ? KF_BF16_ : MODE == KF_X_F16 ? KF_F16 : a.x_type, part = lane & 3;
    const int64_t row_bytes = a.x_stride * (type == KF_F32 ? 4 : 2);
    const bool aligned = a.x_aligned && a.K % 32 == 0;
#pragma unroll 1
    for (int base = 0; base < count; base += 8) {
        const int block = base + (lane >> 2);
        const bool inside = block < count, live = inside && first + block < a.blocks;
#pragma unroll 1
        for (int row = 0; row < a.T; row += AHEAD) {
            float v[AHEAD][8];
#pragma unroll
            for (int n = 0; n < AHEAD; n++) {
#pragma unroll
                for (int c = 0; c < 8; c++) v[n][c] = 0.0f;
                if (live && aligned && row + n < a.T)
                    kf_x_aligned<DENSE>(a.x + (row + n) * row_bytes, type, first + block, part, v[n]);
            }
            if (!aligned && live) { // rare, and slow
                for (int c = 0; c < 8; c++) {
                    const int k = (first + block) * 32 + (DENSE ? 8 * part + c : 4 * part + c % 4 + c / 4 * 16);
#pragma unroll
                    for (int n = 0; n < AHEAD; n++) {
                        const bool there = row + n < a.T && k < a.K;
                        const float value = there ? kf_element(a.x, type, (row + n) * a.x_stride + k) : 0.0f;
#pragma unroll
                        for (int i = 0; i < 8; i++)
                            if (i == c) v[n][i] = value;
                    }
                }
            }
#pragma unroll
            for (int n = 0; n < AHEAD; n++)
                if (row + n < a.T)
                    kf_stream_item<TYPE, MODE>(v[n], block, row + n, part, a.T, inside, form, scales, sums);
        }
    }
    // Columns of the product that x has no row for: nothing that is stored depends on them, but a sum should be a number.
    if constexpr (kf_is_affine(TYPE) || MODE == KF_X_INT8)
        for (int i = lane; i < count * 8; i += 32)
            if ((i & 7) >= a.T) {
                sums[i] = 0.0f;
                if (MODE == KF_X_INT8) scales[i] = 0.0f;
            }
}

// The lane's part of block `block` (of the warp's own) of x. Where x has no row for the lane's column, another row's: what it gives is not
// stored.
template <int MODE> __device__ __forceinline__ kf_form kf_stream_form(const char *form, int T, int block, int lane) {
    kf_form x;
    const int bytes = T * 4 * (MODE == KF_X_INT8 ? 8 : 16), place = min(lane, (T - 1) * 4 + (lane & 3));
    if constexpr (MODE == KF_X_INT8) {
        x.bytes = *reinterpret_cast<const uint2 *>(form + block * bytes + place * 8);
    } else {
#pragma unroll
        for (int p = 0; p < kf_x_parts(MODE); p++)
            x.part[p] = *reinterpret_cast<const uint4 *>(form + (block * kf_x_parts(MODE) + p) * bytes + place * 16);
    }
    return x;
}

// Asks for slot `index` of the columns of the block's octets.
template <int TYPE, int MODE, int OCTETS>
__device__ __forceinline__ void kf_stream_fetch(const kf_cuda_linear &a, int octet, int index, uint32_t slot,
                                                int lane) {
    using stream = kf_stream<TYPE, MODE, OCTETS>;
    if constexpr (stream::DENSE) {
        constexpr int PIECES = stream::ELEMENT / 2; // of 16 bytes, of a lane and block
#pragma unroll
        for (int o = 0; o < OCTETS; o++) {
            const int64_t n = (int64_t)(octet + o) * KF_OCTET + (lane >> 2);
            const int first = index * stream::BLOCKS;
            const char *from = a.w + n * a.row_bytes + ((int64_t)first * 4 + (lane & 3)) * 16 * PIECES;
            if (n >= a.N) continue;
#pragma unroll
            for (int b = 0; b < stream::BLOCKS; b++)
#pragma unroll
                for (int i = 0; i < PIECES; i++)
                    if (first + b < a.blocks)
                        kf_copy16(slot + (((o * stream::BLOCKS + b) * PIECES + i) * 32 + lane) * 16,
                                  from + (b * 4 * PIECES + i) * 16);
        }
    } else {
        const int blocks = min(KF_UNIT_BLOCKS, a.blocks - index * KF_UNIT_BLOCKS);
#pragma unroll
        for (int o = 0; o < OCTETS; o++) {
            if (octet + o >= a.octets) break;
            const int rows = min(KF_OCTET, a.N - (octet + o) * KF_OCTET);
            const char *from = a.w + (octet + o) * a.octet_bytes + lane * 16;
            const uint32_t to = slot + o * stream::OCTET_BYTES + lane * 16;
            if (rows == KF_OCTET && blocks == KF_UNIT_BLOCKS) {
                from += (int64_t)index * stream::OCTET_BYTES;
#pragma unroll
                for (int at = 0; at < stream::OCTET_BYTES; at += 512)
                    if (at + 512 <= stream::OCTET_BYTES || at + lane * 16 < stream::OCTET_BYTES)
                        kf_copy16(to + at, from + at);
            } else {
                from += (int64_t)index * kf_unit_bytes(TYPE, rows, KF_UNIT_BLOCKS);
                const int bytes = kf_unit_bytes(TYPE, rows, blocks);
#pragma unroll 1
                for (int at = 0; at + lane * 16 < bytes; at += 512) kf_copy16(to + at, from + at);
            }
        }
    }
}

struct kf_stream_x_place {
    const char *form;
    const float *scales, *sums;
};

template <int TYPE, int MODE, int OCTETS, bool FULL>
__device__ __forceinline__ void kf_stream_unit(const kf_cuda_linear &a, int octet, int blocks, const char *slot,
                                               const kf_stream_x_place &x, int block, int lane, float (&sum)[4]) {
    using stream = kf_stream<TYPE, MODE, OCTETS>;
    const int g = lane >> 2, t = lane & 3;
    const int rows = min(KF_OCTET, a.N - octet * KF_OCTET);
    // Where there is no second octet the first one's weights stand in its place: they are never stored.
    const bool two = OCTETS == 2 && (FULL || octet + 1 < a.octets);
    const int second_rows = two ? min(KF_OCTET, a.N - (octet + 1) * KF_OCTET) : rows;
    const char *second = two ? slot + stream::OCTET_BYTES : slot;
#pragma unroll(FULL ? 2 : 1)
    for (int quad = 0; quad < 2; quad++) {
        const kf_codes<TYPE> low = kf_read_codes<TYPE, FULL>(slot, rows, blocks, quad, lane);
        const kf_factors of_low = kf_read_factors<TYPE, FULL>(slot, rows, blocks, quad, g);
        kf_codes<TYPE> high = low;
        kf_factors of_high = of_low;
        if constexpr (OCTETS == 2) {
            high = kf_read_codes<TYPE, FULL>(second, second_rows, blocks, quad, lane);
            of_high = kf_read_factors<TYPE, FULL>(second, second_rows, blocks, quad, g);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int at = block + quad * 4 + j;
            const kf_block_a w = kf_quantised_fragment<TYPE, MODE>(low, high, j);
            const kf_form form = kf_stream_form<MODE>(x.form, a.T, at, lane);
            const float2 d = make_float2(of_low.d[j], of_high.d[j]), m = make_float2(of_low.m[j], of_high.m[j]);
            float2 beside = make_float2(0.0f, 0.0f);
            if (kf_is_affine(TYPE)) beside = *reinterpret_cast<const float2 *>(x.sums + at * 8 + 2 * t);
            if constexpr (MODE == KF_X_INT8) {
                const float2 scale = *reinterpret_cast<const float2 *>(x.scales + at * 8 + 2 * t);
                kf_int8_block<TYPE>(sum, w, d, m, form.bytes, scale, beside);
            } else {
                kf_quantised_block<TYPE, MODE>(sum, w, d, m, form.part, beside);
            }
        }
    }
}

// What is in the slot times x, added to the sums. `block`: the slot's first, among the warp's own.
template <int TYPE, int MODE, int OCTETS>
__device__ __forceinline__ void kf_stream_multiply(const kf_cuda_linear &a, int octet, int index, const char *slot,
                                                   const kf_stream_x_place &x, int block, int lane, float (&sum)[4]) {
    using stream = kf_stream<TYPE, MODE, OCTETS>;
    if constexpr (stream::DENSE) {
        constexpr int PIECES = stream::ELEMENT / 2;
        const uint4 *pieces = reinterpret_cast<const uint4 *>(slot) + lane;
#pragma unroll
        for (int b = 0; b < stream::BLOCKS; b++) {
            if (index * stream::BLOCKS + b >= a.blocks) return;
            kf_dense_piece<TYPE> low, high;
#pragma unroll
            for (int i = 0; i < PIECES; i++) {
                low.word[i] = pieces[(b * PIECES + i) * 32];
                high.word[i] = OCTETS == 2 ? pieces[((stream::BLOCKS + b) * PIECES + i) * 32] : low.word[i];
            }
            const kf_form form = kf_stream_form<MODE>(x.form, a.T, block + b, lane);
            kf_dense_block<TYPE, MODE>(sum, kf_dense_parts<TYPE, MODE>(low, high), form.part);
        }
    } else {
        const int blocks = min(KF_UNIT_BLOCKS, a.blocks - index * KF_UNIT_BLOCKS);
        if (blocks == KF_UNIT_BLOCKS && (octet + OCTETS) * KF_OCTET <= a.N)
            kf_stream_unit<TYPE, MODE, OCTETS, true>(a, octet, blocks, slot, x, block, lane, sum);
        else
            kf_stream_unit<TYPE, MODE, OCTETS, false>(a, octet, blocks, slot, x, block, lane, sum);
    }
}

// Adds the slices' sums of the block's rows up and stores them.
template <int MOST, int OCTETS>
__device__ __forceinline__ void kf_stream_finish(const kf_cuda_linear &a, int octet, const float *sums) {
    constexpr int ROWS = OCTETS * KF_OCTET;
    for (int i = threadIdx.x; i < ROWS * a.T; i += blockDim.x) {
        const int row = i % ROWS, t = i / ROWS;
        const int64_t n = (int64_t)octet * KF_OCTET + row;
        if (n >= a.N) continue;
        float part[MOST], total = 0.0f;
#pragma unroll
        for (int s = 0; s < MOST; s++) part[s] = s < a.slices ? sums[(s * ROWS + row) * 8 + t] : 0.0f;
#pragma unroll
        for (int s = 0; s < MOST; s++)
            if (s < a.slices) total += part[s];
        kf_finish_element(a, t, n, total);
    }
}

template <int TYPE, int MODE, int OCTETS>
__global__ void __launch_bounds__(kf_most_slices(TYPE) * 32, 2)
    kf_linear_stream(const __grid_constant__ kf_cuda_linear a) {
    using stream = kf_stream<TYPE, MODE, OCTETS>;
    extern __shared__ __align__(128) char memory[];
    constexpr int ROWS = OCTETS * KF_OCTET;
    const int lane = threadIdx.x & 31, slice = threadIdx.x >> 5; // a warp each
    const int unit_blocks = kf_unit_blocks(TYPE), slice_blocks = a.slice_units * unit_blocks;
    const int first_unit = slice * a.slice_units, units = min(a.slice_units, a.units - first_unit);
    const int form_bytes = slice_blocks * a.T * 4 * stream::FORM * stream::PARTS, ring_bytes = a.ring * stream::SLOT;
    char *const forms = memory + a.slices * ring_bytes, *const form = forms + slice * form_bytes;
    float *const all_sums = reinterpret_cast<float *>(forms + a.slices * form_bytes);
    float *const all_scales = all_sums + (stream::HAS_SUMS ? a.slices * slice_blocks * 8 : 0);
    float *const parts = all_scales + (stream::HAS_SCALES ? a.slices * slice_blocks * 8 : 0);
    float *const sums = all_sums + slice * slice_blocks * 8, *const scales = all_scales + slice * slice_blocks * 8;
    const char *const ring = memory + slice * ring_bytes;
    const uint32_t ring_at = kf_shared(ring);

    // A warp's steps: the slots of its slice, octets after octets.
    const int stride = gridDim.x * OCTETS, first_step = first_unit * stream::PER_UNIT;
    const int steps = min(units * stream::PER_UNIT, (a.blocks + stream::BLOCKS - 1) / stream::BLOCKS - first_step);
    int fetch_octet = blockIdx.x * OCTETS, fetch_step = 0, fetch_slot = 0;
    const auto fetch = [&] {
        if (fetch_octet < a.octets && fetch_step < steps) {
            kf_stream_fetch<TYPE, MODE, OCTETS>(a, fetch_octet, first_step + fetch_step,
                                                ring_at + fetch_slot * stream::SLOT, lane);
            if (++fetch_step == steps) fetch_step = 0, fetch_octet += stride;
            if (++fetch_slot == a.ring) fetch_slot = 0;
        }
        kf_copy_commit();
    };
    if (a.weights_made) kf_wait_for_previous();
#pragma unroll 1
    for (int i = 0; i < stream::SLOTS; i++) {
        if (i < a.ring)
            fetch();
        else
            kf_copy_commit();
    }
    kf_launch_dependents();
    kf_wait_for_previous();
    kf_stream_x<TYPE, MODE>(a, first_unit * unit_blocks, units * unit_blocks, form, scales, sums, lane);
    const kf_stream_x_place x = {form, scales, sums};
    __syncwarp();

    int slot = 0, set = 0;
#pragma unroll 1
    for (int octet = blockIdx.x * OCTETS; octet < a.octets; octet += stride, set ^= 1) {
        float sum[4] = {};
#pragma unroll 1
        for (int step = 0; step < steps; step++) {
            kf_copy_wait<stream::SLOTS - 1>();
            __syncwarp();
            kf_stream_multiply<TYPE, MODE, OCTETS>(a, octet, first_step + step, ring + slot * stream::SLOT, x,
                                                   step * stream::BLOCKS, lane, sum);
            __syncwarp();
            fetch();
            if (++slot == a.ring) slot = 0;
        }
        float *const mine = parts + (set * a.slices + slice) * ROWS * 8 + lane * 2; // [row][column]: lane 4 g + t, 2 t
        *reinterpret_cast<float2 *>(mine) = make_float2(sum[0], sum[1]);
        if (OCTETS == 2) *reinterpret_cast<float2 *>(mine + KF_OCTET * 8) = make_float2(sum[2], sum[3]);
        __syncthreads();
        kf_stream_finish<kf_most_slices(TYPE), OCTETS>(a, octet, parts + set * a.slices * ROWS * 8);
    }
}

#define KF_STREAM_ROW(TYPE, MODE, OCTETS, NAME)                                                                        \
    {                                                                                                                  \
        KF_CUDA_STREAM, TYPE, MODE, kf_stream<TYPE, MODE, OCTETS>::SLOT, kf_stream<TYPE, MODE, OCTETS>::SLOTS,         \
            kf_stream<TYPE, MODE, OCTETS>::BLOCKS * 32, OCTETS, (const void *)kf_linear_stream<TYPE, MODE, OCTETS>,    \
            NAME                                                                                                       \
    }
#define KF_STREAM_ROWS_OF(TYPE, MODE, NAME) KF_STREAM_ROW(TYPE, MODE, 1, NAME), KF_STREAM_ROW(TYPE, MODE, 2, NAME)

#endif
