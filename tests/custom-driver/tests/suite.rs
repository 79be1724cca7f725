//! The host driver passes what trefoil asks of a driver, and serves as a backend of a registry.

use std::sync::Arc;

use trefoil::testing::driver_suite;
use trefoil::{
    BackendExt, BackendKind, DType, DeviceId, GpuError, IGpuBackend, Registry, Selector, Unavailable,
};
use trefoil_custom_driver::{HostDriver, HostFactory};

/// The driver; nothing, with the reason printed, where the system has no C++ compiler.
fn driver() -> Option<HostDriver> {
    match HostDriver::open() {
        Ok(d) => Some(d),
        Err(e) => {
            assert!(!trefoil::is_required("c++"), "TREFOIL_REQUIRE names c++: {e}");
            println!("skipped: {e}");
            None
        }
    }
}

fn registry() -> Registry {
    let mut r = Registry::empty();
    r.register(HostFactory);
    r
}

#[test]
fn the_driver_passes_the_suite() {
    let Some(driver) = driver() else { return };
    driver_suite(Arc::new(driver)).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn a_registry_opens_it() {
    if driver().is_none() {
        return;
    }
    let reports = registry().probe_all();
    assert_eq!(reports.len(), 1);
    assert_eq!(reports[0].result.as_ref().unwrap()[0].name, "the host");
    let gpu: Arc<dyn IGpuBackend> = registry().open(&"custom".parse::<Selector>().unwrap()).unwrap();
    assert_eq!(gpu.id(), DeviceId::new(BackendKind::Custom, 0));
    let x = gpu.upload(&[3f32, 1.0, 2.0]).unwrap();
    let mut y = gpu.alloc(DType::F32, 3).unwrap();
    let mut index = gpu.alloc(DType::I64, 3).unwrap();
    let io = trefoil::ops::sort::SortIo::new(x.view()).y(y.view_mut()).index(index.view_mut());
    gpu.sort(0, false, io).unwrap();
    assert_eq!(gpu.download::<f32>(y.view()).unwrap(), [1.0, 2.0, 3.0]);
    assert_eq!(gpu.download::<i64>(index.view()).unwrap(), [1, 2, 0]);
    match registry().open(&"custom:1".parse().unwrap()) {
        Err(GpuError::Unavailable { reason, .. }) => assert!(matches!(*reason, Unavailable::NoDevice { .. })),
        other => panic!("{other:?}"),
    }
}

/// Halves go through the dialect's own conversions.
#[test]
fn halves_are_converted_exactly() {
    let Some(driver) = driver() else { return };
    let gpu = trefoil::Engine::new(Arc::new(driver)).unwrap();
    use trefoil::prelude::*;
    let bits: Vec<u16> = (0..=u16::MAX).collect();
    let mut half = gpu.alloc(DType::F16, bits.len()).unwrap();
    gpu.write_bytes(half.view_mut(), &bits.iter().flat_map(|b| b.to_le_bytes()).collect::<Vec<u8>>())
        .unwrap();
    let mut single = gpu.alloc(DType::F32, bits.len()).unwrap();
    gpu.cast(half.view(), single.view_mut()).unwrap();
    let mut back = gpu.alloc(DType::F16, bits.len()).unwrap();
    gpu.cast(single.view(), back.view_mut()).unwrap();
    let mut bytes = vec![0; 2 * bits.len()];
    gpu.read_bytes(back.view(), &mut bytes).unwrap();
    let single: Vec<f32> = gpu.download(single.view()).unwrap();
    for (i, pair) in bytes.chunks_exact(2).enumerate() {
        let got = u16::from_le_bytes([pair[0], pair[1]]);
        // Signalling NaNs become quiet.
        let want = bits[i] | if single[i].is_nan() { 0x200 } else { 0 };
        assert_eq!(got, want, "{:#x} by way of {}", bits[i], single[i]);
    }
    assert_eq!((single[0x3c00], single[0x0001], single[0xfbff]), (1.0, 2f32.powi(-24), -65504.0));
}
