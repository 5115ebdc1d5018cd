// SPDX-License-Identifier: Apache-2.0
//
// Attention as reference_attention.c has it, head by head:
//
//     S = q k^T * scale, capped, - slope |p - j|, + bias      one thread a score
//     m = max, d = sum e^(S - m), P = e^(S - m)               one block a row
//     o = P v / d                                             one thread an element
//
// in double (the oracle), or in float with scores, probabilities and outputs rounded to the tensors' dtype (the naive yardstick). S is
// kept whole for as many rows as fit SCORES of them; hidden keys are marked, never multiplied by zero. Time: 2 B H Nq Nk (D + Dv)
// operations of float64 without reuse beyond a tile: a second for the largest shapes.
#include "reference/cuda/reference_cuda.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <type_traits>

namespace {

enum { NONE, FP32, FP16, BF16, INT32, INT64, BOOL };
enum { TILE = 16, ROW_THREADS = 256, MAX_PAIRS = 128 };
const int64_t SCORES = int64_t(1) << 26; // at most 600 MB of scores and marks

struct tensor {
    const char *data;
    int type;
    int64_t shape[4], stride[4];
};

struct problem {
    tensor q, k, v, lengths, positions, slopes, sinks, bias, mask;
    int64_t B, H, Hkv, Nq, Nk, D, Dv, left, right;
    double scale, softcap;
    uint32_t flags;
    int rounded, output; // dtypes of the naive path
    int pairing, pairs;  // of the rotation
    double amplitude, frequency[MAX_PAIRS];
};

struct head {
    int64_t b, h, first, rows; // query rows first .. first + rows - 1
};

// ------------------------------------------------------------------------------------------------------------ numbers

__device__ double number(const tensor &t, int64_t at) {
    switch (t.type) {
    case FP32: return reinterpret_cast<const float *>(t.data)[at];
    case FP16: return __half2float(reinterpret_cast<const __half *>(t.data)[at]);
    case BF16: return __bfloat162float(reinterpret_cast<const __nv_bfloat16 *>(t.data)[at]);
    case INT32: return reinterpret_cast<const int32_t *>(t.data)[at];
    case INT64: return (double)reinterpret_cast<const int64_t *>(t.data)[at];
    default: return reinterpret_cast<const uint8_t *>(t.data)[at] != 0;
    }
}

__device__ double rounded(int type, double x) {
    if (type == FP16) return __half2float(__float2half((float)x));
    return type == BF16 ? __bfloat162float(__float2bfloat16((float)x)) : (float)x;
}

__device__ double row_number(const tensor &t, int64_t i) { return number(t, i * t.stride[0]); }

__device__ double broadcast(const tensor &t, int64_t b, int64_t h, int64_t i, int64_t j) {
    const int64_t at = (t.shape[0] == 1 ? 0 : b) * t.stride[0] + (t.shape[1] == 1 ? 0 : h) * t.stride[1] +
                       (t.shape[2] == 1 ? 0 : i) * t.stride[2] + j * t.stride[3];
    return number(t, at);
}

__device__ int64_t key_length(const problem &p, int64_t b) {
    return p.lengths.type ? (int64_t)row_number(p.lengths, b) : p.Nk;
}

__device__ int64_t position(const problem &p, int64_t b, int64_t i) {
    if (p.positions.type) return (int64_t)number(p.positions, b * p.positions.stride[0] + i * p.positions.stride[1]);
    return i + key_length(p, b) - p.Nq;
}

__device__ bool visible(const problem &p, int64_t b, int64_t h, int64_t i, int64_t j) {
    const int64_t at = position(p, b, i);
    if (j >= key_length(p, b)) return false;
    if (p.flags & KF_ATTENTION_CAUSAL && j > at) return false;
    if (p.flags & KF_ATTENTION_WINDOW_LEFT && (double)j < (double)at - (double)p.left) return false;
    if (p.flags & KF_ATTENTION_WINDOW_RIGHT && (double)j > (double)at + (double)p.right) return false;
    if (p.mask.type && broadcast(p.mask, b, h, i, j) == 0) return false;
    return !(p.bias.type && broadcast(p.bias, b, h, i, j) == -INFINITY);
}

// ------------------------------------------------------------------------------------------------------------ loading

// Element c of a head at `at`, rotated; T says in which arithmetic.
template <class T> __device__ T rotated(const problem &p, const tensor &x, int64_t row, int64_t c, double at) {
    const int64_t second_half = p.pairing == KF_ROPE_NEOX ? p.pairs : 1;
    const int64_t pair = p.pairing == KF_ROPE_NEOX ? c % p.pairs : c / 2;
    const int64_t first = p.pairing == KF_ROPE_NEOX ? pair : 2 * pair;
    const double angle = at * p.frequency[pair];
    const T cosine = (T)(p.amplitude * cos(angle)), sine = (T)(p.amplitude * sin(angle));
    const T a = (T)number(x, row + first * x.stride[3]), b = (T)number(x, row + (first + second_half) * x.stride[3]);
    const T left = c == first ? a * cosine : a * sine, right = c == first ? b * sine : b * cosine;
    return c == first ? left - right : left + right;
}

enum source { QUERIES, KEYS, VALUES };

// Rows of one head, [rows, width], rotated where the flags say so; the naive path rounds what was rotated.
template <class T>
__global__ void load(const __grid_constant__ problem p, source from, head at, int64_t width, T *out) {
    const tensor &x = from == QUERIES ? p.q : from == KEYS ? p.k : p.v;
    const uint32_t flag = from == QUERIES ? KF_ATTENTION_ROPE_Q : from == KEYS ? KF_ATTENTION_ROPE_K : 0;
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t e = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; e < at.rows * width; e += step) {
        const int64_t n = at.first + e / width, c = e % width;
        const int64_t row = at.b * x.stride[0] + at.h * x.stride[1] + n * x.stride[2];
        const bool turns = p.flags & flag && p.pairing != KF_ROPE_OFF && c < 2 * p.pairs;
        const double place = from == QUERIES ? (double)position(p, at.b, n) : (double)n;
        T value = turns ? rotated<T>(p, x, row, c, place) : (T)number(x, row + c * x.stride[3]);
        if (std::is_same<T, float>::value && from != VALUES) value = (T)rounded(p.rounded, value);
        out[e] = value;
    }
}

