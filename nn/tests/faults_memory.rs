//! Large allocations of host memory in a training run fail, one or all from one on: the run ends in an error or goes on, and the last good
//! checkpoint is intact. A sample of the allocations fails; with `CI_FULL` in the environment every one does.
//!
//! Large is [`LARGE`] bytes and more: what grows with data, batches and tensors. Names, lists of layers and the like lie below it; where those
//! find no room, Rust ends the process, and nothing could be reported anyway. Nor do the work spaces of the `gemm` crate count: they are as
//! large as the processor's caches at most, whatever is multiplied, and that crate has no way to go on without.
#![allow(missing_docs)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use trefoil::{CpuBackend, GpuError};
use trefoil_nn::checkpoint::Checkpoint;
use trefoil_nn::config::Config;
use trefoil_nn::{Device, NnError};

/// Bytes from which an allocation counts.
const LARGE: usize = 16 << 10;
/// Largest alignment of the elements of a vector; the work spaces of the `gemm` crate have that of a cache line.
const ELEMENT_ALIGN: usize = 16;
/// Every so many allocations one fails by default.
const STRIDE: usize = 7;
const EPOCHS: u64 = 3;
/// A run takes a fraction of a second.
const TOO_LONG: Duration = Duration::from_secs(60);
/// Tells a child process which allocations fail: the numbers of the first and the last one.
const FAULT: &str = "TREFOIL_TEST_FAULT";
/// Tells a child process where its configuration and its run folder are.
const FOLDER: &str = "TREFOIL_TEST_FOLDER";
const CHECKPOINT: &str = "run/checkpoint.safetensors";
/// Exit codes of a child.
const TRAINED: i32 = 10;
const OUT_OF_MEMORY: i32 = 11;
const OTHER_ERROR: i32 = 12;

/// The system's allocator, of which large requests can fail.
struct Faulty;

#[global_allocator]
static ALLOCATOR: Faulty = Faulty;

/// Large requests since the count was set to 0.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Numbers of the first and the last request that fails.
static FIRST: AtomicUsize = AtomicUsize::new(usize::MAX);
static LAST: AtomicUsize = AtomicUsize::new(0);
/// Bytes in live large allocations.
static LIVE: AtomicUsize = AtomicUsize::new(0);

/// Counts a request, and says whether it fails.
fn fails(layout: Layout) -> bool {
    if layout.size() < LARGE || layout.align() > ELEMENT_ALIGN {
        return false;
    }
    let n = COUNT.fetch_add(1, Ordering::SeqCst) + 1;
    (FIRST.load(Ordering::SeqCst)..=LAST.load(Ordering::SeqCst)).contains(&n)
}

/// Counts the bytes of memory that was handed out.
fn given(at: *mut u8, bytes: usize) -> *mut u8 {
    if !at.is_null() && bytes >= LARGE {
        LIVE.fetch_add(bytes, Ordering::SeqCst);
    }
    at
}

fn taken(bytes: usize) {
    if bytes >= LARGE {
        LIVE.fetch_sub(bytes, Ordering::SeqCst);
    }
}

