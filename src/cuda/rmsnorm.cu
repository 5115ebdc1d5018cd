// SPDX-License-Identifier: Apache-2.0
//
// RMSNorm with or without the residual's addition: s = x + residual, y = s rsqrt(mean s^2 + eps) (offset + weight).
//
// A row stays in the registers of its threads between the sum of squares and the product with the weights, so that each
// byte moves once: x, residual, sum and y. The threads are a part of a warp, a block of up to 512, each with as few chunks as
// that allows, or on Hopper a cluster of such blocks, which send each other their sums. All loads of x and residual are sent before the first of them is used; weights are asked for before the
// wait for the kernel before this one, and come from L1 and L2 after a multiprocessor's first rows. Rows that registers do
// not hold are read a second time.
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
__device__ __forceinline__ float inverse_of(const kf_cuda_rmsnorm &a, float squares, int power) {
    const float eps = kf_scale_by_power(a.eps, max(min(-2 * power, 160), -160));
    return eps == INFINITY ? kf_scale_by_power(rsqrtf(a.eps), power) : rsqrtf(fmaf(squares, a.inverse_n, eps));
}

// Kernels whose rows may be shared by the blocks of a cluster.
template <int TYPE, int CHUNKS> constexpr bool may_share = TYPE != 0 && CHUNKS == KF_RMSNORM_SHARED;

// A row whose squares overflow or vanish: s is multiplied by the power of two that brings its largest element into [1, 2),
// and the squares are formed again. Rows that share a warp go together; the others are left as they are.
template <int TYPE, int CHUNKS>
__device__ __forceinline__ float rescue(const kf_cuda_rmsnorm &a, const kf_row_part &p, int32_t cluster, bool lost,
                                        float inverse, float (&s)[CHUNKS][kf_step<TYPE>], kf_row_room (&room)[3],
                                        kf_cluster_room (&others)[3]) {
    float most = 0.0f, squares = 0.0f;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
#pragma unroll
        for (int e = 0; e < kf_step<TYPE>; e++) most = fmaxf(most, fabsf(s[i][e]));
    most = kf_row_reduce_all<kf_most>(most, p, cluster, room[1], others[1]);
    lost = lost && most > 0.0f && most < INFINITY;
    const int power = lost ? power_of(most) : 0;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
#pragma unroll
        for (int e = 0; e < kf_step<TYPE>; e++) {
            s[i][e] = kf_scale_by_power(s[i][e], -power);
            squares = fmaf(s[i][e], s[i][e], squares);
        }
    squares = kf_row_reduce_all<kf_add>(squares, p, cluster, room[2], others[2]);
    return lost ? inverse_of(a, squares, power) : inverse;
}

template <int TYPE, int CHUNKS> __device__ __forceinline__ void round_all(float (&s)[CHUNKS][kf_step<TYPE>], int type) {
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
#pragma unroll
        for (int e = 0; e < kf_step<TYPE>; e++) s[i][e] = kf_element_round(s[i][e], TYPE ? TYPE : type);
}

// s, whole -> s * inverse, rounded where `cast` says so. Stores the sum on the way.
template <int TYPE, int CHUNKS>
__device__ __forceinline__ void normalise(const kf_cuda_rmsnorm &a, const kf_row_part &p, char *sum,
                                          float (&s)[CHUNKS][kf_step<TYPE>], kf_row_room (&room)[3],
                                          kf_cluster_room (&others)[3]) {
    const kf_cuda_rows_view &x = a.view[0], &sums = a.view[3];
    const int32_t cluster = may_share<TYPE, CHUNKS> ? a.rows.cluster : 1;
    if (TYPE != KF_ROW_F32 && a.cast != KF_CAST_END) round_all<TYPE, CHUNKS>(s, sums.data ? sums.type : x.type);
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
#pragma unroll
        for (int e = 0; e < kf_step<TYPE>; e++) squares = fmaf(s[i][e], s[i][e], squares);
    if (sums.data) kf_row_store<TYPE, CHUNKS>(sum, sums.type, sums.size, p, s);
    kf_cluster_ready(cluster);
    squares = kf_row_reduce_all<kf_add>(squares, p, cluster, room[0], others[0]);
    float inverse = rsqrtf(fmaf(squares, a.inverse_n, a.eps));
    const bool lost = squares_lost(squares, a.eps);
    if (__builtin_expect(__any_sync(0xffffffffu, lost), 0))
        inverse = rescue<TYPE, CHUNKS>(a, p, cluster, lost, inverse, s, room, others);
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
#pragma unroll
        for (int e = 0; e < kf_step<TYPE>; e++) s[i][e] *= inverse;
    if (TYPE != KF_ROW_F32 && a.cast == KF_CAST_LLAMA) round_all<TYPE, CHUNKS>(s, x.type);
}

