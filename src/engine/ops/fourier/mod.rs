//! Discrete Fourier transforms: validation, choice of variant, launch.

mod plan;
#[cfg(all(test, feature = "driver-opencl"))]
mod tests;
mod vendor;

use std::f64::consts::PI;

use self::plan::{Asked, FourierPlan, FourierProblem, Offered, Own, RealFourierProblem, factors, per_block};
use crate::buffer::{Buffer, GradMut, View};
use crate::driver::Ptr;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, Table, dims, long};
use crate::engine::plan::best;
use crate::error::Result;
use crate::ops::core::Choice;
use crate::ops::fourier::*;
use crate::spec::kernels::fourier::*;

/// Value of a kernel's mode.
fn mode(side: Side) -> i32 {
    match side {
        Side::Complex => 0,
        Side::Real => 1,
        Side::Half => 2,
    }
}

/// Where the elements of sequences lie: number i of an outer sequence is (a, b) = (i / inner, i % inner).
#[derive(Debug, Clone, Copy)]
struct Layout {
    n: usize,
    /// Sequences of an outer one, and neighbours among them.
    each: usize,
    inner: usize,
    /// Steps of a and of an element, read and written.
    from: [usize; 2],
    to: [usize; 2],
}

/// The roots that a pass needs besides those of its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Roots {
    None,
    /// Those between two passes over sequences of this length.
    Between(usize),
    /// Those of twice the length: one side has as many real numbers, which are read or written as pairs.
    Pairs,
}

/// One pass over memory.
struct Pass {
    layout: Layout,
    roots: Roots,
    x: Ptr,
    y: Ptr,
    from: Side,
    to: Side,
    scale: f64,
    accumulate: bool,
}

/// exp(-2 pi i k / n).
fn root(k: usize, n: usize) -> [f64; 2] {
    let quarter = (4 * k + n / 2) / n;
    let rest = (4 * k) as f64 - (quarter * n) as f64;
    let (sin, cos) = (rest * (PI / 2.0) / n as f64).sin_cos();
    [[cos, -sin], [-sin, -cos], [-cos, sin], [sin, cos]][quarter % 4]
}

/// Complex numbers as words of a table.
fn words(dtype: DType, numbers: impl Iterator<Item = [f64; 2]>) -> Vec<i64> {
    if dtype == DType::F64 {
        return numbers.flatten().map(|v| v.to_bits() as i64).collect();
    }
    let bits = |v: f64| u64::from((v as f32).to_bits());
    numbers.map(|[re, im]| (bits(im) << 32 | bits(re)) as i64).collect()
}

/// Whether pairs can be read whole: f32 at a multiple of 8 bytes.
fn pairs_aligned(dtype: DType, p: &Ptr) -> bool {
    dtype == DType::F32 && p.0.is_some_and(|(_, at)| at % 8 == 0)
}

impl Engine {
    /// exp(-2 pi i k / n) for k below n.
    fn roots(&self, n: usize, dtype: DType) -> Result<Table> {
        self.named_table(("fourier", n, dtype), || words(dtype, (0..n).map(|k| root(k, n))))
    }

    /// exp(-pi i j^2 / n) for j below n.
    fn chirp(&self, n: usize, dtype: DType) -> Result<Table> {
        self.named_table(("chirp", n, dtype), || words(dtype, (0..n).map(|j| root(j * j % (2 * n), 2 * n))))
    }

    /// exp(-2 pi i k / n) for k below 2^low, then for the multiples of 2^low; and low.
    fn roots_between(&self, n: usize, dtype: DType) -> Result<(Table, usize)> {
        let low = n.ilog2() as usize / 2;
        let of = || words(dtype, (0..1 << low).chain((0..n).step_by(1 << low)).map(|k| root(k, n)));
        Ok((self.named_table(("fourier between", n, dtype), of)?, low))
    }

