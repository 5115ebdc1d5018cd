// SPDX-License-Identifier: Apache-2.0
/*
 * keyfold: attention, and the fused operations around it, behind one C header.
 *
 * Softmax attention over any set of keys J is a state (m, d, o):
 *
 *     m = max_J s_j      d = sum_J exp(s_j - m)      o = sum_J exp(s_j - m) v_j
 *
 * States merge in any order; the output is o / d and the log-sum-exp m + ln d (Milakov & Gimelshein, arXiv 1805.02867; Dao et al.,
 * arXiv 2205.14135). keyfold is that fold over keys, and RMSNorm, SwiGLU, RoPE, KV-cache append, embedding and linear layers.
 *
 * Three ways to use every operation:
 *
 *   1. one call                kf_attention(ctx, &args)
 *   2. plan once, run often    kf_op_create, kf_op_workspace_size, kf_op_run; kf_op_bind puts other tensors of the same shape
 *                              in; a run allocates nothing
 *   3. your own threads        kf_op_run_items(op, workspace, size, worker, phase, first, count)
 *
 * and a kf_sequence runs many operations in a row on one team of threads.
 *
 * Conventions that hold everywhere
 *   - Tensors have DLPack's layout. Strides are in elements and may be anything for inputs (zero and negative too) but the last
 *     one, which is 1 (or the last dimension has at most one element). Outputs must not overlap themselves. Dimensions of size 0 are
 *     valid. Data need be aligned to one element only (on CUDA any other address is refused). NULL strides mean compact row-major.
 *   - "float" dtypes below are fp32, fp16 and bf16. Sums are fp32 or wider. "integer" means int32 or int64.
 *   - An output may alias an input only where the call says so.
 *   - Parameter structs begin with kf_args, filled by the struct's init function, which sets every option to "off" or to its default.
 *     Structs of any published size are accepted, a larger one only if its unknown tail is zero.
 *   - Errors: a status is returned and kf_last_error() holds a sentence that names the argument, its value and what is allowed.
 *     Nothing is written to outputs when a call is refused. The library never prints, exits or aborts.
 *   - The same build, ISA and arguments give the same bits at any number of threads.
 *   - Thread-safety: a kf_context is immutable and may be shared; a kf_op or kf_sequence is used by one thread at a time, except
 *     that kf_op_run_items may be called from several. Where a context's team of threads is busy with another caller, the second
 *     caller does its own work alone.
 */
/* The comments beside the members are laid out by hand. */
/* clang-format off */
#ifndef KEYFOLD_H
#define KEYFOLD_H

#include <float.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define KF_API
#elif defined(KF_BUILDING)
#define KF_API __attribute__((visibility("default")))
#else
#define KF_API
#endif

#define KF_VERSION_MAJOR 0
#define KF_VERSION_MINOR 1
#define KF_VERSION_PATCH 0

/* ------------------------------------------------------------------------------------------------------------- status */

typedef enum kf_status {
    KF_OK = 0,
    KF_INVALID_ARGUMENT = 1, /* the call can never be right: shapes disagree, a null pointer, a value out of range */
    KF_UNSUPPORTED = 2,      /* the call makes sense, this build, device or version cannot do it */
    KF_OUT_OF_MEMORY = 3,    /* an allocation failed; nothing was lost */
    KF_NO_DEVICE = 4,        /* the device asked for is not there */
    KF_DEVICE_ERROR = 5      /* the device's driver reported an error */
} kf_status;

/* The status's name, such as "KF_INVALID_ARGUMENT". Never NULL. Thread-safe. */
KF_API const char *kf_status_string(kf_status status);

/* The sentence for the last call of this thread that did not return KF_OK, or "". Valid until this thread's next failing call. */
KF_API const char *kf_last_error(void);

/* "MAJOR.MINOR.PATCH". Thread-safe. */
KF_API const char *kf_version_string(void);

/* ------------------------------------------------------------------------------------------------------------ tensors */

/* Device types and dtype codes are DLPack's. */
enum { KF_DEVICE_CPU = 1, KF_DEVICE_CUDA = 2 };
enum { KF_CODE_INT = 0, KF_CODE_UINT = 1, KF_CODE_FLOAT = 2, KF_CODE_BFLOAT = 4, KF_CODE_BOOL = 6 };

typedef struct kf_device {
    int32_t type;
    int32_t id;
} kf_device;

typedef struct kf_dtype {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes; /* always 1 */
} kf_dtype;

/* The layout of DLPack's DLTensor: a `DLTensor *` may be passed where a `const kf_tensor *` is asked. The library reads shape and
   strides during the call only; data must stay valid while an op is bound to it. */
