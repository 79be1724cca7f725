//! Attention.

mod calls;
mod decode;
mod sample;

use super::Bound::{Derived, Stored};
use super::{Bound, F32, Kernel, k};

use calls::*;
use sample::*;

/// On matrix cores, probabilities are rounded to the storage type before they meet the values.
const FORWARD: Bound = Stored;
/// The gradient of a score is p (dp - D), where D is the mean of the dp: it cancels where there is one key, and so does what is summed from it where
/// a bias is constant over the keys. On matrix cores, probabilities and gradients of scores are rounded to the storage type.
const BACKWARD: Bound = Stored;

const IN: &str = "Q, K, V, [bias], [mask:u8], [key_lengths:i32]";
const IN_B: &str = "dO, Q, K, V, O, LSE:f32, [bias], [mask:u8], [key_lengths:i32]";
const ARGS: &str =
    "scale=null, causal=null, window=null, softcap=0.0, dropout=0.0, seed=0, stream=0, offset=0";
const CROSS: &str = "scale=null, softcap=0.0, dropout=0.0, seed=0, stream=0, offset=0";
const GRADS: &str = "dQ, dK, dV, [dBias]";

pub(super) const ROWS: &[&[Kernel]] = &[
    &[
        k("scaled_dot_product_attention", "S6.1", IN, ARGS, "O, [P], [LSE:f32]", &["attention"], forward)
            .bound(FORWARD)
            .sample(dense),
        k("flash_attention_v2", "S6.2", IN, ARGS, "O, LSE:f32", &["attention"], forward)
            .bound(FORWARD)
            .sample(dense),
        k("grouped_query_attention", "S6.3", IN, ARGS, "O, LSE:f32", &["attention"], forward)
            .bound(FORWARD)
            .sample(dense),
        k(
            "cross_attention",
            "S6.6",
            "Q, K, V, [bias], [key_padding:u8]",
            CROSS,
            "O, LSE:f32",
            &["attention", "unary"],
            forward,
        )
        .bound(FORWARD)
        .sample(cross),
        k("flash_attention_backward", "S6.4", IN_B, ARGS, GRADS, &["attention_bwd"], backward)
            .bound(BACKWARD)
            .grad_of("flash_attention_v2"),
        k("grouped_query_attention_backward", "S6.5", IN_B, ARGS, GRADS, &["attention_bwd"], backward)
            .bound(BACKWARD)
            .grad_of("grouped_query_attention"),
        k(
            "cross_attention_backward",
            "S6.6",
            "dO, Q, K, V, O, LSE:f32, [bias], [key_padding:u8]",
            CROSS,
            GRADS,
            &["attention_bwd", "unary"],
            backward,
        )
        .bound(BACKWARD)
        .grad_of("cross_attention"),
        k(
            "attention_varlen",
            "B7.5",
            "Q, K, V, cu_seqlens_q:i32, cu_seqlens_k:i32",
            "scale=null, causal=null",
            "O, LSE:f32",
            &["attention"],
            varlen,
        )
        .bound(FORWARD)
        .sample(ragged),
        k(
            "attention_varlen_backward",
            "B7.5",
            "dO, Q, K, V, O, LSE:f32, cu_seqlens_q:i32, cu_seqlens_k:i32",
            "scale=null, causal=null",
            "dQ, dK, dV",
            &["attention_bwd"],
            varlen_backward,
        )
        .bound(BACKWARD)
        .grad_of("attention_varlen"),
        k(
            "multi_head_attention",
            "S6.7",
            "Xq, [Xk], [Xv], [Wq], [Wk], [Wv], [W_in], [bq], [bk], [bv], [b_in], Wo, [bo]",
            "H, causal=null",
            "Y, [q], [k], [v], [O], [LSE:f32]",
            &["gemm", "attention", "strided_copy"],
            multi_head,
        )
        // 16-bit intermediates are rounded several times.
        .dtypes(F32)
        .bound(Derived)
        .composite()
        .sample(mha_sample),
        k(
            "multi_head_attention_backward",
            "S6.7",
            "dY, Xq, [Xk], [Xv], [Wq], [Wk], [Wv], [W_in], Wo, q, k, v, O, LSE:f32",
            "H, causal=null",
            "dXq, [dXk], [dXv], [dWq], [dWk], [dWv], [dW_in], [dbq], [dbk], [dbv], [db_in], dWo, dbo",
            &["gemm_bwd", "attention_bwd", "strided_copy"],
            multi_head_backward,
        )
        .dtypes(F32)
        .bound(Derived)
        .composite()
        .grad_of("multi_head_attention"),
    ],
    decode::DECODE,
];
