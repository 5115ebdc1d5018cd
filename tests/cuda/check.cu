// SPDX-License-Identifier: Apache-2.0
//
// keyfold_cuda_check: attention on CUDA against a float64 oracle on the same device, for machines with a GPU and nothing else
// (`keyfold verify --backend cuda` is the full engine).
//
//     s_j = cap(q . k_j scale) - slope |p - j| + bias_j over the visible keys, m = max, d = sum e^(s_j - m), o = sum e^(s_j - m) v_j / d
//
// one block a row, textbook, in double, nothing of src/math; of small cases the CPU's oracle (src/reference) computes the same
// rows, and the two must agree to 1e-9. A second pass with scores, probabilities and output rounded to the dtype is the
// yardstick of FlashAttention's rule. Outputs are filled with NaN before every run; what the call has to leave alone must
// still hold it afterwards.
//
//     keyfold_cuda_check [part of a case's name] [runs of each case, 0: the case's own] [architecture to be held to, such as 80]
//
// A case passes where max |o - oracle| <= 2 max |naive - oracle| + 2 ulp, |o - oracle| <= 1e-2 + 1e-2 |oracle| everywhere,
// relative L2 < 2e-3 (fp16) or 1e-2 (bf16), |lse - oracle| <= 1e-3 (1 + |lse|), and NaN stands exactly where the oracle has it.
#include "keyfold.h"
extern "C" {
#include "reference/reference.h"
}

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

#define CUDA(call)                                                                                                     \
    do {                                                                                                               \
        cudaError_t error_ = (call);                                                                                   \
        if (error_ != cudaSuccess) {                                                                                   \
            printf("%s:%d %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_));                           \
            exit(2);                                                                                                   \
        }                                                                                                              \
    } while (0)

enum { FP32, FP16, BF16 };
enum { LAYOUT_BHND, LAYOUT_BNHD, LAYOUT_ODD };       // ODD: rows one element apart from alignment, gaps after each
enum { NONE, FULL, BROADCAST, HEADS };               // shapes of bias and mask
enum { LENGTHS_NONE, LENGTHS_MIXED, LENGTHS_SHORT }; // SHORT: among them 0 and 1
enum { POSITIONS_NONE, POSITIONS_SHUFFLED };
enum { HOSTILE_NO, HOSTILE_HIDDEN, HOSTILE_QUERY }; // NaN in keys that no row sees; NaN in one query

struct kase {
    const char *name;
    int type, B, H, Hkv, Nq, Nk, D, Dv;
    int causal;
    int64_t left, right; // < 0: none
    int lengths, positions, alibi;
    float softcap;
    int sinks, bias, bias_type, mask;
    float scale;
    int o_fp32, lse, layout, hostile;
};

// ------------------------------------------------------------------------------------------------------------ tensors

struct tensor {
    int64_t shape[4], stride[4], elements; // of the allocation
    int type, ndim;
    int64_t offset;
    char *data; // device
};

static int size_of(int type) { return type == FP32 ? 4 : 2; }

static tensor make(int type, int layout, int64_t b, int64_t h, int64_t n, int64_t d) {
    tensor t = {{b, h, n, d}, {}, 0, type, 4, 0, NULL};
    const int64_t row = layout == LAYOUT_ODD ? d + 3 : d;
    if (layout == LAYOUT_BNHD)
        t.stride[0] = n * h * row, t.stride[1] = row, t.stride[2] = h * row;
    else
        t.stride[0] = h * n * row, t.stride[1] = n * row, t.stride[2] = row;
    t.stride[3] = 1;
    t.offset = layout == LAYOUT_ODD ? 1 : 0;
    t.elements = b * h * n * row + t.offset;
    CUDA(cudaMalloc(&t.data, (size_t)(t.elements > 0 ? t.elements : 1) * size_of(type)));
    return t;
}

static kf_tensor view(tensor &t, int ndim) {
    static const kf_dtype dtypes[] = {KF_FP32, KF_FP16, KF_BF16};
    kf_tensor x = {
        t.data, {KF_DEVICE_CUDA, 0}, ndim, dtypes[t.type], t.shape, t.stride, (uint64_t)t.offset * size_of(t.type)};
    return x;
}

__device__ __host__ inline uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

__device__ inline void store(char *data, int type, int64_t i, float x) {
    if (type == FP32)
        reinterpret_cast<float *>(data)[i] = x;
    else if (type == FP16)
        reinterpret_cast<__half *>(data)[i] = __float2half(x);
    else
        reinterpret_cast<__nv_bfloat16 *>(data)[i] = __float2bfloat16(x);
}
__device__ inline float load(const char *data, int type, int64_t i) {
    if (type == FP32) return reinterpret_cast<const float *>(data)[i];
    if (type == FP16) return __half2float(reinterpret_cast<const __half *>(data)[i]);
    return __bfloat162float(reinterpret_cast<const __nv_bfloat16 *>(data)[i]);
}
__device__ inline float rounded(int type, float x) {
    if (type == FP16) return __half2float(__float2half(x));
    return type == BF16 ? __bfloat162float(__float2bfloat16(x)) : x;
}

__global__ void fill_normal(char *data, int type, int64_t n, uint64_t seed, float scale) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        const uint64_t r = mix(seed * 0x100000001b3ull + i);
        const float u = ((uint32_t)r + 1.0f) * 0x1p-32f, a = (uint32_t)(r >> 32) * 0x1p-32f;
        store(data, type, i, scale * sqrtf(-2 * logf(u)) * cosf(6.2831853f * a));
    }
}
__global__ void fill_poison(char *data, int size, int64_t n) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n * size / 2;
         i += (int64_t)gridDim.x * blockDim.x)
        reinterpret_cast<uint16_t *>(data)[i] = 0xffa5;
}
__global__ void count_other(const char *data, int size, int64_t n, unsigned long long *count) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n * size / 2;
         i += (int64_t)gridDim.x * blockDim.x)
        if (reinterpret_cast<const uint16_t *>(data)[i] != 0xffa5) atomicAdd(count, 1ull);
}
// NaN in rows (b, h, n) for n from lengths[b] on, and in row n where hidden[n] is set.
__global__ void spoil_rows(char *data, int type, const int64_t *stride, int64_t offset, int64_t H, int64_t N, int64_t d,
                           const int *lengths, const uint8_t *visible) {
    const int64_t row = blockIdx.x, n = row % N, h = row / N % H, b = row / N / H;
    if ((!lengths || n < lengths[b]) && (!visible || visible[n])) return;
    for (int64_t c = threadIdx.x; c < d; c += blockDim.x)
        store(data, type, offset + b * stride[0] + h * stride[1] + n * stride[2] + c, NAN);
}

