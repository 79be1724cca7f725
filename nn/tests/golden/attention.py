"""Attention layers and blocks of the Transformer."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from case import Suite, activation

# The inference fast path treats padded positions in another way.
torch.backends.mha.set_fastpath_enabled(False)

BLOCKED = float("-inf")


def padding(*lengths, of):
    """u8 `[B, T]`, 1 behind each length."""
    return torch.stack([torch.arange(of) >= n for n in lengths])


def later(q, k=None):
    """True = blocked: keys behind the query."""
    k = k or q
    return torch.arange(k)[None, :] > torch.arange(q)[:, None]


def blocked(mask):
    """The float mask of a mask of what is not seen."""
    return torch.zeros(mask.shape, dtype=torch.float64).masked_fill(mask, BLOCKED)


# The second query sees no key: its row of the mask is -inf.
EMPTY_ROW = torch.tensor([[0.5, BLOCKED, -1.0], [BLOCKED, BLOCKED, BLOCKED], [0.0, 0.25, BLOCKED]]).double()


class Attention(nn.Module):
    """Single-head attention with projections."""

    def __init__(self, d, a, dc=None, bias=False):
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(d, a, bias), nn.Linear(dc or d, a, bias)
        self.v_proj, self.out_proj = nn.Linear(dc or d, a, bias), nn.Linear(a, d, bias)

    def forward(self, query, context=None, attn_mask=None, key_padding_mask=None, is_causal=False):
        c = query if context is None else context
        single = query.dim() == 2
        q, k, v = self.q_proj(query), self.k_proj(c), self.v_proj(c)
        if single:
            q, k, v = q[None], k[None], v[None]
        bias = torch.zeros(q.shape[0], q.shape[1], k.shape[1], dtype=q.dtype)
        if attn_mask is not None:
            m = attn_mask[:, 0] if attn_mask.dim() == 4 else attn_mask
            bias = bias + (
                m if m.is_floating_point() else torch.zeros_like(m, dtype=q.dtype).masked_fill(m.bool(), BLOCKED)
            )
        if key_padding_mask is not None:
            bias = bias.masked_fill(key_padding_mask.bool()[:, None, :], BLOCKED)
        if is_causal:
            bias = bias.masked_fill(later(q.shape[1], k.shape[1]), BLOCKED)
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        y = self.out_proj(o)
        return y[0] if single else y


def single_head(s):
    def case(label, d, a, inputs, args=None, training=True, **options):
        config = {"embed_dim": d, "attention_size": a, **options}
        causal = args or {k: v for k, v in options.items() if k == "is_causal"}
        bias = options.get("bias", False)
        # A bias of all keys moves the scores of a query alike.
        silent = ("k_proj.bias",) if bias else ()
        s.case(
            "attention",
            label,
            config,
            Attention(d, a, options.get("context_dim"), bias),
            inputs,
            training=training,
            args=args,
            call=lambda m, **v: m(**v, **causal),
            silent=silent,
        )

    case("causal_option", 4, 2, {"query": (2, 4, 4)}, is_causal=True)
    case("self", 4, 3, {"query": (2, 5, 4)})
    case("unbatched_causal", 3, 4, {"query": (4, 3)}, args={"is_causal": True})
    case("context_bias", 4, 5, {"query": (2, 3, 4), "context": (2, 6, 3)}, context_dim=3, bias=True)
    case("float_mask", 4, 4, {"query": (2, 3, 4), "attn_mask": (3, 3)})
    case(
        "masks_eval",
        3,
        2,
        {
            "query": (2, 3, 3),
            "context": (2, 4, 3),
            "attn_mask": torch.tensor([[0, 1, 0, 0], [0, 0, 0, 1], [1, 0, 1, 0]]).bool(),
            "key_padding_mask": padding(4, 2, of=4),
        },
        training=False,
        dropout=0.4,
    )
    case(
        "row_without_keys", 3, 3, {"query": (2, 2, 3), "context": (2, 3, 3), "key_padding_mask": padding(0, 2, of=3)}
    )
    masked = {"query": (2, 3, 4), "context": (2, 5, 4), "attn_mask": (2, 1, 3, 5)}
    case("float_mask_of_samples_padding", 4, 3, {**masked, "key_padding_mask": padding(5, 2, of=5)})
    case("causal_context_float_mask", 4, 3, {**masked, "attn_mask": (3, 5)}, args={"is_causal": True})
    case("float_mask_row_without_keys", 3, 2, {"query": (2, 3, 3), "attn_mask": EMPTY_ROW})


class Mha(nn.Module):
    """torch.nn.MultiheadAttention with the arguments of the entry. Asked for weights it would give NaN in rows without
    keys."""

    def __init__(self, e, h, out_proj=True, rope=None, alibi=False, **options):
        super().__init__()
        inner = nn.MultiheadAttention(e, h, batch_first=True, **options)
        self.hidden = [inner]
        for n, p in inner.named_parameters(recurse=False):
            self.register_parameter(n, p)
        if out_proj:
            self.out_proj = inner.out_proj
        elif options.get("bias", True):
            self.out_proj = nn.Module()
            self.out_proj.bias = inner.out_proj.bias
        self.e, self.h, self.full, self.rope, self.alibi = e, h, out_proj, rope, alibi

    def slopes(self):
        n = 2 ** math.floor(math.log2(self.h))
        first = [2 ** (-8 * (i + 1) / n) for i in range(n)]
        more = [2 ** (-8 * (i + 1) / (2 * n)) for i in range(0, 2 * n, 2)]
        return torch.tensor((first + more)[: self.h], dtype=torch.float64)

    def forward(self, query, key=None, value=None, attn_mask=None, key_padding_mask=None, is_causal=False):
        key = query if key is None else key
        value = key if value is None else value
        tq, tk = query.shape[-2], key.shape[-2]
        batch = query.shape[0] if query.dim() == 3 else 1
        if is_causal:
            own = torch.zeros(tq, tk, dtype=torch.float64).masked_fill(later(tq, tk), BLOCKED)
            attn_mask = own if attn_mask is None else attn_mask + own
        if self.alibi:
            far = (torch.arange(tq)[:, None] - torch.arange(tk)[None, :]).abs()
            bias = (-self.slopes()[:, None, None] * far).repeat(batch, 1, 1)
            attn_mask = bias if attn_mask is None else attn_mask + bias
        if attn_mask is not None and attn_mask.dim() == 4:
            attn_mask = attn_mask.expand(batch, self.h, tq, tk).flatten(0, 1)
        if attn_mask is not None and not attn_mask.is_floating_point():
            attn_mask = attn_mask.bool()
        if key_padding_mask is not None:
            key_padding_mask = key_padding_mask.bool()
            if attn_mask is not None and attn_mask.is_floating_point():
                key_padding_mask = blocked(key_padding_mask)
        weights = dict(self.named_parameters())
        if not self.full:
            weights["out_proj.weight"] = torch.eye(self.e, dtype=torch.float64)
        if key_padding_mask is not None and self.rope is not None:
            keys = key_padding_mask if key_padding_mask.is_floating_point() else blocked(key_padding_mask)
            attn_mask = keys[:, None, None, :] if attn_mask is None else attn_mask + keys[:, None, None, :]
        if self.rope is None:
            how = {"attn_mask": attn_mask, "key_padding_mask": key_padding_mask, "need_weights": False}
            return torch.func.functional_call(self.hidden[0], weights, (query, key, value), how)[0]
        return self.rotated(query, key, value, attn_mask)

    def rotated(self, query, key, value, attn_mask):
        """With rotary positions, which PyTorch's module has not."""
        w, b = self.in_proj_weight.chunk(3), self.in_proj_bias.chunk(3)
        split = lambda t: t.unflatten(-1, (self.h, -1)).transpose(-2, -3)
        q, k, v = (split(F.linear(t, w[i], b[i])) for i, t in enumerate((query, key, value)))
        q, k = rotate(q, self.rope), rotate(k, self.rope)
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
        return self.out_proj(o.transpose(-2, -3).flatten(-2))


