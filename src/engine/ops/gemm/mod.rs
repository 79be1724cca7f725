//! Matrix products: one description of a product, and the kernels or the vendor library that serve it.

mod bf16x6;
mod bilinear;
mod launch;
mod narrow;
mod parts;
mod plan;
pub(in crate::engine) mod product;
mod ragged;
mod ragged_plan;
#[cfg(all(test, feature = "driver-opencl"))]
mod tests;

use self::narrow::LayerGradients;
use self::plan::{CLBLAST, CUBLASLT, GemmPlan, GemmProblem, HIPBLASLT, PARTS, tiling};
use self::product::{MatrixOperand, Product};
use crate::buffer::{GradMut, View, ViewMut};
use crate::device::BackendKind;
use crate::driver::RawMem;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::blas::BlasAnswer;
use crate::engine::plan::Problem;
use crate::error::Result;
use crate::ops::activation::{Activation, ActivationBiasBwd, ActivationOps};
use crate::ops::core::Choice;
use crate::ops::gemm::*;
use crate::ops::reduce::ReduceOps;

/// The vendor's part in a product.
struct VendorPlans {
    /// Number of the variant that is its library.
    library: usize,
    parts: BlasAnswer,
    whole: BlasAnswer,
}

impl VendorPlans {
    fn problem(&self, q: &Product) -> GemmProblem<'_> {
        q.problem(self.library, [&self.parts, &self.whole])
    }
}

/// A gradient to compute.
struct Gradient {
    q: Product,
    /// Summed over the batch, which the operand repeats.
    sum: bool,
    accumulate: bool,
}

/// The gradients of A and B from that of the product.
fn gradients(p: &Gemm, io: &GemmBwd<'_>, dz: &View<'_>, e: Extents) -> [Option<Gradient>; 2] {
    let (dtype, d) = (io.a.dtype(), MatrixOperand::new(dz, steps(dz, false)));
    let plan = |g: &GradMut<'_>, ext, a, b, trans, of: &View<'_>| {
        let v = g.out.as_view();
        let y = MatrixOperand::new(&v, steps(&v, trans));
        let beta = if g.accumulate { 1.0 } else { 0.0 };
        Gradient {
            q: Product::plain(p, ext, dtype, a, b, (y, dtype), beta),
            sum: repeats(of, e.batch) || of.shape().len() < dz.shape().len(),
            accumulate: g.accumulate,
        }
    };
    let da = io.da.as_ref().map(|g| {
        let b = MatrixOperand::new(&io.b, steps(&io.b, p.trans_b)).transposed();
        let ext = Extents { batch: e.batch, m: e.m, n: e.k, k: e.n };
        plan(g, ext, d, b, p.trans_a, &io.a)
    });
    let db = io.db.as_ref().map(|g| {
        let a = MatrixOperand::new(&io.a, steps(&io.a, p.trans_a)).transposed();
        let ext = Extents { batch: e.batch, m: e.k, n: e.n, k: e.m };
        plan(g, ext, a, d, p.trans_b, &io.b)
    });
    [da, db]
}

impl Engine {
    /// The kernels of this crate, tile and splits by size.
    pub(crate) fn portable_product(&self, q: &Product) -> Result<()> {
        let (tile, splits) = tiling(q.e, q.dtype, self.device_caps());
        self.tiles(q, tile, splits)
    }

    /// Number of the variant that is the device's vendor library. Drivers that are not this crate's name theirs.
    fn library(&self) -> usize {
        match self.device_caps().id.kind {
            BackendKind::OpenCl => CLBLAST,
            BackendKind::Hip => HIPBLASLT,
            BackendKind::Custom => {
                let name = self.driver().vendor_blas().map_or("", |blas| blas.name());
                let mut named = [HIPBLASLT, CLBLAST].into_iter();
                named.find(|&v| GemmProblem::VARIANTS[v].name == name).unwrap_or(CUBLASLT)
            }
            _ => CUBLASLT,
        }
    }

