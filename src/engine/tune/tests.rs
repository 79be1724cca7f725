//! What is kept, when it is used, and what is measured, on a driver without a device and on OpenCL.

use std::fs;
use std::path::PathBuf;

use super::*;
use crate::backend::BackendExt;
use crate::device::{BackendKind, DeviceId};
use crate::engine::plan::{Choices, Problem, Reason, Variant};
use crate::engine::{Device, Engine, program};
use crate::ops::IGpuBackend;
use crate::ops::core::{CaptureOps, ChosenBy, CoreOps, InteropOps, Tuned};
use crate::ops::gemm::{Gemm, GemmIo};
use crate::ops::shape::ShapeOps;
use crate::test_devices::present;
use crate::testing::MockDriver;
use crate::{Buffer, DType};

/// A problem of three variants, of which the second needs f64 and the last is odd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Toy(usize);

impl Problem for Toy {
    type Plan = usize;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: "first", source: "a" },
        Variant { name: "double", source: "b" },
        Variant { name: "last", source: "c" },
    ];

    fn plan(&self, variant: usize, caps: &Caps) -> std::result::Result<usize, Reason> {
        match variant {
            1 if !caps.f64 => Err("there is no f64".into()),
            _ => Ok(variant),
        }
    }

    fn key(&self) -> Option<&dyn ProblemKey> {
        Some(self)
    }
}

fn caps(f64: bool) -> Caps {
    let mut caps = Caps::new(DeviceId::new(BackendKind::Custom, 0), "mock", "mock");
    caps.f64 = f64;
    caps
}

fn record(chosen: &str) -> Record {
    Record {
        chosen: chosen.into(),
        preferred: "first".into(),
        times: vec![("first".into(), 20), (chosen.into(), 10)],
    }
}

/// A folder for a disk cache, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("trefoil-tune-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        Folder(dir)
    }

    /// The store that a process opens here for a device with these kernels.
    fn store(&self, caps: Caps, kernels: &str) -> Arc<Store> {
        let disk = DiskCache::at(Some(self.0.clone()), 1 << 20);
        Arc::new(Store::open(&MockDriver::new(caps), disk, kernels))
    }

    /// Keeps a choice for `Toy(3)` of the operation `sort`.
    fn holding(self, chosen: &str) -> Self {
        let store = self.store(caps(true), "text");
        store.remember("sort", &Toy(3).text(), record(chosen));
        assert!(store.keep([("sort", Toy(3).text().as_str())].into_iter()));
        self
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn plan(choices: &Choices, op: &'static str, toy: Toy) -> usize {
    choices.plan(op, &caps(true), &toy).unwrap()
}

#[test]
fn a_choice_is_taken_by_later_processes_for_equal_problems() {
    let folder = Folder::new("kept").holding("last");
    let choices = Choices::default().measured(Some(folder.store(caps(true), "text")));
    for _ in 0..2 {
        assert_eq!([plan(&choices, "sort", Toy(3)), plan(&choices.fork(), "sort", Toy(3))], [2, 2]);
        assert_eq!([plan(&choices, "sort", Toy(4)), plan(&choices, "topk", Toy(3))], [0, 0]);
    }
    let c = choices.explain("sort", &caps(true), &Toy(3)).unwrap();
    assert_eq!((c.chosen.as_str(), c.by), ("last", ChosenBy::Measurement));
    assert_eq!(c.measured, record("last").times);
    assert_eq!(c.alternatives().collect::<Vec<_>>(), ["first", "double"]);
    let other = choices.explain("sort", &caps(true), &Toy(4)).unwrap();
    assert_eq!((other.by, other.measured), (ChosenBy::Rule, vec![]));
}

#[test]
fn two_processes_keep_what_both_measured() {
    let folder = Folder::new("both");
    let [a, b] = [(); 2].map(|()| folder.store(caps(true), "text"));
    for (store, problem) in [(&a, "one"), (&b, "two")] {
        store.remember("sort", problem, record("last"));
        assert!(store.keep([("sort", problem)].into_iter()));
    }
    let known = folder.store(caps(true), "text").known.read().unwrap().records.clone();
    assert_eq!(known.keys().collect::<Vec<_>>(), ["sort\tone", "sort\ttwo"]);
}

#[test]
fn a_damaged_file_is_passed_over() {
    let folder = Folder::new("damaged").holding("last");
    let file = fs::read_dir(&folder.0).unwrap().next().unwrap().unwrap().path();
    let good = fs::read(&file).unwrap();
    for at in [0, 20, good.len() - 2] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        fs::write(&file, bad).unwrap();
        let store = folder.store(caps(true), "text");
        assert!(!store.is_active(), "byte {at}");
        assert_eq!(plan(&Choices::default().measured(Some(store)), "sort", Toy(3)), 0);
    }
    fs::write(&file, &good).unwrap();
    assert!(folder.store(caps(true), "text").is_active());
}

