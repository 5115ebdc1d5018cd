// SPDX-License-Identifier: Apache-2.0
//
// Ceilings of a CUDA device: see cuda_ceilings.h; the loops are in cuda_ceilings_kernels.cuh. A memory ceiling walks a buffer many times larger than
// the L2 cache, launch after launch, so that nothing of it is found there again.
#include "cuda_ceilings.h"

#include "cuda_ceilings_kernels.cuh"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

const size_t BUFFER_BYTES = size_t(8) << 30; // several times what a decode of 64 sequences reads
const double REPLAY_SECONDS = 200e-6;        // of a graph, so that an event's half microsecond does not count
enum { MOST_LAUNCHES = 512, TRIES = 3, FLUSH_L2S = 3, THREADS = 256, FMA_BLOCKS = 8 };

struct variant {
    const void *function;
    int unroll;   // 0: bulk copies
    int resident; // blocks a multiprocessor; 0: as many blocks as there is work
};

const variant READS[] = {
    {(const void *)read_words<STREAMING, 4>, 4, 0},
    {(const void *)read_words<STREAMING, 4>, 4, 8},
    {(const void *)read_words<STREAMING, 8>, 8, 0},
    {(const void *)read_words<STREAMING, 8>, 8, 4},
    {(const void *)read_words<PLAIN, 4>, 4, 0},
    {(const void *)read_words<PLAIN, 8>, 8, 4},
    {(const void *)read_words<STREAMING, 1>, 1, 0},
    {(const void *)read_words<STREAMING, 2>, 2, 0},
    {(const void *)read_bulk, 0, 1},
};
#define COPIES(two)                                                                                                    \
    {                                                                                                                  \
        {(const void *)copy_words<STREAMING, 4, two>, 4, 0}, {(const void *)copy_words<STREAMING, 4, two>, 4, 8},      \
            {(const void *)copy_words<STREAMING, 8, two>, 8, 4}, {(const void *)copy_words<PLAIN, 4, two>, 4, 0},      \
            {(const void *)copy_words<PLAIN, 4, two>, 4, 8}, {(const void *)copy_words<PLAIN, 1, two>, 1, 0},          \
            {(const void *)copy_words<STREAMING, 2, two>, 2, 0},                                                       \
    }
const variant COPIES_OF_ONE[] = COPIES(false), COPIES_OF_TWO[] = COPIES(true);

// A memory ceiling that was prepared.
struct probe {
    variant kernel;
    int64_t words; // of each stream in one launch
    int streams;   // 1: a read; 2: a copy; 3: one of two into one
    int launches;  // of one sample
    cudaGraphExec_t graph;
    double bytes; // of one launch, counted
    bool ready;
};

} // namespace

struct kft_cuda_ceilings {
    cudaStream_t stream;
    cudaEvent_t begin, end;
    cudaDeviceProp device;
    char *buffer;               // what samples walk, then what a flush reads
    size_t buffer_bytes, place; // of the first part; where in it the next launch begins
    size_t flush_bytes;
    uint32_t *sink;
    probe memory[2]; // copy, read
    kft_cuda_product *product;
    bool product_asked;
};

namespace {

cudaError_t launch(kft_cuda_ceilings *c, const probe &p, const kft_stream &s) {
    const int64_t block = p.kernel.unroll ? (int64_t)THREADS * p.kernel.unroll : BULK_BYTES / 16;
    int64_t blocks = (s.words + block - 1) / block;
    if (p.kernel.resident)
        blocks = std::min<int64_t>(blocks, (int64_t)p.kernel.resident * c->device.multiProcessorCount);
    cudaLaunchAttribute dependent = {};
    dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    dependent.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)std::max<int64_t>(blocks, 1)),
    config.blockDim = dim3(p.kernel.unroll ? THREADS : 32);
    config.dynamicSmemBytes = p.kernel.unroll ? 0 : (size_t)BULK_STAGES * BULK_BYTES;
    config.stream = c->stream, config.attrs = &dependent, config.numAttrs = c->device.major >= 9 ? 1 : 0;
    void *arguments[] = {(void *)&s};
    return cudaLaunchKernelExC(&config, p.kernel.function, arguments);
}

