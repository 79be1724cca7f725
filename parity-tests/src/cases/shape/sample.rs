//! Random inputs and arguments of the rows.

use crate::sampler::Dom::Any;
use crate::sampler::Sample;

pub(super) fn draw(s: &mut Sample, rank: usize) {
    let shape = s.ranked(rank);
    s.put("x", &shape, Any);
}

pub(super) fn draw_any(s: &mut Sample) {
    let shape = s.shape();
    s.put("x", &shape, Any);
}

pub(super) fn draw_axis(s: &mut Sample) -> usize {
    draw_any(s);
    let rank = s.rank_of("x");
    let axis = s.below(rank);
    s.arg("axis", axis);
    axis
}

/// A vector of n elements, along its axis.
pub(super) fn draw_row(s: &mut Sample, n: usize) -> usize {
    s.put("x", &[n], Any);
    s.arg("axis", 0);
    0
}

pub(super) fn draw_list(s: &mut Sample) {
    for i in 0..3 {
        let n = 1 + s.below(6);
        s.put(&format!("x{i}"), &[n], Any);
    }
}

pub(super) fn draw_pad(s: &mut Sample) {
    let mut shape = s.ranked(3);
    shape.iter_mut().for_each(|n| *n = (*n).max(4));
    s.put("x", &shape, Any);
    let mode = ["constant", "reflect", "replicate", "circular"][s.below(4)];
    s.arg("mode", mode);
    let p: Vec<usize> = (0..4).map(|_| s.below(4)).collect();
    s.arg("pad", p);
}
