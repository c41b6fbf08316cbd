"""attnpack for Python: fused prefill attention on PyTorch tensors, CuPy arrays and plain device addresses.

    o = attnpack.prefill(q, k, v, causal=True)

One file without dependencies: it calls the C interface of libattnpack, include/attnpack.h, through ctypes. The library is
$ATTNPACK_LIBRARY, or lies beside this file, in ../../target/release, or where the system looks. Run, it lists the kernels.
"""
import ctypes
import functools
import math
import os
import sys
from ctypes import POINTER, byref, c_char_p, c_float, c_int64, c_size_t, c_uint32, c_void_p

NAME = "attnpack"
VERSION = 1  # 0.1: 100 * major + minor of the header that this file was written from
F16, BF16, F32 = 1, 2, 3
FULL, CAUSAL, CUBIN_FIRST, CUBIN_ONLY = 0, 1, 0, 1
DTYPES = {"torch.float16": F16, "torch.bfloat16": BF16, "torch.float32": F32, "<f2": F16, "<f4": F32}
NO_CONTEXT, UNSUPPORTED = 64, {21, *range(40, 60), 61}  # of attnpack_status; 21 is TOO_LARGE, 61 MISALIGNED


class Error(RuntimeError):
    """A call of the library that failed: `status` is a number of attnpack_status, the text is the library's."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class Unsupported(Error):
    """This build or GPU has no kernel for the problem: another implementation has to serve it."""


def _fields(*groups):
    return [(name, kind) for kind, names in groups for name in names.split()]


class Strides(ctypes.Structure):
    _fields_ = _fields((c_int64, "batch seq head"))


class _Sized(ctypes.Structure):
    def __init__(self, **fields):
        super().__init__(struct_size=ctypes.sizeof(self), **fields)


class Params(_Sized):
    """attnpack_prefill_params: a problem and the device addresses of its tensors. Strides count elements."""

    _fields_ = _fields(
        (c_size_t, "struct_size"), (c_uint32, "dtype mask batch q_len kv_len q_heads kv_heads head_dim"), (c_float, "scale"),
        (c_uint32, "v_head_dim"), (c_void_p, "q k v o lse"), (Strides, "q_strides k_strides v_strides o_strides"),
        (c_uint32, "programmatic_launch reserved"))


class Capability(_Sized):
    _fields_ = _fields(
        (c_size_t, "struct_size"), (c_uint32, "ordinal major minor shared_optin_bytes multiprocessors reserved"))


class KernelInfo(_Sized):
    _fields_ = _fields(
        (c_size_t, "struct_size"), (c_char_p, "name family models cubins"),
        (c_uint32, "dtype head_dim v_head_dim group masks row_alignment block_q block_kv threads shared_bytes has_ptx reserved"))


def _load():
    name = "attnpack.dll" if sys.platform == "win32" else "libattnpack.so"
    here = os.path.dirname(os.path.abspath(__file__))
    places = [os.path.join(here, folder, name) for folder in (".", "../../target/release")]
    path = os.environ.get("ATTNPACK_LIBRARY") or next(filter(os.path.exists, places), name)
    try:
        lib = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"{error}; run `cargo build --release`, or set ATTNPACK_LIBRARY to the library's path") from error
    for function, result, arguments in [
        ("version", c_uint32, []), ("build_info", c_char_p, []), ("last_error", c_char_p, []),
        ("device_create", c_uint32, [c_uint32, POINTER(c_void_p)]), ("device_destroy", None, [c_void_p]),
        ("device_capability", c_uint32, [c_void_p, POINTER(Capability)]), ("warm_up_all", c_uint32, [c_void_p]),
        ("prefill", c_uint32, [c_void_p, POINTER(Params), c_void_p]), ("warm_up", c_uint32, [c_void_p, POINTER(Params)]),
        ("kernel_count", c_size_t, []), ("kernel_at", c_uint32, [c_size_t, POINTER(KernelInfo)]),
    ]:
        declared = getattr(lib, "attnpack_" + function)
        declared.restype, declared.argtypes = result, arguments
    version = lib.attnpack_version() // 100
    if version != VERSION:
        raise ImportError(f"{path} is attnpack {version // 100}.{version % 100}, and this file is for 0.1")
    return lib


_lib = _load()


def _check(status):
    if status:
        raise (Unsupported if status in UNSUPPORTED else Error)(status, _lib.attnpack_last_error().decode())


def kernels():
    """The catalogue, a list of KernelInfo. Needs no GPU."""
    infos = [KernelInfo() for _ in range(_lib.attnpack_kernel_count())]
    for index, info in enumerate(infos):
        _check(_lib.attnpack_kernel_at(index, byref(info)))
    return infos


class Device:
    """The GPU of the context that is current on this thread. Launches take raw addresses; see prefill() for tensors."""

    def __init__(self, policy=CUBIN_FIRST):
        self._handle = c_void_p()
        _check(_lib.attnpack_device_create(policy, byref(self._handle)))

    def close(self, _destroy=_lib.attnpack_device_destroy):
        handle, self._handle = self._handle, None
        _destroy(handle)

    __del__ = close

    def launch(self, params, stream=None):
        """Queues a problem on a CUstream, given as an integer; None is the default stream of the current context."""
        _check(_lib.attnpack_prefill(self._handle, byref(params), stream))

    def warm_up(self, params=None):
        """Loads a problem's kernel, or every kernel, into the current context."""
        _check(_lib.attnpack_warm_up(self._handle, byref(params)) if params else _lib.attnpack_warm_up_all(self._handle))

    def capability(self):
        capability = Capability()
        _check(_lib.attnpack_device_capability(self._handle, byref(capability)))
        return capability


