//! Deformable convolution: gathers into columns and matrix products with them, some images at a time.

use crate::buffer::{Buffer, GradMut, View, ViewMut};
use crate::driver::DimsArg;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, dims};
use crate::error::{GpuError, Result};
use crate::ops::conv::*;
use crate::ops::gemm::{Gemm, GemmAxis, GemmBwd, GemmIo, GemmOps};
use crate::ops::shape::ShapeOps;
use crate::spec::kernels::conv::*;

/// Elements of columns that are held at a time.
const HELD: usize = 1 << 27;

/// Images `first .. first + count` of a tensor.
fn images<'a>(v: &View<'a>, first: usize, count: usize) -> Result<View<'a>> {
    v.map("images", |l| l.narrow(0, first, count))
}

fn images_mut<'a>(v: ViewMut<'a>, first: usize, count: usize) -> Result<ViewMut<'a>> {
    v.map("images", |l| l.narrow(0, first, count))
}

/// Images `first .. first + count` of a gradient, and whether it is added to.
fn part<'a>(g: &Option<GradMut<'a>>, first: usize, count: usize) -> Result<Option<(View<'a>, bool)>> {
    g.as_ref().map(|g| Ok((images(&g.out.as_view(), first, count)?, g.accumulate))).transpose()
}

impl DeformShape {
    /// Rows of columns of one image, and per group.
    fn rows(&self) -> (usize, usize) {
        (self.conv.ci * self.conv.taps(), self.conv.cig() * self.conv.taps())
    }

    /// Displaced taps per image.
    fn displaced(&self) -> usize {
        self.deform * self.conv.taps() * self.conv.out_plane()
    }

    /// Images whose columns are held at a time.
    fn chunk(&self) -> usize {
        let places = self.deform * self.conv.in_plane();
        let most = self.rows().0.saturating_mul(self.conv.out_plane()).max(4 * self.displaced()).max(places);
        (HELD / most.max(1)).max(1)
    }

    fn args(&self) -> DeformArgs {
        let c = &self.conv;
        let [_, h, w] = c.input;
        DeformArgs {
            geo: dims([c.stride, c.pad, c.dilation].into_iter().flat_map(|v| [v[1], v[2]])),
            img: dims([h, w, c.ci, self.deform]),
            out: dims([c.output[1], c.output[2], c.kernel[1], c.kernel[2]]),
        }
    }
}

/// A deformable convolution as the kernels take it: windows, images and outputs.
struct DeformArgs {
    geo: DimsArg,
    img: DimsArg,
    out: DimsArg,
}

impl Engine {
    /// The sampled windows of some images, [images, Ci * taps, windows].
    fn deform_columns(
        &self,
        s: &DeformShape,
        n: usize,
        x: &View<'_>,
        offset: &View<'_>,
        mask: Option<&View<'_>>,
    ) -> Result<Buffer> {
        let (dtype, items) = (x.dtype(), n * s.displaced());
        let col = self.scratch(dtype, n * s.rows().0 * s.conv.out_plane())?;
        let DeformArgs { geo, img, out } = s.args();
        let args = DeformColumnsArgs {
            x: self.arg_in(x),
            offset: self.arg_in(offset),
            mask: self.arg_opt(mask),
            col: self.arg_in(&col.view()),
            n: items as i64,
            geo,
            img,
            out,
        };
        self.launch(&DEFORM_COLUMNS, dtype, "", Grid::Stride(items), &args)?;
        Ok(col)
    }

    /// The kernels' positions within a map are 32 bits wide.
    fn deform_extents(&self, op: &'static str, s: &DeformShape) -> Result<()> {
        self.conv_extents(op, &s.conv)?;
        let planes = s.deform.saturating_mul(s.conv.in_plane().max(4 * s.conv.taps() * s.conv.out_plane()));
        if planes >= 1 << 30 {
            let why = "an image beyond 2^30 displaced taps".into();
            return Err(GpuError::Unsupported { op, device: self.device_caps().id, why });
        }
        Ok(())
    }

