// SPDX-License-Identifier: Apache-2.0
//
// What the row kernels share: chunks of 16 bytes as floats and back, the part of a row that a thread holds, reductions over
// the threads of a row.
//
// A thread holds CHUNKS chunks of its row, `group` chunks apart, so that a warp's load is 512 bytes in a piece. In kernels
// of type 0 it holds single elements, `group` apart, for the same reason. Every element of an output is written by the
// thread that read the inputs at its place: that makes running in place right.
//
// Sums run in an order that depends on the length of the row alone.
#ifndef KF_CUDA_ROWS_CUH
#define KF_CUDA_ROWS_CUH

#include <math.h>

#include "cuda/mma.cuh"
#include "cuda/rows.h"

// ----------------------------------------------------------------------------------------------- elements of any dtype

__device__ __forceinline__ float kf_element_load(const char *at, int type) {
    if (type == KF_ROW_F32) return *reinterpret_cast<const float *>(at);
    const uint16_t bits = *reinterpret_cast<const uint16_t *>(at);
    if (type == KF_ROW_F16) return __half2float(__ushort_as_half(bits));
    return __uint_as_float((uint32_t)bits << 16);
}

__device__ __forceinline__ void kf_element_store(char *at, int type, float x) {
    if (type == KF_ROW_F32)
        *reinterpret_cast<float *>(at) = x;
    else if (type == KF_ROW_F16)
        *reinterpret_cast<__half *>(at) = __float2half_rn(x);
    else
        *reinterpret_cast<__nv_bfloat16 *>(at) = __float2bfloat16_rn(x);
}

// x rounded to the dtype.
__device__ __forceinline__ float kf_element_round(float x, int type) {
    if (type == KF_ROW_F16) return __half2float(__float2half_rn(x));
    return type == KF_ROW_BF16 ? __bfloat162float(__float2bfloat16_rn(x)) : x;
}

__device__ __forceinline__ int64_t kf_integer_load(const char *data, int wide, int64_t index) {
    return wide ? reinterpret_cast<const int64_t *>(data)[index] : reinterpret_cast<const int32_t *>(data)[index];
}

// --------------------------------------------------------------------------------------------------------------- chunks

// Elements of a thread's step.
template <int TYPE> constexpr int kf_step = TYPE == KF_ROW_F32 ? 4 : KF_ROWS_SINGLES;

template <int TYPE> __device__ __forceinline__ void kf_chunk_unpack(const uint4 &raw, float (&v)[kf_step<TYPE>]) {
    const uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if constexpr (TYPE == KF_ROW_F32) {
            v[i] = __uint_as_float(word[i]);
        } else if constexpr (TYPE == KF_ROW_BF16) {
            v[2 * i] = __uint_as_float(word[i] << 16);
            v[2 * i + 1] = __uint_as_float(word[i] & 0xffff0000u);
        } else {
            v[2 * i] = __half2float(__ushort_as_half((uint16_t)word[i]));
            v[2 * i + 1] = __half2float(__ushort_as_half((uint16_t)(word[i] >> 16)));
        }
    }
}

template <int TYPE> __device__ __forceinline__ uint4 kf_chunk_pack(const float (&v)[kf_step<TYPE>]) {
    if constexpr (TYPE == KF_ROW_F32)
        return make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]), __float_as_uint(v[3]));
    else if constexpr (TYPE == KF_ROW_BF16)
        return make_uint4(kf_pack<__nv_bfloat16>(v[0], v[1]), kf_pack<__nv_bfloat16>(v[2], v[3]),
                          kf_pack<__nv_bfloat16>(v[4], v[5]), kf_pack<__nv_bfloat16>(v[6], v[7]));
    else
        return make_uint4(kf_pack<__half>(v[0], v[1]), kf_pack<__half>(v[2], v[3]), kf_pack<__half>(v[4], v[5]),
                          kf_pack<__half>(v[6], v[7]));
}

// What is read once goes past L1.
__device__ __forceinline__ uint4 kf_chunk_load(const char *at) { return __ldcg(reinterpret_cast<const uint4 *>(at)); }
__device__ __forceinline__ void kf_chunk_store(char *at, const uint4 &raw) { *reinterpret_cast<uint4 *>(at) = raw; }

// In a register from here on, not where it is first looked at.
template <class T> __device__ __forceinline__ void kf_hold(T &x) {
    if constexpr (sizeof(T) == 8)
        asm volatile("" : "+l"(x));
    else
        asm volatile("" : "+r"(x));
}
__device__ __forceinline__ void kf_hold(float &x) { asm volatile("" : "+f"(x)); }

