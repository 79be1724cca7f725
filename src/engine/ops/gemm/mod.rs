//! Matrix products: one description of a product, and the kernels or the vendor library that serve it.

mod plan;
mod ragged;
#[cfg(all(test, feature = "driver-opencl"))]
mod tests;

use self::plan::{Form, GemmPlan, GemmProblem, SKINNY, Tile, tiling};
use crate::buffer::{GradMut, View, ViewMut};
use crate::driver::{DimsArg, Ptr, RawMem, TensorMap};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::blas::BlasAnswer;
use crate::engine::launch::{Grid, LANES, aligned16, dims, pow2};
use crate::error::Result;
use crate::ops::core::Choice;
use crate::ops::gemm::*;
use crate::ops::reduce::ReduceOps;
use crate::spec::Kernel;
use crate::spec::gemm::OUTPUTS;
use crate::spec::kernels::gemm::*;

/// An operand in device memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MatrixOperand {
    pub(crate) mem: (RawMem, u64),
    /// Whether the first element lies at a multiple of 16 bytes.
    pub(crate) aligned: bool,
    /// Strides by row, column and batch.
    pub(crate) steps: [usize; 3],
}

impl MatrixOperand {
    fn new(v: &View<'_>, steps: [usize; 3]) -> Self {
        let at = (v.layout().offset() * v.dtype().size()) as u64;
        // Operands were checked to be this device's, so there is memory.
        MatrixOperand { mem: (v.block().raw().unwrap_or(RawMem(0)), at), aligned: aligned16(v), steps }
    }

    /// A vector along rows or columns.
    fn vector(v: &View<'_>, axis: GemmAxis) -> Self {
        let [r, c] = vector_steps(v, axis);
        MatrixOperand::new(v, [r, c, 0])
    }

    /// Contiguous matrices.
    pub(crate) fn packed(v: &View<'_>, e: Extents) -> Self {
        MatrixOperand::new(v, [e.n, 1, e.m * e.n])
    }

    fn transposed(self) -> Self {
        let [r, c, b] = self.steps;
        MatrixOperand { steps: [c, r, b], ..self }
    }

    /// The part from batch number `b` on.
    fn at_batch(self, b: usize, dtype: DType) -> Self {
        let bytes = (b * self.steps[2] * dtype.size()) as u64;
        let aligned = self.aligned && bytes.is_multiple_of(16);
        MatrixOperand { mem: (self.mem.0, self.mem.1 + bytes), aligned, ..self }
    }

    pub(crate) fn arg(self) -> Ptr {
        Ptr(Some(self.mem))
    }

    fn dims(self) -> DimsArg {
        dims(self.steps)
    }

    /// Dims parameter of A (rows of `rows`) or, transposed, of B, with the direction and width of its loads.
    fn side(self, rows: usize, k: usize, dtype: DType) -> DimsArg {
        let ([r, s, b], w) = (self.steps, 16 / dtype.size());
        let along = (s == 1 && k > 1) || (r != 1 && s <= r);
        let (inner, outer, lines) = if along { (s, r, rows) } else { (r, s, k) };
        let wide =
            self.aligned && inner == 1 && (lines == 1 || outer.is_multiple_of(w)) && b.is_multiple_of(w);
        dims([r, s, b, along as usize, wide as usize])
    }

    /// The map of `batch` matrices of 16-bit numbers whose `outer` rows (or columns, `by_columns`) have `inner` numbers each.
    fn map(self, inner: usize, outer: usize, batch: usize, by_columns: bool) -> TensorMap {
        let [r, c, b] = self.steps;
        let step = if by_columns { c } else { r };
        // A step along an axis of one matrix is not used; it must be a multiple of 16 bytes nevertheless.
        let batch_step = if batch > 1 { b } else { step.max(8) };
        TensorMap {
            place: self.mem,
            shape: [inner, outer, batch].map(|n| n as u64),
            strides: [step.max(8), batch_step].map(|n| 2 * n as u64),
        }
    }

