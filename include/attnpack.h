/*
 * attnpack: fused prefill attention for NVIDIA GPUs, packaged ahead of time.
 *
 *     O = softmax(scale * Q K^T) V, per head, in f16, bf16 or f32
 *
 * The kernels are inside the library. It opens the NVIDIA driver (CUDA 12.0 or newer) at run time; nothing else of CUDA
 * is needed, neither to build a program nor to run it. Valid as C99, C11 and C++.
 *
 *     attnpack_device *device = NULL;
 *     attnpack_prefill_params p = {0};                             // in C++: = {}
 *     if (attnpack_device_create(ATTNPACK_POLICY_CUBIN_FIRST, &device) != ATTNPACK_OK) {
 *         fprintf(stderr, "%s\n", attnpack_last_error());          // says what was asked, what exists, what to do
 *         return 1;
 *     }
 *     p.struct_size = sizeof p;
 *     p.dtype = ATTNPACK_DTYPE_BF16;
 *     p.mask = ATTNPACK_MASK_CAUSAL;
 *     p.batch = 1; p.q_len = 512; p.kv_len = 2048;                 // 512 new tokens after 1536 in the cache
 *     p.q_heads = 32; p.kv_heads = 8; p.head_dim = 128;            // Llama-3-8B
 *     p.q = q; p.k = k; p.v = v; p.o = o;                          // device addresses
 *     status = attnpack_prefill(device, &p, stream);               // asynchronous, on your CUstream
 *     attnpack_device_destroy(device);
 *
 * STATUS. Every call that can fail returns an attnpack_status; ATTNPACK_OK is 0. After a failure attnpack_last_error()
 * has a sentence that names the values at fault and the remedy. No call aborts, throws or unwinds into its caller, for
 * any value of its arguments, with or without a driver, as long as pointers that are not null point to what their type
 * says, device addresses to what the parameters say, and the host has memory left.
 *
 * OWNERSHIP. A device is the caller's to destroy. Strings are the library's: that of attnpack_last_error() lives until
 * the next call that fails on the same thread, or the thread ends; all others until the library is unloaded. Tensors,
 * streams and contexts are the caller's: the library keeps no address of a tensor or a stream, uses that of a context
 * only while a call runs, and never makes, retains or destroys a context.
 *
 * CONTEXTS. attnpack_device_create() asks which GPU the context belongs to that is current on the calling thread: a
 * primary context, as the CUDA runtime and PyTorch use it, or any other. The device stands for that GPU. A launch works
 * in the context of its stream, attnpack_warm_up() in the current one. Kernels are loaded once per context and stay
 * until it is destroyed. The context that is current stays so.
 *
 * THREADS. Every function may be called from any thread at any time, with one device or several, on one stream or
 * several; only attnpack_device_destroy() must not run while another call uses the device.
 *
 * STREAMS. Launches are asynchronous and ordered like any kernel launch on the stream; programmatic_launch below asks for
 * an overlap that shows in nothing but time. They allocate nothing, wait for nothing, and can be captured into a CUDA
 * graph once attnpack_warm_up(), or a launch that was not captured, has loaded their kernel in that context; before that a
 * captured launch is ATTNPACK_ERROR_NOT_LOADED, and the capture goes on. Results are the same bits from run to run on the
 * same GPU.
 */
#ifndef ATTNPACK_H
#define ATTNPACK_H

#include <stddef.h>
#include <stdint.h>

/* The version of this header. While the major version is 0, a minor version may change the interface. */
#define ATTNPACK_VERSION_MAJOR 0
#define ATTNPACK_VERSION_MINOR 1
#define ATTNPACK_VERSION_PATCH 0
/* One number that grows: 10000 * major + 100 * minor + patch. */
#define ATTNPACK_VERSION (ATTNPACK_VERSION_MAJOR * 10000 + ATTNPACK_VERSION_MINOR * 100 + ATTNPACK_VERSION_PATCH)

/* On Windows define ATTNPACK_STATIC to link the static library. */
#if defined(_WIN32) && !defined(ATTNPACK_STATIC)
#define ATTNPACK_API __declspec(dllimport)
#else
#define ATTNPACK_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A CUstream, or a cudaStream_t, is a pointer to this. Null, CU_STREAM_LEGACY (1) and CU_STREAM_PER_THREAD (2) are the
 * default streams of the context that is current.
 */
