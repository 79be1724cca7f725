//! What can be tested with and without a device. Where the machine has no hiprtc, or no device, the test says so and stops there, unless
//! `TREFOIL_REQUIRE` names HIP.
//!
//! Everything that opens AMD's libraries is in `mod alone`, ignored, and run by one test in a process of its own: see `no_device_file`.

use super::*;

fn required() -> bool {
    crate::is_required("hip")
}

#[test]
fn matrix_cores_are_those_that_the_dialect_has() {
    let of = |archs: &[&str]| archs.iter().map(|a| matrix_cores(a)).collect::<Vec<_>>();
    assert_eq!(of(&["sm_80", "sm_90a", "sm_120"]), [Some(MatrixCores::Ptx); 3]);
    assert_eq!(of(&["gfx908", "gfx90a:sramecc+:xnack-", "gfx942"]), [Some(MatrixCores::Mfma); 3]);
    assert_eq!(of(&["gfx1100", "gfx1151", "gfx1201"]), [Some(MatrixCores::Wmma); 3]);
    assert_eq!(of(&["sm_75", "gfx906", "gfx1030", "gfx11", "gfx9", ""]), [None; 6]);
    let (_, text) = crate::spec::kernels::SOURCES.iter().find(|(path, _)| *path == "hip/matrix.h").unwrap();
    let named: Vec<&str> =
        text.split("defined(__").filter_map(|t| t.split_once("__)").map(|t| t.0)).collect();
    let named: Vec<&str> = named.into_iter().filter(|a| a.starts_with("gfx")).collect();
    assert!(named.len() > 12);
    assert!(of(&named).iter().all(|c| matches!(c, Some(MatrixCores::Mfma | MatrixCores::Wmma))), "{named:?}");
}

/// Runs ignored tests of this file in a new process; whether they passed, and what they wrote.
fn child(tests: &str, vars: &[(&str, &str)]) -> (bool, String) {
    let exe = std::env::current_exe().unwrap();
    let args = ["--ignored", "--nocapture", tests];
    let out = std::process::Command::new(exe).args(args).envs(vars.iter().copied()).output().unwrap();
    (
        out.status.success(),
        [out.stdout, out.stderr].map(|t| String::from_utf8_lossy(&t).into_owned()).concat(),
    )
}

#[test]
fn alone_in_a_process() {
    let (passed, text) = child("driver::hip::tests::alone::", &[]);
    println!("{text}");
    assert!(passed && text.contains("test result: ok.") && !text.contains(" 0 passed"));
}

/// The reasons for which a library that the user names is refused; the mathematics library stands in for one without the functions.
#[cfg(target_os = "linux")]
#[test]
fn named_libraries_give_typed_reasons() {
    for (library, reasons) in [
        ("/nowhere/libabsent.so", &["LibraryNotFound"][..]),
        ("libm.so.6", &["SymbolMissing"]),
        // Not installed, installed without a device, or all well.
        ("libamdhip64.so", &["LibraryNotFound", "NoDevice", "SymbolMissing", "Ok"]),
    ] {
        let (passed, text) =
            child("driver::hip::tests::prints_the_reason", &[(hip_sys::HIP_LIB_VAR, library)]);
        assert!(passed, "{library}: {text}");
        let given = text.lines().find_map(|l| l.split_once("probe says ")).map_or("", |(_, r)| r);
        println!("{library}: {given}");
        assert!(reasons.iter().any(|r| given.contains(r)), "{library}: {text}");
    }
}

#[test]
#[ignore = "run by named_libraries_give_typed_reasons"]
fn prints_the_reason() {
    println!("probe says {:?}", probe());
}

/// Whether MIOpen is opened, and which file, is decided before any of its functions is called.
#[cfg(target_os = "linux")]
#[test]
fn a_convolution_library_that_is_not_there_has_a_reason() {
    let (runtime, own) = (hip_sys::HIP_LIB_VAR, "TREFOIL_MIOPEN_LIB");
    for (vars, reason) in [
        (&[(runtime, ""), (own, "none")][..], "none: "),
        (&[(runtime, "libc.so.6"), (own, "")], "TREFOIL_MIOPEN_LIB no library for it"),
        // The mathematics library stands in for one that calls another runtime, or none.
        (&[(runtime, "libc.so.6"), (own, "libm.so.6")], "hipMalloc"),
    ] {
        let (passed, text) = child("driver::hip::tests::prints_why_there_is_no_miopen", vars);
        assert!(passed, "{text}");
        let given = text.lines().find_map(|l| l.split_once("there is none: ")).map_or("", |(_, r)| r);
        assert!(given.contains(reason), "{vars:?}: {text}");
    }
}