    /// Whether a vector lies along rows of a result.
    fn along_rows(self) -> bool {
        self.steps[0] == 0 && self.steps[1] == 1
    }

    /// Whether runs of four columns can be stored at once.
    fn wide_rows(self, m: usize) -> bool {
        let [r, c, b] = self.steps;
        self.aligned && c == 1 && (m == 1 || r.is_multiple_of(4)) && b.is_multiple_of(4)
    }
}

/// Y = act(scale * alpha * A B + beta * C + bias + residual), all transposes folded into strides.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Product {
    pub(crate) e: Extents,
    pub(crate) dtype: DType,
    /// Type of C, residual, Y and Z.
    pub(crate) out: DType,
    pub(crate) a: MatrixOperand,
    pub(crate) b: MatrixOperand,
    pub(crate) c: Option<MatrixOperand>,
    pub(crate) bias: Option<MatrixOperand>,
    pub(crate) scale: Option<MatrixOperand>,
    pub(crate) residual: Option<MatrixOperand>,
    pub(crate) y: MatrixOperand,
    pub(crate) z: Option<MatrixOperand>,
    pub(crate) alpha: f64,
    pub(crate) beta: f64,
    /// Number and parameter of the activation.
    pub(crate) act: (i32, f64),
    pub(crate) tf32: bool,
}

impl Product {
    /// Y = alpha A B + beta Y.
    pub(crate) fn plain(
        p: &Gemm,
        e: Extents,
        dtype: DType,
        a: MatrixOperand,
        b: MatrixOperand,
        (y, out): (MatrixOperand, DType),
        beta: f64,
    ) -> Self {
        Product {
            e,
            dtype,
            out,
            a,
            b,
            c: (beta != 0.0).then_some(y),
            bias: None,
            scale: None,
            residual: None,
            y,
            z: None,
            alpha: p.alpha,
            beta,
            act: (0, 0.0),
            tf32: p.precision == Precision::Tf32,
        }
    }

    /// The same product as Yᵀ = Bᵀ Aᵀ.
    pub(crate) fn swapped(&self) -> Self {
        let t = |t: Option<MatrixOperand>| t.map(MatrixOperand::transposed);
        Product {
            e: Extents { m: self.e.n, n: self.e.m, ..self.e },
            a: self.b.transposed(),
            b: self.a.transposed(),
            c: t(self.c),
            bias: t(self.bias),
            scale: t(self.scale),
            residual: t(self.residual),
            y: self.y.transposed(),
            z: t(self.z),
            ..*self
        }
    }

    /// `count` batches from number `first` on.
    fn batches(&self, first: usize, count: usize) -> Self {
        let (of, out) = (self.dtype, self.out);
        Product {
            e: Extents { batch: count, ..self.e },
            a: self.a.at_batch(first, of),
            b: self.b.at_batch(first, of),
            c: self.c.map(|t| t.at_batch(first, out)),
            residual: self.residual.map(|t| t.at_batch(first, out)),
            y: self.y.at_batch(first, out),
            z: self.z.map(|t| t.at_batch(first, out)),
            ..*self
        }
    }