class GroupedMha(nn.Module):
    """Multi-head attention whose groups of query heads share keys and values, by PyTorch's own grouped attention."""

    def __init__(self, e, h, kv, kdim=None, vdim=None, bias=True, rope=None):
        super().__init__()
        width = e // h * kv
        if kdim is None and vdim is None:
            self.in_proj_weight = nn.Parameter(torch.empty(e + 2 * width, e))
        else:
            for name, rows, columns in (("q", e, e), ("k", width, kdim or e), ("v", width, vdim or e)):
                self.register_parameter(f"{name}_proj_weight", nn.Parameter(torch.empty(rows, columns)))
        if bias:
            self.in_proj_bias = nn.Parameter(torch.empty(e + 2 * width))
        self.out_proj = nn.Linear(e, e, bias)
        self.widths, self.heads, self.rope = [e, width, width], [h, kv, kv], rope

    def forward(self, query, key=None, value=None, attn_mask=None, key_padding_mask=None, is_causal=False):
        key = query if key is None else key
        value = key if value is None else value
        if hasattr(self, "in_proj_weight"):
            weights = self.in_proj_weight.split(self.widths)
        else:
            weights = [self.q_proj_weight, self.k_proj_weight, self.v_proj_weight]
        biases = self.in_proj_bias.split(self.widths) if hasattr(self, "in_proj_bias") else [None] * 3
        parts = zip((query, key, value), weights, biases, self.heads)
        q, k, v = (F.linear(t, w, b).unflatten(-1, (n, -1)).transpose(-2, -3) for t, w, b, n in parts)
        if self.rope is not None:
            q, k = rotate(q, self.rope), rotate(k, self.rope)
        if is_causal:
            own = blocked(later(q.shape[-2], k.shape[-2]))
            attn_mask = own if attn_mask is None else attn_mask + own
        if key_padding_mask is not None:
            keys = blocked(key_padding_mask.bool())[:, None, None, :]
            attn_mask = keys if attn_mask is None else attn_mask + keys
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, enable_gqa=True)
        return self.out_proj(o.transpose(-2, -3).flatten(-2))