    /// Launches one pass of the transforms `t`.
    fn fourier_pass(&self, t: &Transforms, dtype: DType, p: &Pass) -> Result<()> {
        let l = p.layout;
        let all = t.outer * l.each;
        let per = per_block(l.n, all, dtype, self.device_caps());
        // A part of a plan's length has no larger factors than the whole.
        let passes = factors(l.n, dtype).unwrap_or_default();
        let (between, low) = match p.roots {
            Roots::None => (Ptr::NULL, 0),
            Roots::Between(n) => {
                let (table, low) = self.roots_between(n, dtype)?;
                (table.arg, low)
            }
            Roots::Pairs => (self.roots(2 * l.n, dtype)?.arg, 0),
        };
        let side = |s: Side| match s {
            Side::Half if p.roots == Roots::Pairs => (3, l.n + 1),
            _ if p.roots == Roots::Pairs => (0, l.n),
            _ => (mode(s), s.len(t.n) * t.inner),
        };
        let ([from, to], [x, y]) = ([side(p.from).0, side(p.to).0], [side(p.from).1, side(p.to).1]);
        let mut lengths = dims([x, y, t.n, low, per]);
        lengths.0[5] = passes.iter().rev().fold(0, |all, &f| all << 5 | f as i64);
        let [x_aligned, y_aligned] = [p.x, p.y].map(|side| pairs_aligned(dtype, &side));
        let args = FourierPowersArgs {
            x: p.x,
            roots: self.roots(l.n, dtype)?.arg,
            between,
            y: p.y,
            form: dims([l.n, all, l.each, l.inner, l.from[0], l.from[1], l.to[0], l.to[1]]),
            lengths,
            from,
            to,
            swap: i32::from(t.p.inverse),
            scale: p.scale,
            inner: t.p.inner,
            accumulate: i32::from(p.accumulate),
            aligned: i32::from(x_aligned) | i32::from(y_aligned) << 1,
        };
        let grid = Grid::Blocks([all.div_ceil(per), 1, 1]);
        let plain = [from, to].iter().all(|side| matches!(side, 0 | 3)) && !p.accumulate;
        let aligned = dtype == DType::F64 || x_aligned && y_aligned;
        if plain && aligned && l.n > 1 && l.n.is_power_of_two() {
            return self.launch(&FOURIER_POWERS, dtype, "", grid, &args);
        }
        self.launch(&FOURIER_FACTORS, dtype, "", grid, &args)
    }

    /// Transforms whose lengths have small factors, with sequences in local memory, real ones as pairs if so planned, or in two passes.
    fn fourier_factored(
        &self,
        t: &Transforms,
        dtype: DType,
        plan: FourierPlan,
        (x, y, accumulate): (Ptr, Ptr, bool),
    ) -> Result<()> {
        let (n, inner) = (t.n, t.inner);
        let FourierPlan::TwoPass { n1, n2 } = plan else {
            let (n, roots) =
                if plan == FourierPlan::RealPairs { (n / 2, Roots::Pairs) } else { (n, Roots::None) };
            let layout = Layout { n, each: inner, inner, from: [0, inner], to: [0, inner] };
            let (from, to, scale) = (t.from, t.to, t.p.scale);
            return self.fourier_pass(t, dtype, &Pass { layout, roots, x, y, from, to, scale, accumulate });
        };
        let middle = self.scratch(dtype, 2 * t.outer * n * inner)?;
        let z = self.arg_in(&middle.view());
        let steps = [inner, n2 * inner];
        let layout = Layout { n: n1, each: n2 * inner, inner, from: steps, to: steps };
        let (from, to) = (t.from, Side::Complex);
        let first =
            Pass { layout, roots: Roots::Between(n), x, y: z, from, to, scale: 1.0, accumulate: false };
        self.fourier_pass(t, dtype, &first)?;
        let (from, to) = ([n2 * inner, inner], [inner, n1 * inner]);
        let layout = Layout { n: n2, each: n1 * inner, inner, from, to };
        let (from, to, scale) = (Side::Complex, t.to, t.p.scale);
        self.fourier_pass(
            t,
            dtype,
            &Pass { layout, roots: Roots::None, x: z, y, from, to, scale, accumulate },
        )
    }

    /// Contiguous complex sequences of a chirp's length from one scratch buffer to another.
    fn fourier_scratch(
        &self,
        rows: usize,
        m: usize,
        p: Fft,
        dtype: DType,
        [x, y]: [&Buffer; 2],
    ) -> Result<()> {
        let t = Transforms { outer: rows, n: m, inner: 1, from: Side::Complex, to: Side::Complex, p };
        let problem = FourierProblem { n: m, inner: 1, dtype };
        // Such a length is short enough for one pass or two.
        let plan = best(&problem, self.device_caps()).map_or(FourierPlan::Local, |(_, plan)| plan);
        self.fourier_factored(&t, dtype, plan, (self.arg_in(&x.view()), self.arg_in(&y.view()), false))
    }

    /// Transforms as convolutions of length `m` with a chirp.
    fn fourier_chirp(
        &self,
        t: &Transforms,
        dtype: DType,
        m: usize,
        (x, y, accumulate): (Ptr, Ptr, bool),
    ) -> Result<()> {
        let (rows, swap, chirp) = (t.outer * t.inner, i32::from(t.p.inverse), self.chirp(t.n, dtype)?.arg);
        let [a, b, filter, spectrum] = [rows, rows, 1, 1].map(|r| self.scratch(dtype, 2 * r * m));
        let (a, b, filter, spectrum) = (a?, b?, filter?, spectrum?);
        let size = |side: Side| dims([rows, t.inner, t.n, m, side.len(t.n) * t.inner]);
        let to = self.arg_in(&a.view());
        let load = FourierChirpLoadArgs {
            x,
            chirp,
            a: to,
            size: size(t.from),
            from: mode(t.from),
            swap,
            inner: t.p.inner,
            aligned: i32::from(pairs_aligned(dtype, &x)),
        };
        self.launch(&FOURIER_CHIRP_LOAD, dtype, "", Grid::Stride(rows * m), &load)?;
        let args = FourierChirpArgs { chirp, b: self.arg_in(&filter.view()), n: long(t.n), m: long(m) };
        self.launch(&FOURIER_CHIRP, dtype, "", Grid::Stride(m), &args)?;
        self.fourier_scratch(1, m, Fft::new(), dtype, [&filter, &spectrum])?;
        self.fourier_scratch(rows, m, Fft::new(), dtype, [&a, &b])?;
        let product = FourierChirpProductArgs {
            a: self.arg_in(&b.view()),
            b: self.arg_in(&spectrum.view()),
            sequences: long(rows),
            m: long(m),
        };
        self.launch(&FOURIER_CHIRP_PRODUCT, dtype, "", Grid::Stride(rows * m), &product)?;
        self.fourier_scratch(rows, m, Fft::new().inverse(true).scale(1.0 / m as f64), dtype, [&b, &a])?;
        let store = FourierChirpStoreArgs {
            a: self.arg_in(&a.view()),
            chirp,
            y,
            size: size(t.to),
            to: mode(t.to),
            swap,
            scale: t.p.scale,
            inner: t.p.inner,
            accumulate: i32::from(accumulate),
            aligned: i32::from(pairs_aligned(dtype, &y)) << 1,
        };
        self.launch(&FOURIER_CHIRP_STORE, dtype, "", Grid::Stride(rows * t.n), &store)
    }

