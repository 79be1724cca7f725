//! Matrix products of a vendor library: which of them it is given, in what form, and whether its results can be trusted.

mod padding;

use std::borrow::Cow;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use self::padding::Padding;
use super::Engine;
use super::capture::QueuedBlas;
use super::ops::elementwise::unary::flat_grid;
use super::ops::gemm::product::{MatrixOperand, Product};
use crate::backend::BackendExt;
use crate::cpu::{HostElement, with_dtype};
use crate::driver::{BlasAct, BlasProblem, VendorBlas};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::gemm::{Extents, Precision};
use crate::spec::kernels::elementwise::{UNARY_FLAT, UnaryFlatArgs};

/// The library's part in a product.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlasPlan {
    problem: BlasProblem,
    /// The product in the orientation in which the result is row-major.
    q: Product,
    /// Where the library writes.
    target: Target,
    /// What is copied before it, if rows are no whole items.
    padding: Option<Padding>,
    /// The product as it was asked for, where there are copies.
    unpadded: Product,
}

impl BlasPlan {
    fn new(problem: BlasProblem, q: Product, target: Target) -> Self {
        BlasPlan { problem, q, target, padding: None, unpadded: q }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    /// Y, everything included.
    Y,
    /// Everything but the activation into Z (or Y), which a map then takes to Y.
    Map,
    /// The plain product into the memory of Y or of Z, to be finished in place.
    InPlace(bool),
    /// The plain product into scratch memory.
    Scratch,
}

/// What holds of a library's results, in bits, or why it is not used.
type Trusted = std::result::Result<u8, Cow<'static, str>>;

/// A plan, or why there is none.
pub(crate) type BlasAnswer = std::result::Result<BlasPlan, Cow<'static, str>>;

/// Which products of a library are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Check {
    /// A few small ones.
    All,
    /// One that needs a workspace, where these have kernels of their own.
    Workspace,
}

/// What was found out about a library's results, per check and type of operands and of the result, and why it is not used.
#[derive(Debug, Default)]
pub(crate) struct Trust([(AtomicU8, OnceLock<String>); 16]);

impl Trust {
    fn of(&self, check: Check, dtype: DType, out: DType) -> &(AtomicU8, OnceLock<String>) {
        let index = match dtype {
            DType::F32 => 0,
            DType::F16 => 1,
            DType::Bf16 => 2,
            _ => 3,
        };
        &self.0[index + 4 * usize::from(out != dtype) + 8 * usize::from(check == Check::Workspace)]
    }
}

const CHECKED: u8 = 1;
const PLAIN: u8 = 2;
const BIAS: u8 = 4;
const RELU: u8 = 8;
const GELU: u8 = 16;

/// Whether a matrix must be taken as transposed to be row-major, and its row stride; `None` if neither axis is dense.
pub(crate) fn major(t: MatrixOperand, rows: usize, cols: usize) -> Option<(bool, usize)> {
    let [r, c, _] = t.steps;
    if (c == 1 || cols == 1) && (rows == 1 || r >= cols) {
        return Some((false, if rows == 1 { cols } else { r }));
    }
    if (r == 1 || rows == 1) && (cols == 1 || c >= rows) {
        return Some((true, if cols == 1 { rows } else { c }));
    }
    None
}

/// A product of packed matrices.
fn packed_problem(e: Extents, dtype: DType, out_dtype: DType) -> BlasProblem {
    BlasProblem {
        m: e.m,
        n: e.n,
        k: e.k,
        batch: e.batch,
        trans_a: false,
        trans_b: false,
        ld: [e.k, e.n, e.n, e.n],
        batch_stride: [e.m * e.k, e.k * e.n, e.m * e.n, e.m * e.n],
        dtype,
        out_dtype,
        tf32: false,
        bias: false,
        act: BlasAct::Identity,
    }
}

fn row_major(t: MatrixOperand, e: Extents) -> Option<usize> {
    major(t, e.m, e.n).filter(|m| !m.0).map(|m| m.1)
}