def rotate(x, base):
    """Pairs (2i, 2i + 1) of `[.., T, d]`, by complex numbers."""
    t, d = x.shape[-2:]
    angle = torch.arange(t)[:, None] * base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    z = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(z).flatten(-2)


def grouped(s):
    def case(label, e, h, kv, inputs, args=None, training=True, rope=None, **options):
        config = {"embed_dim": e, "num_heads": h, "num_kv_heads": kv, **options}
        if rope is not None:
            config["rope"] = {"base": rope}
        own = {k: v for k, v in options.items() if k not in ("dropout", "is_causal")}
        s.case(
            "multi_head_attention",
            label,
            config,
            GroupedMha(e, h, kv, rope=rope, **own),
            inputs,
            training=training,
            args=args,
            call=lambda m, **v: m(**v, **(args or {})),
        )

    case("grouped", 8, 4, 2, {"query": (2, 3, 8)})
    case("multi_query_causal_no_bias", 6, 3, 1, {"query": (2, 4, 6)}, {"is_causal": True}, bias=False)
    case("grouped_widths", 8, 4, 2, {"query": (2, 3, 8), "key": (2, 5, 3), "value": (2, 5, 6)}, kdim=3, vdim=6)
    case(
        "grouped_rope_padding",
        8,
        4,
        2,
        {"query": (2, 4, 8), "key_padding_mask": padding(4, 2, of=4)},
        rope=10000.0,
    )
    case(
        "grouped_float_mask_eval",
        8,
        4,
        2,
        {"query": (2, 3, 8), "key": (2, 4, 8), "attn_mask": (2, 4, 3, 4)},
        training=False,
        dropout=0.25,
    )
    masked = {"query": (2, 3, 8), "key": (2, 5, 8), "attn_mask": (3, 5)}
    case("grouped_causal_cross_float_mask", 8, 4, 2, masked, {"is_causal": True})
    case("grouped_float_mask_row_without_keys", 8, 4, 1, {"query": (2, 3, 8), "attn_mask": EMPTY_ROW})


