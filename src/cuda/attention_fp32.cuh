// SPDX-License-Identifier: Apache-2.0
//
// What the fp32 kernels share: elements of any float type become fp32 on their way to shared memory or to registers. These kernels
// serve fp32 tensors and every mix of types (16-bit keys under fp32 queries among them): types are branches here, not instances.
#ifndef KF_CUDA_ATTENTION_FP32_CUH
#define KF_CUDA_ATTENTION_FP32_CUH

#include "cuda/attention_rope.cuh"

__device__ __forceinline__ int kf_size_of(int type) { return type == KF_F32 ? 4 : 2; }

// Two neighbouring 16-bit elements.
__device__ __forceinline__ float2 kf_widen(uint32_t pair, bool is_half) {
    if (is_half) return __half22float2(*reinterpret_cast<const __half2 *>(&pair));
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

// Eight elements; aligned: to 16 bytes.
__device__ __forceinline__ void kf_load8(float (&x)[KF_CHUNK], const char *from, int type, bool aligned) {
    if (!aligned) {
#pragma unroll
        for (int e = 0; e < KF_CHUNK; e++) x[e] = kf_load_float(from, type, e);
    } else if (type == KF_F32) {
        const float4 low = reinterpret_cast<const float4 *>(from)[0], high = reinterpret_cast<const float4 *>(from)[1];
        x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
        x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
    } else {
        const uint4 all = *reinterpret_cast<const uint4 *>(from);
        const uint32_t word[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 two = kf_widen(word[i], type == KF_F16);
            x[2 * i] = two.x, x[2 * i + 1] = two.y;
        }
    }
}

__device__ __forceinline__ void kf_store8(float *to, const float (&x)[KF_CHUNK]) {
    reinterpret_cast<float4 *>(to)[0] = make_float4(x[0], x[1], x[2], x[3]);
    reinterpret_cast<float4 *>(to)[1] = make_float4(x[4], x[5], x[6], x[7]);
}

// The tile's queries as floats, rows of COLS STRIDE apart; what is not there is zero.
template <int ROWS, int COLS, int STRIDE, int THREADS>
__device__ __forceinline__ void kf_load_queries_fp32(float *to, const kf_cuda_attention &a, const kf_block &w,
                                                     int thread) {
    constexpr int CHUNKS = COLS / KF_CHUNK;
#pragma unroll 2
    for (int i = thread; i < ROWS * CHUNKS; i += THREADS) {
        const int row = i / CHUNKS, chunk = i % CHUNKS;
        float x[KF_CHUNK] = {};
        if (row < w.rows && chunk * KF_CHUNK < a.D) {
            const int2 at = kf_block_row(a, w.row0 + row);
            const int64_t place = w.b * a.q_stride[0] + (w.head0 + at.y) * a.q_stride[1] + at.x * a.q_stride[2];
            kf_load8(x, a.q + kf_size_of(a.q_type) * (place + chunk * KF_CHUNK), a.q_type, a.aligned);
        }
        kf_store8(to + row * STRIDE + chunk * KF_CHUNK, x);
    }
}

// Where scores need more than a scale and an interval.
__device__ __forceinline__ bool kf_is_general(const kf_cuda_attention &a) {
    return a.softcap > 0.0f || a.alibi_slopes || a.bias || a.mask;
}
// Where keys inside a tile's interval may be hidden from all of its rows.
__device__ __forceinline__ bool kf_is_sparse(const kf_cuda_attention &a) { return a.bias || a.mask || a.positions; }

#endif
