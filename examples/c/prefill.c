/*
 * Attention over a prompt, from C: lists the packaged kernels, computes one problem on the GPU on a stream of this
 * program's own, and compares the result with a plain computation. C99, and C++ as well.
 *
 *     cc prefill.c $(pkg-config --cflags --libs attnpack) -lm -ldl -o prefill && ./prefill
 */
#include <attnpack.h>

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

enum { Q_LEN = 192, KV_LEN = 320, Q_HEADS = 6, KV_HEADS = 2, HEAD_DIM = 64 };
enum { Q_ELEMS = Q_LEN * Q_HEADS * HEAD_DIM, KV_ELEMS = KV_LEN * KV_HEADS * HEAD_DIM, LSE_ELEMS = Q_HEADS * Q_LEN };

static float q[Q_ELEMS], k[KV_ELEMS], v[KV_ELEMS], o[Q_ELEMS], lse[LSE_ELEMS];

/* Says what failed, with the library's own words. */
static int failed(const char *call, attnpack_status status) {
    fprintf(stderr, "%s: %s: %s\n", call, attnpack_status_string(status), attnpack_last_error());
    return 1;
}

static int cuda_failed(const char *call, int result) {
    fprintf(stderr, "%s failed with CUDA error %d\n", call, result);
    return 1;
}

static int list_kernels(void) {
    size_t i;
    printf("%s\n", attnpack_build_info());
    for (i = 0; i < attnpack_kernel_count(); i++) {
        attnpack_kernel_info info;
        attnpack_status status;
        info.struct_size = sizeof info;
        status = attnpack_kernel_at(i, &info);
        if (status != ATTNPACK_OK) return failed("attnpack_kernel_at", status);
        printf("%-52s %-18s %s\n", info.name, info.cubins, info.models);
    }
    return 0;
}

