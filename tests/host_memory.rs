//! Views of more elements than a machine holds cost nothing to make: operations of the CPU backend that would copy one answer `OutOfMemory`.

use trefoil::ops::pool::Window;
use trefoil::ops::reduce::{ArgReduce, Reduce};
use trefoil::prelude::*;
use trefoil::{BackendExt, CpuBackend, DType, GpuError, Result, View};

/// Elements of a repeated view: 8 TiB in f64.
const MANY: usize = 1 << 40;

fn short_of_memory(what: &str, result: Result<()>) {
    match result {
        Err(GpuError::OutOfMemory { requested, .. }) if requested >= MANY / 2 => {}
        other => panic!("{what}: {other:?}"),
    }
}

fn repeated<'a>(v: View<'a>, shape: &[usize]) -> Result<View<'a>> {
    v.broadcast_to(shape)
}

#[test]
fn copies_of_repeated_views_are_refused_with_their_size() -> Result<()> {
    let gpu = CpuBackend::new();
    let x = gpu.upload(&[1.0f32])?;
    let byte = gpu.upload(&[1u8])?;
    let mut y = gpu.alloc(DType::F32, 1)?;
    let mut index = gpu.alloc(DType::I64, 1)?;
    let mut flag = gpu.alloc(DType::U8, 1)?;
    let wide = repeated(x.view(), &[MANY])?;
    let flags = repeated(byte.view(), &[MANY])?;
    short_of_memory("sum", gpu.reduce(Reduce::Sum, &[0], wide, y.view_mut().reshape(&[])?));
    short_of_memory("any", gpu.reduce(Reduce::Any, &[0], flags, flag.view_mut().reshape(&[])?));
    short_of_memory("dot", gpu.dot(wide, wide, y.view_mut().reshape(&[])?));
    let at = index.view_mut().reshape(&[])?;
    short_of_memory("argmax", gpu.arg_reduce(ArgReduce::Max, 0, wide, at, None));
    Ok(())
}

/// The counts of a repetition show as many elements as the output has, whatever they say.
#[test]
fn wild_counts_of_a_repetition_cost_no_more_than_the_output() -> Result<()> {
    let gpu = CpuBackend::new();
    let (n, size) = (1 << 16, 1 << 16);
    let x = gpu.upload(&vec![1u8; n])?;
    let counts = gpu.upload(&vec![i32::MAX; n])?;
    let mut y = gpu.alloc(DType::U8, size)?;
    gpu.repeat_interleave(0, 1, Some(counts.view()), x.view(), y.view_mut())?;
    assert!(matches!(gpu.synchronize(), Err(GpuError::IndexOutOfRange { .. })));
    // What was written before the report is not read as good; a copy of it made after the report can be.
    let mut z = gpu.alloc(DType::U8, size)?;
    gpu.copy(y.view(), z.view_mut())?;
    assert_eq!(gpu.download::<u8>(z.view())?, vec![1; size]);
    Ok(())
}

/// A window of 2^29 taps over one cell looks at that cell.
#[test]
fn windows_far_wider_than_the_input_cost_what_the_input_costs() -> Result<()> {
    let gpu = CpuBackend::new();
    let x = gpu.upload(&[3.0f32])?;
    let mut y = gpu.alloc(DType::F32, 2)?;
    let windows = Window::new(&[1 << 29]).stride(&[1]).padding(&[1 << 28]);
    gpu.max_pool(windows.into(), x.shaped(&[1, 1, 1])?, y.shaped_mut(&[1, 1, 2])?, None)?;
    assert_eq!(gpu.download::<f32>(y.view())?, [3.0; 2]);
    Ok(())
}
