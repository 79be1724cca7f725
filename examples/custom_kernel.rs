//! A kernel of one's own, written once and run on CUDA, HIP or OpenCL.
//!
//!     TREFOIL_BACKEND=opencl cargo run --example custom_kernel
//!
//! The text is written in the dialect of `docs/KERNEL_DIALECT.md`. The CPU backend has no kernel compiler and says so.

use trefoil::ops::core::{CoreOps, RawArg};
use trefoil::spec::BLOCK;
use trefoil::{BackendExt, DType, GpuError, Registry, Selector};

/// y = a*x + y. Pointers are declared with GK_IN and GK_OUT and bound in the body, because OpenCL passes an object and an offset. The launch
/// itself passes `x_len` and `y_len`, so that the kernel stays inside both whatever it is launched with.
const AXPY: &str = r#"
GK_KERNEL(axpy)(GK_IN(gk_t, x), gk_i64 x_len, GK_OUT(gk_t, y), gk_i64 y_len, float a)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    gk_i64 n = x_len < y_len ? x_len : y_len;
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) gk_store(y, i, a * gk_load(x, i) + gk_load(y, i));
}
"#;

fn main() -> trefoil::Result<()> {
    let gpu = Registry::default().open(&Selector::from_env()?)?;
    println!("on {} ({})", gpu.id(), gpu.caps().name);

    // `gk_t` is what the dtype says; the same text serves f16 and bf16.
    // SAFETY: the prototype is in effect as written, and the loop ends with the shorter buffer.
    let kernel = match unsafe { gpu.compile_raw(AXPY, "axpy", DType::F32) } {
        Ok(kernel) => kernel,
        Err(GpuError::Unsupported { why, .. }) => {
            println!("this backend compiles no kernels: {why}");
            println!("set TREFOIL_BACKEND to cuda, hip or opencl");
            return Ok(());
        }
        Err(e) => return Err(e),
    };

    let n = 1_000_000usize;
    let x = gpu.upload(&vec![2.0f32; n])?;
    let mut y = gpu.upload(&(0..n).map(|i| i as f32).collect::<Vec<_>>())?;
    // A grid-stride loop takes any number of blocks.
    let blocks = n.div_ceil(BLOCK as usize).min(1024) as u32;
    gpu.launch_raw(
        &kernel,
        [blocks, 1, 1],
        &mut [RawArg::In(x.view()), RawArg::Out(y.view_mut()), RawArg::F32(0.5)],
    )?;

    let result = gpu.download::<f32>(y.view())?;
    let wrong = result.iter().enumerate().filter(|&(i, y)| *y != i as f32 + 1.0).count();
    println!("{n} elements, {wrong} wrong");
    match wrong {
        0 => Ok(()),
        _ => Err(GpuError::Config("the kernel computed something else".into())),
    }
}