/* Numbers between -1 and 1 that look random. */
static void fill(float *values, size_t count, uint32_t seed) {
    size_t i;
    for (i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        values[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
    }
}

/* The attention of one query row, in double precision; returns its log-sum-exp. */
static double reference_row(int head, int row, double *out) {
    const float *query = q + (row * Q_HEADS + head) * HEAD_DIM;
    const int kv_head = head / (Q_HEADS / KV_HEADS), visible = row + KV_LEN - Q_LEN + 1;
    double scores[KV_LEN], largest = -HUGE_VAL, sum = 0;
    int j, d;
    for (j = 0; j < visible; j++) {
        const float *key = k + (j * KV_HEADS + kv_head) * HEAD_DIM;
        scores[j] = 0;
        for (d = 0; d < HEAD_DIM; d++) scores[j] += (double)query[d] * key[d];
        scores[j] /= sqrt((double)HEAD_DIM);
        if (scores[j] > largest) largest = scores[j];
    }
    for (d = 0; d < HEAD_DIM; d++) out[d] = 0;
    for (j = 0; j < visible; j++) {
        const float *value = v + (j * KV_HEADS + kv_head) * HEAD_DIM;
        const double weight = exp(scores[j] - largest);
        sum += weight;
        for (d = 0; d < HEAD_DIM; d++) out[d] += weight * value[d];
    }
    for (d = 0; d < HEAD_DIM; d++) out[d] /= sum;
    return largest + log(sum);
}

/* Compares o and lse with the reference. Not a number fails too. */
static int check(void) {
    double worst = 0, worst_lse = 0, out[HEAD_DIM];
    int head, row, d;
    for (head = 0; head < Q_HEADS; head++) {
        for (row = 0; row < Q_LEN; row++) {
            const double difference = fabs(reference_row(head, row, out) - lse[head * Q_LEN + row]);
            if (!(difference <= worst_lse)) worst_lse = difference;
            for (d = 0; d < HEAD_DIM; d++) {
                const double off = fabs(out[d] - o[(row * Q_HEADS + head) * HEAD_DIM + d]);
                if (!(off <= worst)) worst = off;
            }
        }
    }
    printf("largest difference from a computation in double precision: %.1e in o, %.1e in lse\n", worst, worst_lse);
    return worst < 1e-5 && worst_lse < 1e-3 ? 0 : 1;
}

/* Device memory with a copy of host memory. */
static void *upload(const driver *cuda, const void *from, size_t bytes) {
    device_address address = 0;
    if (cuda->cuMemAlloc_v2(&address, bytes) != 0 || cuda->cuMemcpyHtoD_v2(address, from, bytes) != 0) return NULL;
    return (void *)(uintptr_t)address;
}

static device_address address_of(const void *pointer) { return (device_address)(uintptr_t)pointer; }

/* Computes the problem on a stream. The context is current. */
static int compute(const driver *cuda, const attnpack_device *device, struct CUstream_st *stream) {
    attnpack_prefill_params params;
    attnpack_kernel_info kernel;
    uint32_t code;
    attnpack_status status;
    size_t number;
    int result;

    memset(&params, 0, sizeof params);
    params.struct_size = sizeof params;
    params.dtype = ATTNPACK_DTYPE_F32;
    params.mask = ATTNPACK_MASK_CAUSAL;
    params.batch = 1;
    params.q_len = Q_LEN; /* new tokens, after KV_LEN - Q_LEN that are in the cache */
    params.kv_len = KV_LEN;
    params.q_heads = Q_HEADS;
    params.kv_heads = KV_HEADS;
    params.head_dim = HEAD_DIM;
    params.q = upload(cuda, q, sizeof q);
    params.k = upload(cuda, k, sizeof k);
    params.v = upload(cuda, v, sizeof v);
    params.o = upload(cuda, o, sizeof o);
    params.lse = (float *)upload(cuda, lse, sizeof lse);
    /* Strides are 0: every tensor is without gaps. So is the scale: 1 / sqrt(head_dim). */

    status = attnpack_supports(device, &params, &number, &code);
    if (status != ATTNPACK_OK) return failed("attnpack_supports", status);
    kernel.struct_size = sizeof kernel;
    status = attnpack_kernel_at(number, &kernel);
    if (status != ATTNPACK_OK) return failed("attnpack_kernel_at", status);
    printf("kernel: %s, %s\n", kernel.name, code == ATTNPACK_CODE_CUBIN ? "machine code" : "PTX, which the driver compiles");

    status = attnpack_warm_up(device, &params);
    if (status != ATTNPACK_OK) return failed("attnpack_warm_up", status);
    status = attnpack_prefill(device, &params, stream);
    if (status != ATTNPACK_OK) return failed("attnpack_prefill", status);

    if ((result = cuda->cuStreamSynchronize(stream)) != 0) return cuda_failed("cuStreamSynchronize", result);
    if ((result = cuda->cuMemcpyDtoH_v2(o, address_of(params.o), sizeof o)) != 0) return cuda_failed("cuMemcpyDtoH", result);
    if ((result = cuda->cuMemcpyDtoH_v2(lse, address_of(params.lse), sizeof lse)) != 0) return cuda_failed("cuMemcpyDtoH", result);
    cuda->cuMemFree_v2(address_of(params.q));
    cuda->cuMemFree_v2(address_of(params.k));
    cuda->cuMemFree_v2(address_of(params.v));
    cuda->cuMemFree_v2(address_of(params.o));
    cuda->cuMemFree_v2(address_of(params.lse));
    return check();
}

int main(void) {
    driver cuda;
    void *context = NULL;
    struct CUstream_st *stream = NULL;
    attnpack_device *device = NULL;
    attnpack_status status;
    const char *missing;
    int gpus = 0, result;

    if (attnpack_version() / 100 != ATTNPACK_VERSION / 100) {
        fprintf(stderr, "built with attnpack.h %d, running with library %u\n", ATTNPACK_VERSION, (unsigned)attnpack_version());
        return 1;
    }
    if (list_kernels() != 0) return 1;

    missing = driver_open(&cuda, &gpus);
    if (missing != NULL) {
        /* The library says so too: as an error, whatever the host. */
        status = attnpack_device_create(ATTNPACK_POLICY_CUBIN_FIRST, &device);
        printf("Nothing was executed: %s. attnpack_device_create: %s\n", missing, attnpack_last_error());
        return status == ATTNPACK_OK;
    }

    if ((result = cuda.cuDevicePrimaryCtxRetain(&context, 0)) != 0) return cuda_failed("cuDevicePrimaryCtxRetain", result);
    if ((result = cuda.cuCtxSetCurrent(context)) != 0) return cuda_failed("cuCtxSetCurrent", result);
    /* Of the kind that waits for the default stream, which copies. */
    if ((result = cuda.cuStreamCreate(&stream, 0)) != 0) return cuda_failed("cuStreamCreate", result);
    status = attnpack_device_create(ATTNPACK_POLICY_CUBIN_FIRST, &device);
    if (status != ATTNPACK_OK) return failed("attnpack_device_create", status);

    fill(q, Q_ELEMS, 1);
    fill(k, KV_ELEMS, 2);
    fill(v, KV_ELEMS, 3);
    memset(o, 0xff, sizeof o); /* NaN, so that an element that is not written shows */
    memset(lse, 0xff, sizeof lse);
    result = compute(&cuda, device, stream);

    attnpack_device_destroy(device);
    cuda.cuStreamDestroy_v2(stream);
    cuda.cuDevicePrimaryCtxRelease_v2(0);
    return result;
}
