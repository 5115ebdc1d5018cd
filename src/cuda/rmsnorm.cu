// SPDX-License-Identifier: Apache-2.0
//
// RMSNorm with or without the residual's addition: s = x + residual, y = s rsqrt(mean s^2 + eps) (offset + weight).
//
// A row stays in the registers of its threads between the sum of squares and the product with the weights, so that each
// byte moves once: x, residual, sum and y. The threads are a part of a warp, a block, or on Hopper a cluster of blocks. The
// weights come from L1 and L2 after a multiprocessor's first rows; they are asked for before the wait for the kernel before
// this one. Rows longer than registers hold are read a second time.
//
// Operations per element: an addition, a multiply-add, two products, conversions: an eighth of what a multiprocessor does
// while the bytes arrive.
#include "cuda/rows.cuh"
#include "keyfold.h"
#include "math/exp2.h"

// Squares below this sum may have vanished (2^-126 is the smallest normal number).
#define LEAST_SQUARES 0x1p-80f

__device__ __forceinline__ bool squares_lost(float squares, float eps) {
    return squares == INFINITY || (squares < LEAST_SQUARES && eps < LEAST_SQUARES);
}

// Of x > 0: floor(log2 x), or -127 for subnormal numbers, which is near enough here.
__device__ __forceinline__ int power_of(float x) { return (int)(kf_bits_of_float(x) >> 23) - 127; }

// 1 / sqrt(mean s^2 + eps) for numbers that are 2^-power times what they were, `squares` the sum of theirs. Where eps then
// overflows, it is all that counts.
__device__ __forceinline__ float inverse_of(float squares, int64_t n, float eps, int power) {
    const float scaled = kf_scale_by_power(eps, max(min(-2 * power, 160), -160));
    return scaled == INFINITY ? kf_scale_by_power(rsqrtf(eps), power) : rsqrtf(squares / (float)n + scaled);
}

// A row whose squares overflow or vanish: s is multiplied by the power of two that brings its largest element into [1, 2),
// and the squares are formed again. Rows that share a warp go together; the others are left as they are.
template <int TYPE, int CHUNKS>
__device__ __forceinline__ float rescue(const kf_cuda_rmsnorm &a, const kf_row_part &p, bool lost, float inverse,
                                        float (&s)[CHUNKS][kf_step<TYPE>], kf_row_room &first, kf_row_room &second) {
    const int32_t cluster = a.rows.cluster;
    float most = 0.0f, squares = 0.0f;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
#pragma unroll
        for (int e = 0; e < kf_step<TYPE>; e++) most = fmaxf(most, fabsf(s[i][e]));
    most = kf_row_reduce_all<kf_most>(most, p, cluster, first);
    lost = lost && most > 0.0f && most < INFINITY;
    const int power = lost ? power_of(most) : 0;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
#pragma unroll
        for (int e = 0; e < kf_step<TYPE>; e++) {
            s[i][e] = kf_scale_by_power(s[i][e], -power);
            squares = fmaf(s[i][e], s[i][e], squares);
        }
    squares = kf_row_reduce_all<kf_add>(squares, p, cluster, second);
    return lost ? inverse_of(squares, a.rows.n, a.eps, power) : inverse;
}

// offset + weight; 1 where there is no weight.
template <int TYPE>
__device__ __forceinline__ void weight_values(const kf_cuda_rmsnorm &a, const uint4 &raw, float (&w)[kf_step<TYPE>]) {
    kf_chunk_unpack<TYPE>(raw, w);
#pragma unroll
    for (int e = 0; e < kf_step<TYPE>; e++) w[e] = a.weight ? a.weight_offset + w[e] : 1.0f;
}

template <int TYPE, int CHUNKS>
__global__ void __launch_bounds__(KF_ROWS_BLOCK) kf_rmsnorm_kernel(const __grid_constant__ kf_cuda_rmsnorm a) {
    constexpr int STEP = kf_step<TYPE>;
    __shared__ kf_row_room room[3];
    const kf_row_part p = kf_row_find<TYPE, CHUNKS>(a.rows);
    kf_launch_dependents();
    uint4 weight[CHUNKS] = {};
    if constexpr (TYPE != 0) {
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            const int32_t at = kf_row_at<TYPE>(p, i, 0);
            if (a.weight && at < p.end)
                weight[i] = __ldg(reinterpret_cast<const uint4 *>(a.weight + (int64_t)at * (16 / STEP)));
        }
    }
    int64_t offset[4];
    kf_row_offsets(a.rows, a.view, p.there ? p.row : 0, offset);
    kf_wait_for_previous();

    const kf_cuda_rows_view &x = a.view[0], &residual = a.view[1], &y = a.view[2], &sum = a.view[3];
    float s[CHUNKS][STEP], squares = 0.0f;
    kf_row_load<TYPE, CHUNKS>(s, x.data + offset[0], x.type, x.size, p, 0.0f);
    if (residual.data) {
        float r[CHUNKS][STEP];
        kf_row_load<TYPE, CHUNKS>(r, residual.data + offset[1], residual.type, residual.size, p, 0.0f);
#pragma unroll
        for (int i = 0; i < CHUNKS; i++)
#pragma unroll
            for (int e = 0; e < STEP; e++) s[i][e] += r[i][e];
    }
    const int round_to = a.cast == KF_CAST_END ? KF_ROW_F32 : TYPE ? TYPE : sum.data ? sum.type : x.type;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