def multi_head(s):
    def case(entry, label, e, h, inputs, args=None, training=True, rope=None, **options):
        config = {"embed_dim": e, "num_heads": h, **options}
        if rope is not None:
            config["rope"] = {"base": rope}
        causal = args or {k: v for k, v in options.items() if k == "is_causal"}
        options = {k: v for k, v in options.items() if k not in ("dropout", "is_causal")}
        s.case(
            entry,
            label,
            config,
            Mha(e, h, rope=rope, **options),
            inputs,
            training=training,
            args=args,
            call=lambda m, **v: m(**v, **causal),
        )

    mha = "multi_head_attention"
    case(mha, "self", 6, 2, {"query": (2, 4, 6)})
    case(mha, "long_causal", 24, 3, {"query": (1, 67, 24)}, args={"is_causal": True})
    case(mha, "cross_one_head", 4, 1, {"query": (2, 3, 4), "key": (2, 5, 4), "value": (2, 5, 4)})
    case(
        mha,
        "widths_no_bias",
        4,
        2,
        {"query": (2, 3, 4), "key": (2, 4, 3), "value": (2, 4, 5)},
        kdim=3,
        vdim=5,
        bias=False,
    )
    case(mha, "unbatched_causal", 6, 3, {"query": (5, 6)}, args={"is_causal": True})
    case(mha, "causal_option", 4, 2, {"query": (2, 3, 4), "key": (2, 3, 4)}, is_causal=True)
    case(mha, "key_shared_float_mask", 4, 2, {"query": (2, 3, 4), "key": (2, 4, 4), "attn_mask": (3, 4)})
    case(
        mha,
        "mask_of_heads_eval",
        4,
        2,
        {"query": (2, 3, 4), "attn_mask": lambda g: torch.rand(2, 2, 3, 3, generator=g).triu(0) > 0.6},
        training=False,
        dropout=0.3,
    )
    case(mha, "padding", 6, 2, {"query": (3, 4, 6), "key_padding_mask": padding(4, 1, 3, of=4)})
    case(mha, "row_without_keys", 4, 2, {"query": (2, 3, 4), "key_padding_mask": padding(0, 2, of=3)})
    case(mha, "rope", 8, 2, {"query": (2, 4, 8)}, rope=10000.0)
    case(mha, "rope_base_causal", 4, 1, {"query": (1, 5, 4)}, rope=100.0, args={"is_causal": True})
    case(mha, "rope_padding", 8, 2, {"query": (2, 4, 8), "key_padding_mask": padding(4, 2, of=4)}, rope=10000.0)
    case(
        mha,
        "float_mask_of_heads_padding",
        4,
        2,
        {
            "query": (2, 3, 4),
            "key": (2, 4, 4),
            "attn_mask": (2, 2, 3, 4),
            "key_padding_mask": padding(4, 3, of=4),
        },
    )
    causal = {"is_causal": True}
    case(mha, "causal_cross_float_mask", 4, 2, {"query": (2, 3, 4), "key": (2, 5, 4), "attn_mask": (3, 5)}, causal)
    case(mha, "float_mask_row_without_keys", 4, 2, {"query": (2, 3, 4), "attn_mask": EMPTY_ROW})
    # Scores in the tens: many rows of the softmax are nearly one-hot.
    case(mha, "large_scores", 6, 2, {"query": lambda g: 4 * torch.randn(2, 4, 6, generator=g, dtype=torch.float64)})
    case(mha, "alibi", 8, 4, {"query": (2, 3, 8)}, alibi=True)
    case(mha, "alibi_three_heads", 6, 3, {"query": (2, 4, 6), "key": (2, 3, 6)}, alibi=True)

    own = "self_attention"
    case(own, "one_head", 4, 1, {"query": (2, 3, 4)})
    case(own, "causal_no_bias", 6, 3, {"query": (2, 4, 6)}, bias=False, args={"is_causal": True})
    case(own, "causal_option", 4, 2, {"query": (1, 4, 4)}, is_causal=True)
    case(own, "no_out_proj", 4, 2, {"query": (2, 3, 4)}, out_proj=False)
    case(own, "padding_unbatched_no_mask", 6, 2, {"query": (3, 6)}, training=False, dropout=0.2)
    case(own, "masks", 4, 2, {"query": (2, 4, 4), "attn_mask": (4, 4), "key_padding_mask": padding(3, 4, of=4)})
    case(own, "causal_float_mask_of_heads", 4, 2, {"query": (2, 3, 4), "attn_mask": (2, 2, 3, 3)}, causal)
    case(own, "float_mask_row_without_keys", 4, 2, {"query": (2, 3, 4), "attn_mask": EMPTY_ROW})