// One launch on the next part of the buffer.
cudaError_t enqueue_next(kft_cuda_ceilings *c, const probe &p) {
    const size_t bytes = (size_t)p.words * 16, step = (size_t)p.streams * bytes;
    if (c->place + step > c->buffer_bytes) c->place = 0;
    char *at = c->buffer + c->place;
    c->place += (step + 255) / 256 * 256;
    return launch(c, p,
                  {(const uint4 *)at, (const uint4 *)(at + bytes), (uint4 *)(at + step - bytes), p.words, c->sink});
}

struct enqueuing {
    kft_cuda_ceilings *c;
    probe *p;
};

bool enqueue_probe(void *argument) {
    const enqueuing *e = (const enqueuing *)argument;
    if (e->p->graph) return cudaGraphLaunch(e->p->graph, e->c->stream) == cudaSuccess;
    return enqueue_next(e->c, *e->p) == cudaSuccess;
}

bool capture(kft_cuda_ceilings *c, probe *p) {
    cudaGraph_t graph = nullptr;
    bool good = cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess;
    for (int n = 0; good && n < p->launches; n++) good = enqueue_next(c, *p) == cudaSuccess;
    good = cudaStreamEndCapture(c->stream, &graph) == cudaSuccess && good;
    good = good && cudaGraphInstantiate(&p->graph, graph, 0) == cudaSuccess;
    if (graph) cudaGraphDestroy(graph);
    return good;
}

double seconds_of(kft_cuda_ceilings *c, probe *p) {
    enqueuing e = {c, p};
    return kft_cuda_seconds(c, enqueue_probe, &e) / p->launches;
}

void drop(probe *p) {
    if (p->graph) cudaGraphExecDestroy(p->graph);
    *p = {};
}

// A kernel made ready for `words`; false where this device doesn't have it.
bool make(kft_cuda_ceilings *c, const variant &kernel, int64_t words, int streams, bool replay, probe *p) {
    *p = {};
    p->kernel = kernel, p->words = words, p->launches = 1, p->streams = streams;
    p->bytes = 16.0 * (double)words * streams;
    if (!kernel.unroll && c->device.major < 9) return false;
    if (!kernel.unroll && cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                               BULK_STAGES * BULK_BYTES) != cudaSuccess)
        return false;
    if (!replay) return true;
    const double one = seconds_of(c, p), l2 = 4.0 * c->device.l2CacheSize / p->bytes;
    p->launches = (int)std::min<double>(MOST_LAUNCHES, std::ceil(std::max(REPLAY_SECONDS / std::max(one, 1e-6), l2)));
    return capture(c, p);
}

bool enqueue_fma(void *argument) {
    kft_cuda_ceilings *c = (kft_cuda_ceilings *)argument;
    fma_chains<<<FMA_BLOCKS * c->device.multiProcessorCount, THREADS, 0, c->stream>>>(
        {nullptr, nullptr, nullptr, 0, c->sink});
    return cudaGetLastError() == cudaSuccess;
}

double fma_operations(const kft_cuda_ceilings *c) {
    return 2.0 * FMA_CHAINS * FMA_ROUNDS * THREADS * FMA_BLOCKS * c->device.multiProcessorCount;
}

} // namespace

