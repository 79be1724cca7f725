//! Convolution: one description of a gathered product, which serves forward and adjoint, and the kernels for it. Weight gradients and columns are
//! in `weight.rs`.

pub(super) mod causal;
pub(super) mod deformable;
#[cfg(all(test, feature = "driver-opencl"))]
mod tests;
pub(super) mod weight;

use std::borrow::Cow;

use crate::buffer::{GradMut, View, ViewMut};
use crate::driver::DimsArg;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, aligned16, dims};
use crate::engine::ops::shape::strided::magic;
use crate::engine::plan::{Alternative, PORTABLE};
use crate::error::{GpuError, Result};
use crate::ops::activation::Activation;
use crate::ops::conv::*;
use crate::ops::core::Choice;
use crate::ops::gemm::{Gemm, GemmAxis, GemmIo, GemmOps, Precision, fused_act};
use crate::ops::reduce::ReduceOps;
use crate::ops::shape::ShapeOps;
use crate::spec::Kernel;
use crate::spec::kernels::conv::*;

/// Extents and displacements below which the kernels' 32-bit positions hold (`GK_FAR` with room for sums).
pub(in crate::engine::ops) const NEAR: usize = 1 << 27;
/// Counts that 32-bit indices hold.
pub(in crate::engine::ops) const COUNT: usize = 1 << 30;

/// y = act(scale * (conv or its adjoint of x with w) + bias + residual).
pub(in crate::engine::ops) struct Gathered<'a> {
    pub(in crate::engine::ops) s: ConvShape,
    /// The adjoint: x has the convolution's output shape, y its input shape.
    pub(in crate::engine::ops) back: bool,
    pub(in crate::engine::ops) x: View<'a>,
    pub(in crate::engine::ops) w: View<'a>,
    pub(in crate::engine::ops) scale: Option<View<'a>>,
    pub(in crate::engine::ops) bias: Option<View<'a>>,
    pub(in crate::engine::ops) residual: Option<View<'a>>,
    pub(in crate::engine::ops) y: ViewMut<'a>,
    pub(in crate::engine::ops) z: Option<ViewMut<'a>>,
    pub(in crate::engine::ops) accumulate: bool,
    pub(in crate::engine::ops) act: Activation,
    pub(in crate::engine::ops) precision: Precision,
}

impl<'a> Gathered<'a> {
    fn forward(s: ConvShape, back: bool, p: &Conv, io: ConvIo<'a>) -> Self {
        Gathered {
            s,
            back,
            x: io.x,
            w: io.w,
            scale: io.scale,
            bias: io.bias,
            residual: io.residual,
            y: io.y,
            z: io.z,
            accumulate: false,
            act: p.act,
            precision: p.precision,
        }
    }

    fn gradient(s: ConvShape, back: bool, p: &Conv, x: View<'a>, w: View<'a>, g: GradMut<'a>) -> Self {
        let (y, accumulate) = (g.out, g.accumulate);
        let io = ConvIo { x, w, bias: None, scale: None, residual: None, y, z: None };
        Gathered { accumulate, act: Activation::Identity, ..Gathered::forward(s, back, p, io) }
    }

    /// Output channels per group, and channels that are summed over.
    fn channels(&self) -> (usize, usize) {
        if self.back { (self.s.cig(), self.s.cog()) } else { (self.s.cog(), self.s.cig()) }
    }

    /// The map that is read, and the one that is written.
    fn maps(&self) -> ([usize; 3], [usize; 3]) {
        if self.back { (self.s.output, self.s.input) } else { (self.s.input, self.s.output) }
    }

    fn phases(&self) -> [usize; 3] {
        if self.back { self.s.stride } else { [1; 3] }
    }

    /// Output positions of the largest phase in all images.
    fn columns(&self) -> usize {
        let (steps, (_, to)) = (self.phases(), self.maps());
        self.s.n * to.iter().zip(steps).map(|(n, s)| n.div_ceil(s)).product::<usize>()
    }