// ------------------------------------------------------------------------------------------------------------- oracle

struct problem {
    kase c;
    const char *q, *k, *v, *bias;
    char *o;
    float *lse;
    const uint8_t *mask;
    const int *lengths, *positions;
    const float *slopes, *sinks;
    int64_t q_stride[3], k_stride[3], v_stride[3], o_stride[3];
    double scale;
    int64_t row_step, rows;        // every row_step-th row is checked
    double *o_oracle, *lse_oracle; // of the checked rows
};

struct result {
    double worst, naive, squares, reference, lse, largest;
    unsigned long long wrong, nans, rows;
};

__device__ double block_sum(double x, double *scratch) {
    scratch[threadIdx.x] = x;
    __syncthreads();
    for (int n = blockDim.x / 2; n; n /= 2) {
        if (threadIdx.x < n) scratch[threadIdx.x] += scratch[threadIdx.x + n];
        __syncthreads();
    }
    x = scratch[0];
    __syncthreads();
    return x;
}
__device__ double block_max(double x, double *scratch) {
    scratch[threadIdx.x] = x;
    __syncthreads();
    for (int n = blockDim.x / 2; n; n /= 2) {
        if (threadIdx.x < n) {
            const double y = scratch[threadIdx.x + n];
            if (y > scratch[threadIdx.x] || isnan(y)) scratch[threadIdx.x] = y;
        }
        __syncthreads();
    }
    x = scratch[0];
    __syncthreads();
    return x;
}
__device__ void atomic_max(double *to, double x) { // both not negative
    atomicMax(reinterpret_cast<unsigned long long *>(to), __double_as_longlong(x));
}

