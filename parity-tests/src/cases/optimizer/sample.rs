//! Random inputs and arguments of the rows.

use trefoil::DType;

use crate::sampler::Dom::{Any, Positive};
use crate::sampler::Sample;

pub(super) fn draw(s: &mut Sample, states: &[&str]) {
    let shape = s.shape();
    // Parameters in 16 bits are rounded after each step, which the reference in f64 does not follow: one step.
    let steps = if s.dtype.is_half() { 1 } else { 3 };
    let g = [&[steps], &shape[..]].concat();
    s.put("w", &shape, Any);
    s.put("g", &g, Any);
    let f32 = DType::F32;
    for n in states {
        s.typed(n, f32, &shape, Positive);
    }
    if s.coin() {
        s.typed("inv_scale", f32, &[], Positive);
        s.typed("found_inf", f32, &[], crate::sampler::Dom::Zero);
    }
    s.arg("lr", 0.01);
    s.arg("steps", steps);
    s.arg("step", 2);
    let up = s.coin();
    s.arg("maximize", up);
    // A master copy in f32 may be mirrored in 16 bits.
    if s.dtype == f32 && s.coin() {
        let to = ["f16", "bf16"][s.below(2)];
        s.arg("copy", to);
    }
}

pub(super) fn draw_decayed(s: &mut Sample, states: &[&str]) {
    draw(s, states);
    s.arg("wd", 0.1);
}

/// Rules whose rows do not know the argument `copy`.
pub(super) fn draw_layerwise(s: &mut Sample, states: &[&str]) {
    draw_decayed(s, states);
    s.forget("copy");
}

pub(super) fn draw_grads(s: &mut Sample) {
    for i in 0..1 + s.below(4) {
        let shape = s.shape();
        s.put(&format!("g{i}"), &shape, Any);
    }
}
