// SPDX-License-Identifier: Apache-2.0
//
// The end of a decode kernel: the states that the warps of a block leave in shared memory, over all of them
//
//     m = max m_s,   w_s = 2^(unit (m_s - m)),   d = sum w_s d_s,   o = sum w_s o_s
//
// in a fixed order; then, where the splits of a list are a cluster, the same over its blocks through distributed shared memory, each
// block taking a share of the elements; else the output, or the block's partial state for the merge kernel.
//
//     states     [WARPS][ROWS] m and d of each warp, then [ROWS] the block's
//     rings      a warp's output, [ROWS][DV] floats, at the beginning of its ring; the block's, behind the first warp's
#ifndef KF_CUDA_DECODE_END_CUH
#define KF_CUDA_DECODE_END_CUH

#include "cuda/attention.cuh"

enum { KF_MOST_CLUSTER = 8 };

// 16 bytes that no other block asks for: they leave the L2 cache before others do, which made a decode 1 to 5 % faster.
__device__ __forceinline__ void kf_copy16_once(uint32_t to, const char *from) {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "l"(policy)
                 : "memory");
}

template <int DV_, int ROWS_, int WARPS_, int RING_BYTES_> struct kf_decode_end {
    static constexpr int DV = DV_, ROWS = ROWS_, WARPS = WARPS_, RING_BYTES = RING_BYTES_;
    static constexpr int THREADS = WARPS * 32, O_BYTES = ROWS * DV * 4;
    static_assert(2 * O_BYTES <= RING_BYTES, "a warp's output, and the block's, take a ring's place at the end");

    // An element of o with its row's m and d.
    struct element {
        float m, d, o;
    };

    static __device__ __forceinline__ void store(const kf_cuda_attention &a, const kf_block &w, int row, int column,
                                                 element x) {
        const int2 at = kf_block_row(a, w.row0 + row);
        const int32_t query = at.x, head = w.head0 + at.y;
        const kf_row_end end = kf_row_finish(a, head, x.m, x.d);
        if (a.lse && column == 0)
            a.lse[w.b * a.lse_stride[0] + head * a.lse_stride[1] + query * a.lse_stride[2]] = end.lse;
        const int64_t place = w.b * a.o_stride[0] + head * a.o_stride[1] + query * a.o_stride[2] + column;
        kf_store_element(a.o + place * (a.o_type == KF_F32 ? 4 : 2), a.o_type, x.o * end.factor);
    }

    // The warps' states, merged in the order of the warps; element (row, column) is one thread's.
    static __device__ __forceinline__ void finish(const kf_cuda_attention &a, const kf_block &w, float2 *states,
                                                  char *rings, int thread) {
        float *block_o = reinterpret_cast<float *>(rings + O_BYTES);
        float2 *block_states = states + WARPS * ROWS;
        for (int i = thread; i < w.rows * DV; i += THREADS) {
            const int row = i / DV, column = i % DV;
            element all = {-INFINITY, 0.0f, 0.0f};
#pragma unroll
            for (int s = 0; s < WARPS; s++) all.m = fmaxf(all.m, states[s * ROWS + row].x);
            const float origin = kf_part_origin(all.m);
#pragma unroll
            for (int s = 0; s < WARPS; s++) {
                const float2 part = states[s * ROWS + row];
                const float weight = kf_exp2_fast((part.x - origin) * a.unit);
                all.d = fmaf(weight, part.y, all.d);
                all.o = fmaf(weight, reinterpret_cast<const float *>(rings + s * RING_BYTES)[i], all.o);
            }
            if (a.cluster > 1) {
                block_o[i] = all.o;
                if (column == 0) block_states[row] = make_float2(all.m, all.d);
            } else if (column >= a.Dv) {
                continue;
            } else if (a.splits > 1) {
                const int64_t place = ((int64_t)w.list * a.rows + w.row0 + row) * a.splits + w.split;
                a.part_o[place * a.Dv + column] = all.o;
                if (column == 0) reinterpret_cast<float2 *>(a.part_state)[place] = make_float2(all.m, all.d);
            } else {
                store(a, w, row, column, all);
            }
        }
        if (a.cluster > 1) merge_cluster(a, w, kf_shared(block_states), kf_shared(block_o), thread);
    }

    // The blocks' states, merged in the order of the splits; each block takes a share of the elements.
    static __device__ __forceinline__ void merge_cluster(const kf_cuda_attention &a, const kf_block &w, uint32_t states,
                                                         uint32_t o, int thread) {
        kf_cluster_barrier();
        for (int i = thread + THREADS * kf_cluster_rank(); i < w.rows * DV; i += THREADS * a.cluster) {
            const int row = i / DV, column = i % DV;
            element all = {-INFINITY, 0.0f, 0.0f};
            float m[KF_MOST_CLUSTER], d[KF_MOST_CLUSTER], x[KF_MOST_CLUSTER];
#pragma unroll
            for (int s = 0; s < KF_MOST_CLUSTER; s++) {
                m[s] = -INFINITY, d[s] = x[s] = 0.0f;
                if (s >= a.cluster) continue;
                m[s] = kf_cluster_float(states + 8 * row, s);
                d[s] = kf_cluster_float(states + 8 * row + 4, s);
                x[s] = kf_cluster_float(o + 4 * i, s);
            }
#pragma unroll
            for (int s = 0; s < KF_MOST_CLUSTER; s++) all.m = fmaxf(all.m, m[s]);
            const float origin = kf_part_origin(all.m);
#pragma unroll
            for (int s = 0; s < KF_MOST_CLUSTER; s++) {
                const float weight = kf_exp2_fast((m[s] - origin) * a.unit);
                all.d = fmaf(weight, d[s], all.d), all.o = fmaf(weight, x[s], all.o);
            }
            if (column < a.Dv) store(a, w, row, column, all);
        }
        kf_cluster_barrier(); // no block ends while another still reads its memory
    }
};

#endif