impl Engine {
    /// How the vendor's library would compute a product.
    pub(crate) fn blas_plan(&self, q: &Product) -> BlasAnswer {
        let blas = self.driver().vendor_blas().map_err(str::to_string)?;
        blas.types(q.dtype, q.real())?;
        let trust = self.blas_trust(blas, q.dtype, q.out)?;
        let mut q = *q;
        if q.precision == Precision::Tf32 && !blas.tf32() {
            q.precision = Precision::Ieee;
        }
        let plan = match self.blas_padded(blas, &q, trust) {
            Some(plan) => plan,
            None => self.blas_form(blas, &q, trust)?,
        };
        if blas.workspace_kernels() && blas.workspace(&plan.problem) > 0 {
            self.blas_trust_in(Check::Workspace, blas, q.dtype, q.out)?;
        }
        Ok(plan)
    }

    fn blas_form(&self, blas: &dyn VendorBlas, q: &Product, trust: u8) -> BlasAnswer {
        let q = if row_major(q.y, q.e).is_some() { *q } else { q.swapped() };
        let e = q.e;
        let (Some(ldy), Some((trans_a, lda)), Some((trans_b, ldb))) =
            (row_major(q.y, e), major(q.a, e.m, e.k), major(q.b, e.k, e.n))
        else {
            return Err("an operand has no dense axis".into());
        };
        let matrices = [Some(q.a), Some(q.b), Some(q.y), q.c, q.residual, q.z];
        if blas.aligned_only() && !matrices.into_iter().flatten().all(|t| t.aligned) {
            return Err("a matrix does not begin at a multiple of 16 bytes".into());
        }
        let act = match q.act.0 {
            0 => Some(BlasAct::Identity),
            1 if trust & RELU != 0 => Some(BlasAct::Relu),
            // The library's tanh is not accurate enough for f32.
            4 if trust & GELU != 0 && q.out.size() == 2 => Some(BlasAct::GeluTanh),
            _ => None,
        };
        let steps = |t: MatrixOperand| if e.batch > 1 { t.steps[2] } else { 0 };
        // Where rows of 16-bit numbers are not whole 16-byte items the library takes kernels that round before they add a bias, and whose ReLU of NaN
        // is 0 (cuBLASLt 13.0, H200).
        let items = |v: usize| q.out.size() > 2 && q.dtype.size() > 2 || v.is_multiple_of(8);
        let whole_items = [e.m, e.n, e.k, lda, ldb, ldy].into_iter().all(items)
            && [q.a, q.b, q.y].into_iter().all(|t| t.aligned && items(steps(t)));
        let act = act.filter(|&a| a == BlasAct::Identity || whole_items);
        let bias_fits = q.bias.is_none_or(|b| {
            whole_items && trust & BIAS != 0 && b.steps[0] == 0 && (b.steps[1] == 1 || e.n == 1)
        });
        // A residual is a C with beta 1.
        let (c, beta) = match (q.c, q.residual) {
            (Some(c), _) => (Some(c), q.beta),
            (None, r) => (r, if r.is_some() { 1.0 } else { 0.0 }),
        };
        let one_added = q.c.is_none() || q.residual.is_none();
        let ldc = c.map_or(Some(ldy), |c| row_major(c, e));
        // What the library adds to its result must lie there, if it adds in place.
        let adds_at =
            |at: MatrixOperand| !blas.in_place() || c.is_none_or(|c| (c.mem, c.steps) == (at.mem, at.steps));
        let fused = act.filter(|_| bias_fits && one_added && q.scale.is_none() && q.z.is_none());
        let whole = BlasProblem {
            m: e.m,
            n: e.n,
            k: e.k,
            batch: e.batch,
            trans_a,
            trans_b,
            ld: [lda, ldb, ldy, ldy],
            batch_stride: [steps(q.a), steps(q.b), steps(q.y), steps(q.y)],
            dtype: q.dtype,
            out_dtype: q.out,
            tf32: q.precision == Precision::Tf32,
            bias: q.bias.is_some(),
            act: BlasAct::Identity,
        };
        if let (Some(act), Some(ldc)) = (fused.filter(|_| adds_at(q.y)), ldc) {
            let mut problem = BlasProblem { act, ..whole };
            problem.ld[2] = ldc;
            problem.batch_stride[2] = c.map_or(steps(q.y), steps);
            let direct = Product { c, beta, residual: None, ..q };
            if blas.applicable(&problem).is_ok() {
                return Ok(BlasPlan::new(problem, direct, Target::Y));
            }
        }
        let packed =
            |t: MatrixOperand| t.steps == [e.n, 1, e.m * e.n] || (e.batch == 1 && t.steps[..2] == [e.n, 1]);
        let base = q.z.unwrap_or(q.y);
        let flat = [base, q.y].into_iter().all(|t| packed(t) && t.aligned);
        let mapped = q.act.0 != 0 && flat && bias_fits && one_added && q.scale.is_none() && adds_at(base);
        if let (true, Some(ldc)) = (mapped, ldc) {
            let mut problem = whole;
            problem.ld[2] = ldc;
            problem.batch_stride[2] = c.map_or(steps(q.y), steps);
            let direct = Product { c, beta, residual: None, ..q };
            if blas.applicable(&problem).is_ok() {
                return Ok(BlasPlan::new(problem, direct, Target::Map));
            }
        }
        // The plain product, then the epilogue as a pass of its own over full-precision values.
        let free = |t: MatrixOperand| q.out == q.real() && packed(t) && t.aligned;
        let target = match q.z {
            Some(z) if free(z) => Target::InPlace(true),
            _ if free(q.y) && q.c.is_none_or(|c| c.mem != q.y.mem) => Target::InPlace(false),
            _ => Target::Scratch,
        };
        let mut problem = BlasProblem { out_dtype: q.real(), bias: false, ..whole };
        problem.ld[2..].fill(e.n);
        problem.batch_stride[2..].fill(if e.batch > 1 { e.m * e.n } else { 0 });
        blas.applicable(&problem)?;
        Ok(BlasPlan::new(problem, q, target))
    }

