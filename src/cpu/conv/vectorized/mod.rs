//! Convolution in f32: windows of several images, or a part of those of one image, are the columns of one product. Operands are read and results
//! written in place.

mod columns;
mod run;

pub(super) use self::run::why_not;

use std::borrow::Cow;
use std::ops::Range;

use rayon::prelude::*;

use super::{Run, all_runs};
use crate::cpu::matmul::{Place, block_step, panel};
use crate::cpu::scratch::*;
use crate::cpu::values::{Share, each_chunk_in};
use crate::cpu::vector::product::{multiply, multiply_panels, packed, turned};
use crate::cpu::vector::{Narrow, add};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::conv::{ConvShape, Direction};

/// Windows of a product.
const WINDOWS: usize = 512;
/// Groups of images from which on each has a thread to itself; fewer share the threads of each step.
const MANY: usize = 4;
/// Channels whose weights a thread copies at least.
const CHANNELS: usize = 4;
/// Columns of the gradient of weights that a task computes at most, and tasks into which it is divided at least; both are fixed, so that sums do not
/// depend on the number of threads.
const COLUMNS: usize = 320;
const TASKS: usize = 16;

/// A convolution as products.
pub(super) struct Plan<'a> {
    pub(super) s: &'a ConvShape,
    op: &'static str,
    /// The elements of the window that lie in the input for some window, by number, with their runs.
    taps: Vec<(usize, Vec<Run>)>,
    /// Images that are computed together.
    images: usize,
}

/// Windows whose columns are made together: those of some images, or a part of those of one.
#[derive(Clone, Copy)]
struct Block {
    image: usize,
    count: usize,
    first: usize,
    windows: usize,
}

impl Block {
    fn width(&self) -> usize {
        self.count * self.windows
    }
}

/// Room for a block's work.
#[derive(Default)]
struct Room {
    /// Columns [channels * taps, windows], row by row or as panels.
    columns: Vec<f32>,
    /// Output channels of several images side by side [channels, windows].
    tile: Vec<f32>,
    /// 16-bit results as f32.
    wide: Vec<f32>,
}

impl<'a> Plan<'a> {
    pub(super) fn new(op: &'static str, s: &'a ConvShape) -> Result<Self> {
        let mut taps = all_runs(s)?.into_iter().enumerate().try_vec()?;
        if taps.iter().any(|(_, runs)| !runs.is_empty()) {
            taps.retain(|(_, runs)| !runs.is_empty());
        }
        Ok(Plan { s, op, taps, images: (WINDOWS / s.out_plane()).clamp(1, s.n) })
    }

    /// Rows of the columns.
    fn depth(&self) -> usize {
        self.s.cig() * self.taps.len()
    }

    /// Elements of so many columns as panels, which are more than those of rows.
    fn room(&self, columns: usize) -> usize {
        columns.div_ceil(panel::<f32>()) * block_step(panel::<f32>(), self.depth())
    }

    /// Whether the columns of an image are the image.
    fn is_pointwise(&self) -> bool {
        let (from, to) = (self.s.in_plane(), self.s.out_plane());
        let whole = |runs: &[Run]| matches!(runs, [r] if r.at == 0 && r.len == from && r.len == to);
        self.s.taps() == 1 && self.taps.iter().all(|(_, runs)| whole(runs))
    }