template <int TYPE, int CHUNKS>
__device__ __forceinline__ void load_weights(uint4 (&weight)[CHUNKS], const kf_cuda_rmsnorm &a, const kf_row_part &p) {
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        weight[i] = make_uint4(0, 0, 0, 0);
        const int32_t at = kf_row_at<TYPE>(p, i, 0);
        if (a.weight && at < p.end)
            weight[i] = __ldg(reinterpret_cast<const uint4 *>(a.weight + (int64_t)at * (16 / kf_step<TYPE>)));
    }
}

template <int TYPE, int CHUNKS>
__device__ __forceinline__ void unpack_sum(float (&s)[CHUNKS][kf_step<TYPE>], const uint4 (&x)[CHUNKS],
                                           const uint4 (&residual)[CHUNKS], bool add) {
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) kf_chunk_unpack<TYPE>(x[i], s[i]);
    if (!add) return;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        float r[kf_step<TYPE>];
        kf_chunk_unpack<TYPE>(residual[i], r);
#pragma unroll
        for (int e = 0; e < kf_step<TYPE>; e++) s[i][e] += r[e];
    }
}

// s (offset + weight)
template <int TYPE, int CHUNKS>
__device__ __forceinline__ void apply_weights(float (&s)[CHUNKS][kf_step<TYPE>], const kf_cuda_rmsnorm &a,
                                              const uint4 (&weight)[CHUNKS]) {
    if (!a.weight) return;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        float w[kf_step<TYPE>];
        kf_chunk_unpack<TYPE>(weight[i], w);
#pragma unroll
        for (int e = 0; e < kf_step<TYPE>; e++) s[i][e] *= a.weight_offset + w[e];
    }
}

// A chunk of fp32 leaves as half a chunk where y is of 16 bits.
template <int TYPE, int CHUNKS>
__device__ __forceinline__ void store_y(char *row, const kf_cuda_rows_view &y, const kf_row_part &p,
                                        const float (&s)[CHUNKS][kf_step<TYPE>]) {
    if (TYPE != KF_ROW_F32 || y.type == KF_ROW_F32) {
        kf_row_store<TYPE, CHUNKS>(row, y.type, y.size, p, s);
        return;
    }
    const bool half = y.type == KF_ROW_F16;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        const uint2 pair =
            half ? make_uint2(kf_pack<__half>(s[i][0], s[i][1]), kf_pack<__half>(s[i][2], s[i][3]))
                 : make_uint2(kf_pack<__nv_bfloat16>(s[i][0], s[i][1]), kf_pack<__nv_bfloat16>(s[i][2], s[i][3]));
        if (kf_row_has<TYPE>(p, i, 0)) *reinterpret_cast<uint2 *>(row + (int64_t)kf_row_at<TYPE>(p, i, 0) * 2) = pair;
    }
}

// Blocks that leave the next kernel its room. It may begin at once: in a model's step it is a product with weights to ask for, and they come while
// the product before this kernel still ends (TinyLlama's step on an H200: 912 us; 1002 where it begins when the row is there).
enum { FEW_BLOCKS = 8 };