#pragma unroll
        for (int e = 0; e < STEP; e++) {
            s[i][e] = kf_element_round(s[i][e], round_to);
            squares = fmaf(s[i][e], s[i][e], squares);
        }
    if (sum.data) kf_row_store<TYPE, CHUNKS>(sum.data + offset[3], sum.type, sum.size, p, s);
    squares = kf_row_reduce_all<kf_add>(squares, p, a.rows.cluster, room[0]);
    float inverse = rsqrtf(squares / (float)a.rows.n + a.eps);
    const bool lost = squares_lost(squares, a.eps);
    if (__any_sync(0xffffffffu, lost)) inverse = rescue<TYPE, CHUNKS>(a, p, lost, inverse, s, room[1], room[2]);

    const int cast_to = a.cast == KF_CAST_LLAMA ? TYPE ? TYPE : x.type : KF_ROW_F32;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        float w[STEP];
        if constexpr (TYPE != 0) weight_values<TYPE>(a, weight[i], w);
#pragma unroll
        for (int e = 0; e < STEP; e++) {
            if constexpr (TYPE == 0) {
                const int32_t at = kf_row_at<TYPE>(p, i, e);
                w[e] = a.weight && at < p.end
                           ? a.weight_offset + kf_element_load(a.weight + (int64_t)at * a.weight_size, a.weight_type)
                           : 1.0f;
            }
            s[i][e] = kf_element_round(s[i][e] * inverse, cast_to) * w[e];
        }
    }
    kf_row_store<TYPE, CHUNKS>(y.data + offset[2], y.type, y.size, p, s);
    if (a.rows.cluster > 1) kf_cluster_barrier(); // the others have read this block's sum
}

// ------------------------------------------------------------------------------------------------------------ long rows

// Element `at` of s.
__device__ __forceinline__ float sum_at(const kf_cuda_rmsnorm &a, const int64_t (&offset)[4], int64_t at,
                                        int round_to) {
    const kf_cuda_rows_view &x = a.view[0], &residual = a.view[1];
    float s = kf_element_load(x.data + offset[0] + at * x.size, x.type);
    if (residual.data) s += kf_element_load(residual.data + offset[1] + at * residual.size, residual.type);
    return kf_element_round(s, round_to);
}

// Any dtypes, any length: a block goes over its row twice, and forms s anew the second time.
__global__ void __launch_bounds__(KF_ROWS_BLOCK) kf_rmsnorm_long_kernel(const __grid_constant__ kf_cuda_rmsnorm a) {
    __shared__ kf_row_room room[3];
    const int64_t n = a.rows.n, step = blockDim.x;
    int64_t offset[4];
    kf_launch_dependents();
    kf_row_offsets(a.rows, a.view, blockIdx.x, offset);
    kf_wait_for_previous();
    const kf_cuda_rows_view &x = a.view[0], &y = a.view[2], &sum = a.view[3];
    const int round_to = a.cast == KF_CAST_END ? KF_ROW_F32 : sum.data ? sum.type : x.type;
    float squares = 0.0f;
#pragma unroll 4
    for (int64_t at = threadIdx.x; at < n; at += step) {
        const float s = sum_at(a, offset, at, round_to);
        squares = fmaf(s, s, squares);
    }
    squares = kf_row_reduce<kf_add>(squares, blockDim.x, room[0]);
    float inverse = rsqrtf(squares / (float)n + a.eps);
    int power = 0; // what is normalised is s 2^-power
    if (squares_lost(squares, a.eps)) {
        float most = 0.0f, scaled = 0.0f;
        for (int64_t at = threadIdx.x; at < n; at += step) most = fmaxf(most, fabsf(sum_at(a, offset, at, round_to)));
        most = kf_row_reduce<kf_most>(most, blockDim.x, room[1]);
        if (most > 0.0f && most < INFINITY) power = power_of(most);
        for (int64_t at = threadIdx.x; at < n; at += step) {
            const float s = kf_scale_by_power(sum_at(a, offset, at, round_to), -power);
            scaled = fmaf(s, s, scaled);
        }
        scaled = kf_row_reduce<kf_add>(scaled, blockDim.x, room[2]);
        if (most > 0.0f && most < INFINITY) inverse = inverse_of(scaled, n, a.eps, power);
    }
    const int cast_to = a.cast == KF_CAST_LLAMA ? x.type : KF_ROW_F32;
#pragma unroll 4
    for (int64_t at = threadIdx.x; at < n; at += step) {
        const float s = sum_at(a, offset, at, round_to);
        const float w =
            a.weight ? a.weight_offset + kf_element_load(a.weight + at * a.weight_size, a.weight_type) : 1.0f;
        if (sum.data) kf_element_store(sum.data + offset[3] + at * sum.size, sum.type, s);
        const float scaled = power ? kf_scale_by_power(s, -power) : s;
        kf_element_store(y.data + offset[2] + at * y.size, y.type, kf_element_round(scaled * inverse, cast_to) * w);
    }
}

// ---------------------------------------------------------------------------------------------------------------- table

#define KERNEL(type, chunks, name)                                                                                     \
    { type, chunks, KF_ROWS_BLOCK, (const void *)kf_rmsnorm_kernel<type, chunks>, name }
#define KERNELS(type, name) KERNEL(type, 1, name), KERNEL(type, 2, name), KERNEL(type, 4, name)

extern "C" const kf_cuda_rows_kernel kf_cuda_rmsnorm_kernels[] = {
    KERNELS(KF_ROW_F32, "a row in registers, 16-byte chunks"),
    KERNELS(KF_ROW_F16, "a row in registers, 16-byte chunks"),
    KERNELS(KF_ROW_BF16, "a row in registers, 16-byte chunks"),
    KERNELS(0, "a row in registers, any dtypes and addresses"),
    {},
};
extern "C" const kf_cuda_rows_kernel kf_cuda_rmsnorm_long_kernels[] = {
    {0, 0, KF_ROWS_BLOCK, (const void *)kf_rmsnorm_long_kernel, "rows of any length, read twice"},
    {},
};
