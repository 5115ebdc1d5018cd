// SPDX-License-Identifier: Apache-2.0
//
// Up to eight rows of x over dense weights: y[t, n] = sum_k x[t, k] w[n, k] + bias[n], W read once at the rate of memory.
//
//     block     one or two octets of W (then the next ones, a grid on); a warp takes one slice of the columns
//     weights   come through a ring of the warp's own in shared memory (cp.async), so no warp waits for another while they come, and
//               the ring does not run dry between octets. The first ones are asked for before the kernel before this one has ended
//     x         the warp brings its own columns into form once, into shared memory: [block][part][row][4 lanes], 16 bytes
//     product   mma.sync with the weights as its 16 rows (one octet: eight of them): of its eight columns as many are used as x has rows
//     sums      of the slices go to shared memory, two sets in turn, and are added in the order of the slices
//
//     shared    [ rings | x in form | sums: [2][warps][rows of W][8] ]
//
// One octet a block where W is small: the work of a warp is what such a product waits for. Else two: x's fragments, the loop and the
// products serve twice the weights.
//
// Bytes: those of W, once; x once a block, from L2. Called by linear.c for T <= 8.
#ifndef KF_CUDA_LINEAR_STREAM_CUH
#define KF_CUDA_LINEAR_STREAM_CUH

#include "cuda/linear.cuh"

template <int TYPE, int MODE, int OCTETS> struct kf_stream {
    static const int ELEMENT = TYPE == KF_WEIGHT_F32 ? 4 : 2;               // bytes
    static const int PIECES = ELEMENT / 2;                                  // of 16 bytes, of a lane and block
    static const int BLOCKS = TYPE == KF_WEIGHT_F32 && OCTETS == 2 ? 2 : 4; // of a slot
    static const int SLOT = OCTETS * KF_OCTET * BLOCKS * 32 * ELEMENT;
    static const int PER_UNIT = KF_DENSE_UNIT_BLOCKS / BLOCKS; // slots of a unit
    // About 8 KB a warp: three blocks of eight warps fit a multiprocessor, and 190 KB are on their way to it.
    static const int SLOTS = 8704 / SLOT > 4 ? 4 : 8704 / SLOT > 1 ? 8704 / SLOT : 2;
    static const int PARTS = kf_x_parts(MODE); // of x, 16 bytes a lane each
};

// Eight values of a row of x (lane `part` of a quad, block `block` of the warp's own) into form.
template <int MODE>
__device__ __forceinline__ void kf_stream_item(const float (&v)[8], int block, int t, int part, int T, char *form) {
    constexpr int PARTS = kf_x_parts(MODE);
    uint4 parts[3];
    kf_x_form<MODE, true>(v, parts);
#pragma unroll
    for (int p = 0; p < PARTS; p++)
        *reinterpret_cast<uint4 *>(form + (((block * PARTS + p) * T + t) * 4 + part) * 16) = parts[p];
}

