// SPDX-License-Identifier: Apache-2.0
//
// The prefill kernel of src/cuda/prefill.cuh alone, in bf16 and dense, with a function that a study can call: variants.py compiles
// it against copies of src/ in which one refinement is taken back.
#include "cuda/prefill.cuh"

#ifdef LINEAGE_SERIAL // one block a head, which takes its tiles of queries one after another
#define GRID(a) ((a).lists)
#else
#define GRID(a) ((a).lists * (a).tiles)
#endif

template <class P> static cudaError_t launch(kf_cuda_attention a, cudaStream_t stream) {
    a.tiles = (a.rows + P::TILE - 1) / P::TILE;
    cudaError_t error =
        cudaFuncSetAttribute(kf_prefill_kernel<P>, cudaFuncAttributeMaxDynamicSharedMemorySize, P::SHARED);
    if (error != cudaSuccess) return error;
    kf_prefill_kernel<P><<<GRID(a), P::THREADS, P::SHARED, stream>>>(a);
    return cudaGetLastError();
}

// q, o [B, H, N, D], k, v [B, Hkv, N, D]; section: lists of rows that run side by side, as attention.c's plan has it.
extern "C" int lineage_run(const void *q, const void *k, const void *v, void *o, int B, int H, int Hkv, int N, int D,
                           int causal, int section, void *stream) {
    kf_cuda_attention a = {};
    a.q = (const char *)q, a.k = (const char *)k, a.v = (const char *)v, a.o = (char *)o;
    const int64_t rows[3] = {(int64_t)H * N * D, (int64_t)N * D, D}, keys[3] = {(int64_t)Hkv * N * D, (int64_t)N * D, D};
    for (int i = 0; i < 3; i++)
        a.q_stride[i] = a.o_stride[i] = rows[i], a.k_stride[i] = a.v_stride[i] = keys[i];
    a.o_type = KF_BF16_TYPE;
    a.H = H, a.Hkv = Hkv, a.Nq = a.Nk = N, a.D = a.Dv = D;
    a.heads = 1, a.rows = N, a.lists = B * H, a.sequence_lists = H, a.kv_lists = H / Hkv;
    a.section = section, a.split = INT32_MAX, a.splits = a.cluster = 1, a.aligned = 1;
    a.window_left = a.window_right = INT64_MAX;
    if (causal) a.window_right = 0;
    a.scale = rsqrtf((float)D), a.unit = 1.0f;
    using for_64 = kf_prefill<__nv_bfloat16, 64, 64, 128, 128, 4, 2, false>;
    using for_128 = kf_prefill<__nv_bfloat16, 128, 128, 128, 64, 4, 2, false>;
    return (int)(D == 64 ? launch<for_64>(a, (cudaStream_t)stream) : launch<for_128>(a, (cudaStream_t)stream));
}
