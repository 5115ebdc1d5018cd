// SPDX-License-Identifier: Apache-2.0
//
// The merge of partial states: for each row, over its splits s in a fixed order,
//
//     m = max m_s,   w_s = 2^(unit (m_s - m)),   d = sum w_s d_s,   o = sum w_s o_s / d,   lse = ln 2 (unit m + log2 d)
//
// and the sink, which is in none of the parts. One block a row; warp i adds the splits i, i + WARPS, ... and the warps' sums
// are added in the order of the warps. Bytes: 4 Dv + 8 a split and row. Follows a prefill or decode kernel that split its keys.
//
// A lane has four neighbouring columns, of wide rows then four others. BATCH splits of a warp are asked for at once, together with the states.
// Registers are few on purpose: the next decode's blocks wait for their turn beside this kernel's, and where one finds no room it joins another
// on a multiprocessor that two of them then share (with 76 registers a decode of 16 splits took a tenth longer).
//
// A decode leaves an o of each split. A prefill leaves none where a row sees no key of a split; there the states are read first (GAPS).
#include "cuda/touch.cuh"

enum { WARPS = 8, COLUMNS = 256, WIDTH = 4, BATCH = 4, BLOCKS = 5 };

__device__ __forceinline__ float warp_most(float m) {
#pragma unroll
    for (int step = 16; step; step /= 2) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, step));
    return m;
}

template <bool GAPS>
__global__ void __launch_bounds__(WARPS * 32, BLOCKS) kf_merge_kernel(const __grid_constant__ kf_cuda_attention a) {
    __shared__ float4 sums[WARPS][COLUMNS / WIDTH];
    __shared__ float sizes[WARPS];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int64_t row = blockIdx.x, first = row * a.splits;
    const float2 *states = reinterpret_cast<const float2 *>(a.part_state) + first;
    kf_launch_dependents();
    kf_touch_arguments(a, reinterpret_cast<int *>(sums[warp]) + lane);
    kf_wait_for_previous();
    __syncwarp(); // the touched words are the warp's sums later
    float m = -INFINITY, d = 0.0f;
    for (int s = lane; s < a.splits; s += 32) m = fmaxf(m, states[s].x);
#pragma unroll 1
    for (int column = WIDTH * lane; column - WIDTH * lane < a.Dv; column += 32 * WIDTH) {
        const float *parts = a.part_o + first * a.Dv + column;
        float4 o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        d = 0.0f;
#pragma unroll 1
        for (int s0 = warp; s0 < a.splits; s0 += BATCH * WARPS) {
            float2 state[BATCH];
            float4 x[BATCH];
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                const int s = s0 + i * WARPS;
                state[i] = make_float2(-INFINITY, 0.0f), x[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (s >= a.splits) continue;
                state[i] = states[s];
                if (!GAPS && column < a.Dv) x[i] = *reinterpret_cast<const float4 *>(parts + (int64_t)s * a.Dv);
            }
            if constexpr (GAPS)
#pragma unroll
                for (int i = 0; i < BATCH; i++)
                    if (state[i].y != 0.0f && column < a.Dv)
                        x[i] = *reinterpret_cast<const float4 *>(parts + (int64_t)(s0 + i * WARPS) * a.Dv);
            if (s0 == warp && column < 32 * WIDTH) m = warp_most(m);
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                if (state[i].y == 0.0f) continue; // no keys
                const float weight = kf_exp2_fast((state[i].x - kf_part_origin(m)) * a.unit);
                d = fmaf(weight, state[i].y, d);
                o.x = fmaf(weight, x[i].x, o.x), o.y = fmaf(weight, x[i].y, o.y);
                o.z = fmaf(weight, x[i].z, o.z), o.w = fmaf(weight, x[i].w, o.w);
            }
        }
        if (column < a.Dv) sums[warp][column / WIDTH] = o;
    }
    if (lane == 0) sizes[warp] = d;
    if (warp >= a.splits) m = warp_most(m);
    __syncthreads();
    d = 0.0f;
    for (int i = 0; i < WARPS; i++) d += sizes[i];
    const int32_t list = (int32_t)(row / a.rows), lists = a.H / a.heads, b = list / lists;
    const int2 at = kf_block_row(a, (int32_t)(row - (int64_t)list * a.rows));
    const int32_t head = (list - b * lists) * a.heads + at.y;
    const kf_row_end end = kf_row_finish(a, head, m, d);
    if (a.lse && threadIdx.x == 0)
        a.lse[b * a.lse_stride[0] + head * a.lse_stride[1] + at.x * a.lse_stride[2]] = end.lse;
    const int column = threadIdx.x;
    if (column >= a.Dv) return;
    float sum = 0.0f;
    for (int i = 0; i < WARPS; i++) sum += reinterpret_cast<const float *>(sums[i])[column];
    const int64_t place = b * a.o_stride[0] + head * a.o_stride[1] + at.x * a.o_stride[2] + column;
    kf_store_element(a.o + place * (a.o_type == KF_F32 ? 4 : 2), a.o_type, sum * end.factor);
}

