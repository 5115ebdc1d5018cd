// SPDX-License-Identifier: Apache-2.0
//
// Up to eight rows of x: y[t, n] = sum_k x[t, k] w[n, k] + bias[n], W read once at the rate of memory.
//
//     block     a strip of 16 rows of W (then the next one, grid strips on); a warp takes one slice of the columns
//     weights   come through a ring of the warp's own in shared memory (cp.async), so no warp waits for another while they come, and
//               the ring does not run dry at the end of a strip. The first ones are asked for before the kernel before this one has ended
//     x         the warp brings its own columns into form once, into shared memory: [block][part][row][4 lanes], 16 bytes
//     product   mma.sync with the weights as its 16 rows: of its eight columns as many are used as x has rows
//     sums      of the slices go to shared memory, two sets in turn, and are added in the order of the slices by the first 16 T threads
//     cluster   few strips: the slices of a strip are spread over the blocks of a cluster, and its first block adds them up
//
//     shared    [ rings | x in form | scale, sum of x: [block][8] | sums: [2][warps][16][8] ]
//
// Bytes: those of W, once; x once a block, from L2. Operations, a block of 16 x 32 four-bit weights: 22 to bring them into bf16, 2 products,
// 4 to fold, of 62 issue slots that the read rate leaves (H200). Called by linear.c for T <= 8.
#ifndef KF_CUDA_LINEAR_STREAM_CUH
#define KF_CUDA_LINEAR_STREAM_CUH

#include "cuda/linear.cuh"

#include <type_traits>

// Columns of W that a slot of the ring holds, and its bytes.
template <int TYPE> __host__ __device__ constexpr int kf_slot_columns() {
    return TYPE == KF_WEIGHT_F32 ? 64 : kf_is_dense(TYPE) ? 128 : KF_UNIT_COLUMNS;
}
template <int TYPE> __host__ __device__ constexpr int kf_slot_bytes() {
    return kf_is_dense(TYPE) ? KF_STRIP * kf_slot_columns<TYPE>() * (TYPE == KF_WEIGHT_F32 ? 4 : 2)
                             : KF_STRIP * kf_row_unit(TYPE);
}
// Slots: about 8 KB a warp, so that three blocks of eight warps fit a multiprocessor and 190 KB are on their way to it.
template <int TYPE> __host__ __device__ constexpr int kf_slots() {
    return 8500 / kf_slot_bytes<TYPE>() > 1 ? 8500 / kf_slot_bytes<TYPE>() : 2;
}

template <int MODE> __host__ __device__ constexpr int kf_form_bytes() {
    return MODE == KF_X_INT8 ? 8 : 16;
} // of a lane and part

// A lane's part of x in form.
template <int MODE> struct kf_form {
    uint4 part[3];
    uint2 bytes;
};

// Brings the columns of blocks first .. first + count - 1 into form; count 0 for a warp that has none.
template <int TYPE, int MODE>
__device__ __forceinline__ void kf_stream_x(const kf_cuda_linear &a, int first, int count, char *form, float *scales,
                                            float *sums, int lane) {
    constexpr bool DENSE = kf_is_dense(TYPE);
    const int items = count * a.T * 4;
    for (int i = lane; i - lane < items; i += 32) {
        const int quad = i / 4, block = quad / a.T, t = quad - block * a.T;
        float v[8] = {};
        if (i < items) kf_x_values<DENSE>(a, t, first + block, i & 3, v);
        if (MODE == KF_X_INT8) {
            float scale, sum;
            const uint2 bytes = kf_x_int8(v, &scale, &sum);
            if (i >= items) continue;
            *reinterpret_cast<uint2 *>(form + (size_t)i * 8) = bytes;
            if ((i & 3) == 0) scales[block * 8 + t] = scale, sums[block * 8 + t] = sum;
            continue;
        }
        const float sum = kf_is_affine(TYPE) ? kf_block_sum(v) : 0.0f;
        if (i >= items) continue;
        uint4 parts[3];
        kf_x_form<MODE, DENSE>(v, parts);
#pragma unroll
        for (int p = 0; p < kf_x_parts(MODE); p++)
            *reinterpret_cast<uint4 *>(
                form + (((size_t)block * kf_x_parts(MODE) + p) * a.T * 4 + (i - block * a.T * 4)) * 16) = parts[p];
        if (kf_is_affine(TYPE) && (i & 3) == 0) sums[block * 8 + t] = sum;
    }
    // Columns of the product that x has no row for: only what is never stored depends on them, but a sum should be a number.
    if (kf_is_affine(TYPE) || MODE == KF_X_INT8)
        for (int i = lane; i < count * 8; i += 32)
            if ((i & 7) >= a.T) sums[i] = scales[i] = 0.0f;
}

