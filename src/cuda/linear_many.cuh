// SPDX-License-Identifier: Apache-2.0
//
// Up to eight rows of bf16 x over quantised weights of many rows: y[t, n] = sum_k x[t, k] w[n, k] + bias[n]. The warps, the form of x and the
// products of linear_wide.cuh; but a block goes on to further pairs of octets, and each warp keeps x of its own 256 columns.
//
//     block     `ways` warps, at most eight, which have all the columns; as many blocks as find room at once, each takes every so-manieth pair
//     weights   come straight into registers; the next pair's are asked for when this one's are used up
//     x         as linear_direct.cuh says; half of it in registers where weights have four bits
//     sums      two sets, used in turn: a thread writes one again only behind the next pair's barrier, which no thread passes before it has
//               read what it needs of that set
//
//     shared    [ x of warp 0 | x of warp 1 | ... | sums: [set][warp][16 rows of W][rows of x: 1 or 8] ]
//
// Bytes: those of W, once; x once a block, from L2. Called by linear.c for T <= 8.
#ifndef KF_CUDA_LINEAR_MANY_CUH
#define KF_CUDA_LINEAR_MANY_CUH

#include "cuda/linear_one.cuh"

// Blocks of x that a lane holds in registers, where these suffice.
__host__ __device__ constexpr int kf_many_held(int type) { return kf_wide_below(type) ? KF_UNIT_BLOCKS / 2 : 0; }

// ROWS: 1 or KF_STREAM_ROWS, at most.
template <int TYPE, int ROWS>
__global__ void __launch_bounds__(KF_DIRECT_WARPS * 32, 2) kf_linear_many(const __grid_constant__ kf_cuda_linear a) {
    constexpr int QUADS = KF_DIRECT_QUADS;
    constexpr float UP = kf_wide_below(TYPE) ? 64.0f : 1.0f;
    extern __shared__ __align__(128) char memory[];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, T = ROWS == 1 ? 1 : a.T;
    const int first = warp * QUADS, count = min(QUADS, (a.blocks + 3) / 4 - first);
    const int form_bytes = KF_UNIT_BLOCKS * KF_DIRECT_FORM * T + kf_direct<TYPE>::BESIDE;
    char *const form = memory + warp * form_bytes;
    float *const beside = reinterpret_cast<float *>(form + KF_UNIT_BLOCKS * KF_DIRECT_FORM * T);
    float *sums = reinterpret_cast<float *>(memory + a.ways * form_bytes);
    const int set = a.ways * 2 * KF_OCTET * ROWS; // floats

    kf_piece<TYPE> piece[QUADS];
    if (a.weights_made) kf_wait_for_previous();
    kf_direct_load<TYPE>(a, blockIdx.x * 2, first, count, lane, piece);
    kf_launch_dependents();
    const kf_direct_place place = kf_direct_find(a, T, first * 4, warp * form_bytes, lane);
    kf_wait_for_previous();
    kf_direct_bring<TYPE, ROWS>(a, place, memory, form, T, 1.0f / UP, beside, lane);
    const kf_wide_x<kf_many_held(TYPE)> x(form, T, lane);

    const int pairs = (a.octets + 1) / 2, whole = (warp + 1) * KF_UNIT_BLOCKS <= a.blocks ? a.N / (2 * KF_OCTET) : 0;
    const char *ahead = a.w + blockIdx.x * 2 * a.octet_bytes;
    const kf_block_a none[4] = {};
    bool second = false;
#pragma unroll 1
    for (int pair = blockIdx.x; pair < pairs; pair += gridDim.x, second = !second) {
        const int next = pair + gridDim.x;
        float sum[4] = {};
        ahead += gridDim.x * 2 * a.octet_bytes;
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            if (i >= count) break;
            kf_wide_multiply<TYPE, ROWS, false>(piece[i], none, i, x, beside, lane, sum);
            if (next < whole) kf_vector_load<TYPE>(ahead, a.octet_bytes, first + i, lane, piece[i]);
        }
        if (next >= whole && next < pairs) kf_direct_load<TYPE>(a, next * 2, first, count, lane, piece);
#pragma unroll
        for (int i = 0; i < 4; i++) sum[i] *= UP;
        float *const mine = sums + (second ? set : 0);
        kf_direct_put<ROWS>(mine + warp * 2 * KF_OCTET * ROWS, lane, sum);
        __syncthreads();
        kf_direct_finish<ROWS>(a, T, pair, mine);
    }
}

#define KF_DIRECT_LITTLE(TYPE)                                                                                         \
    KF_DIRECT_PAIR(KF_CUDA_DIRECT, TYPE, (kf_linear_direct<TYPE, 1>), KF_UNIT_BLOCKS *KF_DIRECT_FORM,                  \
                   kf_direct<TYPE>::BESIDE + KF_DIRECT_SUMS, 0, (kf_linear_direct<TYPE, KF_STREAM_ROWS>), 1, "little")
// One row by the same kernels as more, or by those of linear_one.cuh.
#define KF_DIRECT_ROWS_OF(TYPE)                                                                                        \
    KF_DIRECT_LITTLE(TYPE),                                                                                            \
        KF_DIRECT_PAIR(KF_CUDA_DIRECT_WIDE, TYPE, (kf_linear_wide<TYPE, 1>), KF_UNIT_BLOCKS *KF_DIRECT_FORM,           \
                       kf_direct<TYPE>::BESIDE + KF_DIRECT_SUMS, 0, (kf_linear_wide<TYPE, KF_STREAM_ROWS>), 1,         \
                       "more"),                                                                                        \
        KF_DIRECT_PAIR(KF_CUDA_DIRECT_MANY, TYPE, (kf_linear_many<TYPE, 1>), KF_UNIT_BLOCKS *KF_DIRECT_FORM,           \
                       kf_direct<TYPE>::BESIDE + 2 * KF_DIRECT_SUMS, KF_MANY_WARPS,                                    \
                       (kf_linear_many<TYPE, KF_STREAM_ROWS>), 2, "much")
#define KF_ONE_ROWS_OF(TYPE)                                                                                           \
    KF_DIRECT_LITTLE(TYPE),                                                                                            \
        KF_DIRECT_PAIR(KF_CUDA_DIRECT_WIDE, TYPE, kf_linear_wide_one<TYPE>, 0, KF_ONE_SUMS, 0,                         \
                       (kf_linear_wide<TYPE, KF_STREAM_ROWS>), 1, "more"),                                             \
        KF_DIRECT_PAIR(KF_CUDA_DIRECT_MANY, TYPE, kf_linear_many_one<TYPE>, 0, KF_MANY_PAIRS *KF_ONE_SUMS,             \
                       kf_one_blocks(TYPE) * KF_DIRECT_WARPS, (kf_linear_many<TYPE, KF_STREAM_ROWS>), 2, "much")

#endif