    /// Gradients of the images `first .. first + n`; that of the weights is added to those of the images before.
    fn deform_chunk(
        &self,
        p: &Conv,
        s: &DeformShape,
        io: &mut DeformConvBwd<'_>,
        first: usize,
        n: usize,
    ) -> Result<()> {
        let (c, (rows, k), plane, dtype) = (s.conv, s.rows(), s.conv.out_plane(), io.x.dtype());
        let mask = io.mask.map(|m| images(&m, first, n)).transpose()?;
        let (x, offset) = (images(&io.x, first, n)?, images(&io.offset, first, n)?);
        let dy = images(&io.dy, first, n)?.reshape(&[n, c.co, plane])?;
        let w = io.w.reshape(&[c.groups, c.cog(), k])?;
        let group_of = |v: &View<'_>, g: usize, per: usize| {
            let lo = g * per;
            v.layout().narrow(1, lo, per)
        };
        if let Some(dw) = &mut io.dw {
            let col = self.deform_columns(s, n, &x, &offset, mask.as_ref())?;
            let col = col.shaped(&[n, rows, plane])?;
            let accumulate = dw.accumulate || first > 0;
            for g in 0..c.groups {
                let to =
                    dw.reborrow().out.reshape(&[c.groups, c.cog(), k])?.map("group", |l| l.select(0, g))?;
                let product = GemmBwd {
                    dy: dy.map("group", |_| group_of(&dy, g, c.cog()))?,
                    a: w.map("group", |l| l.select(0, g))?,
                    b: col.map("group", |_| group_of(&col, g, k))?,
                    saved: None,
                    da: Some(to.grad(accumulate)),
                    db: None,
                    dbias: None,
                };
                self.gemm_bwd(&Gemm::new().precision(p.precision), product)?;
            }
        }
        if io.dx.is_none() && io.doffset.is_none() && io.dmask.is_none() {
            return Ok(());
        }
        let dcol = self.scratch(dtype.accumulator(), n * rows * plane)?;
        for g in 0..c.groups {
            let to = dcol.alias_mut().reshape(&[n, rows, plane])?.map("group", |l| l.narrow(1, g * k, k))?;
            let from = dy.map("group", |_| group_of(&dy, g, c.cog()))?;
            let gemm = Gemm::new().trans(true, false).precision(p.precision);
            self.gemm(&gemm, GemmIo::new(w.map("group", |l| l.select(0, g))?, from, to))?;
        }
        let (items, DeformArgs { geo, img, out }) = (n * s.displaced(), s.args());
        let (doffset, dmask) = (part(&io.doffset, first, n)?, part(&io.dmask, first, n)?);
        if doffset.is_some() || dmask.is_some() {
            let adds = |g: &Option<(View<'_>, bool)>| i32::from(g.as_ref().is_some_and(|g| g.1));
            let args = DeformShiftsArgs {
                x: self.arg_in(&x),
                offset: self.arg_in(&offset),
                mask: self.arg_opt(mask.as_ref()),
                dcol: self.arg_in(&dcol.view()),
                doffset: self.arg_opt(doffset.as_ref().map(|g| &g.0)),
                dmask: self.arg_opt(dmask.as_ref().map(|g| &g.0)),
                n: items as i64,
                geo,
                img,
                out,
                add_offset: adds(&doffset),
                add_mask: adds(&dmask),
            };
            self.launch(&DEFORM_SHIFTS, dtype, "", Grid::Stride(items), &args)?;
        }
        let Some((dx, accumulate)) = part(&io.dx, first, n)? else { return Ok(()) };
        self.deform_input(s, n, (&offset, mask.as_ref()), &dcol.view(), &dx, accumulate)
    }

    /// dx of `n` images: sorts the taps by the cell that they read; each cell then adds up its own.
    fn deform_input(
        &self,
        s: &DeformShape,
        n: usize,
        (offset, mask): (&View<'_>, Option<&View<'_>>),
        dcol: &View<'_>,
        dx: &View<'_>,
        accumulate: bool,
    ) -> Result<()> {
        let (dtype, items, DeformArgs { geo, img, out }) = (dx.dtype(), n * s.displaced(), s.args());
        let limit = n * s.deform * s.conv.in_plane();
        let keys = self.scratch(DType::I32, 4 * items)?;
        let weight = self.scratch(dtype.accumulator(), 4 * items)?;
        let args = DeformKeysArgs {
            offset: self.arg_in(offset),
            mask: self.arg_opt(mask),
            keys: self.arg_in(&keys.view()),
            weight: self.arg_in(&weight.view()),
            n: items as i64,
            limit: limit as i32,
            geo,
            img,
            out,
        };
        self.launch(&DEFORM_KEYS, dtype, "", Grid::Stride(items), &args)?;
        let pairs = self.sort_pairs("deform_conv_bwd", &keys.view(), usize::BITS - limit.leading_zeros())?;
        let start = self.scratch(DType::I64, limit + 1)?;
        let args = DeformStartsArgs {
            keys: self.arg_in(&pairs.keys.view()),
            start: self.arg_in(&start.view()),
            n: 4 * items as i64,
            limit: limit as i32,
        };
        self.launch(&DEFORM_STARTS, dtype, "", Grid::Stride(limit + 1), &args)?;
        let args = DeformInputArgs {
            start: self.arg_in(&start.view()),
            positions: self.arg_in(&pairs.positions.view()),
            weight: self.arg_in(&weight.view()),
            dcol: self.arg_in(dcol),
            dx: self.arg_in(dx),
            n: dx.numel() as i64,
            img,
            out,
            accumulate: i32::from(accumulate),
        };
        self.launch(&DEFORM_INPUT, dtype, "", Grid::Stride(dx.numel()), &args)
    }
}