// The same for many rows of few splits: a thread has a chunk of a row.
__global__ void __launch_bounds__(WARPS * 32) kf_merge_rows_kernel(const __grid_constant__ kf_cuda_attention a) {
    const uint32_t chunks = a.Dv / KF_CHUNK, index = blockIdx.x * (WARPS * 32) + threadIdx.x;
    const uint32_t row = index / chunks, column = (index - row * chunks) * KF_CHUNK;
    kf_launch_dependents();
    kf_wait_for_previous();
    if (row >= (uint32_t)a.lists * (uint32_t)a.rows) return;
    const int64_t first = (int64_t)row * a.splits;
    const float2 *const states = reinterpret_cast<const float2 *>(a.part_state) + first;
    float m = -INFINITY, d = 0.0f;
#pragma unroll 4
    for (int s = 0; s < a.splits; s++) m = fmaxf(m, states[s].x);
    const float origin = kf_part_origin(m);
#pragma unroll 4
    for (int s = 0; s < a.splits; s++)
        if (states[s].y != 0.0f) d = fmaf(kf_exp2_fast((states[s].x - origin) * a.unit), states[s].y, d);
    const uint32_t list = row / (uint32_t)a.rows, lists = a.H / a.heads, b = list / lists;
    const int2 at = kf_block_row(a, (int32_t)(row - list * a.rows));
    const int32_t head = (list - b * lists) * a.heads + at.y;
    const kf_row_end end = kf_row_finish(a, head, m, d);
    if (a.lse && column == 0) a.lse[b * a.lse_stride[0] + head * a.lse_stride[1] + at.x * a.lse_stride[2]] = end.lse;
    const int64_t place = b * a.o_stride[0] + head * a.o_stride[1] + at.x * a.o_stride[2] + column;
    float o[KF_CHUNK] = {};
#pragma unroll 4
    for (int s = 0; s < a.splits; s++) {
        if (states[s].y == 0.0f) continue; // no keys: o was not written
        const float weight = kf_exp2_fast((states[s].x - origin) * a.unit);
        const float4 *const from = reinterpret_cast<const float4 *>(a.part_o + (first + s) * a.Dv + column);
        const float4 low = from[0], high = from[1];
        const float x[KF_CHUNK] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int e = 0; e < KF_CHUNK; e++) o[e] = fmaf(weight, x[e], o[e]);
    }
#pragma unroll
    for (int e = 0; e < KF_CHUNK; e++) o[e] *= end.factor;
    if (a.aligned && a.o_type == KF_F16)
        *reinterpret_cast<uint4 *>(a.o + 2 * place) =
            make_uint4(kf_pack<__half>(o[0], o[1]), kf_pack<__half>(o[2], o[3]), kf_pack<__half>(o[4], o[5]),
                       kf_pack<__half>(o[6], o[7]));
    else if (a.aligned && a.o_type == KF_BF16_TYPE)
        *reinterpret_cast<uint4 *>(a.o + 2 * place) =
            make_uint4(kf_pack<__nv_bfloat16>(o[0], o[1]), kf_pack<__nv_bfloat16>(o[2], o[3]),
                       kf_pack<__nv_bfloat16>(o[4], o[5]), kf_pack<__nv_bfloat16>(o[6], o[7]));
    else
#pragma unroll
        for (int e = 0; e < KF_CHUNK; e++)
            kf_store_element(a.o + (place + e) * (a.o_type == KF_F32 ? 4 : 2), a.o_type, o[e]);
}

extern "C" const kf_cuda_attention_kernel kf_cuda_merge[] = {
    {KF_CUDA_MERGE, 0, 0, COLUMNS, COLUMNS, 0, 1, 0, WARPS * 32, BLOCKS, 0, 80, (const void *)kf_merge_kernel<false>,
     "merge of partial states"},
    {KF_CUDA_MERGE, 0, 0, COLUMNS, COLUMNS, 0, 0, 0, WARPS * 32, 1, 0, 80, (const void *)kf_merge_rows_kernel,
     "merge of partial states, many rows"},
    {KF_CUDA_MERGE, 0, 0, COLUMNS, COLUMNS, 0, 1, 0, WARPS * 32, BLOCKS, 0, 80, (const void *)kf_merge_kernel<true>,
     "merge of partial states, some without keys"},
    {},
};
