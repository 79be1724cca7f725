//! Every gradient of the table on every backend against that backend's own forward.

use std::process::ExitCode;

use libtest_mimic::Arguments;

use super::{Jobs, absent};
use crate::backends;
use crate::cases::KERNELS;
use crate::gradient::{self, FROZEN};
use crate::runner::Verdict;

/// Runs the directional derivatives.
pub fn run(asked: &[&str]) -> ExitCode {
    let args = Arguments::from_args();
    let (mut trials, mut jobs) = (Vec::new(), Jobs::default());
    let kernels = || KERNELS.iter().filter(|k| k.forward.is_some() && !FROZEN.contains(&k.name));
    for backend in backends::all(asked) {
        let name = backend.name;
        let gpu = match &backend.handle {
            Ok(gpu) => gpu.clone(),
            Err(e) => {
                let what = format!("{} gradients", kernels().count());
                trials.push(absent("directional", &backend, e, &what, args.list));
                continue;
            }
        };
        for kernel in kernels() {
            let own = gpu.clone();
            jobs.add(&*gpu, format!("{name}::{}", kernel.name), move || {
                let gpu = backends::private(&own).map_err(|e| e.to_string())?;
                match gradient::check(&*gpu, kernel, 1) {
                    Verdict::Pass => Ok(String::new()),
                    Verdict::Skip(e) => Err(format!("not run: {e}")),
                    Verdict::Fail(e) => Err(e),
                }
            });
        }
    }
    jobs.run(&args, trials, |_| Ok(())).exit_code()
}
