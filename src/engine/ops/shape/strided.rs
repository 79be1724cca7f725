//! Moving elements between strided operands: the machinery under [`ShapeOps`](crate::ops::shape::ShapeOps).

use crate::buffer::View;
use crate::driver::{DimsArg, Ptr};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, dims};
use crate::engine::ops::shape::plan::{CopyPlan, CopyProblem, FillPlan, FillProblem};
use crate::error::Result;
use crate::layout::MAX_RANK;
use crate::spec::kernels::shape::*;

/// One axis of a movement: its size and the steps of source and destination, in elements. A source may step backwards or not at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine::ops) struct Axis {
    pub(in crate::engine::ops) n: usize,
    pub(in crate::engine::ops) x: i64,
    pub(in crate::engine::ops) y: i64,
}

impl Axis {
    /// Axes of two operands of one shape.
    pub(in crate::engine::ops) fn of(x: &View<'_>, y: &View<'_>) -> Vec<Axis> {
        let (sx, sy) = (x.layout().strides(), y.layout().strides());
        y.shape()
            .iter()
            .zip(sx.iter().zip(sy))
            .map(|(&n, (&x, &y))| Axis { n, x: x as i64, y: y as i64 })
            .collect()
    }
}

/// Axes in the destination's order of memory, without those of size 1, neighbours merged where both sides step uniformly.
pub(in crate::engine::ops) fn merged(mut axes: Vec<Axis>) -> Vec<Axis> {
    axes.retain(|a| a.n != 1);
    axes.sort_by_key(|a| std::cmp::Reverse(a.y));
    let mut out: Vec<Axis> = vec![];
    for a in axes {
        match out.last_mut() {
            Some(l) if l.x == a.x * a.n as i64 && l.y == a.y * a.n as i64 => *l = Axis { n: l.n * a.n, ..a },
            _ => out.push(a),
        }
    }
    if out.is_empty() {
        out.push(Axis { n: 1, x: 1, y: 1 });
    }
    out
}

/// Items that a thread of `copy_nd`, and of `fill_nd`, takes (`GK_SHAPE_DEPTH`).
pub(in crate::engine::ops) const DEPTH: usize = 4;

/// Integer dtype that moves elements of this many bytes.
pub(in crate::engine::ops) fn unit_of(bytes: usize) -> DType {
    match bytes {
        1 => DType::U8,
        2 => DType::F16,
        4 => DType::I32,
        _ => DType::I64,
    }
}

/// Dtype whose unit moves elements of `d`: its own where it must add, else the one of its size.
pub(in crate::engine::ops) fn mover(d: DType, accumulate: bool) -> DType {
    if accumulate { d } else { unit_of(d.size()) }
}

/// Largest power of two up to `most` that divides all of `v`.
pub(in crate::engine::ops) fn common_power(most: usize, v: impl IntoIterator<Item = usize>) -> usize {
    v.into_iter().fold(most, |g, x| g.min(1 << x.trailing_zeros().min(30)))
}

/// A `gk_dims` parameter of steps.
pub(in crate::engine::ops) fn signed(v: impl IntoIterator<Item = i64>) -> DimsArg {
    let mut d = [0i64; MAX_RANK];
    d.iter_mut().zip(v).for_each(|(o, x)| *o = x);
    DimsArg(d)
}

/// Multipliers that divide by the sizes of a shape; see `kernels/common/prelude/coordinates.h`.
pub(in crate::engine) fn magic(shape: impl IntoIterator<Item = usize>) -> DimsArg {
    signed(shape.into_iter().map(magic_of))
}

/// The multiplier of one size.
pub(in crate::engine::ops) fn magic_of(d: usize) -> i64 {
    let d = d.max(1) as u64;
    if d > 1 << 31 {
        return 0;
    }
    let l = d.next_power_of_two().trailing_zeros() as u64;
    let m = (((1u64 << l) - d) << 32) / d + 1;
    (l << 32 | (m & 0xffff_ffff)) as i64
}

/// An element's bytes repeated to two 32-bit words.
pub(in crate::engine::ops) fn pattern_words(pattern: &[u8]) -> (u32, u32) {
    let byte = |i: usize| u32::from(pattern[i % pattern.len()]);
    let word = |w: usize| (0..4).fold(0, |v, k| v | byte(4 * w + k) << (8 * k));
    (word(0), word(1))
}

fn at_bytes(v: &View<'_>, extra: i64) -> usize {
    (v.layout().offset() as i64 + extra) as usize * v.dtype().size()
}

/// y[p] (+)= x[p]: the operands give memory, dtype and first element, from which the axes of a movement start `at` elements further on.
#[derive(Clone, Copy)]
struct Movement<'a> {
    x: &'a View<'a>,
    y: &'a View<'a>,
    at: [i64; 2],
    accumulate: bool,
}

