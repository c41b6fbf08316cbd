/*
 * Asks the library many things and prints what it answers and what the driver was told; tests/c_host.rs asks the same
 * in Rust and compares the texts. Runs with the tests' fake driver.
 *
 *     mirror GRID_BYTES MAPS_BYTES
 *
 * The bytes of the parameters of kernels that have a block for each tile, and of those that take tensor maps.
 */
#include <attnpack.h>

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As in tests/fake_driver/libcuda.rs. */
typedef struct fake_launch {
    uint32_t sizes[10];
    size_t stream;
    unsigned char context_is_current, is_ready;
} fake_launch;

static void *library;
static const size_t STREAM = 0x50;

static unsigned calls(const char *name) {
    unsigned (*fake_calls)(const char *) = NULL;
    *(void **)&fake_calls = dlsym(library, "fake_calls");
    return fake_calls(name);
}

static size_t grid_bytes, maps_bytes;

/* Tells the driver how many bytes of parameters the next launch passes. */
static size_t expect_params(const char *family) {
    void (*fake_params_bytes)(size_t) = NULL;
    const size_t bytes = strcmp(family, "prefill_wgmma") == 0 ? maps_bytes : grid_bytes;
    *(void **)&fake_params_bytes = dlsym(library, "fake_params_bytes");
    fake_params_bytes(bytes);
    return bytes;
}

static void print_launch(size_t params_bytes) {
    unsigned char (*fake_last_launch)(fake_launch *, unsigned char *) = NULL;
    static unsigned char params[4096];
    fake_launch launch;
    size_t i;
    *(void **)&fake_last_launch = dlsym(library, "fake_last_launch");
    if (!fake_last_launch(&launch, params)) {
        printf("no launch\n");
        return;
    }
    printf("launch");
    for (i = 0; i < 10; i++) printf(" %u", (unsigned)launch.sizes[i]);
    printf(" stream %u ready %u ", (unsigned)launch.stream, launch.context_is_current & launch.is_ready);
    for (i = 0; i < params_bytes; i++) printf("%02x", params[i]);
    printf("\n");
}

/* Returns the bytes of its parameters. */
static size_t print_kernel(size_t number, uint32_t code) {
    attnpack_kernel_info k;
    k.struct_size = sizeof k;
    if (attnpack_kernel_at(number, &k) != ATTNPACK_OK) return 0;
    printf("kernel %s; %s; %s; %s; %u %u %u %u %u %u %u %u %u %u %u; code %u\n", k.name, k.family, k.models, k.cubins, (unsigned)k.dtype,
           (unsigned)k.head_dim, (unsigned)k.v_head_dim, (unsigned)k.group, (unsigned)k.masks, (unsigned)k.row_alignment, (unsigned)k.block_q,
           (unsigned)k.block_kv, (unsigned)k.threads, (unsigned)k.shared_bytes, (unsigned)k.has_ptx, (unsigned)code);
    return expect_params(k.family);
}

static attnpack_strides strides(int64_t batch, int64_t seq, int64_t head) {
    attnpack_strides s;
    s.batch = batch;
    s.seq = seq;
    s.head = head;
    return s;
}

static void ask(const attnpack_device *device, uint32_t dtype, uint32_t mask, uint32_t shift) {
    attnpack_prefill_params p;
    attnpack_status status;
    size_t kernel = 0, params_bytes;
    uint32_t code = 0;
    unsigned before;

    memset(&p, 0, sizeof p);
    p.struct_size = sizeof p;
    p.dtype = dtype;
    p.mask = mask;
    p.batch = 3;
    p.q_len = 100;
    p.kv_len = 200;
    p.q_heads = 8;
    p.kv_heads = 2;
    p.head_dim = 128;
    p.scale = 0.25f;
    p.q = (const void *)(uintptr_t)(0x1000000000u + shift);
    p.k = (const void *)(uintptr_t)0x2000000000u;
    p.v = (const void *)(uintptr_t)0x3000000000u;
    p.o = (void *)(uintptr_t)0x4000000000u;
    p.lse = mask == ATTNPACK_MASK_CAUSAL ? (float *)(uintptr_t)0x5000000000u : NULL;
    p.q_strides = strides(1000000, 2000, 136);
    p.k_strides = strides(3000000, 144, 40000);
    p.v_strides = strides(5000000, 152, 48000);
    p.o_strides = strides(7000000, 8000, 160);
    p.programmatic_launch = mask == ATTNPACK_MASK_CAUSAL;

    printf("problem %u %u %u\n", (unsigned)dtype, (unsigned)mask, (unsigned)shift);
    status = attnpack_supports(device, &p, &kernel, &code);
    if (status != ATTNPACK_OK) {
        printf("%s\n", attnpack_last_error());
        return;
    }
    params_bytes = print_kernel(kernel, code);
    before = calls("cuModuleLoadDataEx");
    status = attnpack_warm_up(device, &p);
    printf("warm up %u, loads %u\n", (unsigned)status, calls("cuModuleLoadDataEx") - before);
    before = calls("cuModuleLoadDataEx");
    status = attnpack_prefill(device, &p, (struct CUstream_st *)(uintptr_t)STREAM);
    printf("prefill %u, loads %u\n", (unsigned)status, calls("cuModuleLoadDataEx") - before);
    print_launch(params_bytes);
}

int main(int argc, char **argv) {
    void (*fake_current)(size_t, uint64_t, int) = NULL;
    void (*fake_stream)(size_t, size_t) = NULL;
    attnpack_device *device = NULL;
    attnpack_capability has;
    uint32_t dtype, mask, shift;

    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL || argc != 3) return 1;
    grid_bytes = (size_t)strtoul(argv[1], NULL, 10);
    maps_bytes = (size_t)strtoul(argv[2], NULL, 10);
    *(void **)&fake_current = dlsym(library, "fake_current");
    *(void **)&fake_stream = dlsym(library, "fake_stream");
    fake_current(0x5000, 7, 1);
    fake_stream(STREAM, 0x5000);

    if (attnpack_device_create(ATTNPACK_POLICY_CUBIN_FIRST, &device) != ATTNPACK_OK) return 1;
    has.struct_size = sizeof has;
    if (attnpack_device_capability(device, &has) != ATTNPACK_OK) return 1;
    printf("GPU %u: %u.%u, %u bytes, %u\n", (unsigned)has.ordinal, (unsigned)has.major, (unsigned)has.minor,
           (unsigned)has.shared_optin_bytes, (unsigned)has.multiprocessors);
    for (dtype = ATTNPACK_DTYPE_F16; dtype <= ATTNPACK_DTYPE_F32; dtype++) {
        for (mask = ATTNPACK_MASK_FULL; mask <= ATTNPACK_MASK_CAUSAL; mask++) {
            for (shift = 0; shift <= 4; shift += 2) ask(device, dtype, mask, shift);
        }
    }
    attnpack_device_destroy(device);
    return 0;
}