#[test]
fn choices_of_other_devices_and_kernels_are_not_used() {
    let folder = Folder::new("others").holding("last");
    let device = |change: fn(&mut Caps)| {
        let mut caps = caps(true);
        change(&mut caps);
        folder.store(caps, "text")
    };
    assert!(device(|_| {}).is_active());
    for (what, store) in [
        ("name", device(|c| c.name = "other".into())),
        ("architecture", device(|c| c.arch = "other".into())),
        ("driver", device(|c| c.driver_version = "2".into())),
        ("size", device(|c| c.compute_units += 1)),
        ("kernels", folder.store(caps(true), "another text")),
    ] {
        assert!(!store.is_active(), "{what}");
    }
}

#[test]
fn what_no_longer_applies_gives_way_to_the_rules() {
    let folder = Folder::new("stale").holding("double");
    let choices = Choices::default().measured(Some(folder.store(caps(true), "text")));
    assert_eq!(choices.plan("sort", &caps(true), &Toy(3)).unwrap(), 1);
    assert_eq!(choices.plan("sort", &caps(false), &Toy(3)).unwrap(), 0);
    let gone = Folder::new("gone").holding("removed");
    let choices = Choices::default().measured(Some(gone.store(caps(true), "text")));
    let c = choices.explain("sort", &caps(true), &Toy(3)).unwrap();
    assert_eq!((c.chosen.as_str(), c.by), ("first", ChosenBy::Rule));
}

#[test]
fn pins_come_before_measured_choices_and_off_leaves_them_out() {
    let folder = Folder::new("pins").holding("last");
    let choices = Choices::default().measured(Some(folder.store(caps(true), "text")));
    choices.pin("sort", Some("double"));
    assert_eq!(plan(&choices, "sort", Toy(3)), 1);
    assert_eq!(choices.explain("sort", &caps(true), &Toy(3)).unwrap().by, ChosenBy::Pin);
    choices.pin("sort", None);
    assert_eq!(plan(&choices, "sort", Toy(3)), 2);
    assert_eq!(plan(&Choices::default().measured(None), "sort", Toy(3)), 0);
    let value = |v: &str| used(Some(OsStr::new(v)));
    assert!(used(None).unwrap() && value("").unwrap() && value("use").unwrap());
    assert!(!value("off").unwrap() && !value("0").unwrap());
    assert!(value("on").is_err_and(|e| e.to_string().contains("`use` or `off`, got `on`")));
}

/// An engine with a store of its own in `disk`.
fn engine(driver: Arc<dyn Driver>, disk: DiskCache) -> Engine {
    let store = Store::open(&*driver, disk.clone(), "text");
    let device = Device {
        driver,
        counts: Arc::default(),
        programs: program::Programs::new(disk),
        blas: Default::default(),
        dnn: Default::default(),
        index_errors: Default::default(),
        writes: Default::default(),
        sync_each: false,
    };
    Engine::on(Arc::new(device), None, Choices::default().measured(Some(Arc::new(store)))).unwrap()
}

/// A driver whose events count its calls: every launch takes as long as any other.
fn mock() -> Arc<MockDriver> {
    let mut caps = caps(true);
    caps.compute_units = 64;
    Arc::new(MockDriver::new(caps))
}

/// A product of matrices [n, n], whose sums the rules cut on `mock`: two launches, of which most other variants need one.
struct Product {
    n: usize,
    a: Buffer,
    y: Buffer,
}

impl Product {
    fn new(gpu: &dyn IGpuBackend, n: usize) -> Self {
        let a: Vec<f32> = (0..n * n).map(|i| (i * 37 % 101) as f32 * 0.01 - 0.5).collect();
        Product { n, a: gpu.upload(&a).unwrap(), y: gpu.alloc(DType::F32, n * n).unwrap() }
    }

