// SPDX-License-Identifier: Apache-2.0
//
// Packing of weights for the CPU's linear layer: rows of GGUF blocks, or dense rows, into panels of 16 interleaved rows (linear.h draws
// them). It moves bits and changes no value, so a packed weight gives the bits that the unpacked one gives. Reads and writes each byte
// once; called at load time, and by the linear layer for weights that come unpacked and for the last rows % 16 rows.
#include "cpu/linear.h"

#include <string.h>

// -------------------------------------------------------------------------------------------------------------- header

static const uint32_t PACKED_MAGIC = 0x5057464bu; // "KFWP" in memory
enum { PACKED_VERSION = 1 };

typedef struct packed_header {
    uint32_t magic, version;
    int32_t isa, type;
    int64_t rows, cols;
    uint64_t bytes;
    uint64_t check; // of the fields before it
    uint64_t zero[2];
} packed_header;
kf_static_assert(sizeof(packed_header) == KF_PACKED_HEADER_BYTES, "panels stay aligned to cache lines");

// FNV-1a (Fowler, Noll, Vo): enough to tell a header from other bytes.
static uint64_t header_check(const packed_header *header) {
    const unsigned char *bytes = (const unsigned char *)header;
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < offsetof(packed_header, check); i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u; // NOLINT: the fields have no gaps, every byte is set
    return hash;
}

static int64_t source_row_bytes(int type, int64_t K) { return K / kf_block_values(type) * kf_block_bytes(type); }

static uint64_t packed_bytes(const kf_weight *weight) {
    int64_t panels = weight->rows / KF_PANEL_ROWS, rest = weight->rows % KF_PANEL_ROWS;
    return (uint64_t)KF_PACKED_HEADER_BYTES + (uint64_t)panels * (uint64_t)kf_panel_bytes(weight->type, weight->cols) +
           (uint64_t)rest * (uint64_t)source_row_bytes(weight->type, weight->cols);
}

kf_status kf_packed_check(const kf_context *context, const kf_weight *weight) {
    packed_header header;
    if (weight->bytes < sizeof header)
        return kf_fail(KF_INVALID_ARGUMENT, "linear: the packed weight has %zu bytes; its header alone has %zu",
                       weight->bytes, sizeof header);
    memcpy(&header, weight->data, sizeof header);
    if (header.magic != PACKED_MAGIC || header.check != header_check(&header))
        return kf_fail(KF_INVALID_ARGUMENT,
                       "linear: the packed weight does not begin with the header that kf_pack_weight writes");
    if (header.version != PACKED_VERSION)
        return kf_fail(KF_INVALID_ARGUMENT, "linear: the weight was packed in layout %u; this version reads %d",
                       header.version, PACKED_VERSION);
    if (header.isa != context->info.isa)
        return kf_fail(KF_INVALID_ARGUMENT, "linear: the weight was packed for %s; this context runs %s",
                       kf_isa_string(header.isa), kf_isa_string(context->info.isa));
    if (header.type != weight->type || header.rows != weight->rows || header.cols != weight->cols)
        return kf_fail(KF_INVALID_ARGUMENT,
                       "linear: the weight is said to be %s [%lld, %lld] and was packed as %s [%lld, %lld]",
                       kf_weight_type_string(weight->type), (long long)weight->rows, (long long)weight->cols,
                       kf_weight_type_string(header.type), (long long)header.rows, (long long)header.cols);
    if (header.bytes != packed_bytes(weight) || weight->bytes < header.bytes)
        return kf_fail(KF_INVALID_ARGUMENT, "linear: the packed weight has %zu bytes; %llu are needed", weight->bytes,
                       (unsigned long long)packed_bytes(weight));
    return KF_OK;
}

// --------------------------------------------------------------------------------------------------------- dense panels

static void pack_f32(const char *rows, int64_t row_bytes, int64_t count, int64_t K, char *panel) {
    for (int64_t k = 0; k < K; k++)
        for (int64_t r = 0; r < count; r++)
            memcpy(panel + (k * KF_PANEL_ROWS + r) * 4, rows + r * row_bytes + k * 4, 4);
}

static void pack_f16(const char *rows, int64_t row_bytes, int64_t count, int64_t K, char *panel) {
    for (int64_t k = 0; k < K; k++)
        for (int64_t r = 0; r < count; r++)
            memcpy(panel + (k * KF_PANEL_ROWS + r) * 2, rows + r * row_bytes + k * 2, 2);
}

static void pack_bf16(const char *rows, int64_t row_bytes, int64_t count, int64_t K, char *panel) {
    for (int64_t k = 0; k < K; k += 2) {
        int64_t bytes = k + 1 < K ? 4 : 2;
        for (int64_t r = 0; r < count; r++)
            memcpy(panel + k * KF_PANEL_ROWS * 2 + r * bytes, rows + r * row_bytes + k * 2, (size_t)bytes);
    }
}

// ----------------------------------------------------------------------------------------------------- quantised panels

static uint32_t read32(const uint8_t *p) {
    uint32_t word;
    memcpy(&word, p, 4);
    return word;
}

static void write32(char *p, uint32_t word) { memcpy(p, &word, 4); }