class CrossAttention(nn.Module):
    def __init__(self, dq, dc, h, qkv_bias=False, out_bias=True):
        super().__init__()
        self.to_q, self.to_k = nn.Linear(dq, dq, qkv_bias), nn.Linear(dc, dq, qkv_bias)
        self.to_v, self.to_out = nn.Linear(dc, dq, qkv_bias), nn.Linear(dq, dq, out_bias)
        self.h = h

    def forward(self, query, context=None, attn_mask=None, key_padding_mask=None):
        x = query.flatten(2).transpose(1, 2) if query.dim() == 4 else query
        single = x.dim() == 2
        x = x[None] if single else x
        c = x if context is None else (context[None] if single else context)
        split = lambda t: t.unflatten(-1, (self.h, -1)).transpose(1, 2)
        q, k, v = split(self.to_q(x)), split(self.to_k(c)), split(self.to_v(c))
        bias = torch.zeros(q.shape[2], k.shape[2], dtype=q.dtype)
        if attn_mask is not None:
            bias = bias + (attn_mask if attn_mask.is_floating_point() else blocked(attn_mask.bool()))
        if key_padding_mask is not None:
            bias = bias + blocked(key_padding_mask.bool())[:, None, None, :]
        k, v = (t.expand(q.shape[0], *t.shape[1:]) for t in (k, v))
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        y = self.to_out(o.transpose(1, 2).flatten(2))
        if query.dim() == 4:
            return y.transpose(1, 2).unflatten(2, query.shape[2:])
        return y[0] if single else y


def cross(s):
    def case(label, dq, dc, h, inputs, training=True, **options):
        own = {k: v for k, v in options.items() if k in ("qkv_bias", "out_bias")}
        s.case(
            "cross_attention",
            label,
            {"query_dim": dq, "context_dim": dc, "num_heads": h, **options},
            CrossAttention(dq, dc, h, **own),
            inputs,
            training=training,
            call=lambda m, **v: m(**v),
            silent=("to_k.bias",) if own.get("qkv_bias") else (),
        )

    case("sequence", 4, 3, 2, {"query": (2, 3, 4), "context": (2, 5, 3)})
    case("image", 4, 6, 2, {"query": (2, 4, 2, 3), "context": (2, 3, 6)})
    case(
        "context_for_all_bias", 6, 4, 3, {"query": (3, 2, 6), "context": (1, 4, 4)}, qkv_bias=True, zero_init_out=True
    )
    case("self_no_out_bias_eval", 4, 4, 1, {"query": (2, 3, 4)}, out_bias=False, dropout=0.1, training=False)
    case("unbatched", 4, 5, 4, {"query": (3, 4), "context": (2, 5)})
    case(
        "masks",
        4,
        3,
        2,
        {
            "query": (2, 2, 4),
            "context": (2, 4, 3),
            "attn_mask": torch.tensor([[0, 1, 0, 0], [0, 0, 1, 0]]).bool(),
            "key_padding_mask": padding(4, 3, of=4),
        },
    )
    masked = {"query": (2, 2, 4), "context": (2, 3, 3), "attn_mask": (2, 2, 2, 3)}
    case("float_mask_of_heads_padding", 4, 3, 2, {**masked, "key_padding_mask": padding(3, 1, of=3)})
    case("float_mask_row_without_keys", 4, 3, 2, {**masked, "query": (2, 3, 4), "attn_mask": EMPTY_ROW})


def attention():
    s = Suite("attention")
    single_head(s)
    multi_head(s)
    grouped(s)
    cross(s)
    return s


def encoder(s):
    def case(label, shape, args=None, training=True, masks=None, **options):
        options = {"d_model": shape[-1], "nhead": 2, "dim_feedforward": 5, "dropout": 0.0, **options}
        plain = {k: v for k, v in options.items() if k != "is_causal"}
        oracle = nn.TransformerEncoderLayer(**{**plain, "dropout": 0.0}, batch_first=True)

        def call(m, src, src_mask=None, src_key_padding_mask=None):
            if (args or options).get("is_causal"):
                src_mask = later(src.shape[-2])
            flags = [
                None if t is None else t if t.is_floating_point() else t.bool()
                for t in (src_mask, src_key_padding_mask)
            ]
            return m(src, src_mask=flags[0], src_key_padding_mask=flags[1])

        s.case(
            "transformer_encoder",
            label,
            options,
            oracle,
            {"src": shape, **(masks or {})},
            training=training,
            args=args,
            call=call,
        )

    case("post_norm", (2, 3, 4))
    case("pre_norm_gelu", (2, 4, 6), norm_first=True, activation="gelu", nhead=3)
    case("causal_unbatched", (4, 4), args={"is_causal": True}, layer_norm_eps=1e-3)
    case("causal_option", (2, 4, 4), is_causal=True)
    case("no_bias_pre_norm", (2, 3, 4), bias=False, norm_first=True, nhead=1)
    case("padding_eval", (2, 4, 4), masks={"src_key_padding_mask": padding(2, 4, of=4)}, training=False, dropout=0.3)
    case("float_mask", (2, 3, 4), masks={"src_mask": (3, 3)}, dim_feedforward=3)
    case("float_mask_row_without_keys", (2, 3, 4), masks={"src_mask": EMPTY_ROW})


