/*
 * Bad input through the C interface: each mistake with its status and a part of its text, then thousands of calls with
 * random arguments. Runs where the driver is the tests' fake one, which launches nothing; only there are random
 * addresses harmless.
 */
#include <attnpack.h>

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures = 0;
static void *library;
/* Declares a context of the fake driver and makes it current: address, id (0: none is current) and GPU. */
static void (*set_current)(size_t, uint64_t, int);

static void expect(const char *what, attnpack_status status, attnpack_status wanted, const char *words) {
    if (status == wanted && (wanted == ATTNPACK_OK || strstr(attnpack_last_error(), words) != NULL)) return;
    failures++;
    fprintf(stderr, "%s: status %d (%s), not %d; \"%s\" lacks \"%s\"\n", what, (int)status, attnpack_status_string(status), (int)wanted,
            attnpack_last_error(), words);
}

static attnpack_prefill_params good(void) {
    attnpack_prefill_params p;
    memset(&p, 0, sizeof p);
    p.struct_size = sizeof p;
    p.dtype = ATTNPACK_DTYPE_BF16;
    p.mask = ATTNPACK_MASK_CAUSAL;
    p.batch = 2;
    p.q_len = 128;
    p.kv_len = 256;
    p.q_heads = 8;
    p.kv_heads = 2;
    p.head_dim = 128;
    p.q = (const void *)(uintptr_t)0x10000000;
    p.k = (const void *)(uintptr_t)0x20000000;
    p.v = (const void *)(uintptr_t)0x30000000;
    p.o = (void *)(uintptr_t)0x40000000;
    return p;
}

/* Bytes of attnpack_prefill_params in its first version. */
static const size_t FIRST_SIZE = 184;

