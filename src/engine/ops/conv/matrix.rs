//! Convolutions on matrix cores: x with its channels last, weights by tap, and the implicit products of both. Operands of f32 are in three parts in bf16.

use super::Gathered;
use super::plan::matrix::{Fold, ITEM, MatrixTile};
use crate::buffer::{Buffer, GradMut, View, ViewMut};
use crate::driver::DimsArg;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, aligned16, dims};
use crate::error::Result;
use crate::ops::conv::ConvShape;
use crate::ops::gemm::fused_act;
use crate::ops::shape::ShapeOps;
use crate::spec::kernels::conv::*;

/// Side of the tiles in which f32 is copied to parts, and channels up to which it is copied by place.
const PARTS_SIDE: usize = 64;
const FEW_CHANNELS: usize = 16;

/// x [N, D, H, W, C], packed, with zeros up to a multiple of eight channels; what `map` says of it.
struct ChannelsLast {
    x: Buffer,
    channels: usize,
}

impl Engine {
    /// A copy of x [N, channels, map] with its channels last.
    fn channels_last(&self, x: &View<'_>, [n, r]: [usize; 2], map: [usize; 3]) -> Result<ChannelsLast> {
        let (channels, plane) = (r.next_multiple_of(ITEM), map.iter().product::<usize>());
        let copy = self.scratch(x.dtype(), n * plane * channels)?;
        if channels > r {
            self.fill(0.0, copy.alias_mut())?;
        }
        let to = copy.alias_mut().reshape(&[n, plane, channels])?;
        let to = to.map("x", |l| l.narrow(2, 0, r))?;
        let from = x.reshape(&[n, r, plane])?.map("x", |l| l.transpose(1, 2))?;
        self.strided_copy(from, to.into())?;
        Ok(ChannelsLast { x: copy, channels })
    }

    /// The same of f32 in three parts, one behind the other; folded where `fold` says so.
    fn parts_last(
        &self,
        x: &View<'_>,
        [n, r]: [usize; 2],
        map: [usize; 3],
        fold: Option<Fold>,
    ) -> Result<ChannelsLast> {
        let (channels, plane) = (r.next_multiple_of(ITEM), map.iter().product::<usize>());
        let size = n * plane * channels / if fold.is_some() { 2 } else { 1 };
        let parts = self.scratch(DType::Bf16, 3 * size)?;
        let args = ConvPartsFewArgs {
            x: self.arg_in(x),
            parts: self.arg_in(&parts.view()),
            r: r as i32,
            places: plane as i32,
            channels: channels as i32,
            images: n as i32,
            fold: i32::from(fold.is_some()),
        };
        if channels <= FEW_CHANNELS {
            self.launch(&CONV_PARTS_FEW, DType::Bf16, "", Grid::Stride(size / ITEM), &args)?;
        } else {
            let ConvPartsFewArgs { x, parts, r, places, channels: c, images, .. } = args;
            let args = ConvPartsLastArgs { x, parts, r, places, channels: c, images };
            let tiles = n * plane.div_ceil(PARTS_SIDE) * channels.div_ceil(PARTS_SIDE);
            self.launch(&CONV_PARTS_LAST, DType::Bf16, "", Grid::Blocks([tiles, 1, 1]), &args)?;
        }
        Ok(ChannelsLast { x: parts, channels })
    }

    /// The weights [rows, taps, channels]; of f32 in three parts, one behind the other.
    fn matrix_weights(&self, q: &Gathered<'_>, channels: usize, fold: Option<Fold>) -> Result<Buffer> {
        let (p, (m, r), s) = (&q.p, q.p.channels(), &q.p.s);
        let parts = p.dtype == DType::F32;
        let n = m * fold.map_or(s.taps(), |fold| fold.s.taps()) * channels;
        let dtype = if parts { DType::Bf16 } else { p.dtype };
        let wt = self.scratch(dtype, if parts { 3 * n } else { n })?;
        let args = ConvMatrixWeightsArgs {
            w: self.arg_in(&q.w),
            wt: self.arg_in(&wt.view()),
            n: n as i64,
            rows: m as i32,
            r: r as i32,
            channels: channels as i32,
            taps: s.taps() as i32,
            back: i32::from(p.back),
        };
        if !parts {
            self.launch(&CONV_MATRIX_WEIGHTS, dtype, "", Grid::Stride(n), &args)?;
            return Ok(wt);
        }
        let ConvMatrixWeightsArgs { w, wt: to, n: count, rows, r, channels, taps, back } = args;
        let (across, fold) = (s.kernel[2] as i32, fold.map_or(0, |fold| fold.code as i32));
        let args = ConvPartsWeightsArgs { w, wt: to, n: count, rows, r, channels, taps, back, across, fold };
        self.launch(&CONV_PARTS_WEIGHTS, dtype, "", Grid::Stride(n), &args)?;
        Ok(wt)
    }

