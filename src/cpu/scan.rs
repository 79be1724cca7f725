//! Scans and segments on the CPU, in f64; integers in i64.

use crate::cpu::reduce::sum;
use crate::cpu::scratch::*;
use crate::cpu::*;
use crate::ops::scan::*;

/// Calls `f` with the positions of each slice along the axis of a row-major [outer, size, inner], in the order of the scan.
fn for_slices(
    [outer, size, inner]: [usize; 3],
    reverse: bool,
    mut f: impl FnMut(&mut dyn Iterator<Item = usize>),
) {
    // Of a tensor without elements any other size may be huge.
    let outer = if size * inner == 0 { 0 } else { outer };
    for o in 0..outer {
        for i in 0..inner {
            f(&mut (0..size).map(|k| (o * size + if reverse { size - 1 - k } else { k }) * inner + i));
        }
    }
}

/// Bounds of each segment, made valid; reports those that were not.
fn bounds(cpu: &Kernels, op: &'static str, offsets: View<'_>, rows: usize) -> Result<Vec<(usize, usize)>> {
    let at: Vec<i64> = gather_f64(op, offsets)?.into_iter().map(|v| v as i64).try_vec()?;
    let rows = rows as i64;
    if at.windows(2).any(|w| w[0] < 0 || w[1] < w[0] || w[1] > rows) {
        cpu.flag_index_error(op);
    }
    let clamp = |w: &[i64]| {
        let lo = w[0].clamp(0, rows);
        (lo as usize, w[1].clamp(lo, rows) as usize)
    };
    at.windows(2).map(clamp).try_vec()
}

fn larger(a: f64, b: f64) -> f64 {
    if a > b || a.is_nan() { a } else { b }
}

/// Mean and biased variance.
fn moments(v: &[f64]) -> (f64, f64) {
    let n = v.len() as f64;
    let mean = sum(v.iter().copied()) / n;
    (mean, sum(v.iter().map(|x| (x - mean) * (x - mean))) / n)
}

fn value(op: SegmentReduce, v: &[f64]) -> f64 {
    if v.is_empty() {
        return 0.0;
    }
    match op {
        SegmentReduce::Sum => sum(v.iter().copied()),
        SegmentReduce::Mean => sum(v.iter().copied()) / v.len() as f64,
        SegmentReduce::Max => v.iter().copied().fold(f64::NEG_INFINITY, larger),
        SegmentReduce::Min => -v.iter().map(|x| -x).fold(f64::NEG_INFINITY, larger),
        SegmentReduce::Var => moments(v).1,
        SegmentReduce::Std { eps } => (moments(v).1 + eps).sqrt(),
    }
}

fn gradient(op: SegmentReduce, v: &[f64], rows: usize, dy: f64) -> Result<Vec<f64>> {
    let n = rows as f64;
    match op {
        SegmentReduce::Sum => filled(rows, dy),
        SegmentReduce::Mean => filled(rows, dy / n),
        SegmentReduce::Max | SegmentReduce::Min => {
            let best = value(op, v);
            let ties = v.iter().filter(|&&x| x == best).count();
            let share = if ties == 0 { f64::NAN } else { dy / ties as f64 };
            v.iter().map(|&x| if x == best || best.is_nan() { share } else { 0.0 }).try_vec()
        }
        SegmentReduce::Var => {
            let (mean, _) = moments(v);
            v.iter().map(|x| 2.0 * (x - mean) * dy / n).try_vec()
        }
        SegmentReduce::Std { eps } => {
            let (mean, var) = moments(v);
            v.iter().map(|x| dy / (n * (var + eps).sqrt()) * (x - mean)).try_vec()
        }
    }
}

impl ScanOps for Kernels {
    fn cumsum(&self, p: CumSum, axis: usize, x: View<'_>, y: GradMut<'_>) -> Result<()> {
        const OP: &str = "cumsum";
        let extents = check_cumsum(axis, &x, &y)?;
        let _timed = self.count("cumsum");
        if x.dtype().is_float() {
            let mut v = gather_f64(OP, x)?;
            for_slices(extents, p.reverse, |at| {
                // Neumaier's compensation; once the sum is not finite there is nothing to compensate.
                let (mut s, mut e) = (0.0f64, 0.0f64);
                for i in at {
                    let x = v[i];
                    let before = if e.is_finite() { s + e } else { s };
                    let t = s + x;
                    e += if s.abs() >= x.abs() { (s - t) + x } else { (x - t) + s };
                    s = t;
                    v[i] = match p.exclusive {
                        true => before,
                        false if e.is_finite() => s + e,
                        false => s,
                    };
                }
            });
            return store_grad(OP, &y, &v);
        }
        let mut v: Vec<i64> = match x.dtype() {
            DType::I64 => gather(OP, x)?,
            _ => gather_f64(OP, x)?.into_iter().map(|v| v as i64).try_vec()?,
        };
        for_slices(extents, p.reverse, |at| {
            let mut s = 0i64;
            for i in at {
                let before = s;
                s = s.wrapping_add(v[i]);
                v[i] = if p.exclusive { before } else { s };
            }
        });
        match y.out.dtype() {
            DType::I64 => store(OP, &y.out, &v),
            DType::I32 => update::<i32>(OP, &y.out, |i, y| *y = v[i] as i32),
            _ => update::<u8>(OP, &y.out, |i, y| *y = v[i] as u8),
        }
    }

    fn segment_reduce(
        &self,
        op: SegmentReduce,
        x: View<'_>,
        offsets: View<'_>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "segment_reduce";
        let s = check_segment_reduce(op, &x, &offsets, &y)?;
        let _timed = self.count("segment_reduce");
        if y.numel() == 0 {
            return Ok(());
        }
        let x = gather_f64(OP, x)?;
        let mut out = with_capacity(y.numel())?;
        for (lo, hi) in bounds(self, OP, offsets, s.rows)? {
            for c in 0..s.cols {
                let column: Vec<f64> = (lo..hi).map(|r| x[r * s.cols + c]).try_vec()?;
                out.try_push(value(op, &column))?;
            }
        }
        store_f64(OP, &y, &out)
    }

    fn segment_reduce_bwd(&self, op: SegmentReduce, io: SegmentReduceBwd<'_>) -> Result<()> {
        const OP: &str = "segment_reduce_bwd";
        let s = check_segment_reduce_bwd(op, &io)?;
        let _timed = self.count("segment_reduce_bwd");
        if io.dx.out.numel() == 0 {
            return Ok(());
        }
        let dy = gather_f64(OP, io.dy)?;
        let x = io.x.map(|x| gather_f64(OP, x)).transpose()?;
        let mut dx = filled(s.rows * s.cols, 0.0)?;
        for (i, (lo, hi)) in bounds(self, OP, io.offsets, s.rows)?.into_iter().enumerate() {
            for c in 0..s.cols {
                let column: Vec<f64> =
                    x.iter().flat_map(|x| (lo..hi).map(|r| x[r * s.cols + c])).try_vec()?;
                let g = gradient(op, &column, hi - lo, dy[i * s.cols + c])?;
                g.into_iter().enumerate().for_each(|(k, g)| dx[(lo + k) * s.cols + c] = g);
            }
        }
        store_grad(OP, &io.dx, &dx)
    }
}