typedef struct kf_tensor {
    void *data;
    kf_device device;
    int32_t ndim; /* 0 to KF_MAX_NDIM */
    kf_dtype dtype;
    const int64_t *shape;
    const int64_t *strides; /* in elements; NULL: compact row-major */
    uint64_t byte_offset;
} kf_tensor;

enum { KF_MAX_NDIM = 6 };

/* The usual dtypes as initialisers: kf_dtype t = KF_BF16; */
#define KF_DTYPE(code_, bits_) {(uint8_t)(code_), (uint8_t)(bits_), (uint16_t)1}
#define KF_FP32 KF_DTYPE(KF_CODE_FLOAT, 32)
#define KF_FP16 KF_DTYPE(KF_CODE_FLOAT, 16)
#define KF_BF16 KF_DTYPE(KF_CODE_BFLOAT, 16)
#define KF_INT32 KF_DTYPE(KF_CODE_INT, 32)
#define KF_INT64 KF_DTYPE(KF_CODE_INT, 64)
#define KF_BOOL KF_DTYPE(KF_CODE_BOOL, 8)

/* A compact CPU tensor over data. shape must outlive the tensor. */
static inline kf_tensor kf_tensor_cpu(const void *data, kf_dtype dtype, int32_t ndim, const int64_t *shape) {
    kf_tensor t;
    t.data = (void *)(uintptr_t)data;
    t.device.type = KF_DEVICE_CPU;
    t.device.id = 0;
    t.ndim = ndim;
    t.dtype = dtype;
    t.shape = shape;
    t.strides = NULL;
    t.byte_offset = 0;
    return t;
}

/* ------------------------------------------------------------------------------------------------------------ context */

typedef struct kf_context kf_context;

/* Instruction sets of the CPU kernels, each containing those before it. */
typedef enum kf_isa {
    KF_ISA_AUTO = 0, /* the highest that CPUID reports, lowered by the environment variable KEYFOLD_ISA */
    KF_ISA_SCALAR = 1,
    KF_ISA_AVX2 = 2,      /* AVX2, FMA, F16C */
    KF_ISA_AVX512 = 3,    /* AVX-512 F, BW, DQ, VL */
    KF_ISA_AVX512BF16 = 4 /* the same with BF16 and VNNI */
} kf_isa;

/* How kernels are put on a CUDA stream; 0 is the fastest. The others are there to measure what it brings. */
enum {
    KF_LAUNCH_NO_GRAPH = 1u << 0,     /* the operations of a sequence are launched one by one, not as one graph */
    KF_LAUNCH_NO_DEPENDENT = 1u << 1  /* no kernel begins before the one before it has ended (programmatic dependent launch) */
};

typedef struct kf_context_options {
    uint32_t size;      /* sizeof(kf_context_options), set by init */
    int32_t threads;    /* 0: as many as the process may run on; fewer where no more can be made */
    kf_device device;   /* {KF_DEVICE_CPU, 0} by default */
    int32_t isa;        /* kf_isa: the highest one to use; one that the CPU lacks is KF_UNSUPPORTED. On CUDA: 0, or a compute capability
                           times ten (80, 86, 89; 90 on such a device) to whose features and shared memory the kernels are held */
    int32_t fixed_split; /* not 0: split length is one constant, so that a sequence's bits do not depend on the batch either, nor kf_linear's of
                            a row on the number of rows (slower on CUDA past eight rows) */
    void *stream;       /* a cudaStream_t on CUDA; NULL on the CPU */
    uint32_t launch;    /* of the bits KF_LAUNCH_*; 0 on the CPU. A struct that ends before it is accepted */
    uint32_t reserved;  /* 0 */
} kf_context_options;

typedef struct kf_context_info {
    uint32_t size; /* set by the caller to sizeof(kf_context_info) */
    int32_t threads;
    kf_device device;
    int32_t isa;
    int32_t fixed_split;
    char name[64]; /* the device's name */
} kf_context_info;

/* Sets size and the defaults: the CPU, every thread, the highest ISA. NULL is ignored. */
KF_API void kf_context_options_init(kf_context_options *options);

/* Makes a context: the device, its kernels, and on the CPU a team of threads (the caller counts as one of them). options may be NULL.
   Errors: KF_UNSUPPORTED (ISA or device type not in this build or machine), KF_NO_DEVICE, KF_OUT_OF_MEMORY, KF_INVALID_ARGUMENT.
   After fork() the child's first run uses the calling thread alone. */
KF_API kf_status kf_context_create(const kf_context_options *options, kf_context **context);

