// SPDX-License-Identifier: Apache-2.0
//
// RMSNorm with or without the residual's addition: s = x + residual, y = s rsqrt(mean s^2 + eps) (offset + weight).
//
// A row stays in the registers of its threads between the sum of squares and the product with the weights, so that each
// byte moves once: x, residual, sum and y. The threads are a part of a warp, a block of up to 512, each with as few
// chunks as that allows, or on Hopper a cluster of such blocks, which send each other their sums. All loads of x and
// residual are sent before the first of them is used. Ahead of the wait for the kernel before this one weights are asked
// for (they come from L1 and L2 after a multiprocessor's first rows), x and residual are called into L2, and all that
// is made of the arguments is made. Rows that registers do not hold are read a second time.
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

// 1 / sqrt(mean s^2 + eps). A row that must be rescued comes back scaled, with the inverse for what it is then.
template <int TYPE, int CHUNKS>
__device__ __forceinline__ float find_inverse(const kf_cuda_rmsnorm &a, const kf_row_part &p, int32_t cluster,
                                              float inverse_n, float eps, float (&s)[CHUNKS][kf_step<TYPE>],
                                              kf_row_room (&room)[3], kf_cluster_room (&others)[3]) {
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
#pragma unroll
        for (int e = 0; e < kf_step<TYPE>; e++) squares = fmaf(s[i][e], s[i][e], squares);
    squares = kf_row_reduce_all<kf_add>(squares, p, cluster, room[0], others[0]);
    const float inverse = rsqrtf(fmaf(squares, inverse_n, eps));
    const bool lost = squares_lost(squares, eps);
    if (__builtin_expect(__any_sync(0xffffffffu, lost), 0))
        return rescue<TYPE, CHUNKS>(a, p, cluster, lost, inverse, s, room, others);
    return inverse;
}

// -------------------------------------------------------------------------------------------------- rows of one dtype, by chunks

// What is done to a row.
enum { ADD_RESIDUAL = 1, STORE_SUM = 2, MULTIPLY = 4, ROUND_SUM = 8, ROUND_SCALED = 16, HALF_Y = 32, BFLOAT_Y = 64 };

__device__ __forceinline__ int32_t what_to_do(const kf_cuda_rmsnorm &a, bool wide) {
    const int y = a.view[2].type;
    return (a.view[1].data ? ADD_RESIDUAL : 0) | (a.view[3].data ? STORE_SUM : 0) | (a.weight ? MULTIPLY : 0) |
           (!wide && a.cast != KF_CAST_END ? ROUND_SUM : 0) | (!wide && a.cast == KF_CAST_LLAMA ? ROUND_SCALED : 0) |
           (wide && y == KF_ROW_F16 ? HALF_Y : 0) | (wide && y == KF_ROW_BF16 ? BFLOAT_Y : 0);
}

// A thread's chunks, and all else that it needs behind its wait for the kernel before this one, worked out ahead of it:
// behind it an argument that is looked at for the first time is a miss of some hundred cycles, in the chain of waits that
// is all the time of few rows.
template <int TYPE, int CHUNKS> struct chunks {
    static constexpr int STEP = kf_step<TYPE>;
    const char *x, *residual; // the thread's first chunk
    char *y, *sum;
    int64_t stride;        // bytes from one of its chunks to the next one
    int32_t left, between; // elements of the row from its first chunk on, and from one to the next
    int32_t todo;
    float eps, inverse_n, weight_offset;
    uint4 weight[CHUNKS];

    __device__ __forceinline__ bool has(int i) const { return i * between < left; }
    // A chunk of fp32 leaves as half a chunk where y is of 16 bits.
    __device__ __forceinline__ int half_y() const { return TYPE == KF_ROW_F32 && (todo & (HALF_Y | BFLOAT_Y)) ? 1 : 0; }

    __device__ __forceinline__ chunks(const kf_cuda_rmsnorm &a, const kf_row_part &p)
        : between(p.group * STEP), todo(what_to_do(a, TYPE == KF_ROW_F32)), eps(a.eps), inverse_n(a.inverse_n),
          weight_offset(a.weight_offset) {
        const int32_t first = kf_row_at<TYPE>(p, 0, 0);
        int64_t offset[4];
        kf_row_offsets(a.rows, a.view, p.there ? p.row : 0, offset);
        const int64_t at = (int64_t)first * (16 / STEP);
        x = a.view[0].data + offset[0] + at, residual = a.view[1].data + offset[1] + at;
        y = a.view[2].data + offset[2] + (at >> half_y()), sum = a.view[3].data + offset[3] + at;
        stride = (int64_t)p.group * 16;
        left = p.there ? p.end - first : 0;
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            weight[i] = make_uint4(0, 0, 0, 0);
            if (!has(i)) continue;
            if (todo & MULTIPLY) weight[i] = __ldg(reinterpret_cast<const uint4 *>(a.weight + at + i * stride));
            // Allowed here, whoever writes them: nothing is read yet, and L2 is where it is written to.
            if (p.thread % KF_ROWS_LINE) continue;
            kf_ask(x + i * stride);
            if (todo & ADD_RESIDUAL) kf_ask(residual + i * stride);
        }
        kf_hold(x), kf_hold(residual), kf_hold(y), kf_hold(sum), kf_hold(stride);
        kf_hold(left), kf_hold(between), kf_hold(todo);
        kf_hold(eps), kf_hold(inverse_n), kf_hold(weight_offset);
    }

    // s = x + residual. All loads are sent before the first one is used.
    __device__ __forceinline__ void load(float (&s)[CHUNKS][STEP]) const {
        uint4 first[CHUNKS], second[CHUNKS];
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            first[i] = second[i] = make_uint4(0, 0, 0, 0);
            if (has(i)) first[i] = kf_chunk_load(x + i * stride);
            if (has(i) && (todo & ADD_RESIDUAL)) second[i] = kf_chunk_load(residual + i * stride);
        }
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) kf_chunk_unpack<TYPE>(first[i], s[i]);
        if (!(todo & ADD_RESIDUAL)) return; // -0 stays
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            float r[STEP];
            kf_chunk_unpack<TYPE>(second[i], r);
