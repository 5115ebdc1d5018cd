// SPDX-License-Identifier: Apache-2.0
//
// The rate of dense bf16 products: D = A^T B of 8192 x 8192 matrices of random numbers, fp32 sums, through cuBLASLt. The library is looked for
// when it's asked for (LD_LIBRARY_PATH says where else); nothing links it, and where it is absent there's no such ceiling.
#include "cuda_ceilings.h"

#include <dlfcn.h>
#include <stdlib.h>

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#include <cuda_runtime_api.h>

enum { SIZE = 8192, WORKSPACE_BYTES = 64 << 20 };

// The functions used, by the header's own types.
#define FUNCTIONS(F)                                                                                                   \
    F(cublasLtCreate)                                                                                                  \
    F(cublasLtDestroy)                                                                                                 \
    F(cublasLtMatmulDescCreate)                                                                                        \
    F(cublasLtMatmulDescSetAttribute)                                                                                  \
    F(cublasLtMatmulDescDestroy)                                                                                       \
    F(cublasLtMatrixLayoutCreate)                                                                                      \
    F(cublasLtMatrixLayoutDestroy)                                                                                     \
    F(cublasLtMatmulPreferenceCreate)                                                                                  \
    F(cublasLtMatmulPreferenceSetAttribute)                                                                            \
    F(cublasLtMatmulPreferenceDestroy)                                                                                 \
    F(cublasLtMatmulAlgoGetHeuristic)                                                                                  \
    F(cublasLtMatmul)

struct kft_cuda_product {
#define MEMBER(name) __typeof__(name) *name;
    FUNCTIONS(MEMBER)
#undef MEMBER
    cudaStream_t stream;
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t layout; // of all three
    cublasLtMatmulHeuristicResult_t chosen;
    const char *a, *b;
    void *d, *workspace;
};

static bool load(kft_cuda_product *p) {
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11",
                                        "libcublasLt.so"};
    static void *library; // for the process: to load it and its kernels takes a second
    for (size_t n = 0; n < sizeof names / sizeof *names && !library; n++) library = dlopen(names[n], RTLD_NOW);
    if (!library) return false;
#define FIND(name)                                                                                                     \
    p->name = (__typeof__(name) *)dlsym(library, #name);                                                               \
    if (!p->name) return false;
    FUNCTIONS(FIND)
#undef FIND
    return true;
}

static bool choose(kft_cuda_product *p) {
    cublasLtMatmulPreference_t preference = NULL;
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const size_t workspace = WORKSPACE_BYTES;
    int found = 0;
    bool good = p->cublasLtCreate(&p->handle) == CUBLAS_STATUS_SUCCESS &&
                p->cublasLtMatmulDescCreate(&p->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
                p->cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                                  sizeof transposed) == CUBLAS_STATUS_SUCCESS &&
                p->cublasLtMatrixLayoutCreate(&p->layout, CUDA_R_16BF, SIZE, SIZE, SIZE) == CUBLAS_STATUS_SUCCESS &&
                p->cublasLtMatmulPreferenceCreate(&preference) == CUBLAS_STATUS_SUCCESS &&
                p->cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                        &workspace, sizeof workspace) == CUBLAS_STATUS_SUCCESS &&
                p->cublasLtMatmulAlgoGetHeuristic(p->handle, p->operation, p->layout, p->layout, p->layout, p->layout,
                                                  preference, 1, &p->chosen, &found) == CUBLAS_STATUS_SUCCESS;
    if (preference) p->cublasLtMatmulPreferenceDestroy(preference);
    return good && found == 1;
}

kft_cuda_product *kft_cuda_product_open(void *stream, const void *random, size_t bytes) {
    const size_t matrix = (size_t)SIZE * SIZE * 2;
    kft_cuda_product *p = bytes >= 2 * matrix ? calloc(1, sizeof *p) : NULL;
    if (!p) return NULL;
    p->stream = (cudaStream_t)stream;
    p->a = random, p->b = p->a + matrix;
    if (load(p) && choose(p) && cudaMalloc(&p->d, matrix) == cudaSuccess &&
        cudaMalloc(&p->workspace, WORKSPACE_BYTES) == cudaSuccess && kft_cuda_product_enqueue(p) &&
        cudaStreamSynchronize(p->stream) == cudaSuccess)
        return p;
    cudaGetLastError();
    kft_cuda_product_close(p);
    return NULL;
}

void kft_cuda_product_close(kft_cuda_product *p) {
    if (!p) return;
    if (p->layout) p->cublasLtMatrixLayoutDestroy(p->layout);
    if (p->operation) p->cublasLtMatmulDescDestroy(p->operation);
    if (p->handle) p->cublasLtDestroy(p->handle);
    cudaFree(p->d);
    cudaFree(p->workspace);
    free(p);
}

double kft_cuda_product_operations(void) { return 2.0 * SIZE * SIZE * SIZE; }

bool kft_cuda_product_enqueue(void *product) {
    kft_cuda_product *p = product;
    const float one = 1, zero = 0;
    return p->cublasLtMatmul(p->handle, p->operation, &one, p->a, p->layout, p->b, p->layout, &zero, p->d, p->layout,
                             p->d, p->layout, &p->chosen.algo, p->workspace, WORKSPACE_BYTES,
                             p->stream) == CUBLAS_STATUS_SUCCESS;
}

#else

// A toolkit without cuBLASLt's header: there is no such ceiling.
kft_cuda_product *kft_cuda_product_open(void *stream, const void *random, size_t bytes) {
    (void)stream, (void)random, (void)bytes;
    return NULL;
}
void kft_cuda_product_close(kft_cuda_product *product) { (void)product; }
double kft_cuda_product_operations(void) { return 0; }
bool kft_cuda_product_enqueue(void *product) { return product && false; }

#endif
