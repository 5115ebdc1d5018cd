// SPDX-License-Identifier: Apache-2.0
//
// A planned operation: args -> problem -> plan, and binding. Running it is run.c's.
#include "core/op.h"
#include "core/overlap.h"
#include "core/parse.h"

#include <string.h>

static _Atomic uint64_t bindings;

uint64_t kf_bindings(void) { return atomic_load_explicit(&bindings, memory_order_relaxed); }

// A struct of any size that was published is copied into one of the newest size; what is missing is zero, which means
// "off".
typedef union args_copy {
    kf_args head;
    kf_softmax_args softmax;
    kf_attention_args attention;
    kf_merge_states_args merge_states;
    kf_rmsnorm_args rmsnorm;
    kf_swiglu_args swiglu;
    kf_rope_args rope;
    kf_kv_append_args kv_append;
    kf_embedding_args embedding;
    kf_linear_args linear;
} args_copy;

// Largest struct that a caller from the future may hand in; it bounds what is read.
enum { LARGEST_ARGS = 1 << 16 };

static kf_status copy_args(const kf_args *args, args_copy *copy, const kf_op_class **class) {
    if (!args) return kf_fail(KF_INVALID_ARGUMENT, "args is NULL");
    if (args->kind <= KF_OP_NONE || args->kind >= KF_OP_COUNT)
        return kf_fail(KF_INVALID_ARGUMENT, "args: kind is %u; was the struct's init function called?", args->kind);
    *class = kf_op_classes[args->kind];
    const uint32_t *size = (*class)->sizes;
    uint32_t newest = 0;
    bool published = false;
    for (; *size; size++) {
        newest = *size;
        published |= args->size == newest;
    }
    if (!published && (args->size <= newest || args->size > LARGEST_ARGS))
        return kf_fail(KF_INVALID_ARGUMENT, "%s: the args struct's size is %u; published: up to %u", (*class)->name,
                       args->size, newest);
    for (uint32_t i = newest; i < args->size; i++)
        if (((const char *)args)[i])
            return kf_fail(
                KF_UNSUPPORTED,
                "%s: the args struct has %u bytes and an option after byte %u is set; this version knows %u bytes",
                (*class)->name, args->size, i, newest);
    memset(copy, 0, sizeof *copy);
    memcpy(copy, args, args->size < newest ? args->size : newest);
    return KF_OK;
}

static kf_status check_device(const kf_context *context, const char *op, const char *name, kf_device device) {
    // Pinned host memory (DLPack's 3) is memory of the CPU.
    int32_t type = device.type == 3 ? KF_DEVICE_CPU : device.type;
    if (type == context->info.device.type && (type == KF_DEVICE_CPU || device.id == context->info.device.id))
        return KF_OK;
    return kf_fail(KF_INVALID_ARGUMENT, "%s: %s is on device (%d, %d); the context is on (%d, %d)", op, name,
                   (int)device.type, (int)device.id, (int)context->info.device.type, (int)context->info.device.id);
}

// A GPU faults at an address that is no multiple of what is loaded there, and the process loses it with that.
static kf_status check_alignment(const kf_context *context, const char *op, const char *name, const kf_view *view) {
    const int size = (int)kf_type_size(view->type);
    if (context->info.device.type == KF_DEVICE_CPU || (uintptr_t)view->data % (uintptr_t)size == 0) return KF_OK;
    return kf_fail(KF_INVALID_ARGUMENT, "%s: %s is at %p; on this device it must be aligned to an element, %d bytes",
                   op, name, (void *)view->data, size);
}

static bool has_data(const kf_view *view) { return kf_present(view) && view->data && kf_view_elements(view) > 0; }

static kf_status check_pair(const kf_op_class *class, const kf_view *views, int out, int other) {
    const kf_view *a = &views[out], *b = &views[other];
    if (kf_view_disjoint(a, b)) return KF_OK;
    bool other_is_output = class->outputs >> other & 1;
    if (!other_is_output && class->may_alias >> out & 1 && kf_view_same(a, b)) return KF_OK;
    return kf_fail(KF_INVALID_ARGUMENT, "%s: %s overlaps %s%s", class->name, class->view_names[out],
                   class->view_names[other],
                   !other_is_output && class->may_alias >> out & 1 ? "; it may only be exactly the same tensor"
                                                                   : "; they must be apart");
}

static kf_status check_weight_overlap(const kf_op_class *class, const kf_view *view, const char *name,
                                      const kf_weight *weight) {
    uintptr_t first, end, data = (uintptr_t)weight->data;
    kf_view_extent(view, &first, &end);
    if (!weight->data || end <= data || data + weight->bytes <= first) return KF_OK;
    return kf_fail(KF_INVALID_ARGUMENT, "%s: %s overlaps the weight; they must be apart", class->name, name);
}

static const kf_weight *weight_of(const kf_op_class *class, const kf_problem *problem) {
    return class->weight_offset ? (const kf_weight *)((const char *)problem + class->weight_offset) : NULL;
}

static kf_status check_tensors(const kf_context *context, const kf_op_class *class, const kf_problem *problem) {
    const kf_view *views = (const kf_view *)problem;
    const kf_weight *weight = weight_of(class, problem);
    if (weight) KF_TRY(check_device(context, class->name, "the weight", weight->device));
    for (int i = 0; class->view_names[i]; i++) {
        if (!kf_present(&views[i])) continue;
        KF_TRY(check_device(context, class->name, class->view_names[i], views[i].device));
        KF_TRY(check_alignment(context, class->name, class->view_names[i], &views[i]));
        if (!(class->outputs >> i & 1) || !has_data(&views[i])) continue;
        if (weight) KF_TRY(check_weight_overlap(class, &views[i], class->view_names[i], weight));
        for (int j = 0; class->view_names[j]; j++)
            if (j != i && has_data(&views[j])) KF_TRY(check_pair(class, views, i, j));
    }
    return KF_OK;
}

