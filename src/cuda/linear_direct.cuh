// SPDX-License-Identifier: Apache-2.0
//
// Up to eight rows of bf16 x over quantised weights of which a warp has little: y[t, n] = sum_k x[t, k] w[n, k] + bias[n]. What such a
// product waits for is not memory but the chain behind the wait for the kernel before it. So all that does not need x stands in front of that
// wait, x goes into the product as it is, and no warp waits for another one before the sums meet.
//
//     warp      two octets of W and one unit, 256 columns, of them; `ways` warps side by side have all the columns: a block
//     weights   come straight into registers and are fragments before the kernel before this one has ended
//     x         of the warp's own columns, in its own shared memory: [block][row][4 lanes], 16 bytes: the pairs of a fragment; behind them
//               its sums [block][1 or 8 rows] for the types that have minima
//     product   mma.sync m16n8k16 in bf16, a block of 32 columns from zero, then sum += d P (linear.cuh). The product's columns are rows of x,
//               so a row's bits are the same among one to eight rows
//     sums      of the warps meet in shared memory and are added in pairs, always the same ones
//
//     shared    [ x of warp 0 | x of warp 1 | ... | sums: [warp][16 rows of W][rows of x: 1 or 8] ]
//
// Against the fixed point of linear_vector.cuh 32 instructions for a block of 16 x 32 of Q4_0 instead of 25, whatever the number of rows; but 23
// of them stand before the wait, x takes no forming by a block, and there is no barrier behind it.
//
// Bytes: those of W, once; x once for each two octets, from L2. Called by linear.c for T <= 8.
#ifndef KF_CUDA_LINEAR_DIRECT_CUH
#define KF_CUDA_LINEAR_DIRECT_CUH

#include "cuda/linear_vector.cuh"

enum {
    KF_DIRECT_QUADS = KF_UNIT_BLOCKS / 4,              // fours of blocks of a warp
    KF_DIRECT_FORM = 64,                               // bytes of a block and row of x
    KF_DIRECT_SUMS = 2 * KF_OCTET * KF_STREAM_ROWS * 4 // of a warp's sums
};

// Of a warp's x: bytes of a unit's rows, and of the sums beside them.
template <int TYPE> struct kf_direct { static const int BESIDE = kf_is_affine(TYPE) ? KF_UNIT_BLOCKS * 32 : 0; };

// Asks for a warp's unit of two octets: `count` fours of blocks from `first` on.
template <int TYPE>
__device__ __forceinline__ void kf_direct_load(const kf_cuda_linear &a, int octet, int first, int count, int lane,
                                               kf_piece<TYPE> (&piece)[KF_DIRECT_QUADS]) {
    if ((octet + 2) * KF_OCTET <= a.N && (first + KF_DIRECT_QUADS) * 4 <= a.blocks) { // whole
        const char *const from = a.w + octet * a.octet_bytes;
#pragma unroll
        for (int i = 0; i < KF_DIRECT_QUADS; i++) kf_vector_load<TYPE>(from, a.octet_bytes, first + i, lane, piece[i]);
        return;
    }
    static_assert(KF_DIRECT_QUADS == 2, "the first and the last");
#pragma unroll 1
    for (int i = 0; i < count; i++) {
        kf_vector_load_end<TYPE>(a, octet, first + i, lane, piece[1]);
        if (i == 0) piece[0] = piece[1];
    }
}

// Four blocks of two octets as fragments, and their factors.
struct kf_fragments {
    kf_block_a w[4];
    float2 d[4], m[4];
};

// What was computed so far is computed here: the compiler would move it behind the wait.
__device__ __forceinline__ void kf_direct_stay(kf_block_a &w) {
#pragma unroll
    for (int p = 0; p < 4; p++) asm volatile("" : "+r"(w.low[p]), "+r"(w.high[p]));
}
template <int TYPE> __device__ __forceinline__ void kf_direct_stay(kf_fragments &f) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
        kf_direct_stay(f.w[j]);
        asm volatile("" : "+f"(f.d[j].x), "+f"(f.d[j].y));
        if (kf_is_affine(TYPE) || TYPE == KF_WEIGHT_Q6_K) asm volatile("" : "+f"(f.m[j].x), "+f"(f.m[j].y));
    }
}

