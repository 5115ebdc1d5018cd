// SPDX-License-Identifier: Apache-2.0
//
// Softmax over the last axis: y = e^(x - m) / d, m = max x, d = sum e^(x - m); lse = m + ln d.
//
//     a row that registers hold   as floats, of a part of a warp or a block; longer ones as they were read, of a block or on
//                                 Hopper a cluster of blocks, which send each other their states (m, d): x read once
//     longer rows                 two kernels over segments of the row: their states (m, d), online (Milakov & Gimelshein,
//                                 arXiv 1805.02867), then y from the merged states: x read twice
//
// Exponentials are 2^(L x - t), L = log2 e, t = L m rounded: a multiply-add whose product is exact, for any t near L m gives
// the same y. Where t passes KF_STATE_FAR it is 2^(L (x - m)) (math/state.h). Bytes: x and y once (long rows: x twice). An
// exponential per element, 16 a cycle and multiprocessor: a third of the time that the bytes of 16-bit elements take.
#include "cuda/rows.cuh"
#include "math/state.h"

#define LN2 0.69314718055994530942

// What a row's exponents are relative to: 2^(L (x - m) - t), one of m and t being zero.
struct origin {
    float m, t;
};

__device__ __forceinline__ origin origin_of(float m) {
    origin o = {0.0f, m == -INFINITY ? 0.0f : __fmul_rn(KF_LOG2E, m)}; // all -inf: then every exponential is 0
    if (kf_state_is_far(o.t)) o.m = m, o.t = 0.0f;
    return o;
}

__device__ __forceinline__ float exponential(float x, const origin &o) {
    return kf_exp2_fast(fmaf(x - o.m, KF_LOG2E, -o.t));
}

// By this d is multiplied where m is the largest of all, not d's own m_i. In float64, for the two may be on either side of
// KF_STATE_FAR.
__device__ __forceinline__ float weight_of(float m_i, float m) {
    if (m_i == m) return 1.0f;
    if (m_i == -INFINITY) return 0.0f; // holds nothing, or NaN, which stays
    const kf_state part = {m_i, 0.0f}, all = {m, 0.0f};
    return kf_exp2_fast((float)(kf_state_exponent(KF_LOG2E, part) - kf_state_exponent(KF_LOG2E, all)));
}

__device__ __forceinline__ float inverse_of(float d) { return d == 0.0f ? 0.0f : 1.0f / d; }

__device__ __forceinline__ float lse_of(const origin &o, float d) {
    if (d == 0.0f) return -INFINITY;
    return (float)((double)o.m + (double)o.t * LN2 + (double)logf(d));
}

// The largest of the thread's elements, and the sum of their exponentials.
template <int CHUNKS, int STEP> __device__ __forceinline__ float largest(const float (&v)[CHUNKS][STEP]) {
    float m = -INFINITY;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
#pragma unroll
        for (int e = 0; e < STEP; e++) m = fmaxf(m, v[i][e]);
    return m;
}
template <int CHUNKS, int STEP>
__device__ __forceinline__ float exponentials(float (&v)[CHUNKS][STEP], const origin &o) {
    float d = 0.0f;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
#pragma unroll
        for (int e = 0; e < STEP; e++) d += v[i][e] = exponential(v[i][e], o);
    return d;
}
template <int CHUNKS, int STEP> __device__ __forceinline__ void scale(float (&v)[CHUNKS][STEP], float factor) {
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
#pragma unroll
        for (int e = 0; e < STEP; e++) v[i][e] *= factor;
}