    fn run(&self, gpu: &dyn IGpuBackend) -> Result<()> {
        let a = self.a.shaped(&[self.n, self.n])?;
        gpu.gemm(&Gemm::new(), GemmIo::new(a, a, self.y.alias_mut().reshape(&[self.n, self.n])?))
    }

    /// Who serves it.
    fn chosen(&self, gpu: &dyn IGpuBackend) -> (String, ChosenBy) {
        let made = gpu.explain_calls(&mut || self.run(gpu)).unwrap();
        let c = made.into_iter().find(|c| c.op == "gemm").unwrap();
        (c.chosen, c.by)
    }
}

fn named(chosen: &str, by: ChosenBy) -> (String, ChosenBy) {
    (chosen.into(), by)
}

#[test]
fn the_fastest_variant_is_taken_by_all_handles_and_kept() {
    let folder = Folder::new("engine");
    let disk = || DiskCache::at(Some(folder.0.clone()), 1 << 20);
    let gpu = engine(mock(), disk());
    let fork = gpu.fork_stream().unwrap();
    let p = Product::new(&gpu, 512);
    assert_eq!(p.chosen(&gpu), named("portable", ChosenBy::Rule));
    let tuned = gpu.tune_calls(&mut || p.run(&gpu)).unwrap();
    let [t @ Tuned { op: "gemm", kept: true, .. }] = &tuned[..] else { panic!("{tuned:?}") };
    assert_eq!((t.preferred.as_str(), t.times[0].0.as_str()), ("portable", "portable"));
    assert!(t.times.len() > 2 && t.problem.contains("512"), "{t:?}");
    // One launch instead of two.
    assert!(t.chosen != "portable" && t.gain() == 2.0, "{t:?}");
    let measured = named(&t.chosen, ChosenBy::Measurement);
    assert_eq!(p.chosen(&gpu), measured);
    assert_eq!(Product::new(&fork, 512).chosen(&*fork), measured);
    assert_eq!(Product::new(&gpu, 256).chosen(&gpu).1, ChosenBy::Rule);
    let later = engine(mock(), disk());
    assert_eq!(Product::new(&later, 512).chosen(&later), measured);
    // Measured anew, it is compared with what the rules take.
    let again = later.tune_calls(&mut || Product::new(&later, 512).run(&later)).unwrap();
    assert_eq!((&again[0].preferred, &again[0].chosen), (&t.preferred, &t.chosen));
}

#[test]
fn without_a_disk_cache_choices_last_as_long_as_the_device() {
    let gpu = engine(mock(), DiskCache::default());
    let p = Product::new(&gpu, 512);
    let tuned = gpu.tune_calls(&mut || p.run(&gpu)).unwrap();
    assert!(!tuned[0].kept && tuned[0].gain() > 1.0, "{tuned:?}");
    assert_eq!(p.chosen(&gpu), named(&tuned[0].chosen, ChosenBy::Measurement));
}

#[test]
fn nothing_is_measured_in_a_recording_and_nothing_recorded_in_a_measurement() {
    let driver = mock();
    let gpu = engine(driver.clone(), DiskCache::default());
    let p = Product::new(&gpu, 512);
    p.run(&gpu).unwrap();
    driver.clear();
    let e = gpu.capture_calls(&mut || gpu.tune_calls(&mut || p.run(&gpu)).map(drop)).unwrap_err();
    assert!(matches!(e, GpuError::Capture { op: OP, .. }), "{e}");
    assert_eq!(driver.launches(), Vec::<String>::new());
    assert_eq!(p.chosen(&gpu).1, ChosenBy::Rule);
    let e = gpu.tune_calls(&mut || gpu.capture_calls(&mut || p.run(&gpu)).map(drop)).unwrap_err();
    assert!(matches!(e, GpuError::Capture { op: "capture_calls", .. }), "{e}");
    assert!(gpu.capture_calls(&mut || p.run(&gpu)).is_ok(), "nothing is left behind");
}

