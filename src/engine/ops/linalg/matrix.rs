//! Batches of matrices in device memory, given by strides, and the launches that move and multiply them.

use crate::buffer::{Buffer, View};
use crate::driver::{DimsArg, Ptr, RawMem};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, long};
use crate::engine::ops::gemm::product::{MatrixOperand, Product};
use crate::error::Result;
use crate::ops::gemm::{Extents, Gemm};
use crate::ops::linalg::Matrices;
use crate::spec::kernels::linalg::*;

/// Side of the tiles that the kernels hold in local memory (`GK_NB`), and columns of a panel.
pub(super) const TILE: usize = 32;

/// A batch of matrices, in elements. Strides are negative where rows or columns are counted from the end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mat {
    mem: (RawMem, u64),
    at: i64,
    rs: i64,
    cs: i64,
    bs: i64,
}

impl Mat {
    /// Contiguous matrices of this many rows and columns.
    pub(super) fn by_rows(v: &View<'_>, rows: usize, cols: usize) -> Self {
        // Operands were checked to be this device's, so there is memory.
        let mem = (v.block().raw().unwrap_or(RawMem(0)), (v.layout().offset() * v.dtype().size()) as u64);
        Mat { mem, at: 0, rs: long(cols), cs: 1, bs: long(rows * cols) }
    }

    /// Contiguous matrices that lie column after column.
    pub(super) fn by_columns(v: &View<'_>, rows: usize, cols: usize) -> Self {
        Mat { rs: 1, cs: long(rows), ..Mat::by_rows(v, rows, cols) }
    }

    /// A batch whose matrices are so many elements apart.
    pub(super) fn every(self, elements: usize) -> Self {
        Mat { bs: long(elements), ..self }
    }

    /// The transposed matrices.
    pub(super) fn t(self) -> Self {
        Mat { rs: self.cs, cs: self.rs, ..self }
    }

    /// The elements from a row and a column on.
    pub(super) fn at(self, row: usize, col: usize) -> Self {
        Mat { at: self.at + long(row) * self.rs + long(col) * self.cs, ..self }
    }

    /// Rows counted from the last of so many.
    pub(super) fn rows_backwards(self, rows: usize) -> Self {
        let last = self.at(rows.saturating_sub(1), 0);
        Mat { rs: -last.rs, ..last }
    }

    /// Rows and columns counted from the last.
    pub(super) fn backwards(self, rows: usize, cols: usize) -> Self {
        self.rows_backwards(rows).t().rows_backwards(cols).t()
    }

    /// The same elements counted upwards: a product of matrices that are all turned so is the same product.
    fn upwards(self, rows: usize, cols: usize) -> Self {
        let m = if self.rs < 0 { self.rows_backwards(rows) } else { self };
        if m.cs < 0 { m.t().rows_backwards(cols).t() } else { m }
    }

    /// Whether neighbours along a row are neighbours in memory.
    pub(super) fn is_by_rows(self) -> bool {
        self.cs == 1
    }

    /// `GK_DIMS` of `gk_matrix_of`.
    pub(super) fn dims(self) -> DimsArg {
        DimsArg([self.rs, self.cs, self.bs, self.at, 0, 0, 0, 0])
    }

    pub(super) fn arg(self) -> Ptr {
        Ptr(Some(self.mem))
    }

    /// As an operand of a product; its strides are not negative.
    pub(super) fn operand(self, dtype: DType) -> MatrixOperand {
        let byte = self.mem.1 + self.at as u64 * dtype.size() as u64;
        let steps = [self.rs, self.cs, self.bs].map(|s| s as usize);
        MatrixOperand { mem: (self.mem.0, byte), aligned: byte.is_multiple_of(16), steps }
    }
}

/// What a launch of `triangle` makes of its matrices.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) keep: Keep,
    pub(super) diagonal: f64,
    pub(super) scale: f64,
    pub(super) symmetric: bool,
    pub(super) accumulate: bool,
    /// Matrices that become NaN.
    pub(super) info: Option<View<'a>>,
    /// Factors of the matrices, in place of `scale`.
    pub(super) power: Option<&'a Buffer>,
}