/* Every op and sequence of the context must be destroyed before. NULL is ignored. */
KF_API void kf_context_destroy(kf_context *context);

/* What the context has: threads that could be made, the ISA in use. Errors: KF_INVALID_ARGUMENT (NULL; a size that was never published).
   Thread-safe. */
KF_API kf_status kf_context_get_info(const kf_context *context, kf_context_info *info);

/* Memory of the context's device, for callers that have no allocator for it. `bytes` of it, not set to anything, aligned to 64 bytes (256
   on CUDA); 0 bytes give a pointer that is not NULL and holds nothing. On the CPU it is the heap's. On CUDA it may be called while a
   stream is captured, and is no part of the graph. Errors: KF_OUT_OF_MEMORY, KF_DEVICE_ERROR, KF_INVALID_ARGUMENT. Thread-safe. */
KF_API kf_status kf_memory_allocate(const kf_context *context, size_t bytes, void **memory);

/* memory: what kf_memory_allocate gave, on this context or another of the same device; NULL is ignored. Nothing that was enqueued may
   still use it. Thread-safe. */
KF_API void kf_memory_free(const kf_context *context, void *memory);

/* Memory of the host that copies from and to the context's device go straight into: pinned on CUDA, elsewhere the heap's. For what is
   copied again and again, such as a step's logits; there is little of it. Else as kf_memory_allocate; freed by kf_memory_free_host. */
KF_API kf_status kf_memory_allocate_host(const kf_context *context, size_t bytes, void **memory);
KF_API void kf_memory_free_host(const kf_context *context, void *memory);

/* Copies `bytes` bytes and returns when they have arrived. Either side may be memory of the host or, on CUDA, of a device: which one, the
   address says. The two must not overlap; of 0 bytes nothing is looked at. In the order of the context's stream: after what was
   enqueued there before. Refused (KF_INVALID_ARGUMENT) while the stream is captured, for it waits. Errors: KF_INVALID_ARGUMENT,
   KF_DEVICE_ERROR. Thread-safe. */
KF_API kf_status kf_memory_copy(const kf_context *context, void *destination, const void *source, size_t bytes);

/* Waits until everything enqueued on the context's stream is done, and reports what went wrong there (KF_DEVICE_ERROR). On the CPU, where
   calls return when they are done, it has nothing to wait for. Refused (KF_INVALID_ARGUMENT) while the stream is captured. Thread-safe. */
KF_API kf_status kf_context_synchronize(const kf_context *context);

/* "scalar", "avx2", "avx512", "avx512bf16"; "auto" for 0; "unknown" otherwise. */
KF_API const char *kf_isa_string(int isa);

/* The highest ISA that this CPU and build have, KEYFOLD_ISA not regarded. */
KF_API kf_isa kf_cpu_isa(void);

/* --------------------------------------------------------------------------------------------------------- operations */

typedef enum kf_op_kind {
    KF_OP_NONE = 0,
    KF_OP_SOFTMAX = 1,
    KF_OP_ATTENTION = 2,
    KF_OP_MERGE_STATES = 3,
    KF_OP_RMSNORM = 4,
    KF_OP_SWIGLU = 5,
    KF_OP_ROPE = 6,
    KF_OP_KV_APPEND = 7,
    KF_OP_EMBEDDING = 8,
    KF_OP_LINEAR = 9,
    KF_OP_COUNT = 10
} kf_op_kind;

/* "softmax", "attention", ...; "unknown" otherwise. */
KF_API const char *kf_op_kind_string(int kind);

/* The head of every parameter struct, set by its init function. */
typedef struct kf_args {
    uint32_t size; /* of the whole struct, in bytes */
    uint32_t kind; /* kf_op_kind */
} kf_args;

/* Rotary position embedding (Su et al., arXiv 2104.09864) of the first `dims` elements of each head. Element pair c of dims/2 turns by
   position * frequency(c), frequency(c) = base^(-2c/dims) after scaling; angles are computed in float64.
     linear   frequency / factor
     llama3   wavelength 2 pi / frequency: above original_context / low_freq_factor: frequency / factor; below original_context /
              high_freq_factor: unchanged; between: blended linearly in original_context / wavelength (Llama 3.1's rule)
     YaRN     (arXiv 2309.00071; the ramp is its authors' code's) index(beta) = dims ln(original_context / (2 pi beta)) / (2 ln base); from
              c = max(floor(index(beta_fast)), 0) to c = min(ceil(index(beta_slow)), dims - 1) linearly from unchanged to
              frequency / factor (a ramp narrower than 0.001 counts as 0.001 wide); cos and sin times attention_factor, 0 meaning
              0.1 ln(factor) + 1 */