static kf_status make_problem(const kf_context *context, const kf_args *args, kf_op_kind *kind, kf_problem *problem) {
    args_copy copy;
    const kf_op_class *class = NULL;
    KF_TRY(copy_args(args, &copy, &class));
    *kind = (kf_op_kind)args->kind;
    memset(problem, 0, sizeof *problem);
    KF_TRY(class->parse(&copy, problem));
    return check_tensors(context, class, problem);
}

kf_status kf_op_init(kf_op *op, const kf_context *context, const kf_args *args) {
    if (!context) return kf_fail(KF_INVALID_ARGUMENT, "context is NULL");
    memset(&op->plan, 0, sizeof op->plan);
    op->context = context;
    op->bound = 0;
    KF_TRY(make_problem(context, args, &op->kind, &op->problem));
    op->backend = context->backend->ops[op->kind];
    if (!op->backend)
        return kf_fail(KF_UNSUPPORTED, "%s: the %s backend does not have it", kf_op_kind_string(op->kind),
                       context->backend->name);
    return op->backend->plan(op);
}

kf_status kf_op_create(const kf_context *context, const kf_args *args, kf_op **op) {
    if (!op) return kf_fail(KF_INVALID_ARGUMENT, "op_create: op is NULL");
    *op = NULL;
    kf_op *made = kf_alloc(sizeof *made);
    if (!made) return kf_fail(KF_OUT_OF_MEMORY, "op_create: no memory for %zu bytes", sizeof *made);
    kf_status status = kf_op_init(made, context, args);
    if (status == KF_OK)
        *op = made;
    else
        kf_free(made);
    return status;
}

void kf_op_destroy(kf_op *op) { kf_free(op); }

static kf_status compare_views(const kf_op_class *class, const kf_view *planned, const kf_view *bound) {
    for (int i = 0; class->view_names[i]; i++) {
        const char *name = class->view_names[i];
        const kf_view *a = &planned[i], *b = &bound[i];
        if (a->type != b->type)
            return kf_fail(KF_INVALID_ARGUMENT, "%s: %s is %s; it was planned as %s", class->name, name,
                           kf_type_name(b->type), kf_type_name(a->type));
        if (kf_present(a)) KF_TRY(kf_parse_shape(class->name, name, b, a->ndim, a->shape));
    }
    return KF_OK;
}

static kf_status compare_weights(const kf_op_class *class, const kf_weight *a, const kf_weight *b) {
    if (!a || (a->type == b->type && !a->packed == !b->packed && a->rows == b->rows && a->cols == b->cols &&
               a->row_bytes == b->row_bytes))
        return KF_OK;
    return kf_fail(KF_INVALID_ARGUMENT, "%s: the weight is %s [%lld, %lld]%s; it was planned as %s [%lld, %lld]%s",
                   class->name, kf_weight_type_string(b->type), (long long)b->rows, (long long)b->cols,
                   b->packed ? " packed" : "", kf_weight_type_string(a->type), (long long)a->rows, (long long)a->cols,
                   a->packed ? " packed" : "");
}

kf_status kf_op_bind(kf_op *op, const kf_args *args) {
    if (!op) return kf_fail(KF_INVALID_ARGUMENT, "op_bind: op is NULL");
    if (!args) return kf_fail(KF_INVALID_ARGUMENT, "op_bind: args is NULL");
    const kf_op_class *class = kf_op_classes[op->kind];
    if (args->kind != (uint32_t)op->kind)
        return kf_fail(KF_INVALID_ARGUMENT, "op_bind: args are of kind %s; the op is %s",
                       kf_op_kind_string((int)args->kind), class->name);
    kf_op_kind kind;
    kf_problem problem;
    KF_TRY(make_problem(op->context, args, &kind, &problem));
    KF_TRY(compare_views(class, (const kf_view *)&op->problem, (const kf_view *)&problem));
    KF_TRY(compare_weights(class, weight_of(class, &op->problem), weight_of(class, &problem)));
    if (memcmp((const char *)&op->problem + class->options_offset, (const char *)&problem + class->options_offset,
               class->options_size) != 0)
        return kf_fail(KF_INVALID_ARGUMENT, "%s: an option differs from the planned one; plan a new op", class->name);
    op->problem = problem;
    op->bound = atomic_fetch_add_explicit(&bindings, 1, memory_order_relaxed) + 1;
    return KF_OK;
}

kf_status kf_op_check_bound(const kf_op *op) {
    const kf_op_class *class = kf_op_classes[op->kind];
    const kf_view *views = (const kf_view *)&op->problem;
    const kf_weight *weight = weight_of(class, &op->problem);
    for (int i = 0; class->view_names[i]; i++)
        if (kf_present(&views[i]) && !views[i].data && kf_view_elements(&views[i]) > 0)
            return kf_fail(KF_INVALID_ARGUMENT, "%s: %s has no data (NULL)", class->name, class->view_names[i]);
    if (weight && !weight->data && weight->rows > 0 && weight->cols > 0)
        return kf_fail(KF_INVALID_ARGUMENT, "%s: the weight has no data (NULL)", class->name);
    return KF_OK;
}
