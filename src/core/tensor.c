// SPDX-License-Identifier: Apache-2.0
//
// From kf_tensor (the caller's, unchecked) to kf_view (ours, checked), and the questions about views: which bytes they
// cover, whether two of them overlap. Every product of sizes is checked here, once, so that no kernel has to.
#include "core/internal.h"

#include <string.h>

const char *kf_type_name(int type) {
    static const char *const names[] = {"none", "fp32", "fp16", "bf16", "int32", "int64", "bool"};
    return type >= 0 && type < (int)(sizeof names / sizeof *names) ? names[type] : "unknown";
}

static int type_of(kf_dtype dtype) {
    if (dtype.lanes != 1) return KF_TYPE_NONE;
    switch (dtype.code * 256 + dtype.bits) {
    case KF_CODE_FLOAT * 256 + 32: return KF_TYPE_F32;
    case KF_CODE_FLOAT * 256 + 16: return KF_TYPE_F16;
    case KF_CODE_BFLOAT * 256 + 16: return KF_TYPE_BF16;
    case KF_CODE_INT * 256 + 32: return KF_TYPE_I32;
    case KF_CODE_INT * 256 + 64: return KF_TYPE_I64;
    case KF_CODE_BOOL * 256 + 8: return KF_TYPE_BOOL;
    }
    return KF_TYPE_NONE;
}

int64_t kf_view_elements(const kf_view *view) {
    int64_t elements = 1;
    for (int i = 0; i < view->ndim; i++) elements *= view->shape[i];
    return elements;
}