// Brings the columns of blocks first .. first + count - 1 into form; those from a.blocks on are zeros. Eight quads of lanes take eight
// blocks of a row, or four blocks of two rows where there are no more than four.
template <int TYPE, int MODE>
__device__ __forceinline__ void kf_stream_x(const kf_cuda_linear &a, int first, int count, char *form, int lane) {
    constexpr int AHEAD = MODE == KF_X_SPLIT ? 2 : 4; // rows whose loads are on their way at a time
    const int type = MODE == KF_X_BF16 ? KF_BF16_ : MODE == KF_X_F16 ? KF_F16 : a.x_type, part = lane & 3;
    const int64_t row_bytes = a.x_stride * (type == KF_F32 ? 4 : 2);
    const bool aligned = a.x_aligned && a.K % 32 == 0;
    const int wide = count <= 4 ? 2 : 1, blocks = 8 / wide;
#pragma unroll 1
    for (int base = 0; base < count; base += blocks) {
        const int block = base + (lane >> 2) % blocks;
        const bool inside = block < count, live = inside && first + block < a.blocks;
#pragma unroll 1
        for (int row = (lane >> 2) / blocks; row < a.T; row += AHEAD * wide) {
            float v[AHEAD][8];
#pragma unroll
            for (int n = 0; n < AHEAD; n++) {
                const int t = row + n * wide;
#pragma unroll
                for (int c = 0; c < 8; c++) v[n][c] = 0.0f;
                if (live && aligned && t < a.T)
                    kf_x_aligned<true>(a.x + t * row_bytes, type, first + block, part, v[n]);
            }
            if (!aligned && live) { // rare, and slow
#pragma unroll 1
                for (int c = 0; c < 8; c++) {
                    const int k = (first + block) * 32 + 8 * part + c;
#pragma unroll
                    for (int n = 0; n < AHEAD; n++) {
                        const int t = row + n * wide;
                        const float value = t < a.T && k < a.K ? kf_element(a.x, type, t * a.x_stride + k) : 0.0f;
#pragma unroll
                        for (int i = 0; i < 8; i++)
                            if (i == c) v[n][i] = value;
                    }
                }
            }
#pragma unroll
            for (int n = 0; n < AHEAD; n++)
                if (inside && row + n * wide < a.T) kf_stream_item<MODE>(v[n], block, row + n * wide, part, a.T, form);
        }
    }
}

// The same where the product takes x as it is and its rows begin at multiples of 16 bytes: the form of 16 bytes is these bytes.
__device__ __forceinline__ void kf_stream_copy_x(const kf_cuda_linear &a, int first, int count, char *form, int lane) {
    constexpr int AHEAD = 4;
    const int wide = count <= 4 ? 2 : 1, blocks = 8 / wide, part = lane & 3;
    const int64_t row_bytes = a.x_stride * 2;
#pragma unroll 1
    for (int block = (lane >> 2) % blocks; block < count; block += blocks) {
        const char *from = a.x + (int64_t)(first + block) * 64 + part * 16;
        char *const to = form + (block * a.T * 4 + part) * 16;
        const bool there = first + block < a.blocks;
#pragma unroll 1
        for (int row = (lane >> 2) / blocks; row < a.T; row += AHEAD * wide) {
            uint4 v[AHEAD];
#pragma unroll
            for (int n = 0; n < AHEAD; n++) {
                v[n] = make_uint4(0, 0, 0, 0);
                if (row + n * wide < a.T && there)
                    v[n] = __ldcg(reinterpret_cast<const uint4 *>(from + (row + n * wide) * row_bytes));
            }
#pragma unroll
            for (int n = 0; n < AHEAD; n++)
                if (row + n * wide < a.T) *reinterpret_cast<uint4 *>(to + (row + n * wide) * 64) = v[n];
        }
    }
}

// The lane's part of block `block` (of the warp's own) of x. Where x has no row for the lane's column, another row's: what it gives is not
// stored.
template <int MODE>
__device__ __forceinline__ void kf_stream_form(const char *form, int T, int block, int lane, uint4 (&part)[3]) {
    const int place = min(lane, (T - 1) * 4 + (lane & 3));
#pragma unroll
    for (int p = 0; p < kf_x_parts(MODE); p++)
        part[p] = *reinterpret_cast<const uint4 *>(form + ((block * kf_x_parts(MODE) + p) * T * 4 + place) * 16);
}

// Asks for slot `index` of the columns of the block's octets.
template <int TYPE, int MODE, int OCTETS>
__device__ __forceinline__ void kf_stream_fetch(const kf_cuda_linear &a, int octet, int index, uint32_t slot,
                                                int lane) {
    using stream = kf_stream<TYPE, MODE, OCTETS>;
    constexpr int PIECES = stream::PIECES;
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
}

// What is in the slot times x, added to the sums. `block`: the slot's first, among the warp's own.
template <int TYPE, int MODE, int OCTETS>
__device__ __forceinline__ void kf_stream_multiply(const kf_cuda_linear &a, int index, const char *slot,
                                                   const char *form, int block, int lane, float (&sum)[4]) {
    using stream = kf_stream<TYPE, MODE, OCTETS>;
    constexpr int PIECES = stream::PIECES;
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
        uint4 x[3];
        kf_stream_form<MODE>(form, a.T, block + b, lane, x);
        kf_dense_block<TYPE, MODE>(sum, kf_dense_parts<TYPE, MODE>(low, high), x);
    }
}

