//! Fourier transforms by a vendor library: which calls it is given, what is done around its calls, and the check of its results.

use super::plan::{Asked, CUFFT, FourierPlan, Offered, Own};
use crate::backend::BackendExt;
use crate::buffer::{Buffer, GradMut, View};
use crate::cpu::{HostElement, with_dtype};
use crate::driver::{FftKind, RawMem, VendorFft, VendorFftProblem};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::capture::QueuedFft;
use crate::engine::dnn::{address, at};
use crate::engine::plan::Reason;
use crate::error::Result;
use crate::ops::elementwise::{ElementwiseOps, Unary};
use crate::ops::fourier::*;
use crate::ops::shape::ShapeOps;

/// The library's problem, or why it is not asked.
pub(super) type VendorAnswer = std::result::Result<VendorFftProblem, Reason>;

/// Matrices at most whose columns are transformed: each is a call.
const CALLS: usize = 16;

fn kind(t: &Transforms) -> FftKind {
    match (t.from, t.to) {
        (Side::Real, _) => FftKind::RealToBins,
        (_, Side::Real) => FftKind::BinsToReal,
        _ if t.p.inverse => FftKind::Inverse,
        _ => FftKind::Forward,
    }
}

/// Transforms as the library is asked for them: all rows at once, or the columns of one matrix.
fn describe(t: &Transforms, dtype: DType) -> VendorAnswer {
    if t.p.inner != 1.0 {
        return Err("bins that stand for two have a factor of their own".into());
    }
    if t.inner > 1 && t.outer > CALLS {
        return Err(format!("columns of more than {CALLS} matrices").into());
    }
    Ok(match t.inner {
        1 => VendorFftProblem::rows(kind(t), t.n, t.outer, dtype),
        columns => VendorFftProblem::columns(kind(t), t.n, columns, dtype),
    })
}

/// Whether an operand begins at a multiple of a complex number, as the library reads and writes real numbers too.
fn pairs(v: &View<'_>) -> bool {
    address(v).1.is_multiple_of(2 * v.dtype().size() as u64)
}

impl Engine {
    /// The vendor's part in transforms, once its results were checked. It is not asked where another variant is pinned, or no rule or measurement takes it.
    pub(super) fn fourier_offer<P: Own>(
        &self,
        op: &'static str,
        asked: Asked<P>,
        t: &Transforms,
        operands: [&View<'_>; 2],
    ) -> VendorAnswer {
        if !self.may_take::<Offered<'_, P>>(op, CUFFT) {
            return Err("another variant is pinned".into());
        }
        let unasked = Offered { asked, vendor: Err("it was not asked") };
        if !asked.library_is_faster() && !self.considers(op, &unasked, CUFFT) {
            return Err("the kernels of this library are faster".into());
        }
        let lib = self.driver().vendor_fft().map_err(|why| why.to_string())?;
        let p = describe(t, operands[0].dtype())?;
        if !operands.into_iter().all(pairs) {
            return Err("an operand does not begin at a multiple of a complex number".into());
        }
        lib.applicable(&p)?;
        let what = || format!("{:?} transforms in {}", p.kind, p.dtype);
        self.dnn_trusts(self.dnn_trust().of_fourier(&p), lib.name(), &what, || self.vet_fourier(lib, &p))?;
        Ok(p)
    }

    /// Transforms by the library, then the factor and the sum.
    pub(super) fn fourier_by_library(
        &self,
        op: &'static str,
        p: &VendorFftProblem,
        t: &Transforms,
        x: View<'_>,
        y: GradMut<'_>,
    ) -> Result<()> {
        let lib = self.driver().vendor_fft().map_err(|why| self.no_variant(op, why.into()))?;
        let scale = Unary::Scale { c: t.p.scale };
        let v = y.out.as_view();
        if y.accumulate {
            let part = self.scratch(p.dtype, v.numel())?;
            let part = part.shaped(v.shape())?;
            self.fourier_calls(lib, p, t, x, part)?;
            // The gradient of a product with a constant: one kernel that scales and adds.
            return self.unary_bwd(scale, part, part, y);
        }
        self.fourier_calls(lib, p, t, x, v)?;
        match t.p.scale == 1.0 {
            true => Ok(()),
            false => self.unary(scale, v, y.out),
        }
    }

    /// The calls of the library: one, or one for the columns of each matrix.
    fn fourier_calls(
        &self,
        lib: &dyn VendorFft,
        p: &VendorFftProblem,
        t: &Transforms,
        x: View<'_>,
        y: View<'_>,
    ) -> Result<()> {
        if p.kind == FftKind::BinsToReal {
            let bins = self.real_ends(t, x)?;
            return self.fourier_call(lib, p, address(&bins.view()), address(&y));
        }
        let ([x, y], step) = ([address(&x), address(&y)], (2 * t.n * t.inner * p.dtype.size()) as u64);
        let calls = if t.inner > 1 { t.outer as u64 } else { 1 };
        (0..calls).try_for_each(|i| self.fourier_call(lib, p, (x.0, x.1 + i * step), (y.0, y.1 + i * step)))
    }

