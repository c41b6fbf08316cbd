"""attnpack as an attention implementation of HuggingFace transformers (5.x).

    import huggingface
    huggingface.register()
    model = AutoModelForCausalLM.from_pretrained(name, dtype="auto", device_map="cuda", attn_implementation="attnpack")

Prompts and chunks of prompts run in attnpack. What it does not serve (padding, sliding windows, decoding, training, sizes
without a kernel) runs in the model's own attention; `calls` counts both, and each reason is printed once to standard error.

Run as a program, this compares the logits of small models with random weights, computed with attnpack and with PyTorch's
scaled_dot_product_attention, both in bfloat16, to a run in float32.
"""
import collections
import copy
import sys

import torch
import transformers
from transformers.masking_utils import sdpa_mask

import attnpack

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MAX_ERROR_RATIO = 1.5

calls = collections.Counter()  # "attnpack", or the reason why the model's own attention ran


def register():
    """Makes "attnpack" a name for attn_implementation=, in from_pretrained() and set_attn_implementation()."""
    transformers.AttentionInterface.register("attnpack", attention)
    transformers.AttentionMaskInterface.register("attnpack", mask)


def mask(batch_size, q_length, kv_length, q_offset=0, kv_offset=0, attention_mask=None, local_size=None,
         allow_is_causal_skip=True, **options):
    """The mask of a forward pass, made once for all layers: that of SDPA, so that the model's own attention can take it.

    None is causal, or no mask at all if the layer is not causal, and means the same to SDPA and attnpack only if the queries
    are as many as the keys. For new tokens after a cache SDPA needs the mask itself. If that is causal and nothing else, its
    attribute `causal_keys` tells so, and how many keys take part: a static cache has unused slots after them.
    """
    arguments = dict(batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset,
                     attention_mask=attention_mask, local_size=local_size, **options)
    causal_only = allow_is_causal_skip and kv_offset == 0 and (local_size is None or kv_length < local_size)
    if not causal_only or q_length in (1, kv_length) or torch.compiler.is_compiling():
        return sdpa_mask(allow_is_causal_skip=allow_is_causal_skip, **arguments)
    made = sdpa_mask(allow_is_causal_skip=False, **arguments)
    keys = int(q_offset) + q_length
    if attention_mask is None or attention_mask.shape[-1] >= keys and bool(attention_mask[:, :keys].all()):
        made.causal_keys = keys
    return made


def attention(module, query, key, value, attention_mask, **options):
    """Attention of a layer: query is [batch, heads, q_len, head_dim], the result [batch, q_len, heads, head_dim]."""
    if torch.compiler.is_compiling():  # decoding with a static cache: no Python to count in, and nothing for attnpack
        return own_attention(module, query, key, value, attention_mask, **options)
    is_causal = options.get("is_causal")
    is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    keys = getattr(attention_mask, "causal_keys", key.shape[2])
    reason = obstacle(query, key, value, attention_mask, is_causal, options)
    if reason is None:
        try:
            # Without a copy: prefill() takes any strides.
            q, k, v = (tensor.transpose(1, 2) for tensor in (query, key[:, :, :keys], value[:, :, :keys]))
            o = attnpack.prefill(q, k, v, causal=is_causal or attention_mask is not None, scale=options.get("scaling"))
            calls["attnpack"] += 1
            return o, None
        except attnpack.Unsupported as unsupported:
            reason = str(unsupported)
    if reason not in calls:
        print(f"attnpack: the model's own attention serves some calls: {reason}", file=sys.stderr)
    calls[reason] += 1
    return own_attention(module, query, key, value, attention_mask, **options)


def obstacle(query, key, value, attention_mask, is_causal, options):
    """Why a call is not for attnpack, or None. For the sizes see attnpack.Unsupported."""
    q_len, keys = query.shape[2], key.shape[2]
    if not query.is_cuda or query.dtype not in DTYPES or not query.dtype == key.dtype == value.dtype:
        return f"tensors in {query.dtype}, {key.dtype} and {value.dtype} on {query.device}"
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value)):
        return "gradients: there is no backward pass"
    if options.get("dropout"):
        return "dropout"
    if options.get("softcap") is not None:
        return "soft-capped scores"
    if options.get("s_aux") is not None:
        return "attention sinks"
    if options.get("position_bias") is not None:
        return "a position bias"
    if options.get("output_attentions"):
        return "attention weights are asked for"
    if value.shape[-1] != key.shape[-1]:
        return f"head_dim {key.shape[-1]} of the keys and {value.shape[-1]} of the values"
    if q_len == 1:
        return "decoding: one query token"
    if options.get("sliding_window") and keys > options["sliding_window"]:
        return "a sliding window"
    if attention_mask is not None and not hasattr(attention_mask, "causal_keys"):
        return "a mask that is not only causal, such as padding"
    if attention_mask is None and is_causal and q_len != keys:
        return "no mask for queries and keys of different numbers"
    return None


