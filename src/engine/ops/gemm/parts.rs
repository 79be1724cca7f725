//! Products in f32 by the vendor's library in TF32: operands are split into two parts each, and the sum runs over three products of parts.

use super::product::{MatrixOperand, Product};
use crate::buffer::Buffer;
use crate::driver::RawMem;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::blas::{BlasAnswer, major};
use crate::engine::launch::{Grid, long};
use crate::error::Result;
use crate::ops::gemm::{Extents, Precision};
use crate::spec::kernels::gemm::{GEMM_PARTS, GemmPartsArgs};

/// An operand and what holds its parts.
#[derive(Debug, Clone, Copy)]
struct Split {
    from: MatrixOperand,
    /// Matrices, rows and columns as they lie in memory.
    batch: usize,
    outer: usize,
    inner: usize,
    ldx: usize,
    /// Whether the sum runs along rows in memory.
    along: bool,
}

impl Split {
    /// Of A (`rows` = M) or, transposed, of B (`rows` = N).
    fn of(t: MatrixOperand, rows: usize, e: Extents) -> std::result::Result<Self, &'static str> {
        let (columns, ldx) = major(t, rows, e.k).ok_or("an operand has no dense axis")?;
        let (outer, inner) = if columns { (e.k, rows) } else { (rows, e.k) };
        let batch = if e.batch > 1 && t.steps[2] > 0 { e.batch } else { 1 };
        let step = if batch > 1 { t.steps[2] } else { 0 };
        match t.aligned && [inner, ldx, step].iter().all(|n| n.is_multiple_of(4)) {
            true => Ok(Split { from: t, batch, outer, inner, ldx, along: !columns }),
            false => Err("rows of an operand are no whole items of 16 bytes at multiples of 16 bytes"),
        }
    }

    fn elements(&self) -> usize {
        3 * self.batch * self.outer * self.inner
    }

    /// Elements from row to row and from part to part.
    fn steps(&self) -> [usize; 2] {
        match self.along {
            true => [3 * self.inner, self.inner],
            false => [self.inner, self.outer * self.inner],
        }
    }

    /// The parts as an operand at `mem`.
    fn operand(&self, mem: (RawMem, u64)) -> MatrixOperand {
        let batch = if self.batch > 1 { 3 * self.outer * self.inner } else { 0 };
        let steps = if self.along { [3 * self.inner, 1, batch] } else { [1, self.inner, batch] };
        MatrixOperand { mem, aligned: true, steps }
    }
}

/// Both operands of a product, where it may run in parts.
#[derive(Debug, Clone, Copy)]
struct Splits([Split; 2]);

impl Splits {
    fn of(q: &Product) -> std::result::Result<Self, &'static str> {
        if q.dtype != DType::F32 || q.precision != Precision::Tf32x3 {
            return Err("three products in TF32 were not asked for");
        }
        Ok(Splits([Split::of(q.a, q.e.m, q.e)?, Split::of(q.b.transposed(), q.e.n, q.e)?]))
    }

    /// The product of the parts, which lie at these places.
    fn product(&self, q: &Product, [a, b]: [(RawMem, u64); 2]) -> Product {
        let e = Extents { k: 3 * q.e.k, ..q.e };
        let [of_a, of_b] = &self.0;
        let (a, b) = (of_a.operand(a), of_b.operand(b).transposed());
        Product { e, a, b, precision: Precision::Tf32, ..*q }
    }
}

impl Engine {
    /// How the vendor's library would compute the product of the parts.
    pub(super) fn parts_plan(&self, q: &Product) -> BlasAnswer {
        let splits = Splits::of(q)?;
        if self.driver().vendor_blas().is_ok_and(|blas| !blas.tf32()) {
            return Err("the vendor's library has no TF32".into());
        }
        self.blas_plan(&splits.product(q, [(RawMem(0), 0); 2]))
    }

    /// Splits the operands and multiplies their parts.
    pub(super) fn product_of_parts(&self, q: &Product) -> Result<()> {
        let Ok(splits) = Splits::of(q) else { return self.portable_product(q) };
        let [a, b] = [self.split(&splits.0[0], false)?, self.split(&splits.0[1], true)?];
        let place = |part: &Buffer| MatrixOperand::packed(&part.view(), q.e).mem;
        let of_parts = splits.product(q, [place(&a), place(&b)]);
        match self.blas_plan(&of_parts) {
            Ok(plan) => self.blas_product(&of_parts, &plan),
            Err(_) => self.portable_product(q),
        }
    }

    fn split(&self, s: &Split, of_b: bool) -> Result<Buffer> {
        let parts = self.scratch(DType::F32, s.elements())?;
        let ([row, part], runs) = (s.steps(), s.elements() / 3 / 4);
        let args = GemmPartsArgs {
            x: s.from.arg(),
            y: self.arg_in(&parts.view()),
            n: long(runs),
            outer: long(s.outer),
            inner: long(s.inner),
            ldx: long(s.ldx),
            batch_step: long(s.from.steps[2]),
            row: long(row),
            part: long(part),
            of_b: i32::from(of_b),
        };
        self.launch(&GEMM_PARTS, DType::F32, "", Grid::Stride(runs), &args)?;
        Ok(parts)
    }
}