enum { KF_ROPE_OFF = 0, KF_ROPE_NEOX = 1 /* pairs (c, c + dims/2) */, KF_ROPE_GPTJ = 2 /* pairs (2c, 2c + 1) */ };
enum { KF_ROPE_SCALING_NONE = 0, KF_ROPE_SCALING_LINEAR = 1, KF_ROPE_SCALING_LLAMA3 = 2, KF_ROPE_SCALING_YARN = 3 };

typedef struct kf_rope_params {
    int32_t pairing; /* KF_ROPE_OFF: no rotation */
    int32_t dims;    /* even, at most D; 0: all D */
    int32_t scaling;
    int32_t reserved; /* 0 */
    double base;      /* 0: 10000 */
    double factor;    /* of linear, llama3 and YaRN; > 0 where used */
    double low_freq_factor;  /* llama3; 0: 1 */
    double high_freq_factor; /* llama3; 0: 4 */
    double original_context; /* llama3 and YaRN; > 0 where used */
    double beta_fast;        /* YaRN; 0: 32 */
    double beta_slow;        /* YaRN; 0: 1 */
    double attention_factor; /* YaRN; 0: 0.1 ln(factor) + 1 */
} kf_rope_params;

/* Softmax over the last axis: y = exp(x - max x) / sum exp(x - max x), the statistics in one pass over x (arXiv 1805.02867).
   A row that is all -inf gives zeros (and lse = -inf); a NaN in a row reaches the whole row; a row with +inf gives NaN. */
typedef struct kf_softmax_args {
    kf_args head;
    const kf_tensor *x;   /* [*, N] float */
    const kf_tensor *y;   /* [*, N] float, any of the float dtypes; may be x itself (same data, shape, strides and dtype) */
    const kf_tensor *lse; /* [*] fp32, optional: ln sum exp(x) */
} kf_softmax_args;

/* Attention: o = softmax(cap(q k^T scale) + alibi + bias, over the visible keys) v.
 *
 * Query row i of sequence b stands at position p = i + key_length[b] - Nq (bottom-right alignment), unless positions are given. Key j
 * is visible to it where all of these hold:
 *     j < key_length[b];   causal: j <= p;   window left: j >= p - window_left;   window right: j <= p + window_right;
 *     the boolean mask is true at (b, h, i, j);   the bias at (b, h, i, j) is not -inf.
 * A row without visible keys gives o = 0 and lse = -inf (with a sink: o = 0, lse = sink).
 *
 * score = q . k * scale; softcap > 0: softcap * tanh(score / softcap); ALiBi (arXiv 2108.12409): score -= slope[h] * |p - j|; then
 * + bias. A sink is one more logit per head that takes part in the softmax and is then dropped (not scaled; natural log).
 * Query head h uses KV head h / (H / Hkv).
 *
 * What the mask hides from a row changes nothing in it, whatever its bits (NaN, inf). NaN in a visible key or in a query reaches
 * exactly the rows that see it. Keys at j >= key_length[b] are never read.
 *
 * On CUDA: lengths and positions stay on the device, so a captured run stays valid as they change; a length out of range is taken as
 * the nearest in range. NaN or infinity in a value that some, but not all, of up to 128 neighbouring rows see, or that lies between
 * keys that they see (a window at positions apart), may reach all of them. */
enum {
    KF_ATTENTION_CAUSAL = 1u << 0,
    KF_ATTENTION_WINDOW_LEFT = 1u << 1,  /* window_left holds */
    KF_ATTENTION_WINDOW_RIGHT = 1u << 2, /* window_right holds */
    KF_ATTENTION_ROPE_Q = 1u << 3,       /* rotate q at load by `rope`, at the positions above */
    KF_ATTENTION_ROPE_K = 1u << 4        /* rotate k at load by `rope`; key j stands at position j */
};