__global__ void oracle(problem a, result *r) {
    extern __shared__ double s[]; // [Nk] double, then [Nk] float
    __shared__ double scratch[128];
    const kase &c = a.c;
    float *naive = reinterpret_cast<float *>(s + c.Nk);
    const int64_t row = blockIdx.x * a.row_step;
    const int i = row % c.Nq, h = row / c.Nq % c.H, b = row / c.Nq / c.H, hkv = h / (c.H / c.Hkv);
    const int length = a.lengths ? a.lengths[b] : c.Nk;
    const int64_t p = a.positions ? a.positions[b * c.Nq + i] : (int64_t)i + length - c.Nq;
    const char *q = a.q + 2 * (b * a.q_stride[0] + h * a.q_stride[1] + i * a.q_stride[2]);
    double m = a.sinks ? a.sinks[h] : -INFINITY, m_naive = m;
    for (int j = threadIdx.x; j < c.Nk; j += blockDim.x) {
        bool sees = j < length && !(c.causal && j > p) && !(c.left >= 0 && j < p - c.left) &&
                    !(c.right >= 0 && j > p + c.right);
        const int64_t bb = c.bias == FULL || c.mask == FULL ? b : 0;
        if (sees && a.mask) {
            const int64_t at = c.mask == BROADCAST ? j
                               : c.mask == HEADS   ? (int64_t)h * c.Nk + j
                                                   : ((bb * c.H + h) * c.Nq + i) * c.Nk + j;
            sees = a.mask[at];
        }
        double bias = 0;
        if (sees && a.bias) {
            const int64_t at = c.bias == BROADCAST ? (int64_t)i * c.Nk + j
                               : c.bias == HEADS   ? (int64_t)h * c.Nk + j
                                                   : ((bb * c.H + h) * c.Nq + i) * c.Nk + j;
            bias = load(a.bias, c.bias_type, at);
            sees = bias != -INFINITY;
        }
        s[j] = -INFINITY, naive[j] = -INFINITY;
        if (!sees) continue;
        const char *k = a.k + 2 * (b * a.k_stride[0] + hkv * a.k_stride[1] + j * a.k_stride[2]);
        double sum = 0;
        float single = 0;
        for (int d = 0; d < c.D; d++) {
            const float x = load(q, c.type, d), y = load(k, c.type, d);
            sum += (double)x * y, single += x * y;
        }
        double t = sum * a.scale;
        float u = rounded(c.type, single * (float)a.scale);
        if (c.softcap > 0) t = c.softcap * tanh(t / c.softcap), u = c.softcap * tanhf(u / c.softcap);
        if (a.slopes) t -= a.slopes[h] * fabs((double)(p - j)), u -= a.slopes[h] * fabsf((float)(p - j));
        s[j] = t + bias, naive[j] = rounded(c.type, u + (float)bias);
        if (s[j] > m || isnan(s[j])) m = s[j];
        if (naive[j] > m_naive || isnan(naive[j])) m_naive = naive[j];
    }
    m = block_max(m, scratch), m_naive = block_max(m_naive, scratch);
    double d = 0, d_naive = 0;
    for (int j = threadIdx.x; j < c.Nk; j += blockDim.x) {
        const bool sees = s[j] != -INFINITY;
        s[j] = sees ? exp(s[j] - m) : 0, naive[j] = sees ? expf(naive[j] - (float)m_naive) : 0;
        d += s[j], d_naive += naive[j];
        if (!sees) s[j] = -1; // hidden, in the sums below
    }
    d = block_sum(d, scratch), d_naive = block_sum(d_naive, scratch);
    if (a.sinks) d += exp(a.sinks[h] - m), d_naive += exp(a.sinks[h] - m_naive);
    double worst = 0, worst_naive = 0, squares = 0, reference = 0, largest = 0;
    for (int e = threadIdx.x; e < c.Dv; e += blockDim.x) {
        double o = 0;
        float single = 0;
        for (int j = 0; j < length; j++) {
            if (s[j] == -1) continue;
            const float v = load(a.v, c.type, b * a.v_stride[0] + hkv * a.v_stride[1] + j * a.v_stride[2] + e);
            o += s[j] * v;
            single += rounded(c.type, (float)(naive[j] / d_naive)) * v;
        }
        o = m == -INFINITY || d == 0 ? 0 : o / d;
        const int o_type = c.o_fp32 ? FP32 : c.type;
        const int64_t at = b * a.o_stride[0] + h * a.o_stride[1] + i * a.o_stride[2] + e;
        const double out = load(a.o, o_type, at);
        const double by_naive = rounded(o_type, rounded(c.type, single));
        for (int n = 0; n < (o_type == FP32 ? 2 : 1); n++) // visited: what is left must be poison
            reinterpret_cast<uint16_t *>(a.o)[at * (o_type == FP32 ? 2 : 1) + n] = 0xffa5;
        a.o_oracle[blockIdx.x * (int64_t)c.Dv + e] = o;
        if (isnan(o) != isnan(out)) atomicAdd(&r->nans, 1ull);
        if (isnan(o) || isnan(out)) continue;
        const double error = fabs(out - o);
        if (!(error <= 1e-2 + 1e-2 * fabs(o))) atomicAdd(&r->wrong, 1ull);
        worst = fmax(worst, error);
        if (!isnan(by_naive)) worst_naive = fmax(worst_naive, fabs(by_naive - o));
        squares += error * error, reference += o * o, largest = fmax(largest, fabs(o));
    }
    atomic_max(&r->worst, worst), atomic_max(&r->naive, worst_naive), atomic_max(&r->largest, largest);
    atomicAdd(&r->squares, squares), atomicAdd(&r->reference, reference);
    if (threadIdx.x != 0) return;
    const double lse = m == -INFINITY ? -INFINITY : m + log(d);
    a.lse_oracle[blockIdx.x] = lse;
    atomicAdd(&r->rows, 1ull);
    if (!a.lse) return;
    const double out = a.lse[row];
    reinterpret_cast<uint32_t *>(a.lse)[row] = 0xffa5ffa5u;
    if (isnan(lse) != isnan(out) || (isinf(lse) && out != lse))
        atomicAdd(&r->nans, 1ull);
    else if (!isnan(lse) && !isinf(lse))
        atomic_max(&r->lse, fabs(out - lse) / (1 + fabs(lse)));
}