struct CUstream_st;

/* ---- Status --------------------------------------------------------------------------------------------------- */

/* Numbers are never reused. A newer library may return one that this header does not have. */
typedef enum attnpack_status {
    ATTNPACK_OK = 0,

    /* Arguments. */
    ATTNPACK_ERROR_NULL_ARGUMENT = 1, /* a pointer argument that must not be null is null */
    ATTNPACK_ERROR_STRUCT_SIZE = 2,   /* struct_size is not the size of any version of the struct */
    ATTNPACK_ERROR_ENUM_VALUE = 3,    /* dtype, mask, policy or programmatic_launch is none of the values below */
    ATTNPACK_ERROR_UNKNOWN_FIELD = 4, /* a reserved field, or one that this library is too old to know, is not 0 */
    ATTNPACK_ERROR_KERNEL_INDEX = 5,  /* there is no kernel of this number */

    /* Sizes, strides and scale. */
    ATTNPACK_ERROR_ZERO_SIZE = 20,              /* a size is 0 */
    ATTNPACK_ERROR_TOO_LARGE = 21,              /* a size exceeds what one launch takes */
    ATTNPACK_ERROR_HEAD_RATIO = 22,             /* kv_heads does not divide q_heads */
    ATTNPACK_ERROR_SCALE = 23,                  /* the scale is negative, NaN, or not finite once multiplied by log2(e) */
    ATTNPACK_ERROR_NEGATIVE_STRIDE = 24,        /* a stride is negative */
    ATTNPACK_ERROR_EXTENT_OVERFLOW = 25,        /* an offset in a tensor does not fit 64 bits */
    ATTNPACK_ERROR_OUTPUT_OVERLAPS_ITSELF = 26, /* two rows of o share an element */

    /* What this build, or this GPU, does not have. */
    ATTNPACK_ERROR_UNSUPPORTED_DTYPE = 40,    /* no kernel for the element type */
    ATTNPACK_ERROR_UNSUPPORTED_HEAD_DIM = 41, /* no kernel for head_dim, or v_head_dim; the text says what to pad to */
    ATTNPACK_ERROR_UNSUPPORTED_MASK = 42,     /* no kernel for the mask */
    ATTNPACK_ERROR_UNSUPPORTED_GROUP = 43,    /* no kernel for q_heads / kv_heads; only filtered builds lack one */
    ATTNPACK_ERROR_UNSUPPORTED_DEVICE = 44,   /* no code that this GPU can run */
    ATTNPACK_ERROR_SHARED_MEMORY = 45,        /* the kernels need more shared memory than the GPU has */
    ATTNPACK_ERROR_JIT_REFUSED = 46,          /* only PTX serves, and ATTNPACK_POLICY_CUBIN_ONLY refuses to compile it */

    /* Addresses and contexts. */
    ATTNPACK_ERROR_NULL_TENSOR = 60,      /* q, k, v or o is null */
    ATTNPACK_ERROR_MISALIGNED = 61,       /* an address or a stride is not a multiple of what the kernels copy by */
    ATTNPACK_ERROR_ADDRESS_OVERFLOW = 62, /* a tensor would end beyond the address space */
    ATTNPACK_ERROR_OVERLAP = 63,          /* o or lse shares elements with another tensor */
    ATTNPACK_ERROR_NO_CONTEXT = 64,       /* no context is current on this thread */
    ATTNPACK_ERROR_WRONG_DEVICE = 65,     /* the stream's or the current context belongs to another GPU */
    ATTNPACK_ERROR_NOT_LOADED = 66,       /* the stream is captured and the kernel is not loaded: warm up before */

    /* The driver. */
    ATTNPACK_ERROR_DRIVER_MISSING = 80, /* its library cannot be opened */
    ATTNPACK_ERROR_DRIVER_TOO_OLD = 81, /* it lacks a function of CUDA 12.0 */
    ATTNPACK_ERROR_NO_DEVICE = 82,      /* it sees no GPU */
    ATTNPACK_ERROR_LOAD = 83,           /* it cannot load a kernel's machine code */
    ATTNPACK_ERROR_JIT = 84,            /* it cannot compile a kernel's PTX; its log is in the text */
    ATTNPACK_ERROR_DRIVER = 85,         /* another of its functions failed, perhaps for work that was launched before */

    /* A bug in this library, which every call may have. Whether it took effect is unknown; please report the text. */
    ATTNPACK_ERROR_INTERNAL = 100
} attnpack_status;

