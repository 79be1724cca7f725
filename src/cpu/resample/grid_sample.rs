//! Sampling at positions on the CPU, from the definition.

use crate::cpu::resample::cubic;
use crate::cpu::scratch::*;
use crate::error::Result;
use crate::ops::resample::*;

/// One tap of an axis: its cell (none outside), its weight, and the derivative of the weight by the grid value.
#[derive(Clone, Copy)]
struct Tap {
    cell: Option<usize>,
    weight: f64,
    slope: f64,
}

impl Tap {
    /// Fills up the taps of an axis.
    const NONE: Tap = Tap { cell: None, weight: 0.0, slope: 0.0 };
}

/// All taps of an axis.
type Taps = [Tap; 4];

/// The position that `c` shows in an axis of n cells, and the derivative of that.
fn padded(p: GridSample, c: f64, n: usize) -> (f64, f64) {
    let top = (n - 1) as f64;
    let (mut c, mut slope) = (c, 1.0);
    if p.padding == SamplePadding::Reflection {
        // Mirrors lie at the ends of [low, low + span]; the image repeats every two spans.
        let (low, span) = if p.align_corners { (0.0, top) } else { (-0.5, n as f64) };
        if span > 0.0 {
            let t = (c - low).rem_euclid(2.0 * span);
            if t > span {
                (c, slope) = (2.0 * span - t + low, -1.0);
            } else {
                c = t + low;
            }
        } else if !c.is_nan() {
            c = 0.0;
        }
    }
    match p.padding {
        SamplePadding::Zeros => (c, slope),
        _ if c <= 0.0 => (0.0, 0.0),
        _ if c >= top => (top, 0.0),
        _ => (c, slope),
    }
}

/// Derivative of [`cubic`] with a = -0.75.
fn cubic_slope(t: f64) -> f64 {
    let (u, a) = (t.abs(), -0.75);
    let v = if u <= 1.0 {
        3.0 * (a + 2.0) * u * u - 2.0 * (a + 3.0) * u
    } else if u < 2.0 {
        3.0 * a * u * u - 10.0 * a * u + 8.0 * a
    } else {
        0.0
    };
    if t < 0.0 { -v } else { v }
}

/// The taps of grid value `g` along an axis of n cells; `None` where the position is not a number.
fn taps(p: GridSample, g: f64, n: usize) -> Option<Taps> {
    let scale = if p.align_corners { (n - 1) as f64 } else { n as f64 } / 2.0;
    let c = g * scale + (n - 1) as f64 / 2.0;
    let cell = |q: f64| (q >= 0.0 && q < n as f64).then_some(q as usize);
    // Mirrors have no image of infinity.
    if c.is_nan() || (c.is_infinite() && p.padding == SamplePadding::Reflection) {
        return None;
    }
    // Far outside all taps are the same: none, or the border.
    let far = |c: f64| if p.padding == SamplePadding::Reflection { c } else { c.clamp(-3.0, n as f64 + 2.0) };
    Some(match p.mode {
        SampleMode::Nearest => {
            let tap = Tap { cell: cell(far(padded(p, c, n).0).round_ties_even()), weight: 1.0, slope: 0.0 };
            [tap, Tap::NONE, Tap::NONE, Tap::NONE]
        }
        SampleMode::Linear => {
            let (c, slope) = padded(p, c, n);
            let c = far(c);
            let (base, t, d) = (c.floor(), c - c.floor(), slope * scale);
            [
                Tap { cell: cell(base), weight: 1.0 - t, slope: -d },
                Tap { cell: cell(base + 1.0), weight: t, slope: d },
                Tap::NONE,
                Tap::NONE,
            ]
        }
        SampleMode::Cubic => {
            let c = far(c);
            let (base, t) = (c.floor(), c - c.floor());
            let tap = |j: i32| {
                let j = f64::from(j);
                let (weight, slope) = (cubic(t - j, -0.75), cubic_slope(t - j) * scale);
                Tap { cell: cell(padded(p, base + j, n).0), weight, slope }
            };
            [-1, 0, 1, 2].map(tap)
        }
    })
}

/// The taps of a position along D, H and W (an image has one tap of weight 1 along D); the grid's order is W first.
fn position(p: GridSample, s: &SampleSizes, g: &[f64]) -> Option<[Taps; 3]> {
    let depth = match g.get(2) {
        Some(&z) => taps(p, z, s.input[0])?,
        None => [Tap { cell: Some(0), weight: 1.0, slope: 0.0 }, Tap::NONE, Tap::NONE, Tap::NONE],
    };
    Some([depth, taps(p, g[1], s.input[1])?, taps(p, g[0], s.input[2])?])
}

/// Calls `f(cell of a plane, [taps along D, H, W])` for the combinations of taps that lie inside.
fn each_cell(s: &SampleSizes, axes: &[Taps; 3], mut f: impl FnMut(usize, [Tap; 3])) {
    let inside = |taps: Taps| taps.into_iter().filter_map(|t| Some((t.cell?, t)));
    for (a, d) in inside(axes[0]) {
        for (b, h) in inside(axes[1]) {
            for (c, w) in inside(axes[2]) {
                f((a * s.input[1] + b) * s.input[2] + c, [d, h, w]);
            }
        }
    }
}

/// y of a grid sampling.
pub(in crate::cpu) fn forward(p: GridSample, s: &SampleSizes, x: &[f64], grid: &[f64]) -> Result<Vec<f64>> {
    let mut y = filled(s.batch * s.channels * s.outputs, 0.0)?;
    for (at, g) in grid.chunks(s.axes).enumerate() {
        let (sample, o) = (at / s.outputs, at % s.outputs);
        let axes = position(p, s, g);
        for c in sample * s.channels..(sample + 1) * s.channels {
            let to = &mut y[c * s.outputs + o];
            match &axes {
                Some(axes) => each_cell(s, axes, |cell, t| {
                    *to += t[0].weight * t[1].weight * t[2].weight * x[c * s.cells() + cell];
                }),
                None => *to = f64::NAN,
            }
        }
    }
    Ok(y)
}

/// dx and dgrid of a grid sampling.
pub(in crate::cpu) fn backward(
    p: GridSample,
    s: &SampleSizes,
    dy: &[f64],
    x: &[f64],
    grid: &[f64],
) -> Result<(Vec<f64>, Vec<f64>)> {
    let (mut dx, mut dgrid) = (filled(x.len(), 0.0)?, filled(grid.len(), 0.0)?);
    for (at, g) in grid.chunks(s.axes).enumerate() {
        let (sample, o) = (at / s.outputs, at % s.outputs);
        let dg = &mut dgrid[at * s.axes..][..s.axes];
        let Some(axes) = position(p, s, g) else {
            if p.mode != SampleMode::Nearest {
                dg.fill(f64::NAN);
            }
            continue;
        };
        for c in sample * s.channels..(sample + 1) * s.channels {
            let up = dy[c * s.outputs + o];
            each_cell(s, &axes, |cell, [d, h, w]| {
                dx[c * s.cells() + cell] += d.weight * h.weight * w.weight * up;
                if p.mode == SampleMode::Nearest {
                    return;
                }
                let v = up * x[c * s.cells() + cell];
                dg[0] += v * d.weight * h.weight * w.slope;
                dg[1] += v * d.weight * h.slope * w.weight;
                if let Some(dz) = dg.get_mut(2) {
                    *dz += v * d.slope * h.weight * w.weight;
                }
            });
        }
    }
    Ok((dx, dgrid))
}