// ---------------------------------------------------------------------------------------------------------- one case

template <class T> static T *upload(const std::vector<T> &x) {
    T *to = NULL;
    CUDA(cudaMalloc(&to, x.size() * sizeof(T) + 16));
    CUDA(cudaMemcpy(to, x.data(), x.size() * sizeof(T), cudaMemcpyHostToDevice));
    return to;
}

static std::vector<char> download(const void *from, size_t bytes) {
    std::vector<char> x(bytes);
    CUDA(cudaMemcpy(x.data(), from, bytes, cudaMemcpyDeviceToHost));
    return x;
}

static uint64_t seed = 1;

static double ulp(int type, double x) {
    return ldexp(1.0, (x > 0 ? ilogb(x) : -20) - (type == FP16 ? 10 : type == BF16 ? 7 : 23));
}

// The CPU's oracle on the same data; the largest difference, relative to 1 + |o|.
static double against_cpu(const kf_attention_args *on_device, const problem &a) {
    kf_attention_args args = *on_device;
    const kf_tensor **places[] = {&args.q,           &args.k,         &args.v,
                                  &args.key_lengths, &args.positions, &args.alibi_slopes,
                                  &args.sinks,       &args.bias,      &args.mask};
    kf_tensor copies[9];
    std::vector<std::vector<char>> memory;
    for (int i = 0; i < 9; i++) {
        if (!*places[i]) continue;
        copies[i] = **places[i];
        int64_t reach = 1;
        for (int d = 0; d < copies[i].ndim; d++)
            reach += (copies[i].shape[d] - 1) * (copies[i].strides ? copies[i].strides[d] : 0);
        if (!copies[i].strides) {
            reach = 1;
            for (int d = 0; d < copies[i].ndim; d++) reach *= copies[i].shape[d];
        }
        memory.push_back(
            download((char *)copies[i].data, copies[i].byte_offset + (size_t)reach * copies[i].dtype.bits / 8));
        copies[i].data = memory.back().data();
        copies[i].device.type = KF_DEVICE_CPU;
        *places[i] = &copies[i];
    }
    const int64_t count = (int64_t)a.c.B * a.c.H * a.c.Nq;
    std::vector<double> o(count * a.c.Dv), lse(count);
    if (!ref_attention(&args, NULL, count, o.data(), lse.data())) return INFINITY;
    std::vector<char> o_gpu = download(a.o_oracle, o.size() * 8), lse_gpu = download(a.lse_oracle, lse.size() * 8);
    double worst = 0;
    auto compare = [&](double x, double y) {
        if (isnan(x) || isnan(y) || isinf(x) || isinf(y))
            worst = fmax(worst, (isnan(x) && isnan(y)) || x == y ? 0 : INFINITY);
        else
            worst = fmax(worst, fabs(x - y) / (1 + fabs(x)));
    };
    for (size_t i = 0; i < o.size(); i++) compare(o[i], ((double *)o_gpu.data())[i]);
    for (size_t i = 0; i < lse.size(); i++) compare(lse[i], ((double *)lse_gpu.data())[i]);
    return worst;
}

