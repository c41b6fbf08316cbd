/*
 * The few functions of the CUDA driver that these examples need, found at run time, so that they build without any part
 * of CUDA. A real host includes cuda.h, or uses the CUDA runtime, and links what it always links.
 */
#ifndef DRIVER_H
#define DRIVER_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>

struct CUstream_st;
/* A CUdeviceptr. */
typedef unsigned long long device_address;

#define DRIVER_FUNCTIONS(FUNCTION)                                          \
    FUNCTION(cuInit, (unsigned flags))                                      \
    FUNCTION(cuDeviceGetCount, (int *count))                                \
    FUNCTION(cuDevicePrimaryCtxRetain, (void **context, int device))        \
    FUNCTION(cuDevicePrimaryCtxRelease_v2, (int device))                    \
    FUNCTION(cuCtxCreate_v2, (void **context, unsigned flags, int device))  \
    FUNCTION(cuCtxDestroy_v2, (void *context))                              \
    FUNCTION(cuCtxSetCurrent, (void *context))                              \
    FUNCTION(cuMemAlloc_v2, (device_address * address, size_t bytes))       \
    FUNCTION(cuMemFree_v2, (device_address address))                        \
    FUNCTION(cuMemcpyHtoD_v2, (device_address to, const void *from, size_t bytes)) \
    FUNCTION(cuMemcpyDtoH_v2, (void *to, device_address from, size_t bytes)) \
    FUNCTION(cuMemsetD8Async, (device_address address, unsigned char value, size_t bytes, struct CUstream_st *stream)) \
    FUNCTION(cuStreamCreate, (struct CUstream_st **stream, unsigned flags)) \
    FUNCTION(cuStreamSynchronize, (struct CUstream_st *stream))             \
    FUNCTION(cuStreamDestroy_v2, (struct CUstream_st *stream))              \
    FUNCTION(cuStreamBeginCapture_v2, (struct CUstream_st *stream, int mode)) \
    FUNCTION(cuStreamEndCapture, (struct CUstream_st *stream, void **graph)) \
    FUNCTION(cuGraphInstantiateWithFlags, (void **executable, void *graph, unsigned long long flags)) \
    FUNCTION(cuGraphLaunch, (void *executable, struct CUstream_st *stream)) \
    FUNCTION(cuGraphExecDestroy, (void *executable))                        \
    FUNCTION(cuGraphDestroy, (void *graph))

/* Every function returns a CUresult: 0 is success. */
typedef struct driver {
#define MEMBER(name, arguments) int (*name) arguments;
    DRIVER_FUNCTIONS(MEMBER)
#undef MEMBER
} driver;

/* Opens the driver and counts the GPUs. Returns null and fills *driver, or what is missing. */
static const char *driver_open(driver *cuda, int *gpus) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) return "there is no NVIDIA driver (libcuda.so.1)";
    /* POSIX lets dlsym's result be stored in a pointer to a function this way; ISO C has no cast for it. */
#define FIND(name, arguments)                               \
    *(void **)&cuda->name = dlsym(library, #name);          \
    if (cuda->name == NULL) return "the driver lacks " #name;
    DRIVER_FUNCTIONS(FIND)
#undef FIND
    if (cuda->cuInit(0) != 0 || cuda->cuDeviceGetCount(gpus) != 0 || *gpus == 0) return "the driver sees no GPU";
    return NULL;
}

#endif