typedef struct kf_attention_args {
    kf_args head;
    const kf_tensor *q;   /* [B, H, Nq, D] float */
    const kf_tensor *k;   /* [B, Hkv, Nk, D] float; H a multiple of Hkv; D a multiple of 8, 8 to 256 */
    const kf_tensor *v;   /* [B, Hkv, Nk, Dv] dtype of k; Dv a multiple of 8, 8 to 256 */
    const kf_tensor *o;   /* [B, H, Nq, Dv] dtype of q, or fp32 */
    const kf_tensor *lse; /* [B, H, Nq] fp32, optional: natural log of the sum of exp(score) */
    const kf_tensor *key_lengths; /* [B] integer, optional, 0 to Nk; read at each run. Absent: Nk */
    const kf_tensor *positions;   /* [B, Nq] integer, optional: p of each query row; read at each run */
    const kf_tensor *alibi_slopes; /* [H] fp32, optional */
    const kf_tensor *sinks;        /* [H] fp32, optional */
    const kf_tensor *bias; /* [B or 1, H or 1, Nq or 1, Nk] float, optional; -inf masks, any other number is a number */
    const kf_tensor *mask; /* [B or 1, H or 1, Nq or 1, Nk] bool, optional; true: visible */
    float scale;   /* 0: 1 / sqrt(D); must be finite */
    float softcap; /* 0: off; must be >= 0 and finite */
    uint32_t flags;
    uint32_t reserved;    /* 0 */
    int64_t window_left;  /* inclusive, >= 0: keys from p - window_left. A window of W tokens as Mistral means it is W - 1 */
    int64_t window_right; /* inclusive, >= 0: keys to p + window_right */
    kf_rope_params rope;  /* used where a ROPE flag is set; positions as above */
    /* Places kept for later: anything but NULL is KF_UNSUPPORTED. */
    const kf_tensor *query_offsets; /* ragged queries */
    const kf_tensor *key_offsets;   /* ragged keys */
    const kf_tensor *page_table;    /* paged keys */
    const kf_tensor *k_scale;       /* scales of 8-bit keys and values */
    const kf_tensor *v_scale;
} kf_attention_args;

/* Merges S partial results over disjoint sets of keys into the result over their union: with L = ln sum_s exp(lse[s]),
   o = sum_s exp(lse[s] - L) o_parts[s] (merge rule of arXiv 1805.02867; FlashDecoding). A part with lse = -inf holds no keys and is
   ignored whatever its o. All parts empty: o = 0, lse = -inf. Order of summation is s = 0, 1, ... */
typedef struct kf_merge_states_args {
    kf_args head;
    const kf_tensor *o_parts;   /* [S, *, Dv] fp32, fp16 or bf16 */
    const kf_tensor *lse_parts; /* [S, *] fp32, natural log */
    const kf_tensor *o;         /* [*, Dv] float */
    const kf_tensor *lse;       /* [*] fp32, optional */
} kf_merge_states_args;

/* RMSNorm (arXiv 1910.07467), with the residual stream's addition where `residual` is given: s = x + residual;
   y = s * rsqrt(mean(s^2) + eps) * (weight_offset + weight). `cast` says where rounding to the tensors' dtype happens, for libraries
   differ:
     KF_CAST_END    fp32 throughout: the unrounded sum is normalised, one rounding at the end (FlashInfer, FlashAttention's layer norm)
     KF_CAST_SUM    the sum is rounded to `sum`'s dtype (x's where sum is absent) and that is normalised; weight in fp32; one rounding
                    at the end (Liger "gemma")
     KF_CAST_LLAMA  as KF_CAST_SUM, and s * rsqrt(...) is rounded to x's dtype before the product with weight, which is rounded again
                    (transformers' LlamaRMSNorm, Liger "llama") */
enum { KF_CAST_END = 0, KF_CAST_SUM = 1, KF_CAST_LLAMA = 2 };

typedef struct kf_rmsnorm_args {
    kf_args head;
    const kf_tensor *x;        /* [*, N] float */
    const kf_tensor *residual; /* [*, N] float, optional */
    const kf_tensor *weight;   /* [N] float, optional (absent: 1); on CUDA read early, like kf_linear's W */
    const kf_tensor *y;        /* [*, N] float; may be x itself */
    const kf_tensor *sum;      /* [*, N] float, optional: s; may be residual itself or, where y is not, x itself */
    float eps;                 /* >= 0, finite; init sets 1e-5 */
    float weight_offset;       /* 0, or 1 for Gemma */
    int32_t cast;
    int32_t reserved; /* 0 */
} kf_rmsnorm_args;

/* SwiGLU (arXiv 2002.05202): y = gate / (1 + exp(-gate)) * up, in fp32, rounded once. Either gate and up, or gate_up whose rows are
   [gate | up]. */
typedef struct kf_swiglu_args {
    kf_args head;
    const kf_tensor *gate;    /* [*, N] float */
    const kf_tensor *up;      /* [*, N] dtype of gate */
    const kf_tensor *gate_up; /* [*, 2N] float, instead of the two */
    const kf_tensor *y;       /* [*, N] float; may be gate or up itself */
} kf_swiglu_args;