/* A field of the good parameters replaced, and what that leads to in a launch. */
#define REFUSED(change, status, words)                                       \
    do {                                                                     \
        attnpack_prefill_params p = good();                                  \
        change;                                                              \
        expect(#change, attnpack_prefill(device, &p, NULL), status, words);  \
    } while (0)

static void parameters(const attnpack_device *device) {
    REFUSED((void)p, ATTNPACK_OK, "");
    REFUSED(p.struct_size = 0, ATTNPACK_ERROR_STRUCT_SIZE, "struct_size is 0");
    REFUSED(p.struct_size = FIRST_SIZE - 1, ATTNPACK_ERROR_STRUCT_SIZE, "sizeof(attnpack_prefill_params), here 192");
    REFUSED(p.struct_size = SIZE_MAX, ATTNPACK_ERROR_STRUCT_SIZE, "no version of attnpack_prefill_params");
    REFUSED(p.v_head_dim = 72, ATTNPACK_ERROR_UNSUPPORTED_HEAD_DIM, "head_dim 128 with values of 72");
    REFUSED(p.dtype = 0, ATTNPACK_ERROR_ENUM_VALUE, "0 is no attnpack_dtype; there are 1 (F16), 2 (BF16), 3 (F32)");
    REFUSED(p.dtype = 4, ATTNPACK_ERROR_ENUM_VALUE, "4 is no attnpack_dtype");
    REFUSED(p.mask = 2, ATTNPACK_ERROR_ENUM_VALUE, "2 is no attnpack_mask; there are 0 (FULL), 1 (CAUSAL)");
    REFUSED(p.batch = 0, ATTNPACK_ERROR_ZERO_SIZE, "batch is 0");
    REFUSED(p.q_len = 0, ATTNPACK_ERROR_ZERO_SIZE, "q_len is 0");
    REFUSED(p.kv_len = 0, ATTNPACK_ERROR_ZERO_SIZE, "kv_len is 0");
    REFUSED(p.q_heads = 0, ATTNPACK_ERROR_ZERO_SIZE, "q_heads is 0");
    REFUSED(p.kv_heads = 0, ATTNPACK_ERROR_ZERO_SIZE, "kv_heads is 0");
    REFUSED(p.head_dim = 0, ATTNPACK_ERROR_ZERO_SIZE, "head_dim is 0");
    REFUSED(p.q_len = UINT32_MAX, ATTNPACK_ERROR_TOO_LARGE, "q_len is 4294967295");
    REFUSED(p.batch = 70000, ATTNPACK_ERROR_TOO_LARGE, "batch is 70000; one launch takes at most 65535");
    REFUSED(p.kv_heads = 3, ATTNPACK_ERROR_HEAD_RATIO, "8 query heads cannot share 3 KV heads");
    REFUSED(p.scale = -1, ATTNPACK_ERROR_SCALE, "scale -1");
    REFUSED(p.scale = (float)HUGE_VAL, ATTNPACK_ERROR_SCALE, "scale inf");
    REFUSED(p.scale = (float)nan(""), ATTNPACK_ERROR_SCALE, "scale NaN");
    REFUSED(p.q_strides.seq = -1024, ATTNPACK_ERROR_NEGATIVE_STRIDE, "the sequence stride of q is -1024");
    REFUSED(p.k_strides.head = INT64_MIN, ATTNPACK_ERROR_NEGATIVE_STRIDE, "the head stride of k");
    REFUSED(p.v_strides.batch = INT64_MAX, ATTNPACK_ERROR_EXTENT_OVERFLOW, "an offset in v does not fit 64 bits");
    REFUSED(p.o_strides.seq = 64, ATTNPACK_ERROR_OUTPUT_OVERLAPS_ITSELF, "may write an element twice");
    REFUSED(p.programmatic_launch = 1, ATTNPACK_OK, "");
    REFUSED(p.programmatic_launch = 2, ATTNPACK_ERROR_ENUM_VALUE, "2 is no value of programmatic_launch; there are 0 (no), 1 (yes)");
    REFUSED(p.reserved = 1, ATTNPACK_ERROR_UNKNOWN_FIELD, "byte 188 of attnpack_prefill_params is not 0");
    REFUSED(p.head_dim = 72, ATTNPACK_ERROR_UNSUPPORTED_HEAD_DIM, "no kernel for head_dim 72 in bf16 on sm_90");
    REFUSED(p.q = NULL, ATTNPACK_ERROR_NULL_TENSOR, "the address of q is 0");
    REFUSED(p.k = NULL, ATTNPACK_ERROR_NULL_TENSOR, "the address of k is 0");
    REFUSED(p.v = NULL, ATTNPACK_ERROR_NULL_TENSOR, "the address of v is 0");
    REFUSED(p.o = NULL, ATTNPACK_ERROR_NULL_TENSOR, "the address of o is 0");
    REFUSED(p.k = (const void *)(uintptr_t)0x20000001, ATTNPACK_ERROR_MISALIGNED, "the address of k");
    REFUSED(p.lse = (float *)(uintptr_t)0x50000002, ATTNPACK_ERROR_MISALIGNED, "the address of lse");
    REFUSED(p.q = (const void *)(uintptr_t)(UINT64_MAX - 15), ATTNPACK_ERROR_ADDRESS_OVERFLOW, "would end beyond 64 bits");
    REFUSED(p.o = (void *)(uintptr_t)0x20000000, ATTNPACK_ERROR_OVERLAP, "o shares elements with k");
    REFUSED(p.lse = (float *)p.o, ATTNPACK_ERROR_OVERLAP, "lse shares elements with o");
    expect("no params", attnpack_prefill(device, NULL, NULL), ATTNPACK_ERROR_NULL_ARGUMENT, "the argument params is null");
    expect("no params", attnpack_supports(device, NULL, NULL, NULL), ATTNPACK_ERROR_NULL_ARGUMENT, "params");
    expect("no params", attnpack_warm_up(device, NULL), ATTNPACK_ERROR_NULL_ARGUMENT, "params");
    {
        /* A stream that does not exist: the driver's own error. */
        attnpack_prefill_params p = good();
        expect("a stray stream", attnpack_prefill(device, &p, (struct CUstream_st *)(uintptr_t)0x6660), ATTNPACK_ERROR_DRIVER,
               "cuStreamGetCtx failed");
    }
}

static void growth(const attnpack_device *device) {
    struct {
        attnpack_prefill_params known;
        uint64_t later[4];
    } newer;
    struct {
        attnpack_capability known;
        uint64_t later;
    } wide;
    size_t i;
    memset(&newer, 0, sizeof newer);
    /* What lies behind the first version is not of the struct. */
    newer.known = good();
    newer.known.struct_size = FIRST_SIZE;
    newer.known.reserved = 7;
    expect("the first version", attnpack_prefill(device, &newer.known, NULL), ATTNPACK_OK, "");
    newer.known = good();
    newer.known.struct_size = sizeof newer;
    expect("later fields of 0", attnpack_prefill(device, &newer.known, NULL), ATTNPACK_OK, "");
    for (i = 0; i < sizeof newer.later; i++) {
        char words[32];
        memset(newer.later, 0, sizeof newer.later);
        ((unsigned char *)newer.later)[i] = 1;
        snprintf(words, sizeof words, "byte %u of", (unsigned)(sizeof newer.known + i));
        expect("a later field", attnpack_prefill(device, &newer.known, NULL), ATTNPACK_ERROR_UNKNOWN_FIELD, words);
    }

    memset(&wide, 0xff, sizeof wide);
    wide.known.struct_size = sizeof wide;
    expect("a wider struct", attnpack_device_capability(device, &wide.known), ATTNPACK_OK, "");
    if (wide.known.struct_size != sizeof wide || wide.known.major != 9 || wide.known.reserved != 0 || wide.later != 0) {
        failures++;
        fprintf(stderr, "attnpack_device_capability does not fill a wider struct\n");
    }
    wide.known.struct_size = sizeof wide.known - 4;
    expect("a narrower struct", attnpack_device_capability(device, &wide.known), ATTNPACK_ERROR_STRUCT_SIZE, "attnpack_capability");
}

static void devices(attnpack_device *device) {
    attnpack_prefill_params p = good();
    attnpack_device *other = device;
    attnpack_capability capability;
    attnpack_kernel_info info;
    size_t kernel = 0;
    uint32_t code = 0;
    capability.struct_size = sizeof capability;
    info.struct_size = sizeof info;
    expect("no place", attnpack_device_create(ATTNPACK_POLICY_CUBIN_ONLY, NULL), ATTNPACK_ERROR_NULL_ARGUMENT, "device");
    expect("policy 7", attnpack_device_create((attnpack_policy)7, &other), ATTNPACK_ERROR_ENUM_VALUE, "7 is no attnpack_policy");
    if (other != NULL) {
        failures++;
        fprintf(stderr, "a failed attnpack_device_create leaves *device alone\n");
    }
    expect("no device", attnpack_prefill(NULL, &p, NULL), ATTNPACK_ERROR_NULL_ARGUMENT, "the argument device is null");
    expect("no device", attnpack_supports(NULL, &p, &kernel, &code), ATTNPACK_ERROR_NULL_ARGUMENT, "device");
    expect("no device", attnpack_warm_up(NULL, &p), ATTNPACK_ERROR_NULL_ARGUMENT, "device");
    expect("no device", attnpack_warm_up_all(NULL), ATTNPACK_ERROR_NULL_ARGUMENT, "device");
    expect("no device", attnpack_device_capability(NULL, &capability), ATTNPACK_ERROR_NULL_ARGUMENT, "device");
    expect("no place", attnpack_device_capability(device, NULL), ATTNPACK_ERROR_NULL_ARGUMENT, "capability");
    expect("no info", attnpack_kernel_at(0, NULL), ATTNPACK_ERROR_NULL_ARGUMENT, "info");
    expect("no kernel", attnpack_kernel_at(attnpack_kernel_count(), &info), ATTNPACK_ERROR_KERNEL_INDEX, "numbered from 0");
    info.struct_size = 8;
    expect("a narrow info", attnpack_kernel_at(0, &info), ATTNPACK_ERROR_STRUCT_SIZE, "attnpack_kernel_info");
    p.q = p.k = p.v = p.o = NULL;
    expect("no addresses", attnpack_supports(device, &p, &kernel, &code), ATTNPACK_OK, "");
    expect("no addresses", attnpack_supports(device, &p, NULL, NULL), ATTNPACK_OK, "");
    expect("no addresses", attnpack_warm_up(device, &p), ATTNPACK_OK, "");
    attnpack_device_destroy(NULL);
    attnpack_jit_stats(NULL, NULL);
}

/* What the driver refuses, in a context in which nothing is loaded yet. */
static void driver_errors(const attnpack_device *device) {
    void (*fake_fail)(const char *, unsigned) = NULL;
    void (*fake_capture)(unsigned char) = NULL;
    attnpack_prefill_params p = good();
    uint32_t code = 0;
    *(void **)&fake_fail = dlsym(library, "fake_fail");
    *(void **)&fake_capture = dlsym(library, "fake_capture");

    set_current(0x3000, 9, 0);
    fake_fail("cuModuleLoadDataEx", 209);
    expect("no image", attnpack_supports(device, &p, NULL, &code), ATTNPACK_OK, "");
    expect("no image", attnpack_warm_up(device, &p), code == ATTNPACK_CODE_PTX ? ATTNPACK_ERROR_JIT : ATTNPACK_ERROR_LOAD,
           "enable the cargo feature");
    fake_fail("cuModuleLoadDataEx", 0);
    fake_capture(1);
    expect("captured", attnpack_prefill(device, &p, NULL), ATTNPACK_ERROR_NOT_LOADED, "call attnpack_warm_up() before the capture");
    expect("captured", attnpack_warm_up(device, &p), ATTNPACK_OK, "");
    expect("captured", attnpack_prefill(device, &p, NULL), ATTNPACK_OK, "");
    fake_capture(0);
    fake_fail("cuLaunchKernelEx", 709);
    expect("a dead context", attnpack_prefill(device, &p, NULL), ATTNPACK_ERROR_DRIVER, "the context was destroyed: use another one");
    fake_fail("cuLaunchKernelEx", 0);
}

/* A GPU that no machine code runs on. */
static void compilation(void) {
    void (*fake_capability)(int, int) = NULL;
    attnpack_device *willing = NULL, *unwilling = NULL;
    attnpack_prefill_params p = good();
    uint64_t before = 7, after = 7, nanoseconds = 0;
    uint32_t code = 0;
    *(void **)&fake_capability = dlsym(library, "fake_capability");
    fake_capability(11, 0);
    set_current(0x4000, 10, 0);
    expect("a new GPU", attnpack_device_create(ATTNPACK_POLICY_CUBIN_FIRST, &willing), ATTNPACK_OK, "");
    expect("a new GPU", attnpack_device_create(ATTNPACK_POLICY_CUBIN_ONLY, &unwilling), ATTNPACK_OK, "");
    expect("CUBIN_ONLY", attnpack_warm_up(unwilling, &p), ATTNPACK_ERROR_JIT_REFUSED, "ATTNPACK_POLICY_CUBIN_ONLY refuses");
    attnpack_jit_stats(&before, NULL);
    expect("CUBIN_FIRST", attnpack_supports(willing, &p, NULL, &code), ATTNPACK_OK, "");
    expect("CUBIN_FIRST", attnpack_warm_up(willing, &p), ATTNPACK_OK, "");
    attnpack_jit_stats(&after, &nanoseconds);
    if (code != ATTNPACK_CODE_PTX || after != before + 1 || nanoseconds == 0) {
        failures++;
        fprintf(stderr, "code %u, %u kernels compiled, %u before\n", (unsigned)code, (unsigned)after, (unsigned)before);
    }
    attnpack_device_destroy(willing);
    attnpack_device_destroy(unwilling);
    fake_capability(9, 0);
    set_current(0x1000, 7, 0);
}

static void *fail_elsewhere(void *unused) {
    if (attnpack_last_error()[0] != '\0') failures++;
    expect("another thread", attnpack_warm_up_all(NULL), ATTNPACK_ERROR_NULL_ARGUMENT, "device");
    return unused;
}

/* The text belongs to the thread, and stays when a call succeeds. */
static void last_error(const attnpack_device *device) {
    attnpack_prefill_params p = good();
    pthread_t thread;
    expect("no info", attnpack_kernel_at(0, NULL), ATTNPACK_ERROR_NULL_ARGUMENT, "info");
    expect("good", attnpack_prefill(device, &p, NULL), ATTNPACK_OK, "");
    if (pthread_create(&thread, NULL, fail_elsewhere, NULL) != 0 || pthread_join(thread, NULL) != 0) failures++;
    expect("the text of before", ATTNPACK_ERROR_NULL_ARGUMENT, ATTNPACK_ERROR_NULL_ARGUMENT, "info");
}

static uint64_t next_random(void) {
    static uint64_t state = 88172645463325252u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* Random values, with those that matter more often than chance would have it. */
static uint64_t odd_value(void) {
    static const uint64_t edges[] = {0, 1, 2, 3, 4, 64, 127, 128, 65535, 65536, 0x7fffffff, 0x80000000u, UINT32_MAX, INT64_MAX, UINT64_MAX};
    const uint64_t random = next_random();
    if (random % 4 == 0) return next_random();
    return edges[random / 4 % (sizeof edges / sizeof edges[0])];
}

static void malformed(const attnpack_device *device, int calls) {
    long by_status[128];
    int i, kinds = 0;
    memset(by_status, 0, sizeof by_status);
    for (i = 0; i < calls; i++) {
        attnpack_prefill_params p = good();
        unsigned char *bytes = (unsigned char *)&p;
        attnpack_status status;
        size_t kernel;
        uint32_t code;
        int changes = (int)(next_random() % 4);
        if (next_random() % 50 == 0) {
            size_t offset;
            for (offset = sizeof p.struct_size; offset < sizeof p; offset++) bytes[offset] = (unsigned char)next_random();
        }
        while (changes-- > 0) {
            const uint64_t value = odd_value();
            if (next_random() % 2 == 0) {
                const uint32_t narrow = (uint32_t)value;
                memcpy(bytes + sizeof p.struct_size + next_random() % 10 * 4, &narrow, sizeof narrow);
            } else {
                memcpy(bytes + 48 + next_random() % 18 * 8, &value, sizeof value);
            }
        }
        if (next_random() % 40 == 0) p.struct_size = odd_value() % (sizeof p + 1); /* beyond it lies memory of others */
        switch (next_random() % 3) {
            case 0: status = attnpack_supports(next_random() % 50 ? device : NULL, &p, &kernel, &code); break;
            case 1: status = attnpack_warm_up(device, next_random() % 50 ? &p : NULL); break;
            default: status = attnpack_prefill(device, &p, (struct CUstream_st *)(uintptr_t)(next_random() % 4)); break;
        }
        if ((unsigned)status > 127 || status == ATTNPACK_ERROR_INTERNAL || (status != ATTNPACK_OK && attnpack_last_error()[0] == '\0')) {
            failures++;
            fprintf(stderr, "malformed call %d: status %d: %s\n", i, (int)status, attnpack_last_error());
            return;
        }
        by_status[status]++;
    }
    printf("%d random calls:", calls);
    for (i = 0; i < 128; i++) {
        if (by_status[i] == 0) continue;
        printf(" %ld x %d", by_status[i], i);
        kinds++;
    }
    printf("\n");
    if (kinds < 15 || by_status[ATTNPACK_OK] == 0) {
        failures++;
        fprintf(stderr, "the random calls reach %d statuses only\n", kinds);
    }
}

int main(void) {
    void (*set_params_bytes)(size_t) = NULL;
    void (*fake_fail)(const char *, unsigned) = NULL;
    attnpack_device *device = NULL;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (attnpack_last_error()[0] != '\0') {
        fprintf(stderr, "there is an error before the first call\n");
        return 1;
    }
    if (library == NULL) {
        expect("no driver", attnpack_device_create(ATTNPACK_POLICY_CUBIN_FIRST, &device), ATTNPACK_ERROR_DRIVER_MISSING, "libcuda.so.1");
        printf("no driver, %d mistakes\n", failures);
        return failures != 0;
    }
    *(void **)&set_current = dlsym(library, "fake_current");
    *(void **)&set_params_bytes = dlsym(library, "fake_params_bytes");
    if (set_current == NULL || set_params_bytes == NULL) {
        fprintf(stderr, "this driver is no fake\n");
        return 1;
    }
    if (dlsym(library, "cuCtxGetId") == NULL) {
        expect("CUDA 11", attnpack_device_create(ATTNPACK_POLICY_CUBIN_FIRST, &device), ATTNPACK_ERROR_DRIVER_TOO_OLD, "CUDA 11.8");
        printf("an old driver, %d mistakes\n", failures);
        return failures != 0;
    }
    *(void **)&fake_fail = dlsym(library, "fake_fail");
    fake_fail("cuDeviceGetCount", 100);
    expect("no GPU", attnpack_device_create(ATTNPACK_POLICY_CUBIN_FIRST, &device), ATTNPACK_ERROR_NO_DEVICE, "the driver sees no GPU");
    fake_fail("cuDeviceGetCount", 0);
    expect("no context", attnpack_device_create(ATTNPACK_POLICY_CUBIN_FIRST, &device), ATTNPACK_ERROR_NO_CONTEXT, "make one current");
    set_params_bytes(16);
    set_current(0x1000, 7, 0);
    expect("a device", attnpack_device_create(ATTNPACK_POLICY_CUBIN_FIRST, &device), ATTNPACK_OK, "");
    if (device == NULL) return 1;
    parameters(device);
    growth(device);
    devices(device);
    last_error(device);
    driver_errors(device);
    compilation();
    malformed(device, 20000);
    set_current(0x2000, 8, 1);
    {
        attnpack_prefill_params p = good();
        expect("the other GPU", attnpack_prefill(device, &p, NULL), ATTNPACK_ERROR_WRONG_DEVICE, "belongs to GPU 1 and this attnpack_device is for GPU 0");
        set_current(0x2000, 0, 1);
        expect("no context", attnpack_prefill(device, &p, NULL), ATTNPACK_ERROR_NO_CONTEXT, "no CUDA context is current");
        expect("no context", attnpack_warm_up_all(device), ATTNPACK_ERROR_NO_CONTEXT, "no CUDA context is current");
    }
    attnpack_device_destroy(device);
    printf("%d mistakes were answered wrongly\n", failures);
    return failures != 0;
}