// Adds the slices' sums of the block's rows up and stores them.
template <int OCTETS>
__device__ __forceinline__ void kf_stream_finish(const kf_cuda_linear &a, int octet, const float *sums) {
    constexpr int ROWS = OCTETS * KF_OCTET, MOST = KF_DENSE_SLICES;
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
__global__ void __launch_bounds__(KF_DENSE_SLICES * 32, 2) kf_linear_stream(const __grid_constant__ kf_cuda_linear a) {
    using stream = kf_stream<TYPE, MODE, OCTETS>;
    extern __shared__ __align__(128) char memory[];
    constexpr int ROWS = OCTETS * KF_OCTET;
    const int lane = threadIdx.x & 31, slice = threadIdx.x >> 5; // a warp each
    const int slice_blocks = a.slice_units * KF_DENSE_UNIT_BLOCKS, first_unit = slice * a.slice_units,
              units = min(a.slice_units, a.units - first_unit);
    const int form_bytes = slice_blocks * a.T * 64 * stream::PARTS, ring_bytes = a.ring * stream::SLOT;
    char *const forms = memory + a.slices * ring_bytes, *const form = forms + slice * form_bytes;
    float *const parts = reinterpret_cast<float *>(forms + a.slices * form_bytes);
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
    if (MODE != KF_X_SPLIT && a.x_aligned && a.K % 32 == 0)
        kf_stream_copy_x(a, first_unit * KF_DENSE_UNIT_BLOCKS, units * KF_DENSE_UNIT_BLOCKS, form, lane);
    else
        kf_stream_x<TYPE, MODE>(a, first_unit * KF_DENSE_UNIT_BLOCKS, units * KF_DENSE_UNIT_BLOCKS, form, lane);
    __syncwarp();

    int slot = 0, set = 0;
#pragma unroll 1
    for (int octet = blockIdx.x * OCTETS; octet < a.octets; octet += stride, set ^= 1) {
        float sum[4] = {};
#pragma unroll 1
        for (int step = 0; step < steps; step++) {
            kf_copy_wait<stream::SLOTS - 1>();
            __syncwarp();
            kf_stream_multiply<TYPE, MODE, OCTETS>(a, first_step + step, ring + slot * stream::SLOT, form,
                                                   step * stream::BLOCKS, lane, sum);
            __syncwarp();
            fetch();
            if (++slot == a.ring) slot = 0;
        }
        float *const mine = parts + (set * a.slices + slice) * ROWS * 8 + lane * 2; // [row][column]: lane 4 g + t, 2 t
        *reinterpret_cast<float2 *>(mine) = make_float2(sum[0], sum[1]);
        if (OCTETS == 2) *reinterpret_cast<float2 *>(mine + KF_OCTET * 8) = make_float2(sum[2], sum[3]);
        __syncthreads();
        kf_stream_finish<OCTETS>(a, octet, parts + set * a.slices * ROWS * 8);
    }
}

#define KF_STREAM_ROW(TYPE, MODE, OCTETS, NAME)                                                                        \
    {                                                                                                                  \
        KF_CUDA_STREAM, TYPE, MODE, kf_stream<TYPE, MODE, OCTETS>::SLOT, kf_stream<TYPE, MODE, OCTETS>::SLOTS,         \
            kf_stream<TYPE, MODE, OCTETS>::BLOCKS * 32, OCTETS, KF_STREAM_ROWS,                                        \
            (const void *)kf_linear_stream<TYPE, MODE, OCTETS>, NAME                                                   \
    }
#define KF_STREAM_ROWS_OF(TYPE, MODE, NAME) KF_STREAM_ROW(TYPE, MODE, 1, NAME), KF_STREAM_ROW(TYPE, MODE, 2, NAME)

#endif