    /// What decides how it runs.
    fn problem<'a>(&self, vendor: &'a BlasAnswer) -> GemmProblem<'a> {
        let vendor = vendor.as_ref().map(|_| ()).map_err(|why| why.as_ref());
        let e = self.e;
        let results = [self.c, self.residual, Some(self.y), self.z].into_iter().flatten();
        let vectors = [self.bias, self.scale].into_iter().flatten();
        let rows = e.n.is_multiple_of(4)
            && results.into_iter().all(|t| t.wide_rows(e.m))
            && vectors.into_iter().all(MatrixOperand::along_rows);
        GemmProblem { e, dtype: self.dtype, tf32: self.tf32, vendor, form: self.form(), rows }
    }

    /// How the operands lie in memory, or why kernels for matrix cores do not take them: these copy items of 16 bytes of one row.
    fn form(&self) -> Result<Form, &'static str> {
        if !matches!(self.dtype, DType::F16 | DType::Bf16) {
            return Err("operands are neither f16 nor bf16");
        }
        let (e, [ar, ac, ab], [br, bc, bb]) = (self.e, self.a.steps, self.b.steps);
        let items = |inner: usize, step: usize, batch: usize| {
            [inner, step, if e.batch > 1 { batch } else { 0 }].into_iter().all(|n| n.is_multiple_of(8))
        };
        let (a_rows, a_columns) = (ac == 1 && items(e.k, ar, ab), ar == 1 && items(e.m, ac, ab));
        let (b_rows, b_columns) = (bc == 1 && items(e.n, br, bb), br == 1 && items(e.k, bc, bb));
        match self.a.aligned && self.b.aligned {
            true if a_rows && b_rows => Ok(Form::Nn),
            true if a_rows && b_columns => Ok(Form::Nt),
            true if a_columns && b_rows => Ok(Form::Tn),
            true if a_columns && b_columns => Err("both operands are transposed"),
            _ => Err("rows of an operand are no whole items of 16 bytes at multiples of 16 bytes"),
        }
    }

    /// Type of the accumulators.
    pub(crate) fn real(&self) -> DType {
        self.dtype.accumulator()
    }

    /// Value of `GK_OP`.
    fn op(&self) -> &'static str {
        OUTPUTS[(self.out != self.dtype) as usize]
    }

    fn opt(t: Option<MatrixOperand>) -> Ptr {
        t.map_or(Ptr::NULL, MatrixOperand::arg)
    }

    /// Dims parameters of C, residual, vectors, Y and Z.
    fn outer_dims(&self) -> [DimsArg; 5] {
        let d = |t: Option<MatrixOperand>| dims(t.map_or([0; 3], |t| t.steps));
        let v = |t: Option<MatrixOperand>| t.map_or([0; 2], |t| [t.steps[0], t.steps[1]]);
        let ([b0, b1], [s0, s1]) = (v(self.bias), v(self.scale));
        [d(self.c), d(self.residual), dims([b0, b1, s0, s1]), self.y.dims(), d(self.z)]
    }

    fn size(&self, splits: usize, per: usize) -> DimsArg {
        let e = self.e;
        let wide = self.y.wide_rows(e.m) as usize
            + 2 * self.z.is_some_and(|z| z.wide_rows(e.m)) as usize
            + 4 * e.n.is_multiple_of(4) as usize;
        dims([e.m, e.n, e.k, e.batch, splits, per, wide])
    }
}

/// A gradient to compute.
struct Gradient {
    q: Product,
    /// Summed over the batch, which the operand repeats.
    sum: bool,
    accumulate: bool,
}

/// The kernel of a tile.
fn tile_kernel(tile: Tile) -> &'static Kernel<GemmTileArgs> {
    match tile {
        Tile::Matrix { form: Form::Nn, .. } => &GEMM_MATRIX_NN,
        Tile::Matrix { form: Form::Nt, .. } => &GEMM_MATRIX_NT,
        Tile::Matrix { form: Form::Tn, .. } => &GEMM_MATRIX_TN,
        Tile::Square128 => &GEMM_TILE128,
        Tile::Square64 => &GEMM_TILE64,
        Tile::Skinny => &GEMM_SKINNY,
    }
}

