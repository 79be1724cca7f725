//! The driver on a GPU.

use super::*;
use crate::DType;
use crate::driver::blas_reference::{problem, row_major, run_gemm};
use crate::driver::{BlasAct, BlasProblem};
use crate::test_devices::{function, load, present};

const SOURCE: &str = r#"
struct dims { long long d[8]; };
extern "C" __global__ void affine(const float *x, float *y, float a, unsigned n, dims d) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + (float)d.d[7];
}
extern "C" __global__ void is_null(const float *x, int *y) { *y = x == 0; }
"#;

fn driver() -> Option<CudaDriver> {
    present("cuda", CudaDriver::open(0))
}

fn unit(source: &str) -> CompileUnit<'_> {
    CompileUnit { name: "test.cu", source, options: &[] }
}

#[test]
fn passes_the_suite() {
    let Some(d) = driver() else { return };
    crate::testing::driver_suite(std::sync::Arc::new(d)).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn runs_a_kernel_with_offsets_and_times_it() {
    let Some(d) = driver() else { return };
    let module = load(&d, &d.compile(&unit(SOURCE)).unwrap()).unwrap();
    let f = function(&d, module, "affine").unwrap();
    // More than all staging chunks together.
    let n = 6_000_001usize;
    let data: Vec<u8> = (0..n).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let s = d.new_stream().unwrap();
    let (x, y) = (d.alloc(4 * n + 256).unwrap(), d.alloc(4 * n + 4).unwrap());
    let mut dims = [0i64; 8];
    dims[7] = 5;
    let cfg = LaunchConfig::new([(n as u32).div_ceil(256), 1, 1], [256, 1, 1]);
    let args = [
        Arg::Mem(Some((x, 256))),
        Arg::Mem(Some((y, 4))),
        Arg::F32(2.0),
        Arg::U32(n as u32),
        Arg::Struct(bytemuck::cast_slice(&dims)),
    ];
    let mut out = vec![0u8; 4 * n];
    // SAFETY: sizes and prototype are those above.
    unsafe {
        d.copy_in(s, x, 256, &data).unwrap();
        let from = d.record(s).unwrap();
        d.launch(s, f, &cfg, &args).unwrap();
        let to = d.record(s).unwrap();
        d.copy_out(s, y, 4, &mut out).unwrap();
        assert!(d.elapsed_ns(from, to).unwrap() > 0);
        d.destroy_event(from);
        d.destroy_event(to);
    }
    for (i, b) in out.chunks_exact(4).enumerate() {
        assert_eq!(f32::from_le_bytes(b.try_into().unwrap()), 2.0 * i as f32 + 5.0, "element {i}");
    }
    // SAFETY: ranges lie within both allocations; the streams are idle when they are destroyed.
    unsafe {
        let second = d.new_stream().unwrap();
        let e = d.record(s).unwrap();
        d.wait(second, e).unwrap();
        d.event_synchronize(e).unwrap();
        d.copy(second, (y, 4), (x, 0), 4000).unwrap();
        let mut copied = vec![0u8; 4000];
        d.copy_out(second, x, 0, &mut copied).unwrap();
        assert_eq!(copied, out[..4000]);
        d.destroy_event(e);
        d.destroy_stream(second);
        d.destroy_stream(s);
        d.free(x);
        d.free(y);
    }
}

#[test]
fn null_pointers_and_errors() {
    let Some(d) = driver() else { return };
    let module = load(&d, &d.compile(&unit(SOURCE)).unwrap()).unwrap();
    let f = function(&d, module, "is_null").unwrap();
    let (s, y) = (d.new_stream().unwrap(), d.alloc(256).unwrap());
    let cfg = LaunchConfig::new([1; 3], [1; 3]);
    let mut out = [0u8; 4];
    // SAFETY: prototype and sizes are those above.
    unsafe {
        d.launch(s, f, &cfg, &[Arg::Mem(None), Arg::Mem(Some((y, 0)))]).unwrap();
        d.copy_out(s, y, 0, &mut out).unwrap();
        d.destroy_stream(s);
        d.free(y);
    }
    assert_eq!(i32::from_le_bytes(out), 1);
    match d.alloc(1 << 50) {
        Err(GpuError::OutOfMemory { requested, .. }) => assert_eq!(requested, 1 << 50),
        other => panic!("{other:?}"),
    }
    match function(&d, module, "no_such_kernel") {
        Err(GpuError::Driver(f)) => assert_eq!(f.name, "CUDA_ERROR_NOT_FOUND"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(load(&d, b"not an image"), Err(GpuError::Driver(_))));
    assert!(matches!(d.compile(&unit("nonsense")), Err(GpuError::Compile(_))));
    assert!(matches!(CudaDriver::open(9999), Err(GpuError::Unavailable { .. })));
    assert_eq!(probe().unwrap()[0], *d.caps());
}

#[test]
fn vendor_products_match_a_reference() {
    let Some(d) = driver() else { return };
    let blas = match d.vendor_blas() {
        Ok(blas) => blas,
        Err(why) => return eprintln!("skipped: no cuBLASLt: {why}"),
    };
    let (mut ran, mut asked) = (0, 0);
    let outs = [
        (DType::F32, DType::F32),
        (DType::F64, DType::F64),
        (DType::F16, DType::F16),
        (DType::Bf16, DType::Bf16),
        (DType::Bf16, DType::F32),
    ];
    for (dtype, out_dtype) in outs {
        for (ta, tb) in [(false, false), (false, true), (true, false), (true, true)] {
            for (bias, act) in [
                (false, BlasAct::Identity),
                (true, BlasAct::Identity),
                (true, BlasAct::Relu),
                (true, BlasAct::GeluTanh),
            ] {
                for (packed, shift) in [(true, 0), (false, 8)] {
                    let mut p = problem(24, 40, 16, 2, ta, tb);
                    if packed {
                        let ld = [if ta { 24 } else { 16 }, if tb { 16 } else { 40 }, 40, 40];
                        p.ld = ld;
                        p.batch_stride = [24 * 16, 16 * 40, 24 * 40, 24 * 40];
                    }
                    p = BlasProblem { dtype, out_dtype, bias, act, ..p };
                    asked += 1;
                    if let Err(reason) = blas.applicable(&p) {
                        eprintln!("not applicable: {reason}: {p:?}");
                        continue;
                    }
                    ran += 1;
                    let data = |i: usize| -> Vec<f64> {
                        let n = p.batch * p.batch_stride[i] + 128;
                        (0..n).map(|x| ((x * 7 + i) % 11) as f64 / 4.0 - 1.25).collect()
                    };
                    let (a, b, c) = (data(0), data(1), data(2));
                    let bias_values: Vec<f64> = (0..p.n).map(|j| j as f64 / 8.0 - 2.0).collect();
                    let mut expected = row_major(&p, 0.5, 2.0, &a, &b, &c);
                    for z in 0..p.batch {
                        for i in 0..p.m {
                            for j in 0..p.n {
                                let y = &mut expected[z * p.batch_stride[3] + i * p.ld[3] + j];
                                *y += if bias { bias_values[j] } else { 0.0 };
                                *y = match act {
                                    BlasAct::Identity => *y,
                                    BlasAct::Relu => y.max(0.0),
                                    BlasAct::GeluTanh => {
                                        let inner =
                                            (2.0 / std::f64::consts::PI).sqrt() * (*y + 0.044715 * y.powi(3));
                                        0.5 * *y * (1.0 + inner.tanh())
                                    }
                                };
                            }
                        }
                    }
                    let got = run_gemm(&d, &p, shift, [&a, &b, &c, &bias_values]);
                    let relative = match out_dtype {
                        DType::F64 => 1e-12,
                        DType::F32 => 1e-5,
                        DType::F16 => 2e-3,
                        _ => 1.6e-2,
                    };
                    for (i, (x, y)) in got.iter().zip(&expected).enumerate() {
                        assert!(
                            (x - y).abs() <= relative * (1.0 + y.abs()),
                            "{p:?}: element {i}: {x} for {y}"
                        );
                    }
                }
            }
        }
    }
    assert!(2 * ran > asked, "{ran} of {asked} problems were served");
}
