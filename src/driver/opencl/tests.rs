//! The driver on whatever OpenCL device there is (PoCL will do).

use super::*;
use crate::test_devices::{function, load, present};

const SOURCE: &str = r#"
typedef struct { long d[8]; } dims;
__kernel void affine(__global const float *x, long x_at, __global float *y, long y_at, float a, uint n, dims d) {
    x = (__global const float *)((__global const char *)x + x_at);
    y = (__global float *)((__global char *)y + y_at);
    size_t i = get_global_id(0);
    if (i < n) y[i] = a * x[i] + (float)d.d[7];
}
__kernel void is_null(__global const float *x, long x_at, __global int *y, long y_at) {
    y[0] = x == 0 ? 1 : 0;
}
"#;

fn driver() -> Option<OpenClDriver> {
    present("opencl", OpenClDriver::open(0))
}

fn unit(source: &str) -> CompileUnit<'_> {
    CompileUnit { name: "test", source, options: &[] }
}

fn floats(n: usize) -> Vec<u8> {
    (0..n).flat_map(|i| (i as f32).to_le_bytes()).collect()
}

#[test]
fn passes_the_suite() {
    let Some(d) = driver() else { return };
    crate::testing::driver_suite(std::sync::Arc::new(d)).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn runs_a_kernel_with_offsets_and_times_it() {
    let Some(mut d) = driver() else { return };
    let image = d.compile(&unit(SOURCE)).unwrap();
    let module = load(&d, &image).unwrap();
    let f = function(&d, module, "affine").unwrap();
    let n = 1000usize;
    let data = floats(n);
    for staged in [false, true] {
        d.stage_writes = staged;
        let s = d.new_stream().unwrap();
        let (x, y) = (d.alloc(4 * n + 256).unwrap(), d.alloc(4 * n + 4).unwrap());
        let mut dims = [0i64; 8];
        dims[7] = 5;
        let cfg = LaunchConfig::new([8, 1, 1], [128, 1, 1]);
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
            let from = d.record(s).unwrap();
            d.copy_in(s, x, 256, &data).unwrap();
            d.launch(s, f, &cfg, &args).unwrap();
            let to = d.record(s).unwrap();
            d.copy_out(s, y, 4, &mut out).unwrap();
            d.event_synchronize(to).unwrap();
            assert!(d.elapsed_ns(from, to).unwrap() > 0);
            d.destroy_event(from);
            d.destroy_event(to);
        }
        for (i, b) in out.chunks_exact(4).enumerate() {
            assert_eq!(f32::from_le_bytes(b.try_into().unwrap()), 2.0 * i as f32 + 5.0);
        }
        // SAFETY: the stream is idle after the download.
        unsafe {
            let second = d.new_stream().unwrap();
            let e = d.record(s).unwrap();
            d.wait(second, e).unwrap();
            d.copy(second, (y, 4), (x, 0), 4 * n).unwrap();
            let mut copied = vec![0u8; 4 * n];
            d.copy_out(second, x, 0, &mut copied).unwrap();
            assert_eq!(copied, out);
            d.destroy_event(e);
            d.destroy_stream(second);
            d.destroy_stream(s);
            d.free(x);
            d.free(y);
        }
        assert_eq!(lock(&d.staged).bytes, 0, "staged copies are freed");
    }
}

/// Both kinds of images, loaded by the driver that made them and by another.
#[test]
fn images_outlive_their_driver() {
    let Some(mut d) = driver() else { return };
    for binary in [false, true] {
        d.caps.is_cpu = !binary;
        let options = ["-DUNUSED=1".to_string()];
        let image = d.compile(&CompileUnit { name: "test", source: SOURCE, options: &options }).unwrap();
        let Some(mut other) = driver() else { return };
        other.caps.is_cpu = !binary;
        for d in [&d, &d, &other] {
            let module = load(d, &image).unwrap();
            function(d, module, "affine").unwrap();
            assert!(lock(&d.built).is_empty());
        }
    }
}

#[test]
fn passes_null_pointers() {
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
}

#[test]
fn errors_have_names() {
    let Some(d) = driver() else { return };
    match d.compile(&unit("#line 7 \"some/file.c\"\n__kernel void f() { nonsense(); }")) {
        Err(GpuError::Compile(c)) => {
            assert_eq!(c.unit, "test");
            // NVIDIA reports what its linker misses without a place in the text.
            let named = if d.caps().is_cpu { "some/file.c:7" } else { "nonsense" };
            assert!(c.log.contains(named), "{}", c.log);
        }
        other => panic!("{other:?}"),
    }
    match d.alloc(usize::MAX / 2) {
        Err(GpuError::OutOfMemory { requested, .. }) => assert_eq!(requested, usize::MAX / 2),
        other => panic!("{other:?}"),
    }
    assert!(matches!(load(&d, b"not a binary"), Err(GpuError::Driver(_) | GpuError::Compile(_))));
    let module = load(&d, &d.compile(&unit(SOURCE)).unwrap()).unwrap();
    match function(&d, module, "no_such_kernel") {
        Err(GpuError::Driver(f)) => {
            assert_eq!((f.call, f.name.as_str()), ("clCreateKernel", "CL_INVALID_KERNEL_NAME"));
        }
        other => panic!("{other:?}"),
    }
    match OpenClDriver::open(9999) {
        Err(GpuError::Unavailable { reason, .. }) => {
            assert!(matches!(*reason, crate::Unavailable::NoDevice { .. }), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn capabilities_are_plausible() {
    let Some(d) = driver() else { return };
    let c = d.caps();
    assert!(
        c.compute_units > 0 && c.max_block >= 64 && c.shared_bytes >= 1024 && c.memory_bytes > 0,
        "{c:?}"
    );
    assert!(c.arch.contains(&c.name) && !c.driver_version.is_empty() && !c.device_addresses, "{c:?}");
    assert_eq!(probe().unwrap()[0], *c);
}

#[test]
fn threads_share_a_kernel() {
    let Some(d) = driver() else { return };
    let module = load(&d, &d.compile(&unit(SOURCE)).unwrap()).unwrap();
    let f = function(&d, module, "affine").unwrap();
    std::thread::scope(|scope| {
        for t in 0..4u32 {
            let d = &d;
            scope.spawn(move || {
                let (s, y) = (d.new_stream().unwrap(), d.alloc(1024).unwrap());
                let cfg = LaunchConfig::new([1; 3], [64, 1, 1]);
                for round in 0..50 {
                    let mut dims = [0i64; 8];
                    dims[7] = (1000 * t + round) as i64;
                    let mut out = [0u8; 256];
                    // SAFETY: 64 floats of live memory; a factor of 0 makes the input's values irrelevant, and it is zero at first.
                    unsafe {
                        d.copy_in(s, y, 256, &[0u8; 256]).unwrap();
                        let args = [
                            Arg::Mem(Some((y, 256))),
                            Arg::Mem(Some((y, 0))),
                            Arg::F32(0.0),
                            Arg::U32(64),
                            Arg::Struct(bytemuck::cast_slice(&dims)),
                        ];
                        d.launch(s, f, &cfg, &args).unwrap();
                        d.copy_out(s, y, 0, &mut out).unwrap();
                    }
                    for b in out.chunks_exact(4) {
                        assert_eq!(f32::from_le_bytes(b.try_into().unwrap()), (1000 * t + round) as f32);
                    }
                }
                // SAFETY: the last download waited.
                unsafe {
                    d.destroy_stream(s);
                    d.free(y);
                }
            });
        }
    });
}