def own_attention(module, query, key, value, attention_mask, **options):
    """SDPA; for what SDPA ignores (soft-capped scores, sinks) the eager function beside the model's class."""
    if options.get("softcap") is None and options.get("s_aux") is None:
        return transformers.AttentionInterface()["sdpa"](module, query, key, value, attention_mask, **options)
    if attention_mask is None and getattr(module, "is_causal", True) and query.shape[2] > 1:
        attention_mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        zero = torch.zeros((), dtype=query.dtype, device=query.device)
        attention_mask = torch.where(attention_mask, zero, torch.finfo(query.dtype).min)
    eager = sys.modules[type(module).__module__].eager_attention_forward
    return eager(module, query, key, value, attention_mask, **options)


# ---- The comparison


def models():
    """(name, config): the heads and widths of published models, with few layers and a small vocabulary."""
    common = dict(num_hidden_layers=3, vocab_size=2048, max_position_embeddings=8192, pad_token_id=0)
    yield "Llama-3.2-1B", transformers.LlamaConfig(
        hidden_size=2048, intermediate_size=8192, num_attention_heads=32, num_key_value_heads=8, head_dim=64,
        rope_parameters=dict(rope_type="default", rope_theta=500000.0), **common)
    yield "Qwen2.5-1.5B", transformers.Qwen2Config(
        hidden_size=1536, intermediate_size=8960, num_attention_heads=12, num_key_value_heads=2, **common)
    yield "Gemma-2B", transformers.GemmaConfig(
        hidden_size=2048, intermediate_size=16384, num_attention_heads=8, num_key_value_heads=1, head_dim=256, **common)


@torch.no_grad()
def logits(model, tokens, padding, static):
    """Logits of a prompt, a second chunk after it, and three tokens one by one, with one cache."""
    cache = transformers.StaticCache(config=model.config, max_cache_len=tokens.shape[1] + 64) if static else None
    cache = cache or transformers.DynamicCache(config=model.config)
    parts, start = [], 0
    for end in (700, 1000, 1001, 1002, 1003):
        seen = None if padding is None else padding[:, :end]
        parts.append(model(tokens[:, start:end], attention_mask=seen, past_key_values=cache).logits.float())
        start = end
    return torch.cat(parts, 1)


def has_kernel(head_dim):
    """Whether attnpack has a kernel for this GPU."""
    row = torch.zeros(1, 1, 1, head_dim, dtype=torch.bfloat16, device="cuda")
    try:
        attnpack.prefill(row, row, row)
        return True
    except attnpack.Unsupported:
        return False


def compare(name, model, exact_model, batch, padded, static):
    """Prints a line of the table; whether attnpack is as accurate as SDPA and served what it should."""
    torch.manual_seed(batch)
    tokens = torch.randint(1, model.config.vocab_size, (batch, 1003), device="cuda")
    padding = torch.ones_like(tokens) if padded else None
    if padded:
        padding[0, :150] = 0  # on the left, as for generation
    results = {}
    for attn in ("attnpack", "sdpa"):
        model.set_attn_implementation(attn)
        before = calls.copy()
        results[attn] = logits(model, tokens, padding, static)
        if attn == "attnpack":
            made = calls - before
    exact = logits(exact_model, tokens, padding, static)
    real = slice(None) if padding is None else padding.bool()
    errors = {attn: ((got - exact)[real].norm() / exact[real].norm()).item() for attn, got in results.items()}
    largest = {attn: (got - exact)[real].abs().max().item() for attn, got in results.items()}
    ratio = errors["attnpack"] / errors["sdpa"]
    served, layers = made["attnpack"], model.config.num_hidden_layers
    head_dim = model.model.layers[0].self_attn.head_dim
    expected = 2 * layers if has_kernel(head_dim) and not padded else 0
    right = served == expected and sum(made.values()) == 5 * layers and ratio <= MAX_ERROR_RATIO
    case = f"batch {batch}{', padded' if padded else ''}{', static cache' if static else ''}"
    print(f"{name:<14} {head_dim:>4}  {case:<22} {served:>8} {sum(made.values()) - served:>4}   "
          f"{errors['attnpack']:.2e} {errors['sdpa']:.2e} {ratio:>5.2f}   {largest['attnpack']:.3f} {largest['sdpa']:.3f}   "
          f"{'ok' if right else 'FAILED'}", flush=True)
    return right


def main():
    torch.backends.cuda.matmul.allow_tf32 = False
    register()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, {torch.cuda.get_device_name()}")
    print("a prompt of 700 tokens, a chunk of 300 more, 3 decoded; errors of the logits against float32")
    print(f"{'heads of':<14} {'dim':>4}  {'case':<22} {'attnpack':>8} {'own':>4}   {'attnpack':<8} {'sdpa':<8} ratio   "
          "largest differences")
    rights = []
    for name, config in models():
        torch.manual_seed(0)
        with torch.device("cuda"):
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
        exact_model = copy.deepcopy(model).float()
        for batch, padded, static in ((1, False, False), (2, False, False), (2, True, False), (1, False, True)):
            rights.append(compare(name, model, exact_model, batch, padded, static))
    for reason, count in calls.items():
        print(f"{count:>5} calls: {reason}")
    return 0 if all(rights) else 1


if __name__ == "__main__":
    sys.exit(main())