#pragma unroll
            for (int e = 0; e < STEP; e++) s[i][e] += r[e];
        }
    }

    // Stores the sum; rounds s to it where `cast` says so, by pairs: single conversions are a slower instruction.
    __device__ __forceinline__ void keep_sum(float (&s)[CHUNKS][STEP]) const {
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            const uint4 packed = kf_chunk_pack<TYPE>(s[i]);
            if ((todo & STORE_SUM) && has(i)) kf_global_store(sum + i * stride, packed);
            if (todo & ROUND_SUM) kf_chunk_unpack<TYPE>(packed, s[i]);
        }
    }

    // y = s inverse (offset + weight)
    __device__ __forceinline__ void store_y(float (&s)[CHUNKS][STEP], float inverse) const {
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
#pragma unroll
            for (int e = 0; e < STEP; e++) s[i][e] *= inverse;
            if (todo & ROUND_SCALED) kf_chunk_unpack<TYPE>(kf_chunk_pack<TYPE>(s[i]), s[i]);
            if (todo & MULTIPLY) {
                float w[STEP];
                kf_chunk_unpack<TYPE>(weight[i], w);
#pragma unroll
                for (int e = 0; e < STEP; e++) s[i][e] *= weight_offset + w[e];
            }
            if (has(i)) store_chunk(y + (i * stride >> half_y()), s[i]);
        }
    }

    __device__ __forceinline__ void store_chunk(char *at, const float (&v)[STEP]) const {
        if (TYPE == KF_ROW_F32 && (todo & HALF_Y))
            kf_global_store(at, make_uint2(kf_pack<__half>(v[0], v[1]), kf_pack<__half>(v[2], v[3])));
        else if (TYPE == KF_ROW_F32 && (todo & BFLOAT_Y))
            kf_global_store(at, make_uint2(kf_pack<__nv_bfloat16>(v[0], v[1]), kf_pack<__nv_bfloat16>(v[2], v[3])));
        else
            kf_global_store(at, kf_chunk_pack<TYPE>(v));
    }
};

// Blocks that leave the next kernel its room. It may begin before these have waited: in a model's step it is a product
// with weights to ask for, and they come while the product before this kernel still ends (TinyLlama's step on an H200:
// 912 us; 1002 where it begins when the row is there). Behind more blocks it begins once these have: blocks that wait for
// longer make these slower.
enum { FEW_BLOCKS = 8 };

// Blocks that find room on a multiprocessor, as far as registers go.
template <int TYPE, int CHUNKS> constexpr int room_for = CHUNKS == 4 ? 1 : CHUNKS == 2 ? 2 : TYPE == KF_ROW_F32 ? 4 : 3;

