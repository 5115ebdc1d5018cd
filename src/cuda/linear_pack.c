// SPDX-License-Identifier: Apache-2.0
//
// kf_pack_weight on a CUDA context: from the host's memory to the host's, for the caller to copy to the device.
//
//     packed    [ header, 128 bytes | quantised: octets (fragments.h) | dense: rows as they came, compact ]
//
// Nothing may wait for a look at the header when a run is enqueued, so kf_weight.packed itself names the layout; the header is for
// people and tools. Reads and writes each byte once.
#include "cuda/cuda.h"
#include "cuda/fragments.h"
#include "math/mask.h"

#include <string.h>

static const uint32_t MAGIC = 0x4757464bu; // "KFWG" in memory
kf_static_assert(sizeof(kf_fragments_header) == KF_FRAGMENTS_HEADER, "fragments begin at a multiple of 128 bytes");

static uint64_t source_row_bytes(const kf_weight *weight) {
    return (uint64_t)(weight->cols / kf_block_values(weight->type) * kf_block_bytes(weight->type));
}

static uint64_t packed_bytes(const kf_weight *weight) {
    const uint64_t data = kf_block_quantised(weight->type)
                              ? (uint64_t)kf_fragments_bytes(weight->type, weight->rows, weight->cols)
                              : (uint64_t)weight->rows * source_row_bytes(weight);
    return KF_FRAGMENTS_HEADER + data;
}

kf_status kf_cuda_packed_check(const kf_weight *weight) {
    if (weight->packed != KF_FRAGMENTS_LAYOUT)
        return kf_fail(KF_INVALID_ARGUMENT,
                       "linear: weight.packed is %d; what kf_pack_weight makes on this backend says %d",
                       (int)weight->packed, KF_FRAGMENTS_LAYOUT);
    if (weight->bytes < packed_bytes(weight))
        return kf_fail(KF_INVALID_ARGUMENT, "linear: the packed weight has %zu bytes; %llu are needed", weight->bytes,
                       (unsigned long long)packed_bytes(weight));
    return KF_OK;
}

kf_status kf_cuda_pack_weight_size(const kf_context *context, const kf_weight *weight, size_t *bytes) {
    (void)context;
    *bytes = (size_t)packed_bytes(weight);
    return KF_OK;
}

// Eight rows, or the last ones.
static void pack_octet(const kf_weight *weight, int64_t row, int rows, uint8_t *to) {
    const int64_t blocks = weight->cols / KF_BLOCK_SMALL;
    for (int64_t first = 0; first < blocks; first += KF_UNIT_BLOCKS) {
        const int count = (int)kf_min64(KF_UNIT_BLOCKS, blocks - first),
                  bytes = kf_unit_bytes(weight->type, rows, count);
        memset(to, 0, (size_t)bytes);
        for (int g = 0; g < rows; g++) {
            const uint8_t *from = (const uint8_t *)weight->data + (row + g) * weight->row_bytes +
                                  first / KF_UNIT_BLOCKS * kf_unit_row_bytes(weight->type, KF_UNIT_BLOCKS);
            for (int t = 0; t < 4; t++) kf_pack_lane(weight->type, from, rows, count, g, t, to);
            kf_pack_scales(weight->type, from, rows, count, g, to);
        }
        to += bytes;
    }
}

void kf_cuda_pack_rows(const kf_weight *weight, uint8_t *to) {
    if (!kf_block_quantised(weight->type)) {
        const uint64_t bytes = source_row_bytes(weight);
        for (int64_t n = 0; n < weight->rows && bytes; n++, to += bytes)
            memcpy(to, (const char *)weight->data + n * weight->row_bytes, (size_t)bytes);
        return;
    }
    const int64_t octet_bytes = kf_octet_bytes(weight->type, KF_OCTET, weight->cols);
    for (int64_t row = 0; row < weight->rows; row += KF_OCTET, to += octet_bytes)
        pack_octet(weight, row, (int)kf_min64(KF_OCTET, weight->rows - row), to);
}

kf_status kf_cuda_pack_weight(const kf_context *context, const kf_weight *weight, void *destination, size_t bytes,
                              kf_weight *packed) {
    (void)context, (void)bytes; // the caller has checked the size
    const kf_fragments_header header = {.magic = MAGIC,
                                        .version = KF_FRAGMENTS_VERSION,
                                        .type = weight->type,
                                        .rows = weight->rows,
                                        .cols = weight->cols,
                                        .bytes = packed_bytes(weight)};
    if (weight->device.type != KF_DEVICE_CPU)
        return kf_fail(KF_UNSUPPORTED,
                       "pack_weight: the weight is on device type %d; it is packed in the host's memory",
                       (int)weight->device.type);
    memcpy(destination, &header, sizeof header);
    kf_cuda_pack_rows(weight, (uint8_t *)destination + sizeof header);
    *packed = *weight;
    packed->packed = KF_FRAGMENTS_LAYOUT;
    packed->data = destination;
    packed->bytes = (size_t)header.bytes;
    packed->row_bytes = 0;
    return KF_OK;
}