// To global memory: of an address held in a register the compiler does not know that any more.
__device__ __forceinline__ void kf_global_store(char *at, const uint4 &raw) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(raw.x), "r"(raw.y), "r"(raw.z), "r"(raw.w)
                 : "memory");
}
__device__ __forceinline__ void kf_global_store(char *at, const uint2 &raw) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(at), "r"(raw.x), "r"(raw.y) : "memory");
}

enum { KF_ROWS_LINE = 8 }; // chunks of a line of the L2 cache

// A piece: 8 elements of any dtype, for kernels whose dtypes are arguments.
enum { KF_ROWS_PIECE = 8 };

// Elements at .. at + 7 of a row of which `left` are there. aligned: rows are whole pieces at multiples of 16 bytes.
__device__ __forceinline__ void kf_piece_load(float (&v)[KF_ROWS_PIECE], const char *at, int type, bool aligned,
                                              int64_t left) {
    if (!aligned) {
#pragma unroll
        for (int e = 0; e < KF_ROWS_PIECE; e++)
            v[e] = e < left ? kf_element_load(at + e * (type == KF_ROW_F32 ? 4 : 2), type) : 0.0f;
    } else if (type == KF_ROW_F32) {
        const float4 low = *reinterpret_cast<const float4 *>(at), high = *reinterpret_cast<const float4 *>(at + 16);
        v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
        v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
    } else if (type == KF_ROW_F16) {
        kf_chunk_unpack<KF_ROW_F16>(*reinterpret_cast<const uint4 *>(at), v);
    } else {
        kf_chunk_unpack<KF_ROW_BF16>(*reinterpret_cast<const uint4 *>(at), v);
    }
}

__device__ __forceinline__ void kf_piece_store(char *at, int type, bool aligned, int64_t left,
                                               const float (&v)[KF_ROWS_PIECE]) {
    if (!aligned) {
#pragma unroll
        for (int e = 0; e < KF_ROWS_PIECE; e++)
            if (e < left) kf_element_store(at + e * (type == KF_ROW_F32 ? 4 : 2), type, v[e]);
    } else if (type == KF_ROW_F32) {
        *reinterpret_cast<float4 *>(at) = make_float4(v[0], v[1], v[2], v[3]);
        *reinterpret_cast<float4 *>(at + 16) = make_float4(v[4], v[5], v[6], v[7]);
    } else {
        kf_chunk_store(at, type == KF_ROW_F16 ? kf_chunk_pack<KF_ROW_F16>(v) : kf_chunk_pack<KF_ROW_BF16>(v));
    }
}

// ----------------------------------------------------------------------------------------------------------------- rows

// Bytes from the beginning of each tensor to row `row`.
template <int VIEWS>
__device__ __forceinline__ void kf_row_offsets(const kf_cuda_rows &r, const kf_cuda_rows_view (&view)[VIEWS],
                                               uint32_t row, int64_t (&offset)[VIEWS]) {
    uint32_t rest = row;
#pragma unroll
    for (int v = 0; v < VIEWS; v++) offset[v] = 0;
#pragma unroll 1
    for (int i = r.dims - 1; i > 0; i--) {
        const uint32_t next = rest / r.shape[i], index = rest - next * r.shape[i];
#pragma unroll
        for (int v = 0; v < VIEWS; v++) offset[v] += index * view[v].stride[i];
        rest = next;
    }
#pragma unroll
    for (int v = 0; v < VIEWS; v++) offset[v] += rest * view[v].stride[0];
}

// The row of this thread, and its place among those that share it: elements first .. end - 1 are this block's part.
struct kf_row_part {
    uint32_t row;
    int32_t group, thread;
    int32_t first, end;
    bool there; // threads without a row go along, for warps reduce together
};

template <int TYPE, int CHUNKS> __device__ __forceinline__ kf_row_part kf_row_find(const kf_cuda_rows &r) {
    kf_row_part p;
    p.group = r.group;
    p.first = 0;
    p.end = (int32_t)r.n;
    p.row = blockIdx.x;
    p.thread = threadIdx.x;
    if (r.shift >= 0) {
        p.row = blockIdx.x * (blockDim.x >> r.shift) + (threadIdx.x >> r.shift);
        p.thread = threadIdx.x & (r.group - 1);
    } else if (r.cluster > 1) {
        const int32_t part = CHUNKS * kf_step<TYPE> * r.group;
        p.row = blockIdx.x / (uint32_t)r.cluster;
        p.first = (blockIdx.x - p.row * r.cluster) * part;
        p.end = min(p.end, p.first + part);
    }
    p.there = p.row < r.rows;
    return p;
}