/* Rotates x at position p: see kf_rope_params. Elements past rope.dims are copied. */
typedef struct kf_rope_args {
    kf_args head;
    const kf_tensor *x;         /* [B, H, N, D] float, D even */
    const kf_tensor *y;         /* [B, H, N, D] float; may be x itself */
    const kf_tensor *positions; /* [B, N] integer, optional; absent: position_offset + n */
    int64_t position_offset;
    kf_rope_params rope; /* pairing must not be OFF */
} kf_rope_args;

/* Appends N rows to a KV cache: cache[b, h, slot[b] + n] = new[b, h, n], k rotated by `rope` (pairing OFF: not) at position
   slot[b] + n or positions[b, n], converted to the cache's dtype with one rounding. A run whose slots do not fit the cache is refused
   (KF_INVALID_ARGUMENT) before anything is written. On CUDA slots stay on the device: a sequence whose rows do not all fit is left
   out, and nothing is written for it. */
typedef struct kf_kv_append_args {
    kf_args head;
    const kf_tensor *k;       /* [B, Hkv, N, D] float */
    const kf_tensor *v;       /* [B, Hkv, N, Dv] float */
    const kf_tensor *k_cache; /* [B, Hkv, capacity, D] float */
    const kf_tensor *v_cache; /* [B, Hkv, capacity, Dv] float */
    const kf_tensor *slots;     /* [B] integer: the first slot of each sequence; read at each run; absent: 0 */
    const kf_tensor *positions; /* [B, N] integer, optional */
    kf_rope_params rope;
} kf_kv_append_args;

/* Weights: dense rows, or GGUF's blocks (32 or 256 values along K), or the packed form of either, which kf_pack_weight makes. The
   numbers are GGUF's (ggml's tensor types). */
typedef enum kf_weight_type {
    KF_WEIGHT_F32 = 0,
    KF_WEIGHT_F16 = 1,
    KF_WEIGHT_Q4_0 = 2,
    KF_WEIGHT_Q4_1 = 3,
    KF_WEIGHT_Q5_0 = 6,
    KF_WEIGHT_Q5_1 = 7,
    KF_WEIGHT_Q8_0 = 8,
    KF_WEIGHT_Q4_K = 12,
    KF_WEIGHT_Q5_K = 13,
    KF_WEIGHT_Q6_K = 14,
    KF_WEIGHT_BF16 = 30
} kf_weight_type;

typedef struct kf_weight {
    int32_t type;   /* kf_weight_type */
    int32_t packed; /* not 0: data is what kf_pack_weight wrote, and this what it set: with the bytes it says layout and ISA */
    int64_t rows;   /* N, the output features */
    int64_t cols;   /* K, the input features; a multiple of the type's block */
    const void *data;
    size_t bytes;      /* what may be read at data */
    int64_t row_bytes; /* distance of rows in bytes; 0: compact. 0 where packed */
    kf_device device;  /* {0, 0} means the CPU */
} kf_weight;

/* "q4_0", "bf16", ...; "unknown" otherwise. */
KF_API const char *kf_weight_type_string(int type);

/* Values in a block of the type (1 for dense types), and its bytes. KF_INVALID_ARGUMENT for an unknown type. Thread-safe. */
KF_API kf_status kf_weight_block(int type, int32_t *values, int32_t *bytes);

/* The bytes that the packed form of `weight` needs on this context (at most 1.1 times the source's, plus 4 KiB). weight->data may be
   NULL here. */
KF_API kf_status kf_pack_weight_size(const kf_context *context, const kf_weight *weight, size_t *bytes);

/* Packs `weight` into destination (any alignment of 64) and describes it in *packed, to be given to kf_linear. Packing is exact: no
   value changes. The packed form is for contexts of the same ISA; others refuse it (KF_INVALID_ARGUMENT). It may be copied as bytes.
   On a CUDA context both sides are the host's memory: the caller copies the bytes to the device (any alignment of 16 there) and sets data
   and device. One packed form serves all architectures. */
KF_API kf_status kf_pack_weight(const kf_context *context, const kf_weight *weight, void *destination, size_t bytes, kf_weight *packed);

/* Rows of a table: y[t] = scale * table[ids[t]]. An id outside the table is KF_INVALID_ARGUMENT at the run, before anything is
   written. On CUDA ids stay on the device: there such an id gives a row of NaN. */
typedef struct kf_embedding_args {
    kf_args head;
    const kf_weight *table; /* [V, N], any type, not packed */
    const kf_tensor *ids;   /* [T] integer; read at each run */
    const kf_tensor *y;     /* [T, N] float */
    float scale;            /* 0: 1 */
    int32_t reserved;       /* 0 */
} kf_embedding_args;