template <int TYPE, int CHUNKS>
__global__ void __launch_bounds__(KF_ROWS_BLOCK, TYPE == 0)
    kf_rmsnorm_kernel(const __grid_constant__ kf_cuda_rmsnorm a) {
    __shared__ kf_row_room room[3];
    __shared__ kf_cluster_room others[3];
    const bool few = gridDim.x <= FEW_BLOCKS;
    if (few) kf_launch_dependents();
    const kf_row_part p = kf_row_find<TYPE, CHUNKS>(a.rows);
    const kf_cuda_rows_view &x = a.view[0], &residual = a.view[1], &y = a.view[2], &sum = a.view[3];
    int64_t offset[4];
    if (may_share<TYPE, CHUNKS>) kf_cluster_begin(others, a.rows.cluster);
    uint4 weight[CHUNKS];
    if constexpr (TYPE != 0) load_weights<TYPE, CHUNKS>(weight, a, p);
    kf_row_offsets(a.rows, a.view, p.there ? p.row : 0, offset);
    kf_wait_for_previous();
    float s[CHUNKS][kf_step<TYPE>];
    if constexpr (TYPE != 0) {
        uint4 first[CHUNKS], second[CHUNKS] = {};
        kf_row_load_raw<TYPE, CHUNKS>(first, x.data + offset[0], p);
        if (residual.data) kf_row_load_raw<TYPE, CHUNKS>(second, residual.data + offset[1], p);
        unpack_sum<TYPE, CHUNKS>(s, first, second, residual.data != NULL);
    } else {
        kf_row_load<TYPE, CHUNKS>(s, x.data + offset[0], x.type, x.size, p, 0.0f);
        float r[CHUNKS][kf_step<TYPE>] = {};
        if (residual.data)
            kf_row_load<TYPE, CHUNKS>(r, residual.data + offset[1], residual.type, residual.size, p, 0.0f);
#pragma unroll
        for (int i = 0; i < CHUNKS; i++)
#pragma unroll
            for (int e = 0; e < kf_step<TYPE>; e++) s[i][e] = residual.data ? s[i][e] + r[i][e] : s[i][e];
    }
    // Of many rows when the row is there, not before: blocks of the next kernel that already wait make these slower.
    if (!few) kf_launch_dependents();
    normalise<TYPE, CHUNKS>(a, p, sum.data + offset[3], s, room, others);
    if constexpr (TYPE != 0) {
        apply_weights<TYPE, CHUNKS>(s, a, weight);
    } else if (a.weight) {
        float w[CHUNKS][kf_step<TYPE>];
        kf_row_load<TYPE, CHUNKS>(w, a.weight, a.weight_type, a.weight_size, p, 0.0f);
#pragma unroll
        for (int i = 0; i < CHUNKS; i++)
#pragma unroll
            for (int e = 0; e < kf_step<TYPE>; e++) s[i][e] *= a.weight_offset + w[i][e];
    }
    store_y<TYPE, CHUNKS>(y.data + offset[2], y, p, s);
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
    float inverse = rsqrtf(fmaf(squares, a.inverse_n, a.eps));
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
        if (most > 0.0f && most < INFINITY) inverse = inverse_of(a, scaled, power);
    }
    const int cast_to = a.cast == KF_CAST_LLAMA ? x.type : KF_ROW_F32;
#pragma unroll 4
    for (int64_t at = threadIdx.x; at < n; at += step) {
        const float s = sum_at(a, offset, at, round_to);
        const float w =
            a.weight ? a.weight_offset + kf_element_load(a.weight + at * a.weight_size, a.weight_type) : 1.0f;
        const float scaled = power ? kf_scale_by_power(s, -power) : s;
        if (sum.data) kf_element_store(sum.data + offset[3] + at * sum.size, sum.type, s);
        kf_element_store(y.data + offset[2] + at * y.size, y.type, kf_element_round(scaled * inverse, cast_to) * w);
    }
}

// ---------------------------------------------------------------------------------------------------------------- table

#define KERNEL(kernel, type, chunks, name)                                                                             \
    { type, chunks, KF_ROWS_BLOCK, (const void *)kernel<type, chunks>, name }
#define KERNELS(kernel, type, name)                                                                                    \
    KERNEL(kernel, type, 1, name), KERNEL(kernel, type, 2, name), KERNEL(kernel, type, 4, name)

extern "C" const kf_cuda_rows_kernel kf_cuda_rmsnorm_kernels[] = {
    KERNELS(kf_rmsnorm_kernel, KF_ROW_F32, "a row in registers, 16-byte chunks"),
    KERNELS(kf_rmsnorm_kernel, KF_ROW_F16, "a row in registers, 16-byte chunks"),
    KERNELS(kf_rmsnorm_kernel, KF_ROW_BF16, "a row in registers, 16-byte chunks"),
    KERNELS(kf_rmsnorm_kernel, 0, "a row in registers, any dtypes and addresses"),
    {},
};
extern "C" const kf_cuda_rows_kernel kf_cuda_rmsnorm_long_kernels[] = {
    {0, 0, KF_ROWS_BLOCK, (const void *)kf_rmsnorm_long_kernel, "rows of any length, read twice"},
    {},
};