    /// The vendor's part in a product, of parts and as a whole. It is not asked where another variant is pinned; a library that no rule takes is asked
    /// where something else may (`explained`: the choice is to be put in words).
    fn vendor_plans(&self, op: &'static str, q: &Product, explained: bool) -> VendorPlans {
        let library = self.library();
        let ask =
            |variant, answer: &dyn Fn() -> BlasAnswer| match self.may_take::<GemmProblem<'_>>(op, variant) {
                true => answer(),
                false => Err("another variant is pinned".into()),
            };
        let parts = ask(PARTS, &|| self.parts_plan(q));
        let unasked = Err("it is taken where it is pinned or was measured to be the fastest".into());
        let asked = library != CLBLAST
            || explained
            || self.considers(op, &q.problem(library, [&parts, &unasked]), library);
        let whole = if asked { ask(library, &|| self.blas_plan(q)) } else { unasked };
        VendorPlans { library, parts, whole }
    }

    /// Computes a product whose operands are checked.
    pub(crate) fn product(&self, op: &'static str, q: &Product) -> Result<()> {
        let q = &q.by_rows();
        let e = q.e;
        if e.batch == 0 || e.m == 0 || e.n == 0 {
            return Ok(());
        }
        if e.k == 0 || q.alpha == 0.0 {
            return self.finish(q, None, 0, 0.0);
        }
        let plans = self.vendor_plans(op, q, false);
        match (self.plan(op, &plans.problem(q))?, plans.whole) {
            (GemmPlan::Parts, _) => self.product_of_parts(q),
            (GemmPlan::Tiles { tile, splits }, _) => self.tiles(q, tile, splits),
            (GemmPlan::Cluster { form, items, blocks, per }, _) => {
                self.cluster(q, form, items, [blocks, per])
            }
            (GemmPlan::Bf16x6 { form, tile, per, grid }, _) => self.bf16x6(q, form, tile, (per, grid)),
            (GemmPlan::Specialized(form, grid), _) => self.specialized(q, form, grid),
            (GemmPlan::Wide(form, grid), _) => self.wide(q, form, grid),
            (GemmPlan::Vendor, Ok(plan)) => self.blas_product(q, &plan),
            (GemmPlan::Vendor, Err(_)) => self.portable_product(q),
        }
    }

    /// The variant that serves a product of 1024 x 1024 x 1024 in f32.
    pub(crate) fn explain_gemm(&self, op: &'static str) -> Result<Choice> {
        let e = Extents { batch: 1, m: 1024, n: 1024, k: 1024 };
        let t = MatrixOperand { mem: (RawMem(0), 0), aligned: true, steps: [1024, 1, 0] };
        let q = Product::plain(&Gemm::new(), e, DType::F32, t, t, (t, DType::F32), 0.0);
        let plans = self.vendor_plans(op, &q, true);
        match op {
            "gemm_bwd" => self.explain_problem(op, &LayerGradients::plain(e, plans.problem(&q))),
            _ => self.explain_problem(op, &plans.problem(&q)),
        }
    }

    /// Sum over the batches of alpha A B into one matrix.
    fn batch_sum(&self, op: &'static str, p: &Gemm, q: Product, accumulate: bool) -> Result<()> {
        let e = q.e;
        let joins = |t: MatrixOperand, by: usize| t.steps[2] == by * e.k;
        if joins(q.a, q.a.steps[1]) && joins(q.b, q.b.steps[0]) {
            return self.product(op, &Product { e: Extents { batch: 1, k: e.batch * e.k, ..e }, ..q });
        }
        // Partial sums of 16-bit results are kept in f32.
        let wide = (q.out != q.real()).then(|| self.scratch(q.real(), e.m * e.n)).transpose()?;
        let view = wide.as_ref().map(|w| w.view());
        let (sum, out) = view.as_ref().map_or((q.y, q.out), |w| (MatrixOperand::packed(w, e), q.real()));
        for b in 0..e.batch {
            let one = q.batches(b, 1);
            let beta = if b > 0 || (accumulate && view.is_none()) { 1.0 } else { 0.0 };
            self.product(op, &Product::plain(p, one.e, q.dtype, one.a, one.b, (sum, out), beta))?;
        }
        match view {
            Some(_) => self.finish(&Product { e: Extents { batch: 1, ..e }, ..q }, Some(&sum), 1, 1.0),
            None => Ok(()),
        }
    }

    /// Refuses a product that [`Engine::product`] would refuse, so that an operation of several products fails before any of them ran.
    fn ready(&self, op: &'static str, q: &Product) -> Result<()> {
        let q = &q.by_rows();
        let e = q.e;
        if e.batch == 0 || e.m == 0 || e.n == 0 || e.k == 0 || q.alpha == 0.0 {
            return Ok(());
        }
        self.plan(op, &self.vendor_plans(op, q, false).problem(q)).map(|_| ())
    }

    /// A gradient as a product, summed over the batch with `sum`.
    fn gradient(&self, op: &'static str, p: &Gemm, g: &Gradient) -> Result<()> {
        let q = g.q;
        if q.e.batch == 0 && g.sum && !g.accumulate {
            return self.finish(&Product { e: Extents { batch: 1, k: 0, ..q.e }, ..q }, None, 0, 0.0);
        }
        if g.sum { self.batch_sum(op, p, q, g.accumulate) } else { self.product(op, &q) }
    }

    /// Gradients of a layer one after the other. An activation's gradient and the sums of its rows, for a bias of the columns, are one operation.
    fn gradients_by_products(&self, p: &Gemm, io: GemmBwd<'_>, e: Extents) -> Result<()> {
        let op = "gemm_bwd";
        let mut room = None;
        let summed = p.act != Activation::Identity && p.bias_axis == GemmAxis::Col && io.dbias.is_some();
        let (dz, pass) = match io.saved.filter(|_| summed) {
            Some(saved) => {
                let out = self.room_before_activation(&io.dy, &mut room)?;
                (out.as_view(), Some((saved, out)))
            }
            None => (self.before_activation(p.act, io.dy, io.saved, &mut room)?, None),
        };
        let both = gradients(p, &io, &dz, e);
        both.iter().flatten().try_for_each(|g| self.ready(op, &g.q))?;
        let dbias = match (pass, io.dbias) {
            (Some((saved, out)), Some(g)) => {
                let io = ActivationBiasBwd::new(io.dy, p.act.saved(saved), out, g);
                self.activation_bias_bwd(p.act, io)?;
                None
            }
            (_, later) => later,
        };
        both.iter().flatten().try_for_each(|g| self.gradient(op, p, g))?;
        match dbias {
            Some(g) if p.bias_axis == GemmAxis::Row => {
                self.sum_to_shape(dz, g.out.reshape(&[e.m, 1])?.grad(g.accumulate))
            }
            Some(g) => self.sum_to_shape(dz, g),
            None => Ok(()),
        }
    }
}