impl Movement<'_> {
    /// Bytes from the beginning of the memory to the first elements.
    fn first(&self) -> [usize; 2] {
        [at_bytes(self.x, self.at[0]), at_bytes(self.y, self.at[1])]
    }

    /// Pointer arguments of the first elements.
    fn args(&self) -> [Ptr; 2] {
        let [x, y] = self.first();
        let arg = |v: &View<'_>, at: usize| Ptr(v.block().raw().map(|m| (m, at as u64)));
        [arg(self.x, x), arg(self.y, y)]
    }

    /// What decides how it runs over merged axes.
    fn problem(&self, axes: &[Axis]) -> CopyProblem {
        let last = axes[axes.len() - 1];
        let along = last.x == 1 && last.y == 1;
        let across = axes.iter().position(|a| a.x == 1).filter(|_| !along && last.y == 1);
        CopyProblem {
            contiguous: along && axes.len() == 1,
            accumulate: self.accumulate,
            transposed: across.map(|b| (b, [axes[b].n, last.n])),
        }
    }
}

impl Engine {
    /// y[p] (+)= x[p]; the operands give memory, dtype and first element (x's is `extra` elements further on), `axes` the rest.
    pub(in crate::engine::ops) fn move_axes(
        &self,
        x: &View<'_>,
        extra: i64,
        y: &View<'_>,
        axes: Vec<Axis>,
        accumulate: bool,
    ) -> Result<()> {
        if axes.iter().any(|a| a.n == 0) {
            return Ok(());
        }
        self.check_poison()?;
        self.move_merged(Movement { x, y, at: [extra, 0], accumulate }, &merged(axes))
    }

    fn move_merged(&self, m: Movement<'_>, axes: &[Axis]) -> Result<()> {
        if axes.len() > MAX_RANK {
            // Splitting an axis in two can give nine; the outermost is then looped over here.
            let (first, rest) = (axes[0], &axes[1..]);
            return (0..first.n as i64).try_for_each(|i| {
                let at = [m.at[0] + i * first.x, m.at[1] + i * first.y];
                self.move_merged(Movement { at, ..m }, rest)
            });
        }
        match self.plan("strided_copy", &m.problem(axes))? {
            CopyPlan::Contiguous => self.move_run(m, axes[0].n * m.x.dtype().size()),
            CopyPlan::Tiles { axis } => self.move_tiles(m, axes, axis),
            CopyPlan::Strided => self.move_strided(m, axes),
        }
    }

    /// One run of memory.
    fn move_run(&self, m: Movement<'_>, bytes: usize) -> Result<()> {
        let [Ptr(Some(from)), Ptr(Some(to))] = m.args() else { return Ok(()) };
        if from == to {
            return Ok(());
        }
        self.wrote([to.0]);
        self.queue_copy(from, to, bytes)
    }

    fn move_strided(&self, m: Movement<'_>, axes: &[Axis]) -> Result<()> {
        let (own, last) = (m.x.dtype(), axes.len() - 1);
        let size = own.size();
        // Items: as many bytes at once as all steps allow.
        let along = axes[last].x == 1 && axes[last].y == 1;
        let mut item = size;
        if along {
            let outer = axes[..last].iter().flat_map(|a| [a.x.unsigned_abs(), a.y.unsigned_abs()]);
            let steps = outer.map(|s| s as usize * size).chain([axes[last].n * size]);
            item = common_power(16, steps.chain(m.first()));
        }
        let wide = item == 16;
        let dtype = if m.accumulate { own } else { unit_of(if wide { 4 } else { item.max(size) }) };
        if m.accumulate && !wide {
            item = size;
        }
        // Steps count elements of the unit; the innermost one of wide items is a whole item.
        let scale = |s: i64| s * size as i64 / dtype.size() as i64;
        let inner = |s: i64| if along { (item / dtype.size()) as i64 } else { s };
        let at = |i: usize, s: i64| if i == last { inner(s) } else { scale(s) };
        let mut shape: Vec<usize> = axes.iter().map(|a| a.n).collect();
        shape[last] = shape[last] * size / item;
        let n: usize = shape.iter().product();
        let [x, y] = m.args();
        let args = CopyNdArgs {
            x,
            y,
            n: n as i64,
            wide: i32::from(wide),
            rank: shape.len() as i32,
            shape: dims(shape.iter().copied()),
            magic: magic(shape.iter().copied()),
            sx: signed(axes.iter().enumerate().map(|(i, a)| at(i, a.x))),
            sy: signed(axes.iter().enumerate().map(|(i, a)| at(i, a.y))),
            accumulate: i32::from(m.accumulate),
        };
        self.launch(&COPY_ND, dtype, "", Grid::Stride(n.div_ceil(DEPTH)), &args)
    }

