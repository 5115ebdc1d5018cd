// SPDX-License-Identifier: Apache-2.0
//
// Many rows of x over dense weights of x's type by cuBLASLt, where it is found: y[t, n] = sum_k x[t, k] w[n, k] + bias[n].
//
// The library is looked for when such a product is first planned, and never again; nothing links it. Whatever fails here, the answer is "no",
// and the tile kernel does the work. It sees matrices by columns: W is K x N, transposed; x is K x T; y is N x T. Sums in fp32, without
// TF32; sums that several blocks share meet in the workspace in a fixed order, so equal calls give equal bits.
//
// A plan keeps the algorithm that was chosen, which is plain data. A run builds the descriptors on its stack: it allocates nothing.
// Called by linear.c.
#include "cuda/linear_lt.h"

#if __has_include(<cublasLt.h>)
#pragma GCC diagnostic push // the toolkit's headers are not written for these
#pragma GCC diagnostic ignored "-Wundef"
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#include <cublasLt.h>
#pragma GCC diagnostic pop
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

enum {
    MOST_DEVICES = 64,
    ALIGNMENT = 16,            // of every address and row, in bytes
    MOST_WORKSPACE = 32 << 20, // what cuBLAS itself takes on Hopper by default
    WORKSPACE_ALIGNMENT = 256  // what an allocation of the device has
};
kf_static_assert(sizeof(cublasLtMatmulAlgo_t) <= sizeof((kf_cuda_lt *)0)->algorithm, "the plan holds the algorithm");

// The functions used, by the header's own types.
#define FUNCTIONS(F)                                                                                                   \
    F(cublasLtCreate)                                                                                                  \
    F(cublasLtMatmulDescInit_internal)                                                                                 \
    F(cublasLtMatmulDescSetAttribute)                                                                                  \
    F(cublasLtMatrixLayoutInit_internal)                                                                               \
    F(cublasLtMatmulPreferenceInit_internal)                                                                           \
    F(cublasLtMatmulPreferenceSetAttribute)                                                                            \
    F(cublasLtMatmulAlgoGetHeuristic)                                                                                  \
    F(cublasLtMatmul)

