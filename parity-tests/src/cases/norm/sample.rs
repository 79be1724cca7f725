//! Random inputs and arguments of the rows.

use trefoil::DType;

use crate::sampler::Dom::{Any, Coarse, Positive, Range};
use crate::sampler::Sample;

/// A matrix of rows of every length class: registers, long rows, cut rows, aligned or not.
pub(super) fn draw_matrix(s: &mut Sample) -> [usize; 2] {
    let shape = if s.small {
        [2 + s.below(3), 3 + s.below(4)]
    } else {
        let edges = [
            [7, 33],
            [300, 64],
            [3, 1031],
            [64, 1024],
            [2, 20_004],
            [5, 4096],
            [3, 8192],
            [1, 40_000],
            [1000, 5],
            [0, 8],
            [9, 12_288],
            [40, 8192],
            [33, 2000],
        ];
        edges[s.below(edges.len())]
    };
    s.put("x", &shape, Any);
    shape
}

/// gamma and beta of n entries; always both where gradients are checked.
pub(super) fn draw_affine(s: &mut Sample, n: usize, beta: bool) {
    let all = s.small;
    if all || s.below(4) > 0 {
        s.put("gamma", &[n], Positive);
    }
    if beta && (all || s.below(4) > 0) {
        s.put("beta", &[n], Any);
    }
}

pub(super) fn draw_eps(s: &mut Sample) {
    let eps = [1e-5, 1e-2][s.below(2)];
    s.arg("eps", eps);
}

pub(super) fn draw_layer(s: &mut Sample) {
    let [_, k] = draw_matrix(s);
    draw_affine(s, k, true);
    draw_eps(s);
}

pub(super) fn draw_fused_layer(s: &mut Sample) {
    let [_, k] = draw_matrix(s);
    s.put("gamma", &[k], Positive);
    s.put("beta", &[k], Any);
}

pub(super) fn draw_residual(s: &mut Sample) {
    let shape = draw_matrix(s);
    s.put("r", &shape, Any);
    s.put("gamma", &[shape[1]], Positive);
    s.put("beta", &[shape[1]], Any);
}

pub(super) fn draw_rms(s: &mut Sample) {
    let [_, k] = draw_matrix(s);
    draw_affine(s, k, false);
    let offset = [0.0, 1.0][s.below(2)];
    s.arg("gamma_offset", offset);
}

pub(super) fn draw_residual_rms(s: &mut Sample) {
    let shape = draw_matrix(s);
    s.put("r", &shape, Any);
    draw_affine(s, shape[1], false);
    let offset = [0.0, 1.0][s.below(2)];
    s.arg("gamma_offset", offset);
}

/// Images of every size class (not of two values per set, whose variance may be far below their mean, so that no f32 mean is close enough): single values, short planes, planes that 16 bytes divide or not, long ones.
pub(super) fn draw_images(s: &mut Sample, several: bool) -> Vec<usize> {
    let shape: Vec<usize> = if s.small {
        vec![2 + s.below(2), 4, 2 + s.below(2)]
    } else {
        let edges: [&[usize]; 10] = [
            &[300, 12],
            &[6, 4, 7, 7],
            &[5, 8, 16, 16],
            &[2, 4, 70_000],
            &[9, 20, 6],
            &[3, 4, 2, 3, 6],
            &[1, 8, 3001],
            &[2, 36, 33],
            &[4000, 4, 6],
            &[40, 64, 4],
        ];
        let at = s.below(edges.len());
        edges[if several && at == 0 { 4 } else { at }].to_vec()
    };
    s.put("x", &shape, Any);
    shape
}

pub(super) fn draw_groups(s: &mut Sample, residual: bool) {
    let shape = draw_images(s, false);
    if residual {
        s.put("r", &shape, Any);
    }
    draw_affine(s, shape[1], true);
    let g = [1, 2, 4][s.below(3)];
    s.arg("G", g);
    draw_eps(s);
}

pub(super) fn draw_group_swish(s: &mut Sample) {
    let shape = draw_images(s, true);
    s.put("gamma", &[shape[1]], Positive);
    s.put("beta", &[shape[1]], Any);
    s.arg("G", 2);
}

pub(super) fn draw_running(s: &mut Sample, c: usize) {
    let stat = s.dtype.accumulator();
    s.typed("running_mean", stat, &[c], Any);
    s.typed("running_var", stat, &[c], Range(0.5, 2.0));
}

pub(super) fn draw_instances(s: &mut Sample) {
    // Planes of whole 16-byte items: those of a block, and two lengths that are split.
    let planes: Option<&[usize]> = match s.aligned() {
        Some(1) => Some(&[2, 4, 70_000]),
        Some(2) => Some(&[5, 8, 16, 16]),
        Some(3) => Some(&[3, 2, 40_000]),
        _ => None,
    };
    let shape = match planes {
        Some(shape) => {
            s.put("x", shape, Any);
            shape.to_vec()
        }
        None => draw_images(s, true),
    };
    draw_affine(s, shape[1], true);
    if !s.small && planes.is_none() && s.coin() {
        draw_running(s, shape[1]);
    }
    draw_eps(s);
}

pub(super) fn draw_batch(s: &mut Sample) {
    // Whole 16-byte items: many rows of channels, and planes; then rows of channels that are whole items together.
    let whole: Option<&[usize]> = match s.aligned() {
        Some(1) => Some(&[2000, 64]),
        Some(2) => Some(&[5, 8, 16, 16]),
        Some(3) => Some(&[2000, 61]),
        Some(4) => Some(&[24, 9]),
        _ => None,
    };
    let shape = match whole {
        Some(shape) => {
            s.put("x", shape, Any);
            shape.to_vec()
        }
        None => draw_images(s, false),
    };
    draw_affine(s, shape[1], true);
    draw_eps(s);
    if s.small {
        return;
    }
    let statistics = s.below(4);
    // The first of each storage type counts its batches.
    match if s.aligned() == Some(0) { 1 } else { statistics } {
        0 => {
            draw_running(s, shape[1]);
            s.arg("training", false);
        }
        1 => {
            draw_running(s, shape[1]);
            let count = s.below(5) as i64;
            s.ints("counter", DType::I64, &[], &[count]);
            s.arg("momentum", serde_json::Value::Null);
        }
        2 => {
            draw_running(s, shape[1]);
            s.arg("momentum", 0.3);
        }
        _ => {}
    }
}

pub(super) fn draw_batch_act(s: &mut Sample) {
    draw_batch(s);
    s.forget("momentum");
    s.drop("counter");
    let act = ["relu", "gelu", "sigmoid", "tanh", "swish"][s.below(5)];
    s.arg("act", act);
}

pub(super) fn draw_batch_residual(s: &mut Sample) {
    draw_batch(s);
    s.forget("momentum");
    s.drop("counter");
    let shape = s.shape_of("x");
    s.put("r", &shape, Any);
}

pub(super) fn draw_l2(s: &mut Sample) {
    // Rows of whole 16-byte items, or an axis of any shape.
    let rows = s.aligned() == Some(1);
    let shape = if rows { vec![33, s.vector() * (1 + s.below(300))] } else { s.solid() };
    s.put("x", &shape, Coarse);
    let axis = if rows { 1 } else { s.below(shape.len()) };
    s.arg("axis", axis);
}