    /// Whether 32-bit positions and the plan can describe it.
    fn fits(&self) -> std::result::Result<(), Cow<'static, str>> {
        let (s, (m, r), (from, to)) = (&self.s, self.channels(), self.maps());
        let far = |a: usize| {
            let reach = s.kernel[a].saturating_mul(s.dilation[a]).saturating_add(s.pad[a]);
            from[a] >= NEAR || to[a] >= NEAR || reach >= NEAR || s.stride[a] >= NEAR
        };
        let weights = [s.groups, m.next_multiple_of(128), r, s.taps()]
            .iter()
            .fold(1, |a: usize, &b| a.saturating_mul(b));
        let phases = self.phases().iter().fold(1, |a: usize, &b| a.saturating_mul(b));
        if (0..3).any(far) || weights >= COUNT {
            return Err("its extents need 64-bit positions".into());
        }
        if phases > PHASES {
            return Err("its stride has too many phases".into());
        }
        let plane = |v: [usize; 3]| v.iter().product::<usize>();
        if r * plane(from) >= COUNT || s.n.saturating_mul(plane(to)) >= COUNT {
            return Err("its maps need 64-bit positions".into());
        }
        Ok(())
    }

    /// Whether the convolution is a matrix product with every image: one tap, stride 1, no padding.
    fn pointwise(&self) -> bool {
        let s = &self.s;
        s.groups == 1 && s.taps() == 1 && s.stride == [1; 3] && s.pad == [0; 3] && s.input == s.output
    }

    /// Whether strips of outputs along the height can share rows.
    fn strips(&self) -> bool {
        let s = &self.s;
        let flat = s.kernel[0] == 1 && s.input[0] == 1 && s.output[0] == 1 && s.pad[0] == 0;
        self.channels().1 == 1 && flat && s.stride[1] == 1 && s.dilation[1] == 1 && s.kernel[1] > 1
    }
}

/// A depthwise convolution with 3 x 3 taps that keeps the map's size, as `depthwise.c` takes it.
pub(in crate::engine::ops) struct Depthwise {
    /// Items of a row, and of a map along its height.
    quads: usize,
    strips: usize,
    /// Whether rows are multiples of four elements, aligned for that.
    wide: bool,
}

impl Depthwise {
    /// Rows of an item (`GK_STRIP`).
    const STRIP: usize = 2;

    /// `Some` where the kernels for it apply, given that each output channel reads one channel.
    pub(in crate::engine::ops) fn of(s: &ConvShape, x: &View<'_>, y: &View<'_>) -> Option<Depthwise> {
        let same = s.kernel == [1, 3, 3] && s.pad == [0, 1, 1] && s.input == s.output && s.input[0] == 1;
        let unit = s.stride == [1; 3] && s.dilation[1..] == [1, 1];
        let [_, height, width] = s.input;
        let (quads, strips) = (width.div_ceil(4), height.div_ceil(Self::STRIP));
        let items = [s.n, s.ci.max(s.co), quads, strips].iter().fold(1, |a: usize, &b| a.saturating_mul(b));
        let wide = width.is_multiple_of(4) && aligned16(x) && aligned16(y);
        (same && unit && items <= i32::MAX as usize).then_some(Depthwise { quads, strips, wide })
    }

    /// Arguments for `items` items, with `each` output maps per input map.
    fn args(&self, s: &ConvShape, each: usize, items: usize) -> DepthwiseArgs {
        DepthwiseArgs {
            items,
            size: dims([s.input[1], s.input[2], s.groups, each]),
            by: magic([self.quads, self.strips, s.groups * each]),
            wide: i32::from(self.wide),
        }
    }

    /// Arguments for all output maps, `each` per group.
    fn forward(&self, s: &ConvShape, each: usize) -> DepthwiseArgs {
        self.args(s, each, s.n * s.groups * each * self.quads * self.strips)
    }

    /// Arguments for the weights of one channel: its items in all images.
    pub(in crate::engine::ops) fn weight(&self, s: &ConvShape) -> DepthwiseArgs {
        self.args(s, s.cog(), s.n * self.quads * self.strips)
    }
}