// The codes of 32 values of row r. Four codes, a byte each, are handled as one word.
static void pack_codes(int type, const uint8_t *code, int r, char *high, char *low) {
    const int bits = kf_block_code_bits(type);
    const uint32_t nibble = 0x0f0f0f0fu, one = 0x01010101u, two = 0x03030303u;
    if (bits == 8) {
        for (int g = 0; g < 8; g++) write32(low + (g * KF_PANEL_ROWS + r) * 4, read32(code + 4 * g));
        return;
    }
    for (int j = 0; j < 4; j++)
        write32(low + (j * KF_PANEL_ROWS + r) * 4, (read32(code + 8 * j) & nibble) | (read32(code + 8 * j + 4) & nibble)
                                                                                         << 4);
    if (bits == 5) {
        uint32_t word = 0;
        for (int g = 0; g < 8; g++) word |= (read32(code + 4 * g) >> 4 & one) << g;
        write32(high + r * 4, word);
    }
    if (bits == 6) {
        for (int j = 0; j < 2; j++) {
            uint32_t word = 0;
            for (int g = 0; g < 4; g++) word |= (read32(code + 16 * j + 4 * g) >> 4 & two) << 2 * g;
            write32(high + (j * KF_PANEL_ROWS + r) * 4, word);
        }
    }
}

static void pack_scales(int type, const kf_unit *u, const uint8_t *block, int r, char *unit) {
    if (type == KF_WEIGHT_Q6_K) {
        memcpy(unit + u->d + 2 * r, block + 208, 2);
        for (int j = 0; j < 16; j++) unit[u->scale + j * KF_PANEL_ROWS + r] = (char)block[192 + j];
        return;
    }
    memcpy(unit + u->d + 2 * r, block, 2);
    if (kf_block_affine(type)) memcpy(unit + u->m + 2 * r, block + 2, 2);
    if (!kf_block_is_k(type)) return;
    for (int j = 0; j < 8; j++) {
        uint8_t scale, minimum;
        kf_block_k_scale(block, j, &scale, &minimum);
        unit[u->scale + j * KF_PANEL_ROWS + r] = (char)scale;
        unit[u->minimum + j * KF_PANEL_ROWS + r] = (char)minimum;
    }
}

static void pack_quantised(int type, const char *rows, int64_t row_bytes, int64_t count, int64_t K, char *panel) {
    const kf_unit u = kf_unit_of(type);
    const int block_bytes = kf_block_bytes(type);
    for (int64_t b = 0; b < K / u.values; b++) {
        char *unit = panel + b * u.bytes;
        for (int r = 0; r < (int)count; r++) {
            uint8_t code[KF_BLOCK_MAX];
            const uint8_t *block = (const uint8_t *)rows + r * row_bytes + b * block_bytes;
            kf_block_codes(type, block, code);
            pack_scales(type, &u, block, r, unit);
            for (int s = 0; s < u.values / KF_BLOCK_SMALL; s++)
                pack_codes(type, code + KF_BLOCK_SMALL * s, r, unit + u.high + s * u.high_step,
                           unit + u.low + s * u.low_step);
        }
    }
}

void kf_pack_panel(int type, const char *rows, int64_t row_bytes, int64_t count, int64_t K, char *panel) {
    if (K == 0) return;
    if (count < KF_PANEL_ROWS) memset(panel, 0, (size_t)kf_panel_bytes(type, K));
    if (type == KF_WEIGHT_F32)
        pack_f32(rows, row_bytes, count, K, panel);
    else if (type == KF_WEIGHT_F16)
        pack_f16(rows, row_bytes, count, K, panel);
    else if (type == KF_WEIGHT_BF16)
        pack_bf16(rows, row_bytes, count, K, panel);
    else
        pack_quantised(type, rows, row_bytes, count, K, panel);
}

// -------------------------------------------------------------------------------------------------------------- weights

kf_status kf_cpu_pack_weight_size(const kf_context *context, const kf_weight *weight, size_t *bytes) {
    (void)context;
    if (weight->cols > KF_LINEAR_MAX_K)
        return kf_fail(KF_INVALID_ARGUMENT, "pack_weight: the weight has %lld columns; at most 2^48 are allowed",
                       (long long)weight->cols);
    *bytes = (size_t)packed_bytes(weight);
    return KF_OK;
}

kf_status kf_cpu_pack_weight(const kf_context *context, const kf_weight *weight, void *destination, size_t bytes,
                             kf_weight *packed) {
    (void)bytes; // the caller has checked it against the size
    const int64_t panel_bytes = kf_panel_bytes(weight->type, weight->cols),
                  row_bytes = source_row_bytes(weight->type, weight->cols);
    packed_header header = {.magic = PACKED_MAGIC,
                            .version = PACKED_VERSION,
                            .isa = context->info.isa,
                            .type = weight->type,
                            .rows = weight->rows,
                            .cols = weight->cols,
                            .bytes = packed_bytes(weight)};
    header.check = header_check(&header);
    memcpy(destination, &header, sizeof header);
    char *to = (char *)destination + sizeof header;
    const char *from = weight->data;
    int64_t row = 0;
    for (; row + KF_PANEL_ROWS <= weight->rows; row += KF_PANEL_ROWS, to += panel_bytes)
        kf_pack_panel(weight->type, from + row * weight->row_bytes, weight->row_bytes, KF_PANEL_ROWS, weight->cols, to);
    for (; row < weight->rows && row_bytes; row++, to += row_bytes)
        memcpy(to, from + row * weight->row_bytes, (size_t)row_bytes);
    *packed = *weight;
    packed->packed = 1;
    packed->data = destination;
    packed->bytes = (size_t)header.bytes;
    packed->row_bytes = 0;
    return KF_OK;
}
