//! Random inputs and arguments of the rows.

use crate::sampler::Dom::{Any, NearOne, Nonzero};
use crate::sampler::Sample;

/// Nodes, edges and features: few of each, a hub that is cut in parts, many nodes without edges, or nothing at all.
pub(super) fn sizes(s: &mut Sample) -> [usize; 3] {
    if s.small {
        return [3 + s.below(3), 5 + s.below(5), 1 + s.below(4)];
    }
    let features = [1, 3, 8, 16, 33, 128, 64, 7][s.below(8)];
    match s.below(5) {
        0 => [1 + s.below(3), 4000, features.min(33)],
        1 => [400, 60, features],
        2 => [5, 0, features],
        _ => [1 + s.below(40), s.below(300), features],
    }
}

/// A rowptr over `edges` entries: half of them in one row, some rows empty.
pub(super) fn draw_rowptr(s: &mut Sample, rows: usize, edges: usize) {
    let mut count = vec![0i64; rows];
    let hub = s.below(rows);
    for e in 0..edges {
        let r = if e % 2 == 0 { hub } else { s.below(rows) };
        count[r] += 1;
    }
    let mut at = vec![0i64];
    count.iter().for_each(|n| at.push(at[at.len() - 1] + n));
    s.ids_of("rowptr", &[rows + 1], &at);
}

pub(super) fn draw_spmm(s: &mut Sample) {
    // Half of many edges in one row: its sum is split.
    let [rows, edges, f] = if s.aligned() == Some(1) { [3, 4000, 8 * (1 + s.below(4))] } else { sizes(s) };
    let cols = 1 + s.below(50);
    draw_rowptr(s, rows, edges);
    s.ids("col", &[edges], cols);
    let heads = if s.coin() { vec![] } else { vec![1 + s.below(3)] };
    let tail = [&heads[..], &[f]].concat();
    if s.small || s.coin() {
        let parts = if s.coin() { heads } else { vec![] };
        s.put("values", &[&[edges], &parts[..]].concat(), Any);
    }
    s.put("X", &[&[cols], &tail[..]].concat(), Any);
}

pub(super) fn draw_messages(s: &mut Sample) {
    let [nodes, edges, f] = sizes(s);
    let all = ["copy_u", "copy_e", "u_mul_e", "u_add_e", "u_add_v", "u_sub_v", "u_mul_v", "u_dot_v"];
    let msg = all[s.below(8)];
    let red = ["sum", "mean", "max", "min"][s.below(4)];
    s.arg("msg", msg);
    s.arg("red", red);
    s.arg("V", nodes);
    s.ids("src", &[edges], nodes);
    s.ids("dst", &[edges], nodes.div_ceil(2));
    let heads = if s.coin() { vec![] } else { vec![1 + s.below(3)] };
    let tail = [&heads[..], &[f]].concat();
    if msg != "copy_e" {
        s.put("x", &[&[nodes], &tail[..]].concat(), Nonzero);
    }
    if ["copy_e", "u_mul_e", "u_add_e"].contains(&msg) {
        let axes = if msg == "copy_e" { tail.len() } else { s.below(tail.len() + 1) };
        s.put("e", &[&[edges], &tail[..axes]].concat(), Nonzero);
    }
}

pub(super) fn draw_groups(s: &mut Sample) {
    let [nodes, edges, f] = sizes(s);
    let outer = [1, 1, 1, 3][s.below(4)];
    s.put("src", &[outer, edges, f.min(40)], Any);
    s.ids("idx", &[edges], nodes);
    s.arg("R", nodes + 1);
}

/// Values that keep products of the samples' lengths in range.
pub(super) fn draw_products(s: &mut Sample) {
    let [nodes, edges, f] = sizes(s);
    let f = f.min(8);
    let outer = 1 + s.below(2);
    s.put("src", &[outer, edges, f], NearOne);
    s.ids("idx", &[edges], nodes);
    s.arg("R", nodes);
}