impl Engine {
    /// Runs the tile kernel, and the second pass where k is split.
    fn tiles(&self, q: &Product, tile: Tile, splits: usize) -> Result<()> {
        if tile == Tile::Skinny && q.e.m > SKINNY {
            return self.tiles(&q.swapped(), tile, splits);
        }
        let e = q.e;
        // Whole steps of any tile, so that 16-byte loads stay aligned.
        let per = e.k.div_ceil(splits).next_multiple_of(32);
        let splits = e.k.div_ceil(per);
        let blocks = tile.blocks(e).saturating_mul(splits);
        if blocks > i32::MAX as usize && e.batch > 1 {
            let half = e.batch / 2;
            self.tiles(&q.batches(0, half), tile, splits)?;
            return self.tiles(&q.batches(half, e.batch - half), tile, splits);
        }
        let part = (splits > 1).then(|| self.scratch(q.real(), splits * e.batch * e.m * e.n)).transpose()?;
        let view = part.as_ref().map(|p| p.view());
        let [sc, sr, sv, sy, sz] = q.outer_dims();
        let args = GemmTileArgs {
            a: q.a.arg(),
            b: q.b.arg(),
            c: Product::opt(q.c),
            bias: Product::opt(q.bias),
            residual: Product::opt(q.residual),
            scale: Product::opt(q.scale),
            y: q.y.arg(),
            z: Product::opt(q.z),
            part: self.arg_opt(view.as_ref()),
            size: q.size(splits, per),
            sa: q.a.side(e.m, e.k, q.dtype),
            sb: q.b.transposed().side(e.n, e.k, q.dtype),
            sc,
            sr,
            sv,
            sy,
            sz,
            alpha: q.alpha,
            beta: q.beta,
            act: q.act.0,
            p: q.act.1,
        };
        let grid = match tile {
            Tile::Matrix { local, .. } => Grid::BlocksWithLocal([blocks, 1, 1], local),
            _ => Grid::Blocks([blocks, 1, 1]),
        };
        self.launch(tile_kernel(tile), q.dtype, q.op(), grid, &args)?;
        match view {
            Some(part) => self.finish(q, Some(&MatrixOperand::packed(&part, e)), splits, q.alpha),
            None => Ok(()),
        }
    }

    /// Runs the kernel of warps of different work.
    fn specialized(&self, q: &Product, form: Form, grid: Grid) -> Result<()> {
        let (e, [a_columns, b_columns]) = (q.e, [form == Form::Tn, form == Form::Nt]);
        let batches = |t: MatrixOperand| if t.steps[2] == 0 { 1 } else { e.batch };
        let (ab, bb) = (batches(q.a), batches(q.b));
        let (ai, ao) = if a_columns { (e.m, e.k) } else { (e.k, e.m) };
        let (bi, bo) = if b_columns { (e.k, e.n) } else { (e.n, e.k) };
        let places = |t: Option<MatrixOperand>| t.map_or([0; 2], |t| [t.steps[0], t.steps[2]]);
        let args = GemmSpecializedArgs {
            a: q.a.map(ai, ao, ab, a_columns),
            b: q.b.map(bi, bo, bb, b_columns),
            c: Product::opt(q.c),
            bias: Product::opt(q.bias),
            residual: Product::opt(q.residual),
            scale: Product::opt(q.scale),
            y: q.y.arg(),
            z: Product::opt(q.z),
            size: dims([e.m, e.n, e.k, e.batch, usize::from(ab > 1), usize::from(bb > 1), 0]),
            steps: dims([q.c, q.residual, Some(q.y), q.z].into_iter().flat_map(places)),
            alpha: q.alpha,
            beta: q.beta,
            p: q.act.1,
            act: q.act.0,
        };
        let kernel = match form {
            Form::Nn => &GEMM_SPECIALIZED_NN,
            Form::Nt => &GEMM_SPECIALIZED_NT,
            Form::Tn => &GEMM_SPECIALIZED_TN,
        };
        self.launch(kernel, q.dtype, q.op(), grid, &args)
    }

    /// Adds `splits` contiguous partial results and applies the epilogue.
    pub(crate) fn finish(
        &self,
        q: &Product,
        part: Option<&MatrixOperand>,
        splits: usize,
        alpha: f64,
    ) -> Result<()> {
        let e = q.e;
        let [sc, sr, sv, sy, sz] = q.outer_dims();
        // Threads that share the splits of a result.
        let lanes = pow2(splits.div_ceil(8), 32);
        let args = GemmFinishArgs {
            part: Product::opt(part.copied()),
            c: Product::opt(q.c),
            bias: Product::opt(q.bias),
            residual: Product::opt(q.residual),
            scale: Product::opt(q.scale),
            y: q.y.arg(),
            z: Product::opt(q.z),
            size: q.size(splits, lanes),
            sc,
            sr,
            sv,
            sy,
            sz,
            alpha,
            beta: q.beta,
            act: q.act.0,
            p: q.act.1,
        };
        let blocks = (e.batch * e.m * e.n.div_ceil(4)).div_ceil(LANES / lanes);
        self.launch(
            &GEMM_FINISH,
            q.dtype,
            q.op(),
            Grid::Blocks([blocks.min(self.target_blocks() * 8), 1, 1]),
            &args,
        )
    }