template <int TYPE, int CHUNKS>
__global__ void __launch_bounds__(KF_ROWS_BLOCK, room_for<TYPE, CHUNKS>)
    kf_rmsnorm_kernel(const __grid_constant__ kf_cuda_rmsnorm a) {
    __shared__ kf_row_room room[3];
    __shared__ kf_cluster_room others[3];
    const bool few = gridDim.x <= FEW_BLOCKS;
    int32_t cluster = may_share<TYPE, CHUNKS> ? a.rows.cluster : 1;
    kf_cluster_begin(others, cluster);
    kf_row_part p = kf_row_find<TYPE, CHUNKS>(a.rows);
    const chunks<TYPE, CHUNKS> c(a, p);
    kf_hold(p.group);
    if (may_share<TYPE, CHUNKS>) kf_hold(cluster);
    if (few) kf_launch_dependents();
    kf_wait_for_previous();
    if (!few) kf_launch_dependents();
    float s[CHUNKS][kf_step<TYPE>];
    c.load(s);
    c.keep_sum(s);
    kf_cluster_ready(cluster);
    const float inverse = find_inverse<TYPE, CHUNKS>(a, p, cluster, c.inverse_n, c.eps, s, room, others);
    c.store_y(s, inverse);
}

// ------------------------------------------------------------------------------- rows of any dtypes and addresses, by elements

template <int CHUNKS> __device__ __forceinline__ void round_all(float (&s)[CHUNKS][kf_step<0>], int type) {
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
#pragma unroll
        for (int e = 0; e < kf_step<0>; e++) s[i][e] = kf_element_round(s[i][e], type);
}

template <int CHUNKS>
__global__ void __launch_bounds__(KF_ROWS_BLOCK, 1) kf_rmsnorm_any_kernel(const __grid_constant__ kf_cuda_rmsnorm a) {
    __shared__ kf_row_room room[3];
    __shared__ kf_cluster_room others[3];
    const bool few = gridDim.x <= FEW_BLOCKS;
    if (few) kf_launch_dependents();
    const kf_row_part p = kf_row_find<0, CHUNKS>(a.rows);
    const kf_cuda_rows_view &x = a.view[0], &residual = a.view[1], &y = a.view[2], &sum = a.view[3];
    int64_t offset[4];
    kf_row_offsets(a.rows, a.view, p.there ? p.row : 0, offset);
    kf_wait_for_previous();
    float s[CHUNKS][kf_step<0>], other[CHUNKS][kf_step<0>] = {};
    kf_row_load<0, CHUNKS>(s, x.data + offset[0], x.type, x.size, p, 0.0f);
    if (residual.data) kf_row_load<0, CHUNKS>(other, residual.data + offset[1], residual.type, residual.size, p, 0.0f);
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
#pragma unroll
        for (int e = 0; e < kf_step<0>; e++) s[i][e] = residual.data ? s[i][e] + other[i][e] : s[i][e];
    if (!few) kf_launch_dependents();
    if (a.cast != KF_CAST_END) round_all<CHUNKS>(s, sum.data ? sum.type : x.type);
    if (sum.data) kf_row_store<0, CHUNKS>(sum.data + offset[3], sum.type, sum.size, p, s);
    const float inverse = find_inverse<0, CHUNKS>(a, p, 1, a.inverse_n, a.eps, s, room, others);
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
#pragma unroll
        for (int e = 0; e < kf_step<0>; e++) s[i][e] *= inverse;
    if (a.cast == KF_CAST_LLAMA) round_all<CHUNKS>(s, x.type);
    if (a.weight) {
        kf_row_load<0, CHUNKS>(other, a.weight, a.weight_type, a.weight_size, p, 0.0f);
#pragma unroll
        for (int i = 0; i < CHUNKS; i++)
#pragma unroll
            for (int e = 0; e < kf_step<0>; e++) s[i][e] *= a.weight_offset + other[i][e];
    }
    kf_row_store<0, CHUNKS>(y.data + offset[2], y.type, y.size, p, s);
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

#define CHUNKS_OF(type, count)                                                                                         \
    { type, count, KF_ROWS_BLOCK, (const void *)kf_rmsnorm_kernel<type, count>, "a row in registers, 16-byte chunks" }
#define KERNELS(type) CHUNKS_OF(type, 1), CHUNKS_OF(type, 2), CHUNKS_OF(type, 4)
#define ANY(count)                                                                                                     \
    {                                                                                                                  \
        0, count, KF_ROWS_BLOCK, (const void *)kf_rmsnorm_any_kernel<count>,                                           \
            "a row in registers, any dtypes and addresses"                                                             \
    }

extern "C" const kf_cuda_rows_kernel kf_cuda_rmsnorm_kernels[] = {
    KERNELS(KF_ROW_F32), KERNELS(KF_ROW_F16), KERNELS(KF_ROW_BF16), ANY(1), ANY(2), ANY(4), {},
};
extern "C" const kf_cuda_rows_kernel kf_cuda_rmsnorm_long_kernels[] = {
    {0, 0, KF_ROWS_BLOCK, (const void *)kf_rmsnorm_long_kernel, "rows of any length, read twice"},
    {},
};