    /// A convolution or its adjoint; sums in `runs` runs of `per` stages, or whole ([1, 0]).
    pub(super) fn conv_matrix(
        &self,
        q: &Gathered<'_>,
        tile: MatrixTile,
        [runs, per]: [usize; 2],
    ) -> Result<()> {
        let (p, s, dtype) = (&q.p, &q.p.s, q.p.dtype);
        let ((m, r), (from, to)) = (p.channels(), p.maps());
        let parts = tile == MatrixTile::Bf16x6;
        let fold = Fold::of(s).filter(|_| parts && !p.back);
        let ChannelsLast { x, channels } = match parts {
            true => self.parts_last(&q.x, [s.n, r], from, fold)?,
            false => self.channels_last(&q.x, [s.n, r], from)?,
        };
        let wt = self.matrix_weights(q, channels, fold)?;
        let (read, from) = fold.map_or((*s, from), |fold| (fold.s, fold.s.input));
        let (y, z) = (q.y.as_view(), q.z.as_ref().map(ViewMut::as_view));
        let plane = to.iter().product::<usize>();
        let [rows, places] = tile.size();
        // Places of an adjoint whose windows meet x in the same taps: those of a phase, one for each step of the strides.
        let (phases, tiles) = (p.phases().iter().product::<usize>(), p.columns().div_ceil(places));
        let (act, slope) = fused_act("conv", q.act)?;
        let args = ConvMatrixArgs {
            x: self.arg_in(&x.view()),
            wt: self.arg_in(&wt.view()),
            scale: self.arg_opt(q.scale.as_ref()),
            bias: self.arg_opt(q.bias.as_ref()),
            residual: self.arg_opt(q.residual.as_ref()),
            y: self.arg_in(&y),
            z: self.arg_opt(z.as_ref()),
            map: dims(from.into_iter().chain([channels, s.n])),
            out: dims(to.into_iter().chain([m, m.div_ceil(rows), tiles, per, p.columns()])),
            win: window(&read),
            geo: geometry(&read),
            back: i32::from(p.back),
            wide: i32::from(phases == 1 && plane.is_multiple_of(4) && aligned16(&y)),
            accumulate: i32::from(q.accumulate),
            act,
            q_act: slope,
        };
        let blocks = [m.div_ceil(rows) * tiles * phases * runs, 1, 1];
        let grid = Grid::BlocksWithLocal(blocks, tile.local(self.device_caps()));
        match tile {
            MatrixTile::Square128 => self.launch(&CONV_MATRIX128, dtype, "", grid, &args),
            MatrixTile::Wide64 => self.launch(&CONV_MATRIX64, dtype, "", grid, &args),
            MatrixTile::Bf16x6 if runs < 2 => self.launch(&CONV_BF16X6, DType::Bf16, "", grid, &bf16x6(args)),
            MatrixTile::Bf16x6 => {
                let part = self.scratch(DType::F32, runs * phases * m * p.columns())?;
                let none = self.arg_opt(None);
                let sums = ConvBf16x6Args {
                    scale: none,
                    bias: none,
                    residual: none,
                    y: self.arg_in(&part.view()),
                    z: none,
                    wide: i32::from(p.columns().is_multiple_of(4)),
                    accumulate: 0,
                    act: 0,
                    ..bf16x6(args)
                };
                self.launch(&CONV_BF16X6, DType::Bf16, "", grid, &sums)?;
                self.conv_split(q, &part.view(), runs)
            }
        }
    }