/// A depthwise convolution as a kernel takes it.
pub(in crate::engine::ops) struct DepthwiseArgs {
    pub(in crate::engine::ops) items: usize,
    pub(in crate::engine::ops) size: DimsArg,
    /// Multipliers that divide by the items of a row, the strips of a map and the maps of an image.
    pub(in crate::engine::ops) by: DimsArg,
    pub(in crate::engine::ops) wide: i32,
}

/// The tile kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tile {
    Square128,
    Wide64,
    Wide32,
    Wide16,
    Square64,
}

impl Tile {
    fn kernel(self) -> &'static Kernel<ConvTileArgs> {
        match self {
            Tile::Square128 => &CONV_TILE128,
            Tile::Wide64 => &CONV_TILE64W,
            Tile::Wide32 => &CONV_TILE32,
            Tile::Wide16 => &CONV_TILE16,
            Tile::Square64 => &CONV_TILE64,
        }
    }

    fn size(self) -> (usize, usize) {
        match self {
            Tile::Square128 => (128, 128),
            Tile::Wide64 => (64, 256),
            Tile::Wide32 => (32, 256),
            Tile::Wide16 => (16, 256),
            Tile::Square64 => (64, 64),
        }
    }

    /// Row tiles, column tiles, and blocks in all for one part of k.
    fn blocks(self, q: &Gathered<'_>) -> (usize, usize, usize) {
        let (bm, bn) = self.size();
        let (mt, ct) = (q.channels().0.div_ceil(bm), q.columns().div_ceil(bn));
        (mt, ct, mt.saturating_mul(ct).saturating_mul(q.s.groups).saturating_mul(q.phases().iter().product()))
    }
}

/// Variants of all products of the family, in the order of [`Engine::conv_variants`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine::ops) enum Way {
    Portable,
    Tile128,
    Tile64,
    /// Tiles of few rows, which weight gradients do not have.
    Wide64,
    Wide32,
    Wide16,
    SplitK,
    Direct,
}

const WAYS: [Way; 8] = [
    Way::Portable,
    Way::Tile128,
    Way::Tile64,
    Way::Wide64,
    Way::Wide32,
    Way::Wide16,
    Way::SplitK,
    Way::Direct,
];

/// Phases of an adjoint beyond which their blocks are too small to be worth a tile.
const PHASES: usize = 4096;

