// SPDX-License-Identifier: Apache-2.0
//
// SwiGLU: y = gate / (1 + e^-gate) * up. With t = e^-|gate|, which cannot overflow, the factor of gate is 1 / (1 + t) for
// gate >= 0 and t / (1 + t) below.
//
// Every thread has some chunks of the rows' chunks counted through, all loaded before the first is used. Bytes: gate, up and
// y once each. About 20 instructions per element, 3 elements a cycle and multiprocessor while the bytes of 16-bit elements
// arrive: half of what can be issued.
#include "cuda/rows.cuh"
#include "math/exp2.h"

enum { THREADS = 256 };

// Not flushed to zero: below -87 gate is still as large as what the smallest normal numbers are times.
__device__ __forceinline__ float silu(float gate) {
    float t, s;
    asm("ex2.approx.f32 %0, %1;" : "=f"(t) : "f"(-fabsf(gate) * KF_LOG2E));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(1.0f + t)); // of 1 to 2: to 1 ulp
    return gate * (gate >= 0.0f ? s : t * s);
}

template <int TYPE, int CHUNKS>
__global__ void __launch_bounds__(THREADS) kf_swiglu_kernel(const __grid_constant__ kf_cuda_swiglu a) {
    constexpr int STEP = TYPE ? kf_step<TYPE> : 1;
    const kf_cuda_rows_view &gate = a.view[0], &up = a.view[1], &y = a.view[2];
    int64_t offset[CHUNKS][3];
    bool there[CHUNKS];
    kf_launch_dependents();
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        const uint32_t at = (blockIdx.x * CHUNKS + i) * THREADS + threadIdx.x;
        there[i] = at < a.total;
        if (a.flat) {
            const int64_t column = (int64_t)at * STEP;
            offset[i][0] = column * gate.size, offset[i][1] = column * up.size, offset[i][2] = column * y.size;
        } else {
            const uint32_t row = there[i] ? at / a.chunks : 0;
            const int64_t column = (int64_t)(at - row * a.chunks) * STEP;
            kf_row_offsets(a.rows, a.view, row, offset[i]);
            offset[i][0] += column * gate.size, offset[i][1] += column * up.size, offset[i][2] += column * y.size;
        }
    }
    kf_wait_for_previous();
    if constexpr (TYPE != 0) {
        uint4 g[CHUNKS], u[CHUNKS];
#pragma unroll
        for (int i = 0; i < CHUNKS; i++)
            if (there[i]) g[i] = kf_chunk_load(gate.data + offset[i][0]), u[i] = kf_chunk_load(up.data + offset[i][1]);
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            float v[STEP], w[STEP];
            kf_chunk_unpack<TYPE>(g[i], v);
            kf_chunk_unpack<TYPE>(u[i], w);
#pragma unroll
            for (int e = 0; e < STEP; e++) v[e] = silu(v[e]) * w[e];
            if (there[i]) kf_chunk_store(y.data + offset[i][2], kf_chunk_pack<TYPE>(v));
        }
    } else {
        float g[CHUNKS], u[CHUNKS];
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            g[i] = there[i] ? kf_element_load(gate.data + offset[i][0], gate.type) : 0.0f;
            u[i] = there[i] ? kf_element_load(up.data + offset[i][1], up.type) : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < CHUNKS; i++)
            if (there[i]) kf_element_store(y.data + offset[i][2], y.type, silu(g[i]) * u[i]);
    }
}

#define KERNEL(type, chunks, name)                                                                                     \
    { type, chunks, THREADS, (const void *)kf_swiglu_kernel<type, chunks>, name }
#define KERNELS(type, name) KERNEL(type, 1, name), KERNEL(type, 2, name)

// Of one dtype: a chunk a thread where there are few, two where there are many.
extern "C" const kf_cuda_rows_kernel kf_cuda_swiglu_kernels[] = {
    KERNELS(KF_ROW_F32, "16-byte chunks"),
    KERNELS(KF_ROW_F16, "16-byte chunks"),
    KERNELS(KF_ROW_BF16, "16-byte chunks"),
    KERNEL(0, KF_ROWS_SINGLES, "any dtypes and addresses"),
    {},
};