// ------------------------------------------------------------------------------------------------------------- scores

template <class T> __device__ T finished(const problem &p, int64_t b, int64_t h, int64_t i, int64_t j, T product) {
    const bool naive = std::is_same<T, float>::value;
    double s = naive ? rounded(p.rounded, (double)(product * (T)p.scale)) : (double)product * p.scale;
    if (p.softcap > 0) s = p.softcap * tanh(s / p.softcap);
    if (p.slopes.type) s -= row_number(p.slopes, h) * fabs((double)(position(p, b, i) - j));
    if (p.bias.type) s += broadcast(p.bias, b, h, i, j);
    return (T)(naive ? rounded(p.rounded, s) : s);
}

// s[rows, Nk] and which of them are seen.
template <class T>
__global__ void scores(const __grid_constant__ problem p, head at, const T *q, const T *k, T *s, uint8_t *sees) {
    __shared__ T left[TILE][TILE], right[TILE][TILE + 1];
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int64_t i = (int64_t)blockIdx.y * TILE + ty, j = (int64_t)blockIdx.x * TILE + tx;
    const int64_t k_row = (int64_t)blockIdx.x * TILE + ty;
    T sum = 0;
    for (int64_t c = 0; c < p.D; c += TILE) {
        left[ty][tx] = i < at.rows && c + tx < p.D ? q[i * p.D + c + tx] : T(0);
        right[ty][tx] = k_row < p.Nk && c + tx < p.D ? k[k_row * p.D + c + tx] : T(0);
        __syncthreads();
        for (int n = 0; n < TILE; n++) sum += left[ty][n] * right[tx][n];
        __syncthreads();
    }
    if (i >= at.rows || j >= p.Nk) return;
    const bool seen = visible(p, at.b, at.h, at.first + i, j);
    sees[i * p.Nk + j] = seen;
    s[i * p.Nk + j] = seen ? finished<T>(p, at.b, at.h, at.first + i, j, sum) : T(0);
}

// ------------------------------------------------------------------------------------------------------------ softmax

struct largest {
    template <class T> __device__ T operator()(T a, T b) const { return b > a || isnan(b) ? (isnan(a) ? a : b) : a; }
};
struct total {
    template <class T> __device__ T operator()(T a, T b) const { return a + b; }
};

template <class T, class F> __device__ T over_block(T x, F f) {
    __shared__ T part[ROW_THREADS];
    part[threadIdx.x] = x;
    for (int n = ROW_THREADS / 2; n; n /= 2) {
        __syncthreads();
        if (threadIdx.x < n) part[threadIdx.x] = f(part[threadIdx.x], part[threadIdx.x + n]);
    }
    __syncthreads();
    x = part[0];
    __syncthreads();
    return x;
}

const double HIDDEN = -1; // in the place of a probability

