//! Processes that run tests side by side: PoCL compiles one kernel at a time per process, which takes most of the time of a suite.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;

use trefoil::IGpuBackend;

use crate::backends;

/// Set for a worker, to what the parent tells it; it takes names of tests from its input and answers on its output.
const VARIABLE: &str = "TREFOIL_TEST_WORKER";
/// Names a library that workers load first (`LD_PRELOAD`): an allocator with which PoCL compiles faster. The tests themselves keep the system's: some
/// ask for more memory than there is, which an allocator that only reserves addresses would not refuse.
const PRELOAD: &str = "TREFOIL_TEST_PRELOAD";
/// In front of an answer, so that it is told from what a test prints.
const PASSED: &str = "\u{1}passed ";
const FAILED: &str = "\u{1}failed ";

/// Whether tests of this device run in processes of their own.
pub(super) fn wanted(gpu: &dyn IGpuBackend) -> bool {
    backends::cpu_behind_a_driver(gpu) && !serving()
}

/// Whether this process is a worker.
pub(super) fn serving() -> bool {
    told().is_some()
}

/// What the parent tells a worker; nothing in the parent itself.
pub(super) fn told() -> Option<String> {
    std::env::var(VARIABLE).ok()
}

/// What a worker does: runs the named tests until its input ends. Answers are one line each: JSON.
pub(super) fn serve(run: impl Fn(&str) -> Result<String, String>) {
    for name in std::io::stdin().lines().map_while(Result::ok) {
        match run(&name) {
            Ok(answer) => println!("{PASSED}{answer}"),
            Err(why) => println!("{FAILED}{}", serde_json::Value::String(why)),
        }
    }
}

/// A process and its pipes.
struct Worker {
    child: Child,
    names: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    fn start(told: &str) -> std::io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        if let Some(library) = std::env::var_os(PRELOAD) {
            command.env("LD_PRELOAD", library);
        }
        let mut child = command.env(VARIABLE, told).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (names, answers) = pipes.ok_or_else(|| std::io::Error::other("a pipe is missing"))?;
        Ok(Worker { child, names, answers: BufReader::new(answers) })
    }

    /// Runs a test. The outer error is that of the process.
    fn run(&mut self, name: &str) -> std::io::Result<Result<String, String>> {
        writeln!(self.names, "{name}")?;
        let mut line = String::new();
        while self.answers.read_line(&mut line)? > 0 {
            if let Some(answer) = line.strip_prefix(PASSED) {
                return Ok(Ok(answer.trim_end().into()));
            }
            if let Some(why) = line.strip_prefix(FAILED) {
                return Ok(Err(serde_json::from_str(why).unwrap_or_else(|_| why.into())));
            }
            print!("{line}");
            line.clear();
        }
        Err(std::io::Error::other(format!("the process ended: {}", self.child.wait()?)))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // A worker ends with its input; one that hangs must not outlive the tests.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Idle workers; as many are started as tests run at a time.
pub(super) struct Workers {
    idle: Mutex<Vec<Worker>>,
    told: String,
}

impl Workers {
    /// No workers yet; each will be told this.
    pub(super) fn new(told: String) -> Self {
        Workers { idle: Mutex::default(), told }
    }

    /// Runs a test in a process of its own and returns its answer. A process that ends is a failure of the test.
    pub(super) fn run(&self, name: &str) -> Result<String, String> {
        let idle = self.idle.lock().map_err(|e| e.to_string())?.pop();
        let mut worker = idle
            .map_or_else(|| Worker::start(&self.told), Ok)
            .map_err(|e| format!("{name}: no worker: {e}"))?;
        let answer = worker.run(name).map_err(|e| format!("{name}: {e}"))?;
        self.idle.lock().map_err(|e| e.to_string())?.push(worker);
        answer
    }
}
