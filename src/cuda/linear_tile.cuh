// SPDX-License-Identifier: Apache-2.0
//
// Many rows of x over quantised weights: a block makes 128 rows of W times up to 64 rows of x, eight warps of 32 x 64, in two teams that
// take fours of blocks of 32 columns ("quads") in turn.
//
//     weights   go straight from the device's memory into registers, a quad ahead: nobody but the warp needs them. There codes become
//               bf16 (or int8), less their offset, and factors fp32
//     x         in form already (kf_linear_x): fragments, in stages that the four warps of a team share, a ring of three for each team
//     product   a block of 32 columns from zero in the tensor cores, then sum += d P (linear.cuh)
//     end       the second team's sums, then the first one's, meet in shared memory as rows of y
//
//     shared    [ ring of team 0 | ring of team 1 ], at the end [ sums: 64 rows of x, 128 rows of W ]
//     x in form [tile of 64 rows][block of 32]: a record [part][octet][lane], 16 bytes (int8: 8), then sums [64], scales [64] where needed
//
// Per block of 32 columns and warp, Q4_0: 32 products (192 cycles of the tensor pipe), 44 instructions of decoding, 64 fma, 8 loads of x.
// Bytes: W once for each 64 rows of x, mostly from L2; x once for each 128 rows of W. Called by linear.c.
#ifndef KF_CUDA_LINEAR_TILE_CUH
#define KF_CUDA_LINEAR_TILE_CUH

#include "cuda/linear.cuh"

enum {
    KF_TILE_OCTETS = KF_TILE_N / KF_OCTET, // of x
    KF_WARP_OCTETS = 4,                    // of W
    KF_TEAM_WARPS = KF_TILE_M / (KF_WARP_OCTETS * KF_OCTET),
    KF_TEAM_THREADS = KF_TEAM_WARPS * 32,
    KF_TEAMS = KF_TILE_THREADS / KF_TEAM_THREADS,
    KF_QUAD = 4,                  // blocks of 32 columns
    KF_SUM_STRIDE = KF_TILE_M + 4 // floats: rows of x begin in different banks
};

template <int TYPE, int MODE> struct kf_tile {
    static const int PARTS = kf_x_parts(MODE), FORM = MODE == KF_X_INT8 ? 8 : 16; // bytes of a lane and part
    static const int STAGE_BLOCKS = MODE == KF_X_SPLIT ? 1 : kf_is_affine(TYPE) ? 2 : KF_QUAD, STAGES = 3;
    static const int X_BYTES = KF_TILE_OCTETS * PARTS * 32 * FORM;                // of a block
    static const int BESIDE = MODE == KF_X_INT8 ? 2 : kf_is_affine(TYPE) ? 1 : 0; // floats a row and block: sum, scale
    static const int RECORD = X_BYTES + BESIDE * KF_TILE_N * 4, STAGE = STAGE_BLOCKS * RECORD, RING = STAGES * STAGE;
    // Octets of x whose products overlap: as many as there are registers for.
    static const int TOGETHER = KF_TILE_OCTETS / (MODE == KF_X_SPLIT ? 4 : 2);
    static const int SUMS = KF_TILE_N * KF_SUM_STRIDE * 4;
    static const int SHARED = KF_TEAMS * RING > SUMS ? KF_TEAMS *RING : SUMS;
};

// A quad of the warp's four octets, as it came.
template <int TYPE> struct kf_tile_weights {
    kf_codes<TYPE> codes[KF_WARP_OCTETS];
    kf_raw_factors<TYPE> factors[KF_WARP_OCTETS];
};

// Rows and columns past the end: the last row that is there, and zeros.
template <int TYPE>
__device__ __forceinline__ void kf_tile_load(const kf_cuda_linear &a, int octet, int quad, int lane,
                                             kf_tile_weights<TYPE> &w) {
    const int unit = quad >> 1, blocks = min(KF_UNIT_BLOCKS, a.blocks - unit * KF_UNIT_BLOCKS);
    if ((octet + KF_WARP_OCTETS) * KF_OCTET <= a.N && blocks == KF_UNIT_BLOCKS) {
        const char *from = a.w + octet * a.octet_bytes + (int64_t)unit * (KF_OCTET * kf_row_unit(TYPE));
#pragma unroll
        for (int o = 0; o < KF_WARP_OCTETS; o++, from += a.octet_bytes) {
            w.codes[o] = kf_read_codes<TYPE, true>(from, KF_OCTET, KF_UNIT_BLOCKS, quad & 1, lane);
            w.factors[o] = kf_load_factors<TYPE, true>(from, KF_OCTET, KF_UNIT_BLOCKS, quad & 1, lane >> 2);
        }
    } else {
#pragma unroll
        for (int o = 0; o < KF_WARP_OCTETS; o++) {
            const int place = min(octet + o, a.octets - 1), rows = min(KF_OCTET, a.N - place * KF_OCTET);
            const int g = min(lane >> 2, rows - 1);
            const char *from = a.w + place * a.octet_bytes + (int64_t)unit * kf_unit_bytes(TYPE, rows, KF_UNIT_BLOCKS);
            w.codes[o] = kf_read_codes<TYPE, false>(from, rows, blocks, quad & 1, g * 4 + (lane & 3));
            w.factors[o] = kf_load_factors<TYPE, false>(from, rows, blocks, quad & 1, g);
        }
    }
}

