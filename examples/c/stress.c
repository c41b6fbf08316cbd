/*
 * Many threads at once: each with a device and a stream of its own, half of them in the primary context and half in a
 * context that this program made, all on the same inputs. Every result must have the bits of the first one. Then the
 * same through a captured graph.
 *
 *     cc stress.c $(pkg-config --cflags --libs attnpack) -lpthread -ldl -o stress && ./stress
 */
#include <attnpack.h>

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

enum { THREADS = 8, ROUNDS = 60, LARGEST = 512, Q_HEADS = 8, KV_HEADS = 2, HEAD_DIM = 128 };
enum { Q_ELEMS = LARGEST * Q_HEADS * HEAD_DIM, KV_ELEMS = LARGEST * KV_HEADS * HEAD_DIM };
/* Lengths of a round; several kernels serve them. */
static const uint32_t LENGTHS[] = {1, 17, 64, 129, 300, 512};
enum { KINDS = sizeof LENGTHS / sizeof LENGTHS[0] };

static driver cuda;
static uint16_t host_q[Q_ELEMS], host_kv[KV_ELEMS];
/* The output of each length as one thread alone computed it. */
static uint16_t *expected[KINDS];

typedef struct worker {
    pthread_t thread;
    int number;
    void *context;
    device_address q, kv, o;
    uint16_t *result;
    struct CUstream_st *stream;
    attnpack_device *device;
    char failure[512];
} worker;

static int fail(worker *it, const char *call, int status, const char *words) {
    snprintf(it->failure, sizeof it->failure, "thread %d: %s: %d: %s", it->number, call, status, words);
    return 1;
}

