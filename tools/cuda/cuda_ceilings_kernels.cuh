// SPDX-License-Identifier: Apache-2.0
//
// The loops of the ceilings: reads and copies of n 16-byte words in several forms, of which the fastest counts, and fp32 FMA. A block
// takes BLOCK_WORDS words at a time, all its loads in flight before the first is used. Between launches nothing is waited for until the end
// (programmatic dependent launch), so that the start of one is hidden behind the other: no kernel with work to do can be faster.
#ifndef KF_TOOLS_CUDA_CEILINGS_KERNELS_CUH
#define KF_TOOLS_CUDA_CEILINGS_KERNELS_CUH

#include <cstdint>
#include <cuda_runtime.h>

enum { FMA_CHAINS = 16, FMA_ROUNDS = 4096, BULK_BYTES = 16384, BULK_STAGES = 12 };

struct kft_stream {
    const uint4 *from, *other; // other: the second stream read of a copy that has two
    uint4 *to;                 // copies
    int64_t words;
    uint32_t *sink; // written to where the sum has one value of 2^32, so that the loads are not for nothing
};

__device__ inline void begin_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ inline void wait_for_last() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

enum load_kind { PLAIN, STREAMING };

template <load_kind KIND> __device__ inline uint4 load(const uint4 *at) {
    if (KIND == PLAIN) return *at;
    uint4 x;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(at));
    return x;
}

template <load_kind KIND, int UNROLL> __global__ void read_words(const __grid_constant__ kft_stream s) {
    begin_next();
    const int64_t block = (int64_t)blockDim.x * UNROLL;
    uint32_t sum = 0;
    for (int64_t first = blockIdx.x * block; first < s.words; first += gridDim.x * block) {
        uint4 x[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const int64_t at = first + (int64_t)u * blockDim.x + threadIdx.x;
            x[u] = at < s.words ? load<KIND>(s.from + at) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) sum += x[u].x ^ x[u].y ^ x[u].z ^ x[u].w;
    }
    wait_for_last();
    if (sum == 0x5eed5eed) *s.sink = sum;
}

template <load_kind KIND, int UNROLL, bool TWO> __global__ void copy_words(const __grid_constant__ kft_stream s) {
    begin_next();
    const int64_t block = (int64_t)blockDim.x * UNROLL;
    for (int64_t first = blockIdx.x * block; first < s.words; first += gridDim.x * block) {
        uint4 x[UNROLL], y[TWO ? UNROLL : 1];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const int64_t at = first + (int64_t)u * blockDim.x + threadIdx.x;
            if (at < s.words) x[u] = load<KIND>(s.from + at);
            if (TWO && at < s.words) y[u] = load<KIND>(s.other + at);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const int64_t at = first + (int64_t)u * blockDim.x + threadIdx.x;
            if (at >= s.words) continue;
            if (TWO) x[u].x ^= y[u].x, x[u].y ^= y[u].y, x[u].z ^= y[u].z, x[u].w ^= y[u].w;
            if (KIND == PLAIN)
                s.to[at] = x[u];
            else
                __stcs(s.to + at, x[u]);
        }
    }
    wait_for_last();
}

#if __CUDA_ARCH__ >= 900
__device__ inline void wait_for_piece(uint32_t barrier, uint32_t parity) {
    uint32_t done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
}
__device__ inline void send_piece(uint32_t barrier, uint32_t to, const char *from) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"((int)BULK_BYTES) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"((int)BULK_BYTES), "r"(barrier)
                 : "memory");
}
#endif

// One thread keeps a ring of bulk copies into shared memory going: piece k comes into stage k % BULK_STAGES once piece k - BULK_STAGES is
// there. The bytes are looked at by nobody. Hopper and newer.
__global__ void read_bulk(const __grid_constant__ kft_stream s) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) unsigned char ring[];
    __shared__ __align__(8) uint64_t full[BULK_STAGES];
    begin_next();
    const int64_t pieces = s.words * 16 / BULK_BYTES, mine = (pieces - blockIdx.x + gridDim.x - 1) / gridDim.x;
    const uint32_t to = (uint32_t)__cvta_generic_to_shared(ring), barrier = (uint32_t)__cvta_generic_to_shared(full);
    if (threadIdx.x == 0) {
        for (int n = 0; n < BULK_STAGES; n++) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(barrier + n * 8));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        for (int64_t k = 0; k < mine + BULK_STAGES; k++) {
            const int stage = (int)(k % BULK_STAGES);
            const uint32_t parity = (uint32_t)(k / BULK_STAGES + 1) & 1; // of the round before
            if (k >= BULK_STAGES && k - BULK_STAGES < mine) wait_for_piece(barrier + stage * 8, parity);
            const char *from = (const char *)s.from + (blockIdx.x + k * gridDim.x) * BULK_BYTES;
            if (k < mine) send_piece(barrier + stage * 8, to + stage * BULK_BYTES, from);
        }
    }
    wait_for_last();
#else
    (void)s;
#endif
}

__global__ void fma_chains(const __grid_constant__ kft_stream s) {
    float x[FMA_CHAINS];
    const float a = 1 + 1e-7f * threadIdx.x, b = 1e-9f * blockIdx.x;
#pragma unroll
    for (int c = 0; c < FMA_CHAINS; c++) x[c] = (float)(threadIdx.x + c);
    for (int n = 0; n < FMA_ROUNDS; n++)
#pragma unroll
        for (int c = 0; c < FMA_CHAINS; c++) x[c] = fmaf(x[c], a, b);
    float sum = 0;
#pragma unroll
    for (int c = 0; c < FMA_CHAINS; c++) sum += x[c];
    if (sum == 12345.678f) *s.sink = 1;
}

// Random bits for what is read and multiplied: zeros would cost less power, and so run at a higher clock. As bf16 they are finite: numbers of
// magnitudes from 1/4 to 2.
__global__ void fill_random(uint32_t *data, int64_t words) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < words; i += (int64_t)gridDim.x * blockDim.x) {
        uint64_t z = ((uint64_t)i + 1) * 0x9E3779B97F4A7C15u;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
        z ^= z >> 27;
        data[i] = ((uint32_t)z & 0x817F817Fu) | 0x3E803E80u;
    }
}

#endif
