// SPDX-License-Identifier: Apache-2.0
//
// Weights for `keyfold verify`: random bytes are valid blocks of every type of GGUF, but for the fp16 scales, which could be infinite;
// those are drawn from the sizes that models have.
#include "verify.h"

const verify_weight_type VERIFY_WEIGHTS[VERIFY_WEIGHT_TYPES] = {
    {KF_WEIGHT_F32, "f32", 1, 4, {-1, -1}},        {KF_WEIGHT_F16, "f16", 1, 2, {-1, -1}},
    {KF_WEIGHT_BF16, "bf16", 1, 2, {-1, -1}},      {KF_WEIGHT_Q4_0, "q4_0", 32, 18, {0, -1}},
    {KF_WEIGHT_Q4_1, "q4_1", 32, 20, {0, 2}},      {KF_WEIGHT_Q5_0, "q5_0", 32, 22, {0, -1}},
    {KF_WEIGHT_Q5_1, "q5_1", 32, 24, {0, 2}},      {KF_WEIGHT_Q8_0, "q8_0", 32, 34, {0, -1}},
    {KF_WEIGHT_Q4_K, "q4_k", 256, 144, {0, 2}},    {KF_WEIGHT_Q5_K, "q5_k", 256, 176, {0, 2}},
    {KF_WEIGHT_Q6_K, "q6_k", 256, 210, {208, -1}},
};

// Dense values: a row's product with a normal x has a deviation of about 1 for 256 columns.
static const double DENSE_DEVIATION = 0.0625;
static const double SCALE_DEVIATION = 0.02;

static void fill_dense(verify_pool *pool, kf_dtype dtype, unsigned char *row, int64_t cols) {
    const int64_t bytes = ref_dtype_bytes(dtype);
    for (int64_t c = 0; c < cols; c++)
        ref_encode(dtype, DENSE_DEVIATION * verify_random_normal(&pool->random), row + c * bytes);
}

static void fill_blocks(verify_pool *pool, const verify_weight_type *type, unsigned char *row, int64_t cols) {
    for (int64_t block = 0; block < cols / type->values; block++, row += type->bytes) {
        for (int i = 0; i < type->bytes; i++) row[i] = (unsigned char)(verify_random(&pool->random) >> 32);
        for (int s = 0; s < 2; s++) {
            if (type->scales[s] < 0) continue;
            ref_encode((kf_dtype)KF_FP16, SCALE_DEVIATION * verify_random_normal(&pool->random), row + type->scales[s]);
        }
    }
}

bool verify_weight(verify_pool *pool, const verify_weight_type *type, int64_t rows, int64_t cols, int64_t row_gap,
                   kf_weight *weight) {
    const int64_t compact = cols / type->values * type->bytes, row_bytes = compact + row_gap;
    const size_t bytes = rows ? (size_t)((rows - 1) * row_bytes + compact) : 0;
    unsigned char *data = verify_bytes(pool, "weight", bytes);
    if (!data) return false;
    const kf_dtype dtype = type->type == KF_WEIGHT_F32   ? (kf_dtype)KF_FP32
                           : type->type == KF_WEIGHT_F16 ? (kf_dtype)KF_FP16
                                                         : (kf_dtype)KF_BF16;
    for (int64_t r = 0; r < rows; r++) {
        if (type->values == 1)
            fill_dense(pool, dtype, data + r * row_bytes, cols);
        else
            fill_blocks(pool, type, data + r * row_bytes, cols);
    }
    *weight = (kf_weight){.type = type->type,
                          .rows = rows,
                          .cols = cols,
                          .data = data,
                          .bytes = bytes,
                          .row_bytes = row_gap ? row_bytes : 0};
    weight->device.type = KF_DEVICE_CPU;
    return true;
}