#[test]
fn pinned_operations_and_failing_calls_are_not_measured() {
    let gpu = engine(mock(), DiskCache::default());
    let p = Product::new(&gpu, 512);
    gpu.pin_variant("gemm", Some("split_k")).unwrap();
    assert_eq!(gpu.tune_calls(&mut || p.run(&gpu)).unwrap(), []);
    gpu.pin_variant("gemm", None).unwrap();
    assert_eq!(p.chosen(&gpu).1, ChosenBy::Rule);
    let e = gpu.tune_calls(&mut || gpu.tune_calls(&mut || p.run(&gpu)).map(drop)).unwrap_err();
    assert!(matches!(&e, GpuError::Invalid(_)) && e.to_string().contains("calls"), "{e}");
    let stop = GpuError::Config("stop".into());
    let e = gpu.tune_calls(&mut || Err(stop.clone())).unwrap_err();
    assert_eq!(e.to_string(), stop.to_string());
    // Calls that differ every time are measured as nothing.
    let mut n = 64;
    let tuned = gpu.tune_calls(&mut || {
        n += 64;
        Product::new(&gpu, n).run(&gpu)
    });
    assert_eq!(tuned.unwrap(), []);
    assert!(gpu.tune_calls(&mut || p.run(&gpu)).is_ok_and(|t| t.len() == 1), "nothing is left behind");
}

#[test]
fn a_variant_that_fails_is_left_out() {
    let names = |tuned: &[Tuned]| tuned[0].times.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    let tune = |gpu: &Engine, p: &Product| gpu.tune_calls(&mut || p.run(gpu)).unwrap();
    let first = engine(mock(), DiskCache::default());
    let mut want = names(&tune(&first, &Product::new(&first, 512)));
    let driver = mock();
    let gpu = engine(driver.clone(), DiskCache::default());
    let p = Product::new(&gpu, 512);
    // The preferred variant has two launches and runs three times: to compile, to see what is chosen, and to see what it launches.
    let next = driver.counts().get("launch").copied().unwrap_or_default() + 3 * 2 + 1;
    driver.fail_calls("launch", next..=next, GpuError::Config("no room".into()));
    let tuned = tune(&gpu, &p);
    want.remove(1);
    assert_eq!(names(&tuned), want, "the first of the others");
    assert!(gpu.synchronize().is_ok());
    // The preferred one has to run.
    driver.fail_calls("launch", 1..=usize::MAX, GpuError::Config("no room".into()));
    assert!(gpu.tune_calls(&mut || p.run(&gpu)).is_err_and(|e| e.to_string().contains("no room")));
}

#[test]
fn a_measured_product_is_right_on_opencl() {
    let Some(driver) = present("opencl", crate::driver::opencl_open(0)) else { return };
    let gpu = engine(driver, DiskCache::default());
    let (n, p) = (70, Product::new(&gpu, 70));
    let a: Vec<f32> = gpu.download(p.a.view()).unwrap();
    let right = || {
        let y: Vec<f32> = gpu.download(p.y.view()).unwrap();
        (0..n * n).all(|i| {
            let sum: f64 = (0..n).map(|k| f64::from(a[i / n * n + k]) * f64::from(a[k * n + i % n])).sum();
            (f64::from(y[i]) - sum).abs() < 1e-4
        })
    };
    let tuned = gpu.tune_calls(&mut || p.run(&gpu)).unwrap();
    let [t] = &tuned[..] else { panic!("{tuned:?}") };
    assert!(t.times.len() > 2 && t.times.iter().all(|(_, ns)| *ns > 0), "{t:?}");
    assert_eq!(p.chosen(&gpu), named(&t.chosen, ChosenBy::Measurement));
    assert!(right(), "{}", t.chosen);
    // Every variant that could have won.
    for (variant, _) in &t.times {
        let store = gpu.inner.choices.store().unwrap();
        let record =
            Record { chosen: variant.clone(), preferred: t.preferred.clone(), times: t.times.clone() };
        store.remember("gemm", &t.problem, record);
        gpu.fill(0.0, p.y.alias_mut()).unwrap();
        assert_eq!(p.chosen(&gpu), named(variant, ChosenBy::Measurement));
        assert!(right(), "{variant}");
        // Nor does a library that no rule takes need the question who serves.
        let ran = gpu.profile_calls(&mut || p.run(&gpu)).unwrap();
        assert_eq!(ran.launches.iter().any(|l| &*l.name == "clblast"), variant == "clblast", "{ran:?}");
    }
}