@functools.lru_cache(maxsize=4096)
def _problem(q, k, v, out, causal, scale):
    """Checks what does not depend on addresses, and makes the Params to copy. A tensor is (dtype, shape, strides)."""
    tensors = dict(q=q, k=k, v=v, out=out)
    for name, (_, shape, strides) in tensors.items():
        if len(shape) != 4:
            raise ValueError(f"{name} has the shape {list(shape)}; it must be [batch, seq, heads, head_dim]")
        if shape[3] > 1 and strides[3] != 1:
            raise ValueError(f"the last dimension of {name} has the stride {strides[3]}; it must be contiguous")
        if all(size > 1 and stride == 0 for size, stride in zip(shape[:3], strides)):
            raise ValueError(f"{name} is one row, expanded along batch, seq and heads; make it contiguous")
    dtypes, shapes, _ = zip(*tensors.values())
    if len(set(dtypes)) > 1 or str(dtypes[0]) not in DTYPES:
        raise ValueError(f"q, k, v, out are {', '.join(map(str, dtypes))}; all must be float16, float32, PyTorch's bfloat16")
    (batch, q_len, q_heads, head_dim), (_, kv_len, kv_heads, _), (*_, v_head_dim) = shapes[:3]
    if shapes[2][:3] != shapes[1][:3] or shapes[3] != (*shapes[0][:3], v_head_dim) or shapes[1][::3] != (batch, head_dim):
        sizes = ", ".join(f"{name} {list(shape)}" for name, shape in zip(tensors, shapes))
        raise ValueError(f"the shapes are {sizes}; v must be like k and out like q, with a head_dim "
                         "that may be another one, and batch and head_dim of q and k the same")
    if scale is not None and not 0 < c_float(scale).value < math.inf:
        raise ValueError(f"scale is {scale}; it must be positive and finite in float32, or None for 1 / sqrt(head_dim)")
    # The stride of a dimension of size 1 means nothing; frameworks put anything there.
    q_strides, k_strides, v_strides, o_strides = (
        Strides(*(stride if size > 1 else shape[3] for size, stride in zip(shape[:3], strides)))
        for _, shape, strides in tensors.values())
    return Params(dtype=DTYPES[str(dtypes[0])], mask=CAUSAL if causal else FULL, batch=batch, q_len=q_len, kv_len=kv_len,
                  q_heads=q_heads, kv_heads=kv_heads, head_dim=head_dim, v_head_dim=v_head_dim, scale=scale or 0.0,
                  q_strides=q_strides, k_strides=k_strides, v_strides=v_strides, o_strides=o_strides)