/* What a status means, in general. Never null: a number that is no status says so. */
ATTNPACK_API const char *attnpack_status_string(attnpack_status status);

/*
 * What the last failed call on this thread has to say; an empty string when none failed yet, and where the thread is
 * ending (destructors of thread-local objects, atexit). Never null. Calls that succeed leave it as it is.
 */
ATTNPACK_API const char *attnpack_last_error(void);

/* ---- Version -------------------------------------------------------------------------------------------------- */

/* ATTNPACK_VERSION of the library that runs. */
ATTNPACK_API uint32_t attnpack_version(void);

/* How its kernels were built: the assembler and the architectures with machine code, for people to read. */
ATTNPACK_API const char *attnpack_build_info(void);

/* ---- Device --------------------------------------------------------------------------------------------------- */

/* A GPU and what may run on it. Small; several may stand for one GPU and share its loaded kernels. */
typedef struct attnpack_device attnpack_device;

/* Whether the driver's just-in-time compiler may be used. */
typedef enum attnpack_policy {
    /*
     * Machine code where the library has it, otherwise PTX, which the driver compiles when a kernel is first loaded:
     * some hundred milliseconds each. The first time, a line on standard error says so.
     */
    ATTNPACK_POLICY_CUBIN_FIRST = 0,
    /* Machine code only: what would be compiled is ATTNPACK_ERROR_JIT_REFUSED. */
    ATTNPACK_POLICY_CUBIN_ONLY = 1
} attnpack_policy;

/*
 * Makes a device for the GPU of the context that is current on this thread, and writes it to *device; on failure null.
 *
 * NULL_ARGUMENT, ENUM_VALUE, NO_CONTEXT, DRIVER_MISSING, DRIVER_TOO_OLD, NO_DEVICE, DRIVER.
 */
ATTNPACK_API attnpack_status attnpack_device_create(attnpack_policy policy, attnpack_device **device);

/* Frees a device; null is fine. Work that was launched goes on, and kernels stay loaded for other devices. */
ATTNPACK_API void attnpack_device_destroy(attnpack_device *device);

/* What decides which kernels a GPU can run. */
typedef struct attnpack_capability {
    size_t struct_size;          /* sizeof(attnpack_capability), set by the caller */
    uint32_t ordinal;            /* the GPU's number in the driver */
    uint32_t major;              /* compute capability, such as 9.0 */
    uint32_t minor;
    uint32_t shared_optin_bytes; /* the most shared memory that a block can ask for */
    uint32_t multiprocessors;
    uint32_t reserved;           /* 0 */
} attnpack_capability;

/* Writes the capability of a device's GPU. NULL_ARGUMENT, STRUCT_SIZE. */
ATTNPACK_API attnpack_status attnpack_device_capability(const attnpack_device *device, attnpack_capability *capability);

/* ---- Prefill -------------------------------------------------------------------------------------------------- */

/* Element type of q, k, v and o. Accumulation is in f32. 0 is none. */
typedef enum attnpack_dtype {
    ATTNPACK_DTYPE_F16 = 1,  /* IEEE half precision */
    ATTNPACK_DTYPE_BF16 = 2, /* bfloat16 */
    ATTNPACK_DTYPE_F32 = 3   /* IEEE single precision */
} attnpack_dtype;

/* Which keys a query sees. */
typedef enum attnpack_mask {
    ATTNPACK_MASK_FULL = 0, /* every key */
    /*
     * Query i sees keys 0 .. i + kv_len - q_len: the diagonal ends in the bottom right corner, so that new tokens see
     * the whole cache before them. A query that sees no key gives o = 0 and lse = -infinity.
     */
    ATTNPACK_MASK_CAUSAL = 1
} attnpack_mask;

/*
 * Strides of a tensor [batch, seq, heads, head_dim], in elements; the last dimension is contiguous. All three 0 stands
 * for a tensor without gaps: { seq * heads * head_dim, heads * head_dim, head_dim }, with v_head_dim for v and o. One 0
 * is a 0: every sequence, token or head is at the same place, as inputs may be. The stride of a dimension of size 1
 * counts for nothing, but is not negative; to repeat one row along all others, set that one to 1.
 */