template <int TYPE, int CHUNKS>
__global__ void __launch_bounds__(KF_ROWS_BLOCK, 1) kf_softmax_kernel(const __grid_constant__ kf_cuda_softmax a) {
    __shared__ kf_row_room room[2];
    const kf_row_part p = kf_row_find<TYPE, CHUNKS>(a.rows);
    const kf_cuda_rows_view &x = a.view[0], &y = a.view[1], &lse = a.view[2];
    int64_t offset[3];
    kf_launch_dependents();
    kf_row_offsets(a.rows, a.view, p.there ? p.row : 0, offset);
    kf_wait_for_previous();
    float v[CHUNKS][kf_step<TYPE>];
    kf_row_load<TYPE, CHUNKS>(v, x.data + offset[0], x.type, x.size, p, -INFINITY);
    const origin o = origin_of(kf_row_reduce<kf_most>(largest(v), p.group, room[0]));
    const float d = kf_row_reduce<kf_add>(exponentials(v, o), p.group, room[1]);
    scale(v, inverse_of(d));
    kf_row_store<TYPE, CHUNKS>(y.data + offset[1], y.type, y.size, p, v);
    if (lse.data && p.there && p.thread == 0) *reinterpret_cast<float *>(lse.data + offset[2]) = lse_of(o, d);
}

// ------------------------------------------------------------------------------------------- rows kept as they were read

// A word of elements that are -inf.
template <int TYPE>
constexpr uint32_t lowest_word = TYPE == KF_ROW_F32   ? 0xff800000u
                                 : TYPE == KF_ROW_F16 ? 0xfc00fc00u
                                                      : 0xff80ff80u;

// The state of the whole row from those of its blocks, which are in `room`.
__device__ __forceinline__ void merge_blocks(const kf_cluster_room &room, int32_t cluster, float *m, float *d) {
    *m = -INFINITY, *d = 0.0f;
#pragma unroll 1
    for (int rank = 0; rank < cluster; rank++) *m = fmaxf(*m, room.from[rank].x);
#pragma unroll 1
    for (int rank = 0; rank < cluster; rank++) *d += room.from[rank].y * weight_of(room.from[rank].x, *m);
}

// 64 elements of 16 bits in 32 registers, twice as many as in floats: more bytes on their way, fewer barriers an element, for a
// second exponential of each, and there is time for two.
template <int TYPE>
__global__ void __launch_bounds__(KF_ROWS_BLOCK, 2) kf_softmax_wide_kernel(const __grid_constant__ kf_cuda_softmax a) {
    constexpr int STEP = kf_step<TYPE>, WIDE = KF_ROWS_WIDE;
    __shared__ kf_row_room room[2];
    __shared__ kf_cluster_room others[1];
    kf_row_part p = kf_row_find<TYPE, WIDE>(a.rows);
    p.there = true; // there are as many blocks as rows, or parts of them
    const kf_cuda_rows_view &x = a.view[0], &y = a.view[1], &lse = a.view[2];
    const int32_t cluster = a.rows.cluster;
    int64_t offset[3];
    kf_launch_dependents();
    kf_cluster_begin(others, cluster);
    kf_row_offsets(a.rows, a.view, p.row, offset);
    kf_wait_for_previous();
    uint4 raw[WIDE];
    float v[STEP], m = -INFINITY, d = 0.0f;
    kf_row_load_raw<TYPE, WIDE>(raw, x.data + offset[0], p, lowest_word<TYPE>);
#pragma unroll
    for (int i = 0; i < WIDE; i++) {
        kf_chunk_unpack<TYPE>(raw[i], v);
#pragma unroll
        for (int e = 0; e < STEP; e++) m = fmaxf(m, v[e]);
    }
    m = kf_row_reduce<kf_most>(m, p.group, room[0]);
    origin o = origin_of(m);
#pragma unroll
    for (int i = 0; i < WIDE; i++) {
        kf_chunk_unpack<TYPE>(raw[i], v);
#pragma unroll
        for (int e = 0; e < STEP; e++) d += exponential(v[e], o);
    }
    d = kf_row_reduce<kf_add>(d, p.group, room[1]);
    if (cluster > 1) {
        kf_cluster_ready(cluster);
        kf_cluster_exchange(others[0], cluster, m, d);
        merge_blocks(others[0], cluster, &m, &d);
        o = origin_of(m);
    }
    if (lse.data && p.thread == 0 && p.first == 0) *reinterpret_cast<float *>(lse.data + offset[2]) = lse_of(o, d);
    const float inverse = inverse_of(d);
    const int32_t first = kf_row_at<TYPE>(p, 0, 0), step = p.group * STEP;
    int32_t left = p.end - first;
    char *to = y.data + offset[1] + (int64_t)first * (16 / STEP);
#pragma unroll
    for (int i = 0; i < WIDE; i++) {
        kf_chunk_unpack<TYPE>(raw[i], v);
#pragma unroll
        for (int e = 0; e < STEP; e++) v[e] = exponential(v[e], o) * inverse;
        if (left > 0) kf_chunk_store(to, kf_chunk_pack<TYPE>(v));
        left -= step, to += step * (16 / STEP);
    }
}

