//! Products whose extents are no whole items of 16 bytes: a vendor's library has slow kernels alone for them, so that large ones are made of copies
//! with zeros at the ends of rows and columns.

use super::{BlasPlan, Target, major, row_major};
use crate::buffer::Buffer;
use crate::driver::{Ptr, RawMem, VendorBlas};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::Grid;
use crate::engine::ops::gemm::product::{MatrixOperand, Product};
use crate::error::Result;
use crate::ops::gemm::{Extents, Precision};
use crate::spec::kernels::gemm::{GEMM_REPITCH, GemmRepitchArgs};

/// Multiplications from which on copies are worth their time.
const LARGE: usize = 1 << 30;
/// The smallest extent of such a product: a copied element must be used often.
const WIDE: usize = 256;

/// How a matrix lies in memory: rows, columns, elements from row to row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stored {
    rows: usize,
    cols: usize,
    ld: usize,
}

impl Stored {
    /// Of an operand of `rows` x `cols`, which may lie transposed.
    fn of(t: MatrixOperand, rows: usize, cols: usize) -> Option<(Stored, bool)> {
        let (transposed, ld) = major(t, rows, cols)?;
        let (rows, cols) = if transposed { (cols, rows) } else { (rows, cols) };
        Some((Stored { rows, cols, ld }, transposed))
    }
}

/// Which matrices of a product are copied, and from what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Padding {
    a: Option<Stored>,
    b: Option<Stored>,
    y: Option<Stored>,
}

/// An operand of `rows` x `cols`, packed, and transposed if it was.
fn packed([rows, cols]: [usize; 2], transposed: bool) -> MatrixOperand {
    let steps = if transposed { [1, rows, 0] } else { [cols, 1, 0] };
    MatrixOperand { mem: (RawMem(0), 0), aligned: true, steps }
}

/// The product with whole items, and what is copied for it; `None` where that is not needed, not possible, or not worth its time. The result's rows
/// are dense.
pub(super) fn padded(q: &Product) -> Option<(Padding, Product)> {
    let Extents { batch, m, n, k } = q.e;
    let per_item = match (q.dtype, q.precision == Precision::Tf32) {
        (DType::F16 | DType::Bf16, _) => 8,
        (DType::F32, true) => 4,
        _ => return None,
    };
    let extras = [q.bias, q.scale, q.residual, q.z];
    let plain = batch == 1 && q.dtype == q.out && extras.iter().all(Option::is_none);
    let odd = [m, n, k].iter().any(|v| !v.is_multiple_of(per_item));
    let work = m.saturating_mul(n).saturating_mul(k);
    if !plain || !odd || work < LARGE || m.min(n).min(k) < WIDE {
        return None;
    }
    let [pm, pn, pk] = [m, n, k].map(|v| v.next_multiple_of(per_item));
    let grown = |t: MatrixOperand, [rows, cols]: [usize; 2], to: [usize; 2]| -> Option<_> {
        let (stored, transposed) = Stored::of(t, rows, cols)?;
        Some(if [rows, cols] == to { (None, t) } else { (Some(stored), packed(to, transposed)) })
    };
    let (a, of_a) = grown(q.a, [m, k], [pm, pk])?;
    let (b, of_b) = grown(q.b, [k, n], [pk, pn])?;
    let ld = row_major(q.y, q.e)?;
    let (y, of_y) = match [m, n] == [pm, pn] {
        true => (None, q.y),
        // What loses its zeros is written in whole items.
        false if ld != n || !q.y.aligned => return None,
        false => (Some(Stored { rows: m, cols: n, ld }), packed([pm, pn], false)),
    };
    // C is read where Y is written, or not at all.
    if q.c.is_some_and(|c| c.mem != q.y.mem || c.steps != q.y.steps) {
        return None;
    }
    let (e, c) = (Extents { batch, m: pm, n: pn, k: pk }, q.c.map(|_| of_y));
    Some((Padding { a, b, y }, Product { e, a: of_a, b: of_b, c, y: of_y, ..*q }))
}

impl Engine {
    /// A plan with copies, where the library then takes the product as a whole.
    pub(super) fn blas_padded(&self, blas: &dyn VendorBlas, q: &Product, trust: u8) -> Option<BlasPlan> {
        let q = if row_major(q.y, q.e).is_some() { *q } else { q.swapped() };
        let (padding, with) = padded(&q)?;
        let plan = self.blas_form(blas, &with, trust).ok().filter(|plan| plan.target == Target::Y)?;
        Some(BlasPlan { padding: Some(padding), unpadded: q, ..plan })
    }

    /// Computes a product of copies.
    pub(super) fn blas_padded_product(
        &self,
        blas: &dyn VendorBlas,
        plan: &BlasPlan,
        padding: &Padding,
    ) -> Result<()> {
        let (from, mut q) = (&plan.unpadded, plan.q);
        let dtype = q.dtype;
        let Extents { m, n, k, .. } = q.e;
        let mut room: Vec<Buffer> = Vec::new();
        let mut grow =
            |t: &mut MatrixOperand, stored: Option<Stored>, source: Option<MatrixOperand>, size| {
                let Some(stored) = stored else { return Ok(()) };
                let copy = self.scratch(dtype, size)?;
                let place = MatrixOperand::packed(&copy.view(), q.e);
                t.mem = place.mem;
                room.push(copy);
                let [rows, cols] = if t.steps[1] == 1 {
                    [size / t.steps[0], t.steps[0]]
                } else {
                    [size / t.steps[1], t.steps[1]]
                };
                match source {
                    Some(source) => self.repitch(dtype, source.arg(), stored, t.arg(), [rows, cols]),
                    None => Ok(()),
                }
            };
        grow(&mut q.a, padding.a, Some(from.a), m * k)?;
        grow(&mut q.b, padding.b, Some(from.b), k * n)?;
        grow(&mut q.y, padding.y, from.c, m * n)?;
        q.c = q.c.map(|_| q.y);
        self.blas_call(blas, &plan.problem, &q, q.beta, q.y)?;
        match padding.y {
            Some(y) => {
                let wide = Stored { ld: n, ..y };
                self.repitch(dtype, q.y.arg(), wide, from.y.arg(), [y.rows, y.cols])
            }
            None => Ok(()),
        }
    }