typedef struct attnpack_strides {
    int64_t batch;
    int64_t seq;
    int64_t head;
} attnpack_strides;

/*
 * An attention problem and where its tensors lie. Start from zeros, and set struct_size and what is not optional; later
 * versions append fields whose 0 means what this version does. A library takes the structs of older headers, and those
 * of newer ones whose further fields are 0.
 *
 * q is [batch, q_len, q_heads, head_dim], k [batch, kv_len, kv_heads, head_dim]; v and o are like k and q, with
 * v_head_dim, which is head_dim in most models. Query head h reads KV head h / (q_heads / kv_heads). Each address is
 * that of element [0, 0, 0, 0], on the device. Rows start on multiples of 16 bytes (addresses and strides), or with
 * slower kernels of 4. Inputs may overlap each other; o may lie between them in one buffer (columns of the same packed
 * rows) but shares no element with them. Inputs are finite; what lies beyond the tensors, such as unused slots of a
 * cache, may be anything.
 */
typedef struct attnpack_prefill_params {
    size_t struct_size;  /* sizeof(attnpack_prefill_params) */
    uint32_t dtype;      /* an attnpack_dtype */
    uint32_t mask;       /* an attnpack_mask; 0 is the full one */
    uint32_t batch;      /* sequences */
    uint32_t q_len;      /* query tokens of a sequence */
    uint32_t kv_len;     /* key and value tokens of a sequence */
    uint32_t q_heads;    /* query heads */
    uint32_t kv_heads;   /* key and value heads; a divisor of q_heads */
    uint32_t head_dim;   /* elements of a head of q and k */
    float scale;         /* factor of the scores before softmax; 0 stands for 1 / sqrt(head_dim) */
    uint32_t v_head_dim; /* elements of a head of v and o; 0 stands for head_dim */
    const void *q;
    const void *k;
    const void *v;
    void *o;
    /* Optional: log-sum-exp of the scaled scores, natural logarithm, [batch, q_heads, q_len] without gaps. */
    float *lse;
    attnpack_strides q_strides;
    attnpack_strides k_strides;
    attnpack_strides v_strides;
    attnpack_strides o_strides;
    uint32_t programmatic_launch; /* 0: the kernel starts when what is before it has ended; 1: it may start earlier */
    uint32_t reserved;            /* 0 */
} attnpack_prefill_params;

/*
 * PROGRAMMATIC LAUNCHES. Where programmatic_launch is 1, the kernel may start while the one before it in the stream
 * still runs: what CUDA calls programmatic dependent launch. Results are the same; what it saves is a part of the time
 * between two kernels. It concerns the kernels of the family prefill_wgmma, for Hopper: others have no instruction to wait
 * with, and are launched as ever. It changes nothing of attnpack_supports() and attnpack_warm_up().
 *
 * The kernel before ours may be any. Ours can start when each block of it has executed griddepcontrol.launch_dependents
 * (cudaTriggerProgrammaticLaunchCompletion) or has ended. It sets itself up, and waits until that kernel has ended and what
 * it wrote is visible, before it reads q, k or v or writes o or lse. After a kernel that never executes that instruction,
 * ours starts when that one has ended, and no more than the latency of a launch is saved. What is no kernel, such as a
 * copy, ends before ours starts.
 *
 * A kernel after ours that is launched with CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION can start while ours
 * runs, whether or not ours was launched so. It must execute griddepcontrol.wait (cudaGridDependencySynchronize) before it
 * reads o or lse, or writes anything that ours accesses. One without the attribute starts when ours has ended.
 *
 * A stream stays in order only as long as every kernel that is launched so waits: one that does not can end before the
 * kernels in front of it, and who waits for it, as ours would, has not waited for them. Ours always waits.
 *
 * In a capture the launch becomes a node with a programmatic edge from the kernel before it, which graphs have from CUDA
 * 12.3 on; how older drivers capture it was not tried. Two launches of one graph do not overlap. Code that looks at the
 * edges must use the functions of the driver that know of edge data.
 */

/*
 * Computes a problem: queues the kernel on a stream, in the stream's context. A kernel that is not loaded there yet is
 * loaded first. The tensors must stay valid until the kernel has run; meanwhile nothing may write q, k or v, or access
 * o and lse.
 *
 * NULL_ARGUMENT, STRUCT_SIZE, ENUM_VALUE, UNKNOWN_FIELD; all of sizes, strides and scale, of what does not exist, and of
 * addresses and contexts; LOAD, JIT, DRIVER.
 */
