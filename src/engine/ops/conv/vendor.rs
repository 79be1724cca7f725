//! Convolutions by a vendor library: the form in which it is given them, what is done around its calls, and the check of its results.

use super::Gathered;
use super::format::{laid_out, like};
use super::plan::conv::ConvProblem;
use super::plan::weight::WeightProblem;
use super::plan::{CUDNN, Library, MIOPEN};
use crate::backend::BackendExt;
use crate::buffer::{Buffer, GradMut, View};
use crate::cpu::{HostElement, with_dtype};
use crate::device::{BackendKind, Caps};
use crate::driver::{ConvPass, ConvTensor, VendorConv, VendorConvProblem};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::aligned16;
use crate::engine::ops::gemm::product::{MatrixOperand, Product};
use crate::engine::plan::{Problem, Reason};
use crate::error::Result;
use crate::layout::Layout;
use crate::ops::activation::Activation;
use crate::ops::check;
use crate::ops::conv::{Conv, ConvIo, ConvShape};
use crate::ops::gemm::{Extents, Precision, fused_act};
use crate::ops::shape::ShapeOps;

/// The library's problem, or why it is not asked.
pub(super) type VendorAnswer = std::result::Result<VendorConvProblem, Reason>;

/// Which of a library's problems a convolution is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub(super) s: ConvShape,
    pub(super) pass: ConvPass,
    pub(super) dtype: DType,
    pub(super) tf32: bool,
    /// Whether all three tensors begin at multiples of 16 bytes.
    pub(super) aligned: bool,
    /// Whether they are channels last; else they are contiguous.
    pub(super) last: bool,
    /// Whether something follows the product before it is stored.
    pub(super) epilogue: bool,
    /// Why the kernels of this library come first.
    pub(super) own: Option<&'static str>,
}

impl Wanted {
    /// As a library is asked for it. Maps of one axis are images of height 1; zeros behind an axis are as many as before it where that makes no difference.
    fn describe(&self) -> VendorAnswer {
        let s = &self.s;
        let flat = s.input[0] == 1 && s.output[0] == 1 && s.kernel[0] == 1 && s.pad[0] == 0;
        let (first, axes) = if flat { (1, 2) } else { (0, 3) };
        let mut pad_end = [0; 3];
        for (a, end) in pad_end.iter_mut().enumerate().skip(first) {
            let (span, before) = (s.dilation[a] * s.kernel[a].saturating_sub(1) + 1, s.input[a] + s.pad[a]);
            let windows =
                |end: usize| (before + end).checked_sub(span).map_or(0, |room| room / s.stride[a] + 1);
            let least = (s.output[a].saturating_sub(1) * s.stride[a] + span).saturating_sub(before);
            *end = if windows(s.pad[a]) == s.output[a] { s.pad[a] } else { least };
            if windows(*end) != s.output[a] {
                return Err("its output has fewer windows than fit".into());
            }
        }
        let ci = self.channels();
        let tensor = |n: usize, c: usize, map: [usize; 3]| {
            let mut extents = [1; 5];
            (extents[0], extents[1]) = (n, c);
            extents[2..2 + axes].copy_from_slice(&map[first..]);
            if self.last { ConvTensor::channels_last(extents) } else { ConvTensor::packed(extents) }
        };
        let axis = |v: [usize; 3], none: usize| {
            let mut all = [none; 3];
            all[..axes].copy_from_slice(&v[first..]);
            all
        };
        Ok(VendorConvProblem {
            pass: self.pass,
            axes,
            x: tensor(s.n, ci, s.input),
            w: tensor(s.co, ci / s.groups, s.kernel),
            y: tensor(s.n, s.co, s.output),
            pad: axis(s.pad, 0),
            pad_end: axis(pad_end, 0),
            stride: axis(s.stride, 1),
            dilation: axis(s.dilation, 1),
            dtype: self.dtype,
            tf32: self.tf32 && self.dtype == DType::F32,
            align: if self.aligned { 16 } else { self.dtype.size() },
        })
    }
}