static bool run_case(kf_context *context, const kase &c, int repeat) {
    std::vector<void *> to_free;
    auto keep = [&](auto *p) {
        to_free.push_back((void *)p);
        return p;
    };
    tensor q = make(c.type, c.layout, c.B, c.H, c.Nq, c.D), k = make(c.type, c.layout, c.B, c.Hkv, c.Nk, c.D);
    tensor v = make(c.type, c.layout, c.B, c.Hkv, c.Nk, c.Dv),
           o = make(c.o_fp32 ? FP32 : c.type, c.layout, c.B, c.H, c.Nq, c.Dv);
    for (tensor *t : {&q, &k, &v}) fill_normal<<<1024, 256>>>(t->data, t->type, t->elements, ++seed, 1.0f);
    for (tensor *t : {&q, &k, &v, &o}) keep(t->data);
    std::vector<int> lengths(c.B), positions((size_t)c.B * c.Nq);
    for (int b = 0; b < c.B; b++)
        lengths[b] = c.lengths == LENGTHS_SHORT && b < 2 ? b : (int)(mix(seed + b) % (uint64_t)(c.Nk + 1));
    for (size_t i = 0; i < positions.size(); i++) positions[i] = (int)(mix(seed * 7 + i) % (uint64_t)(c.Nk + 8)) - 4;
    std::vector<float> slopes(c.H), sinks(c.H);
    for (int h = 0; h < c.H; h++) slopes[h] = exp2f(-8.0f * (h + 1) / c.H), sinks[h] = (float)(h % 5) - 1.0f;
    const int64_t mask_count = c.mask == BROADCAST ? c.Nk
                               : c.mask == HEADS   ? (int64_t)c.H * c.Nk
                                                   : (int64_t)c.B * c.H * c.Nq * c.Nk;
    std::vector<uint8_t> mask(c.mask ? mask_count : 1, 1);
    if (c.mask)
        for (int64_t i = 0; i < mask_count; i++) mask[i] = mix(seed * 3 + i) % 4 != 0;
    problem a = {};
    a.c = c;
    a.q = q.data + q.offset * 2, a.k = k.data + k.offset * 2, a.v = v.data + v.offset * 2,
    a.o = o.data + o.offset * size_of(o.type);
    for (int i = 0; i < 3; i++)
        a.q_stride[i] = q.stride[i], a.k_stride[i] = k.stride[i], a.v_stride[i] = v.stride[i],
        a.o_stride[i] = o.stride[i];
    int *d_lengths = keep(upload(lengths)), *d_positions = keep(upload(positions));
    a.lengths = c.lengths ? d_lengths : NULL, a.positions = c.positions ? d_positions : NULL;
    a.slopes = c.alibi ? keep(upload(slopes)) : NULL, a.sinks = c.sinks ? keep(upload(sinks)) : NULL;
    uint8_t *d_mask = keep(upload(mask));
    a.mask = c.mask ? d_mask : NULL;
    const int64_t bias_b = c.bias == FULL ? c.B : 1, bias_h = c.bias == BROADCAST ? 1 : c.H,
                  bias_n = c.bias == HEADS ? 1 : c.Nq;
    tensor bias = make(c.bias ? c.bias_type : FP32, LAYOUT_BHND, c.bias ? bias_b : 1, c.bias ? bias_h : 1,
                       c.bias ? bias_n : 1, c.bias ? c.Nk : 1);
    keep(bias.data);
    if (c.bias) fill_normal<<<1024, 256>>>(bias.data, bias.type, bias.elements, ++seed, 2.0f);
    a.bias = c.bias ? bias.data : NULL;
    const int64_t lse_count = (int64_t)c.B * c.H * c.Nq;
    CUDA(cudaMalloc(&a.lse, lse_count * 4 + 16));
    keep(a.lse);
    float *lse_data = a.lse;
    if (!c.lse) a.lse = NULL;
    a.scale = c.scale != 0 ? (double)c.scale : 1 / sqrt((double)c.D);
    if (c.hostile == HOSTILE_HIDDEN) {
        std::vector<int64_t> ks(k.stride, k.stride + 4), vs(v.stride, v.stride + 4);
        const uint8_t *columns = c.mask == BROADCAST ? a.mask : NULL;
        const int *ends = a.lengths;
        if (!ends && !columns) printf("%s: hostile without a mask\n", c.name), exit(2);
        spoil_rows<<<c.B * c.Hkv * c.Nk, 64>>>(k.data, c.type, keep(upload(ks)), k.offset, c.Hkv, c.Nk, c.D, ends,
                                               columns);
        spoil_rows<<<c.B * c.Hkv * c.Nk, 64>>>(v.data, c.type, keep(upload(vs)), v.offset, c.Hkv, c.Nk, c.Dv, ends,
                                               columns);
    }
    if (c.hostile == HOSTILE_QUERY) CUDA(cudaMemset(q.data + 2 * (q.offset + q.stride[2] * (c.Nq / 2)), 0xff, c.D * 2));

    kf_attention_args args;
    kf_attention_args_init(&args);
    kf_tensor tq = view(q, 4), tk = view(k, 4), tv = view(v, 4), to = view(o, 4), tb = view(bias, 4);
    const int64_t B = c.B, H = c.H, bn[2] = {c.B, c.Nq}, bhn[3] = {c.B, c.H, c.Nq};
    const int64_t mask_shape[4] = {c.mask == FULL ? c.B : 1, c.mask == BROADCAST ? 1 : c.H, c.mask == FULL ? c.Nq : 1,
                                   c.Nk};
    const kf_device gpu = {KF_DEVICE_CUDA, 0};
    kf_tensor tlse = {lse_data, gpu, 3, KF_FP32, bhn, NULL, 0}, tl = {d_lengths, gpu, 1, KF_INT32, &B, NULL, 0};
    kf_tensor tp = {d_positions, gpu, 2, KF_INT32, bn, NULL, 0}, ts = {(void *)a.slopes, gpu, 1, KF_FP32, &H, NULL, 0};
    kf_tensor tsink = {(void *)a.sinks, gpu, 1, KF_FP32, &H, NULL, 0},
              tm = {d_mask, gpu, 4, KF_BOOL, mask_shape, NULL, 0};
    args.q = &tq, args.k = &tk, args.v = &tv, args.o = &to, args.scale = c.scale, args.softcap = c.softcap;
    if (c.lse) args.lse = &tlse;
    if (c.lengths) args.key_lengths = &tl;
    if (c.positions) args.positions = &tp;
    if (c.alibi) args.alibi_slopes = &ts;
    if (c.sinks) args.sinks = &tsink;
    if (c.bias) args.bias = &tb;
    if (c.mask) args.mask = &tm;
    if (c.causal) args.flags |= KF_ATTENTION_CAUSAL;
    if (c.left >= 0) args.flags |= KF_ATTENTION_WINDOW_LEFT, args.window_left = c.left;
    if (c.right >= 0) args.flags |= KF_ATTENTION_WINDOW_RIGHT, args.window_right = c.right;

    kf_op *op = NULL;
    size_t bytes = 0;
    char *workspace = NULL;
    kf_status status = kf_op_create(context, &args.head, &op);
    if (status == KF_OK) status = kf_op_workspace_size(op, &bytes);
    CUDA(cudaMalloc(&workspace, bytes + 64));
    keep(workspace);
    bool same = true;
    std::vector<char> first;
    for (int n = 0; n < repeat && status == KF_OK; n++) {
        fill_poison<<<1024, 256>>>(o.data, size_of(o.type), o.elements);
        fill_poison<<<1024, 256>>>((char *)lse_data, 4, lse_count);
        fill_poison<<<1024, 256>>>(workspace, 4, (int64_t)bytes / 4);
        CUDA(cudaDeviceSynchronize());
        status = kf_op_run(op, workspace, bytes + 64);
        CUDA(cudaDeviceSynchronize());
        if (repeat == 1) break;
        std::vector<char> bits = download(o.data, o.elements * size_of(o.type));
        if (n == 0) first = bits;
        same &= bits == first;
    }
    kf_op_destroy(op);
    if (status != KF_OK) {
        printf("FAIL %-44s %s\n", c.name, kf_last_error());
        for (void *p : to_free) CUDA(cudaFree(p));
        return false;
    }
    const int64_t rows = (int64_t)c.B * c.H * c.Nq;
    const double work = (double)rows * c.Nk * (c.D + c.Dv) * 2;
    a.row_step = work > 1.5e11 ? (int64_t)(work / 1.5e11) | 1 : 1;
    a.rows = (rows + a.row_step - 1) / a.row_step;
    CUDA(cudaMalloc(&a.o_oracle, a.rows * c.Dv * 8 + 16));
    CUDA(cudaMalloc(&a.lse_oracle, a.rows * 8 + 16));
    keep(a.o_oracle), keep(a.lse_oracle);
    result *device_result = NULL, found = {}, *r = &found;
    CUDA(cudaMalloc(&device_result, sizeof *device_result));
    keep(device_result);
    CUDA(cudaMemset(device_result, 0, sizeof *device_result));
    const int shared = c.Nk * 12 + 16;
    CUDA(cudaFuncSetAttribute(oracle, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    if (a.rows) oracle<<<(unsigned)a.rows, 128, shared>>>(a, device_result);
    CUDA(cudaGetLastError());
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(&found, device_result, sizeof found, cudaMemcpyDeviceToHost));
    unsigned long long *device_left = NULL, left_over = 0;
    CUDA(cudaMalloc(&device_left, 8));
    keep(device_left);
    CUDA(cudaMemset(device_left, 0, 8));
    if (a.row_step == 1) {
        count_other<<<1024, 256>>>(o.data, size_of(o.type), o.elements, device_left);
        if (c.lse) count_other<<<1024, 256>>>((char *)lse_data, 4, lse_count, device_left);
        CUDA(cudaMemcpy(&left_over, device_left, 8, cudaMemcpyDeviceToHost));
    }
    double cpu = 0;
    if (a.row_step == 1 && (double)rows * c.Nk * c.D < 3e7) cpu = against_cpu(&args, a);
    const double bound = 2 * r->naive + 2 * ulp(c.type, r->largest);
    const double l2 = r->reference > 0 ? sqrt(r->squares / r->reference) : sqrt(r->squares);
    const bool pass = r->worst <= bound && r->wrong == 0 && r->nans == 0 && left_over == 0 && same && cpu < 1e-9 &&
                      l2 < (c.type == FP16 ? 2e-3 : 1e-2) && r->lse <= 1e-3;
    printf("%s %-44s max %.2e of %.2e  l2 %.1e  lse %.1e  over %llu nan %llu stray %llu%s%s", pass ? "ok  " : "FAIL",
           c.name, r->worst, bound, l2, r->lse, r->wrong, r->nans, left_over, same ? "" : "  bits differ",
           repeat > 1 ? "  repeated" : "");
    if (cpu >= 1e-9) printf("  cpu oracle %.1e", cpu);
    printf("\n");
    fflush(stdout);
    for (void *p : to_free) CUDA(cudaFree(p));
    return pass;
}

// A captured run stays valid as lengths change: the graph's output is the plain run's, bit for bit.
static bool check_capture() {
    const int64_t B = 2, H = 4, Hkv = 2, Nk = 512, D = 64;
    cudaStream_t stream;
    CUDA(cudaStreamCreate(&stream));
    kf_context_options options;
    kf_context_options_init(&options);
    options.device.type = KF_DEVICE_CUDA;
    options.stream = stream;
    kf_context *context = NULL;
    kf_op *op = NULL;
    tensor q = make(BF16, LAYOUT_BHND, B, H, 1, D), k = make(BF16, LAYOUT_BHND, B, Hkv, Nk, D),
           v = make(BF16, LAYOUT_BHND, B, Hkv, Nk, D);
    tensor o = make(BF16, LAYOUT_BHND, B, H, 1, D);
    for (tensor *t : {&q, &k, &v}) fill_normal<<<64, 256>>>(t->data, t->type, t->elements, ++seed, 1.0f);
    int *lengths = upload(std::vector<int>{512, 512});
    kf_tensor tq = view(q, 4), tk = view(k, 4), tv = view(v, 4), to = view(o, 4);
    kf_tensor tl = {lengths, {KF_DEVICE_CUDA, 0}, 1, KF_INT32, &B, NULL, 0};
    kf_attention_args args;
    kf_attention_args_init(&args);
    args.q = &tq, args.k = &tk, args.v = &tv, args.o = &to, args.key_lengths = &tl;
    size_t bytes = 0;
    void *workspace = NULL;
    bool good = kf_context_create(&options, &context) == KF_OK && kf_op_create(context, &args.head, &op) == KF_OK &&
                kf_op_workspace_size(op, &bytes) == KF_OK;
    CUDA(cudaMalloc(&workspace, bytes + 64));
    CUDA(cudaDeviceSynchronize());
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    good = good && kf_op_run(op, workspace, bytes + 64) == KF_OK;
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    std::vector<char> before;
    for (int a : {512, 100, 1, 0}) {
        const int values[2] = {a, 300};
        CUDA(cudaMemcpy(lengths, values, sizeof values, cudaMemcpyHostToDevice));
        std::vector<char> out[2];
        for (int direct = 0; direct < 2; direct++) {
            fill_poison<<<64, 256>>>(o.data, 2, o.elements);
            CUDA(cudaDeviceSynchronize());
            if (direct)
                good = good && kf_op_run(op, workspace, bytes + 64) == KF_OK;
            else
                CUDA(cudaGraphLaunch(exec, stream));
            CUDA(cudaStreamSynchronize(stream));
            out[direct] = download(o.data, o.elements * 2);
        }
        good = good && out[0] == out[1] && out[0] != before;
        before = out[0];
    }
    kf_op_destroy(op);
    kf_context_destroy(context);
    printf("%s captured run, lengths changed\n", good ? "ok  " : "FAIL");
    return good;
}

#include "cases.h"

int main(int argc, char **argv) {
    const char *filter = argc > 1 ? argv[1] : "";
    const int repeat_all = argc > 2 ? atoi(argv[2]) : 0, arch = argc > 3 ? atoi(argv[3]) : 0;
    kf_context_options options;
    kf_context_options_init(&options);
    options.device.type = KF_DEVICE_CUDA;
    options.isa = arch;
    kf_context *context = NULL;
    if (kf_context_create(&options, &context) != KF_OK) {
        printf("%s\n", kf_last_error());
        return 1;
    }
    int failed = 0, count = 0;
    if (strstr("captured", filter)) failed += !check_capture(), count++;
    for (const kase &c : cases()) {
        if (!strstr(c.name, filter)) continue;
        const int repeat = repeat_all ? repeat_all : strstr(c.name, "repeat") ? 50 : 1;
        failed += !run_case(context, c, repeat);
        count++;
    }
    printf("check: %d cases, %d failed\n", count, failed);
    kf_context_destroy(context);
    return failed || !count;
}