// ------------------------------------------------------------------------------------------------------------ long rows

enum { LONG_CHUNKS = 4, LONG_THREADS = 256 };

// Segment of the block; its elements, a step of the block at a time.
struct segment {
    uint32_t row, index;
    int64_t at, end;
};

__device__ __forceinline__ segment segment_find(const kf_cuda_softmax &a) {
    segment s;
    s.row = blockIdx.x / (uint32_t)a.segments;
    s.index = blockIdx.x - s.row * a.segments;
    s.at = (int64_t)s.index * a.segment;
    s.end = min(a.rows.n, s.at + a.segment);
    return s;
}

// The step at `at`: its elements are counted from there.
__device__ __forceinline__ kf_row_part step_of(int64_t left) {
    kf_row_part p;
    p.row = 0, p.group = LONG_THREADS, p.thread = threadIdx.x, p.first = 0, p.there = true;
    p.end = (int32_t)min(left, (int64_t)INT32_MAX);
    return p;
}

template <int TYPE>
__global__ void __launch_bounds__(LONG_THREADS) kf_softmax_state_kernel(const __grid_constant__ kf_cuda_softmax a) {
    constexpr int ELEMENTS = LONG_CHUNKS * kf_step<TYPE> * LONG_THREADS;
    __shared__ kf_row_room room[2];
    const segment s = segment_find(a);
    const kf_cuda_rows_view &x = a.view[0];
    int64_t offset[3];
    kf_launch_dependents();
    kf_row_offsets(a.rows, a.view, s.row, offset);
    kf_wait_for_previous();
    const char *row = x.data + offset[0];
    float m = -INFINITY, d = 0.0f; // of this thread
    for (int64_t at = s.at; at < s.end; at += ELEMENTS) {
        float v[LONG_CHUNKS][kf_step<TYPE>];
        kf_row_load<TYPE, LONG_CHUNKS>(v, row + at * x.size, x.type, x.size, step_of(s.end - at), -INFINITY);
        const float most = largest(v);
        if (most > m) d *= weight_of(m, most), m = most;
        d += exponentials(v, origin_of(m));
    }
    const float all = kf_row_reduce<kf_most>(m, LONG_THREADS, room[0]);
    d = kf_row_reduce<kf_add>(d * weight_of(m, all), LONG_THREADS, room[1]);
    if (threadIdx.x == 0) reinterpret_cast<float2 *>(a.states)[blockIdx.x] = make_float2(all, d);
}