extern "C" {

kft_cuda_ceilings *kft_cuda_ceilings_open(void *stream) {
    int device = 0;
    kft_cuda_ceilings *c = (kft_cuda_ceilings *)calloc(1, sizeof *c);
    if (!c) return nullptr;
    c->stream = (cudaStream_t)stream;
    bool good = cudaGetDevice(&device) == cudaSuccess && cudaGetDeviceProperties(&c->device, device) == cudaSuccess;
    c->buffer_bytes = std::min(BUFFER_BYTES, c->device.totalGlobalMem / 8 / 256 * 256);
    c->flush_bytes = (size_t)FLUSH_L2S * (size_t)c->device.l2CacheSize;
    good = good && cudaMalloc((void **)&c->buffer, c->buffer_bytes + c->flush_bytes) == cudaSuccess &&
           cudaMalloc((void **)&c->sink, sizeof *c->sink) == cudaSuccess && cudaEventCreate(&c->begin) == cudaSuccess &&
           cudaEventCreate(&c->end) == cudaSuccess;
    if (good) {
        fill_random<<<1024, THREADS, 0, c->stream>>>((uint32_t *)c->buffer,
                                                     (int64_t)((c->buffer_bytes + c->flush_bytes) / 4));
        good = cudaStreamSynchronize(c->stream) == cudaSuccess;
    }
    if (good) return c;
    cudaGetLastError();
    kft_cuda_ceilings_close(c);
    return nullptr;
}

void kft_cuda_ceilings_close(kft_cuda_ceilings *c) {
    if (!c) return;
    for (probe &p : c->memory) drop(&p);
    kft_cuda_product_close(c->product);
    if (c->begin) cudaEventDestroy(c->begin);
    if (c->end) cudaEventDestroy(c->end);
    cudaFree(c->buffer);
    cudaFree(c->sink);
    free(c);
}

size_t kft_cuda_l2_bytes(const kft_cuda_ceilings *c) { return (size_t)c->device.l2CacheSize; }

void kft_cuda_flush(kft_cuda_ceilings *c) {
    probe p = {};
    p.kernel = READS[0];
    const int64_t words = (int64_t)(c->flush_bytes / 16);
    launch(c, p, {(const uint4 *)(c->buffer + c->buffer_bytes), nullptr, nullptr, words, c->sink});
}

double kft_cuda_seconds(kft_cuda_ceilings *c, bool (*enqueue)(void *argument), void *argument) {
    float milliseconds = -1;
    kft_cuda_flush(c);
    bool good = cudaEventRecord(c->begin, c->stream) == cudaSuccess && enqueue(argument) &&
                cudaEventRecord(c->end, c->stream) == cudaSuccess && cudaEventSynchronize(c->end) == cudaSuccess &&
                cudaEventElapsedTime(&milliseconds, c->begin, c->end) == cudaSuccess;
    return good ? milliseconds * 1e-3 : -1;
}

bool kft_cuda_ceiling_exists(kft_cuda_ceilings *c, kft_ceiling ceiling) {
    if (ceiling == KFT_CEILING_INT8_DOT) return false;
    if (ceiling == KFT_CEILING_BF16_DOT && !c->product_asked) {
        c->product_asked = true;
        c->product = kft_cuda_product_open(c->stream, c->buffer, c->buffer_bytes);
    }
    return ceiling != KFT_CEILING_BF16_DOT || c->product;
}

bool kft_cuda_ceiling_prepare(kft_cuda_ceilings *c, kft_ceiling ceiling, double bytes, int reads, bool replay) {
    const int streams = ceiling == KFT_CEILING_READ ? 1 : reads == 2 ? 3 : 2;
    const variant *variants = streams == 1 ? READS : streams == 2 ? COPIES_OF_ONE : COPIES_OF_TWO;
    const size_t count = streams == 1 ? sizeof READS / sizeof *READS : sizeof COPIES_OF_TWO / sizeof *READS;
    // Whole pieces of a bulk copy; two launches find room in the buffer.
    const int64_t piece = BULK_BYTES / 16, most = (int64_t)(c->buffer_bytes / (32 * (size_t)streams)) / piece * piece;
    int64_t words = (int64_t)(bytes / (16 * streams) + (double)piece - 1) / piece * piece;
    words = std::min(std::max(words, piece), most);
    probe *best = &c->memory[ceiling];
    double least = INFINITY;
    drop(best);
    for (size_t v = 0; v < count; v++) {
        probe p;
        double seconds = INFINITY;
        if (!make(c, variants[v], words, streams, replay, &p)) {
            drop(&p);
            continue;
        }
        for (int n = 0; n < TRIES; n++) seconds = std::min(seconds, seconds_of(c, &p));
        if (!(seconds > 0 && seconds < least)) {
            drop(&p);
            continue;
        }
        least = seconds;
        drop(best);
        *best = p;
        best->ready = true;
    }
    return best->ready;
}

double kft_cuda_ceiling_sample(kft_cuda_ceilings *c, kft_ceiling ceiling) {
    if (ceiling <= KFT_CEILING_READ) {
        probe *p = &c->memory[ceiling];
        return p->ready ? p->bytes / seconds_of(c, p) : 0;
    }
    if (!kft_cuda_ceiling_exists(c, ceiling)) return 0;
    if (ceiling == KFT_CEILING_FMA) return fma_operations(c) / kft_cuda_seconds(c, enqueue_fma, c);
    return kft_cuda_product_operations() / kft_cuda_seconds(c, kft_cuda_product_enqueue, c->product);
}
}