def device(ordinal, _made={}):
    """The Device that prefill() uses for a GPU; at first use the context of that GPU must be current."""
    return _made.get(ordinal) or _made.setdefault(ordinal, Device())


def prefill(q, k, v, *, causal=False, scale=None, out=None, lse=False, stream=None, programmatic_launch=False):
    """softmax(scale * Q K^T) V per head, asynchronously on a stream. Returns out, or (out, lse) if lse is asked for.

    q is [batch, q_len, q_heads, head_dim], k and v are [batch, kv_len, kv_heads, head_dim], where v and out may have a head_dim
    of their own, on one GPU, in float16, bfloat16 or float32, with any strides but a contiguous last dimension: PyTorch tensors, or what has __cuda_array_interface__
    (no bfloat16 there). Query head h reads KV head h // (q_heads // kv_heads).

    causal: query i sees the keys up to i + kv_len - q_len, so that new tokens see all of a cache.
    scale:  None is 1 / sqrt(head_dim).
    out:    where the result goes, shaped like q. None allocates it, for PyTorch and CuPy.
    lse:    True returns the log-sum-exp too, float32 [batch, q_heads, q_len]; an array of yours is filled.
    stream: of PyTorch or CuPy, or a CUstream as an integer. None: PyTorch's current stream, or that which the arrays name.
    programmatic_launch: True lets the kernel start while the one before it in the stream still runs, where it can (Hopper, 16
            bits). The result is the same; attnpack.h says what it asks of other kernels that are launched so.

    The first call that needs a kernel loads it, which is an Error while a CUDA graph is captured: call once before, or
    device(ordinal).warm_up(). Raises ValueError for tensors that do not fit, Unsupported where there is no kernel.
    """
    torch = sys.modules.get("torch")
    torch = torch if torch is not None and isinstance(q, torch.Tensor) else None
    view = _interface_view if torch is None else _torch_view
    stream = getattr(stream, "cuda_stream", getattr(stream, "ptr", stream))
    lse = None if lse is False else lse
    views = [view("q", q), view("k", k), view("v", v)]
    out = _empty(torch, q, (*views[0][1][1][:-1], *views[2][1][1][-1:])) if out is None else out
    views.append(view("out", out))
    params = Params.from_buffer_copy(_problem(views[0][1], views[1][1], views[2][1], views[3][1], bool(causal), scale))
    params.programmatic_launch = bool(programmatic_launch)
    params.q, params.k, params.v, params.o = views[0][0], views[1][0], views[2][0], views[3][0]
    if lse is not None:
        expected = (params.batch, params.q_heads, params.q_len)
        lse = _empty(torch, q, expected, "float32") if lse is True else lse
        views.append(view("lse", lse))
        params.lse, (dtype, shape, strides), _ = views[-1]
        if DTYPES.get(str(dtype)) != F32 or tuple(shape) != expected or tuple(strides) != _dense(expected):
            raise ValueError(f"lse is {dtype} {shape}, strides {strides}; it must be dense float32 {expected}")
    places = {place for _, _, place in views} - {None}
    if len(places) > 1 and (torch or stream is None):
        raise ValueError(f"the tensors belong to different {'GPUs' if torch else 'streams; pass one'}: {sorted(places)}")
    if torch is None:
        device(_current_ordinal()).launch(params, next(iter(places), None) if stream is None else stream)
    else:
        _launch_torch(torch, views[0][2], params, stream)
    return out if lse is None else (out, lse)