// SAFETY: every request goes to the system's allocator unchanged, or gets the null pointer that says there is no memory.
unsafe impl GlobalAlloc for Faulty {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if fails(layout) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise.
        given(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if fails(layout) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise.
        given(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        let grown = Layout::from_size_align(bytes, layout.align());
        if bytes > layout.size() && grown.is_ok_and(fails) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise.
        let moved = unsafe { System.realloc(at, layout, bytes) };
        if !moved.is_null() {
            taken(layout.size());
        }
        given(moved, bytes)
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        taken(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

/// The run of a folder up to an epoch, from its checkpoint on if it has one.
fn train(folder: &Path, last: u64) -> Result<(), NnError> {
    let config = Config::load(folder.join("run.json"))?;
    let device: Device = Arc::new(CpuBackend::new());
    let data = config.data.open()?;
    let sources = config.sources(&data, &device)?;
    let model = config.model(&device, &sources)?;
    let mut trainer = config.trainer(&model, &data, &sources, &device)?;
    trainer.resume()?;
    trainer.fit(&*sources.train, sources.test.as_deref(), &mut |s| s.epoch < last)?;
    Ok(())
}

fn is_out_of_memory(e: &NnError) -> bool {
    match e.root() {
        NnError::Gpu(GpuError::OutOfMemory { .. }) => true,
        NnError::Io { source, .. } => source.kind() == std::io::ErrorKind::OutOfMemory,
        NnError::Checkpoint { source: Some(e), .. } => is_out_of_memory(e),
        _ => false,
    }
}

/// What a child process does: the run, with the failures that `fault` names. Gives its exit code.
fn child(fault: &str) -> i32 {
    let (first, last) = fault.split_once(' ').unwrap();
    let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
    let live = LIVE.load(Ordering::SeqCst);
    COUNT.store(0, Ordering::SeqCst);
    FIRST.store(first.parse().unwrap(), Ordering::SeqCst);
    LAST.store(last.parse().unwrap(), Ordering::SeqCst);
    let done = train(&folder, EPOCHS);
    FIRST.store(usize::MAX, Ordering::SeqCst);
    let kept = LIVE.load(Ordering::SeqCst).saturating_sub(live);
    eprintln!("{} large allocations, {kept} bytes kept", COUNT.load(Ordering::SeqCst));
    match done {
        Ok(()) => TRAINED,
        Err(e) => {
            eprintln!("{e}");
            if is_out_of_memory(&e) { OUT_OF_MEMORY } else { OTHER_ERROR }
        }
    }
}

/// How a child ended.
struct Ended {
    code: Option<i32>,
    said: String,
    allocations: usize,
    kept: usize,
}

struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        let folder = std::env::temp_dir().join(format!("trefoil-faults-memory-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let digits = concat!(env!("CARGO_MANIFEST_DIR"), "/../data/digits.csv");
        let config = format!(
            r#"{{
  "data": {{ "csv": "{digits}", "label": "last", "scale": 0.0625, "train_rows": 256, "test_rows": 128 }},
  "model": {{ "layers": [
    {{ "type": "dense", "out_features": 128, "activation": "relu" }},
    {{ "type": "dropout", "p": 0.1 }},
    {{ "type": "dense", "out_features": 10 }} ] }},
  "optimizer": {{ "type": "adamw", "lr": 0.01 }},
  "train": {{ "epochs": {EPOCHS}, "batch_size": 64, "seed": 42, "clip_norm": 1.0, "run": "{}" }}
}}"#,
            folder.join("run").display()
        );
        fs::write(folder.join("run.json"), config).unwrap();
        Folder(folder)
    }

    /// Runs this test program again as a child that trains, with failures from allocation `first` to `last`.
    fn train(&self, first: usize, last: usize) -> Ended {
        let errors = self.0.join("errors");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([NAME, "--exact", "--nocapture"])
            .env(FAULT, format!("{first} {last}"))
            .env(FOLDER, &self.0)
            // One thread of the CPU backend, so that allocations come in the same order each time.
            .env("RAYON_NUM_THREADS", "1")
            .stdout(Stdio::null())
            .stderr(fs::File::create(&errors).unwrap())
            .spawn()
            .unwrap();
        let began = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if began.elapsed() > TOO_LONG {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("the run whose allocation {first} fails hangs");
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let said = fs::read_to_string(&errors).unwrap();
        let mut numbers = said.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok());
        let (allocations, kept) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        Ended { code: status.code(), said, allocations, kept }
    }

    /// Epoch of the checkpoint, which is whole; 0 if there is none.
    fn epoch(&self) -> u64 {
        let path = self.0.join(CHECKPOINT);
        if path.exists() { Checkpoint::load(&path).unwrap().progress.epoch } else { 0 }
    }

    fn checkpoint(&self) -> Vec<u8> {
        fs::read(self.0.join(CHECKPOINT)).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const NAME: &str = "a_run_survives_every_failed_allocation";

/// Every failure in the run of a folder, begun in the state that `begin` makes.
fn at_every_allocation(what: &str, folder: &Folder, finished: &[u8], begin: &dyn Fn()) {
    begin();
    let whole = folder.train(usize::MAX, 0);
    assert_eq!(whole.code, Some(TRAINED), "{what}: {}", whole.said);
    assert!(whole.allocations > 20 && folder.checkpoint() == finished, "{what}: {}", whole.said);
    let stride = if std::env::var_os("CI_FULL").is_some() { 1 } else { STRIDE };
    let (mut runs, mut went_on) = (0, 0);
    for n in (1..=whole.allocations).step_by(stride) {
        for last in [n, usize::MAX] {
            let what = format!("{what}: allocations {n}..={last} of {} fail", whole.allocations);
            begin();
            let before = folder.epoch();
            let faulty = folder.train(n, last);
            match faulty.code {
                Some(TRAINED) => assert!(folder.checkpoint() == finished, "{what}"),
                Some(OUT_OF_MEMORY) => assert!(faulty.kept <= whole.kept, "{what}: {}", faulty.said),
                code => panic!("{what}: ended with {code:?}, {}", faulty.said),
            }
            assert!(folder.epoch() >= before, "{what}: the checkpoint is lost");
            // From the checkpoint on, without failures, the run comes to the same end.
            train(&folder.0, EPOCHS).unwrap();
            assert!(folder.checkpoint() == finished, "{what}: the resumed run differs");
            runs += 1;
            went_on += usize::from(faulty.code == Some(TRAINED));
        }
    }
    println!("{what}: {} large allocations, {runs} runs, {went_on} went on", whole.allocations);
}

#[test]
fn a_run_survives_every_failed_allocation() {
    if let Ok(fault) = std::env::var(FAULT) {
        std::process::exit(child(&fault));
    }
    let folder = Folder::new();
    let run = folder.0.join("run");
    let clear = || {
        let _ = fs::remove_dir_all(&run);
    };
    train(&folder.0, EPOCHS).unwrap();
    let finished = folder.checkpoint();
    at_every_allocation("from the beginning", &folder, &finished, &clear);
    at_every_allocation("resumed", &folder, &finished, &|| {
        clear();
        train(&folder.0, 1).unwrap();
    });
}
