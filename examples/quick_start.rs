//! The example of README.md: one layer on whatever device there is.
//!
//!     cargo run --example quick_start

use trefoil::ops::activation::Activation;
use trefoil::ops::gemm::{Gemm, GemmIo};
use trefoil::{BackendExt, DType, Registry, Selector};

fn main() -> trefoil::Result<()> {
    let gpu = Registry::default().open(&Selector::from_env()?)?;
    let x = gpu.upload(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])?; // [2, 3]
    let w = gpu.upload(&[1.0f32, 0.0, -1.0, 0.5, 0.5, 0.5])?; // [2, 3]: a Linear weight
    let b = gpu.upload(&[1.5f32, -2.0])?;
    let mut y = gpu.alloc(DType::F32, 4)?;

    // y = relu(x w^T + b), one launch
    let layer = Gemm::new().trans(false, true).act(Activation::Relu);
    let mut io = GemmIo::new(x.shaped(&[2, 3])?, w.shaped(&[2, 3])?, y.shaped_mut(&[2, 2])?);
    io.bias = Some(b.view());
    gpu.gemm(&layer, io)?;

    println!("{}: {:?}", gpu.id(), gpu.download::<f32>(y.view())?); // [0.0, 1.0, 0.0, 5.5]
    Ok(())
}
