//! Rules of selection, with made-up backends.
#![allow(missing_docs)]

use std::sync::{Arc, Mutex};

use trefoil::testing::MockDriver;
use trefoil::{
    BackendFactory, BackendKind, Caps, CpuBackend, DeviceId, Engine, GpuError, IGpuBackend, Registry,
    Selector, Unavailable,
};

type Log = Arc<Mutex<Vec<DeviceId>>>;

/// A factory that notes what it opens and hands out the CPU backend.
struct Fake {
    kind: BackendKind,
    /// Whether each device is a CPU and whether it opens; none is a failed probe.
    devices: Vec<(bool, bool)>,
    log: Log,
}

impl BackendFactory for Fake {
    fn kind(&self) -> BackendKind {
        self.kind
    }

    fn probe(&self) -> Result<Vec<Caps>, Unavailable> {
        if self.devices.is_empty() {
            return Err(Unavailable::NoDevice { what: format!("made up by {}", self.kind) });
        }
        let caps = |(i, &(is_cpu, _)): (u32, &(bool, bool))| {
            let mut c = Caps::new(DeviceId::new(self.kind, i), "fake", "fake");
            c.is_cpu = is_cpu;
            c
        };
        Ok((0..).zip(&self.devices).map(caps).collect())
    }

    fn open(&self, ordinal: u32) -> trefoil::Result<Arc<dyn IGpuBackend>> {
        self.log.lock().unwrap().push(DeviceId::new(self.kind, ordinal));
        match self.devices.get(ordinal as usize) {
            Some((_, true)) => Ok(Arc::new(CpuBackend::new())),
            _ => {
                let what = format!("broken {}:{ordinal}", self.kind);
                Err(GpuError::unavailable(self.kind, Unavailable::SelfTestFailed { what }))
            }
        }
    }
}

const GOOD: (bool, bool) = (false, true);
const BROKEN: (bool, bool) = (false, false);
const GOOD_CPU: (bool, bool) = (true, true);

fn registry(kinds: &[(BackendKind, &[(bool, bool)])]) -> (Registry, Log) {
    let log = Log::default();
    let mut r = Registry::empty().with_self_test(false);
    for (kind, devices) in kinds {
        r.register(Fake { kind: *kind, devices: devices.to_vec(), log: log.clone() });
    }
    (r, log)
}

fn opened(r: &Registry, log: &Log, selector: Selector) -> Result<Vec<String>, GpuError> {
    log.lock().unwrap().clear();
    r.open(&selector).map(|_| log.lock().unwrap().iter().map(|id| id.to_string()).collect())
}

const AUTO: Selector = Selector::Auto { allow_cpu: true };
const AUTO_GPU: Selector = Selector::Auto { allow_cpu: false };
use BackendKind::{Cpu, Cuda, Custom, Hip, OpenCl};

#[test]
fn auto_prefers_cuda_then_hip_then_opencl_then_custom_then_cpu() {
    let all: [(BackendKind, &[(bool, bool)]); 5] =
        [(Cpu, &[GOOD_CPU]), (OpenCl, &[GOOD]), (Custom, &[GOOD]), (Hip, &[GOOD]), (Cuda, &[GOOD])];
    let order = ["cuda:0", "hip:0", "opencl:0", "custom:0", "cpu:0"];
    let kinds = [Cuda, Hip, OpenCl, Custom, Cpu];
    for first in 0..5 {
        let some: Vec<_> = all.iter().copied().filter(|(k, _)| kinds[first..].contains(k)).collect();
        let (r, log) = registry(&some);
        assert_eq!(opened(&r, &log, AUTO).unwrap(), [order[first]]);
    }
}

#[test]
fn auto_goes_on_after_a_failure() {
    let (r, log) = registry(&[(Cuda, &[BROKEN, GOOD]), (Cpu, &[GOOD_CPU])]);
    assert_eq!(opened(&r, &log, AUTO).unwrap(), ["cuda:0", "cuda:1"]);
    let (r, log) = registry(&[(Cuda, &[BROKEN]), (Hip, &[]), (OpenCl, &[GOOD]), (Cpu, &[GOOD_CPU])]);
    assert_eq!(opened(&r, &log, AUTO).unwrap(), ["cuda:0", "opencl:0"]);
}

#[test]
fn auto_leaves_cpus_to_the_cpu_backend() {
    let (r, log) = registry(&[(OpenCl, &[GOOD_CPU]), (Cpu, &[GOOD_CPU])]);
    assert_eq!(opened(&r, &log, AUTO).unwrap(), ["cpu:0"]);
    assert_eq!(opened(&r, &log, "opencl".parse().unwrap()).unwrap(), ["opencl:0"]);
}