    /// Computes a product as planned.
    pub(crate) fn blas_product(&self, q: &Product, plan: &BlasPlan) -> Result<()> {
        let Ok(blas) = self.driver().vendor_blas() else { return self.portable_product(q) };
        if let Some(padding) = &plan.padding {
            return self.blas_padded_product(blas, plan, padding);
        }
        let q = &plan.q;
        match plan.target {
            Target::Y => self.blas_call(blas, &plan.problem, q, q.beta, q.y),
            Target::Map => {
                let at = q.z.unwrap_or(q.y);
                self.blas_call(blas, &plan.problem, q, q.beta, at)?;
                self.activate(q, at)
            }
            Target::InPlace(z) => {
                let at = q.z.filter(|_| z).unwrap_or(q.y);
                self.blas_call(blas, &plan.problem, q, 0.0, at)?;
                self.finish(q, Some(&at), 1, 1.0)
            }
            Target::Scratch => {
                let scratch = self.scratch(q.real(), q.e.batch * q.e.m * q.e.n)?;
                let at = MatrixOperand::packed(&scratch.view(), q.e);
                self.blas_call(blas, &plan.problem, q, 0.0, at)?;
                self.finish(q, Some(&at), 1, 1.0)
            }
        }
    }

    /// Y = act(the values at `from`), both packed and aligned.
    fn activate(&self, q: &Product, from: MatrixOperand) -> Result<()> {
        /// By the numbers of `fused_act`.
        const NAMES: [&str; 9] = [
            "gk_act_identity",
            "gk_act_relu",
            "gk_act_leaky_relu",
            "gk_act_gelu",
            "gk_act_gelu_tanh",
            "gk_act_sigmoid",
            "gk_act_tanh",
            "gk_act_swish",
            "gk_act_hardswish",
        ];
        let Some(name) = NAMES.get(q.act.0 as usize) else { return Ok(()) };
        let n = q.e.batch * q.e.m * q.e.n;
        let args =
            UnaryFlatArgs { x: from.arg(), y: q.y.arg(), n: n as i64, wide: 1, p: q.act.1, q: 0.0, s: 0.0 };
        self.launch(&UNARY_FLAT, q.out, name, flat_grid(n, q.out, true, 4), &args)
    }

