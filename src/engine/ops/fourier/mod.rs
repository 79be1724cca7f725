//! Discrete Fourier transforms: validation, choice of variant, launch.

mod plan;

use std::f64::consts::PI;

use self::plan::{FourierPlan, FourierProblem, factors, per_block};
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

/// One pass over memory.
struct Pass {
    layout: Layout,
    /// Length whose roots stand between two passes; 0 for none.
    between: usize,
    x: Ptr,
    y: Ptr,
    from: Side,
    to: Side,
    scale: f64,
    accumulate: bool,
}

impl Engine {
    /// exp(-2 pi i k / n) for k below n.
    fn roots(&self, n: usize, dtype: DType) -> Result<Table> {
        let root = |k: usize| {
            let quarter = (4 * k + n / 2) / n;
            let rest = (4 * k) as f64 - (quarter * n) as f64;
            let (sin, cos) = (rest * (PI / 2.0) / n as f64).sin_cos();
            [[cos, -sin], [-sin, -cos], [-cos, sin], [sin, cos]][quarter % 4]
        };
        self.named_table(("fourier", n, dtype), || match dtype {
            DType::F64 => (0..n).flat_map(root).map(|v| v.to_bits() as i64).collect(),
            _ => {
                let bits = |v: f64| u64::from((v as f32).to_bits());
                (0..n).map(root).map(|[re, im]| (bits(im) << 32 | bits(re)) as i64).collect()
            }
        })
    }

    /// Launches one pass of the transforms `t`.
    fn fourier_pass(&self, t: &Transforms, dtype: DType, p: &Pass) -> Result<()> {
        let l = p.layout;
        let (all, per) = (t.outer * l.each, per_block(l.n, dtype));
        // A part of a plan's length has no larger factors than the whole.
        let split = factors(l.n).unwrap_or_default();
        let lengths = [p.from.len(t.n) * t.inner, p.to.len(t.n) * t.inner, t.n, p.between, per];
        let mut lengths = dims(lengths);
        lengths.0[5] = split;
        let args = FourierLocalArgs {
            x: p.x,
            roots: self.roots(l.n, dtype)?.arg,
            y: p.y,
            form: dims([l.n, all, l.each, l.inner, l.from[0], l.from[1], l.to[0], l.to[1]]),
            lengths,
            from: mode(p.from),
            to: mode(p.to),
            sign: if t.p.inverse { 1 } else { -1 },
            scale: p.scale,
            inner: t.p.inner,
            accumulate: i32::from(p.accumulate),
        };
        self.launch(&FOURIER_LOCAL, dtype, "", Grid::Blocks([all.div_ceil(per), 1, 1]), &args)
    }

    /// Transforms whose lengths have small factors, with sequences in local memory or in two passes.
    fn fourier_factored(
        &self,
        t: &Transforms,
        dtype: DType,
        plan: FourierPlan,
        (x, y, accumulate): (Ptr, Ptr, bool),
    ) -> Result<()> {
        let (n, inner) = (t.n, t.inner);
        let FourierPlan::TwoPass { n1, n2 } = plan else {
            let layout = Layout { n, each: inner, inner, from: [0, inner], to: [0, inner] };
            let (from, to, scale) = (t.from, t.to, t.p.scale);
            return self.fourier_pass(
                t,
                dtype,
                &Pass { layout, between: 0, x, y, from, to, scale, accumulate },
            );
        };
        let middle = self.scratch(dtype, 2 * t.outer * n * inner)?;
        let z = self.arg_in(&middle.view());
        let steps = [inner, n2 * inner];
        let layout = Layout { n: n1, each: n2 * inner, inner, from: steps, to: steps };
        let (from, to) = (t.from, Side::Complex);
        let first = Pass { layout, between: n, x, y: z, from, to, scale: 1.0, accumulate: false };
        self.fourier_pass(t, dtype, &first)?;
        let (from, to) = ([n2 * inner, inner], [inner, n1 * inner]);
        let layout = Layout { n: n2, each: n1 * inner, inner, from, to };
        let (from, to, scale) = (Side::Complex, t.to, t.p.scale);
        self.fourier_pass(t, dtype, &Pass { layout, between: 0, x: z, y, from, to, scale, accumulate })
    }

    /// Contiguous complex sequences of a power of 2 from one scratch buffer to another.
    fn fourier_power(&self, rows: usize, m: usize, p: Fft, dtype: DType, [x, y]: [&Buffer; 2]) -> Result<()> {
        let t = Transforms { outer: rows, n: m, inner: 1, from: Side::Complex, to: Side::Complex, p };
        let problem = FourierProblem { n: m, inner: 1, dtype };
        // Powers of 2 that come here are short enough for one pass or two.
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
        let (rows, sign) = (t.outer * t.inner, if t.p.inverse { 1 } else { -1 });
        let [a, b, filter, spectrum] = [rows, rows, 1, 1].map(|r| self.scratch(dtype, 2 * r * m));
        let (a, b, filter, spectrum) = (a?, b?, filter?, spectrum?);
        let size = |side: Side| dims([rows, t.inner, t.n, m, side.len(t.n) * t.inner]);
        let to = self.arg_in(&a.view());
        let load =
            FourierChirpLoadArgs { x, a: to, size: size(t.from), from: mode(t.from), sign, inner: t.p.inner };
        self.launch(&FOURIER_CHIRP_LOAD, dtype, "", Grid::Stride(rows * m), &load)?;
        let chirp = FourierChirpArgs { b: self.arg_in(&filter.view()), n: long(t.n), m: long(m), sign };
        self.launch(&FOURIER_CHIRP, dtype, "", Grid::Stride(m), &chirp)?;
        self.fourier_power(1, m, Fft::new(), dtype, [&filter, &spectrum])?;
        self.fourier_power(rows, m, Fft::new(), dtype, [&a, &b])?;
        let product = FourierChirpProductArgs {
            a: self.arg_in(&b.view()),
            b: self.arg_in(&spectrum.view()),
            sequences: long(rows),
            m: long(m),
        };
        self.launch(&FOURIER_CHIRP_PRODUCT, dtype, "", Grid::Stride(rows * m), &product)?;
        self.fourier_power(rows, m, Fft::new().inverse(true).scale(1.0 / m as f64), dtype, [&b, &a])?;
        let store = FourierChirpStoreArgs {
            a: self.arg_in(&a.view()),
            y,
            size: size(t.to),
            to: mode(t.to),
            sign,
            scale: t.p.scale,
            inner: t.p.inner,
            accumulate: i32::from(accumulate),
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
        let operands = (self.arg_in(&x), self.arg_out(&y.out), y.accumulate);
        match self.plan(op, &FourierProblem { n: t.n, inner: t.inner, dtype })? {
            FourierPlan::Chirp { m } => self.fourier_chirp(t, dtype, m, operands),
            plan => self.fourier_factored(t, dtype, plan, operands),
        }
    }

    /// The variant that serves sequences of 1024 elements.
    pub(crate) fn explain_fourier(&self, op: &'static str) -> Result<Choice> {
        self.explain_problem(op, &FourierProblem { n: 1024, inner: 1, dtype: DType::F32 })
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