impl DeformableConvOps for Engine {
    fn deform_conv(&self, p: &Conv, io: DeformConvIo<'_>) -> Result<()> {
        const OP: &str = "deform_conv";
        let s = check_deform_conv(p, &io)?;
        let all = [
            ("x", Some(io.x)),
            ("w", Some(io.w)),
            ("offset", Some(io.offset)),
            ("mask", io.mask),
            ("bias", io.bias),
            ("y", Some(io.y.as_view())),
        ];
        self.check_owner_all(OP, &all)?;
        self.deform_extents(OP, &s)?;
        if io.y.numel() == 0 {
            return Ok(());
        }
        let (c, (_, k), plane) = (s.conv, s.rows(), s.conv.out_plane());
        let mut y = io.y.reshape(&[c.n, c.co, plane])?;
        let w = io.w.reshape(&[c.groups, c.cog(), k])?;
        let gemm = Gemm::new().precision(p.precision).axes(GemmAxis::Row, GemmAxis::Row);
        for first in (0..c.n).step_by(s.chunk()) {
            let n = s.chunk().min(c.n - first);
            let mask = io.mask.map(|m| images(&m, first, n)).transpose()?;
            let (x, offset) = (images(&io.x, first, n)?, images(&io.offset, first, n)?);
            let col = self.deform_columns(&s, n, &x, &offset, mask.as_ref())?;
            let col = col.shaped(&[n, s.rows().0, plane])?;
            for g in 0..c.groups {
                let to = images_mut(y.reborrow(), first, n)?
                    .map("group", |l| l.narrow(1, g * c.cog(), c.cog()))?;
                let from = col.map("group", |l| l.narrow(1, g * k, k))?;
                let mut product = GemmIo::new(w.map("group", |l| l.select(0, g))?, from, to);
                product.bias =
                    io.bias.map(|b| b.map("group", |l| l.narrow(0, g * c.cog(), c.cog()))).transpose()?;
                self.gemm(&gemm, product)?;
            }
        }
        Ok(())
    }

    fn deform_conv_bwd(&self, p: &Conv, mut io: DeformConvBwd<'_>) -> Result<()> {
        const OP: &str = "deform_conv_bwd";
        let s = check_deform_conv_bwd(p, &io)?;
        let all = [
            ("dy", Some(io.dy)),
            ("x", Some(io.x)),
            ("w", Some(io.w)),
            ("offset", Some(io.offset)),
            ("mask", io.mask),
        ];
        self.check_owner_all(OP, &all)?;
        let outs = [
            ("dx", &io.dx),
            ("dw", &io.dw),
            ("doffset", &io.doffset),
            ("dmask", &io.dmask),
            ("dbias", &io.dbias),
        ];
        for (arg, g) in outs {
            g.as_ref().map_or(Ok(()), |g| self.check_owner(OP, arg, &g.out.as_view()))?;
        }
        self.deform_extents(OP, &s)?;
        if let Some(g) = io.dbias.take() {
            self.channel_sums(io.dy, g)?;
        }
        let c = s.conv;
        if c.n == 0
            && let Some(g) = io.dw.take().filter(|g| !g.accumulate)
        {
            return ShapeOps::fill(self, 0.0, g.out);
        }
        for first in (0..c.n).step_by(s.chunk()) {
            self.deform_chunk(p, &s, &mut io, first, s.chunk().min(c.n - first))?;
        }
        Ok(())
    }
}