int64_t kf_view_int(const kf_view *view, int64_t i) {
    const char *at = view->data + i * view->stride[0] * kf_type_size(view->type);
    if (view->type == KF_TYPE_I64) {
        int64_t value;
        memcpy(&value, at, sizeof value);
        return value;
    }
    int32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

int64_t kf_view_int2(const kf_view *view, int64_t i, int64_t j) {
    kf_view row = *view;
    row.data += i * view->stride[0] * kf_type_size(view->type);
    row.stride[0] = view->stride[1];
    return kf_view_int(&row, j);
}

char *kf_view_row(const kf_view *view, int inner, int64_t row) {
    int64_t offset = 0;
    for (int i = view->ndim - inner - 1; i >= 0; i--) {
        offset += row % view->shape[i] * view->stride[i];
        row /= view->shape[i];
    }
    return view->data + offset * kf_type_size(view->type);
}

// Fills shape and strides; refuses what does not fit 63 bits of bytes.
static kf_status fill_dimensions(const char *op, const char *name, const kf_tensor *t, kf_view *view) {
    int64_t elements = 1, reach = 0, compact = 1, limit = INT64_MAX / 16;
    for (int i = t->ndim - 1; i >= 0; i--) {
        int64_t n = t->shape[i], stride = t->strides ? t->strides[i] : compact;
        if (n < 0)
            return kf_fail(KF_INVALID_ARGUMENT, "%s: %s has size %lld in dimension %d; sizes are 0 or more", op, name,
                           (long long)n, i);
        if (__builtin_mul_overflow(compact, n ? n : 1, &compact) || compact > limit)
            return kf_fail(KF_INVALID_ARGUMENT, "%s: the sizes of %s multiply to more than 2^63 bytes", op, name);
        elements *= n;
        int64_t part = 0;
        if (n > 1 && (stride == INT64_MIN || __builtin_mul_overflow(kf_absolute(stride), n - 1, &part) ||
                      __builtin_add_overflow(reach, part, &reach) || reach > limit))
            return kf_fail(KF_INVALID_ARGUMENT, "%s: the strides of %s reach past 2^63 bytes", op, name);
        view->shape[i] = n;
        view->stride[i] = n > 1 ? stride : 0;
    }
    int last = t->ndim - 1;
    if (elements > 0 && last >= 0 && view->shape[last] > 1 && view->stride[last] != 1)
        return kf_fail(KF_INVALID_ARGUMENT, "%s: the last stride of %s is %lld; it must be 1", op, name,
                       (long long)view->stride[last]);
    return KF_OK;
}

kf_status kf_parse_tensor(const char *op, const char *name, const kf_tensor *t, uint32_t allowed, kf_view *view) {
    memset(view, 0, sizeof *view);
    if (!t) return kf_fail(KF_INVALID_ARGUMENT, "%s: %s is NULL; a tensor is required", op, name);
    if (t->ndim < 0 || t->ndim > KF_MAX_NDIM)
        return kf_fail(KF_INVALID_ARGUMENT, "%s: %s has %d dimensions; 0 to %d are allowed", op, name, (int)t->ndim,
                       KF_MAX_NDIM);
    if (t->ndim > 0 && !t->shape) return kf_fail(KF_INVALID_ARGUMENT, "%s: the shape of %s is NULL", op, name);
    int type = type_of(t->dtype);
    if (type == KF_TYPE_NONE || !(allowed & KF_ALLOW(type))) {
        char list[64] = "";
        for (int i = KF_TYPE_F32; i <= KF_TYPE_BOOL; i++)
            if (allowed & KF_ALLOW(i)) strcat(strcat(list, list[0] ? ", " : ""), kf_type_name(i));
        if (type != KF_TYPE_NONE)
            return kf_fail(KF_UNSUPPORTED, "%s: %s is %s; allowed: %s", op, name, kf_type_name(type), list);
        return kf_fail(KF_UNSUPPORTED, "%s: %s has DLPack dtype (code %d, bits %d, lanes %d); allowed: %s", op, name,
                       t->dtype.code, t->dtype.bits, t->dtype.lanes, list);
    }
    view->type = type;
    view->ndim = t->ndim;
    view->device = t->device;
    KF_TRY(fill_dimensions(op, name, t, view));
    view->data = t->data ? (char *)t->data + t->byte_offset : NULL;
    return KF_OK;
}

kf_status kf_parse_optional(const char *op, const char *name, const kf_tensor *t, uint32_t allowed, kf_view *view) {
    if (t) return kf_parse_tensor(op, name, t, allowed, view);
    memset(view, 0, sizeof *view);
    return KF_OK;
}

// Dimensions of more than one element, by ascending |stride|.
static int sorted_dimensions(const kf_view *view, int order[KF_MAX_NDIM]) {
    int count = 0;
    for (int i = view->ndim - 1; i >= 0; i--) {
        if (view->shape[i] <= 1) continue;
        int at = count++;
        for (; at > 0 && kf_absolute(view->stride[order[at - 1]]) > kf_absolute(view->stride[i]); at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    return count;
}

kf_status kf_parse_output(const char *op, const char *name, const kf_tensor *t, uint32_t allowed, kf_view *view) {
    KF_TRY(kf_parse_tensor(op, name, t, allowed, view));
    if (kf_view_elements(view) == 0) return KF_OK;
    int order[KF_MAX_NDIM], count = sorted_dimensions(view, order);
    int64_t span = 0; // largest offset reached by the dimensions so far
    for (int i = 0; i < count; i++) {
        int64_t stride = kf_absolute(view->stride[order[i]]);
        if (stride <= span)
            return kf_fail(KF_INVALID_ARGUMENT,
                           "%s: %s overlaps itself (stride %lld in dimension %d); outputs must not", op, name,
                           (long long)view->stride[order[i]], order[i]);
        span += stride * (view->shape[order[i]] - 1);
    }
    return KF_OK;
}

static void describe_shape(const int64_t *shape, int ndim, char text[96]) {
    size_t length = 0;
    text[length++] = '[';
    for (int i = 0; i < ndim && length < 70; i++) {
        char digits[24];
        int n = 0;
        int64_t rest = shape[i];
        if (i) text[length++] = ',', text[length++] = ' ';
        if (rest < 0) {
            text[length++] = '*';
            continue;
        }
        do digits[n++] = (char)('0' + rest % 10), rest /= 10;
        while (rest);
        while (n) text[length++] = digits[--n];
    }
    text[length++] = ']';
    text[length] = 0;
}

kf_status kf_parse_shape(const char *op, const char *name, const kf_view *view, int ndim, const int64_t *shape) {
    if (!kf_present(view)) return KF_OK;
    bool same = view->ndim == ndim;
    for (int i = 0; same && i < ndim; i++) same = shape[i] < 0 || view->shape[i] == shape[i];
    if (same) return KF_OK;
    char is[96], expected[96];
    describe_shape(view->shape, view->ndim, is);
    describe_shape(shape, ndim, expected);
    return kf_fail(KF_INVALID_ARGUMENT, "%s: %s has shape %s; expected %s", op, name, is, expected);
}