impl Wanted {
    /// Channels of the problem's input: its kernels for channels-last images of 16 bits take eight at a time, and few of them (the colours of an image,
    /// say) go much slower than as many zeros more.
    fn channels(&self) -> usize {
        let fits = self.last && self.dtype.is_half() && self.pass != ConvPass::Input && self.s.groups == 1;
        if fits { self.s.ci.next_multiple_of(PADDED) } else { self.s.ci }
    }
}

/// Channels that the library's kernels read at a time.
const PADDED: usize = 8;

impl<'a> Gathered<'a> {
    /// The problem of a library that this one is.
    pub(super) fn wanted(&self, caps: &Caps) -> Wanted {
        let p = &self.p;
        Wanted {
            s: p.s,
            pass: if p.back { ConvPass::Input } else { ConvPass::Forward },
            dtype: p.dtype,
            tf32: p.tf32,
            aligned: [&self.x, &self.w, &self.y.as_view()].into_iter().all(aligned16),
            last: p.last,
            epilogue: !self.plain(),
            own: p.own(caps),
        }
    }

    /// Whether the product is all that there is to do.
    pub(super) fn plain(&self) -> bool {
        let extras = [&self.scale, &self.bias, &self.residual];
        extras.into_iter().all(Option::is_none) && self.z.is_none() && self.act == Activation::Identity
    }

    /// The library's tensors, where the product goes to `to`.
    fn tensors<'v>(&'v self, to: &'v View<'a>) -> [&'v View<'a>; 3] {
        if self.p.back { [to, &self.w, &self.x] } else { [&self.x, &self.w, to] }
    }
}

impl Engine {
    /// Number of the variant that is the device's vendor library. Drivers that are not this crate's name theirs.
    fn conv_library(&self) -> usize {
        let named = || self.driver().vendor_conv().map_or("", |lib| lib.name());
        match self.device_caps().id.kind {
            BackendKind::Hip => MIOPEN,
            BackendKind::Custom if named() == ConvProblem::VARIANTS[MIOPEN].name => MIOPEN,
            _ => CUDNN,
        }
    }

