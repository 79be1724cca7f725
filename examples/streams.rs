//! Two streams of one device: independent work side by side, ordered by an event, and a buffer that moves from one to the other.
//!
//!     cargo run --example streams
//!
//! A handle is a device plus one in-order stream. Work of one handle runs in the order of the calls; between handles there is no order, except
//! what an event or an adopted buffer makes. On the CPU backend work is done before a call returns, so the example runs there too.

use trefoil::ops::core::CoreOps;
use trefoil::ops::elementwise::{ElementwiseOps, Unary};
use trefoil::{BackendExt, DType, GpuError, Registry, Selector};

fn main() -> trefoil::Result<()> {
    let main = Registry::default().open(&Selector::from_env()?)?;
    // Another stream of the same device; compiled kernels are shared, memory pools are not.
    let side = main.fork_stream()?;
    println!("two streams on {}", main.id());

    let n = 1usize << 20;
    let input = vec![2.0f32; n];
    let (a, b) = (main.upload(&input)?, side.upload(&input)?);
    let mut ya = main.alloc(DType::F32, n)?;
    let mut yb = side.alloc(DType::F32, n)?;

    // Both streams work at once; no call waits for the device.
    let begin = side.record()?;
    main.unary(Unary::Neg, a.view(), ya.view_mut())?;
    side.unary(Unary::Exp, b.view(), yb.view_mut())?;
    let end = side.record()?;

    // Later work of `main` waits on the device for what `side` has done so far; the host goes on.
    main.wait(&end)?;

    // A buffer belongs to the stream that allocated it: using it from another is refused ...
    let refused = main.unary(Unary::Neg, yb.view(), ya.view_mut());
    assert!(refused.is_err() || main.caps().is_cpu);
    // ... until it has been moved over, which orders the streams and hands the memory to the new stream's pool.
    let yb = main.adopt(yb)?;
    let mut sum = main.alloc(DType::F32, n)?;
    main.unary(Unary::Neg, yb.view(), sum.view_mut())?;

    let result = main.download::<f32>(sum.view())?;
    println!("-exp(2) = {}", result[0]);
    end.synchronize()?;
    println!("exp of {n} elements took {:.1} us on the device", begin.elapsed_ns(&end)? as f64 / 1e3);
    println!("{:?}", main.counters());

    let expected = -(2.0f32.exp());
    if result.iter().all(|y| (y - expected).abs() <= 1e-5 * expected.abs()) {
        return Ok(());
    }
    Err(GpuError::Config("the streams computed something else".into()))
}
