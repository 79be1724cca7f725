//! Products of a vendor's library on a device, and what they should be: for tests.

use half::{bf16, f16};

use super::{BlasAct, BlasProblem, Driver};
use crate::dtype::DType;

/// A tightly packed problem with different strides per operand.
pub(crate) fn problem(m: usize, n: usize, k: usize, batch: usize, ta: bool, tb: bool) -> BlasProblem {
    let (ca, cb) = (if ta { m } else { k }, if tb { k } else { n });
    let (ra, rb) = (if ta { k } else { m }, if tb { n } else { k });
    let ld = [ca + 1, cb + 2, n + 3, n];
    BlasProblem {
        m,
        n,
        k,
        batch,
        trans_a: ta,
        trans_b: tb,
        ld,
        batch_stride: [ra * ld[0] + 5, rb * ld[1], m * ld[2], m * ld[3] + 7],
        dtype: DType::F32,
        out_dtype: DType::F32,
        tf32: false,
        bias: false,
        act: BlasAct::Identity,
    }
}

/// An element of D = alpha op(A) op(B) + beta C: that of this batch, row and column.
pub(crate) fn element(
    p: &BlasProblem,
    [alpha, beta]: [f64; 2],
    [a, b, c]: [&[f64]; 3],
    [z, i, j]: [usize; 3],
) -> f64 {
    let at = |of: usize, r: usize, col: usize| z * p.batch_stride[of] + r * p.ld[of] + col;
    let product = |l: usize| {
        let x = if p.trans_a { a[at(0, l, i)] } else { a[at(0, i, l)] };
        let y = if p.trans_b { b[at(1, j, l)] } else { b[at(1, l, j)] };
        x * y
    };
    let sum: f64 = (0..p.k).map(product).sum();
    alpha * sum + beta * c[at(2, i, j)]
}

/// Row-major reference: D = alpha op(A) op(B) + beta C.
pub(crate) fn row_major(p: &BlasProblem, alpha: f64, beta: f64, a: &[f64], b: &[f64], c: &[f64]) -> Vec<f64> {
    let mut d = vec![0.0; p.batch * p.batch_stride[3]];
    for z in 0..p.batch {
        for i in 0..p.m {
            for j in 0..p.n {
                d[z * p.batch_stride[3] + i * p.ld[3] + j] = element(p, [alpha, beta], [a, b, c], [z, i, j]);
            }
        }
    }
    d
}

/// Numbers as they are stored.
pub(crate) fn encode(dtype: DType, data: &[f64]) -> Vec<u8> {
    let one = |&x: &f64| match dtype {
        DType::F16 => crate::dtype::f16_from_f64(x).to_le_bytes().to_vec(),
        DType::Bf16 => crate::dtype::bf16_from_f64(x).to_le_bytes().to_vec(),
        DType::F64 => x.to_le_bytes().to_vec(),
        _ => (x as f32).to_le_bytes().to_vec(),
    };
    data.iter().flat_map(one).collect()
}

/// Stored numbers.
pub(crate) fn decode(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    let one = |b: &[u8]| match dtype {
        DType::F16 => f16::from_le_bytes([b[0], b[1]]).to_f64(),
        DType::Bf16 => bf16::from_le_bytes([b[0], b[1]]).to_f64(),
        DType::F64 => f64::from_le_bytes(b.try_into().unwrap()),
        _ => f32::from_le_bytes(b.try_into().unwrap()).into(),
    };
    bytes.chunks_exact(dtype.size()).map(one).collect()
}

/// Runs one product, alpha 0.5 and beta 2, of A, B, C and a bias on the device; matrices and the workspace begin `shift` bytes into their memory. Where
/// the library adds to its result, D holds C.
pub(crate) fn run_gemm(
    d: &dyn Driver,
    p: &BlasProblem,
    shift: u64,
    [a, b, c, bias]: [&[f64]; 4],
) -> Vec<f64> {
    let blas = d.vendor_blas().unwrap();
    let s = d.new_stream().unwrap();
    let upload = |dtype, data: &[f64]| {
        let bytes = encode(dtype, data);
        let m = d.alloc(bytes.len() + 64).unwrap();
        // SAFETY: just allocated with room for the shift.
        unsafe { d.copy_in(s, m, shift, &bytes).unwrap() };
        m
    };
    let (am, bm, cm) = (upload(p.dtype, a), upload(p.dtype, b), upload(p.out_dtype, c));
    let bias_m = upload(p.dtype, bias);
    let len = p.batch * p.batch_stride[3];
    let dm = if blas.in_place() { cm } else { upload(p.out_dtype, &vec![0.0; len]) };
    let (want, room) = (blas.workspace(p), shift.next_multiple_of(256));
    let w = d.alloc(want.max(256) + room as usize).unwrap();
    let mut out = vec![0u8; len * p.out_dtype.size()];
    // SAFETY: every matrix was uploaded with the problem's sizes.
    unsafe {
        let at = |m| (m, shift);
        let bias = p.bias.then_some((bias_m, shift));
        blas.gemm(s, p, 0.5, 2.0, at(am), at(bm), at(cm), at(dm), bias, Some((w, room, want))).unwrap();
        d.copy_out(s, dm, shift, &mut out).unwrap();
        d.destroy_stream(s);
        [am, bm, cm, bias_m, w].into_iter().for_each(|m| d.free(m));
        if !blas.in_place() {
            d.free(dm);
        }
    }
    decode(p.out_dtype, &out)
}