static struct {
#define MEMBER(name) __typeof__(name) *name;
    FUNCTIONS(MEMBER)
#undef MEMBER
    pthread_mutex_t lock; // of what stands here while a product is planned; a run only reads its own handle
    bool tried, found;
    cublasLtHandle_t handle[MOST_DEVICES]; // for the process's life: threads share them
} lt = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool find_library(void) {
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
    void *library = NULL;
    for (size_t n = 0; n < sizeof names / sizeof *names && !library; n++) library = dlopen(names[n], RTLD_NOW);
    if (!library) return false;
#define FIND(name)                                                                                                     \
    lt.name = (__typeof__(name) *)dlsym(library, #name);                                                               \
    if (!lt.name) return false;
    FUNCTIONS(FIND)
#undef FIND
    return true;
}

// The device's handle, or NULL.
static cublasLtHandle_t handle_of(int device) {
    if (device < 0 || device >= MOST_DEVICES) return NULL;
    pthread_mutex_lock(&lt.lock);
    if (!lt.tried) lt.found = find_library();
    lt.tried = true;
    if (lt.found && !lt.handle[device] && lt.cublasLtCreate(&lt.handle[device]) != CUBLAS_STATUS_SUCCESS)
        lt.handle[device] = NULL;
    cublasLtHandle_t handle = lt.found ? lt.handle[device] : NULL;
    pthread_mutex_unlock(&lt.lock);
    return handle;
}

typedef struct description {
    cublasLtMatmulDescOpaque_t product;
    cublasLtMatrixLayoutOpaque_t w, x, y;
} description;

static bool type_of(int type, cudaDataType_t *out) {
    *out = type == KF_TYPE_F32 ? CUDA_R_32F : type == KF_TYPE_F16 ? CUDA_R_16F : CUDA_R_16BF;
    return type == KF_TYPE_F32 || type == KF_TYPE_F16 || type == KF_TYPE_BF16;
}

static bool set(description *d, cublasLtMatmulDescAttributes_t attribute, const void *value, size_t bytes) {
    return lt.cublasLtMatmulDescSetAttribute(&d->product, attribute, value, bytes) == CUBLAS_STATUS_SUCCESS;
}

static bool layout(cublasLtMatrixLayoutOpaque_t *m, cudaDataType_t type, int64_t rows, int64_t columns,
                   int64_t stride) {
    return lt.cublasLtMatrixLayoutInit_internal(m, sizeof *m, type, (uint64_t)rows, (uint64_t)columns, stride) ==
           CUBLAS_STATUS_SUCCESS;
}

static bool describe(const kf_cuda_lt_product *p, description *d) {
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const cublasLtEpilogue_t epilogue = p->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    cudaDataType_t of_x, of_y;
    return type_of(p->x_type, &of_x) && type_of(p->y_type, &of_y) &&
           lt.cublasLtMatmulDescInit_internal(&d->product, sizeof d->product, CUBLAS_COMPUTE_32F, CUDA_R_32F) ==
               CUBLAS_STATUS_SUCCESS &&
           set(d, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed) &&
           set(d, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue) &&
           (!p->bias || set(d, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias, sizeof p->bias)) &&
           layout(&d->w, of_x, p->K, p->N, p->w_stride) && layout(&d->x, of_x, p->K, p->T, p->x_stride) &&
           layout(&d->y, of_y, p->N, p->T, p->y_stride);
}

static bool prefer(cublasLtMatmulPreferenceOpaque_t *preference, cublasLtMatmulPreferenceAttributes_t attribute,
                   const void *value, size_t bytes) {
    return lt.cublasLtMatmulPreferenceSetAttribute(preference, attribute, value, bytes) == CUBLAS_STATUS_SUCCESS;
}

static bool choose(cublasLtHandle_t handle, const kf_cuda_lt_product *p, kf_cuda_lt *out) {
    static const cublasLtMatmulPreferenceAttributes_t aligned[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    description d;
    cublasLtMatmulPreferenceOpaque_t preference;
    cublasLtMatmulHeuristicResult_t result;
    const uint64_t workspace = MOST_WORKSPACE;
    const uint32_t alignment = ALIGNMENT, reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    int found = 0;
    if (!describe(p, &d) ||
        lt.cublasLtMatmulPreferenceInit_internal(&preference, sizeof preference) != CUBLAS_STATUS_SUCCESS ||
        !prefer(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace) ||
        !prefer(&preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction, sizeof reduction))
        return false;
    for (size_t i = 0; i < sizeof aligned / sizeof *aligned; i++)
        if (!prefer(&preference, aligned[i], &alignment, sizeof alignment)) return false;
    if (lt.cublasLtMatmulAlgoGetHeuristic(handle, &d.product, &d.w, &d.x, &d.y, &d.y, &preference, 1, &result,
                                          &found) != CUBLAS_STATUS_SUCCESS ||
        found < 1 || result.state != CUBLAS_STATUS_SUCCESS)
        return false;
    memcpy(out->algorithm, &result.algo, sizeof result.algo);
    out->workspace = (int64_t)result.workspaceSize;
    out->found = true;
    return true;
}

static bool is_aligned(const void *address, int64_t stride, int64_t type) {
    return (uintptr_t)address % ALIGNMENT == 0 && stride * kf_type_size((int)type) % ALIGNMENT == 0;
}

bool kf_cuda_lt_fits(const kf_cuda_lt_product *p) {
    return p->x_type == p->w_type && (p->y_type == p->x_type || p->y_type == KF_TYPE_F32) &&
           (!p->bias || (p->bias_type == p->y_type && (uintptr_t)p->bias % ALIGNMENT == 0)) &&
           is_aligned(p->w, p->w_stride, p->w_type) && is_aligned(p->x, p->x_stride, p->x_type) &&
           is_aligned(p->y, p->y_stride, p->y_type) && p->x_stride >= p->K && p->y_stride >= p->N && p->K > 0;
}

int64_t kf_cuda_lt_workspace(const kf_cuda_lt *plan) { return plan->workspace + WORKSPACE_ALIGNMENT; }

bool kf_cuda_lt_plan(const kf_cuda_device *device, const kf_cuda_lt_product *p, kf_cuda_lt *out) {
    if (!kf_cuda_lt_fits(p)) return false;
    // Loading a library's kernels is not a stream's work and may happen while a stream of this thread is captured.
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    if (cudaThreadExchangeStreamCaptureMode(&mode) != cudaSuccess) return false;
    cublasLtHandle_t handle = handle_of(device->id);
    const bool good = handle && choose(handle, p, out);
    cudaThreadExchangeStreamCaptureMode(&mode);
    cudaGetLastError(); // what may have failed in there is not the caller's
    return good;
}

kf_status kf_cuda_lt_run(const kf_cuda_device *device, const kf_cuda_lt_product *p, const kf_cuda_lt *plan,
                         char *workspace) {
    const float one = 1, zero = 0;
    description d;
    cublasLtMatmulAlgo_t algorithm;
    memcpy(&algorithm, plan->algorithm, sizeof algorithm);
    workspace += -(uintptr_t)workspace % WORKSPACE_ALIGNMENT;
    if (!describe(p, &d)) return kf_fail(KF_DEVICE_ERROR, "linear: cuBLASLt refuses the product it was planned for");
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    KF_TRY(kf_cuda_check(cudaThreadExchangeStreamCaptureMode(&mode), "linear: launch"));
    const cublasStatus_t status =
        lt.cublasLtMatmul(lt.handle[device->id], &d.product, &one, p->w, &d.w, p->x, &d.x, &zero, p->y, &d.y, p->y,
                          &d.y, &algorithm, workspace, (size_t)plan->workspace, kf_cuda_stream(device));
    cudaThreadExchangeStreamCaptureMode(&mode);
    if (status == CUBLAS_STATUS_SUCCESS) return KF_OK;
    cudaGetLastError();
    return kf_fail(KF_DEVICE_ERROR, "linear: cublasLtMatmul failed with status %d", (int)status);
}

#else

// A toolkit without cuBLASLt's header: our own kernel does the work.
bool kf_cuda_lt_fits(const kf_cuda_lt_product *p) { return p && false; }
int64_t kf_cuda_lt_workspace(const kf_cuda_lt *plan) { return plan->workspace; }
bool kf_cuda_lt_plan(const kf_cuda_device *device, const kf_cuda_lt_product *p, kf_cuda_lt *out) {
    (void)device, (void)p, (void)out;
    return false;
}
kf_status kf_cuda_lt_run(const kf_cuda_device *device, const kf_cuda_lt_product *p, const kf_cuda_lt *plan,
                         char *workspace) {
    (void)device, (void)p, (void)plan, (void)workspace;
    return kf_fail(KF_UNSUPPORTED, "linear: built without cuBLASLt");
}

#endif