    fn fourier(&self, op: &'static str, t: &Transforms, x: View<'_>, y: GradMut<'_>) -> Result<()> {
        let v = y.out.as_view();
        self.check_owner_all(op, &[("x", x), ("y", v)])?;
        if v.numel() == 0 {
            return Ok(());
        }
        let dtype = x.dtype();
        let of = FourierProblem { n: t.n, inner: t.inner, dtype };
        if t.from == Side::Complex && t.to == Side::Complex {
            return self.fourier_as(op, t, of, x, y);
        }
        let sides = [self.arg_in(&x), self.arg_out(&y.out)];
        let aligned = dtype == DType::F64 || sides.iter().all(|p| pairs_aligned(dtype, p));
        self.fourier_as(op, t, RealFourierProblem { of, plain: aligned && !y.accumulate }, x, y)
    }

    /// Transforms by the library of the vendor or by the kernels of this one, among which `own` chooses.
    fn fourier_as<P: Own>(
        &self,
        op: &'static str,
        t: &Transforms,
        own: P,
        x: View<'_>,
        y: GradMut<'_>,
    ) -> Result<()> {
        let asked = Asked {
            own,
            outer: t.outer,
            from_reals: t.from == Side::Real,
            to_reals: t.to == Side::Real,
            finished: y.accumulate || t.p.scale != 1.0,
        };
        let answer = self.fourier_offer(op, asked, t, [&x, &y.out.as_view()]);
        let vendor = answer.as_ref().map(|_| ()).map_err(|why| why.as_ref());
        match (self.plan(op, &Offered { asked, vendor })?, answer) {
            (FourierPlan::Vendor, Ok(p)) => self.fourier_by_library(op, &p, t, x, y),
            (FourierPlan::Vendor, Err(why)) => Err(self.no_variant(op, why.into_owned())),
            (plan, _) => self.fourier_own(t, plan, x, y),
        }
    }

    fn fourier_own(&self, t: &Transforms, plan: FourierPlan, x: View<'_>, y: GradMut<'_>) -> Result<()> {
        let operands = (self.arg_in(&x), self.arg_out(&y.out), y.accumulate);
        match plan {
            FourierPlan::Chirp { m } => self.fourier_chirp(t, x.dtype(), m, operands),
            plan => self.fourier_factored(t, x.dtype(), plan, operands),
        }
    }

    /// The variant that serves many rows of 1024 elements.
    pub(crate) fn explain_fourier(&self, op: &'static str) -> Result<Choice> {
        let own = FourierProblem { n: 1024, inner: 1, dtype: DType::F32 };
        let asked =
            Asked { own, outer: 1 << 14, from_reals: op == "rfft", to_reals: op == "irfft", finished: false };
        let vendor = self.driver().vendor_fft().map(|_| ());
        if op == "fft" {
            return self.explain_problem(op, &Offered { asked, vendor });
        }
        let Asked { outer, from_reals, to_reals, finished, .. } = asked;
        let own = RealFourierProblem { of: own, plain: true };
        let asked = Asked { own, outer, from_reals, to_reals, finished };
        self.explain_problem(op, &Offered { asked, vendor })
    }
}

impl FourierOps for Engine {
    fn fft(&self, p: &Fft, axis: usize, x: View<'_>, y: GradMut<'_>) -> Result<()> {
        self.fourier("fft", &check_fft(p, axis, &x, &y)?, x, y)
    }

    fn rfft(&self, p: &Fft, x: View<'_>, y: GradMut<'_>) -> Result<()> {
        self.fourier("rfft", &check_rfft(p, &x, &y)?, x, y)
    }

    fn irfft(&self, p: &Fft, x: View<'_>, y: GradMut<'_>) -> Result<()> {
        self.fourier("irfft", &check_irfft(p, &x, &y)?, x, y)
    }
}
