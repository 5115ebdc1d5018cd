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
//     rings      a warp's output, [ROWS][DV] floats, at the beginning of its ring; the block's, in the place of the first warp's
#ifndef KF_CUDA_DECODE_END_CUH
#define KF_CUDA_DECODE_END_CUH

#include "cuda/touch.cuh"

enum { KF_MOST_CLUSTER = 8 };

// 16 bytes that nobody asks for later: they leave the L2 cache before others do, which made a decode 1 to 5 % faster.
__device__ __forceinline__ void kf_copy16_once(uint32_t to, const char *from) {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "l"(policy)
                 : "memory");
}

// The block of a decode kernel: the splits of a tile are neighbours, so that they can be a cluster, and the tiles of a list.
__device__ __forceinline__ kf_block kf_decode_place(const kf_cuda_attention &a, int tile_rows) {
    const uint32_t pair = a.splits == 1 ? blockIdx.x : blockIdx.x / a.splits, split = blockIdx.x - pair * a.splits;
    const uint32_t list = a.tiles == 1 ? pair : pair / a.tiles, tile = pair - list * a.tiles;
    return kf_block_place(a, (tile * a.splits + split) * a.lists + list, tile_rows);
}

// The block and its keys, and the wait for the kernel in front: before anything is read from memory, and not earlier. Where a block's keys are
// known before it, ask(block) may ask the L2 cache for some: that cache sees what the kernel in front still writes.
template <int THREADS, class Ask>
__device__ __forceinline__ kf_block kf_decode_begin(const kf_cuda_attention &a, int tile_rows, int *ends, Ask ask) {
    const bool reads = a.key_lengths || a.positions;
    if (reads) kf_wait_for_previous();
    kf_block w = kf_decode_place(a, tile_rows);
    kf_block_set_length(a, w);
    kf_block_range<THREADS>(a, w, ends);
    if (!reads) {
        ask(w);
        kf_wait_for_previous();
    }
    return w;
}

template <int DV_, int ROWS_, int WARPS_, int RING_BYTES_> struct kf_decode_end {
    static constexpr int DV = DV_, ROWS = ROWS_, WARPS = WARPS_, RING_BYTES = RING_BYTES_;
    static constexpr int THREADS = WARPS * 32, O_BYTES = ROWS * DV * 4;
    static_assert(O_BYTES <= RING_BYTES, "a warp's output takes a ring's place at the end");

    enum { WIDTH = 4 }; // columns of a thread's step; head dimensions are multiples of 8

    // Some columns of o with their row's m and d.
    struct piece {
        float m, d, o[WIDTH];

        // What is merged has m's maximum already.
        __device__ __forceinline__ void add(float part_m, float part_d, float4 part, float origin, float unit) {
            const float weight = kf_exp2_fast((part_m - origin) * unit);
            d = fmaf(weight, part_d, d);
            o[0] = fmaf(weight, part.x, o[0]), o[1] = fmaf(weight, part.y, o[1]);
            o[2] = fmaf(weight, part.z, o[2]), o[3] = fmaf(weight, part.w, o[3]);
        }
    };

    static __device__ __forceinline__ void store(const kf_cuda_attention &a, const kf_block &w, int row, int column,
                                                 const piece &x) {
        const int2 at = kf_block_row(a, w.row0 + row);
        const int32_t query = at.x, head = w.head0 + at.y;
        const kf_row_end end = kf_row_finish(a, head, x.m, x.d);
        if (a.lse && column == 0)
            a.lse[w.b * a.lse_stride[0] + head * a.lse_stride[1] + query * a.lse_stride[2]] = end.lse;
        const int64_t place = w.b * a.o_stride[0] + head * a.o_stride[1] + query * a.o_stride[2] + column;
        kf_store_four(a.o, place, a.o_type, a.aligned, x.o, end.factor);
    }

    // The warps' states, merged in the order of the warps; the four elements from (row, column) on are one thread's.
    static __device__ __forceinline__ void finish(const kf_cuda_attention &a, const kf_block &w, float2 *states,
                                                  char *rings, int thread) {
        float2 *block_states = states + WARPS * ROWS;
        for (int i = WIDTH * thread; i < w.rows * DV; i += WIDTH * THREADS) {
            const int row = i / DV, column = i % DV;
            piece all = {-INFINITY, 0.0f, {}};
#pragma unroll
            for (int s = 0; s < WARPS; s++) all.m = fmaxf(all.m, states[s * ROWS + row].x);
            const float origin = kf_part_origin(all.m);
#pragma unroll
            for (int s = 0; s < WARPS; s++) {
                const float2 part = states[s * ROWS + row];
                all.add(part.x, part.y, *reinterpret_cast<const float4 *>(rings + s * RING_BYTES + 4 * i), origin,
                        a.unit);
            }
            const float4 o = make_float4(all.o[0], all.o[1], all.o[2], all.o[3]);
            if (a.cluster > 1) {
                *reinterpret_cast<float4 *>(rings + 4 * i) = o; // no other thread reads or writes these
                if (column == 0) block_states[row] = make_float2(all.m, all.d);
            } else if (column >= a.Dv) {
                continue;
            } else if (a.splits > 1) {
                const int64_t place = ((int64_t)w.list * a.rows + w.row0 + row) * a.splits + w.split;
                *reinterpret_cast<float4 *>(a.part_o + place * a.Dv + column) = o;
                if (column == 0) reinterpret_cast<float2 *>(a.part_state)[place] = make_float2(all.m, all.d);
            } else {
                store(a, w, row, column, all);
            }
        }
        if (a.cluster > 1) merge_cluster(a, w, kf_shared(block_states), kf_shared(rings), thread);
    }

    // The blocks' states, merged in the order of the splits; each block takes a share of the elements.
    static __device__ __forceinline__ void merge_cluster(const kf_cuda_attention &a, const kf_block &w, uint32_t states,
                                                         uint32_t o, int thread) {
        const int pieces = w.rows * (DV / WIDTH), share = (pieces + a.cluster - 1) / a.cluster;
        const int first = share * kf_cluster_rank(), end = min(first + share, pieces);
        kf_cluster_barrier();
        for (int i = first + thread; i < end; i += THREADS) {
            const int row = WIDTH * i / DV, column = WIDTH * i % DV;
            piece all = {-INFINITY, 0.0f, {}};
            float2 part[KF_MOST_CLUSTER];
            float4 x[KF_MOST_CLUSTER];
#pragma unroll
            for (int s = 0; s < KF_MOST_CLUSTER; s++) {
                part[s] = make_float2(-INFINITY, 0.0f), x[s] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (s >= a.cluster) continue;
                part[s] = kf_cluster_float2(states + 8 * row, s);
                x[s] = kf_cluster_float4(o + 4 * WIDTH * i, s);
            }
#pragma unroll
            for (int s = 0; s < KF_MOST_CLUSTER; s++) all.m = fmaxf(all.m, part[s].x);
            const float origin = kf_part_origin(all.m);
#pragma unroll
            for (int s = 0; s < KF_MOST_CLUSTER; s++) all.add(part[s].x, part[s].y, x[s], origin, a.unit);
            if (column < a.Dv) store(a, w, row, column, all);
        }
        kf_cluster_barrier(); // no block ends while another still reads its memory
    }
};

#endif