MEMORY_MASK = torch.tensor([[0, 0, 1], [1, 0, 0], [0, 1, 0], [0, 0, 0]]).bool()


def decoder(s):
    def case(label, tgt, memory, args=None, training=True, masks=None, **options):
        options = {"d_model": tgt[-1], "nhead": 2, "dim_feedforward": 5, "dropout": 0.0, **options}
        oracle = nn.TransformerDecoderLayer(**{**options, "dropout": 0.0}, batch_first=True)

        def call(m, tgt, memory, **masks):
            masks = {n: t if t.is_floating_point() else t.bool() for n, t in masks.items()}
            if (args or {}).get("tgt_is_causal"):
                masks["tgt_mask"] = later(tgt.shape[-2])
            if (args or {}).get("memory_is_causal"):
                masks["memory_mask"] = later(tgt.shape[-2], memory.shape[-2])
            return m(tgt, memory, **masks)

        s.case(
            "transformer_decoder",
            label,
            options,
            oracle,
            {"tgt": tgt, "memory": memory, **(masks or {})},
            training=training,
            args=args,
            call=call,
        )

    causal = {"tgt_is_causal": True}
    case("post_norm", (2, 3, 4), (2, 5, 4), args=causal)
    case("pre_norm_gelu", (2, 4, 6), (2, 3, 6), args=causal, norm_first=True, activation="gelu", nhead=3)
    case("masks", (2, 4, 4), (2, 3, 4), masks={"tgt_mask": (4, 4), "memory_mask": MEMORY_MASK})
    case(
        "padding_eval",
        (2, 3, 4),
        (2, 4, 4),
        training=False,
        dropout=0.2,
        masks={"tgt_key_padding_mask": padding(3, 2, of=3), "memory_key_padding_mask": padding(1, 4, of=4)},
    )
    case("unbatched_both_causal_no_bias", (4, 4), (4, 4), args={**causal, "memory_is_causal": True}, bias=False)
    case("causal_longer_memory", (2, 3, 4), (2, 5, 4), args={**causal, "memory_is_causal": True})
    case("causal_shorter_memory", (2, 5, 4), (2, 3, 4), args={**causal, "memory_is_causal": True}, norm_first=True)
    case("float_mask_of_memory_without_keys", (2, 3, 4), (2, 3, 4), args=causal, masks={"memory_mask": EMPTY_ROW})


class Decoder(nn.Module):
    """The decoder block with single-head attention of its own width."""

    def __init__(self, d, a, f, act="relu", eps=1e-5, norm_first=False):
        super().__init__()
        self.self_attn, self.cross_attn = Attention(d, a), Attention(d, a)
        self.linear1, self.linear2 = nn.Linear(d, f), nn.Linear(f, d)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(d, eps) for _ in range(3))
        self.act, self.norm_first = activation(act), norm_first

    def forward(self, tgt, memory, tgt_mask=None, memory_mask=None, tgt_is_causal=False):
        parts = [
            lambda x: self.self_attn(x, attn_mask=tgt_mask, is_causal=tgt_is_causal),
            lambda x: self.cross_attn(x, memory, attn_mask=memory_mask),
            lambda x: self.linear2(self.act(self.linear1(x))),
        ]
        x = tgt
        for part, norm in zip(parts, (self.norm1, self.norm2, self.norm3)):
            x = x + part(norm(x)) if self.norm_first else norm(x + part(x))
        return x


