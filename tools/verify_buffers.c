// SPDX-License-Identifier: Apache-2.0
//
// Tensors for `keyfold verify`: where they lie, what they are filled with, and what must not have changed after a run (verify.h).
#define _DEFAULT_SOURCE // MAP_ANONYMOUS, MAP_NORESERVE
#include "verify.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const uint16_t POISON = 0xFFA5; // a NaN as fp16 and bf16, twice as fp32; unlike the NaNs that arithmetic makes
enum { GUARD_BYTES = 512 };            // more than the longest vector, eight times over

// ------------------------------------------------------------------------------------------------------------ random

// SplitMix64 (Steele, Lea and Flood, 2014): the state of the n-th number is the first one's and n steps.
static const uint64_t RANDOM_STEP = 0x9E3779B97F4A7C15u;

uint64_t verify_random(uint64_t *state) {
    uint64_t z = *state += RANDOM_STEP;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

int64_t verify_random_between(uint64_t *state, int64_t low, int64_t high) {
    return low + (int64_t)(verify_random(state) % (uint64_t)(high - low + 1));
}

// The sum of four uniform numbers of 16 bits: near enough to a normal one, and fast.
double verify_random_normal(uint64_t *state) {
    const uint64_t z = verify_random(state);
    const double sum =
        (double)(z & 0xFFFF) + (double)(z >> 16 & 0xFFFF) + (double)(z >> 32 & 0xFFFF) + (double)(z >> 48);
    return (sum / 65535 - 2) * 1.7320508075688772; // variance of the sum: 4/12
}

// ------------------------------------------------------------------------------------------------------------ making

static size_t page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

// Maps a region with room for `bytes` and a guard zone between two pages without access; returns where the bytes begin.
static unsigned char *map_region(verify_buffer *buffer, size_t bytes, bool flush_to_end) {
    const size_t page = page_bytes();
    buffer->region_bytes = (bytes + GUARD_BYTES + page - 1) / page * page;
    buffer->map_bytes = buffer->region_bytes + 2 * page;
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (buffer->sparse ? MAP_NORESERVE : 0);
    void *map = mmap(NULL, buffer->map_bytes, PROT_NONE, flags, -1, 0);
    if (map == MAP_FAILED) return NULL;
    buffer->map = map;
    buffer->region = buffer->map + page;
    if (mprotect(buffer->region, buffer->region_bytes, PROT_READ | PROT_WRITE) != 0) return NULL;
    for (size_t i = 0; !buffer->sparse && i + 2 <= buffer->region_bytes; i += 2) memcpy(buffer->region + i, &POISON, 2);
    return flush_to_end ? buffer->region + buffer->region_bytes - bytes : buffer->region;
}

static verify_buffer *next_buffer(verify_pool *pool, const char *name, unsigned role) {
    if (pool->count == VERIFY_MAX_BUFFERS) {
        pool->exhausted = true;
        return NULL;
    }
    verify_buffer *buffer = &pool->buffer[pool->count++];
    *buffer = (verify_buffer){.name = name, .role = role};
    return buffer;
}

kf_tensor *verify_tensor_strided(verify_pool *pool, const char *name, unsigned role, kf_dtype dtype, int ndim,
                                 const int64_t *shape, const int64_t *strides, bool sparse) {
    verify_buffer *buffer = next_buffer(pool, name, role);
    if (!buffer) return NULL;
    int64_t low = 0, high = 0; // of the offsets that elements lie at
    bool empty = false;
    for (int a = 0; a < ndim; a++) {
        buffer->shape[a] = shape[a];
        buffer->strides[a] = strides[a];
        empty = empty || shape[a] == 0;
        if (strides[a] < 0)
            low += (shape[a] - 1) * strides[a];
        else
            high += (shape[a] - 1) * strides[a];
    }
    if (empty) low = high = 0;
    const int64_t element = ref_dtype_bytes(dtype);
    const size_t bytes = empty ? 0 : (size_t)((high - low + 1) * element);
    buffer->sparse = sparse;
    unsigned char *data = map_region(buffer, bytes, verify_random(&pool->random) & 1);
    if (!data) {
        pool->exhausted = true;
        return NULL;
    }
    // Part of the way to the first element goes into byte_offset.
    const size_t first = (size_t)(-low * element);
    const size_t split = first / 2 / (size_t)element * (size_t)element;
    buffer->tensor =
        (kf_tensor){.data = data + first - split, .device = {KF_DEVICE_CPU, 0}, .ndim = ndim, .dtype = dtype};
    buffer->tensor.shape = buffer->shape;
    buffer->tensor.strides = buffer->strides;
    buffer->tensor.byte_offset = split;
    return &buffer->tensor;
}

// Strides for `order`, the dimensions from the slowest to the fastest one, with `gap` elements left after each.
static void strides_in_order(verify_pool *pool, int ndim, const int64_t *shape, const int *order, bool gaps,
                             int64_t *strides) {
    int64_t stride = 1;
    for (int a = ndim - 1; a >= 0; a--) {
        strides[order[a]] = stride;
        stride *= shape[order[a]] > 0 ? shape[order[a]] : 1;
        if (gaps) stride += verify_random_between(&pool->random, 1, 9);
    }
}

kf_tensor *verify_tensor(verify_pool *pool, const char *name, unsigned role, kf_dtype dtype, verify_layout layout,
                         int ndim, const int64_t *shape) {
    const bool output = role & VERIFY_OUTPUT;
    int order[KF_MAX_NDIM] = {0, 1, 2, 3, 4, 5};
    int64_t strides[KF_MAX_NDIM] = {0};
    if (layout == VERIFY_SWAPPED && ndim >= 3) order[ndim - 3] = ndim - 2, order[ndim - 2] = ndim - 3;
    for (int a = ndim - 2; layout == VERIFY_SHUFFLED && a > 0; a--) {
        const int other = (int)verify_random_between(&pool->random, 0, a), kept = order[a];
        order[a] = order[other], order[other] = kept;
    }
    strides_in_order(pool, ndim, shape, order, layout != VERIFY_COMPACT && layout != VERIFY_SWAPPED, strides);
    for (int a = 0; a < ndim - 1 && !output; a++) {
        if (layout == VERIFY_NEGATIVE || (layout == VERIFY_SHUFFLED && verify_random(&pool->random) & 1))
            strides[a] = -strides[a];
        if (layout == VERIFY_SHARED && a < 2) strides[a] = 0;
    }
    return verify_tensor_strided(pool, name, role, dtype, ndim, shape, strides, false);
}

unsigned char *verify_bytes(verify_pool *pool, const char *name, size_t bytes) {
    const int64_t shape[1] = {(int64_t)bytes};
    kf_tensor *tensor = verify_tensor(pool, name, VERIFY_INPUT, (kf_dtype)KF_BOOL, VERIFY_COMPACT, 1, shape);
    return tensor ? (unsigned char *)tensor->data + tensor->byte_offset : NULL;
}

void verify_pool_free_mirrors(verify_pool *pool) {
    for (int i = 0; i < pool->count; i++) {
        if (pool->device && !pool->buffer[i].in_arena) kf_memory_free(pool->device, pool->buffer[i].mirror);
        pool->buffer[i].mirror = NULL;
        pool->buffer[i].in_arena = false;
    }
    if (pool->device) kf_memory_free(pool->device, pool->arena);
    free(pool->staging);
    pool->arena = pool->staging = NULL;
    pool->arena_bytes = 0;
}

void verify_pool_close(verify_pool *pool) {
    verify_pool_free_mirrors(pool);
    for (int i = 0; i < pool->count; i++) {
        if (pool->buffer[i].map) munmap(pool->buffer[i].map, pool->buffer[i].map_bytes);
        free(pool->buffer[i].before);
        free(pool->buffer[i].first);
    }
    pool->count = 0;
}

// ----------------------------------------------------------------------------------------------------------- filling

// The value of each element in row-major order, of one random number each.
typedef struct filling {
    kf_tensor *tensor;
    double (*value)(uint64_t *random, double a, double b);
    double a, b;
    uint64_t random; // the state before the first element
} filling;

static bool fill_rows(void *argument, int64_t first, int64_t count) {
    const filling *f = argument;
    kf_tensor *tensor = f->tensor;
    int64_t index[KF_MAX_NDIM] = {0};
    const int64_t n = tensor->ndim ? tensor->shape[tensor->ndim - 1] : 1, bytes = ref_dtype_bytes(tensor->dtype);
    uint64_t random = f->random + (uint64_t)(first * n) * RANDOM_STEP;
    for (int64_t r = first; r < first + count; r++) {
        ref_unravel(tensor, r * n, index);
        char *address = ref_address(tensor, index);
        for (int64_t c = 0; c < n; c++, address += bytes)
            ref_encode(tensor->dtype, f->value(&random, f->a, f->b), address);
    }
    return true;
}

enum { ELEMENTS_A_THREAD = 1 << 16 }; // fewer are not worth another thread

static void fill(verify_pool *pool, filling f) {
    if (!f.tensor) return;
    const int64_t all = ref_elements(f.tensor), n = f.tensor->ndim ? f.tensor->shape[f.tensor->ndim - 1] : 1;
    const int64_t most = all / ELEMENTS_A_THREAD + 1;
    f.random = pool->random;
    verify_parallel(pool->threads < most ? pool->threads : (int)most, n ? all / n : 0, fill_rows, &f);
    pool->random += (uint64_t)all * RANDOM_STEP;
}

static double normal_value(uint64_t *random, double deviation, double unused) {
    (void)unused;
    return deviation * verify_random_normal(random);
}

static double uniform_value(uint64_t *random, double low, double high) {
    return low + (high - low) * (double)(verify_random(random) >> 11) * 0x1p-53;
}

static double same_value(uint64_t *random, double value, double unused) {
    (void)random, (void)unused;
    return value;
}

void verify_fill_normal(verify_pool *pool, kf_tensor *tensor, double deviation) {
    fill(pool, (filling){tensor, normal_value, deviation, 0, 0});
}
void verify_fill_uniform(verify_pool *pool, kf_tensor *tensor, double low, double high) {
    fill(pool, (filling){tensor, uniform_value, low, high, 0});
}
void verify_fill_value(kf_tensor *tensor, double value) {
    filling f = {tensor, same_value, value, 0, 0};
    const int64_t n = tensor && tensor->ndim ? tensor->shape[tensor->ndim - 1] : 1;
    if (tensor && n) fill_rows(&f, 0, ref_elements(tensor) / n);
}

void verify_set(kf_tensor *tensor, const int64_t *index, double value) {
    ref_encode(tensor->dtype, value, ref_address(tensor, index));
}

void verify_set_row(kf_tensor *tensor, int64_t row, double value) {
    int64_t index[KF_MAX_NDIM] = {0};
    const int last = tensor->ndim - 1;
    if (!tensor->shape[last]) return;
    ref_unravel(tensor, row * tensor->shape[last], index);
    for (index[last] = 0; index[last] < tensor->shape[last]; index[last]++) verify_set(tensor, index, value);
}

// ---------------------------------------------------------------------------------------------------------- checking

static unsigned char *copy_of(const verify_buffer *buffer, bool *failed) {
    unsigned char *copy = malloc(buffer->region_bytes);
    if (copy)
        memcpy(copy, buffer->region, buffer->region_bytes);
    else
        *failed = true;
    return copy;
}

void verify_pool_snapshot(verify_pool *pool) {
    for (int i = 0; i < pool->count; i++) {
        verify_buffer *buffer = &pool->buffer[i];
        free(buffer->before);
        buffer->before = buffer->sparse ? NULL : copy_of(buffer, &pool->exhausted);
    }
}

void verify_pool_keep_first(verify_pool *pool) {
    for (int i = 0; i < pool->count; i++) {
        verify_buffer *buffer = &pool->buffer[i];
        free(buffer->first);
        const bool kept = buffer->role & VERIFY_OUTPUT && !buffer->sparse;
        buffer->first = kept ? copy_of(buffer, &pool->exhausted) : NULL;
    }
}

void verify_pool_restore(verify_pool *pool) {
    for (int i = 0; i < pool->count; i++) {
        verify_buffer *buffer = &pool->buffer[i];
        if (buffer->before && buffer->role & VERIFY_OUTPUT)
            memcpy(buffer->region, buffer->before, buffer->region_bytes);
    }
}

// Whether anything but the elements of an output differs from the snapshot: the elements are put into a copy of the snapshot first.
static bool gaps_changed(const verify_buffer *buffer) {
    unsigned char *expected = malloc(buffer->region_bytes);
    if (!expected) return false;
    memcpy(expected, buffer->before, buffer->region_bytes);
    const kf_tensor *tensor = &buffer->tensor;
    const int64_t n = tensor->ndim ? tensor->shape[tensor->ndim - 1] : 1, rows = n ? ref_elements(tensor) / n : 0;
    int64_t index[KF_MAX_NDIM] = {0};
    for (int64_t r = 0; r < rows; r++) {
        ref_unravel(tensor, r * n, index);
        const unsigned char *row = ref_address(tensor, index);
        memcpy(expected + (row - buffer->region), row, (size_t)(n * ref_dtype_bytes(tensor->dtype)));
    }
    const bool changed = memcmp(expected, buffer->region, buffer->region_bytes) != 0;
    free(expected);
    return changed;
}

const verify_buffer *verify_pool_damage(const verify_pool *pool, const char **what) {
    for (int i = 0; i < pool->count; i++) {
        const verify_buffer *buffer = &pool->buffer[i];
        if (!buffer->before) continue;
        *what = buffer->role & VERIFY_OUTPUT ? "guard zone or gap" : "input";
        const bool same = memcmp(buffer->before, buffer->region, buffer->region_bytes) == 0;
        if (!same && (!(buffer->role & VERIFY_OUTPUT) || gaps_changed(buffer))) return buffer;
    }
    return NULL;
}

const verify_buffer *verify_pool_differs(const verify_pool *pool) {
    for (int i = 0; i < pool->count; i++) {
        const verify_buffer *buffer = &pool->buffer[i];
        if (buffer->first && memcmp(buffer->first, buffer->region, buffer->region_bytes) != 0) return buffer;
    }
    return NULL;
}

const verify_buffer *verify_pool_changed(const verify_pool *pool) {
    for (int i = 0; i < pool->count; i++) {
        const verify_buffer *buffer = &pool->buffer[i];
        if (buffer->before && memcmp(buffer->before, buffer->region, buffer->region_bytes) != 0) return buffer;
    }
    return NULL;
}

int64_t verify_unwritten(const kf_tensor *tensor) {
    const uint16_t poison[2] = {POISON, POISON};
    const int64_t n = tensor->ndim ? tensor->shape[tensor->ndim - 1] : 1, rows = n ? ref_elements(tensor) / n : 0;
    const size_t bytes = (size_t)ref_dtype_bytes(tensor->dtype);
    int64_t index[KF_MAX_NDIM] = {0};
    for (int64_t r = 0; r < rows; r++) {
        ref_unravel(tensor, r * n, index);
        const char *address = ref_address(tensor, index);
        for (int64_t c = 0; c < n; c++) {
            if (memcmp(address + (size_t)c * bytes, poison, bytes) == 0) return r * n + c;
        }
    }
    return -1;
}