/* A linear layer: y = x W^T + bias. Weights are dequantised inside the product.
     KF_ACTIVATIONS_EXACT  products of x as it is given and W's exact values, summed in fp32 (bf16 x with bf16 W may use the machine's
                           bf16 dot product, which is exact up to the order of sums and treats subnormal numbers as zero;
                           with quantised W, blocks of 32 of x may be taken in fixed point, each value to within 2^-24 of the
                           block's largest, where fp32 sums of the block would err as much)
     KF_ACTIVATIONS_INT8   x is quantised to int8 in blocks of 32 along K (scale = max|x| / 127, round to nearest, ties to even; the scale
                           in fp32) for quantised weights; integer dot products. For dense weights the same as EXACT.
   The bits of a row of y do not depend on T; on CUDA so with fixed_split alone. Without it there are two orders of sums on CUDA, one for up to
   eight rows and one for more (over dense W also for so many columns that the rows do not fit a thread block's shared memory), and where the
   second would be taken over dense W of x's type, 16-byte aligned rows, cuBLASLt is called if that library is found (it is loaded at run
   time), in an order that depends on T; equal calls give equal bits in all of these.
   On CUDA: up to eight rows over quantised W: x in fixed point, blocks of 32, each value to within 2^-30 of the block's largest (or 2^-120),
   integer products, fp32 sums. Else, and there for bf16 x with K up to 2048 (over a W of few megabytes up to 6144), products of 16-bit parts by
   tensor cores, whose sums of 32 columns (16-bit W with x of its type: of K / 16, at least 128; in cuBLASLt of K) are cut off instead of
   rounded, the rest in fp32. An infinity in a row of x may give NaN in that row of y. W is read before the kernels enqueued before have ended,
   if these allow it (programmatic dependent launch; keyfold's own do): W must not be an output of such a kernel, unless something that is no
   kernel (a copy, an event's wait) lies between.
   Quantised W that is not packed is packed at each run, in the workspace: right, but at a fraction of the speed. */
enum { KF_ACTIVATIONS_EXACT = 0, KF_ACTIVATIONS_INT8 = 1 };

typedef struct kf_linear_args {
    kf_args head;
    const kf_tensor *x;      /* [T, K] float */
    const kf_weight *weight; /* [N, K] */
    const kf_tensor *bias;   /* [N] float, optional */
    const kf_tensor *y;      /* [T, N] float */
    int32_t activations;
    int32_t reserved; /* 0 */
} kf_linear_args;

/* Each sets the head and the defaults. Passing NULL is ignored. */
KF_API void kf_softmax_args_init(kf_softmax_args *args);
KF_API void kf_attention_args_init(kf_attention_args *args);
KF_API void kf_merge_states_args_init(kf_merge_states_args *args);
KF_API void kf_rmsnorm_args_init(kf_rmsnorm_args *args);
KF_API void kf_swiglu_args_init(kf_swiglu_args *args);
KF_API void kf_rope_args_init(kf_rope_args *args);
KF_API void kf_kv_append_args_init(kf_kv_append_args *args);
KF_API void kf_embedding_args_init(kf_embedding_args *args);
KF_API void kf_linear_args_init(kf_linear_args *args);

/* One call: plan, take a workspace from the heap, run, give it back. Errors as for kf_op_create and kf_op_run. */
KF_API kf_status kf_softmax(const kf_context *context, const kf_softmax_args *args);
KF_API kf_status kf_attention(const kf_context *context, const kf_attention_args *args);
KF_API kf_status kf_merge_states(const kf_context *context, const kf_merge_states_args *args);
KF_API kf_status kf_rmsnorm(const kf_context *context, const kf_rmsnorm_args *args);
KF_API kf_status kf_swiglu(const kf_context *context, const kf_swiglu_args *args);
KF_API kf_status kf_rope(const kf_context *context, const kf_rope_args *args);
KF_API kf_status kf_kv_append(const kf_context *context, const kf_kv_append_args *args);
KF_API kf_status kf_embedding(const kf_context *context, const kf_embedding_args *args);
KF_API kf_status kf_linear(const kf_context *context, const kf_linear_args *args);

/* ------------------------------------------------------------------------------------------------------ planned operations */

typedef struct kf_op kf_op;

/* Plans an operation: `args` is the head of one of the structs above (&args.head). Everything is checked here; the tensors are bound.
   Data pointers may be NULL for now if kf_op_bind comes before the first run. The op keeps no pointer to args, shapes or strides.
   Errors: KF_INVALID_ARGUMENT, KF_UNSUPPORTED, KF_OUT_OF_MEMORY. */