#[cfg(all(test, feature = "driver-opencl"))]
mod tests {
    use super::*;
    use crate::backend::BackendExt;
    use crate::driver::opencl::OpenClDriver;
    use crate::ops::gemm::Gemm;
    use crate::test_devices::present;

    /// A [batch, m, k] and B [k, n] as they are or transposed in memory.
    fn product(gpu: &Engine, e: Extents, trans: [bool; 2]) -> (Product, Vec<Vec<f32>>, [Buffer; 3]) {
        let values = |n: usize, seed: usize| -> Vec<f32> {
            (0..n).map(|i| ((i * 7919 + seed) % 1009) as f32 / 313.0 - 1.6).collect()
        };
        let (a, b) = (values(e.batch * e.m * e.k, 3), values(e.k * e.n, 5));
        let memory = [&a, &b].map(|v| gpu.upload(v).unwrap());
        let y = gpu.scratch(DType::F32, e.batch * e.m * e.n).unwrap();
        let at = |b: &Buffer, steps| MatrixOperand { steps, ..MatrixOperand::packed(&b.view(), e) };
        let of_a = at(&memory[0], if trans[0] { [1, e.m, e.m * e.k] } else { [e.k, 1, e.m * e.k] });
        let of_b = at(&memory[1], if trans[1] { [1, e.k, 0] } else { [e.n, 1, 0] });
        let p = Gemm { precision: Precision::Tf32x3, ..Gemm::new() };
        let of_y = at(&y, [e.n, 1, e.m * e.n]);
        let q = Product::plain(&p, e, DType::F32, of_a, of_b, (of_y, DType::F32), 0.0);
        let [first, second] = memory;
        (q, vec![a, b], [first, second, y])
    }

    /// Element (b, r, c) of an operand.
    fn element(v: &[f32], steps: [usize; 3], [b, r, c]: [usize; 3]) -> f64 {
        f64::from(v[b * steps[2] + r * steps[0] + c * steps[1]])
    }

    #[test]
    fn parts_multiply_to_nearly_the_product_in_every_layout() {
        let Some(d) = present("opencl", OpenClDriver::open(0)) else { return };
        let gpu = Engine::new(std::sync::Arc::new(d)).unwrap();
        let e = Extents { batch: 2, m: 8, n: 12, k: 16 };
        for trans in [[false, false], [false, true], [true, false], [true, true]] {
            let (q, host, _memory) = product(&gpu, e, trans);
            let splits = Splits::of(&q).unwrap();
            let [a, b] = [gpu.split(&splits.0[0], false).unwrap(), gpu.split(&splits.0[1], true).unwrap()];
            let parts = [&a, &b].map(|b| gpu.download::<f32>(b.view()).unwrap());
            let with = splits.product(&q, [(RawMem(0), 0); 2]);
            assert_eq!((with.e.k, with.precision), (48, Precision::Tf32));
            assert!(
                parts.iter().flatten().filter(|v| v.to_bits() & 0x1fff == 0).count()
                    >= 2 * parts[0].len() / 3
            );
            for (i, r, c) in [(0, 0, 0), (1, 7, 11), (1, 3, 5), (0, 6, 2)] {
                let sum = |k: usize, v: [&[f32]; 2], q: &Product| -> f64 {
                    (0..k)
                        .map(|k| element(v[0], q.a.steps, [i, r, k]) * element(v[1], q.b.steps, [i, k, c]))
                        .sum()
                };
                let (want, got) = (sum(16, [&host[0], &host[1]], &q), sum(48, [&parts[0], &parts[1]], &with));
                // Of each term the product of the small parts is missing: 2^-24 of it at most.
                assert!((want - got).abs() <= 16.0 * 2.6 * 2.6 * 2f64.powi(-24), "{trans:?}: {want} {got}");
            }
        }
    }

    #[test]
    fn other_products_are_not_split() {
        let operand = |steps| MatrixOperand { mem: (RawMem(1), 0), aligned: true, steps };
        let e = Extents { batch: 1, m: 64, n: 64, k: 64 };
        let p = Gemm { precision: Precision::Tf32x3, ..Gemm::new() };
        let (a, b) = (operand([64, 1, 0]), operand([64, 1, 0]));
        let q = Product::plain(&p, e, DType::F32, a, b, (a, DType::F32), 0.0);
        assert!(Splits::of(&q).is_ok());
        assert!(Splits::of(&Product { precision: Precision::Ieee, ..q }).is_err());
        assert!(Splits::of(&Product { dtype: DType::F64, ..q }).is_err());
        assert!(Splits::of(&Product { a: operand([66, 1, 0]), ..q }).is_err_and(|e| e.contains("16 bytes")));
        assert!(Splits::of(&Product { b: operand([2, 2, 0]), ..q }).is_err_and(|e| e.contains("dense")));
    }
}
