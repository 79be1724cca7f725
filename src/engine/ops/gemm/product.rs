//! A product and its operands in device memory, as kernels take them.

use super::plan::{Form, GemmProblem, Library};
use crate::buffer::View;
use crate::driver::{DimsArg, Ptr, RawMem, TensorMap};
use crate::dtype::DType;
use crate::engine::blas::BlasAnswer;
use crate::engine::launch::{aligned16, dims};
use crate::error::Result;
use crate::ops::gemm::*;
use crate::spec::gemm::OUTPUTS;

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
    pub(super) fn new(v: &View<'_>, steps: [usize; 3]) -> Self {
        let at = (v.layout().offset() * v.dtype().size()) as u64;
        // Operands were checked to be this device's, so there is memory.
        MatrixOperand { mem: (v.block().raw().unwrap_or(RawMem(0)), at), aligned: aligned16(v), steps }
    }

    /// A vector along rows or columns.
    pub(super) fn vector(v: &View<'_>, axis: GemmAxis) -> Self {
        let [r, c] = vector_steps(v, axis);
        MatrixOperand::new(v, [r, c, 0])
    }

    /// Contiguous matrices.
    pub(crate) fn packed(v: &View<'_>, e: Extents) -> Self {
        MatrixOperand::new(v, [e.n, 1, e.m * e.n])
    }

    pub(super) fn transposed(self) -> Self {
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

    pub(super) fn dims(self) -> DimsArg {
        dims(self.steps)
    }

    /// Dims parameter of A (rows of `rows`) or, transposed, of B, with the direction and width of its loads.
    pub(super) fn side(self, rows: usize, k: usize, dtype: DType) -> DimsArg {
        let ([r, s, b], w) = (self.steps, 16 / dtype.size());
        let along = (s == 1 && k > 1) || (r != 1 && s <= r);
        let (inner, outer, lines) = if along { (s, r, rows) } else { (r, s, k) };
        let wide =
            self.aligned && inner == 1 && (lines == 1 || outer.is_multiple_of(w)) && b.is_multiple_of(w);
        dims([r, s, b, along as usize, wide as usize])
    }

    /// The map of `batch` matrices of 16-bit numbers whose `outer` rows (or columns, `by_columns`) have `inner` numbers each.
    pub(super) fn map(self, inner: usize, outer: usize, batch: usize, by_columns: bool) -> TensorMap {
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
    pub(super) fn wide_rows(self, m: usize) -> bool {
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
    pub(crate) precision: Precision,
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
            precision: p.precision,
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

    /// The same with results in rows: kernels for matrix cores store 16-bit results in no other order, and the gradient of a weight that is stored
    /// transposed comes in columns.
    pub(super) fn by_rows(&self) -> Self {
        let [r, c, _] = self.y.steps;
        let columns = r == 1 && c != 1 && matches!(self.out, DType::F16 | DType::Bf16);
        if columns { self.swapped() } else { *self }
    }

    /// `count` batches from number `first` on.
    pub(super) fn batches(&self, first: usize, count: usize) -> Self {
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

    /// What decides how it runs, with what the vendor's library, which is a variant of this number, says to the product of parts and to the whole one.
    pub(super) fn problem<'a>(
        &self,
        variant: usize,
        [parts, vendor]: [&'a BlasAnswer; 2],
    ) -> GemmProblem<'a> {
        let refusal = |a: &'a BlasAnswer| a.as_ref().map(|_| ()).map_err(|why| why.as_ref());
        let e = self.e;
        let results = [self.c, self.residual, Some(self.y), self.z].into_iter().flatten();
        let vectors = [self.bias, self.scale].into_iter().flatten();
        let rows = e.n.is_multiple_of(4)
            && results.into_iter().all(|t| t.wide_rows(e.m))
            && vectors.into_iter().all(MatrixOperand::along_rows);
        let (tf32, layout) = (self.precision == Precision::Tf32, self.layout());
        let vendor = Library { variant, answer: refusal(vendor) };
        let long_along_k = if e.m > e.n { self.a.steps[1] == 1 } else { self.b.steps[0] == 1 };
        let (dtype, parts, plain) = (self.dtype, refusal(parts), self.plain_product());
        GemmProblem { e, dtype, tf32, parts, vendor, layout, plain, rows, long_along_k }
    }

    /// Whether it is no more than products and biases of columns, in the type of the operands and in rows of whole items of 16 bytes; or why not.
    fn plain_product(&self) -> Result<(), &'static str> {
        let (e, y) = (self.e, self.y);
        let more = [self.c, self.residual, self.scale, self.z].into_iter().any(|t| t.is_some());
        if more || self.act.0 != 0 {
            return Err("more than products and biases is wanted of it");
        }
        if self.out != self.dtype {
            return Err("results are not of the type of the operands");
        }
        let items = |n: usize| (n * self.dtype.size()).is_multiple_of(16);
        match y.aligned && y.steps[1] == 1 && [e.n, y.steps[0], y.steps[2]].into_iter().all(items) {
            true => Ok(()),
            false => Err("results do not lie in rows of whole items of 16 bytes at multiples of 16 bytes"),
        }
    }

    /// How the operands lie in memory where neighbours in one direction of each are neighbours there, and whether each consists of whole items of 16 bytes in
    /// this direction.
    fn layout(&self) -> Result<(Form, [bool; 2]), &'static str> {
        let (e, item) = (self.e, 16 / self.dtype.size());
        let (a, b) = (self.a, self.b.transposed());
        // Rows of A, and columns of B, along k; else across.
        let [a_along, b_along] = [a.steps[1] == 1, b.steps[1] == 1];
        let form = match (a_along, b_along) {
            (true, true) => Form::Nt,
            (true, false) if b.steps[0] == 1 => Form::Nn,
            (false, false) if a.steps[0] == 1 && b.steps[0] == 1 => Form::Tn,
            (false, true) if a.steps[0] == 1 => return Err("both operands are transposed"),
            _ => return Err("no neighbours of an operand are neighbours in memory"),
        };
        let items = |t: MatrixOperand, along: bool, rows: usize| {
            let [inner, outer] = if along { [e.k, t.steps[0]] } else { [rows, t.steps[1]] };
            let batch = if e.batch > 1 { t.steps[2] } else { 0 };
            t.aligned && [inner, outer, batch].into_iter().all(|n| n.is_multiple_of(item))
        };
        Ok((form, [items(a, a_along, e.m), items(b, b_along, e.n)]))
    }

    /// Type of the accumulators.
    pub(crate) fn real(&self) -> DType {
        self.dtype.accumulator()
    }

    /// Value of `GK_OP`.
    pub(super) fn op(&self) -> &'static str {
        OUTPUTS[(self.out != self.dtype) as usize]
    }

    pub(super) fn opt(t: Option<MatrixOperand>) -> Ptr {
        t.map_or(Ptr::NULL, MatrixOperand::arg)
    }

    /// Dims parameters of C, residual, vectors, Y and Z.
    pub(super) fn outer_dims(&self) -> [DimsArg; 5] {
        let d = |t: Option<MatrixOperand>| dims(t.map_or([0; 3], |t| t.steps));
        let v = |t: Option<MatrixOperand>| t.map_or([0; 2], |t| [t.steps[0], t.steps[1]]);
        let ([b0, b1], [s0, s1]) = (v(self.bias), v(self.scale));
        [d(self.c), d(self.residual), dims([b0, b1, s0, s1]), self.y.dims(), d(self.z)]
    }

    pub(super) fn size(&self, splits: usize, per: usize) -> DimsArg {
        let e = self.e;
        let wide = self.y.wide_rows(e.m) as usize
            + 2 * self.z.is_some_and(|z| z.wide_rows(e.m)) as usize
            + 4 * e.n.is_multiple_of(4) as usize;
        dims([e.m, e.n, e.k, e.batch, splits, per, wide])
    }
}