template <int TYPE>
__device__ __forceinline__ void kf_direct_decode(const kf_piece<TYPE> &piece, int quad, kf_fragments &f) {
    const kf_factors low = kf_decode_factors<TYPE>(piece.of_low, quad),
                     high = kf_decode_factors<TYPE>(piece.of_high, quad);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        f.w[j] = kf_quantised_fragment<TYPE, KF_X_BF16>(piece.low, piece.high, j);
        f.d[j] = make_float2(low.d[j], high.d[j]), f.m[j] = make_float2(low.m[j], high.m[j]);
    }
}

// ------------------------------------------------------------------------------------------------------- x

// Where lane 4 j + part finds columns 4 part .. +3 and 16 + 4 part .. +3 of block j of its warp's unit, and where it puts them.
struct kf_direct_place {
    const char *from;
    int to;     // in shared memory
    bool there; // the block holds columns
};

// `form`: where the warp's x begins in shared memory.
__device__ __forceinline__ kf_direct_place kf_direct_find(const kf_cuda_linear &a, int T, int first, int form,
                                                          int lane) {
    const int part = lane & 3, block = lane >> 2;
    kf_direct_place p = {a.x + (int64_t)(first + block) * 64 + part * 8, form + (block * T * 4 + part) * 16,
                         first + block < a.blocks};
    asm volatile("" : "+l"(p.from), "+r"(p.to)); // as above
    return p;
}

// A block's columns of a row that does not begin at a multiple of 16 bytes: rare, and slow.
__device__ __forceinline__ void kf_direct_elements(const char *from, char *to) {
#pragma unroll 1
    for (int i = 0; i < 8; i++) // four of the first half, four of the second: pairs (0, 2), (1, 3)
        *reinterpret_cast<uint16_t *>(to + (i >> 2) * 8 + (i & 1) * 4 + (i & 2)) =
            *reinterpret_cast<const uint16_t *>(from + (i >> 2) * 32 + (i & 3) * 2);
}

// The eight columns as the product's pairs: (0, 2), (1, 3) of each half.
__device__ __forceinline__ uint4 kf_direct_pairs(uint2 low, uint2 high) {
    return make_uint4(__byte_perm(low.x, low.y, 0x5410), __byte_perm(low.x, low.y, 0x7632),
                      __byte_perm(high.x, high.y, 0x5410), __byte_perm(high.x, high.y, 0x7632));
}

// One row: a loop's instructions would be most of what stands behind the wait.
__device__ __forceinline__ void kf_direct_row(const kf_cuda_linear &a, const kf_direct_place &p, char *memory) {
    uint2 low = make_uint2(0, 0), high = low;
    if (p.there && a.x_aligned) {
        low = __ldcg(reinterpret_cast<const uint2 *>(p.from));
        high = __ldcg(reinterpret_cast<const uint2 *>(p.from + 32));
    }
    *reinterpret_cast<uint4 *>(memory + p.to) = kf_direct_pairs(low, high);
    if (p.there && !a.x_aligned) kf_direct_elements(p.from, memory + p.to);
}

// All rows' unit into form; blocks that are not there as zeros. AHEAD: rows whose loads are on their way at a time.
template <int AHEAD>
__device__ __forceinline__ void kf_direct_x(const kf_cuda_linear &a, const kf_direct_place &p, char *memory) {
    const bool aligned = a.x_aligned;
    const char *from = p.from;
    char *to = memory + p.to;
    const int64_t row_bytes = a.x_stride * 2;
#pragma unroll 1
    for (int row = 0; row < a.T; row += AHEAD, from += AHEAD * row_bytes, to += AHEAD * KF_DIRECT_FORM) {
        uint2 low[AHEAD], high[AHEAD];
#pragma unroll
        for (int n = 0; n < AHEAD; n++) {
            low[n] = high[n] = make_uint2(0, 0);
            if (row + n < a.T && p.there && aligned) {
                low[n] = __ldcg(reinterpret_cast<const uint2 *>(from + n * row_bytes));
                high[n] = __ldcg(reinterpret_cast<const uint2 *>(from + n * row_bytes + 32));
            }
        }
#pragma unroll
        for (int n = 0; n < AHEAD; n++)
            if (row + n < a.T) *reinterpret_cast<uint4 *>(to + n * KF_DIRECT_FORM) = kf_direct_pairs(low[n], high[n]);
        if (aligned || !p.there) continue;
#pragma unroll 1
        for (int n = 0; n < AHEAD && row + n < a.T; n++)
            kf_direct_elements(from + n * row_bytes, to + n * KF_DIRECT_FORM);
    }
}