// The lane's part of block `block` (of the warp's own) of x.
template <int MODE>
__device__ __forceinline__ kf_form<MODE> kf_stream_form(const char *form, int T, int block, int lane) {
    kf_form<MODE> x = {};
    if (lane >= T * 4) return x;
    if constexpr (MODE == KF_X_INT8) {
        x.bytes = *reinterpret_cast<const uint2 *>(form + (block * T * 4 + lane) * 8);
    } else {
#pragma unroll
        for (int p = 0; p < kf_x_parts(MODE); p++)
            x.part[p] = *reinterpret_cast<const uint4 *>(form + ((block * kf_x_parts(MODE) + p) * T * 4 + lane) * 16);
    }
    return x;
}

// Asks for columns slot_columns * index .. of the strip.
template <int TYPE>
__device__ __forceinline__ void kf_stream_fetch(const kf_cuda_linear &a, int strip, int index, uint32_t slot,
                                                int lane) {
    if (kf_is_dense(TYPE)) {
        constexpr int BLOCKS = kf_slot_columns<TYPE>() / 32, BYTES = TYPE == KF_WEIGHT_F32 ? 4 : 2, PIECE = 8 * BYTES;
#pragma unroll
        for (int octet = 0; octet < 2; octet++) {
            const int64_t n = (int64_t)strip * KF_STRIP + octet * KF_OCTET + (lane >> 2);
            const char *row = a.w + n * a.row_bytes;
#pragma unroll
            for (int b = 0; b < BLOCKS; b++) {
                const int block = index * BLOCKS + b;
                if (n >= a.N || block >= a.blocks) continue;
#pragma unroll
                for (int i = 0; i < PIECE / 16; i++)
                    kf_copy16(slot + (((octet * BLOCKS + b) * (PIECE / 16) + i) * 32 + lane) * 16,
                              row + (int64_t)block * 32 * BYTES + (lane & 3) * PIECE + i * 16);
            }
        }
        return;
    }
    constexpr int FULL = KF_OCTET * kf_row_unit(TYPE);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int octet = strip * 2 + i;
        if (octet >= a.octets) return;
        const int rows = min(KF_OCTET, a.N - octet * KF_OCTET),
                  blocks = min(KF_UNIT_BLOCKS, a.blocks - index * KF_UNIT_BLOCKS);
        const char *from = a.w + octet * a.octet_bytes + (int64_t)index * kf_unit_bytes(TYPE, rows, KF_UNIT_BLOCKS);
        if (rows == KF_OCTET && blocks == KF_UNIT_BLOCKS) {
#pragma unroll
            for (int at = 0; at < FULL; at += 512)
                if (at + lane * 16 < FULL) kf_copy16(slot + i * FULL + at + lane * 16, from + at + lane * 16);
        } else {
            const int bytes = kf_unit_bytes(TYPE, rows, blocks);
            for (int at = lane * 16; at < bytes; at += 512) kf_copy16(slot + i * FULL + at, from + at);
        }
    }
}

struct kf_stream_x_place {
    const char *form;
    const float *scales, *sums;
};

