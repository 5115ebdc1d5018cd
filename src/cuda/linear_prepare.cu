// SPDX-License-Identifier: Apache-2.0
//
// What stands before the products: weights that come as in the file are brought into the form that the products read (fragments.h; dense
// ones into rows that begin at multiples of 16 bytes and end with zeros), and x into fragments for the tile kernel.
//
// A warp takes an octet and a unit (weights), or an octet and a block (x). Bytes: all once in, once out. Called by linear.c.
#include "cuda/linear.cuh"

enum { WARPS = 8 };

__device__ void pack_dense(const kf_cuda_linear &a, int64_t n, int unit, int lane) {
    const int size = a.type == KF_WEIGHT_F32 ? 4 : 2;
    const char *from = a.source + n * a.row_bytes;
    char *to = a.packed + n * a.octet_bytes; // here a row's
    const int64_t first = (int64_t)unit * KF_UNIT_COLUMNS * size, limit = (int64_t)a.K * size,
                  end = (int64_t)a.blocks * 32 * size;
    for (int64_t i = first + lane; i < first + KF_UNIT_COLUMNS * size && i < end; i += 32)
        to[i] = i < limit ? from[i] : 0;
}

__device__ void pack_quantised(const kf_cuda_linear &a, int octet, int unit, int lane) {
    const int rows = min(KF_OCTET, a.N - octet * KF_OCTET),
              blocks = min(KF_UNIT_BLOCKS, a.blocks - unit * KF_UNIT_BLOCKS);
    const int g = lane >> 2, t = lane & 3;
    if (g >= rows) return;
    const uint8_t *row = reinterpret_cast<const uint8_t *>(a.source) + ((int64_t)octet * KF_OCTET + g) * a.row_bytes +
                         (int64_t)unit * kf_unit_row_bytes(a.type, KF_UNIT_BLOCKS);
    uint8_t *to = reinterpret_cast<uint8_t *>(a.packed) + octet * a.octet_bytes +
                  (int64_t)unit * kf_unit_bytes(a.type, rows, KF_UNIT_BLOCKS);
    kf_pack_lane(a.type, row, rows, blocks, g, t, to);
    if (t == 0) kf_pack_scales(a.type, row, rows, blocks, g, to);
}

__global__ void __launch_bounds__(WARPS * 32) kf_linear_pack(const __grid_constant__ kf_cuda_linear a) {
    kf_launch_dependents();
    kf_wait_for_previous();
    const int64_t item = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    const int octet = (int)(item / a.units), unit = (int)(item % a.units), lane = threadIdx.x & 31;
    if (octet >= a.octets) return;
    if (kf_block_quantised(a.type)) {
        pack_quantised(a, octet, unit, lane);
        return;
    }
    for (int g = 0; g < KF_OCTET && octet * KF_OCTET + g < a.N; g++)
        pack_dense(a, (int64_t)octet * KF_OCTET + g, unit, lane);
}

template <int MODE, bool DENSE>
__global__ void __launch_bounds__(WARPS * 32) kf_linear_x_form(const __grid_constant__ kf_cuda_linear a) {
    constexpr int ROWS = KF_TILE_N, OCTETS = ROWS / KF_OCTET, FORM = MODE == KF_X_INT8 ? 8 : 16,
                  PART = OCTETS * 32 * FORM;
    kf_launch_dependents();
    kf_wait_for_previous();
    const int64_t item = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    const int octet = (int)(item / a.row_blocks), block = (int)(item % a.row_blocks), lane = threadIdx.x & 31;
    const int tile = octet / OCTETS, place = octet % OCTETS, row = place * KF_OCTET + (lane >> 2);
    const int64_t t = (int64_t)tile * ROWS + row;
    if ((int64_t)tile * ROWS >= a.T) return;
    float v[8] = {};
    if (t < a.T) kf_x_values<DENSE>(a, t, block, lane & 3, v);
    char *record = a.parts + ((int64_t)tile * a.row_blocks + block) * a.record,
         *mine = record + (place * 32 + lane) * FORM;
    float *sums = reinterpret_cast<float *>(record + kf_x_parts(MODE) * PART), sum = 0.0f;
    if constexpr (MODE == KF_X_INT8) {
        float scale;
        *reinterpret_cast<uint2 *>(mine) = kf_x_int8(v, &scale, &sum);
        if ((lane & 3) == 0) sums[ROWS + row] = scale;
    } else {
        uint4 form[3];
        kf_x_form<MODE, DENSE>(v, form);
#pragma unroll
        for (int p = 0; p < kf_x_parts(MODE); p++) *reinterpret_cast<uint4 *>(mine + p * PART) = form[p];
        if (!DENSE) sum = kf_block_sum(v);
    }
    if (a.beside && (lane & 3) == 0) sums[row] = sum;
}

extern "C" const void *const kf_cuda_linear_pack = (const void *)kf_linear_pack;
extern "C" const void *const kf_cuda_linear_x[4] = {(const void *)kf_linear_x_form<KF_X_BF16, false>, nullptr,
                                                    (const void *)kf_linear_x_form<KF_X_SPLIT, false>,
                                                    (const void *)kf_linear_x_form<KF_X_INT8, false>};
extern "C" const void *const kf_cuda_linear_x_dense[4] = {(const void *)kf_linear_x_form<KF_X_BF16, true>,
                                                          (const void *)kf_linear_x_form<KF_X_F16, true>,
                                                          (const void *)kf_linear_x_form<KF_X_SPLIT, true>, nullptr};