// Where in a block's x, [row][4 lanes] of 16 bytes, a lane's part of the product's column is. Where x has no row for that column, another row's:
// what it gives is not stored.
__device__ __forceinline__ int kf_direct_column(int T, int lane) { return min(lane, (T - 1) * 4 + (lane & 3)); }

// Sums of the unit's columns times `scale`: [block][ROWS]. They are products of rows of ones, so that a row's bits are the same however many rows
// there are. One row: the blocks are the columns of one product.
__device__ __forceinline__ float2 kf_direct_sum(const uint4 &x, float scale) {
    constexpr uint32_t one = 0x3f803f80u;
    const kf_block_a ones = {{one, one, one, one}, {one, one, one, one}};
    float sum[4] = {};
    kf_mma_step<__nv_bfloat16>(sum, ones, 0, x);
    kf_mma_step<__nv_bfloat16>(sum, ones, 1, x);
    return make_float2(scale * sum[0], scale * sum[1]); // of columns 2t and 2t + 1
}
template <int ROWS>
__device__ __forceinline__ void kf_direct_sums(const char *form, int T, float scale, float *sums, int lane) {
    const int place = ROWS == 1 ? lane : kf_direct_column(T, lane);
#pragma unroll
    for (int block = 0; block < (ROWS == 1 ? 1 : (int)KF_UNIT_BLOCKS); block++) {
        const uint4 x = *reinterpret_cast<const uint4 *>(form + (block * T * 4 + place) * 16);
        const float2 sum = kf_direct_sum(x, scale);
        if (lane < 4) *reinterpret_cast<float2 *>(sums + block * KF_OCTET + 2 * lane) = sum;
    }
}

// A warp's x into form; where the type wants them, its sums, times `scale`, too.
template <int TYPE, int ROWS>
__device__ __forceinline__ void kf_direct_bring(const kf_cuda_linear &a, const kf_direct_place &place, char *memory,
                                                const char *form, int T, float scale, float *sums, int lane) {
    if (ROWS == 1)
        kf_direct_row(a, place, memory);
    else
        kf_direct_x<4>(a, place, memory);
    __syncwarp();
    if (!kf_is_affine(TYPE)) return;
    kf_direct_sums<ROWS>(form, T, scale, sums, lane);
    __syncwarp();
}

// The two of them that a lane's columns of the product want.
template <int ROWS> __device__ __forceinline__ float2 kf_direct_beside(const float *sums, int block, int lane) {
    if constexpr (ROWS == 1)
        return make_float2(sums[block], 0.0f);
    else
        return *reinterpret_cast<const float2 *>(sums + block * ROWS + 2 * (lane & 3));
}

// ------------------------------------------------------------------------------------------------------- products

// Four blocks times the rows of x.
template <int TYPE, int ROWS>
__device__ __forceinline__ void kf_direct_multiply(const kf_fragments &f, const char *form, const float *sums, int T,
                                                   int lane, float (&sum)[4]) {
    const int place = kf_direct_column(T, lane);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint4 x[3];
        x[0] = *reinterpret_cast<const uint4 *>(form + (j * T * 4 + place) * 16);
        float2 beside = make_float2(0.0f, 0.0f);
        if (kf_is_affine(TYPE)) beside = kf_direct_beside<ROWS>(sums, j, lane);
        kf_quantised_block<TYPE, KF_X_BF16>(sum, f.w[j], f.d[j], f.m[j], x, beside);
    }
}

// A warp's sums: [16 rows][ROWS].
template <int ROWS> __device__ __forceinline__ void kf_direct_put(float *to, int lane, const float (&sum)[4]) {
    const int g = lane >> 2, t = lane & 3;
    if (ROWS == 1) {
        if (t == 0) to[g] = sum[0], to[g + KF_OCTET] = sum[2];
    } else {
        *reinterpret_cast<float2 *>(to + g * ROWS + 2 * t) = make_float2(sum[0], sum[1]);
        *reinterpret_cast<float2 *>(to + (g + KF_OCTET) * ROWS + 2 * t) = make_float2(sum[2], sum[3]);
    }
}