    /// The transposing case: axis `b` is contiguous in x, the last one in y.
    fn move_tiles(&self, m: Movement<'_>, axes: &[Axis], b: usize) -> Result<()> {
        let dtype = mover(m.x.dtype(), m.accumulate);
        let size = dtype.size();
        let (last, b_axis) = (axes[axes.len() - 1], axes[b]);
        let batch: Vec<Axis> = (0..axes.len() - 1).filter(|&i| i != b).map(|i| axes[i]).collect();
        let side = match size {
            1 => 128,
            8 => 32,
            _ => 64,
        };
        let tiles =
            batch.iter().map(|a| a.n).product::<usize>() * last.n.div_ceil(side) * b_axis.n.div_ceil(side);
        let wide = |first: usize, row: usize, step: i64, other: &dyn Fn(&Axis) -> i64| {
            let outer = batch.iter().map(other).chain([step]).map(|s| s.unsigned_abs() as usize * size);
            common_power(16, outer.chain([first, row * size])) == 16
        };
        let ([x, y], [x_at, y_at]) = (m.args(), m.first());
        let wide_x = wide(x_at, b_axis.n, last.x, &|a| a.x);
        let wide_y = wide(y_at, last.n, b_axis.y, &|a| a.y);
        let args = CopyTilesArgs {
            x,
            y,
            tiles: tiles as i64,
            na: last.n as i64,
            nb: b_axis.n as i64,
            sxa: last.x,
            syb: b_axis.y,
            rank: batch.len() as i32,
            shape: dims(batch.iter().map(|a| a.n)),
            sx: signed(batch.iter().map(|a| a.x)),
            sy: signed(batch.iter().map(|a| a.y)),
            wide: i32::from(wide_x) | i32::from(wide_y) << 1,
            accumulate: i32::from(m.accumulate),
        };
        self.launch(&COPY_TILES, dtype, "", Grid::Blocks([tiles, 1, 1]), &args)
    }

    /// y[p] = pattern, an element's bytes.
    pub(in crate::engine::ops) fn fill_pattern(&self, pattern: &[u8], y: &View<'_>) -> Result<()> {
        let (n, size) = (y.numel(), y.dtype().size());
        if n == 0 {
            return Ok(());
        }
        let (lo, hi) = pattern_words(pattern);
        let (dtype, to, first) = (unit_of(size), self.arg_in(y), at_bytes(y, 0));
        let mut axes = Axis::of(y, y);
        axes.iter_mut().for_each(|a| a.x = 0);
        let axes = merged(axes);
        let last = axes[axes.len() - 1];
        let contiguous = axes.len() == 1 && (last.y == 1 || n == 1);
        if self.plan("fill", &FillProblem { contiguous })? == FillPlan::Flat {
            let head = (first.next_multiple_of(16) - first) / size;
            let args = FillFlatArgs { y: to, n: n as i64, head: head.min(n) as i64, lo, hi };
            return self.launch(&FILL_FLAT, dtype, "", Grid::Stride((n * size).div_ceil(16)), &args);
        }
        let outer = axes[..axes.len() - 1].iter().map(|a| a.y as usize * size);
        let wide = last.y == 1 && common_power(16, outer.chain([first, last.n * size])) == 16;
        let w = if wide { 16 / size } else { 1 };
        let mut shape: Vec<usize> = axes.iter().map(|a| a.n).collect();
        let mut sy: Vec<i64> = axes.iter().map(|a| a.y).collect();
        if let (Some(n), Some(s)) = (shape.last_mut(), sy.last_mut()) {
            *n /= w;
            *s *= w as i64;
        }
        let n: usize = shape.iter().product();
        let args = FillNdArgs {
            y: to,
            n: n as i64,
            wide: i32::from(wide),
            rank: shape.len() as i32,
            shape: dims(shape.iter().copied()),
            magic: magic(shape.iter().copied()),
            sy: signed(sy),
            lo,
            hi,
        };
        self.launch(&FILL_ND, dtype, "", Grid::Stride(n.div_ceil(DEPTH)), &args)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn magic_divides() {
        for d in [1usize, 2, 3, 5, 7, 10, 16, 63, 64, 65, 1000, 65_537, 1 << 30, (1 << 31) - 1] {
            let m = magic([d]);
            let (l, m) = ((m.0[0] >> 32) as u32, m.0[0] as u32);
            for n in [0u32, 1, 2, 9, 63, 64, 100, 12_345, 65_536, 1 << 20, 123_456_789, (1 << 31) - 1] {
                let q = (((n as u64 * m as u64) >> 32) as u32 + n) >> l;
                assert_eq!(q, n / d as u32, "{n} / {d}");
            }
        }
    }

    #[test]
    fn axes_merge_in_the_order_of_the_output() {
        let a = |n, x, y| Axis { n, x, y };
        assert_eq!(merged(vec![a(4, 15, 15), a(3, 5, 5), a(5, 1, 1)]), [a(60, 1, 1)]);
        assert_eq!(merged(vec![a(3, 1, 4), a(1, 9, 9), a(4, 3, 1)]), [a(3, 1, 4), a(4, 3, 1)]);
        assert_eq!(merged(vec![a(3, 1, 1), a(4, 3, 3)]), [a(12, 1, 1)]);
    }
}
