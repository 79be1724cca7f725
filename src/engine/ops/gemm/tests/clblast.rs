//! Products of CLBlast as a variant: random ones, recorded ones, measured ones, and what it says where it does not serve.

use std::sync::Arc;

use super::products::try_forward;
use super::{opencl, seeds};
use crate::backend::BackendExt;
use crate::ops::IGpuBackend;
use crate::ops::core::{CoreOps, InteropOps};
use crate::ops::gemm::*;
use crate::{Buffer, DType, Engine, GpuError};

/// A device with every operation of products pinned to the library; that it is absent is a printed skip, or a failure where `TREFOIL_REQUIRE` names
/// `clblast`.
fn pinned() -> Option<Engine> {
    crate::driver::opencl::copy_early();
    let gpu = opencl()?;
    let why = gpu.explain("gemm").unwrap().rejected.into_iter().find(|(v, _)| v == "clblast").unwrap().1;
    if gpu.driver().vendor_blas().is_err() {
        assert!(!crate::is_required("clblast"), "TREFOIL_REQUIRE names clblast: {why}");
        println!("skipped: no CLBlast: {why}");
        return None;
    }
    for op in ["gemm", "gemm_bwd", "gemm_grouped"] {
        gpu.pin_variant(op, Some("clblast")).unwrap();
    }
    Some(gpu)
}

#[test]
fn random_products() {
    let Some(gpu) = pinned() else { return };
    let shapes = [
        [1, 1, 1, 1],
        [1, 5, 7, 3],
        [1, 64, 64, 32],
        [1, 16, 300, 70],
        [1, 300, 9, 40],
        [3, 4, 5, 6],
        [2, 33, 17, 20],
        [1, 131, 257, 190],
        [2, 130, 180, 150],
    ];
    let mut ran = 0;
    for (i, shape) in shapes.into_iter().enumerate() {
        for (d, seed) in seeds([4, 1]).filter(|(d, _)| matches!(d, DType::F32 | DType::F64)) {
            match try_forward(&gpu, 31 * i as u64 + seed, d, shape) {
                Ok(()) => ran += 1,
                Err(e) => assert!(e.to_string().contains("no dense axis"), "{shape:?} seed {seed} {d}: {e}"),
            }
        }
    }
    assert!(ran >= 24, "{ran}");
}

/// Y = A B of n x n, A and B of few different numbers, so that sums are exact.
struct Square {
    n: usize,
    a: Buffer,
    b: Buffer,
    y: Buffer,
}

impl Square {
    fn new(gpu: &dyn IGpuBackend, batch: usize, n: usize) -> Self {
        let of = |seed: usize| -> Vec<f32> {
            (0..batch * n * n).map(|i| ((i * 7 + seed) % 5) as f32 - 2.0).collect()
        };
        let [a, b] = [1, 3].map(|seed| gpu.upload(&of(seed)).unwrap());
        Square { n, a, b, y: gpu.zeros(DType::F32, batch * n * n).unwrap() }
    }

    fn multiply(&self, gpu: &dyn IGpuBackend) -> crate::Result<()> {
        let shape = [self.a.len() / (self.n * self.n), self.n, self.n];
        let (a, b) = (self.a.shaped(&shape)?, self.b.shaped(&shape)?);
        gpu.gemm(&Gemm::new(), GemmIo::new(a, b, self.y.alias_mut().reshape(&shape)?))
    }

    fn result(&self, gpu: &dyn IGpuBackend) -> Vec<f32> {
        gpu.download(self.y.view()).unwrap()
    }
}

#[test]
fn recorded_products_replay_without_new_memory() {
    let Some(gpu) = pinned() else { return };
    let gpu: Arc<dyn IGpuBackend> = Arc::new(gpu);
    // Without copies of operands, and with copies.
    for (batch, n) in [(1, 24), (3, 24), (1, 160), (2, 160)] {
        let square = Square::new(&*gpu, batch, n);
        gpu.pin_variant("gemm", Some("portable")).unwrap();
        square.multiply(&*gpu).unwrap();
        let want = square.result(&*gpu);
        gpu.pin_variant("gemm", Some("clblast")).unwrap();
        let (graph, ()) = gpu.capture(|g| square.multiply(&**g)).unwrap();
        let names: Vec<_> = graph.info().calls.iter().map(String::as_str).collect();
        assert!(names.iter().any(|name| name.contains("vendor")), "{names:?}");
        let base = gpu.memory().in_use;
        for _ in 0..3 {
            gpu.fill(-1.0, square.y.alias_mut()).unwrap();
            graph.replay().unwrap();
            assert_eq!(square.result(&*gpu), want, "batch {batch}, {n}");
        }
        assert_eq!(gpu.memory().in_use, base);
    }
}

#[test]
fn only_measurements_and_pins_take_it() {
    let Some(gpu) = pinned() else { return };
    let square = Square::new(&gpu, 1, 96);
    let made = gpu.explain_calls(&mut || square.multiply(&gpu)).unwrap();
    assert_eq!((made[0].chosen.as_str(), made[0].source.as_str()), ("clblast", "vendor library"));
    gpu.pin_variant("gemm", None).unwrap();
    let choice = |gpu: &Engine| gpu.explain_calls(&mut || square.multiply(gpu)).unwrap().remove(0);
    let free = choice(&gpu);
    assert_eq!(free.chosen, "portable");
    assert!(free.alternatives().any(|v| v == "clblast"), "{free:?}");
}

#[test]
fn what_it_does_not_serve_has_a_reason() {
    let Some(gpu) = pinned() else { return };
    let reason = |of: DType| {
        let (a, y) = (gpu.zeros(of, 64).unwrap(), gpu.zeros(of, 64).unwrap());
        let a = a.shaped(&[8, 8]).unwrap();
        let io = GemmIo::new(a, a, y.alias_mut().reshape(&[8, 8]).unwrap());
        match gpu.gemm(&Gemm::new(), io) {
            Err(GpuError::Unsupported { why, .. }) => why.to_string(),
            other => panic!("{of}: {other:?}"),
        }
    };
    assert!(reason(DType::F16).contains("adds up products of f16 in f16"));
    assert!(reason(DType::Bf16).contains("no products of bf16"));
}

/// Without the library, or with a name for it that is not there, its variant says so.
#[test]
fn its_absence_has_a_reason() {
    let Some(gpu) = opencl() else { return };
    let c = gpu.explain("gemm").unwrap();
    let (_, why) = c.rejected.iter().find(|(v, _)| v == "clblast").unwrap();
    match gpu.driver().vendor_blas() {
        Ok(_) => assert!(!why.contains("not found"), "{why}"),
        Err(_) => assert!(why.contains("clblast") || why.contains("none"), "{why}"),
    }
}
