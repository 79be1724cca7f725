//! Random inputs and arguments of the rows.

use trefoil::DType;

use crate::sampler::Dom::{Any, Range};
use crate::sampler::Sample;

/// A sequence with weights small enough that rounding errors fade.
pub(super) fn draw(s: &mut Sample, gates: usize, lstm: bool, lengths: bool, batch_first: bool) {
    let edge = s.below(8);
    let (t, b) =
        if s.small { (3, 2) } else { ([5, 1, 9, 3, 0, 6, 4, 2][edge], [3, 1, 2, 17, 2, 1, 0, 70][edge]) };
    let (i, h) = if s.small {
        (2, 3)
    } else {
        // Tiles have 8 or 32 columns, and stages of 64 terms; half of the widths are whole items of 16 bytes.
        ([4, 1, 33, 16][s.below(4)], [6, 64, 1, 40, 17, 136, 5, 24][s.below(8)])
    };
    let scale = 1.0 / (h as f64).sqrt();
    let near = Range(-scale, scale);
    s.put("X", &if batch_first { [b, t, i] } else { [t, b, i] }, Any);
    s.put("h_0", &[b, h], Range(-1.0, 1.0));
    if lstm {
        s.put("c_0", &[b, h], Range(-1.0, 1.0));
    }
    s.put("W_ih", &[gates * h, i], near);
    s.put("W_hh", &[gates * h, h], near);
    if s.small || s.below(4) > 0 {
        s.put("b_ih", &[gates * h], near);
        s.put("b_hh", &[gates * h], near);
    }
    if lengths {
        let values: Vec<i64> = (0..b).map(|_| s.below(t + 2) as i64).collect();
        s.ints("lengths", DType::I32, &[b], &values);
    }
    let reverse = s.coin();
    s.arg("reverse", reverse);
}

pub(super) fn draw_gru_cell(s: &mut Sample) {
    let (b, h) = (s.below(5), [1, 5, 64, 65][s.below(4)]);
    let (b, h) = if s.small { (2, 3) } else { (b, h) };
    s.put("a", &[b, 3 * h], Any);
    s.put("u", &[b, 3 * h], Any);
    s.put("h", &[b, h], Any);
}

pub(super) fn draw_conv(s: &mut Sample) {
    let (t, n) = if s.small { (2, 1) } else { ([3, 1, 2, 0][s.below(4)], [1, 2, 3][s.below(3)]) };
    let (ci, hc) = if s.small { (1, 2) } else { ([1, 3, 5][s.below(3)], [1, 4, 9][s.below(3)]) };
    let (h, w) = if s.small { (2, 3) } else { ([4, 1, 9][s.below(3)], [5, 2, 17][s.below(3)]) };
    let (kh, kw) = ([1, 3, 5][s.below(3)], [1, 3][s.below(2)]);
    let state = [n, hc, h, w];
    let scale = 1.0 / ((hc.max(ci) * kh * kw) as f64).sqrt();
    s.put("X", &[t, n, ci, h, w], Any);
    s.put("h_0", &state, Range(-1.0, 1.0));
    s.put("c_0", &state, Range(-1.0, 1.0));
    s.put("Wx", &[4 * hc, ci, kh, kw], Range(-scale, scale));
    s.put("Wh", &[4 * hc, hc, kw, kh], Range(-scale, scale));
    // Required, as the gradient always has one.
    s.put("b", &[4 * hc], Range(-0.5, 0.5));
    match s.below(3) {
        0 => s.put("P", &[3, hc, h, w], Range(-0.5, 0.5)),
        1 => s.put("P", &[3, hc, 1, 1], Range(-0.5, 0.5)),
        _ => {}
    }
}