// A stage of x, which lies in one piece, by a team.
template <int BYTES> __device__ __forceinline__ void kf_tile_fetch_x(const char *from, uint32_t stage) {
    const int thread = threadIdx.x % KF_TEAM_THREADS;
#pragma unroll
    for (int at = 0; at < BYTES; at += KF_TEAM_THREADS * 16) {
        const int i = at + thread * 16;
        if (at + KF_TEAM_THREADS * 16 <= BYTES || i < BYTES) kf_copy16(stage + i, from + i);
    }
}

// All of a team have come here. Barrier 0 is __syncthreads'.
__device__ __forceinline__ void kf_team_barrier(int team) {
    asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"((int)KF_TEAM_THREADS) : "memory");
}

typedef float kf_tile_sums[2][KF_TILE_OCTETS][4];

// One block of 32 columns: the weights of both strips (16 rows) of the warp times OCTETS octets of x.
template <int TYPE, int MODE>
__device__ __forceinline__ void kf_tile_multiply(const kf_block_a (&w)[2], const float2 (&d)[2], const float2 (&m)[2],
                                                 const char *record, int n, int lane, kf_tile_sums &sum) {
    using tile = kf_tile<TYPE, MODE>;
    const char *beside = record + tile::X_BYTES + (lane & 3) * 8 + n * 32;
    float2 x_sum = make_float2(0.0f, 0.0f), scale = x_sum;
    if (kf_is_affine(TYPE)) x_sum = *reinterpret_cast<const float2 *>(beside);
    if constexpr (MODE == KF_X_INT8) {
        scale = *reinterpret_cast<const float2 *>(beside + KF_TILE_N * 4);
        const uint2 bytes = *reinterpret_cast<const uint2 *>(record + (n * 32 + lane) * 8);
#pragma unroll
        for (int s = 0; s < 2; s++) kf_int8_block<TYPE>(sum[s][n], w[s], d[s], m[s], bytes, scale, x_sum);
    } else {
        uint4 part[3];
#pragma unroll
        for (int p = 0; p < tile::PARTS; p++)
            part[p] = *reinterpret_cast<const uint4 *>(record + ((p * KF_TILE_OCTETS + n) * 32 + lane) * 16);
#pragma unroll
        for (int s = 0; s < 2; s++) kf_quantised_block<TYPE, MODE>(sum[s][n], w[s], d[s], m[s], part, x_sum);
    }
}

// Lane 4 g + t holds rows g and g + 8 of a strip and rows 2t, 2t + 1 of an octet of x.
template <bool ADD>
__device__ __forceinline__ void kf_tile_put(float *sums, int row, int lane, const kf_tile_sums &sum) {
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int s = 0; s < 2; s++)
#pragma unroll
        for (int n = 0; n < KF_TILE_OCTETS; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float *at = sums + (n * KF_OCTET + 2 * t + (i & 1)) * KF_SUM_STRIDE + row + s * 16 + (i >> 1) * 8 + g;
                *at = ADD ? sum[s][n][i] + *at : sum[s][n][i];
            }
}

__device__ __forceinline__ void kf_tile_store(const kf_cuda_linear &a, int row, int x_row, int thread,
                                              const float *sums) {
    const int rows = min(KF_TILE_N, a.T - x_row), columns = min(KF_TILE_M, a.N - row), column = thread % KF_TILE_M;
    if (column >= columns) return;
#pragma unroll 4
    for (int t = thread / KF_TILE_M; t < rows; t += KF_TILE_THREADS / KF_TILE_M)
        kf_finish_element(a, x_row + t, row + column, sums[t * KF_SUM_STRIDE + column]);
}

// The teams' sums together, and stored. Reads again who the thread is: the loop has no register to keep it in.
__device__ __forceinline__ void kf_tile_end(const kf_cuda_linear &a, const kf_tile_sums &sum, float *sums) {
    int thread, block;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    const int team = thread / KF_TEAM_THREADS, row = thread / 32 % KF_TEAM_WARPS * KF_WARP_OCTETS * KF_OCTET;
    const int x_tiles = (a.T + KF_TILE_N - 1) / KF_TILE_N, m_tile = block / x_tiles;
    if (team == 1) kf_tile_put<false>(sums, row, thread & 31, sum);
    __syncthreads();
    if (team == 0) kf_tile_put<true>(sums, row, thread & 31, sum);
    __syncthreads();
    kf_tile_store(a, m_tile * KF_TILE_M, (block - m_tile * x_tiles) * KF_TILE_N, thread, sums);
}

