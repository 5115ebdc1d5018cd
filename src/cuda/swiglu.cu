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

// Up to so many blocks call what they will read into L2 ahead of their wait: one row takes 10 % less time, 64 rows of 11008
// 25 %. Of many more it is one more thing to do: 4 % more.
enum { BLOCKS_THAT_ASK = 1024 };

template <int TYPE, int CHUNKS>
__global__ void __launch_bounds__(THREADS) kf_swiglu_kernel(const __grid_constant__ kf_cuda_swiglu a) {
    constexpr int STEP = TYPE ? kf_step<TYPE> : 1;
    const char *gate[CHUNKS], *up[CHUNKS];
    char *y[CHUNKS];
    bool there[CHUNKS];
    kf_launch_dependents();
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        const uint32_t at = (blockIdx.x * CHUNKS + i) * THREADS + threadIdx.x;
        there[i] = at < a.total;
        int64_t offset[3] = {}, column = (int64_t)at * STEP;
        if (!a.flat) {
            const uint32_t row = there[i] ? at / a.chunks : 0;
            column = (int64_t)(at - row * a.chunks) * STEP;
            kf_row_offsets(a.rows, a.view, row, offset);
        }
        gate[i] = a.view[0].data + offset[0] + column * a.view[0].size;
        up[i] = a.view[1].data + offset[1] + column * a.view[1].size;
        y[i] = a.view[2].data + offset[2] + column * a.view[2].size;
        if (TYPE && gridDim.x <= BLOCKS_THAT_ASK && there[i] && threadIdx.x % KF_ROWS_LINE == 0)
            kf_ask(gate[i]), kf_ask(up[i]);
        kf_hold(gate[i]), kf_hold(up[i]), kf_hold(y[i]);
    }
    kf_wait_for_previous();
    if constexpr (TYPE != 0) {
        uint4 g[CHUNKS], u[CHUNKS];
#pragma unroll
        for (int i = 0; i < CHUNKS; i++)
            if (there[i]) g[i] = kf_chunk_load(gate[i]), u[i] = kf_chunk_load(up[i]);
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            float v[STEP], w[STEP];
            kf_chunk_unpack<TYPE>(g[i], v);
            kf_chunk_unpack<TYPE>(u[i], w);
#pragma unroll
            for (int e = 0; e < STEP; e++) v[e] = silu(v[e]) * w[e];
            if (there[i]) kf_global_store(y[i], kf_chunk_pack<TYPE>(v));
        }
    } else {
        float g[CHUNKS], u[CHUNKS];
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            g[i] = there[i] ? kf_element_load(gate[i], a.view[0].type) : 0.0f;
            u[i] = there[i] ? kf_element_load(up[i], a.view[1].type) : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < CHUNKS; i++)
            if (there[i]) kf_element_store(y[i], a.view[2].type, silu(g[i]) * u[i]);
    }
}

#define KERNEL(type, chunks, name)                                                                                     \
    { type, chunks, THREADS, (const void *)kf_swiglu_kernel<type, chunks>, name }
// Of one dtype a chunk a thread: two take 1 % longer.
extern "C" const kf_cuda_rows_kernel kf_cuda_swiglu_kernels[] = {
    KERNEL(KF_ROW_F32, 1, "16-byte chunks"),
    KERNEL(KF_ROW_F16, 1, "16-byte chunks"),
    KERNEL(KF_ROW_BF16, 1, "16-byte chunks"),
    KERNEL(0, KF_ROWS_SINGLES, "any dtypes and addresses"),
    {},
};