ATTNPACK_API attnpack_status attnpack_prefill(const attnpack_device *device, const attnpack_prefill_params *params,
                                              struct CUstream_st *stream);

/* The code of a kernel that a device runs. */
typedef enum attnpack_code {
    ATTNPACK_CODE_CUBIN = 1, /* machine code */
    ATTNPACK_CODE_PTX = 2    /* text that the driver compiles */
} attnpack_code;

/*
 * Says whether a device serves a problem, and by which kernel: *kernel is its number for attnpack_kernel_at(), *code
 * an attnpack_code, what is loaded for it. Either may be null. Loads and launches nothing, and needs no context.
 *
 * Tensors that are null in params count as aligned; lse does not matter.
 *
 * NULL_ARGUMENT, STRUCT_SIZE, ENUM_VALUE, UNKNOWN_FIELD, MISALIGNED, and those of sizes, strides and scale and of what
 * does not exist.
 */
ATTNPACK_API attnpack_status attnpack_supports(const attnpack_device *device, const attnpack_prefill_params *params,
                                               size_t *kernel, uint32_t *code);

/*
 * Loads the kernel for a problem, completely, into the context that is current on this thread, and waits for it: later
 * launches there do not wait and can be captured. Which kernel serves depends on sizes, strides and the alignment of the
 * addresses, where they are not null; warm up every problem that will be launched, or use attnpack_warm_up_all().
 * Streams may be under capture meanwhile.
 *
 * The statuses of attnpack_supports(), NO_CONTEXT, WRONG_DEVICE, LOAD, JIT, DRIVER.
 */
ATTNPACK_API attnpack_status attnpack_warm_up(const attnpack_device *device, const attnpack_prefill_params *params);

/*
 * Loads every kernel that some problem can get on this GPU into the context that is current on this thread.
 *
 * NULL_ARGUMENT, NO_CONTEXT, WRONG_DEVICE, LOAD, JIT, DRIVER.
 */
ATTNPACK_API attnpack_status attnpack_warm_up_all(const attnpack_device *device);

/*
 * What the driver's just-in-time compiler did for this process: kernels (counted once per context) and the time it took.
 * Either may be null.
 */
ATTNPACK_API void attnpack_jit_stats(uint64_t *kernels, uint64_t *nanoseconds);

/* ---- Catalogue ------------------------------------------------------------------------------------------------ */

/* A kernel of the library. */
typedef struct attnpack_kernel_info {
    size_t struct_size;     /* sizeof(attnpack_kernel_info), set by the caller */
    const char *name;       /* unique, such as "prefill_mma_bf16_d128_g4_causal_short_sm80" */
    const char *family;     /* how it works, such as "prefill_mma" */
    const char *models;     /* published models whose heads it was made for */
    const char *cubins;     /* architectures with machine code, such as "sm_80 sm_90"; empty without any */
    uint32_t dtype;         /* an attnpack_dtype */
    uint32_t head_dim;      /* elements of a head of q and k */
    uint32_t v_head_dim;    /* elements of a head of v and o */
    uint32_t group;         /* q_heads / kv_heads that it serves; 0: every ratio, or up to block_q where keys are split */
    uint32_t masks;         /* 1 << mask for each attnpack_mask that it serves */
    uint32_t row_alignment; /* bytes that must divide the starts of rows: 16 or 4 */
    uint32_t block_q;       /* rows of a tile */
    uint32_t block_kv;      /* keys of a step */
    uint32_t threads;       /* threads of a block */
    uint32_t shared_bytes;  /* dynamic shared memory of a block */
    uint32_t has_ptx;       /* 1: the library has its PTX too */
    uint32_t reserved;      /* 0 */
} attnpack_kernel_info;

/* How many kernels the library has; they are numbered from 0. */
ATTNPACK_API size_t attnpack_kernel_count(void);

/* Writes what is known of a kernel. NULL_ARGUMENT, STRUCT_SIZE, KERNEL_INDEX. */
ATTNPACK_API attnpack_status attnpack_kernel_at(size_t index, attnpack_kernel_info *info);

#ifdef __cplusplus
}
#endif

#endif