// Elements that a step begins at or holds: a chunk's first one, or element e of the single ones.
template <int TYPE> __device__ __forceinline__ int32_t kf_row_at(const kf_row_part &p, int chunk, int e) {
    if constexpr (TYPE != 0) return p.first + (p.thread + chunk * p.group) * kf_step<TYPE>;
    return p.first + (chunk * kf_step<TYPE> + e) * p.group + p.thread;
}

// Whether the thread's step is in the row.
template <int TYPE> __device__ __forceinline__ bool kf_row_has(const kf_row_part &p, int chunk, int e) {
    return p.there && kf_row_at<TYPE>(p, chunk, e) < p.end;
}

// The thread's chunks as they are, words of `fill` where there are none. All loads of a kernel come before the first use of
// any.
template <int TYPE, int CHUNKS>
__device__ __forceinline__ void kf_row_load_raw(uint4 (&raw)[CHUNKS], const char *row, const kf_row_part &p,
                                                uint32_t fill = 0) {
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        raw[i] = make_uint4(fill, fill, fill, fill);
        if (kf_row_has<TYPE>(p, i, 0))
            raw[i] = kf_chunk_load(row + (int64_t)kf_row_at<TYPE>(p, i, 0) * (16 / kf_step<TYPE>));
    }
}

// v = the thread's elements of a row, `fill` where there are none.
template <int TYPE, int CHUNKS>
__device__ __forceinline__ void kf_row_load(float (&v)[CHUNKS][kf_step<TYPE>], const char *row, int type, int size,
                                            const kf_row_part &p, float fill) {
    if constexpr (TYPE != 0) {
        uint4 raw[CHUNKS];
        kf_row_load_raw<TYPE, CHUNKS>(raw, row, p);
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            kf_chunk_unpack<TYPE>(raw[i], v[i]);
            if (!kf_row_has<TYPE>(p, i, 0))
#pragma unroll
                for (int e = 0; e < kf_step<TYPE>; e++) v[i][e] = fill;
        }
    } else {
#pragma unroll
        for (int i = 0; i < CHUNKS; i++)
#pragma unroll
            for (int e = 0; e < kf_step<TYPE>; e++)
                v[i][e] = kf_row_has<TYPE>(p, i, e)
                              ? kf_element_load(row + (int64_t)kf_row_at<TYPE>(p, i, e) * size, type)
                              : fill;
    }
}

template <int TYPE, int CHUNKS>
__device__ __forceinline__ void kf_row_store(char *row, int type, int size, const kf_row_part &p,
                                             const float (&v)[CHUNKS][kf_step<TYPE>]) {
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        if constexpr (TYPE != 0) {
            if (kf_row_has<TYPE>(p, i, 0))
                kf_chunk_store(row + (int64_t)kf_row_at<TYPE>(p, i, 0) * (16 / kf_step<TYPE>),
                               kf_chunk_pack<TYPE>(v[i]));
        } else {
#pragma unroll
            for (int e = 0; e < kf_step<TYPE>; e++)
                if (kf_row_has<TYPE>(p, i, e))
                    kf_element_store(row + (int64_t)kf_row_at<TYPE>(p, i, e) * size, type, v[i][e]);
        }
    }
}

// ----------------------------------------------------------------------------------------------------------- reductions

struct kf_add {
    static __device__ __forceinline__ float identity() { return 0.0f; }
    static __device__ __forceinline__ float of(float a, float b) { return a + b; }
};
struct kf_most { // NaN is left aside
    static __device__ __forceinline__ float identity() { return -INFINITY; }
    static __device__ __forceinline__ float of(float a, float b) { return fmaxf(a, b); }
};

enum { KF_ROWS_WARPS = KF_ROWS_BLOCK / 32 };

// One reduction's room in shared memory. Between two uses of one lies another reduction's barrier.
struct alignas(16) kf_row_room {
    float warp[KF_ROWS_WARPS];
};

// Over the threads that share a row; all threads of the block call it.
template <class OP> __device__ __forceinline__ float kf_row_reduce(float x, int32_t group, kf_row_room &room) {
#pragma unroll
    for (int step = 16; step; step /= 2)
        if (group > step) x = OP::of(x, __shfl_xor_sync(0xffffffffu, x, step));
    if (group <= 32) return x;
    const int lane = threadIdx.x & 31, warps = group >> 5;
    if (lane == 0) room.warp[threadIdx.x >> 5] = x;
    __syncthreads();
    x = lane < warps ? room.warp[lane] : OP::identity();
#pragma unroll
    for (int step = KF_ROWS_WARPS / 2; step; step /= 2) x = OP::of(x, __shfl_xor_sync(0xffffffffu, x, step));
    return __shfl_sync(0xffffffffu, x, 0);
}