    fn blas_call(
        &self,
        blas: &dyn VendorBlas,
        p: &BlasProblem,
        q: &Product,
        beta: f64,
        d: MatrixOperand,
    ) -> Result<()> {
        self.check_poison()?;
        let bytes = blas.workspace(p);
        let workspace = (bytes > 0).then(|| self.scratch(DType::U8, bytes)).transpose()?;
        let workspace = workspace.as_ref().and_then(|w| Some((w.view().block().raw()?, 0, bytes)));
        let c = q.c.filter(|_| beta != 0.0).unwrap_or(d);
        let bias = q.bias.filter(|_| p.bias).map(|b| b.mem);
        let device = &self.inner.device;
        self.wrote([d.mem.0]);
        let matrices = [q.a.mem, q.b.mem, c.mem, d.mem];
        let (alpha, problem) = (q.alpha, *p);
        if let Some(recorded) =
            self.record_blas(QueuedBlas { problem, alpha, beta, matrices, bias, workspace })
        {
            return recorded;
        }
        device.counts.launches.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the operands were checked to lie within their buffers under these strides, and Y apart from A and B; the workspace has the
        // size that the library asked for; the stream is the driver's.
        let gemm = || unsafe {
            blas.gemm(self.inner.stream, p, q.alpha, beta, q.a.mem, q.b.mem, c.mem, d.mem, bias, workspace)
        };
        let done = self.timed(blas.name(), gemm);
        done.map_err(|e| self.refused(e))?;
        if device.sync_each {
            // SAFETY: the stream is the driver's and lives as long as the pool.
            unsafe { device.driver.synchronize(self.inner.stream) }.map_err(|e| self.poison(e))?;
        }
        Ok(())
    }

    /// What is known of the library's results for these types, found out by a few products on first use; or why it is not used.
    fn blas_trust(&self, blas: &dyn VendorBlas, dtype: DType, out: DType) -> Trusted {
        self.blas_trust_in(Check::All, blas, dtype, out)
    }

    fn blas_trust_in(&self, check: Check, blas: &dyn VendorBlas, dtype: DType, out: DType) -> Trusted {
        let (state, why) = self.inner.device.blas.of(check, dtype, out);
        let mut known = state.load(Ordering::Acquire);
        if known == 0 {
            let _run = self.suspend();
            let found = match check {
                Check::All => self.vet(blas, dtype, out),
                Check::Workspace => self.vet_workspace(blas, dtype, out),
            };
            if let Err(e) = &found {
                why.get_or_init(|| format!("the check of its {dtype} products failed: {e}"));
            }
            known = found.unwrap_or(0) | CHECKED;
            if known & PLAIN == 0 {
                let why = why.get_or_init(|| "its results differed from the portable kernel's".into());
                log::warn!("{} is not used for {dtype} products into {out}: {why}", blas.name());
            }
            state.store(known, Ordering::Release);
        }
        match known & PLAIN {
            0 => Err(why.get().cloned().unwrap_or_default().into()),
            _ => Ok(known),
        }
    }

    /// What holds of the library's results for a small and a larger product, which it gives to different kernels, and for a batch, which may have others
    /// again. What a library compiles for them is compiled here, so that no recorded call does.
    fn vet(&self, blas: &dyn VendorBlas, dtype: DType, out: DType) -> Result<u8> {
        let at = |batch, m, n, k| self.vet_at(Extents { batch, m, n, k }, blas, dtype, out);
        let single = at(1, 48, 40, 64)? & at(1, 512, 384, 256)?;
        Ok(if at(3, 48, 40, 64)? & PLAIN != 0 { single } else { 0 })
    }