/// Elements of a matrix that count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
    Lower,
    Upper,
    All,
}

impl Keep {
    pub(super) fn triangle(upper: bool) -> Self {
        if upper { Keep::Upper } else { Keep::Lower }
    }

    /// The number under which the kernels know it.
    pub(super) fn number(self) -> i32 {
        match self {
            Keep::Lower => 0,
            Keep::Upper => 1,
            Keep::All => 2,
        }
    }
}

impl Part<'_> {
    pub(super) fn new(keep: Keep) -> Self {
        Part { keep, diagonal: 1.0, scale: 1.0, symmetric: false, accumulate: false, info: None, power: None }
    }
}

impl Engine {
    /// y = alpha a b + beta y for `m` x `k` times `k` x `n` matrices, by the kernels of this crate: the shapes of a factorisation are many, and
    /// each runs a few times.
    pub(super) fn matrix_product(
        &self,
        dtype: DType,
        batch: usize,
        [m, n, k]: [usize; 3],
        (alpha, beta): (f64, f64),
        [a, b, y]: [Mat; 3],
    ) -> Result<()> {
        if batch == 0 || m == 0 || n == 0 || k == 0 {
            return Ok(());
        }
        let e = Extents { batch, m, n, k };
        let (a, b, y) = (a.upwards(m, k), b.upwards(k, n), y.upwards(m, n));
        let [a, b, y] = [a, b, y].map(|t| t.operand(dtype));
        let p = Gemm::new().scaled(alpha, beta);
        self.portable_product(&Product::plain(&p, e, dtype, a, b, (y, dtype), beta))
    }

    /// Contiguous y = a part of x (`None`: of the identity).
    pub(super) fn triangle(
        &self,
        dtype: DType,
        m: Matrices,
        x: Option<Mat>,
        y: &View<'_>,
        p: Part<'_>,
    ) -> Result<()> {
        let total = m.batch * m.rows * m.cols;
        let args = TriangleArgs {
            x: x.map_or(Ptr::NULL, Mat::arg),
            info: self.arg_opt(p.info.as_ref()),
            power: self.arg_opt(p.power.map(Buffer::view).as_ref()),
            y: self.arg_in(y),
            sx: x.map_or(DimsArg([0; 8]), Mat::dims),
            total: long(total),
            rows: long(m.rows),
            cols: long(m.cols),
            keep: p.keep.number(),
            diagonal: p.diagonal,
            scale: p.scale,
            symmetric: i32::from(p.symmetric),
            accumulate: i32::from(p.accumulate),
        };
        self.launch(&TRIANGLE, dtype, "", Grid::Stride(total), &args)
    }

    /// y = x, divided by the matrices' powers of 2 where they are given.
    pub(super) fn matrix_copy(
        &self,
        dtype: DType,
        m: Matrices,
        x: Mat,
        y: Mat,
        scale: Option<&Buffer>,
    ) -> Result<()> {
        let work = m.batch * m.rows.div_ceil(TILE) * m.cols.div_ceil(TILE);
        let args = MatrixCopyArgs {
            x: x.arg(),
            scale: self.arg_opt(scale.map(Buffer::view).as_ref()),
            y: y.arg(),
            sx: x.dims(),
            sy: y.dims(),
            rows: long(m.rows),
            cols: long(m.cols),
            work: long(work),
        };
        self.launch(&MATRIX_COPY, dtype, "", Grid::Blocks([work, 1, 1]), &args)
    }

    /// The power of 2 of each matrix of a contiguous operand and its norm after division by it: `[batch, 2]`.
    pub(super) fn matrix_scale(&self, m: Matrices, x: &View<'_>, keep: Keep) -> Result<Buffer> {
        let scale = self.scratch(x.dtype(), 2 * m.batch)?;
        let args = MatrixScaleArgs {
            x: self.arg_in(x),
            scale: self.arg_in(&scale.view()),
            batch: long(m.batch),
            rows: long(m.rows),
            cols: long(m.cols),
            keep: keep.number(),
        };
        self.launch(&MATRIX_SCALE, x.dtype(), "", Grid::Blocks([m.batch, 1, 1]), &args)?;
        Ok(scale)
    }
}