// The same in the same order for kernels with registers to spare: behind the barrier every thread reads what all warps
// left, and adds it up itself. Five shuffles less, 25 cycles each, in the chain of waits that a short kernel is.
template <class OP> __device__ __forceinline__ float kf_row_reduce_soon(float x, int32_t group, kf_row_room &room) {
    static_assert(KF_ROWS_WARPS == 16, "four loads of four");
    if (group <= 32) return kf_row_reduce<OP>(x, group, room);
#pragma unroll
    for (int step = 16; step; step /= 2) x = OP::of(x, __shfl_xor_sync(0xffffffffu, x, step));
    const int warps = group >> 5, thread = threadIdx.x;
    if ((thread & 31) == 0) room.warp[thread >> 5] = x;
    if (thread >= warps && thread < KF_ROWS_WARPS) room.warp[thread] = OP::identity();
    __syncthreads();
    const float4 *four = reinterpret_cast<const float4 *>(room.warp);
    const float4 a = four[0], b = four[1], c = four[2], d = four[3];
    const float first = OP::of(OP::of(a.x, c.x), OP::of(b.x, d.x)), second = OP::of(OP::of(a.y, c.y), OP::of(b.y, d.y)),
                third = OP::of(OP::of(a.z, c.z), OP::of(b.z, d.z)), fourth = OP::of(OP::of(a.w, c.w), OP::of(b.w, d.w));
    return OP::of(OP::of(first, third), OP::of(second, fourth));
}

// ------------------------------------------------------------------------------------- the blocks that share a row (Hopper)

// An exchange of two floats: every block of the cluster sends its own to all. They are counted in by an mbarrier: unlike a
// barrier of the cluster it flushes nothing, and a block may end with its last message in. Each exchange has a room of its own.
struct kf_cluster_room {
    float2 from[KF_ROWS_CLUSTER];
    uint64_t arrived;
};

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ uint32_t kf_cluster_address(uint32_t at, uint32_t rank) {
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
    return there;
}
#endif

// Before the first exchange: in each block the rooms are made ready, begin() by all its threads, then ready() by all, before
// which nothing is sent. What is between them hides the wait for the other blocks.
template <int ROOMS> __device__ __forceinline__ void kf_cluster_begin(kf_cluster_room (&room)[ROOMS], int32_t cluster) {
#if __CUDA_ARCH__ >= 900
    if (cluster == 1) return;
    if (threadIdx.x == 0) {
#pragma unroll
        for (int i = 0; i < ROOMS; i++) {
            const uint32_t arrived = kf_shared(&room[i].arrived);
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(arrived) : "memory");
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(arrived),
                         "r"(cluster * (int32_t)sizeof(float2))
                         : "memory");
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void kf_cluster_ready(int32_t cluster) {
#if __CUDA_ARCH__ >= 900
    if (cluster > 1) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// After it room.from[i] is what block i of the cluster sent.
__device__ __forceinline__ void kf_cluster_exchange(kf_cluster_room &room, int32_t cluster, float x, float y) {
#if __CUDA_ARCH__ >= 900
    const uint32_t arrived = kf_shared(&room.arrived);
    if ((int32_t)threadIdx.x < cluster)
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(
                         kf_cluster_address(kf_shared(&room.from[kf_cluster_rank()]), threadIdx.x)),
                     "f"(x), "f"(y), "r"(kf_cluster_address(arrived, threadIdx.x))
                     : "memory");
    asm volatile("{\n\t.reg .pred p;\n"
                 "again:\n\tmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], 0;\n\t"
                 "@!p bra again;\n\t}" ::"r"(arrived)
                 : "memory");
#endif
}

// A reduction over the threads of all blocks, in the order of the blocks.
template <class OP>
__device__ __forceinline__ float kf_row_reduce_all(float x, const kf_row_part &p, int32_t cluster, kf_row_room &room,
                                                   kf_cluster_room &others) {
    x = kf_row_reduce_soon<OP>(x, p.group, room);
    if (cluster == 1) return x;
    kf_cluster_exchange(others, cluster, x, 0.0f);
    x = OP::identity();
#pragma unroll 1
    for (int rank = 0; rank < cluster; rank++) x = OP::of(x, others.from[rank].x);
    return x;
}

#endif