// A row of s becomes its exponentials (naive: its probabilities, rounded), HIDDEN where nothing is seen; d is their sum.
template <class T>
__global__ void softmax(const __grid_constant__ problem p, head at, T *s, const uint8_t *sees, T *denominators,
                        double *lse) {
    const bool naive = std::is_same<T, float>::value;
    const int64_t row = blockIdx.x;
    T *x = s + row * p.Nk;
    const uint8_t *seen = sees + row * p.Nk;
    const T sink = p.sinks.type ? (T)row_number(p.sinks, at.h) : (T)-INFINITY;
    T m = sink, d = 0;
    for (int64_t j = threadIdx.x; j < p.Nk; j += ROW_THREADS)
        if (seen[j]) m = largest()(m, x[j]);
    m = over_block(m, largest());
    for (int64_t j = threadIdx.x; j < p.Nk; j += ROW_THREADS) {
        const bool counts = seen[j] && m != (T)-INFINITY;
        x[j] = counts ? (T)exp((double)(x[j] - m)) : (T)HIDDEN;
        d += counts ? x[j] : T(0);
    }
    d = over_block(d, total());
    if (p.sinks.type && m != (T)-INFINITY) d += (T)exp((double)(sink - m));
    for (int64_t j = threadIdx.x; naive && j < p.Nk; j += ROW_THREADS)
        if (x[j] != (T)HIDDEN) x[j] = (T)rounded(p.rounded, (double)(x[j] / d));
    if (threadIdx.x) return;
    denominators[row] = d;
    lse[row] = m == (T)-INFINITY ? -INFINITY : (double)m + log((double)d);
}

template <class T>
__global__ void weighted(const __grid_constant__ problem p, head at, const T *s, const T *denominators, const T *v,
                         double *o) {
    __shared__ T left[TILE][TILE], right[TILE][TILE];
    const bool naive = std::is_same<T, float>::value;
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int64_t i = (int64_t)blockIdx.y * TILE + ty, c = (int64_t)blockIdx.x * TILE + tx;
    T sum = 0;
    for (int64_t j = 0; j < p.Nk; j += TILE) {
        left[ty][tx] = i < at.rows && j + tx < p.Nk ? s[i * p.Nk + j + tx] : (T)HIDDEN;
        right[ty][tx] = j + ty < p.Nk && c < p.Dv ? v[(j + ty) * p.Dv + c] : T(0);
        __syncthreads();
        for (int n = 0; n < TILE; n++)
            if (left[ty][n] != (T)HIDDEN) sum += left[ty][n] * right[n][tx];
        __syncthreads();
    }
    if (i >= at.rows || c >= p.Dv) return;
    const T d = denominators[i];
    const double value = naive ? rounded(p.output, rounded(p.rounded, (double)sum)) : d != 0 ? (double)(sum / d) : 0;
    o[i * p.Dv + c] = value;
}

// --------------------------------------------------------------------------------------------------------------- host

int type_of(kf_dtype dtype) {
    if (dtype.code == KF_CODE_BFLOAT) return BF16;
    if (dtype.code == KF_CODE_FLOAT) return dtype.bits == 32 ? FP32 : FP16;
    return dtype.code == KF_CODE_BOOL ? BOOL : dtype.bits == 32 ? INT32 : INT64;
}

tensor tensor_of(const kf_tensor *t) {
    tensor made = {};
    if (!t) return made;
    made.data = (const char *)t->data + t->byte_offset, made.type = type_of(t->dtype);
    for (int64_t a = t->ndim - 1, compact = 1; a >= 0; compact *= t->shape[a--])
        made.shape[a] = t->shape[a], made.stride[a] = t->strides ? t->strides[a] : compact;
    return made;
}

problem problem_of(const kf_attention_args *args) {
    problem p = {};
    p.q = tensor_of(args->q), p.k = tensor_of(args->k), p.v = tensor_of(args->v);
    p.lengths = tensor_of(args->key_lengths), p.positions = tensor_of(args->positions);
    p.slopes = tensor_of(args->alibi_slopes), p.sinks = tensor_of(args->sinks);
    p.bias = tensor_of(args->bias), p.mask = tensor_of(args->mask);
    p.B = p.q.shape[0], p.H = p.q.shape[1], p.Nq = p.q.shape[2], p.D = p.q.shape[3];
    p.Hkv = p.k.shape[1], p.Nk = p.k.shape[2], p.Dv = p.v.shape[3];
    p.left = args->window_left, p.right = args->window_right, p.flags = args->flags;
    p.scale = args->scale != 0 ? (double)args->scale : 1 / sqrt((double)p.D), p.softcap = args->softcap;
    p.rounded = type_of(ref_coarser(args->q->dtype, args->k->dtype)), p.output = type_of(args->o->dtype);
    p.pairing = args->rope.pairing;
    if (p.flags & (KF_ATTENTION_ROPE_Q | KF_ATTENTION_ROPE_K) && p.pairing != KF_ROPE_OFF)
        p.pairs = (int)ref_rope_frequencies(&args->rope, p.D, p.frequency, &p.amplitude);
    return p;
}