impl Engine {
    /// Calls `f` with the variants of a product. `fits`: whether tiles can serve it; `long`: whether its sums can be split.
    fn conv_variants<R>(
        &self,
        dtype: DType,
        fits: std::result::Result<(), Cow<'static, str>>,
        long: bool,
        f: impl FnOnce(&[Alternative<'_>]) -> R,
    ) -> R {
        let always = || Ok(());
        let tiles = || fits.clone();
        let large =
            || if dtype == DType::F64 { Err("f64 has no tile of this size".into()) } else { fits.clone() };
        let split = || if long { fits.clone() } else { Err("the sums are short".into()) };
        const SOURCE: &str = "kernels/common/conv/conv.c, weight.c";
        f(&[
            Alternative::new(PORTABLE, "kernels/common/conv/conv.c, weight.c, direct.c", &always),
            Alternative::new("tile_128", SOURCE, &large),
            Alternative::new("tile_64", SOURCE, &tiles),
            Alternative::new("tile_64x256", SOURCE, &large),
            Alternative::new("tile_32x256", SOURCE, &large),
            Alternative::new("tile_16x256", SOURCE, &large),
            Alternative::new("split_k", SOURCE, &split),
            Alternative::new("direct", "kernels/common/conv/direct.c", &always),
        ])
    }

    /// The variant that serves a product.
    pub(in crate::engine::ops) fn conv_way(
        &self,
        op: &'static str,
        dtype: DType,
        fits: std::result::Result<(), Cow<'static, str>>,
        long: bool,
    ) -> Result<Way> {
        let at = self.conv_variants(dtype, fits, long, |v| self.choose(op, v))?;
        Ok(WAYS.get(at).copied().unwrap_or(Way::Portable))
    }

    /// What serves a convolution of ordinary size in f32.
    pub(crate) fn explain_conv(&self, op: &'static str) -> Result<Choice> {
        self.conv_variants(DType::F32, Ok(()), true, |v| self.explain_choice(op, v))
    }

    fn gathered_way(&self, op: &'static str, q: &Gathered<'_>) -> Result<Way> {
        self.conv_way(op, q.x.dtype(), q.fits(), q.channels().1 * q.s.taps() >= 32)
    }

    /// Computes a product whose operands are checked.
    fn gathered(&self, op: &'static str, way: Way, q: Gathered<'_>) -> Result<()> {
        if q.y.numel() == 0 {
            return Ok(());
        }
        let (m, r) = q.channels();
        let caps = self.device_caps();
        let units = (caps.compute_units as usize).max(1);
        match way {
            Way::Portable if q.pointwise() && r > 0 && q.s.in_plane() >= 32 => self.pointwise(q),
            Way::Portable if r == 0 || q.fits().is_err() || (q.s.groups > 1 && m <= 4 && r <= 4) => {
                self.direct(op, &q)
            }
            Way::Portable => {
                let (tile, parts) = self.conv_tiling(&q, units);
                self.conv_tiles(&q, tile, parts)
            }
            _ if r == 0 => self.direct(op, &q),
            Way::Tile128 => self.conv_tiles(&q, Tile::Square128, 1),
            Way::Tile64 => self.conv_tiles(&q, Tile::Square64, 1),
            Way::Wide64 => self.conv_tiles(&q, Tile::Wide64, 1),
            Way::Wide32 => self.conv_tiles(&q, Tile::Wide32, 1),
            Way::Wide16 => self.conv_tiles(&q, Tile::Wide16, 1),
            Way::SplitK => self.conv_tiles(&q, Tile::Square64, 2.max(self.conv_tiling(&q, units).1)),
            Way::Direct => self.direct(op, &q),
        }
    }

    /// Tile and parts of k that fill the device best. A function of the problem and the device alone, so results repeat.
    fn conv_tiling(&self, q: &Gathered<'_>, units: usize) -> (Tile, usize) {
        let (m, r) = q.channels();
        if q.x.dtype() == DType::F64 || self.device_caps().is_cpu {
            return (Tile::Square64, 1);
        }
        let large =
            if m.next_multiple_of(64) < m.next_multiple_of(128) { Tile::Wide64 } else { Tile::Square128 };
        let tile = match m {
            0..=16 => Tile::Wide16,
            17..=32 => Tile::Wide32,
            _ if large.blocks(q).2 >= units => large,
            _ => Tile::Square64,
        };
        let (blocks, k) =
            (tile.blocks(q).2.max(1), r * q.s.taps() / q.phases().iter().product::<usize>().max(1));
        if blocks * 2 > units * 2 || k < 256 {
            return (tile, 1);
        }
        (tile, (units * 2).div_ceil(blocks).min(k / 128).clamp(1, 32))
    }

    /// The tile kernels, and the second pass where k is split.
    fn conv_tiles(&self, q: &Gathered<'_>, tile: Tile, parts: usize) -> Result<()> {
        let (s, dtype, (m, r), (from, to), steps) = (&q.s, q.x.dtype(), q.channels(), q.maps(), q.phases());
        let wide_type = dtype.accumulator();
        let mpad = m.next_multiple_of(tile.size().0);
        let (k, phases): (usize, usize) = (r * s.taps(), steps.iter().product());
        let plan = self.scratch(DType::I32, 4 * (phases + k))?;
        let wt = self.scratch(wide_type, s.groups * k * mpad)?;
        self.conv_plan(s, q.back, Some((&q.w, &wt.view())), &plan.view(), (m, mpad, r), from)?;

        let (mt, ct, blocks) = tile.blocks(q);
        let part = (parts > 1)
            .then(|| self.scratch(wide_type, parts * phases * s.groups * m * q.columns()))
            .transpose()?;
        let plane = from.iter().product::<usize>();
        let (step, pad) = if q.back { ([1; 3], [0; 3]) } else { (s.stride, s.pad) };
        let y = q.y.as_view();
        // Runs of four columns lie side by side where they cannot leave their image.
        let wide = phases == 1 && to.iter().product::<usize>().is_multiple_of(4) && aligned16(&y);
        let out = dims([to[0], to[1], to[2], m, s.groups, s.n, parts, wide as usize]);
        let phase = dims([steps[0], steps[1], steps[2], phases, k, mpad, mt, ct]);
        let (z, (act, slope)) = (q.z.as_ref().map(ViewMut::as_view), fused_act("conv", q.act)?);
        let args = ConvTileArgs {
            x: self.arg_in(&q.x),
            wt: self.arg_in(&wt.view()),
            plan: self.arg_in(&plan.view()),
            scale: self.arg_opt(q.scale.as_ref()),
            bias: self.arg_opt(q.bias.as_ref()),
            residual: self.arg_opt(q.residual.as_ref()),
            y: self.arg_in(&y),
            z: self.arg_opt(z.as_ref()),
            part: self.arg_opt(part.as_ref().map(|p| p.view()).as_ref()),
            img: dims([from[0], from[1], from[2], s.groups * r * plane, r * plane]),
            out,
            step: dims([step[0], step[1], step[2], pad[0], pad[1], pad[2]]),
            phase,
            accumulate: i32::from(q.accumulate),
            act,
            q_act: slope,
        };
        let grid = Grid::Blocks([blocks.saturating_mul(parts), 1, 1]);
        self.launch(tile.kernel(), dtype, "", grid, &args)?;
        let Some(part) = part else { return Ok(()) };
        let args = ConvSplitArgs {
            part: self.arg_in(&part.view()),
            scale: self.arg_opt(q.scale.as_ref()),
            bias: self.arg_opt(q.bias.as_ref()),
            residual: self.arg_opt(q.residual.as_ref()),
            y: self.arg_in(&y),
            z: self.arg_opt(z.as_ref()),
            out,
            phase,
            accumulate: i32::from(q.accumulate),
            act,
            q_act: slope,
        };
        let items = phases * s.groups * m * q.columns().div_ceil(4);
        self.launch(&CONV_SPLIT, dtype, "", Grid::Stride(items), &args)
    }

    /// Makes a plan, and the weights that go with it: (w, wt). `rows`: rows, rows with padding, channels that are summed over.
    pub(in crate::engine::ops) fn conv_plan(
        &self,
        s: &ConvShape,
        back: bool,
        weights: Option<(&View<'_>, &View<'_>)>,
        plan: &View<'_>,
        (m, mpad, r): (usize, usize, usize),
        from: [usize; 3],
    ) -> Result<()> {
        let groups = if weights.is_some() { s.groups } else { 1 };
        let dtype = weights.map_or(DType::F32, |(w, _)| w.dtype());
        let phases: usize = if back { s.stride.iter().product() } else { 1 };
        let args = ConvPlanArgs {
            w: self.arg_opt(weights.map(|w| w.0)),
            plan: self.arg_in(plan),
            wt: self.arg_opt(weights.map(|w| w.1)),
            back: i32::from(back),
            m: m as i32,
            mpad: mpad as i32,
            r: r as i32,
            groups: groups as i32,
            win: dims(s.kernel.into_iter().chain(s.stride)),
            geo: dims(s.pad.into_iter().chain(s.dilation)),
            img: dims(from),
        };
        let items = (groups * r * s.taps() * mpad).max(phases);
        self.launch(&CONV_PLAN, dtype, "", Grid::Stride(items), &args)
    }

    /// One output, or a strip of outputs, per work-item.
    fn direct(&self, op: &'static str, q: &Gathered<'_>) -> Result<()> {
        let (s, dtype, (m, r), (from, to)) = (&q.s, q.x.dtype(), q.channels(), q.maps());
        self.conv_extents(op, s)?;
        let (y, z) = (q.y.as_view(), q.z.as_ref().map(ViewMut::as_view));
        let (act, p) = fused_act(op, q.act)?;
        let args = ConvDirectArgs {
            x: self.arg_in(&q.x),
            w: self.arg_in(&q.w),
            scale: self.arg_opt(q.scale.as_ref()),
            bias: self.arg_opt(q.bias.as_ref()),
            residual: self.arg_opt(q.residual.as_ref()),
            y: self.arg_in(&y),
            z: self.arg_opt(z.as_ref()),
            img: dims(from),
            out: dims(to.into_iter().chain([m, s.groups, s.n, r])),
            win: dims(s.kernel.into_iter().chain(s.stride)),
            geo: dims(s.pad.into_iter().chain(s.dilation)),
            back: i32::from(q.back),
            accumulate: i32::from(q.accumulate),
            act,
            p,
        };
        if let Some(t) = (r == 1).then(|| Depthwise::of(s, &q.x, &y)).flatten() {
            let ConvDirectArgs { x, w, scale, bias, residual, y, z, back, accumulate, .. } = args;
            let DepthwiseArgs { items, size, by, wide } = t.forward(s, m);
            let args = ConvDepthwiseArgs {
                x,
                w,
                scale,
                bias,
                residual,
                y,
                z,
                n: items as i64,
                size,
                by,
                wide,
                back,
                accumulate,
                act,
                p,
            };
            return self.launch(&CONV_DEPTHWISE, dtype, "", Grid::Stride(items), &args);
        }
        if q.strips() {
            let items = s.n * s.groups * m * to[1].div_ceil(4) * to[2];
            return self.launch(&CONV_ROWS, dtype, "", Grid::Stride(items), &args);
        }
        self.launch(&CONV_DIRECT, dtype, "", Grid::Stride(q.y.numel()), &args)
    }

    /// The kernels without plans count positions along an axis in 32 bits.
    pub(in crate::engine::ops) fn conv_extents(&self, op: &'static str, s: &ConvShape) -> Result<()> {
        let far = |a: usize| {
            let reach = s.kernel[a].saturating_mul(s.dilation[a]).saturating_add(s.pad[a]);
            s.input[a].max(s.output[a].saturating_mul(s.stride[a])).saturating_add(reach) >= COUNT
        };
        if (0..3).any(far) || s.taps() >= COUNT {
            let why = "an axis or a window beyond 2^30 elements".into();
            return Err(GpuError::Unsupported { op, device: self.device_caps().id, why });
        }
        Ok(())
    }

    /// One tap: a matrix product with every image.
    fn pointwise(&self, q: Gathered<'_>) -> Result<()> {
        let (s, (m, r)) = (q.s, q.channels());
        let plane = s.in_plane();
        let p = Gemm::new()
            .trans(q.back, false)
            .scaled(1.0, if q.accumulate { 1.0 } else { 0.0 })
            .act(q.act)
            .precision(q.precision)
            .axes(GemmAxis::Row, GemmAxis::Row);
        let y = q.y.reshape(&[s.n, m, plane])?;
        let io = GemmIo {
            a: q.w.reshape(&[s.co, s.ci])?,
            b: q.x.reshape(&[s.n, r, plane])?,
            c: q.accumulate.then(|| y.as_view()),
            bias: q.bias,
            residual: q.residual.map(|v| v.reshape(&[s.n, m, plane])).transpose()?,
            scale: q.scale,
            z: q.z.map(|z| z.reshape(&[s.n, m, plane])).transpose()?,
            y,
            colsum: None,
        };
        self.gemm(&p, io)
    }

    fn conv_forward(&self, op: &'static str, way: Direction, p: &Conv, io: ConvIo<'_>) -> Result<()> {
        let s = check_conv(op, way, p, &io)?;
        let (y, z) = (io.y.as_view(), io.z.as_ref().map(ViewMut::as_view));
        self.check_owner_all(
            op,
            &[
                ("x", Some(io.x)),
                ("w", Some(io.w)),
                ("bias", io.bias),
                ("scale", io.scale),
                ("residual", io.residual),
                ("y", Some(y)),
                ("z", z),
            ],
        )?;
        let q = Gathered::forward(s, way == Direction::Transpose, p, io);
        self.gathered(op, self.gathered_way(op, &q)?, q)
    }

    fn conv_backward(&self, op: &'static str, way: Direction, p: &Conv, io: ConvBwd<'_>) -> Result<()> {
        let shape = check_conv_bwd(op, way, p, &io)?;
        self.check_owner_all(op, &[("dy", Some(io.dy)), ("x", io.x), ("w", io.w), ("saved", io.saved)])?;
        for (arg, g) in [("dx", &io.dx), ("dw", &io.dw), ("dbias", &io.dbias), ("dresidual", &io.dresidual)] {
            g.as_ref().map_or(Ok(()), |g| self.check_owner(op, arg, &g.out.as_view()))?;
        }
        if io.dx.is_none() && io.dw.is_none() && io.dbias.is_none() && io.dresidual.is_none() {
            return Ok(());
        }
        let back = way == Direction::Conv;
        // Both products are chosen before anything runs, so that a refusal leaves all outputs as they are.
        let weight_way = match (&shape, &io.dw) {
            (Some(s), Some(_)) => Some(self.weight_way(op, io.dy.dtype(), s)?),
            _ => None,
        };
        let mut scratch = None;
        let dz = self.before_activation(p.act, io.dy, io.saved, &mut scratch)?;
        if let (Some(s), Some(g), Some(w)) = (shape, io.dx, io.w) {
            let q = Gathered::gradient(s, back, p, dz, w, g);
            self.gathered(op, self.gathered_way(op, &q)?, q)?;
        }
        if let (Some(s), Some(g), Some(x), Some(way)) = (shape, io.dw, io.x, weight_way) {
            let (x, dy) = if back { (x, dz) } else { (dz, x) };
            self.weight_gradient(op, way, &s, x, dy, g)?;
        }
        if let Some(g) = io.dbias {
            self.channel_sums(dz, g)?;
        }
        match io.dresidual {
            Some(g) => self.strided_copy(dz, g),
            None => Ok(()),
        }
    }

    /// Sums of [N, C, ...] per channel.
    pub(in crate::engine::ops) fn channel_sums(&self, dz: View<'_>, g: GradMut<'_>) -> Result<()> {
        let (n, c) = (dz.shape()[0], dz.shape()[1]);
        let plane = dz.shape()[2..].iter().product();
        self.sum_to_shape(dz.reshape(&[n, c, plane])?, g.out.reshape(&[c, 1])?.grad(g.accumulate))
    }
}

impl ConvOps for Engine {
    fn conv(&self, p: &Conv, io: ConvIo<'_>) -> Result<()> {
        self.conv_forward("conv", Direction::Conv, p, io)
    }

    fn conv_bwd(&self, p: &Conv, io: ConvBwd<'_>) -> Result<()> {
        self.conv_backward("conv_bwd", Direction::Conv, p, io)
    }

    fn conv_transpose(&self, p: &Conv, io: ConvIo<'_>) -> Result<()> {
        self.conv_forward("conv_transpose", Direction::Transpose, p, io)
    }

    fn conv_transpose_bwd(&self, p: &Conv, io: ConvBwd<'_>) -> Result<()> {
        self.conv_backward("conv_transpose_bwd", Direction::Transpose, p, io)
    }

    fn im2col(&self, p: &Conv, kernel: &[usize], x: View<'_>, col: GradMut<'_>) -> Result<()> {
        self.columns("im2col", p, kernel, x, col)
    }

    fn col2im(&self, p: &Conv, kernel: &[usize], col: View<'_>, x: GradMut<'_>) -> Result<()> {
        self.columns("col2im", p, kernel, col, x)
    }
}