    /// The weights of the taps that are read.
    fn weights<'w>(&self, w: &'w [f32]) -> Result<Cow<'w, [f32]>> {
        if self.taps.len() == self.s.taps() {
            return Ok(w.into());
        }
        let mut some = filled(self.s.co * self.depth(), 0.0)?;
        let (each, all) = (self.taps.len(), self.s.taps());
        let channels = some.par_chunks_mut(self.depth()).zip(w.par_chunks(self.s.cig() * all));
        channels.with_min_len(CHANNELS).for_each(|(some, w)| {
            for (some, w) in some.chunks_mut(each).zip(w.chunks(all)) {
                some.iter_mut().zip(&self.taps).for_each(|(to, (t, _))| *to = w[*t]);
            }
        });
        Ok(some.into())
    }

    /// The blocks of a group of images.
    fn blocks(&self, image: usize) -> impl Iterator<Item = Block> + use<> {
        let (count, all) = (self.images.min(self.s.n - image), self.s.out_plane());
        let step = if count > 1 { all } else { WINDOWS };
        let from = (0..all).step_by(step);
        from.map(move |first| Block { image, count, first, windows: step.min(all - first) })
    }

    /// The group's channels of a tensor like y, as a matrix [channels, windows of the block]: in place for one image, else a copy.
    fn side_by_side<'t>(
        &self,
        b: Block,
        group: usize,
        y: &'t [f32],
        tile: &'t mut [f32],
    ) -> (&'t [f32], Place) {
        let (s, plane, m) = (self.s, self.s.out_plane(), self.s.cog());
        let channel = |i: usize| ((b.image + i) * s.co + group * m) * plane;
        if b.count == 1 {
            return (y, Place { at: channel(0) + b.first, rows: plane, cols: 1 });
        }
        for (o, row) in tile.chunks_mut(b.width()).enumerate() {
            for (i, to) in row.chunks_mut(plane).enumerate() {
                to.copy_from_slice(&y[channel(i) + o * plane..][..plane]);
            }
        }
        (tile, packed(0, b.width()))
    }

    /// Calls `f` with each group of images of `out`, its first image, room for its work, and whether threads may share that.
    fn each_group<T: Narrow>(
        &self,
        out: &mut [T],
        rows: usize,
        f: impl Fn(usize, &mut [f32], &mut Room, bool) -> Result<()> + Sync,
    ) -> Result<()> {
        let n = self.images * out.len() / self.s.n;
        let width =
            if self.images > 1 { self.images * self.s.out_plane() } else { WINDOWS.min(self.s.out_plane()) };
        let room = || -> Result<Room> {
            Ok(Room {
                columns: filled(self.room(width), 0.0)?,
                tile: filled(if self.images > 1 { rows * width } else { 0 }, 0.0)?,
                wide: filled(if T::DTYPE == DType::F32 { 0 } else { n }, 0.0)?,
            })
        };
        let one = |room: &mut Room, i: usize, out: &mut [T], alone: bool| {
            let (mut wide, mut done) = (std::mem::take(&mut room.wide), Ok(()));
            T::change(out, &mut wide, |out| done = f(i * self.images, out, room, alone));
            room.wide = wide;
            done
        };
        if self.s.n.div_ceil(self.images) < MANY {
            let mut room = room()?;
            return out.chunks_mut(n).enumerate().try_for_each(|(i, out)| one(&mut room, i, out, true));
        }
        each_chunk_in(out, n, Share::ANY, &room, &|room, i, out| one(room, i, out, false))
    }

    /// The gradient of what is convolved: dz is that of the result.
    fn data_grad<T: Narrow>(&self, way: Direction, of: (&[f32], &[f32]), dx: &mut [T]) -> Result<()> {
        match way {
            Direction::Conv => self.input_grad(of, dx, |_, _| {}),
            Direction::Transpose => self.forward(of, dx, |_, _| {}),
        }
    }

    /// y = conv(x, w); then `finish` gets the images of each group and the number of the first one.
    pub(super) fn forward<T: Narrow>(
        &self,
        (x, w): (&[f32], &[f32]),
        y: &mut [T],
        finish: impl Fn(usize, &mut [f32]) + Sync,
    ) -> Result<()> {
        let (s, plane, m, k) = (self.s, self.s.out_plane(), self.s.cog(), self.depth());
        let w = self.weights(w)?;
        self.each_group(y, m, |image, y, room, alone| {
            for (b, g) in self.blocks(image).flat_map(|b| (0..s.groups).map(move |g| (b, g))) {
                let (width, a) = (b.width(), (&*w, packed(g * m * k, k)));
                let to = Place { at: g * m * plane + b.first, rows: plane, cols: 1 };
                if self.is_pointwise() && b.count == 1 {
                    let at = (image * s.ci + g * s.cig()) * plane + b.first;
                    multiply(self.op, (m, width, k), a, (x, Place { at, ..to }), 0.0, (y, to), alone)?;
                    continue;
                }
                let panels = &mut room.columns[..self.room(width)];
                self.panels(b, g, x, panels, alone);
                if b.count == 1 {
                    multiply_panels(self.op, (m, width, k), a, panels, 0.0, (y, to), alone)?;
                    continue;
                }
                let tile = &mut room.tile[..m * width];
                multiply_panels(self.op, (m, width, k), a, panels, 0.0, (tile, packed(0, width)), alone)?;
                for (i, y) in y.chunks_mut(s.co * plane).enumerate() {
                    for (o, to) in y[g * m * plane..][..m * plane].chunks_mut(plane).enumerate() {
                        to.copy_from_slice(&tile[o * width + i * plane..][..plane]);
                    }
                }
            }
            finish(image, y);
            Ok(())
        })
    }

    /// The convolution that is the adjoint of one with stride 1, where it reads no more than the adjoint writes, and there are windows enough to make
    /// good for turning the weights.
    fn adjoint(&self) -> Option<ConvShape> {
        let s = self.s;
        let reach = [0, 1, 2].map(|i| s.dilation[i] * (s.kernel[i] - 1));
        let many = s.n * s.out_plane() >= 8 * s.co;
        let apt = s.stride == [1; 3] && s.co <= s.ci && many && !self.is_pointwise();
        (apt && (0..3).all(|i| s.pad[i] <= reach[i])).then(|| ConvShape {
            ci: s.co,
            co: s.ci,
            input: s.output,
            output: s.input,
            pad: [0, 1, 2].map(|i| reach[i] - s.pad[i]),
            ..*s
        })
    }

    /// The weights of the adjoint: input and output channels of a group exchanged, windows turned around.
    fn turned_weights(&self, w: &[f32]) -> Result<Vec<f32>> {
        let (s, taps) = (self.s, self.s.taps());
        let mut turned = filled(w.len(), 0.0)?;
        let channels = turned.par_chunks_mut(taps).with_min_len(CHANNELS * s.cog()).enumerate();
        channels.for_each(|(i, to)| {
            let (c, o) = (i / s.cog(), i % s.cog());
            let (group, c) = (c / s.cig(), c % s.cig());
            let from = &w[((group * s.cog() + o) * s.cig() + c) * taps..][..taps];
            to.iter_mut().zip(from.iter().rev()).for_each(|(to, w)| *to = *w);
        });
        Ok(turned)
    }

    /// dx = adjoint of conv on dy; then `finish` as in [`Plan::forward`].
    pub(super) fn input_grad<T: Narrow>(
        &self,
        (dy, w): (&[f32], &[f32]),
        dx: &mut [T],
        finish: impl Fn(usize, &mut [f32]) + Sync,
    ) -> Result<()> {
        if let Some(s) = self.adjoint() {
            return Plan::new(self.op, &s)?.forward((dy, &self.turned_weights(w)?), dx, finish);
        }
        let (s, m, k) = (self.s, self.s.cog(), self.depth());
        let w = self.weights(w)?;
        self.each_group(dx, m, |image, dx, room, alone| {
            dx.fill(0.0);
            for (b, g) in self.blocks(image).flat_map(|b| (0..s.groups).map(move |g| (b, g))) {
                let (width, a) = (b.width(), (&*w, turned(g * m * k, k)));
                let tile = &mut room.tile[..if b.count > 1 { m * width } else { 0 }];
                let dy = self.side_by_side(b, g, dy, tile);
                if self.is_pointwise() && b.count == 1 {
                    let plane = s.in_plane();
                    let to = Place { at: g * s.cig() * plane + b.first, rows: plane, cols: 1 };
                    multiply(self.op, (k, width, m), a, dy, 1.0, (dx, to), alone)?;
                    continue;
                }
                let col = &mut room.columns[..k * width];
                multiply(self.op, (k, width, m), a, dy, 0.0, (col, packed(0, width)), alone)?;
                self.fold(b, g, col, dx, alone);
            }
            finish(image, dx);
            Ok(())
        })
    }

    /// dw = sums over all windows + beta dw, for dw [co, ci / groups, taps] of conv.
    pub(super) fn weight_grad(&self, x: &[f32], dy: &[f32], beta: f32, dw: &mut [f32]) -> Result<()> {
        let (s, m, taps) = (self.s, self.s.cog(), self.taps.len());
        let channels = s.cig().div_ceil(self.depth().div_ceil(COLUMNS));
        let first = (0..s.cig()).step_by(channels);
        let tasks = (0..s.groups).flat_map(|g| first.clone().map(move |c| (g, c..s.cig().min(c + channels))));
        let tasks = tasks.try_vec()?;
        let parts = TASKS.div_ceil(tasks.len()).min(s.n.div_ceil(self.images));
        let sum = |(group, channels): &(usize, Range<usize>)| -> Result<Vec<f32>> {
            let part = |i| self.part_of_weight_grad((x, dy), *group, channels.clone(), [i, parts]);
            let mut sums = (0..parts).into_par_iter().map(part).try_vec()?.into_iter();
            let mut all = sums.next().unwrap_or_else(|| Ok(Vec::new()))?;
            sums.try_for_each(|sums| sums.map(|sums| add(&mut all, &sums)))?;
            Ok(all)
        };
        let sums = tasks.par_iter().with_max_len(1).map(sum).try_vec()?.into_iter().try_vec_ok()?;
        let (per_group, whole) = (tasks.len() / s.groups, taps == s.taps());
        let rows = dw.par_chunks_mut(s.cig() * s.taps()).with_min_len(CHANNELS).enumerate();
        rows.for_each(|(o, dw)| {
            if beta == 0.0 {
                dw.fill(0.0);
            }
            for (dw, sums) in dw.chunks_mut(channels * s.taps()).zip(&sums[o / m * per_group..]) {
                let width = sums.len() / m;
                let sums = &sums[o % m * width..][..width];
                if whole {
                    add(dw, sums);
                    continue;
                }
                for (dw, sums) in dw.chunks_mut(s.taps()).zip(sums.chunks(taps)) {
                    self.taps.iter().zip(sums).for_each(|((t, _), sum)| dw[*t] += sum);
                }
            }
        });
        Ok(())
    }

    /// The sums [co / groups, channels * taps] of some channels of a group over part number `i` of `parts` of the images.
    fn part_of_weight_grad(
        &self,
        (x, dy): (&[f32], &[f32]),
        group: usize,
        channels: Range<usize>,
        [i, parts]: [usize; 2],
    ) -> Result<Vec<f32>> {
        let (s, m, k) = (self.s, self.s.cog(), channels.len() * self.taps.len());
        let all = self.images.max(1) * s.out_plane();
        let width = if self.images > 1 { all } else { WINDOWS.min(all) };
        let (mut col, mut tile) = (filled(k * width, 0.0)?, filled(m * width, 0.0)?);
        let (mut dw, first) = (filled(m * k, 0.0)?, group * s.cig() + channels.start);
        let groups = s.n.div_ceil(self.images);
        let mine = i * groups / parts..(i + 1) * groups / parts;
        for b in mine.flat_map(|g| self.blocks(g * self.images)) {
            let width = b.width();
            let dy = self.side_by_side(b, group, dy, &mut tile[..m * width]);
            let col = match self.is_pointwise() && b.count == 1 {
                true => {
                    let at = (b.image * s.ci + first) * s.in_plane() + b.first;
                    (x, Place { at, rows: 1, cols: s.in_plane() })
                }
                false => {
                    self.columns(b, first, x, &mut col[..k * width]);
                    (&*col, turned(0, width))
                }
            };
            multiply(self.op, (m, k, width), dy, col, 1.0, (&mut dw, packed(0, k)), false)?;
        }
        Ok(dw)
    }
}