// What is in the slot times x, added to the strip's sums. `block`: the slot's first, among the warp's own.
template <int TYPE, int MODE>
__device__ __forceinline__ void kf_stream_multiply(const kf_cuda_linear &a, int strip, int index, const char *slot,
                                                   const kf_stream_x_place &x, int block, int lane, float (&sum)[4]) {
    const int g = lane >> 2, t = lane & 3;
    if constexpr (kf_is_dense(TYPE)) {
        constexpr int BLOCKS = kf_slot_columns<TYPE>() / 32, PIECES = TYPE == KF_WEIGHT_F32 ? 2 : 1;
        const uint4 *pieces = reinterpret_cast<const uint4 *>(slot) + lane;
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            if (index * BLOCKS + b >= a.blocks) return;
            kf_dense_piece<TYPE> low, high;
#pragma unroll
            for (int i = 0; i < PIECES; i++) {
                low.word[i] = pieces[(b * PIECES + i) * 32];
                high.word[i] = pieces[((BLOCKS + b) * PIECES + i) * 32];
            }
            const kf_form<MODE> form = kf_stream_form<MODE>(x.form, a.T, block + b, lane);
            kf_dense_block<TYPE, MODE>(sum, kf_dense_parts<TYPE, MODE>(low, high), form.part);
        }
    } else {
        constexpr int FULL = KF_OCTET * kf_row_unit(TYPE);
        const int blocks = min(KF_UNIT_BLOCKS, a.blocks - index * KF_UNIT_BLOCKS);
        const int rows = min(KF_OCTET, a.N - strip * KF_STRIP),
                  rows_high = min(KF_OCTET, a.N - strip * KF_STRIP - KF_OCTET);
#pragma unroll
        for (int quad = 0; quad < 2; quad++) {
            const kf_codes<TYPE> low = kf_read_codes<TYPE>(slot, rows, blocks, quad, lane);
            const kf_factors of_low = kf_read_factors<TYPE>(slot, rows, blocks, quad, g);
            // Where the strip has no second octet, the first one's stand in its place: they are never stored.
            const char *second = rows_high > 0 ? slot + FULL : slot;
            const int second_rows = rows_high > 0 ? rows_high : rows;
            const kf_codes<TYPE> high = kf_read_codes<TYPE>(second, second_rows, blocks, quad, lane);
            const kf_factors of_high = kf_read_factors<TYPE>(second, second_rows, blocks, quad, g);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int at = block + quad * 4 + j;
                const kf_block_a w = kf_quantised_fragment<TYPE, MODE>(low, high, j);
                const kf_form<MODE> form = kf_stream_form<MODE>(x.form, a.T, at, lane);
                const float2 d = make_float2(of_low.d[j], of_high.d[j]), m = make_float2(of_low.m[j], of_high.m[j]);
                float2 beside = make_float2(0.0f, 0.0f);
                if (kf_is_affine(TYPE)) beside = *reinterpret_cast<const float2 *>(x.sums + at * 8 + 2 * t);
                if (MODE == KF_X_INT8) {
                    const float2 scale = *reinterpret_cast<const float2 *>(x.scales + at * 8 + 2 * t);
                    kf_int8_block<TYPE>(sum, w, d, m, form.bytes, scale, beside);
                } else {
                    kf_quantised_block<TYPE, MODE>(sum, w, d, m, form.part, beside);
                }
            }
        }
    }
}

// The sum at `index` of slice `slice` of this strip: of this block's shared memory, or of the cluster's block that had the slice.
__device__ __forceinline__ float kf_stream_sum(const kf_cuda_linear &a, const float *sums, int slice, int index) {
    if (a.cluster == 1) return sums[slice * KF_STRIP * 8 + index];
    const int rank = slice / a.warps;
    return kf_cluster_float(kf_shared(sums + (slice - rank * a.warps) * KF_STRIP * 8 + index), rank);
}

