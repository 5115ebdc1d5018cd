// SPDX-License-Identifier: Apache-2.0
//
// The instructions that the attention kernels are made of, as functions: asynchronous copies (cp.async), fragment loads
// (ldmatrix), the 16-bit tensor product (mma.sync m16n8k16), exp2. All are sm_80's.
//
//     fragment of m16n8k16, lane = 4 g + t:
//       A 16x16   a0 = rows g,   columns 2t, 2t+1    a1 = rows g+8    a2 = columns + 8    a3 = both
//       B 16x8    b0 = rows 2t, 2t+1, column g       b1 = rows + 8
//       C 16x8    c0, c1 = row g, columns 2t, 2t+1   c2, c3 = row g+8
//
// Two C fragments side by side, rounded, are an A fragment: P goes from the first product to the second in registers.
//
// A tile in shared memory has rows of COLS 16-bit elements in chunks of 16 bytes. Eight rows at the same chunk must lie
// in eight different bank groups for ldmatrix, hence the swizzle: chunk c of row r is stored at c ^ (r mod 8), for rows
// of an odd number of half lines (COLS = 32 mod 64) at c ^ (r / 2 mod 4).
#ifndef KF_CUDA_MMA_CUH
#define KF_CUDA_MMA_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

enum { KF_CHUNK = 8 }; // 16-bit elements of a 16-byte chunk

template <int COLS> __device__ __forceinline__ uint32_t kf_swizzle(uint32_t row, uint32_t chunk) {
    static_assert(COLS % 32 == 0, "rows are whole half lines");
    uint32_t turned = COLS % 64 == 0 ? chunk ^ (row & 7) : chunk ^ (row >> 1 & 3);
    return row * (COLS * 2) + turned * 16;
}

__device__ __forceinline__ uint32_t kf_shared(const void *pointer) {
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

// threadIdx.x, as a value that the compiler does not know from before.
__device__ __forceinline__ int kf_thread() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

// What all lanes of the warp hold, said in a way that lets the compiler keep it in a register that they share.
__device__ __forceinline__ int kf_uniform(int x) { return __reduce_min_sync(0xffffffffu, x); }

// 16 bytes, past L1; bytes < 16 leaves the rest zero, and 0 reads nothing.
__device__ __forceinline__ void kf_copy16(uint32_t to, const void *from, int bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void kf_copy16(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void kf_copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void kf_copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

__device__ __forceinline__ void kf_load_matrix(uint32_t (&r)[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}
__device__ __forceinline__ void kf_load_matrix_transposed(uint32_t (&r)[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

// c += a b
template <class T>
__device__ __forceinline__ void kf_mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void kf_mma<__nv_bfloat16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void kf_mma<__half>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two floats, rounded to nearest, the first one in the lower half.
template <class T> __device__ __forceinline__ uint32_t kf_pack(float low, float high);
template <> __device__ __forceinline__ uint32_t kf_pack<__nv_bfloat16>(float low, float high) {
    uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
template <> __device__ __forceinline__ uint32_t kf_pack<__half>(float low, float high) {
    uint32_t both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

// Asks for a line of the L2 cache.
__device__ __forceinline__ void kf_ask(const char *from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

// Programmatic dependent launch (Hopper): the next kernel may take its places once every block has said so; it waits until
// this one is finished and its writes are seen. Without that launch attribute both do nothing.
__device__ __forceinline__ void kf_launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void kf_wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Blocks of a cluster (Hopper) read each other's shared memory. On older architectures no cluster is ever launched.
__device__ __forceinline__ void kf_cluster_barrier() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ uint32_t kf_cluster_rank() {
    uint32_t rank = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    return rank;
}
// What is at `at` (an address in this block's shared memory) in the shared memory of block `rank`.
__device__ __forceinline__ float2 kf_cluster_float2(uint32_t at, uint32_t rank) {
    float2 x = make_float2(0.0f, 0.0f);
#if __CUDA_ARCH__ >= 900
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
    asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(there) : "memory");
#endif
    return x;
}
__device__ __forceinline__ float4 kf_cluster_float4(uint32_t at, uint32_t rank) {
    float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#if __CUDA_ARCH__ >= 900
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(there)
                 : "memory");
#endif
    return x;
}

// 2^x to 2 ulp; -inf gives 0.
__device__ __forceinline__ float kf_exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Largest of the four lanes that share a row of a fragment, and their sum.
__device__ __forceinline__ float kf_quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float kf_quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

#endif