    /// The same for the smallest product of some that needs a workspace.
    fn vet_workspace(&self, blas: &dyn VendorBlas, dtype: DType, out: DType) -> Result<u8> {
        let sizes = (2..=32).map(|n| Extents { batch: 1, m: 128 * n, n: 128 * n - 8, k: 128 * n + 8 });
        let mut needing = sizes.filter(|&e| blas.workspace(&packed_problem(e, dtype, out)) > 0);
        needing.next().map_or(Ok(PLAIN), |e| self.vet_at(e, blas, dtype, out))
    }

    /// Compares products of the library, one with a NaN among them, with those of the portable kernel.
    fn vet_at(&self, e: Extents, blas: &dyn VendorBlas, dtype: DType, out: DType) -> Result<u8> {
        let mut word = 1u32;
        let mut random = |n: usize, nan: bool| {
            let mut v: Vec<f64> = Vec::with_capacity(n);
            for _ in 0..n {
                word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                v.push(f64::from(word >> 8) / f64::from(1 << 23) - 1.0);
            }
            if nan {
                v[0] = f64::NAN;
            }
            with_dtype!(dtype, T => self.upload(&v.iter().map(|&x| T::from_f64(x)).collect::<Vec<_>>()))
        };
        let [of_a, of_b, of_y] = [e.m * e.k, e.k * e.n, e.m * e.n].map(|n| e.batch * n);
        let (a, b, bias) = (random(of_a, true)?, random(of_b, false)?, random(e.n, false)?);
        // What lies in the result's memory is not read.
        let y = with_dtype!(out, T => self.upload(&vec![T::from_f64(f64::NAN); of_y]))?;
        let term = |v: &crate::Buffer, steps| MatrixOperand { steps, ..MatrixOperand::packed(&v.view(), e) };
        let mut q = Product {
            e,
            dtype,
            out,
            a: term(&a, [e.k, 1, e.m * e.k]),
            b: term(&b, [e.n, 1, e.k * e.n]),
            c: None,
            bias: None,
            scale: None,
            residual: None,
            y: term(&y, [e.n, 1, e.m * e.n]),
            z: None,
            alpha: 1.0,
            beta: 0.0,
            act: (0, 0.0),
            precision: Precision::Ieee,
        };
        let read = || -> Result<Vec<f64>> {
            with_dtype!(out, T => Ok(self.download::<T>(y.view())?.into_iter().map(HostElement::to_f64).collect()))
        };
        let tolerance = match out {
            DType::F64 => 1e-13 * (e.k as f64 / 256.0).max(1.0),
            DType::F32 => 1e-5 * (e.k as f64 / 256.0).max(1.0),
            DType::F16 => 2e-3,
            _ => 1.6e-2,
        };
        let mut trust = 0;
        for (bit, act) in [(PLAIN, 0), (BIAS, 0), (RELU, 1), (GELU, 4)] {
            q.bias = (bit != PLAIN).then(|| term(&bias, [0, 1, 0]));
            q.act.0 = act;
            let plan = match self.blas_form(blas, &q, u8::MAX) {
                Ok(plan) if plan.target == Target::Y => plan,
                _ if bit == PLAIN => break,
                _ => continue,
            };
            self.blas_product(&q, &plan)?;
            let got = read()?;
            self.portable_product(&q)?;
            let want = read()?;
            let close =
                |g: f64, w: f64| (g.is_nan() && w.is_nan()) || (g - w).abs() <= tolerance * (1.0 + w.abs());
            if got.iter().zip(&want).all(|(&g, &w)| close(g, w)) {
                trust |= bit;
            } else if bit == PLAIN {
                break;
            }
        }
        Ok(trust)
    }
}