#define CUDA(call)                                                             \
    do {                                                                       \
        const int result = cuda.call;                                          \
        if (result != 0) return fail(it, #call, result, "a CUDA error");       \
    } while (0)
#define ATTNPACK(call)                                                         \
    do {                                                                       \
        const attnpack_status status = call;                                   \
        if (status != ATTNPACK_OK) return fail(it, #call, (int)status, attnpack_last_error()); \
    } while (0)

static attnpack_prefill_params problem(const worker *it, int kind) {
    attnpack_prefill_params params;
    memset(&params, 0, sizeof params);
    params.struct_size = sizeof params;
    params.dtype = ATTNPACK_DTYPE_BF16;
    params.mask = ATTNPACK_MASK_CAUSAL;
    params.batch = 1;
    params.q_len = LENGTHS[kind];
    params.kv_len = LARGEST;
    params.q_heads = Q_HEADS;
    params.kv_heads = KV_HEADS;
    params.head_dim = HEAD_DIM;
    params.q = (const void *)(uintptr_t)it->q;
    params.k = params.v = (const void *)(uintptr_t)it->kv;
    params.o = (void *)(uintptr_t)it->o;
    return params;
}

static size_t bytes_of(int kind) { return (size_t)LENGTHS[kind] * Q_HEADS * HEAD_DIM * sizeof(uint16_t); }

static int start(worker *it) {
    CUDA(cuCtxSetCurrent(it->context));
    CUDA(cuStreamCreate(&it->stream, 1));
    CUDA(cuMemAlloc_v2(&it->q, sizeof host_q));
    CUDA(cuMemAlloc_v2(&it->kv, sizeof host_kv));
    CUDA(cuMemAlloc_v2(&it->o, sizeof host_q));
    CUDA(cuMemcpyHtoD_v2(it->q, host_q, sizeof host_q));
    CUDA(cuMemcpyHtoD_v2(it->kv, host_kv, sizeof host_kv));
    CUDA(cuStreamSynchronize(NULL)); /* the copies went through the default stream, for which this one does not wait */
    it->result = (uint16_t *)malloc(sizeof host_q);
    if (it->result == NULL) return fail(it, "malloc", 0, "no memory");
    ATTNPACK(attnpack_device_create(ATTNPACK_POLICY_CUBIN_FIRST, &it->device));
    return 0;
}

static int compute(worker *it, int kind) {
    const attnpack_prefill_params params = problem(it, kind);
    CUDA(cuMemsetD8Async(it->o, 0xff, sizeof host_q, it->stream));
    ATTNPACK(attnpack_prefill(it->device, &params, it->stream));
    CUDA(cuStreamSynchronize(it->stream));
    CUDA(cuMemcpyDtoH_v2(it->result, it->o, bytes_of(kind)));
    return 0;
}

/* A mistake in between must not disturb others, nor be told to them. */
static int provoke(worker *it) {
    attnpack_prefill_params params = problem(it, 0);
    params.head_dim = 1000 + (uint32_t)it->number;
    if (attnpack_supports(it->device, &params, NULL, NULL) != ATTNPACK_ERROR_UNSUPPORTED_HEAD_DIM) {
        return fail(it, "attnpack_supports", 0, "a head_dim that does not exist was accepted");
    }
    {
        char told[64];
        snprintf(told, sizeof told, "head_dim %u ", params.head_dim);
        if (strstr(attnpack_last_error(), told) == NULL) return fail(it, "attnpack_last_error", 0, attnpack_last_error());
    }
    return 0;
}

/* All lengths in one graph, replayed. */
static int replay(worker *it) {
    void *graph = NULL, *executable = NULL;
    attnpack_prefill_params params;
    int kind, round;
    ATTNPACK(attnpack_warm_up_all(it->device));
    for (kind = 0; kind < KINDS; kind++) {
        CUDA(cuStreamBeginCapture_v2(it->stream, 1));
        params = problem(it, kind);
        ATTNPACK(attnpack_prefill(it->device, &params, it->stream));
        CUDA(cuStreamEndCapture(it->stream, &graph));
        CUDA(cuGraphInstantiateWithFlags(&executable, graph, 0));
        for (round = 0; round < 3; round++) {
            CUDA(cuMemsetD8Async(it->o, 0xff, sizeof host_q, it->stream));
            CUDA(cuGraphLaunch(executable, it->stream));
            CUDA(cuStreamSynchronize(it->stream));
            CUDA(cuMemcpyDtoH_v2(it->result, it->o, bytes_of(kind)));
            if (memcmp(it->result, expected[kind], bytes_of(kind)) != 0) return fail(it, "a replayed graph", kind, "other bits");
        }
        CUDA(cuGraphExecDestroy(executable));
        CUDA(cuGraphDestroy(graph));
    }
    return 0;
}

static int work(worker *it) {
    int round;
    if (start(it) != 0) return 1;
    for (round = 0; round < ROUNDS; round++) {
        const int kind = (round + it->number) % KINDS;
        if (compute(it, kind) != 0) return 1;
        if (memcmp(it->result, expected[kind], bytes_of(kind)) != 0) return fail(it, "a launch", kind, "other bits than alone");
        if (provoke(it) != 0) return 1;
    }
    return replay(it);
}

static int finish(worker *it) {
    CUDA(cuCtxSetCurrent(it->context));
    attnpack_device_destroy(it->device);
    CUDA(cuStreamDestroy_v2(it->stream));
    CUDA(cuMemFree_v2(it->q));
    CUDA(cuMemFree_v2(it->kv));
    CUDA(cuMemFree_v2(it->o));
    free(it->result);
    return 0;
}

static void *run(void *argument) {
    worker *it = (worker *)argument;
    work(it);
    return NULL;
}

/* bfloat16 of numbers between -1 and 1 that look random. */
static void fill(uint16_t *values, size_t count, uint32_t seed) {
    size_t i;
    for (i = 0; i < count; i++) {
        float value;
        uint32_t bits;
        seed = seed * 1664525u + 1013904223u;
        value = (float)(seed >> 8) / 8388608.0f - 1.0f;
        memcpy(&bits, &value, sizeof bits);
        values[i] = (uint16_t)(bits >> 16);
    }
}

int main(void) {
    static worker alone, workers[THREADS];
    void *primary = NULL, *own = NULL;
    const char *missing;
    int gpus = 0, i, failures = 0;

    missing = driver_open(&cuda, &gpus);
    if (missing != NULL) {
        printf("Nothing was executed: %s\n", missing);
        return 0;
    }
    if (cuda.cuDevicePrimaryCtxRetain(&primary, 0) != 0 || cuda.cuCtxCreate_v2(&own, 0, 0) != 0) {
        fprintf(stderr, "no contexts\n");
        return 1;
    }
    fill(host_q, Q_ELEMS, 1);
    fill(host_kv, KV_ELEMS, 2);

    alone.number = -1;
    alone.context = primary;
    if (start(&alone) != 0) failures++;
    for (i = 0; failures == 0 && i < KINDS; i++) {
        if (compute(&alone, i) != 0) failures++;
        expected[i] = (uint16_t *)malloc(bytes_of(i));
        if (expected[i] == NULL) return 1;
        memcpy(expected[i], alone.result, bytes_of(i));
    }
    if (failures != 0 || finish(&alone) != 0) {
        fprintf(stderr, "%s\n", alone.failure);
        return 1;
    }

    for (i = 0; i < THREADS; i++) {
        workers[i].number = i;
        workers[i].context = i % 2 == 0 ? primary : own;
        if (pthread_create(&workers[i].thread, NULL, run, &workers[i]) != 0) return 1;
    }
    for (i = 0; i < THREADS; i++) pthread_join(workers[i].thread, NULL);
    for (i = 0; i < THREADS; i++) {
        if (workers[i].failure[0] == '\0') finish(&workers[i]);
        if (workers[i].failure[0] == '\0') continue;
        fprintf(stderr, "%s\n", workers[i].failure);
        failures++;
    }
    for (i = 0; i < KINDS; i++) free(expected[i]);
    cuda.cuCtxDestroy_v2(own);
    cuda.cuDevicePrimaryCtxRelease_v2(0);
    printf("%d threads, %d launches each, then graphs: %d of them failed\n", THREADS, ROUNDS, failures);
    return failures != 0;
}