def _torch_view(name, tensor):
    """(address, (dtype, shape, strides), ordinal)"""
    torch = sys.modules["torch"]
    if not isinstance(tensor, torch.Tensor) or not tensor.is_cuda:
        found = f"{type(tensor).__name__} on {getattr(tensor, 'device', 'no device')}"
        raise ValueError(f"{name} is a {found}; it must be a PyTorch tensor on a GPU")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ValueError(f"{name} requires a gradient and there is no backward pass; use torch.no_grad() or detach it")
    return tensor.data_ptr(), (tensor.dtype, tensor.shape, tensor.stride()), tensor.get_device()


def _interface_view(name, array):
    """(address, (typestr, shape, strides in elements), stream) of a __cuda_array_interface__."""
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        raise ValueError(f"{name} is a {type(array).__name__}; it must be a PyTorch tensor or have __cuda_array_interface__")
    (address, read_only), typestr, shape = interface["data"], interface["typestr"], tuple(interface["shape"])
    size, strides = int(typestr[2:]), interface.get("strides")
    if read_only and name in ("out", "lse"):
        raise ValueError(f"{name} is read-only")
    if any(stride % size for stride in strides or ()):
        raise ValueError(f"the strides of {name} are {strides} bytes; they must be multiples of its {size}-byte elements")
    strides = _dense(shape) if strides is None else tuple(stride // size for stride in strides)
    return address, (typestr, shape, strides), interface.get("stream")


def _dense(shape):
    return tuple(math.prod(shape[i + 1:]) for i in range(len(shape)))


def _empty(torch, q, shape, dtype=None):
    if torch is not None:
        return q.new_empty(shape, dtype=getattr(torch, dtype) if dtype else None)
    if type(q).__module__.split(".")[0] != "cupy":
        raise ValueError(f"q is a {type(q).__name__}; out and lse are allocated for PyTorch and CuPy only, so pass yours")
    return sys.modules["cupy"].empty(shape, dtype or q.dtype)


def _launch_torch(torch, ordinal, params, stream):
    # The same as torch.cuda.current_stream(ordinal).cuda_stream, but cheaper.
    stream = torch._C._cuda_getCurrentRawStream(ordinal) if stream is None else stream
    if torch.cuda.current_device() != ordinal:
        with torch.cuda.device(ordinal):
            return _launch_torch(torch, ordinal, params, stream)
    try:
        device(ordinal).launch(params, stream)
    except Error as error:
        if error.status != NO_CONTEXT:
            raise
        torch.cuda.mem_get_info(ordinal)  # makes the context current: a new thread has none before it calls the CUDA runtime
        device(ordinal).launch(params, stream)


@functools.lru_cache(maxsize=None)
def _driver():
    try:
        return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None  # Device() says what is wrong


def _current_ordinal():
    ordinal = ctypes.c_int(-1)  # and stays so without a context, which Device() then tells
    _driver() and _driver().cuCtxGetDevice(byref(ordinal))
    return ordinal.value


def make():
    """For scripts that time attention functions: f(q, k, v, shape) on PyTorch's current stream."""
    return lambda q, k, v, shape: prefill(q, k, v, causal=shape["causal"])


def _gpu_text():
    context, cuda = c_void_p(), _driver()
    if cuda:
        cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(byref(context), 0) or cuda.cuCtxSetCurrent(context)
    try:
        has = Device().capability()
    except Error as error:
        return f"no GPU: {error}"
    return f"GPU {has.ordinal}: compute capability {has.major}.{has.minor}, {has.multiprocessors} multiprocessors"


if __name__ == "__main__":
    print(_lib.attnpack_build_info().decode())
    print(f"{'kernel':<48} {'rows on':>7} {'threads':>7} {'shared':>7}  machine code")
    for kernel in kernels():
        name, cubins = kernel.name.decode(), kernel.cubins.decode() or "none, PTX only"
        print(f"{name:<48} {kernel.row_alignment:>7} {kernel.threads:>7} {kernel.shared_bytes:>7}  {cubins}")
    print(_gpu_text())