    /// The kernels of this crate, tile and splits by size.
    pub(crate) fn portable_product(&self, q: &Product) -> Result<()> {
        let (tile, splits) = tiling(q.e, q.dtype, self.device_caps());
        self.tiles(q, tile, splits)
    }

    /// The vendor's part in a product; it is not asked where another variant is pinned.
    fn vendor_plan(&self, op: &'static str, q: &Product) -> BlasAnswer {
        match self.may_take::<GemmProblem<'_>>(op, 0) {
            true => self.blas_plan(q),
            false => Err("another variant is pinned".into()),
        }
    }

    /// Computes a product whose operands are checked.
    pub(crate) fn product(&self, op: &'static str, q: &Product) -> Result<()> {
        let e = q.e;
        if e.batch == 0 || e.m == 0 || e.n == 0 {
            return Ok(());
        }
        if e.k == 0 || q.alpha == 0.0 {
            return self.finish(q, None, 0, 0.0);
        }
        let vendor = self.vendor_plan(op, q);
        match (self.plan(op, &q.problem(&vendor))?, vendor) {
            (GemmPlan::Tiles { tile, splits }, _) => self.tiles(q, tile, splits),
            (GemmPlan::Specialized(form, grid), _) => self.specialized(q, form, grid),
            (GemmPlan::Vendor, Ok(plan)) => self.blas_product(q, &plan),
            (GemmPlan::Vendor, Err(_)) => self.portable_product(q),
        }
    }

    /// The variant that serves a product of 1024 x 1024 x 1024 in f32.
    pub(crate) fn explain_gemm(&self, op: &'static str) -> Result<Choice> {
        let e = Extents { batch: 1, m: 1024, n: 1024, k: 1024 };
        let t = MatrixOperand { mem: (RawMem(0), 0), aligned: true, steps: [1024, 1, 0] };
        let q = Product::plain(&Gemm::new(), e, DType::F32, t, t, (t, DType::F32), 0.0);
        self.explain_problem(op, &q.problem(&self.vendor_plan(op, &q)))
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
        let e = q.e;
        if e.batch == 0 || e.m == 0 || e.n == 0 || e.k == 0 || q.alpha == 0.0 {
            return Ok(());
        }
        self.plan(op, &q.problem(&self.vendor_plan(op, q))).map(|_| ())
    }

    /// A gradient as a product, summed over the batch with `sum`.
    fn gradient(&self, op: &'static str, p: &Gemm, g: &Gradient) -> Result<()> {
        let q = g.q;
        if q.e.batch == 0 && g.sum && !g.accumulate {
            return self.finish(&Product { e: Extents { batch: 1, k: 0, ..q.e }, ..q }, None, 0, 0.0);
        }
        if g.sum { self.batch_sum(op, p, q, g.accumulate) } else { self.product(op, &q) }
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
            tf32: p.precision == Precision::Tf32,
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
        let dtype = io.a.dtype();
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
        let mut scratch = None;
        let dz = self.before_activation(p.act, io.dy, io.saved, &mut scratch)?;
        let d = MatrixOperand::new(&dz, steps(&dz, false));
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
        let both = [da, db];
        both.iter().flatten().try_for_each(|g| self.ready(op, &g.q))?;
        both.iter().flatten().try_for_each(|g| self.gradient(op, p, g))?;
        match io.dbias {
            Some(g) if p.bias_axis == GemmAxis::Row => {
                self.sum_to_shape(dz, g.out.reshape(&[e.m, 1])?.grad(g.accumulate))
            }
            Some(g) => self.sum_to_shape(dz, g),
            None => Ok(()),
        }
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