    /// dw (+)= sums of dy * x, over `splits` runs of `per` places.
    pub(super) fn conv_matrix_weight(
        &self,
        s: &ConvShape,
        (tile, [splits, per]): (MatrixTile, [usize; 2]),
        [x, dy]: [View<'_>; 2],
        g: GradMut<'_>,
    ) -> Result<()> {
        let (dtype, parts) = (x.dtype(), tile == MatrixTile::Bf16x6);
        let fold = Fold::of(s).filter(|_| parts);
        let read = fold.map_or(*s, |fold| fold.s);
        let ChannelsLast { x, channels } = match parts {
            true => self.parts_last(&x, [s.n, s.ci], s.input, fold)?,
            false => self.channels_last(&x, [s.n, s.ci], s.input)?,
        };
        let (joined, [run, line, image]) = self.rows_of_dy(s, &dy)?;
        let dy = joined.as_ref().map_or(dy, Buffer::view);
        let parts = parts.then(|| self.parts_of(&dy)).transpose()?;
        let part = self.scratch(dtype.accumulator(), splits * g.out.numel())?;
        let [high, wide] = tile.size();
        let (row_tiles, column_tiles) = (s.co.div_ceil(high), (read.taps() * channels).div_ceil(wide));
        let folded = fold.map_or(0, |fold| 4 * s.kernel[2] + fold.code);
        let apart = dy.numel().next_multiple_of(ITEM);
        let args = ConvMatrixWeightArgs {
            x: self.arg_in(&x.view()),
            dy: self.arg_in(&parts.as_ref().map_or(dy, Buffer::view)),
            part: self.arg_in(&part.view()),
            map: dims(read.input.into_iter().chain([channels, s.n])),
            out: dims(s.output.into_iter().chain([s.co, row_tiles])),
            win: window(&read),
            geo: geometry(&read),
            size: dims([column_tiles, per, s.ci, run, line, image, apart, folded]),
        };
        let blocks = [row_tiles * column_tiles * splits, 1, 1];
        let grid = Grid::BlocksWithLocal(blocks, tile.local(self.device_caps()));
        if tile == MatrixTile::Bf16x6 {
            let ConvMatrixWeightArgs { x, dy, part, map, out, win, geo, size } = args;
            let args = ConvBf16x6WeightArgs { x, dy, part, map, out, win, geo, size };
            self.launch(&CONV_BF16X6_WEIGHT, DType::Bf16, "", grid, &args)?;
        } else {
            self.launch(&CONV_MATRIX_WEIGHT, dtype, "", grid, &args)?;
        }
        self.conv_join(&g, Some(&part.view()), splits)
    }

    /// dy as rows of places of which chunks lie in one image, or in a row of all images, which is a copy; places of a run, and elements from row to row and
    /// from image to image.
    fn rows_of_dy(&self, s: &ConvShape, dy: &View<'_>) -> Result<(Option<Buffer>, [usize; 3])> {
        let plane = s.out_plane();
        if plane.is_multiple_of(ITEM) && aligned16(dy) {
            return Ok((None, [plane, plane, s.co * plane]));
        }
        let pitch = (s.n * plane).next_multiple_of(ITEM);
        let copy = self.scratch(dy.dtype(), s.co * pitch)?;
        let to = copy.alias_mut().reshape(&[s.co, pitch])?.map("dy", |l| l.narrow(1, 0, s.n * plane))?;
        if pitch > s.n * plane {
            self.fill(0.0, copy.alias_mut())?;
        }
        let to = to.map("dy", |l| l.reshape(&[s.co, s.n, plane]))?;
        let from = dy.reshape(&[s.n, s.co, plane])?.map("dy", |l| l.transpose(0, 1))?;
        self.strided_copy(from, to.into())?;
        Ok((Some(copy), [pitch, pitch, 0]))
    }

    /// Three parts of f32 numbers that lie behind each other, each a multiple of [`ITEM`] numbers long.
    fn parts_of(&self, x: &View<'_>) -> Result<Buffer> {
        let pitch = x.numel().next_multiple_of(ITEM);
        let parts = self.scratch(DType::Bf16, 3 * pitch)?;
        let args = ConvPartsArgs {
            x: self.arg_in(x),
            parts: self.arg_in(&parts.view()),
            n: x.numel() as i64,
            pitch: pitch as i64,
        };
        self.launch(&CONV_PARTS, DType::Bf16, "", Grid::Stride(pitch / ITEM), &args)?;
        Ok(parts)
    }
}

/// The arguments of the kernel for six products in bf16.
fn bf16x6(args: ConvMatrixArgs) -> ConvBf16x6Args {
    let ConvMatrixArgs { x, wt, scale, bias, residual, y, z, map, out, win, geo, .. } = args;
    let ConvMatrixArgs { back, wide, accumulate, act, q_act, .. } = args;
    ConvBf16x6Args {
        x,
        wt,
        scale,
        bias,
        residual,
        y,
        z,
        map,
        out,
        win,
        geo,
        back,
        wide,
        accumulate,
        act,
        q_act,
    }
}

/// Taps and strides.
fn window(s: &ConvShape) -> DimsArg {
    dims(s.kernel.into_iter().chain(s.stride))
}

/// Paddings and dilations.
fn geometry(s: &ConvShape) -> DimsArg {
    dims(s.pad.into_iter().chain(s.dilation))
}