// Adds the sums of eight warps at most up, in pairs, and stores them; of pair `pair` of octets.
template <int ROWS>
__device__ __forceinline__ void kf_direct_finish(const kf_cuda_linear &a, int T, int pair, const float *sums) {
#pragma unroll 1
    for (int i = threadIdx.x; i < 2 * KF_OCTET * T; i += blockDim.x) {
        const int row = i & 15, t = i >> 4, n = pair * 2 * KF_OCTET + row;
        float each[KF_DIRECT_WARPS];
#pragma unroll
        for (int w = 0; w < KF_DIRECT_WARPS; w++) each[w] = w < a.ways ? sums[(w * 16 + row) * ROWS + t] : 0.0f;
        static_assert(KF_DIRECT_WARPS == 8, "three rounds of pairs");
        const float total = ((each[0] + each[1]) + (each[2] + each[3])) + ((each[4] + each[5]) + (each[6] + each[7]));
        if (n < a.N) kf_finish_element(a, t, n, total);
    }
}

// ROWS: 1 or KF_STREAM_ROWS, at most.
template <int TYPE, int ROWS>
__global__ void __launch_bounds__(KF_DIRECT_WARPS * 32, 2) kf_linear_direct(const __grid_constant__ kf_cuda_linear a) {
    constexpr int QUADS = KF_DIRECT_QUADS;
    extern __shared__ __align__(128) char memory[];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int octet = blockIdx.x * 2, first = warp * QUADS, count = min(QUADS, (a.blocks + 3) / 4 - first);
    const int T = ROWS == 1 ? 1 : a.T;
    const int quad_bytes = 4 * T * KF_DIRECT_FORM, form_bytes = QUADS * quad_bytes + kf_direct<TYPE>::BESIDE;
    char *const form = memory + warp * form_bytes;
    float *const beside = reinterpret_cast<float *>(form + QUADS * quad_bytes);
    float *const sums = reinterpret_cast<float *>(memory + a.ways * form_bytes);

    kf_piece<TYPE> piece[QUADS];
    kf_fragments w[QUADS];
    if (a.weights_made) kf_wait_for_previous();
    kf_direct_load<TYPE>(a, octet, first, count, lane, piece);
    kf_launch_dependents();
    const kf_direct_place place = kf_direct_find(a, T, first * 4, warp * form_bytes, lane);
#pragma unroll
    for (int i = 0; i < QUADS; i++)
        if (i < count) {
            kf_direct_decode<TYPE>(piece[i], i, w[i]);
            kf_direct_stay<TYPE>(w[i]);
        }
    kf_wait_for_previous();
    kf_direct_bring<TYPE, ROWS>(a, place, memory, form, T, 1.0f, beside, lane);

    float sum[4] = {};
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
        if (i >= count) break;
        kf_direct_multiply<TYPE, ROWS>(w[i], form + i * quad_bytes, beside + i * 4 * ROWS, T, lane, sum);
    }
    kf_direct_put<ROWS>(sums + warp * 2 * KF_OCTET * ROWS, lane, sum);
    __syncthreads();
    kf_direct_finish<ROWS>(a, T, blockIdx.x, sums);
}

// Two rows of the table. The first is found for one row of x: kernel ONE, which has ROW bytes of shared memory a warp for x and SUMS beside it, WARPS
// on a multiprocessor (of the kernels for many rows of W). The second has SETS sets of sums.
#define KF_DIRECT_PAIR(KIND, TYPE, ONE, ROW, SUMS, WARPS, MORE, SETS, NAME)                                            \
    {KIND, TYPE, KF_X_BF16, ROW, SUMS, WARPS, 0, 1, (const void *)ONE, "1 row, bf16 x, " NAME " W"}, {                 \
        KIND, TYPE, KF_X_BF16, KF_UNIT_BLOCKS *KF_DIRECT_FORM, kf_direct<TYPE>::BESIDE + (SETS)*KF_DIRECT_SUMS,        \
            KF_MANY_WARPS, 0, KF_STREAM_ROWS, (const void *)MORE, "2 to 8 rows, bf16 x, " NAME " W"                    \
    }

#endif
