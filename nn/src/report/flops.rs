//! Arithmetic of operations, from shapes alone.

use crate::core::tensor::Tensor;

/// Arithmetic of a forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Cost {
    /// Multiply-accumulates of products: matrices, convolutions, attention, recurrences.
    pub(crate) macs: u64,
    /// Two per multiply-accumulate, and one per element that any other operation computes.
    pub(crate) flops: u64,
}

/// Operations that only move or convert elements.
const MOVES: &[&str] = &[
    "affine_grid",
    "concat",
    "contiguous",
    "copy",
    "embedding",
    "expand",
    "flip",
    "gather",
    "im2col",
    "index_select",
    "pad",
    "permute",
    "repeat_interleave",
    "reshape",
    "roll",
    "split_heads",
    "to_device",
    "to_dtype",
    "triangle",
    "unfold",
];

fn size(t: Option<&&Tensor>) -> u64 {
    t.map_or(0, |t| t.numel() as u64)
}

/// The product, or the largest number for networks that no device could run.
fn times(a: u64, b: u64) -> u64 {
    a.saturating_mul(b)
}

/// Elements behind the first axis.
fn inner(t: Option<&&Tensor>) -> u64 {
    t.map_or(0, |t| t.shape().iter().skip(1).fold(1, |all, &n| times(all, n as u64)))
}

/// Length of an axis counted from the end.
fn axis(t: Option<&&Tensor>, back: usize) -> u64 {
    t.and_then(|t| t.shape().iter().rev().nth(back)).map_or(0, |&n| n as u64)
}

/// The arithmetic of one operation.
pub(crate) fn of(op: &str, inputs: &[&Tensor], outputs: &[Tensor]) -> Cost {
    let y: u64 = outputs.first().map_or(0, |t| t.numel() as u64);
    let (x, w) = (inputs.first(), inputs.get(1));
    let macs = match op {
        "linear" | "matmul" => times(y, axis(x, 0)),
        "conv" | "deform_conv" => times(y, inner(w)),
        "conv_transpose" => times(size(x), inner(w)),
        // Scores, then the mixture of values.
        "attention" => times(size(x) + y, axis(w, 1)),
        "packed_attention" => times(size(x) / 3 + y, axis(x, 1)),
        "rnn" => times(size(x) / axis(x, 0).max(1), size(w) + size(inputs.get(2))),
        "conv_lstm" => {
            let positions = size(x) / axis(x, 2).max(1);
            times(positions, size(w) + size(inputs.get(2)))
        }
        "linear_cross_entropy" => times(size(x), w.map_or(0, |w| w.shape()[0] as u64)),
        "dot" => size(x),
        _ => 0,
    };
    let flops = match macs {
        0 if MOVES.contains(&op) => 0,
        0 => outputs.iter().map(|t| t.numel() as u64).sum(),
        macs => times(2, macs),
    };
    Cost { macs, flops }
}