template <int TYPE, int MODE>
__global__ void __launch_bounds__(KF_STREAM_WARPS * 32) kf_linear_stream(const __grid_constant__ kf_cuda_linear a) {
    extern __shared__ __align__(128) char memory[];
    constexpr int SLOTS = kf_slots<TYPE>(), PER_UNIT = KF_UNIT_COLUMNS / kf_slot_columns<TYPE>(),
                  SLOT_BLOCKS = kf_slot_columns<TYPE>() / 32;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int rank = a.cluster > 1 ? (int)kf_cluster_rank() : 0, slice = rank * a.warps + warp;
    const int first_unit = min(slice * a.slice_units, a.units), units = min(a.slice_units, a.units - first_unit);
    const int form_bytes = a.slice_units * KF_UNIT_BLOCKS * a.T * 4 * kf_form_bytes<MODE>() * kf_x_parts(MODE);
    const int warp_blocks = a.slice_units * KF_UNIT_BLOCKS;
    char *const rings = memory, *const forms = rings + a.warps * a.ring * kf_slot_bytes<TYPE>();
    float *const all_scales = reinterpret_cast<float *>(forms + a.warps * form_bytes);
    float *const all_sums = all_scales + (MODE == KF_X_INT8 ? a.warps * warp_blocks * 8 : 0);
    float *const parts = all_sums + (kf_is_affine(TYPE) || MODE == KF_X_INT8 ? a.warps * warp_blocks * 8 : 0);
    char *const ring = rings + warp * a.ring * kf_slot_bytes<TYPE>();
    const uint32_t ring_at = kf_shared(ring);

    // Step i of the warp is slot i mod steps_strip of the strip's slice; the strips are `stride` apart.
    const int strips = (a.N + KF_STRIP - 1) / KF_STRIP, stride = gridDim.x / a.cluster,
              first_strip = blockIdx.x / a.cluster;
    const int first_step = first_unit * PER_UNIT,
              steps = min(units * PER_UNIT, (a.blocks + SLOT_BLOCKS - 1) / SLOT_BLOCKS - first_step);
    int fetch_strip = first_strip, fetch_step = 0, fetch_slot = 0;
    const auto fetch = [&] {
        if (fetch_strip < strips && steps > 0) {
            kf_stream_fetch<TYPE>(a, fetch_strip, first_step + fetch_step, ring_at + fetch_slot * kf_slot_bytes<TYPE>(),
                                  lane);
            if (++fetch_step == steps) fetch_step = 0, fetch_strip += stride;
            if (++fetch_slot == a.ring) fetch_slot = 0;
        }
        kf_copy_commit();
    };
    if (a.weights_made) kf_wait_for_previous();
#pragma unroll
    for (int i = 0; i < SLOTS; i++) {
        if (i < a.ring)
            fetch();
        else
            kf_copy_commit();
    }
    kf_launch_dependents();
    kf_wait_for_previous();

    char *const form = forms + warp * form_bytes;
    float *const scales = all_scales + warp * warp_blocks * 8, *const sums = all_sums + warp * warp_blocks * 8;
    kf_stream_x<TYPE, MODE>(a, first_unit * KF_UNIT_BLOCKS, units * KF_UNIT_BLOCKS, form,
                            MODE == KF_X_INT8 ? scales : sums, sums, lane);
    const kf_stream_x_place x = {form, scales, sums};
    __syncwarp();

    int slot = 0, set = 0;
    for (int strip = first_strip; strip < strips; strip += stride, set ^= 1) {
        float sum[4] = {};
        for (int step = 0; step < steps; step++) {
            kf_copy_wait<SLOTS - 1>();
            __syncwarp();
            kf_stream_multiply<TYPE, MODE>(a, strip, first_step + step, ring + slot * kf_slot_bytes<TYPE>(), x,
                                           step * SLOT_BLOCKS, lane, sum);
            __syncwarp();
            fetch();
            if (++slot == a.ring) slot = 0;
        }
        float *const mine = parts + (set * a.warps + warp) * KF_STRIP * 8;
        *reinterpret_cast<float2 *>(mine + (lane >> 2) * 8 + (lane & 3) * 2) = make_float2(sum[0], sum[1]);
        *reinterpret_cast<float2 *>(mine + (KF_OCTET + (lane >> 2)) * 8 + (lane & 3) * 2) = make_float2(sum[2], sum[3]);
        if (a.cluster > 1)
            kf_cluster_barrier();
        else
            __syncthreads();
        if (rank > 0) continue;
        for (int i = threadIdx.x; i < KF_STRIP * a.T; i += blockDim.x) {
            const int row = i % KF_STRIP, t = i / KF_STRIP;
            const int64_t n = (int64_t)strip * KF_STRIP + row;
            if (n >= a.N) continue;
            float total = 0.0f;
            for (int s = 0; s < a.slices; s++)
                total += kf_stream_sum(a, parts + set * a.warps * KF_STRIP * 8, s, row * 8 + t);
            kf_finish_element(a, t, n, total);
        }
    }
    if (a.cluster > 1) kf_cluster_barrier(); // a block's shared memory stays while another one reads it
}

#define KF_STREAM_ROW(TYPE, MODE, NAME)                                                                                \
    {                                                                                                                  \
        KF_CUDA_STREAM, TYPE, MODE, kf_slot_bytes<TYPE>(), kf_slots<TYPE>(), kf_slot_columns<TYPE>(),                  \
            (const void *)kf_linear_stream<TYPE, MODE>, NAME                                                           \
    }

#endif