    /// Copies a matrix into `rows` rows of `pitch` elements side by side; zeros where it has none.
    fn repitch(&self, dtype: DType, x: Ptr, of: Stored, y: Ptr, [rows, pitch]: [usize; 2]) -> Result<()> {
        let n = rows * pitch;
        let args = GemmRepitchArgs {
            x,
            y,
            n: n as i64,
            rows: of.rows as i64,
            cols: of.cols as i64,
            ldx: of.ld as i64,
            pitch: pitch as i64,
        };
        let items = n.div_ceil(16 / dtype.size());
        self.launch(&GEMM_REPITCH, dtype, "", Grid::Stride(items), &args)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::gemm::Gemm;
    #[cfg(feature = "driver-opencl")]
    use crate::{backend::BackendExt, driver::opencl::OpenClDriver, test_devices::present};

    fn operand(steps: [usize; 3]) -> MatrixOperand {
        MatrixOperand { mem: (RawMem(1), 0), aligned: true, steps }
    }

    /// Y [m, n] = A [m, k] B [n, k]^T.
    fn linear(dtype: DType, [m, n, k]: [usize; 3], beta: f64) -> Product {
        let e = Extents { batch: 1, m, n, k };
        let (a, b, y) = (operand([k, 1, 0]), operand([1, k, 0]), operand([n, 1, 0]));
        Product::plain(&Gemm::new(), e, dtype, a, b, (y, dtype), beta)
    }

    #[test]
    fn odd_extents_of_large_products_are_padded() {
        let q = linear(DType::Bf16, [8192, 50_257, 768], 0.0);
        let (padding, with) = padded(&q).unwrap();
        let weight = Some(Stored { rows: 50_257, cols: 768, ld: 768 });
        let result = Some(Stored { rows: 8192, cols: 50_257, ld: 50_257 });
        assert_eq!(padding, Padding { a: None, b: weight, y: result });
        assert_eq!((with.e.m, with.e.n, with.e.k), (8192, 50_264, 768));
        assert_eq!((with.a.steps, with.b.steps, with.y.steps), ([768, 1, 0], [1, 768, 0], [50_264, 1, 0]));
        // Sums over an odd extent: zeros in both operands.
        let q = linear(DType::Bf16, [8192, 768, 50_257], 1.0);
        let (padding, with) = padded(&q).unwrap();
        assert_eq!((padding.y, with.e.k, with.c.map(|c| c.steps)), (None, 50_264, Some([768, 1, 0])));
        assert_eq!(padding.a.map(|s| s.cols), Some(50_257));
        assert_eq!(padding.b.map(|s| (s.rows, s.cols)), Some((768, 50_257)));
    }

    #[test]
    fn other_products_are_left_as_they_are() {
        let odd = [8192, 50_257, 768];
        assert!(padded(&linear(DType::F32, odd, 0.0)).is_none());
        assert!(padded(&Product { precision: Precision::Tf32, ..linear(DType::F32, odd, 0.0) }).is_some());
        assert!(padded(&linear(DType::F16, [8192, 50_264, 768], 0.0)).is_none());
        assert!(padded(&linear(DType::F16, [64, 50_257, 768], 0.0)).is_none());
        assert!(padded(&linear(DType::F16, [257, 513, 511], 0.0)).is_none());
        let q = linear(DType::F16, odd, 0.0);
        assert!(padded(&Product { bias: Some(operand([0, 1, 0])), ..q }).is_none());
        assert!(padded(&Product { y: MatrixOperand { aligned: false, ..q.y }, ..q }).is_none());
        assert!(padded(&Product { c: Some(operand([1, 1, 0])), ..q }).is_none());
    }

    #[cfg(feature = "driver-opencl")]
    #[test]
    fn copies_have_zeros_around_them() {
        let Some(d) = present("opencl", OpenClDriver::open(0)) else { return };
        let gpu = Engine::new(std::sync::Arc::new(d)).unwrap();
        let values: Vec<f32> = (1..=15).map(|v| v as f32).collect();
        let x = gpu.upload(&values).unwrap();
        let y = gpu.scratch(DType::F32, 4 * 8).unwrap();
        let back = gpu.scratch(DType::F32, 15).unwrap();
        let at = |b: &Buffer| MatrixOperand::packed(&b.view(), Extents { batch: 1, m: 1, n: 1, k: 1 }).arg();
        let of = Stored { rows: 3, cols: 5, ld: 5 };
        gpu.repitch(DType::F32, at(&x), of, at(&y), [4, 8]).unwrap();
        let got = gpu.download::<f32>(y.view()).unwrap();
        for (i, v) in got.iter().enumerate() {
            let (r, c) = (i / 8, i % 8);
            assert_eq!(*v, if r < 3 && c < 5 { values[5 * r + c] } else { 0.0 }, "{r}, {c}");
        }
        gpu.repitch(DType::F32, at(&y), Stored { ld: 8, ..of }, at(&back), [3, 5]).unwrap();
        assert_eq!(gpu.download::<f32>(back.view()).unwrap(), values);
    }
}