// Device memory of one pass, in one piece: what some rows of one head need, and the answers of all heads. What stands in `error` ends it.
template <class T> struct room {
    cudaError_t error = cudaSuccess;
    char *memory = nullptr;
    T *q, *k, *v, *s, *denominators;
    uint8_t *sees;
    double *o, *lse; // [B, H, Nq, Dv], [B, H, Nq]

    // Places everything, from `memory` on; called with none, it counts the bytes.
    size_t place(const problem &p, int64_t rows) {
        size_t used = 0;
        const auto take = [&](auto *&at, int64_t count) {
            at = reinterpret_cast<std::remove_reference_t<decltype(at)>>(memory + used);
            used += ((size_t)count * sizeof *at + 255) / 256 * 256;
        };
        take(q, rows * p.D), take(k, p.Nk * p.D), take(v, p.Nk * p.Dv), take(s, rows * p.Nk);
        take(denominators, rows), take(sees, rows * p.Nk);
        take(o, p.B * p.H * p.Nq * p.Dv), take(lse, p.B * p.H * p.Nq);
        return used;
    }
    room(const problem &p, int64_t rows) {
        error = cudaMalloc((void **)&memory, place(p, rows) + 1);
        place(p, rows);
    }
    ~room() { cudaFree(memory); }
};

dim3 tiles(int64_t columns, int64_t rows) {
    return dim3((unsigned)((columns + TILE - 1) / TILE), (unsigned)((rows + TILE - 1) / TILE));
}

// Rows of one head; k and v are those of its KV head already.
template <class T> void attend(const problem &p, head at, room<T> &r, double *o, double *lse) {
    enum { LOADS = 1024 };
    const dim3 tile(TILE, TILE);
    load<T><<<LOADS, ROW_THREADS>>>(p, QUERIES, at, p.D, r.q);
    if (p.Nk) scores<T><<<tiles(p.Nk, at.rows), tile>>>(p, at, r.q, r.k, r.s, r.sees);
    softmax<T><<<(unsigned)at.rows, ROW_THREADS>>>(p, at, r.s, r.sees, r.denominators, lse);
    weighted<T><<<tiles(p.Dv, at.rows), tile>>>(p, at, r.s, r.denominators, r.v, o);
    r.error = cudaGetLastError();
}

template <class T> cudaError_t attend_all(const problem &p, double *o, double *lse) {
    enum { LOADS = 1024 };
    int64_t most = p.Nk ? SCORES / p.Nk : p.Nq; // rows at a time
    most = most < p.Nq ? (most > 0 ? most : 1) : p.Nq;
    room<T> r(p, most);
    for (int64_t h = 0; h < p.B * p.H && r.error == cudaSuccess; h++) {
        const int64_t b = h / p.H, hkv = h % p.H / (p.H / p.Hkv);
        const head keys = {b, hkv, 0, p.Nk};
        if (h % (p.H / p.Hkv) == 0) {
            load<T><<<LOADS, ROW_THREADS>>>(p, KEYS, keys, p.D, r.k);
            load<T><<<LOADS, ROW_THREADS>>>(p, VALUES, keys, p.Dv, r.v);
        }
        for (int64_t first = 0; first < p.Nq && r.error == cudaSuccess; first += most) {
            const head rows = {b, h % p.H, first, p.Nq - first < most ? p.Nq - first : most};
            const int64_t row = h * p.Nq + first;
            attend<T>(p, rows, r, r.o + row * p.Dv, r.lse + row);
        }
    }
    const size_t rows = (size_t)(p.B * p.H * p.Nq) * sizeof(double);
    if (r.error == cudaSuccess) r.error = cudaMemcpy(o, r.o, rows * (size_t)p.Dv, cudaMemcpyDeviceToHost);
    if (r.error == cudaSuccess && lse) r.error = cudaMemcpy(lse, r.lse, rows, cudaMemcpyDeviceToHost);
    return r.error;
}

} // namespace

const char *ref_cuda_attention(const kf_attention_args *args, double *o, double *lse, double *naive) {
    const problem p = problem_of(args);
    cudaError_t error = attend_all<double>(p, o, lse);
    if (error == cudaSuccess) error = attend_all<float>(p, naive, nullptr);
    return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