template <int TYPE, int MODE>
__global__ void __launch_bounds__(KF_TILE_THREADS, 1) kf_linear_tile(const __grid_constant__ kf_cuda_linear a) {
    using tile = kf_tile<TYPE, MODE>;
    extern __shared__ __align__(128) char memory[];
    constexpr int STAGES = tile::STAGES, STAGE_BLOCKS = tile::STAGE_BLOCKS, PER_QUAD = KF_QUAD / STAGE_BLOCKS;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, team = warp / KF_TEAM_WARPS;
    const int x_tiles = (a.T + KF_TILE_N - 1) / KF_TILE_N, m_tile = blockIdx.x / x_tiles,
              x_tile = blockIdx.x - m_tile * x_tiles;
    const int octet = m_tile * (KF_TILE_M / KF_OCTET) + warp % KF_TEAM_WARPS * KF_WARP_OCTETS;
    const int quads = (a.blocks + KF_QUAD - 1) / KF_QUAD, mine = (quads - team + KF_TEAMS - 1) / KF_TEAMS;
    const char *const ring = memory + team * tile::RING;
    const uint32_t ring_at = kf_shared(ring);
    // A team's stages: those of its quads, one after another.
    const char *from = a.parts + ((int64_t)x_tile * a.row_blocks + team * KF_QUAD) * tile::RECORD;
    int left = mine * PER_QUAD, fetch_slot = 0;
    const auto fetch = [&] {
        if (left > 0) {
            kf_tile_fetch_x<tile::STAGE>(from, ring_at + fetch_slot * tile::STAGE);
            fetch_slot = fetch_slot + 1 < STAGES ? fetch_slot + 1 : 0;
            left--;
            from += left % PER_QUAD ? tile::STAGE : tile::STAGE + (KF_TEAMS - 1) * KF_QUAD * tile::RECORD;
        }
        kf_copy_commit();
    };

    kf_tile_weights<TYPE> next;
    if (a.weights_made) kf_wait_for_previous();
    if (mine > 0) kf_tile_load<TYPE>(a, octet, team, lane, next);
    kf_launch_dependents();
    kf_wait_for_previous();
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) fetch();

    kf_tile_sums sum = {};
#pragma unroll 1
    for (int q = 0, slot = 0; q < mine; q++) {
        const kf_tile_weights<TYPE> now = next;
        const int quad = q * KF_TEAMS + team;
#pragma unroll
        for (int j = 0; j < KF_QUAD; j++) {
            if (j % STAGE_BLOCKS == 0) {
                kf_copy_wait<STAGES - 2>();
                kf_team_barrier(team);
                fetch();
            }
            // Half of the codes at hand are used up: their registers take the next ones.
            if (j == KF_QUAD / 2 && q + 1 < mine) kf_tile_load<TYPE>(a, octet, quad + KF_TEAMS, lane, next);
            const char *record = ring + slot * tile::STAGE + j % STAGE_BLOCKS * tile::RECORD;
            kf_block_a w[2];
            float2 d[2], m[2];
#pragma unroll
            for (int s = 0; s < 2; s++) {
                w[s] = kf_quantised_fragment<TYPE, MODE>(now.codes[2 * s], now.codes[2 * s + 1], j);
                const kf_factors low = kf_decode_factors<TYPE>(now.factors[2 * s], quad & 1),
                                 high = kf_decode_factors<TYPE>(now.factors[2 * s + 1], quad & 1);
                d[s] = make_float2(low.d[j], high.d[j]), m[s] = make_float2(low.m[j], high.m[j]);
            }
            // No branch for each octet: it kept the products from overlapping. What an octet past the last one gives is not stored.
#pragma unroll
            for (int n = 0; n < KF_TILE_OCTETS; n++) {
                if (n > 0 && n % tile::TOGETHER == 0 && a.T <= n * KF_OCTET) break;
                kf_tile_multiply<TYPE, MODE>(w, d, m, record, n, lane, sum);
            }
            if (j % STAGE_BLOCKS == STAGE_BLOCKS - 1) slot = slot + 1 < STAGES ? slot + 1 : 0;
        }
    }

    // With an odd number of quads the second team has one less. It passes its barrier as often as the first all the same: they order
    // nothing between the teams, but a tool that counts barriers (racecheck) takes it for released too early otherwise.
#pragma unroll 1
    for (int i = mine * PER_QUAD; i < (quads + KF_TEAMS - 1) / KF_TEAMS * PER_QUAD; i++) kf_team_barrier(team);
    __syncthreads(); // nobody reads the rings any more
    kf_tile_end(a, sum, reinterpret_cast<float *>(memory));
}

#define KF_TILE_ROW(TYPE, MODE, NAME)                                                                                  \
    {                                                                                                                  \
        KF_CUDA_TILE, TYPE, MODE, kf_tile<TYPE, MODE>::SHARED, 0, 0, 0, 0, (const void *)kf_linear_tile<TYPE, MODE>,   \
            NAME                                                                                                       \
    }

#endif