#[test]
#[ignore = "run by a_convolution_library_that_is_not_there_has_a_reason"]
fn prints_why_there_is_no_miopen() {
    let why = miopen::open("libc.so.6", id(0), Box::new(|| Ok(()))).unwrap_err();
    println!("there is none: {why}");
}

#[test]
fn an_absent_device_is_unavailable() {
    if no_device_file() {
        assert!(!required(), "there is no device file");
        assert!(matches!(probe(), Err(Unavailable::NoDevice { .. })));
        match HipDriver::open(0) {
            Err(GpuError::Unavailable { kind, .. }) => assert_eq!(kind, BackendKind::Hip),
            other => panic!("{other:?}"),
        }
    }
}

mod alone {
    use super::*;
    use crate::test_devices::{function, load};

    const SCALE: &str = r#"
struct dims { long long v[8]; };
extern "C" __global__ void scale(const float* x, float* y, int n, float a, dims d) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + (float)d.v[7];
}
"#;

    fn unit<'a>(source: &'a str) -> CompileUnit<'a> {
        CompileUnit { name: "scale.hip", source, options: &[] }
    }

    /// What to compile for: the device's architecture where there is one (it may be NVIDIA's), else two of AMD's with either width of wavefronts.
    fn architectures() -> Vec<String> {
        match probe() {
            Ok(devices) => vec![devices[0].arch.clone()],
            Err(_) => ["gfx90a", "gfx1030"].map(String::from).to_vec(),
        }
    }

    #[test]
    #[ignore = "run by alone_in_a_process"]
    fn hiprtc_compiles() {
        match hiprtc::compile_for(&architectures()[0], &unit(SCALE)) {
            Ok(code) => {
                assert_eq!(&code[..4], b"\x7fELF");
                assert!(code.windows(5).any(|w| w == b"scale"), "the kernel's name is in the code object");
            }
            Err(GpuError::Unavailable { reason, .. }) if !required() => eprintln!("skipped: {reason}"),
            Err(e) => panic!("{e}"),
        }
    }

    #[test]
    #[ignore = "run by alone_in_a_process"]
    fn a_text_that_does_not_compile_gives_the_log() {
        let arch = &architectures()[0];
        match hiprtc::compile_for(arch, &unit("extern \"C\" __global__ void k() { undeclared = 1; }")) {
            Err(GpuError::Compile(f)) => {
                assert_eq!((&f.unit[..], &f.arch), ("scale.hip", arch));
                assert!(f.log.contains("undeclared"), "{}", f.log);
            }
            Err(GpuError::Unavailable { reason, .. }) if !required() => eprintln!("skipped: {reason}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    #[ignore = "run by alone_in_a_process"]
    fn a_zero_byte_in_the_text_is_an_error() {
        match hiprtc::compile_for("gfx90a", &unit("\0")) {
            Err(GpuError::Compile(f)) => assert!(f.log.contains("zero byte")),
            Err(GpuError::Unavailable { reason, .. }) if !required() => eprintln!("skipped: {reason}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    #[ignore = "run by alone_in_a_process"]
    fn probe_and_open_agree() {
        match probe() {
            Ok(devices) => {
                assert!(!devices.is_empty());
                for (i, caps) in devices.iter().enumerate() {
                    assert_eq!(caps.id, DeviceId::new(BackendKind::Hip, i as u32));
                    assert!(caps.arch.starts_with("gfx") || caps.arch.starts_with("sm_"), "{caps:?}");
                    assert!(
                        caps.warp_size >= 32 && caps.max_block >= 256 && caps.memory_bytes > 0,
                        "{caps:?}"
                    );
                }
                assert_eq!(HipDriver::open(0).unwrap().caps(), &devices[0]);
            }
            Err(reason) => {
                assert!(!required(), "{reason}");
                eprintln!("no HIP device: {reason}");
                assert!(matches!(HipDriver::open(0), Err(GpuError::Unavailable { .. })));
            }
        }
        assert!(matches!(HipDriver::open(u32::MAX), Err(GpuError::Unavailable { .. })));
    }

    #[test]
    #[ignore = "run by alone_in_a_process"]
    fn a_device_copies_computes_and_times() {
        let driver = match HipDriver::open(0) {
            Ok(driver) => driver,
            Err(e) => {
                assert!(!required(), "{e}");
                return eprintln!("skipped: {e}");
            }
        };
        // Longer than the staging ring, so that it wraps.
        let n = 3_000_000usize;
        let x: Vec<f32> = (0..n).map(|i| i as f32 * 0.5).collect();
        let bytes = n * 4;
        let image = driver.compile(&unit(SCALE)).unwrap();
        let module = load(&driver, &image).unwrap();
        assert!(matches!(function(&driver, module, "absent"), Err(GpuError::Driver(_))));
        let f = function(&driver, module, "scale").unwrap();
        let (s, t) = (driver.new_stream().unwrap(), driver.new_stream().unwrap());
        let (a, b) = (driver.alloc(bytes + 256).unwrap(), driver.alloc(bytes).unwrap());
        let c = driver.alloc(bytes).unwrap();
        let mut y = vec![0f32; n];
        // SAFETY: the ranges lie within the allocations above; the arguments match the kernel's prototype.
        unsafe {
            driver.copy_in(s, a, 256, bytemuck::cast_slice(&x)).unwrap();
            let start = driver.record(s).unwrap();
            let args = [
                Arg::Mem(Some((a, 256))),
                Arg::Mem(Some((b, 0))),
                Arg::I32(n as i32),
                Arg::F32(3.0),
                Arg::Struct(bytemuck::cast_slice(&[0i64, 0, 0, 0, 0, 0, 0, 7])),
            ];
            let cfg = LaunchConfig::new([n.div_ceil(256) as u32, 1, 1], [256, 1, 1]);
            driver.launch(s, f, &cfg, &args).unwrap();
            let stop = driver.record(s).unwrap();
            driver.wait(t, stop).unwrap();
            driver.copy(t, (b, 0), (c, 0), bytes).unwrap();
            driver.copy_out(t, c, 0, bytemuck::cast_slice_mut(&mut y)).unwrap();
            driver.event_synchronize(stop).unwrap();
            assert!(driver.elapsed_ns(start, stop).unwrap() > 0);
            driver.synchronize(s).unwrap();
            driver.destroy_event(start);
            driver.destroy_event(stop);
            driver.destroy_stream(s);
            driver.destroy_stream(t);
            for memory in [a, b, c] {
                driver.free(memory);
            }
        }
        for (i, (y, x)) in y.iter().zip(&x).enumerate() {
            assert_eq!(*y, 3.0 * x + 7.0, "element {i}");
        }
    }

    /// The whole prelude, the collectives' exchange between lanes in particular, for the types it differs for and for both widths of wavefronts.
    #[test]
    #[ignore = "run by alone_in_a_process"]
    fn the_dialect_compiles_for_every_dtype() {
        use crate::engine::program::{Dialect, assemble_text};
        const BODY: &str = r#"
GK_KERNEL(probe)(GK_IN(gk_t, x), GK_OUT(gk_t, y), gk_i64 n)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_LOCAL gk_u32 words[GK_BLOCK];
    gk_u32 total;
    gk_i64 i = gk_gid();
    gk_f v = i < n ? gk_load(x, i) : (gk_f)0;
    v = gk_block_sum(v, tmp) + gk_block_max(v, tmp) + gk_group_min(v, tmp, 16);
    v += (gk_f)gk_block_scan((gk_u32)i, words, &total) + (gk_f)gk_philox((gk_u64)i, 1u, 2u).w[3];
    if (i * GK_W + GK_W <= n) gk_storev(y, i * GK_W, gk_loadv(x, i * GK_W));
    else if (i < n) gk_store(y, i, v);
}
"#;
        for dtype in crate::DType::ALL {
            let text = assemble_text(dtype, "", Dialect::named("hip"), "common/probe.c", BODY).unwrap();
            for arch in architectures() {
                match hiprtc::compile_for(&arch, &unit(&text)) {
                    Ok(code) => assert_eq!(&code[..4], b"\x7fELF"),
                    Err(GpuError::Unavailable { reason, .. }) if !required() => {
                        return eprintln!("skipped: {reason}");
                    }
                    Err(e) => panic!("{dtype}: {e}"),
                }
            }
        }
    }
}