#[test]
fn auto_without_the_cpu_lists_every_reason() {
    let (r, log) = registry(&[(Cuda, &[]), (Hip, &[BROKEN]), (OpenCl, &[GOOD_CPU]), (Cpu, &[GOOD_CPU])]);
    let e = opened(&r, &log, AUTO_GPU).unwrap_err();
    let GpuError::Config(text) = &e else { panic!("{e:?}") };
    for part in ["made up by cuda", "broken hip:0", "opencl: only CPU devices", "cpu: not allowed"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(log.lock().unwrap().as_slice(), [DeviceId::new(Hip, 0)]);
    assert!(matches!(Registry::empty().open(&AUTO), Err(GpuError::Config(_))));
}

#[test]
fn exact_never_falls_back() {
    let (r, log) = registry(&[(Cuda, &[BROKEN, GOOD]), (Cpu, &[GOOD_CPU])]);
    assert!(matches!(
        opened(&r, &log, "cuda".parse().unwrap()),
        Err(GpuError::Unavailable { kind: Cuda, .. })
    ));
    assert_eq!(log.lock().unwrap().len(), 1);
    assert_eq!(opened(&r, &log, "cuda:1".parse().unwrap()).unwrap(), ["cuda:1"]);
    let e = opened(&r, &log, "hip".parse().unwrap()).unwrap_err();
    assert!(matches!(&e, GpuError::Config(t) if t.contains("cuda, cpu")), "{e}");
    assert!(log.lock().unwrap().is_empty());
}

#[test]
fn selectors_parse_and_print() {
    assert_eq!("auto".parse::<Selector>().unwrap(), AUTO);
    for (text, kind, n) in [
        ("cuda", Cuda, 0),
        ("CUDA:3", Cuda, 3),
        (" hip ", Hip, 0),
        ("opencl:1", OpenCl, 1),
        ("cpu", Cpu, 0),
        ("custom:2", Custom, 2),
    ] {
        let s: Selector = text.parse().unwrap();
        assert_eq!(s, Selector::Exact(DeviceId::new(kind, n)));
        assert_eq!(s.to_string(), format!("{}:{n}", kind.name()));
    }
    for bad in ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1:2", "auto:1", "cuda:99999999999"] {
        match bad.parse::<Selector>() {
            Err(GpuError::Config(t)) => assert!(t.contains("cuda[:N]") && t.contains("opencl"), "{t}"),
            other => panic!("{bad}: {other:?}"),
        }
    }
}

#[test]
fn a_later_factory_replaces_one_of_its_kind() {
    let (mut r, log) = registry(&[(Cuda, &[])]);
    r.register(Fake { kind: Cuda, devices: vec![GOOD], log: log.clone() });
    assert_eq!(opened(&r, &log, AUTO).unwrap(), ["cuda:0"]);
    assert_eq!(r.probe_all().len(), 1);
}

#[test]
fn the_default_reports_on_every_backend() {
    let kinds: Vec<_> = Registry::default().probe_all().iter().map(|r| r.kind).collect();
    assert_eq!(kinds, [Cuda, Hip, OpenCl, Cpu]);
    let cpu = Registry::default().probe_all().pop().unwrap();
    assert!(cpu.to_string().starts_with("cpu:0: CPU"), "{cpu}");
}

/// An engine whose kernels do nothing: the self-test must notice.
struct Wrong;

impl BackendFactory for Wrong {
    fn kind(&self) -> BackendKind {
        Custom
    }

    fn probe(&self) -> Result<Vec<Caps>, Unavailable> {
        Ok(vec![Caps::new(DeviceId::new(Custom, 7), "wrong", "wrong")])
    }

    fn open(&self, _: u32) -> trefoil::Result<Arc<dyn IGpuBackend>> {
        let caps = Caps::new(DeviceId::new(Custom, 7), "wrong", "wrong");
        Ok(Arc::new(Engine::new(Arc::new(MockDriver::new(caps)))?))
    }
}

#[test]
fn the_self_test_notices_wrong_answers() {
    let mut r = Registry::empty().with_self_test(true);
    r.register(Wrong);
    for _ in 0..2 {
        match r.open(&Selector::Exact(DeviceId::new(Custom, 0))) {
            Err(GpuError::Unavailable { reason, .. }) => {
                assert!(matches!(*reason, Unavailable::SelfTestFailed { .. }), "{reason}");
            }
            other => panic!("{other:?}"),
        }
    }
    r.with_self_test(false).open(&Selector::Exact(DeviceId::new(Custom, 0))).unwrap();
}
