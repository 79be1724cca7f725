//! Every large allocation of host memory in a training run fails once, and every one from it on: the run ends in an error or goes on, and the
//! last good checkpoint is intact.
//!
//! Large is [`LARGE`] bytes and more: what grows with data, batches and tensors. Names, lists of layers and the like lie below it; where those
//! find no room, Rust ends the process, and nothing could be reported anyway.
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
const EPOCHS: usize = 3;
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
fn fails(bytes: usize) -> bool {
    if bytes < LARGE {
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
        if fails(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise.
        given(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if fails(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise.
        given(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        if bytes > layout.size() && fails(bytes) {
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

/// The run of a folder, from its checkpoint on if it has one.
fn train(folder: &Path) -> Result<(), NnError> {
    let config = Config::load(folder.join("run.json"))?;
    let device: Device = Arc::new(CpuBackend::new());
    let data = config.data.open()?;
    let sources = config.sources(&data, &device)?;
    let model = config.model(&device, &sources)?;
    let mut trainer = config.trainer(&model, &data, &sources, &device)?;
    trainer.resume()?;
    trainer.fit(&*sources.train, sources.test.as_deref(), &mut |_| true)?;
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
    let done = train(&folder);
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

#[test]
fn a_run_survives_every_failed_allocation() {
    if let Ok(fault) = std::env::var(FAULT) {
        std::process::exit(child(&fault));
    }
    let folder = Folder::new();
    let run = folder.0.join("run");
    let whole = folder.train(usize::MAX, 0);
    assert_eq!(whole.code, Some(TRAINED), "{}", whole.said);
    assert!(whole.allocations > 20, "{}", whole.said);
    let finished = folder.checkpoint();
    let mut ended = [0, 0];
    for n in 1..=whole.allocations {
        for last in [n, usize::MAX] {
            let what = format!("allocations {n}..={last} of {} fail", whole.allocations);
            fs::remove_dir_all(&run).unwrap();
            let faulty = folder.train(n, last);
            match faulty.code {
                Some(TRAINED) => assert!(folder.checkpoint() == finished, "{what}"),
                Some(OUT_OF_MEMORY) => assert!(faulty.kept <= whole.kept, "{what}: {}", faulty.said),
                code => panic!("{what}: ended with {code:?}, {}", faulty.said),
            }
            ended[usize::from(faulty.code == Some(OUT_OF_MEMORY))] += 1;
            assert!(folder.epoch() <= EPOCHS as u64);
            // From the checkpoint on, without failures, the run comes to the same end.
            train(&folder.0).unwrap();
            assert!(folder.checkpoint() == finished, "{what}: the resumed run differs");
        }
    }
    println!(
        "{} large allocations: {} runs went on, {} ended in an error",
        whole.allocations, ended[0], ended[1]
    );
}
