//! Regions of interest on the CPU, from the definition: along each axis a bin is a list of cells and weights.

use crate::cpu::scratch::*;
use crate::error::Result;
use crate::ops::resample::*;

/// The cells that the samples of a bin read along an axis, and their weights.
type Bin = Vec<(usize, f64)>;

/// The bins of an axis.
type Bins = Vec<Bin>;

/// The bins of [from, to] along an axis of n cells; the weights of a bin are those of its samples, each 1 / samples. `None` for a box that is
/// not finite.
fn axis(p: RoiAlign, from: f64, to: f64, n: usize, bins: usize) -> Result<Option<Bins>> {
    let offset = if p.aligned { 0.5 } else { 0.0 };
    let start = from * p.spatial_scale - offset;
    let mut length = (to - from) * p.spatial_scale;
    if !start.is_finite() || !length.is_finite() {
        return Ok(None);
    }
    if !p.aligned {
        length = length.max(1.0);
    }
    let bin = length / bins as f64;
    let samples = match p.sampling_ratio {
        0 => (bin.ceil().max(0.0) as usize).min(ROI_SAMPLES / bins),
        given => given,
    };
    let share = 1.0 / samples as f64;
    let mut found: Bins = (0..bins).map(|_| Vec::new()).try_vec()?;
    for (i, cells) in found.iter_mut().enumerate() {
        for s in 0..samples {
            let at = start + (i as f64 + (s as f64 + 0.5) * share) * bin;
            if at < -1.0 || at > n as f64 {
                continue;
            }
            let at = at.clamp(0.0, (n - 1) as f64);
            let (cell, t) = (at.floor() as usize, at - at.floor());
            cells.try_push((cell, (1.0 - t) * share))?;
            // With weight 0 too: what is not a number shows.
            cells.try_push(((cell + 1).min(n - 1), t * share))?;
        }
    }
    Ok(Some(found))
}

/// The bins of a box along H and W.
fn region(p: RoiAlign, s: &RoiSizes, corners: &[f64]) -> Result<Option<[Bins; 2]>> {
    let along = |k: usize| axis(p, corners[1 - k], corners[3 - k], s.input[k], s.bins[k]);
    Ok(along(0)?.zip(along(1)?).map(|(h, w)| [h, w]))
}

/// y of a region pooling; `images` holds `None` for an image out of range.
pub(super) fn forward(
    p: RoiAlign,
    s: &RoiSizes,
    x: &[f64],
    boxes: &[f64],
    images: &[Option<usize>],
) -> Result<Vec<f64>> {
    let (cells, bins) = (s.input[0] * s.input[1], s.bins[0] * s.bins[1]);
    let mut y = filled(s.boxes * s.channels * bins, 0.0)?;
    for (k, (corners, image)) in boxes.chunks(4).zip(images).enumerate() {
        let Some(image) = image else { continue };
        let to = &mut y[k * s.channels * bins..][..s.channels * bins];
        let Some([rows, columns]) = region(p, s, corners)? else {
            to.fill(f64::NAN);
            continue;
        };
        for (c, to) in to.chunks_mut(bins).enumerate() {
            let from = &x[(image * s.channels + c) * cells..][..cells];
            for (to, (row, column)) in to.iter_mut().zip(pairs(&rows, &columns)) {
                for &(h, a) in row {
                    *to += column.iter().map(|&(w, b)| a * b * from[h * s.input[1] + w]).sum::<f64>();
                }
            }
        }
    }
    Ok(y)
}

/// dx of a region pooling.
pub(super) fn backward(
    p: RoiAlign,
    s: &RoiSizes,
    dy: &[f64],
    boxes: &[f64],
    images: &[Option<usize>],
) -> Result<Vec<f64>> {
    let (cells, bins) = (s.input[0] * s.input[1], s.bins[0] * s.bins[1]);
    let mut dx = filled(s.batch * s.channels * cells, 0.0)?;
    for (k, (corners, image)) in boxes.chunks(4).zip(images).enumerate() {
        let Some(image) = image else { continue };
        let Some([rows, columns]) = region(p, s, corners)? else { continue };
        for c in 0..s.channels {
            let from = &dy[(k * s.channels + c) * bins..][..bins];
            let to = &mut dx[(image * s.channels + c) * cells..][..cells];
            for (g, (row, column)) in from.iter().zip(pairs(&rows, &columns)) {
                for &(h, a) in row {
                    column.iter().for_each(|&(w, b)| to[h * s.input[1] + w] += a * b * g);
                }
            }
        }
    }
    Ok(dx)
}

/// The rows with each column, in the order of the bins.
fn pairs<'a>(rows: &'a Bins, columns: &'a Bins) -> impl Iterator<Item = (&'a Bin, &'a Bin)> {
    rows.iter().flat_map(move |r| columns.iter().map(move |c| (r, c)))
}