    /// A copy of bins [outer, n/2 + 1, 2], which the library may overwrite, with no imaginary part in the first and, for even n, the last: for some
    /// lengths cuFFT adds these to the results.
    fn real_ends(&self, t: &Transforms, x: View<'_>) -> Result<Buffer> {
        let bins = Side::Half.len(t.n);
        let copy = self.scratch(x.dtype(), x.numel())?;
        let shape = [t.outer, bins, 2];
        self.strided_copy(x.reshape(&shape)?, copy.alias_mut().reshape(&shape)?.into())?;
        let (behind, step) = if t.n.is_multiple_of(2) { (bins, t.n / 2) } else { (1, 1) };
        let ends = copy.alias_mut().reshape(&shape)?;
        self.fill(0.0, ends.map("bins", |l| l.slice(1, 0, behind, step)?.select(2, 1))?)?;
        Ok(copy)
    }

    /// Queues one call of the library.
    fn fourier_call(
        &self,
        lib: &dyn VendorFft,
        p: &VendorFftProblem,
        x: (RawMem, u64),
        y: (RawMem, u64),
    ) -> Result<()> {
        let room = self.dnn_workspace(lib.workspace(p))?;
        let workspace = at(&room);
        if self.records() && lib.first_run_loads(p) {
            self.fourier_once(lib, p)?;
        }
        let written = [y.0, x.0];
        let written = if p.kind == FftKind::BinsToReal { &written[..] } else { &written[..1] };
        self.dnn_queue(
            lib.name(),
            written,
            || self.record_fft(QueuedFft { problem: *p, x, y, workspace }),
            // SAFETY: the operands were checked to have the problem's sizes, to begin at complex numbers and to lie apart; the workspace has the size that
            // the library asked for; the stream is the driver's.
            || unsafe { lib.run(self.inner.stream, p, x, y, workspace) },
        )
    }

    /// Runs a problem that is about to be recorded in memory that nobody reads, so that the library loads its kernels now and not while a graph is made.
    fn fourier_once(&self, lib: &dyn VendorFft, p: &VendorFftProblem) -> Result<()> {
        let _run = self.suspend();
        let [x, y] = p.reals().map(|reals| self.scratch(p.dtype, reals));
        self.fourier_call(lib, p, address(&x?.view()), address(&y?.view()))
    }

    /// Compares rows of 60 numbers, and columns of such, with the kernels of this library.
    fn vet_fourier(&self, lib: &dyn VendorFft, like: &VendorFftProblem) -> Result<bool> {
        let (from, to, inverse) = match like.kind {
            FftKind::RealToBins => (Side::Real, Side::Half, false),
            FftKind::BinsToReal => (Side::Half, Side::Real, true),
            kind => (Side::Complex, Side::Complex, kind == FftKind::Inverse),
        };
        let rows = Transforms { outer: 3, n: 60, inner: 1, from, to, p: Fft::new().inverse(inverse) };
        let columns = Transforms { outer: 2, inner: 4, ..rows };
        let vet = |t| self.vet_transforms(lib, like.dtype, t);
        Ok(vet(&rows)? && (from != to || vet(&columns)?))
    }

    fn vet_transforms(&self, lib: &dyn VendorFft, dtype: DType, t: &Transforms) -> Result<bool> {
        let Ok(p) = describe(t, dtype) else { return Ok(false) };
        if let Err(why) = lib.applicable(&p) {
            log::debug!("{}: the check's problem is refused: {why}", lib.name());
            return Ok(false);
        }
        let [read, written] = [t.from, t.to]
            .map(|side| t.outer * t.inner * side.len(t.n) * if side == Side::Real { 1 } else { 2 });
        let (x, own) = (self.noise(dtype, read, 1)?, self.scratch(dtype, written)?);
        // What lies in the result's memory is not read.
        let y = with_dtype!(dtype, T => self.upload(&vec![T::from_f64(f64::NAN); written]))?;
        self.fourier_own(t, FourierPlan::Local, x.view(), own.alias_mut().into())?;
        self.fourier_calls(lib, &p, t, x.view(), y.view())?;
        let values = |of: &Buffer| -> Result<Vec<f64>> {
            with_dtype!(dtype, T => Ok(self.download::<T>(of.view())?.into_iter().map(HostElement::to_f64).collect()))
        };
        let tolerance = if dtype == DType::F64 { 1e-12 } else { 2e-5 };
        let close = |(g, w): (&f64, &f64)| (g - w).abs() <= tolerance * (1.0 + w.abs());
        Ok(values(&y)?.iter().zip(&values(&own)?).all(close))
    }
}
