//! Indices out of range: the error names its operation, reaches the handle that queued it and no other, and what may depend on it cannot be read.

mod common;

use common::backends;
use trefoil::ops::core::CoreOps;
use trefoil::ops::elementwise::{ElementwiseOps, Unary};
use trefoil::ops::index::IndexOps;
use trefoil::{BackendExt, Buffer, DType, GpuError, IGpuBackend};

fn out_of_range<T>(r: trefoil::Result<T>) -> bool {
    matches!(r, Err(GpuError::IndexOutOfRange { op: "index_select" }))
}

/// x, an index with one entry that is out of range, and room for the rows.
fn operands(gpu: &dyn IGpuBackend) -> (Buffer, Buffer, Buffer) {
    let x = gpu.upload(&[1.0f32, 2.0, 3.0]).unwrap();
    let bad = gpu.upload(&[0i32, 3]).unwrap();
    (x, bad, gpu.upload(&[0.0f32; 2]).unwrap())
}

#[test]
fn what_was_computed_from_there_on_is_not_read_as_good() {
    for gpu in backends() {
        let (x, bad, mut y) = operands(&*gpu);
        let (mut before, mut after) = (gpu.alloc(DType::F32, 3).unwrap(), gpu.alloc(DType::F32, 2).unwrap());
        gpu.unary(Unary::Neg, x.view(), before.view_mut()).unwrap();
        gpu.index_select(0, x.view(), bad.view(), y.view_mut().into()).unwrap();
        gpu.unary(Unary::Neg, y.view(), after.view_mut()).unwrap();
        // What was there before the faulty call is good, whoever asks first.
        assert_eq!(gpu.download::<f32>(before.view()).unwrap(), [-1.0, -2.0, -3.0], "{}", gpu.id());
        assert!(out_of_range(gpu.download::<f32>(after.view())), "{}", gpu.id());
        for _ in 0..2 {
            assert!(out_of_range(gpu.download::<f32>(y.view())), "{}: as often as it is asked for", gpu.id());
        }
        gpu.synchronize().unwrap();
        // Computed anew, it is good again.
        let good = gpu.upload(&[0i32, 2]).unwrap();
        gpu.index_select(0, x.view(), good.view(), y.view_mut().into()).unwrap();
        assert_eq!(gpu.download::<f32>(y.view()).unwrap(), [1.0, 3.0], "{}", gpu.id());
        assert!(out_of_range(gpu.download::<f32>(after.view())), "{}: not computed anew", gpu.id());
    }
}

#[test]
fn a_wait_reports_it_once_even_after_a_read_of_something_else() {
    for gpu in backends() {
        let (x, bad, mut y) = operands(&*gpu);
        gpu.index_select(0, x.view(), bad.view(), y.view_mut().into()).unwrap();
        assert_eq!(gpu.download::<f32>(x.view()).unwrap(), [1.0, 2.0, 3.0], "{}", gpu.id());
        assert!(out_of_range(gpu.synchronize()), "{}", gpu.id());
        gpu.synchronize().unwrap();
        let mut later = gpu.alloc(DType::F32, 3).unwrap();
        gpu.unary(Unary::Neg, x.view(), later.view_mut()).unwrap();
        assert!(gpu.download::<f32>(later.view()).is_ok(), "{}: computed after the report", gpu.id());
        assert!(out_of_range(gpu.download::<f32>(y.view())), "{}", gpu.id());
    }
}

#[test]
fn another_handle_hears_nothing_of_it() {
    for gpu in backends() {
        let other = gpu.fork_stream().unwrap();
        let (x, bad, mut y) = operands(&*gpu);
        gpu.index_select(0, x.view(), bad.view(), y.view_mut().into()).unwrap();
        std::thread::scope(|s| {
            s.spawn(|| {
                let x = other.upload(&[4.0f32]).unwrap();
                let mut y = other.alloc(DType::F32, 1).unwrap();
                other.unary(Unary::Neg, x.view(), y.view_mut()).unwrap();
                assert_eq!(other.download::<f32>(y.view()).unwrap(), [-4.0]);
                other.synchronize().unwrap();
            });
        });
        assert!(out_of_range(gpu.synchronize()), "{}: the handle that queued it", gpu.id());
        // The memory keeps its mark when it moves to the other handle.
        let moved = other.adopt(y).unwrap();
        assert!(out_of_range(other.download::<f32>(moved.view())), "{}", gpu.id());
    }
}