impl GemmOps for Engine {
    fn gemm(&self, p: &Gemm, io: GemmIo<'_>) -> Result<()> {
        let op = "gemm";
        let e = check_gemm(p, &io)?;
        let y = io.y.as_view();
        let (z, colsum) = (io.z.as_ref().map(ViewMut::as_view), io.colsum.as_ref().map(ViewMut::as_view));
        let all = [
            ("a", Some(&io.a)),
            ("b", Some(&io.b)),
            ("c", io.c.as_ref()),
            ("bias", io.bias.as_ref()),
            ("residual", io.residual.as_ref()),
            ("scale", io.scale.as_ref()),
            ("y", Some(&y)),
            ("z", z.as_ref()),
            ("colsum", colsum.as_ref()),
        ];
        for (arg, v) in all {
            v.map_or(Ok(()), |v| self.check_owner(op, arg, v))?;
        }
        let whole = |v: &View<'_>| MatrixOperand::new(v, steps(v, false));
        let q = Product {
            e,
            dtype: io.a.dtype(),
            out: y.dtype(),
            a: MatrixOperand::new(&io.a, steps(&io.a, p.trans_a)),
            b: MatrixOperand::new(&io.b, steps(&io.b, p.trans_b)),
            c: io.c.filter(|_| p.beta != 0.0).as_ref().map(whole),
            bias: io.bias.as_ref().map(|v| MatrixOperand::vector(v, p.bias_axis)),
            scale: io.scale.as_ref().map(|v| MatrixOperand::vector(v, p.scale_axis)),
            residual: io.residual.as_ref().map(whole),
            y: whole(&y),
            z: z.as_ref().map(whole),
            alpha: p.alpha,
            beta: p.beta,
            act: fused_act(op, p.act)?,
            precision: p.precision,
        };
        self.product(op, &q)?;
        match io.colsum {
            Some(s) => self.sum_to_shape(y, s.into()),
            None => Ok(()),
        }
    }

    fn gemm_bwd(&self, p: &Gemm, io: GemmBwd<'_>) -> Result<()> {
        let op = "gemm_bwd";
        let e = check_gemm_bwd(p, &io)?;
        let out = |g: &Option<GradMut<'_>>| g.is_some();
        for (arg, v) in
            [("dy", Some(&io.dy)), ("a", Some(&io.a)), ("b", Some(&io.b)), ("saved", io.saved.as_ref())]
        {
            v.map_or(Ok(()), |v| self.check_owner(op, arg, v))?;
        }
        for (arg, g) in [("da", &io.da), ("db", &io.db), ("dbias", &io.dbias)] {
            g.as_ref().map_or(Ok(()), |g| self.check_owner(op, arg, &g.out.as_view()))?;
        }
        if !(out(&io.da) || out(&io.db) || out(&io.dbias)) {
            return Ok(());
        }
        if self.narrow_gradients(p, &io, e)? {
            return Ok(());
        }
        self.gradients_by_products(p, io, e)
    }

    fn gemm_grouped(&self, p: &Gemm, a: &[View<'_>], b: &[View<'_>], y: &mut [ViewMut<'_>]) -> Result<()> {
        let op = "gemm_grouped";
        let all = check_gemm_grouped(p, a, b, y)?;
        for ((a, b), y) in a.iter().zip(b).zip(&*y) {
            self.check_owner(op, "a", a)?;
            self.check_owner(op, "b", b)?;
            self.check_owner(op, "y", &y.as_view())?;
        }
        let product = |(((a, b), y), e): (((&View<'_>, &View<'_>), &ViewMut<'_>), Extents)| {
            let (ta, tb) =
                (MatrixOperand::new(a, steps(a, p.trans_a)), MatrixOperand::new(b, steps(b, p.trans_b)));
            let v = y.as_view();
            let y = (MatrixOperand::new(&v, steps(&v, false)), v.dtype());
            Product::plain(p, e, a.dtype(), ta, tb, y, 0.0)
        };
        let products: Vec<_> = a.iter().zip(b).zip(&*y).zip(all).map(product).collect();
        products.iter().try_for_each(|q| self.ready(op, q))?;
        products.iter().try_for_each(|q| self.product(op, q))
    }

    fn gemm_ragged(&self, p: &Gemm, io: GemmRagged<'_>) -> Result<()> {
        self.ragged_product(p, io)
    }

    fn gemm_ragged_bwd(&self, p: &Gemm, io: GemmRaggedBwd<'_>) -> Result<()> {
        self.ragged_gradient(p, io)
    }
}