KF_API kf_status kf_op_create(const kf_context *context, const kf_args *args, kf_op **op);

/* Binds other tensors: same kind, options, dtypes and shapes as planned (strides and data may differ), else KF_INVALID_ARGUMENT and the
   binding stays as it was. Does not allocate. */
KF_API kf_status kf_op_bind(kf_op *op, const kf_args *args);

/* Bytes of workspace that a run needs, for the context's number of threads. A pure query. The workspace is the caller's, is not to be
   shared by runs at the same time, keeps nothing between runs, and may have any alignment. */
KF_API kf_status kf_op_workspace_size(const kf_op *op, size_t *bytes);

/* Runs. Allocates nothing. What is read only now (key lengths, positions, slots, ids) is checked before anything is written.
   workspace may be NULL where 0 bytes are needed. Errors: KF_INVALID_ARGUMENT (a workspace that is too small, data that is NULL, a value
   out of range), KF_DEVICE_ERROR. */
KF_API kf_status kf_op_run(kf_op *op, void *workspace, size_t workspace_bytes);

/* For callers with threads of their own. A run is: kf_op_prepare once; then for each phase 0 .. phases - 1 in order, every item of the
   phase, in any order and by any threads, all of one phase finished before the next begins. `worker` is 0 .. threads - 1 of the context
   and not used by two threads at the same time. On the CPU only (KF_UNSUPPORTED elsewhere). */
KF_API kf_status kf_op_phase_count(const kf_op *op, int32_t *phases);
KF_API kf_status kf_op_item_count(const kf_op *op, int32_t phase, int64_t *items);
KF_API kf_status kf_op_prepare(kf_op *op, void *workspace, size_t workspace_bytes);
KF_API kf_status kf_op_run_items(const kf_op *op, void *workspace, size_t workspace_bytes, int32_t worker, int32_t phase, int64_t first,
                                 int64_t count);

/* NULL is ignored. */
KF_API void kf_op_destroy(kf_op *op);

/* ---------------------------------------------------------------------------------------------------------------- sequences */

typedef struct kf_sequence kf_sequence;

/* A list of ops that run one after another on one team of threads, with a barrier between phases instead of a fork and join for each
   op. Ops are borrowed: they must outlive the sequence, may be bound anew between runs, and may stand in it more than once; an op of
   another context is refused (KF_INVALID_ARGUMENT). The workspace is what the ops need, one after the other in the same memory, with the
   rules of kf_op_run's. Errors otherwise: KF_OUT_OF_MEMORY (create, add). */
KF_API kf_status kf_sequence_create(const kf_context *context, kf_sequence **sequence);
KF_API kf_status kf_sequence_add(kf_sequence *sequence, kf_op *op);
KF_API kf_status kf_sequence_workspace_size(const kf_sequence *sequence, size_t *bytes);
/* All ops are prepared (their run-time values read and checked) before the first one runs: lengths, positions, slots and ids must not be
   outputs of the same sequence.

   On CUDA the sequence is one graph, enqueued on the context's stream by one launch. The first run makes it, and a run makes it anew after
   kf_sequence_add, after kf_op_bind of one of its ops, and where the workspace is another one: such a run may allocate (a step of 200
   kernels takes about a millisecond of the host's time); no other does, and none waits for the device. Memory that is not replaced may
   change its contents between runs: lengths, positions, slots, ids. Where the stream is being captured by the caller, the ops are
   enqueued one by one and become part of the caller's graph, which keeps neither tensors nor workspace alive. */
KF_API kf_status kf_sequence_run(kf_sequence *sequence, void *workspace, size_t workspace_bytes);
/* NULL is ignored. */
KF_API void kf_sequence_destroy(kf_sequence *sequence);

/* ------------------------------------------------------------------------------------------------------------------ support */

/* One row of the table of what this build can do, made from the tables that the kernels stand in. */
typedef struct kf_support_row {
    uint32_t size;     /* set by the caller to sizeof(kf_support_row) */
    int32_t kind;      /* kf_op_kind */
    const char *backend; /* "cpu" or "cuda" */
    int32_t isa;       /* kf_isa, 0 where it does not apply */
    int32_t available; /* not 0: this machine can run it */
    const char *dtypes; /* such as "fp32 fp16 bf16" */
    const char *notes;  /* the kernel's description, such as "12x32 tiles, fp32 FMA" */
} kf_support_row;

/* Row `index` of the table; KF_INVALID_ARGUMENT past its end. Strings are static. Thread-safe. */
KF_API kf_status kf_support(int32_t index, kf_support_row *row);

#ifdef __cplusplus
}
#endif
#endif /* KEYFOLD_H */