    /// A library's answer as a plan takes it.
    pub(super) fn offered<'v>(&self, answer: &'v VendorAnswer) -> Library<'v> {
        let answer = answer.as_ref().map(|_| ()).map_err(|why| why.as_ref());
        Library { variant: self.conv_library(), answer }
    }

    /// The vendor's part in a convolution; it is not asked where another variant is pinned, or comes first.
    pub(super) fn conv_vendor(&self, op: &'static str, want: &Wanted) -> VendorAnswer {
        let variant = self.conv_library();
        if !self.may_take::<ConvProblem<'_>>(op, variant) {
            return Err("another variant is pinned".into());
        }
        let lib = self.driver().vendor_conv().map_err(|why| why.to_string())?;
        let free = !self.must_take::<ConvProblem<'_>>(op, variant);
        if let Some(why) = want.own.filter(|_| free) {
            return Err(why.into());
        }
        if want.epilogue && want.dtype != DType::F32 {
            return Err("in 16 bits the product would be rounded before what follows it".into());
        }
        let p = want.describe()?;
        if let Some(why) = self.dnn_lost(&p).filter(|_| free) {
            return Err(why.into());
        }
        self.dnn_takes(lib, &p, || self.vet_conv(lib, &p))?;
        Ok(p)
    }

    /// A channels-last tensor [N, c, S..] with zeros behind its channels.
    fn padded_channels(&self, v: &View<'_>, channels: usize) -> Result<(Buffer, Layout)> {
        let mut shape = v.shape().to_vec();
        shape[1] = channels;
        let layout = check::layout("conv", "x", Layout::channels_last(&shape))?;
        let room = self.scratch(v.dtype(), layout.numel())?;
        self.fill(0.0, room.alias_mut())?;
        let to = room.alias_mut().map("x", |_| layout.narrow(1, 0, v.shape()[1]))?;
        self.strided_copy(*v, to.into())?;
        Ok((room, layout))
    }

    /// A convolution, or its adjoint, by the library, and what follows the product in f32.
    pub(super) fn vendor_gathered(
        &self,
        op: &'static str,
        p: &VendorConvProblem,
        q: Gathered<'_>,
    ) -> Result<()> {
        let (have, want) = (q.p.s.ci, p.x.extents[1]);
        if have == want {
            return self.vendor_product(op, p, q);
        }
        let (x, w) = (self.padded_channels(&q.x, want)?, self.padded_channels(&q.w, want)?);
        let (x, w) = (x.0.view().map("x", |_| Ok(x.1))?, w.0.view().map("w", |_| Ok(w.1))?);
        self.vendor_product(op, p, Gathered { x, w, ..q })
    }

    fn vendor_product(&self, op: &'static str, p: &VendorConvProblem, q: Gathered<'_>) -> Result<()> {
        let Ok(lib) = self.driver().vendor_conv() else { return self.portable_gathered(q) };
        if !self.gathered_race(op, lib, p, &q)? {
            return self.portable_gathered(q);
        }
        let y = q.y.as_view();
        if q.accumulate {
            let part = self.scratch(q.p.dtype, y.numel())?;
            self.dnn_call(lib, p, q.tensors(&part.view()))?;
            return self.strided_copy(like(&part.view(), &y)?, q.y.grad(true));
        }
        if q.plain() {
            return self.dnn_call(lib, p, q.tensors(&y));
        }
        if aligned16(&y) {
            self.dnn_call(lib, p, q.tensors(&y))?;
            return self.conv_finish(&q, &y);
        }
        // What is finished in place is read in items of 16 bytes.
        let part = self.scratch(q.p.dtype, y.numel())?;
        self.dnn_call(lib, p, q.tensors(&part.view()))?;
        self.conv_finish(&q, &part.view())
    }

    /// Whether the library serves a convolution, found out by a race without its epilogue if need be.
    fn gathered_race(
        &self,
        op: &'static str,
        lib: &dyn VendorConv,
        p: &VendorConvProblem,
        q: &Gathered<'_>,
    ) -> Result<bool> {
        if self.must_take::<ConvProblem<'_>>(op, self.conv_library()) {
            return Ok(true);
        }
        let (len, shape) = (q.y.numel(), q.y.as_view());
        let theirs = || -> Result<()> {
            let room = self.scratch(q.p.dtype, len)?;
            self.dnn_call(lib, p, q.tensors(&room.view()))
        };
        let ours = || -> Result<()> {
            let room = self.scratch(q.p.dtype, len)?;
            let y = room.alias_mut().map("y", |l| laid_out(l, shape.layout()))?;
            let io = ConvIo::new(q.x, q.w, y);
            let plain = Gathered::forward(q.p.s, q.p.back, &Conv::new(), io);
            self.portable_gathered(plain.of_format(q.p.last))
        };
        self.dnn_race(lib, p, [&theirs, &ours])
    }

    /// y = act(scale * part + bias + residual), with z the value before the activation; the part may be y.
    pub(super) fn conv_finish(&self, q: &Gathered<'_>, part: &View<'_>) -> Result<()> {
        let (s, c, y) = (&q.p.s, q.p.channels().0 * q.p.s.groups, q.y.as_view());
        let plane = if q.p.back { s.in_plane() } else { s.out_plane() };
        let (e, steps) = match q.p.last {
            true => (Extents { batch: 1, m: s.n * plane, n: c, k: 1 }, [0, 1, 0]),
            false => (Extents { batch: s.n, m: c, n: plane, k: 1 }, [1, 0, 0]),
        };
        let packed = |v: &View<'_>| MatrixOperand::packed(v, e);
        let channel = |v: &View<'_>| MatrixOperand { steps, ..packed(v) };
        let at = packed(&y);
        let product = Product {
            e,
            dtype: q.p.dtype,
            out: q.p.dtype,
            a: at,
            b: at,
            c: None,
            bias: q.bias.as_ref().map(channel),
            scale: q.scale.as_ref().map(channel),
            residual: q.residual.as_ref().map(packed),
            y: at,
            z: q.z.as_ref().map(|z| packed(&z.as_view())),
            alpha: 1.0,
            beta: 0.0,
            act: fused_act("conv", q.act)?,
            precision: Precision::Ieee,
        };
        self.finish(&product, Some(&packed(part)), 1, 1.0)
    }

    /// A weight gradient by the library.
    pub(super) fn vendor_weight(
        &self,
        op: &'static str,
        (p, s): (&VendorConvProblem, &ConvShape),
        [x, dy]: [View<'_>; 2],
        g: GradMut<'_>,
    ) -> Result<()> {
        let lib = self.driver().vendor_conv().map_err(|why| self.no_variant(op, why.into()))?;
        let dw = g.out.as_view();
        let channels = p.x.extents[1];
        if channels != s.ci {
            let (room, layout) = self.padded_channels(&x, channels)?;
            let mut shape = dw.shape().to_vec();
            shape[1] = channels;
            let part = self.scratch(p.dtype, shape.iter().product())?;
            let all = part.view().map("dw", |_| Layout::channels_last(&shape))?;
            self.dnn_call(lib, p, [&room.view().map("x", |_| Ok(layout))?, &all, &dy])?;
            return self.strided_copy(all.map("dw", |l| l.narrow(1, 0, s.ci))?, g);
        }
        let own =
            WeightProblem { s: *s, dtype: p.dtype, last: false, tf32: p.tf32, vendor: Library::unasked("") }
                .best(self.device_caps());
        let theirs = || -> Result<()> {
            let room = self.scratch(p.dtype, dw.numel())?;
            self.dnn_call(lib, p, [&x, &room.view(), &dy])
        };
        let ours = || -> Result<()> {
            let room = self.scratch(p.dtype, dw.numel())?;
            let to = room.alias_mut().reshape(dw.shape())?;
            self.own_weight(op, own, s, [x, dy], to.into())
        };
        let pinned = self.must_take::<ConvProblem<'_>>(op, self.conv_library());
        if !pinned && !self.dnn_race(lib, p, [&theirs, &ours])? {
            return self.own_weight(op, own, s, [x, dy], g);
        }
        if !g.accumulate {
            return self.dnn_call(lib, p, [&x, &dw, &dy]);
        }
        let part = self.scratch(p.dtype, dw.numel())?;
        self.dnn_call(lib, p, [&x, &part.view(), &dy])?;
        self.strided_copy(like(&part.view(), &dw)?, g)
    }

    /// Compares a small problem of the same kind with the portable kernels.
    fn vet_conv(&self, lib: &dyn VendorConv, like: &VendorConvProblem) -> Result<bool> {
        let s = ConvShape {
            n: 2,
            groups: 1,
            ci: 16,
            co: 24,
            input: [1, 12, 16],
            output: [1, 12, 16],
            kernel: [1, 3, 3],
            stride: [1; 3],
            pad: [0, 1, 1],
            dilation: [1; 3],
        };
        let (dtype, pass) = (like.dtype, like.pass);
        let want = Wanted {
            s,
            pass,
            dtype,
            tf32: like.tf32,
            aligned: true,
            last: false,
            epilogue: false,
            own: None,
        };
        let Ok(p) = want.describe() else { return Ok(false) };
        if let Err(why) = lib.applicable(&p) {
            log::debug!("{}: the check's problem is refused: {why}", lib.name());
            return Ok(false);
        }
        let [x, w, y] = [&p.x, &p.w, &p.y].map(|t| t.extents.iter().product());
        let (x, w, y) = (self.noise(dtype, x, 1)?, self.noise(dtype, w, 2)?, self.noise(dtype, y, 3)?);
        let out = [&y, &x, &w][pass as usize];
        let read = || -> Result<Vec<f64>> {
            with_dtype!(dtype, T => Ok(self.download::<T>(out.view())?.into_iter().map(HostElement::to_f64).collect()))
        };
        self.dnn_call(lib, &p, [&x.view(), &w.view(), &y.view()])?;
        let got = read()?;
        let (from, back) = if pass == ConvPass::Input { (&y, true) } else { (&x, false) };
        if pass == ConvPass::Weight {
            let plan = WeightProblem { s, dtype, last: false, tf32: like.tf32, vendor: Library::unasked("") }
                .best(self.device_caps());
            self.weight_gradient("conv_bwd", plan, &s, [x.view(), y.view()], out.alias_mut().into())?;
        } else {
            let p = Conv::new();
            let io = ConvIo::new(from.view(), w.view(), out.alias_mut());
            self.portable_gathered(Gathered::forward(s, back, &p, io))?;
        }
        let tolerance = match (dtype, like.tf32) {
            (DType::F32, false) => 3e-5,
            (DType::F32, true) => 2e-2,
            (DType::F16, _) => 4e-3,
            _ => 3e-2,
        };
        let close = |(g, w): (&f64, &f64)| (g - w).abs() <= tolerance * (1.0 + w.abs());
        Ok(got.iter().zip(&read()?).all(close))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn want(s: ConvShape) -> Wanted {
        Wanted {
            s,
            pass: ConvPass::Forward,
            dtype: DType::F32,
            tf32: true,
            aligned: true,
            last: false,
            epilogue: false,
            own: None,
        }
    }

    fn image() -> ConvShape {
        ConvShape {
            n: 2,
            groups: 2,
            ci: 6,
            co: 8,
            input: [1, 11, 13],
            output: [1, 6, 7],
            kernel: [1, 3, 3],
            stride: [1, 2, 2],
            pad: [0, 1, 1],
            dilation: [1; 3],
        }
    }

    #[test]
    fn images_have_two_axes() {
        let p = want(image()).describe().unwrap();
        assert_eq!((p.axes, p.align, p.tf32), (2, 16, true));
        assert_eq!((p.x.extents, p.x.strides), ([2, 6, 11, 13, 1], [858, 143, 13, 1, 1]));
        assert_eq!((p.w.extents, p.y.extents), ([8, 3, 3, 3, 1], [2, 8, 6, 7, 1]));
        assert_eq!((p.pad, p.pad_end, p.stride, p.dilation), ([1, 1, 0], [1, 1, 0], [2, 2, 1], [1; 3]));
        assert_eq!(p.operations(), 2 * (2 * 8 * 6 * 7) * 27);
        let half = Wanted { dtype: DType::F16, aligned: false, ..want(image()) }.describe().unwrap();
        assert_eq!((half.align, half.tf32), (2, false));
        // One axis: images of height 1.
        let line = ConvShape { input: [1, 1, 13], output: [1, 1, 7], kernel: [1, 1, 3], ..image() };
        let line = ConvShape { stride: [1, 1, 2], pad: [0, 0, 1], ..line };
        let p = want(line).describe().unwrap();
        assert_eq!((p.axes, p.x.extents, p.pad), (2, [2, 6, 1, 13, 1], [0, 1, 0]));
        let volume = ConvShape { input: [4, 11, 13], output: [4, 6, 7], kernel: [3; 3], ..image() };
        let p = want(ConvShape { pad: [1; 3], ..volume }).describe().unwrap();
        assert_eq!((p.axes, p.x.extents, p.stride), (3, [2, 6, 4, 11, 13], [1, 2, 2]));
    }

    #[test]
    fn zeros_behind_an_axis_are_as_many_as_make_the_output() {
        let end = |s: ConvShape| want(s).describe().map(|p| p.pad_end);
        // 12 + 1 + 1 elements have room for 6 windows as well; 13 + 1 make 6.
        assert_eq!(end(ConvShape { input: [1, 12, 13], ..image() }).unwrap(), [1, 1, 0]);
        // Three zeros before, none behind.
        assert_eq!(end(ConvShape { pad: [0, 3, 1], output: [1, 6, 7], ..image() }).unwrap(), [0, 1, 0]);
        assert_eq!(end(ConvShape { pad: [0, 0, 1], output: [1, 7, 7], ..image() }).unwrap(), [4, 1, 0]);
        // A map with room for more windows than there are, as output padding beyond the stride makes it.
        let wide = ConvShape { input: [1, 15, 13], output: [1, 6, 7], ..image() };
        assert!(end(wide).is_err_and(|why| why.contains("fewer windows")));
    }
}
