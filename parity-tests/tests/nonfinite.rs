//! Infinite operands of kernels that fill tiles up with zeros: results are infinite where the sums over the operands alone are, and finite elsewhere, on
//! every backend that is there.
#![allow(missing_docs)]

use parity_tests::backends;
use trefoil::ops::gemm::{BilinearRaggedBwd, Gemm, GemmBwd, GemmIo};
use trefoil::{BackendExt, Buffer, DType, IGpuBackend, Result};

const INF: f32 = f32::INFINITY;

/// `check` on every backend.
fn everywhere(check: impl Fn(&dyn IGpuBackend) -> Result<()>) {
    for candidate in backends::all(&[]) {
        match &candidate.handle {
            Ok(gpu) => check(gpu.as_ref()).unwrap_or_else(|e| panic!("{}: {e}", candidate.name)),
            Err(why) if candidate.required => panic!("{}: {why}", candidate.name),
            Err(why) => println!("skipped {}: {why}", candidate.name),
        }
    }
}

/// Positive numbers.
fn ramp(n: usize) -> Vec<f32> {
    (0..n).map(|i| 0.5 + (i % 7) as f32 / 4.0).collect()
}

/// The same with one infinity.
fn ramp_with(n: usize, at: usize) -> Vec<f32> {
    let mut v = ramp(n);
    v[at] = INF;
    v
}

/// `v` in a type.
fn upload(gpu: &dyn IGpuBackend, v: &[f32], dtype: DType) -> Result<Buffer> {
    let (x, mut y) = (gpu.upload(v)?, gpu.alloc(dtype, v.len())?);
    gpu.cast(x.view(), y.view_mut())?;
    Ok(y)
}

/// Asserts that just the elements of the rows `rows` of [.., columns] are infinite, and all others finite.
fn infinite_rows(
    gpu: &dyn IGpuBackend,
    b: &Buffer,
    columns: usize,
    rows: &[usize],
    what: &str,
) -> Result<()> {
    let mut y = gpu.alloc(DType::F32, b.len())?;
    gpu.cast(b.view(), y.view_mut())?;
    for (i, v) in gpu.download::<f32>(y.view())?.into_iter().enumerate() {
        let want = rows.contains(&(i / columns));
        assert!(if want { v == INF } else { v.is_finite() }, "{}: {what}[{i}] is {v}", gpu.id());
    }
    Ok(())
}

#[test]
fn gradients_of_bilinear_forms() {
    let (rows, groups, o) = (5, 2, 3);
    for [m, n] in [[1, 1], [5, 1], [64, 16], [7, 3]] {
        everywhere(|gpu| {
            // The first group has three rows.
            let offsets = gpu.upload(&[0i32, 3, 5])?;
            let [a, b, w, sums] =
                [rows * m, rows * n, o * m * n, groups * m * n].map(|k| gpu.upload(&ramp(k)));
            let (a, b, w, sums) = (a?, b?, w?, sums?);
            let dy = gpu.upload(&ramp_with(groups * o, 1))?;
            let mut da = gpu.alloc(DType::F32, rows * m)?;
            let mut db = gpu.alloc(DType::F32, rows * n)?;
            let mut dw = gpu.alloc(DType::F32, o * m * n)?;
            let io = BilinearRaggedBwd::new(
                dy.shaped(&[groups, o])?,
                a.shaped(&[rows, m])?,
                b.shaped(&[rows, n])?,
                offsets.view(),
                w.shaped(&[o, m, n])?,
                sums.shaped(&[groups, m, n])?,
            );
            let io = io.da(da.shaped_mut(&[rows, m])?).db(db.shaped_mut(&[rows, n])?);
            gpu.bilinear_ragged_bwd(io.dw(dw.shaped_mut(&[o, m, n])?))?;
            infinite_rows(gpu, &da, m, &[0, 1, 2], "da")?;
            infinite_rows(gpu, &db, n, &[0, 1, 2], "db")?;
            infinite_rows(gpu, &dw, m * n, &[1], "dw")
        });
    }
}

#[test]
fn products() {
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        for [m, n, k] in [[20, 24, 40], [3, 5, 7], [130, 136, 72]] {
            everywhere(|gpu| {
                let a = upload(gpu, &ramp_with(m * k, 2 * k + 1), dtype)?;
                let b = upload(gpu, &ramp(k * n), dtype)?;
                let mut y = gpu.alloc(dtype, m * n)?;
                let io = GemmIo::new(a.shaped(&[m, k])?, b.shaped(&[k, n])?, y.shaped_mut(&[m, n])?);
                gpu.gemm(&Gemm::new(), io)?;
                infinite_rows(gpu, &y, n, &[2], "y")
            });
        }
    }
}

#[test]
fn gradients_of_a_layer_with_few_inputs() {
    let (m, n, k) = (70, 8, 3);
    everywhere(|gpu| {
        let dy = gpu.upload(&ramp_with(m * n, 2 * n + 5))?;
        let (a, b) = (gpu.upload(&ramp(m * k))?, gpu.upload(&ramp(k * n))?);
        let mut da = gpu.alloc(DType::F32, m * k)?;
        let mut dbias = gpu.alloc(DType::F32, n)?;
        let mut io = GemmBwd::new(dy.shaped(&[m, n])?, a.shaped(&[m, k])?, b.shaped(&[k, n])?);
        io.da = Some(da.shaped_mut(&[m, k])?.into());
        io.dbias = Some(dbias.view_mut().into());
        gpu.gemm_bwd(&Gemm::new(), io)?;
        infinite_rows(gpu, &da, k, &[2], "da")?;
        infinite_rows(gpu, &dbias, 1, &[5], "dbias")
    });
}