def single_head_decoder(s):
    def case(label, tgt, memory, a, f, args=None, training=True, masks=None, lazy=False, **options):
        d = tgt[-1]
        config = {"attention_size": a, "dim_feedforward": f, **options, **({} if lazy else {"d_model": d})}
        oracle = Decoder(
            d,
            a,
            f,
            options.get("activation", "relu"),
            options.get("layer_norm_eps", 1e-5),
            options.get("norm_first", False),
        )
        s.case(
            "decoder",
            label,
            config,
            oracle,
            {"tgt": tgt, "memory": memory, **(masks or {})},
            training=training,
            args=args,
            lazy=lazy,
            call=lambda m, **v: m(**v, **(args or {})),
        )

    causal = {"tgt_is_causal": True}
    case("post_norm", (2, 3, 4), (2, 5, 4), 3, 6, args=causal)
    case(
        "pre_norm_gelu_eval",
        (2, 4, 3),
        (2, 2, 3),
        3,
        5,
        norm_first=True,
        activation="gelu",
        args=causal,
        training=False,
    )
    case("masks", (2, 4, 4), (2, 3, 4), 2, 3, masks={"tgt_mask": (4, 4), "memory_mask": MEMORY_MASK})
    case("float_mask_without_keys", (2, 3, 4), (2, 3, 4), 2, 6, args=causal, masks={"memory_mask": EMPTY_ROW})
    case("unbatched_lazy_eps", (3, 4), (2, 4), 5, 4, lazy=True, layer_norm_eps=1e-2)


class FeedForward(nn.Module):
    def __init__(self, d, f, act, bias):
        super().__init__()
        self.linear1, self.linear2, self.act = nn.Linear(d, f, bias), nn.Linear(f, d, bias), activation(act)

    def forward(self, x):
        return self.linear2(self.act(self.linear1(x)))


class PatchEmbedding(nn.Module):
    def __init__(self, c, p, e, bias=True, flatten=True):
        super().__init__()
        self.proj, self.flatten = nn.Conv2d(c, e, p, stride=p, bias=bias), flatten

    def forward(self, x):
        y = self.proj(x)
        return y.flatten(-2).transpose(-1, -2) if self.flatten else y


def sinusoids(t, d, base):
    angle = torch.arange(t)[:, None] * base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)[:, :d]


class PositionalEncoding(nn.Module):
    def __init__(self, d, max_len, base, offset):
        super().__init__()
        self.register_buffer("pe", sinusoids(max_len, d, base))
        self.offset = offset

    def forward(self, x):
        return x + self.pe[self.offset : self.offset + x.shape[-2]]


def transformer():
    s = Suite("transformer")
    encoder(s)
    decoder(s)
    single_head_decoder(s)

    def feed_forward(label, d, f, x, training=True, lazy=False, **options):
        config = {"d_ff": f, **options, **({} if lazy else {"d_model": d})}
        oracle = FeedForward(d, f, options.get("activation", "relu"), options.get("bias", True))
        s.case("feed_forward", label, config, oracle, {"x": x}, training=training, lazy=lazy)

    feed_forward("relu", 3, 5, (2, 4, 3))
    feed_forward("gelu_no_bias", 4, 6, (5, 4), activation="gelu", bias=False)
    feed_forward("lazy_silu_vector", 5, 3, (5,), activation="silu", lazy=True)
    feed_forward("dropout_eval", 3, 4, (2, 3), dropout=0.5, training=False)

    def positions(label, d, x, args=None, training=True, **options):
        oracle = PositionalEncoding(
            d, options["max_len"], options.get("base", 10000.0), (args or {}).get("offset", 0)
        )
        s.case(
            "positional_encoding", label, {"d_model": d, **options}, oracle, {"x": x}, training=training, args=args
        )

    positions("even", 4, (2, 5, 4), max_len=8)
    positions("odd_unbatched", 5, (3, 5), max_len=6)
    positions("offset_base", 6, (1, 3, 6), args={"offset": 4}, max_len=7, base=100.0)
    positions("dropout_eval", 2, (2, 3, 2), max_len=3, dropout=0.3, training=False)

    def patches(label, x, e, p, training=True, lazy=False, **options):
        config = {"patch_size": p, "embed_dim": e, **options, **({} if lazy else {"in_channels": x[-3]})}
        s.case(
            "patch_embedding",
            label,
            config,
            PatchEmbedding(x[-3], p, e, **options),
            {"x": x},
            training=training,
            lazy=lazy,
        )

    patches("square", (2, 3, 4, 6), 5, 2)
    patches("pair_no_bias", (2, 2, 4, 6), 3, [2, 3], bias=False)
    patches("not_flat_lazy", (1, 2, 3, 6), 4, 3, flatten=False, lazy=True)
    patches("unbatched_eval", (2, 4, 4), 3, 2, training=False)
    return s
