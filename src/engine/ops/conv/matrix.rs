//! Convolutions of 16-bit types on matrix cores: x with its channels last, weights by tap, and the implicit products of both.

use super::Gathered;
use super::plan::{ITEM, MATRIX_SIDE, matrix_local};
use crate::buffer::{Buffer, GradMut, View, ViewMut};
use crate::driver::DimsArg;
use crate::engine::Engine;
use crate::engine::launch::{Grid, aligned16, dims};
use crate::error::Result;
use crate::ops::conv::ConvShape;
use crate::ops::gemm::fused_act;
use crate::ops::shape::ShapeOps;
use crate::spec::kernels::conv::*;

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

    /// A convolution or its adjoint; `rows` of a tile are 128 or 64.
    pub(super) fn conv_matrix(&self, q: &Gathered<'_>, rows: usize) -> Result<()> {
        let (p, s, dtype) = (&q.p, &q.p.s, q.p.dtype);
        let ((m, r), (from, to)) = (p.channels(), p.maps());
        let ChannelsLast { x, channels } = self.channels_last(&q.x, [s.n, r], from)?;
        let n = m * s.taps() * channels;
        let wt = self.scratch(dtype, n)?;
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
        self.launch(&CONV_MATRIX_WEIGHTS, dtype, "", Grid::Stride(n), &args)?;

        let (y, z) = (q.y.as_view(), q.z.as_ref().map(ViewMut::as_view));
        let plane = to.iter().product::<usize>();
        let (row_tiles, places) = (m.div_ceil(rows), MATRIX_SIDE * MATRIX_SIDE / rows);
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
            out: dims(to.into_iter().chain([m, row_tiles, tiles])),
            win: window(s),
            geo: geometry(s),
            back: i32::from(p.back),
            wide: i32::from(phases == 1 && plane.is_multiple_of(4) && aligned16(&y)),
            accumulate: i32::from(q.accumulate),
            act,
            q_act: slope,
        };
        let blocks = row_tiles * tiles * phases;
        let kernel = if rows == MATRIX_SIDE { &CONV_MATRIX128 } else { &CONV_MATRIX64 };
        let local = matrix_local(rows, self.device_caps());
        self.launch(kernel, dtype, "", Grid::BlocksWithLocal([blocks, 1, 1], local), &args)
    }

    /// dw (+)= sums of dy * x, over `splits` runs of `per` places.
    pub(super) fn conv_matrix_weight(
        &self,
        s: &ConvShape,
        [splits, per]: [usize; 2],
        [x, dy]: [View<'_>; 2],
        g: GradMut<'_>,
    ) -> Result<()> {
        let (dtype, plane) = (x.dtype(), s.out_plane());
        let ChannelsLast { x, channels } = self.channels_last(&x, [s.n, s.ci], s.input)?;
        // Chunks of dy lie in one image, or in a row of all images.
        let joined = !plane.is_multiple_of(ITEM) || !aligned16(&dy);
        let pitch = (s.n * plane).next_multiple_of(ITEM);
        let copy = joined.then(|| self.scratch(dtype, s.co * pitch)).transpose()?;
        if let Some(copy) = &copy {
            let to = copy.alias_mut().reshape(&[s.co, pitch])?.map("dy", |l| l.narrow(1, 0, s.n * plane))?;
            if pitch > s.n * plane {
                self.fill(0.0, copy.alias_mut())?;
            }
            let to = to.map("dy", |l| l.reshape(&[s.co, s.n, plane]))?;
            let from = dy.reshape(&[s.n, s.co, plane])?.map("dy", |l| l.transpose(0, 1))?;
            self.strided_copy(from, to.into())?;
        }
        let (line, image, run) = if joined { (pitch, 0, pitch) } else { (plane, s.co * plane, plane) };
        let dy = copy.as_ref().map_or(dy, Buffer::view);
        let part = self.scratch(dtype.accumulator(), splits * g.out.numel())?;
        let (row_tiles, column_tiles) =
            (s.co.div_ceil(MATRIX_SIDE), (s.taps() * channels).div_ceil(MATRIX_SIDE));
        let args = ConvMatrixWeightArgs {
            x: self.arg_in(&x.view()),
            dy: self.arg_in(&dy),
            part: self.arg_in(&part.view()),
            map: dims(s.input.into_iter().chain([channels, s.n])),
            out: dims(s.output.into_iter().chain([s.co, row_tiles])),
            win: window(s),
            geo: geometry(s),
            size: dims([column_tiles, per, s.ci, run, line, image]),
        };
        let grid = Grid::BlocksWithLocal(
            [row_tiles * column_tiles * splits, 1, 1],
            matrix_local(MATRIX_SIDE, self.device_caps()),
        );
        self.launch(&CONV_MATRIX_WEIGHT, dtype, "", grid, &args)?;
        self.conv_join(&g, Some(&part.view()), splits)
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
