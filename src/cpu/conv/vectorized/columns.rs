//! Windows of images as columns of a matrix, and columns added back to images.

use super::{Block, Plan};
use crate::cpu::conv::Run;
use crate::cpu::matmul::{block_step, panel};
use crate::cpu::values::{Share, each_chunk};
use crate::cpu::vector::simd;

/// Panels of a task.
const PANELS: usize = 4;

/// A row of panels, or of a matrix, which is one panel: where the next elements go.
struct Row<'a> {
    to: &'a mut [f32],
    /// The first element of the row in the panel, and how many are behind the next one in it.
    at: usize,
    left: usize,
    panel: usize,
    /// Elements of a panel.
    step: usize,
}

impl Row<'_> {
    /// Calls `f` with the places of the next n elements, piece by piece, and how many came before.
    #[inline(always)]
    fn take(&mut self, n: usize, mut f: impl FnMut(usize, &mut [f32])) {
        let mut done = 0;
        while done < n {
            let len = self.left.min(n - done);
            let from = self.at + self.panel - self.left;
            f(done, &mut self.to[from..from + len]);
            done += len;
            self.left -= len;
            if self.left == 0 {
                self.at += self.step;
                self.left = self.panel;
            }
        }
    }
}

impl Plan<'_> {
    /// Fills the columns of a block of a group of channels, as panels; `alone`: whether threads may share the work.
    pub(super) fn panels(&self, b: Block, group: usize, x: &[f32], to: &mut [f32], alone: bool) {
        let panels = if alone { PANELS } else { b.width().div_ceil(panel::<f32>()) };
        let (task, len) = (panels * panel::<f32>(), panels * block_step(panel::<f32>(), self.depth()));
        let fill = |i: usize, to: &mut [f32]| simd!(self.some_panels(b, group, x, i * task, to));
        match alone {
            true => each_chunk(to, len, Share::ANY, &fill),
            false => fill(0, to),
        }
    }

    /// The panels from a column on.
    #[inline(always)]
    fn some_panels(&self, b: Block, group: usize, x: &[f32], first: usize, to: &mut [f32]) {
        let (s, plane, panel, k) = (self.s, self.s.in_plane(), panel::<f32>(), self.depth());
        let step = block_step(panel, k);
        let end = b.width().min(first + to.len() / step * panel);
        for row in 0..k {
            let (c, runs) = (row / self.taps.len(), &self.taps[row % self.taps.len()].1);
            let mut to = Row { to, at: row * panel, left: panel, panel, step };
            for i in first / b.windows..end.div_ceil(b.windows) {
                let [from, until] = [first.max(i * b.windows), end.min((i + 1) * b.windows)];
                let part = Block { first: b.first + from - i * b.windows, windows: until - from, ..b };
                let channel = (b.image + i) * s.ci + group * s.cig() + c;
                self.row(part, runs, &x[channel * plane..][..plane], &mut to);
            }
        }
    }

    /// What one element of the block's windows reads of a plane; 0 beyond it.
    #[inline(always)]
    fn row(&self, b: Block, runs: &[Run], x: &[f32], to: &mut Row<'_>) {
        let (step, mut done) = (self.s.stride[2], 0);
        for (part, at) in parts(b, runs, step) {
            to.take(part.start - done, |_, to| to.fill(0.0));
            done = part.end;
            let from = &x[at..];
            to.take(part.len(), |i, to| match step {
                1 => to.iter_mut().zip(&from[i..]).for_each(|(c, x)| *c = *x),
                _ => to.iter_mut().zip(from[i * step..].iter().step_by(step)).for_each(|(c, x)| *c = *x),
            });
        }
        to.take(b.windows - done, |_, to| to.fill(0.0));
    }

    /// Fills the columns of a block row by row, as many channels from a first one on as `col` has room for.
    pub(super) fn columns(&self, b: Block, first: usize, x: &[f32], col: &mut [f32]) {
        let (s, plane) = (self.s, self.s.in_plane());
        simd!({
            for (row, col) in col.chunks_mut(b.width()).enumerate() {
                let (c, runs) = (row / self.taps.len(), &self.taps[row % self.taps.len()].1);
                let mut to = Row { at: 0, left: col.len(), panel: col.len(), step: 0, to: col };
                for i in 0..b.count {
                    let channel = (b.image + i) * s.ci + first + c;
                    self.row(b, runs, &x[channel * plane..][..plane], &mut to);
                }
            }
        });
    }

    /// Adds columns of a block to the places that they were read from, in the group's planes of the images of `x`.
    pub(super) fn fold(&self, b: Block, group: usize, col: &[f32], x: &mut [f32], alone: bool) {
        let (s, plane) = (self.s, self.s.in_plane());
        if alone && s.groups == 1 {
            let one = |i: usize, x: &mut [f32]| simd!(self.fold_plane(b, [i / s.ci, i % s.ci], col, x));
            return each_chunk(x, plane, Share::at_least(8), &one);
        }
        simd!({
            for (i, x) in x.chunks_mut(s.ci * plane).enumerate() {
                let planes = x[group * s.cig() * plane..][..s.cig() * plane].chunks_mut(plane);
                planes.enumerate().for_each(|(c, x)| self.fold_plane(b, [i, c], col, x));
            }
        });
    }

    /// The same for one image of the block and one channel of the group.
    #[inline(always)]
    fn fold_plane(&self, b: Block, [image, c]: [usize; 2], col: &[f32], x: &mut [f32]) {
        let rows = col.chunks(b.width()).skip(c * self.taps.len());
        for ((_, runs), row) in self.taps.iter().zip(rows) {
            let row = &row[image * b.windows..][..b.windows];
            for (from, at) in parts(b, runs, self.s.stride[2]) {
                let (to, from) = (&mut x[at..], &row[from]);
                match self.s.stride[2] {
                    1 => to.iter_mut().zip(from).for_each(|(x, c)| *x += c),
                    step => to.iter_mut().step_by(step).zip(from).for_each(|(x, c)| *x += c),
                }
            }
        }
    }
}

/// The parts of runs that a block's windows have: windows counted from its first one, and the place that the first of them reads.
fn parts(b: Block, runs: &[Run], step: usize) -> impl Iterator<Item = (std::ops::Range<usize>, usize)> + '_ {
    let end = b.first + b.windows;
    let before = if b.first == 0 { 0 } else { runs.partition_point(|r| r.out + r.len <= b.first) };
    let some = runs[before..].iter().take_while(move |r| r.out < end);
    some.map(move |r| {
        let (from, to) = (r.out.max(b.first), (r.out + r.len).min(end));
        (from - b.first..to - b.first, r.at + (from - r.out) * step)
    })
}
