//! Times of calls: on the mock driver what is asked of it, on every device that is there that kernels lie within the whole.

mod common;

use std::sync::Arc;

use common::backends;
use trefoil::ops::elementwise::{Binary, Unary};
use trefoil::prelude::*;
use trefoil::testing::{Call, MockDriver};
use trefoil::{BackendExt, CpuBackend, DType, Engine, GpuError};

#[test]
fn every_launch_has_an_event_before_and_after() {
    let driver = Arc::new(MockDriver::default());
    let e = Engine::new(driver.clone()).unwrap();
    let [x, y, z] = [64, 64, 64].map(|n| e.alloc(DType::F32, n).unwrap());
    let add = Binary::Add { alpha: 1.0 };
    let calls = || {
        e.unary(Unary::Neg, x.view(), y.alias_mut())?;
        // A row that is added to eight rows counts once.
        let row = x.view().range(0, 8)?.broadcast_to(&[8, 8])?;
        e.binary(add, y.view().reshape(&[8, 8])?, row, z.alias_mut().reshape(&[8, 8])?)?;
        e.copy(z.view(), y.alias_mut())
    };
    calls().unwrap();
    let handles = driver.live_handles();
    driver.clear();
    let p = e.profile_calls(&mut || calls()).unwrap();
    let kinds: Vec<_> = driver
        .calls()
        .iter()
        .filter_map(|c| match c {
            Call::Record(..) => Some("event"),
            Call::Launch { .. } => Some("launch"),
            Call::Copy(..) => Some("copy"),
            _ => None,
        })
        .collect();
    assert_eq!(kinds, ["event", "launch", "event", "event", "launch", "event", "event", "copy", "event"]);
    let ops: Vec<_> = p.ops.iter().map(|o| (o.name, o.bytes.unwrap())).collect();
    assert_eq!(ops, [("unary", 512), ("binary", 544), ("copy", 512)]);
    assert_eq!(p.launches.iter().map(|l| l.op.unwrap()).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(p.launches[2].name, "copy");
    assert!(p.launches.windows(2).all(|w| w[0].queued_ns <= w[1].queued_ns));
    assert_eq!(driver.live_handles(), handles, "the events are gone");
    driver.clear();
    calls().unwrap();
    assert!(!driver.calls().iter().any(|c| matches!(c, Call::Record(..))), "no cost when off");
}

#[test]
fn what_cannot_be_profiled_is_refused_and_leaves_nothing() {
    let driver = Arc::new(MockDriver::default());
    let e = Engine::new(driver.clone()).unwrap();
    let (x, y) = (e.alloc(DType::F32, 8).unwrap(), e.alloc(DType::F32, 8).unwrap());
    let neg = || e.unary(Unary::Neg, x.view(), y.alias_mut());
    neg().unwrap();
    let handles = driver.live_handles();
    let within = e.profile_calls(&mut || e.profile_calls(&mut || neg()).map(drop));
    assert!(matches!(within, Err(GpuError::Invalid(_))), "{within:?}");
    let recorded = e.capture_calls(&mut || e.profile_calls(&mut || neg()).map(drop));
    assert!(matches!(recorded, Err(GpuError::Capture { op: "profile_calls", .. })), "{recorded:?}");
    for method in ["launch", "record"] {
        driver.fail_next(method, GpuError::driver("test", 1, "asked for"));
        let failed = e.profile_calls(&mut || neg());
        assert!(matches!(failed, Err(GpuError::Driver(_))), "{method}: {failed:?}");
        assert_eq!(driver.live_handles(), handles, "{method}: the events are gone");
    }
    let cpu = CpuBackend::new();
    let within = cpu.profile_calls(&mut || cpu.profile_calls(&mut || Ok(())).map(drop));
    assert!(matches!(within, Err(GpuError::Invalid(_))), "{within:?}");
    assert_eq!(e.profile_calls(&mut || neg()).unwrap().launches.len(), 1, "another goes on");
}

#[test]
fn kernels_lie_within_the_whole_one_after_the_other() {
    for gpu in backends() {
        let n = 1 << 16;
        let x = gpu.upload(&vec![0.5f32; n]).unwrap();
        let y = gpu.alloc(DType::F32, n).unwrap();
        let calls = || (0..5).try_for_each(|_| gpu.unary(Unary::Exp, x.view(), y.alias_mut()));
        calls().unwrap();
        let p = gpu.profile_calls(&mut || calls()).unwrap();
        assert_eq!((p.launches.len(), p.ops.len()), (5, 5), "{}", gpu.id());
        assert!(p.launches.iter().all(|l| l.ns > 0), "{}: {:?}", gpu.id(), p.launches);
        assert!(p.launches.windows(2).all(|w| w[0].start_ns + w[0].ns <= w[1].start_ns), "{}", gpu.id());
        let sum: u64 = p.launches.iter().map(|l| l.ns).sum();
        assert!(sum <= p.device_ns, "{}: {sum} of {} ns", gpu.id(), p.device_ns);
        let bytes = (gpu.id() != CpuBackend::new().id()).then_some(8 * n as u64);
        assert!(p.ops.iter().all(|o| o.name == "unary" && o.bytes == bytes), "{}: {:?}", gpu.id(), p.ops);
    }
}