// Every block of a row merges the states of all its segments, in the same order.
template <int TYPE>
__global__ void __launch_bounds__(LONG_THREADS) kf_softmax_apply_kernel(const __grid_constant__ kf_cuda_softmax a) {
    constexpr int ELEMENTS = LONG_CHUNKS * kf_step<TYPE> * LONG_THREADS;
    __shared__ kf_row_room room[2];
    const segment s = segment_find(a);
    const kf_cuda_rows_view &x = a.view[0], &y = a.view[1], &lse = a.view[2];
    int64_t offset[3];
    kf_launch_dependents();
    kf_row_offsets(a.rows, a.view, s.row, offset);
    kf_wait_for_previous();
    const float2 *states = reinterpret_cast<const float2 *>(a.states) + (int64_t)s.row * a.segments;
    float m = -INFINITY, d = 0.0f;
    for (int i = threadIdx.x; i < a.segments; i += LONG_THREADS) m = fmaxf(m, states[i].x);
    m = kf_row_reduce<kf_most>(m, LONG_THREADS, room[0]);
    for (int i = threadIdx.x; i < a.segments; i += LONG_THREADS) d += states[i].y * weight_of(states[i].x, m);
    d = kf_row_reduce<kf_add>(d, LONG_THREADS, room[1]);
    const origin o = origin_of(m);
    const float inverse = inverse_of(d);
    for (int64_t at = s.at; at < s.end; at += ELEMENTS) {
        const kf_row_part p = step_of(s.end - at);
        float v[LONG_CHUNKS][kf_step<TYPE>];
        kf_row_load<TYPE, LONG_CHUNKS>(v, x.data + offset[0] + at * x.size, x.type, x.size, p, -INFINITY);
        exponentials(v, o);
        scale(v, inverse);
        kf_row_store<TYPE, LONG_CHUNKS>(y.data + offset[1] + at * y.size, y.type, y.size, p, v);
    }
    if (lse.data && threadIdx.x == 0 && s.index == 0) *reinterpret_cast<float *>(lse.data + offset[2]) = lse_of(o, d);
}

// ---------------------------------------------------------------------------------------------------------------- table

#define KERNEL(type, chunks, name)                                                                                     \
    { type, chunks, KF_ROWS_BLOCK, (const void *)kf_softmax_kernel<type, chunks>, name }
#define KERNELS(type, name) KERNEL(type, 1, name), KERNEL(type, 2, name), KERNEL(type, 4, name)
#define WIDE_KERNEL(type, name)                                                                                        \
    { type, KF_ROWS_WIDE, KF_ROWS_BLOCK, (const void *)kf_softmax_wide_kernel<type>, name }
#define LONG_KERNEL(kernel, type, name)                                                                                \
    { type, LONG_CHUNKS, LONG_THREADS, (const void *)kernel<type>, name }
#define LONG_KERNELS(kernel, what)                                                                                     \
    LONG_KERNEL(kernel, KF_ROW_F32, what ", 16-byte chunks"),                                                          \
        LONG_KERNEL(kernel, KF_ROW_F16, what ", 16-byte chunks"),                                                      \
        LONG_KERNEL(kernel, KF_ROW_BF16, what ", 16-byte chunks"),                                                     \
        LONG_KERNEL(kernel, 0, what ", any dtypes and addresses")

extern "C" const kf_cuda_rows_kernel kf_cuda_softmax_kernels[] = {
    KERNELS(KF_ROW_F32, "a row in registers, 16-byte chunks"),
    WIDE_KERNEL(KF_ROW_F32, "a row in registers, 16-byte chunks"),
    KERNELS(KF_ROW_F16, "a row in registers, 16-byte chunks"),
    WIDE_KERNEL(KF_ROW_F16, "a row in registers, 16-byte chunks"),
    KERNELS(KF_ROW_BF16, "a row in registers, 16-byte chunks"),
    WIDE_KERNEL(KF_ROW_BF16, "a row in registers, 16-byte chunks"),
    KERNELS(0, "a row in registers, any dtypes and addresses"),
    {},
};
extern "C" const kf_cuda_rows_kernel kf_cuda_softmax_state_kernels[] = {
    LONG_KERNELS(kf_softmax_state_kernel, "states of segments"),
    {},
};
extern "C" const kf_cuda_rows_kernel kf_cuda_softmax_apply_kernels[] = {
    LONG_KERNELS(kf_softmax_apply_kernel, "segments from their states"),
    {},
};
