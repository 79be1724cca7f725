//! Kernels of users: a launch passes only what the prototype says, whatever safe code asks for.

mod common;

use common::backends;
use trefoil::ops::core::{CoreOps, RawArg, RawKernel};
use trefoil::{BackendExt, DType, GpuError, IGpuBackend};

const SCALE: &str = r#"
GK_KERNEL(scale)(GK_IN(gk_t, x), gk_i64 x_len, GK_OUT(gk_t, y), gk_i64 y_len, float a, int n)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    for (gk_i64 i = gk_gid(); i < n && i < x_len && i < y_len; i += gk_gsize()) gk_store(y, i, (gk_f)a * gk_load(x, i));
}
"#;

/// The kernel, where the backend compiles any.
fn compiled(gpu: &dyn IGpuBackend, source: &str, entry: &str) -> trefoil::Result<RawKernel> {
    // SAFETY: prototypes are in effect as written, and loops end with the shortest buffer.
    unsafe { gpu.compile_raw(source, entry, DType::F32) }
}

#[test]
fn a_launch_checks_every_argument() {
    for gpu in backends() {
        let kernel = match compiled(&*gpu, SCALE, "scale") {
            Ok(k) => k,
            Err(GpuError::Unsupported { .. }) if gpu.caps().is_cpu => continue,
            Err(e) => panic!("{}: {e}", gpu.id()),
        };
        let x = gpu.upload(&[1.0f32, 2.0, 3.0, 4.0]).unwrap();
        let wide = gpu.upload(&[1.0f64; 4]).unwrap();
        let other = gpu.fork_stream().unwrap();
        let foreign = other.upload(&[0.0f32; 4]).unwrap();
        let mut y = gpu.upload(&[0.0f32; 8]).unwrap();
        let run = |grid, args: &mut [RawArg<'_>]| gpu.launch_raw(&kernel, grid, args);
        let part = y.view_mut().range(2, 4).unwrap();
        // More elements than there are: the kernel knows the lengths.
        run([1; 3], &mut [RawArg::In(x.view()), RawArg::Out(part), RawArg::F32(2.0), RawArg::I32(i32::MAX)])
            .unwrap();
        let want = [0.0, 0.0, 2.0, 4.0, 6.0, 8.0, 0.0, 0.0];
        assert_eq!(gpu.download::<f32>(y.view()).unwrap(), want, "{}", gpu.id());

        let out = || RawArg::Out(y.alias_mut());
        let (a, n) = (|| RawArg::F32(2.0), || RawArg::I32(4));
        let every_second = y.view().map("step", |l| l.slice(0, 0, 8, 2)).unwrap();
        let refused: Vec<(&str, [u32; 3], Vec<RawArg<'_>>)> = vec![
            ("4 arguments: x, y, a, n", [1; 3], vec![]),
            ("4 arguments", [1; 3], vec![RawArg::In(x.view()), out(), a(), n(), n()]),
            ("In(F32) for `x`", [1; 3], vec![a(), out(), a(), n()]),
            ("In(F32) for `x`", [1; 3], vec![RawArg::In(wide.view()), out(), a(), n()]),
            ("Out(F32) for `y`", [1; 3], vec![RawArg::In(x.view()), RawArg::In(x.view()), a(), n()]),
            ("for `n`", [1; 3], vec![RawArg::In(x.view()), out(), a(), RawArg::I64(4)]),
            ("another stream", [1; 3], vec![RawArg::In(foreign.view()), out(), a(), n()]),
            ("contiguous", [1; 3], vec![RawArg::In(every_second), RawArg::Out(x.alias_mut()), a(), n()]),
            ("apart", [1; 3], vec![RawArg::In(y.view()), out(), a(), n()]),
            ("blocks", [0, 1, 1], vec![RawArg::In(x.view()), out(), a(), n()]),
            ("blocks", [1, 65_536, 1], vec![RawArg::In(x.view()), out(), a(), n()]),
            ("blocks", [1 << 31, 1, 1], vec![RawArg::In(x.view()), out(), a(), n()]),
        ];
        for (why, grid, mut args) in refused {
            let e = run(grid, &mut args).unwrap_err();
            assert!(
                matches!(e, GpuError::Invalid(_)) && e.to_string().contains(why),
                "{}: {why}: {e}",
                gpu.id()
            );
        }
        // A caller's mistake leaves the handle as it was.
        assert_eq!(gpu.download::<f32>(y.view()).unwrap(), want, "{}", gpu.id());
    }
}

#[test]
fn a_text_without_a_prototype_to_check_is_refused() {
    for gpu in backends().into_iter().filter(|g| !g.caps().is_cpu || g.id().kind != trefoil::BackendKind::Cpu)
    {
        for (source, entry) in [
            (SCALE, "other"),
            ("GK_KERNEL(k)(int *a) {}", "k"),
            ("GK_KERNEL(k)(GK_IN(struct s, a)) {}", "k"),
            ("GK_KERNEL(k)(int a", "k"),
        ] {
            let e = compiled(&*gpu, source, entry).unwrap_err();
            assert!(
                matches!(e, GpuError::Invalid(_)) && e.to_string().contains("`source`"),
                "{}: {e}",
                gpu.id()
            );
        }
        let broken = "GK_KERNEL(k)(int a) { this is no C; }";
        assert!(matches!(compiled(&*gpu, broken, "k"), Err(GpuError::Compile(_))), "{}", gpu.id());
        assert!(
            gpu.upload(&[1.0f32]).is_ok(),
            "{}: a text that does not compile leaves the handle as it was",
            gpu.id()
        );
    }
}
