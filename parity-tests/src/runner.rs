//! Runs cases: twice, with different contents in the outputs beforehand, inside guard bands.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use trefoil::{DType, GpuError, IGpuBackend};

use crate::cases::{Kernel, find};
use crate::compare;
use crate::device::{Cx, Fail, Pattern, Placement, R};
use crate::sampler::draw;
use crate::suite::{Case, Named};
use crate::tolerance;
use crate::variants::{self, Passed};

/// Outcome of a case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Verdict {
    /// As expected.
    Pass,
    /// Not as expected; says what.
    Fail(String),
    /// The device does not support it; says why.
    Skip(String),
}

impl Verdict {
    /// With the case in front.
    fn of(self, case: &str) -> Self {
        match self {
            Verdict::Fail(e) => Verdict::Fail(format!("{case}: {e}")),
            Verdict::Skip(e) => Verdict::Skip(format!("{case}: {e}")),
            Verdict::Pass => Verdict::Pass,
        }
    }
}

/// One execution.
#[derive(Debug)]
pub struct Run {
    /// The library's answer.
    pub result: R,
    /// Contents of the outputs.
    pub outputs: Named,
    /// Writes where nothing may be written.
    pub problems: Vec<String>,
}

/// Runs a case once.
pub fn execute(
    gpu: &dyn IGpuBackend,
    kernel: &Kernel,
    case: &Case,
    pattern: Pattern,
    place: Placement,
) -> Run {
    let cx = match Cx::new(gpu, kernel, case, pattern, place) {
        Ok(cx) => cx,
        Err(e) => return Run { result: Err(e), outputs: vec![], problems: vec![] },
    };
    // The library promises not to panic; if it does, that is a failure of this case and not the end of the run.
    let called = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (kernel.run)(&cx)))
        .unwrap_or_else(|p| Err(Fail::Case(format!("the library panicked: {}", message(&*p)))));
    // Errors of indices are reported by the next call that waits. It also has to happen after a failed call, so that no flag outlives its case.
    let waited = gpu.synchronize().map_err(Fail::from);
    let result = called.and(waited);
    // A pinned variant may serve the first calls of a composite and refuse a later one.
    let untouched = match &result {
        Err(Fail::Gpu(GpuError::Invalid(_))) => true,
        Err(Fail::Gpu(GpuError::Unsupported { .. })) => !kernel.composite,
        _ => false,
    };
    match cx.finish(untouched) {
        Ok((outputs, problems)) => Run { result, outputs, problems },
        Err(e) => Run { result: result.and(Err(e)), outputs: vec![], problems: vec![] },
    }
}

fn message(payload: &(dyn std::any::Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or(payload.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

fn text(e: &Fail) -> String {
    match e {
        Fail::Gpu(e) => e.to_string(),
        Fail::Case(e) => e.clone(),
    }
}

/// Runs a case twice and returns the results if both runs agree bit by bit.
pub fn twice(
    gpu: &dyn IGpuBackend,
    kernel: &Kernel,
    case: &Case,
    place: Placement,
) -> Result<Named, Verdict> {
    let mut first: Option<Named> = None;
    for pattern in [Pattern::Nan, Pattern::Finite] {
        let run = execute(gpu, kernel, case, pattern, place);
        if !run.problems.is_empty() {
            return Err(Verdict::Fail(run.problems.join("; ")));
        }
        match run.result {
            Ok(()) => {}
            Err(Fail::Gpu(GpuError::Unsupported { op, device, why })) => {
                return Err(Verdict::Skip(format!("{op} is not supported on {device}: {why}")));
            }
            Err(e) => return Err(Verdict::Fail(text(&e))),
        }
        match &first {
            None => first = Some(run.outputs),
            Some(before) => {
                for ((name, a), (_, b)) in before.iter().zip(&run.outputs) {
                    if a != b {
                        let at =
                            a.to_f64().iter().zip(b.to_f64()).position(|(x, y)| x.to_bits() != y.to_bits());
                        return Err(Verdict::Fail(format!(
                            "output {name}: the second run differs (first at {at:?}): not deterministic, or previous contents are read"
                        )));
                    }
                }
            }
        }
    }
    Ok(first.unwrap_or_default())
}

fn expect_error(
    gpu: &dyn IGpuBackend,
    kernel: &Kernel,
    case: &Case,
    kind: &str,
    place: Placement,
) -> Verdict {
    for pattern in [Pattern::Nan, Pattern::Finite] {
        let run = execute(gpu, kernel, case, pattern, place);
        let got = match &run.result {
            Ok(()) => "no error",
            Err(Fail::Gpu(GpuError::Invalid(_))) => "invalid",
            Err(Fail::Gpu(GpuError::Unsupported { .. })) => "unsupported",
            Err(Fail::Gpu(GpuError::IndexOutOfRange { .. })) => "index_out_of_range",
            Err(Fail::Gpu(_)) => "another error",
            Err(Fail::Case(_)) => "a case that does not fit",
        };
        if got != kind {
            let detail = run.result.err().map(|e| format!(" ({})", text(&e))).unwrap_or_default();
            return Verdict::Fail(format!("expected an error of kind {kind}, got {got}{detail}"));
        }
        if !run.problems.is_empty() {
            return Verdict::Fail(run.problems.join("; "));
        }
    }
    Verdict::Pass
}

/// Runs a golden case.
pub fn golden(gpu: &dyn IGpuBackend, case: &Case) -> Verdict {
    let Some(kernel) = find(&case.kernel) else {
        return Verdict::Fail(format!("kernel {} is unknown", case.kernel));
    };
    if let Err(e) = kernel.check(case) {
        return Verdict::Fail(e);
    }
    // Every second case, by its name, starts at an odd element, so that both the vector and the scalar paths are met.
    let odd = case.id.bytes().map(u32::from).sum::<u32>() % 2 == 1;
    let place = if odd { Placement::Unaligned } else { Placement::Aligned };
    if let Some(kind) = &case.error {
        return expect_error(gpu, kernel, case, kind, place);
    }
    let outputs = match twice(gpu, kernel, case, place) {
        Ok(o) => o,
        Err(v) => return v,
    };
    for (name, (tol, want)) in &case.expected {
        let Some((_, got)) = outputs.iter().find(|(n, _)| n == name) else {
            return Verdict::Fail(format!("output {name} was not produced"));
        };
        if let Err(e) = compare::golden(got, want, *tol, case.dtype) {
            return Verdict::Fail(format!("output {name}: {e}"));
        }
    }
    Verdict::Pass
}

/// Runs one random case on a device, and again by the other variants that take it, until each has passed so many. The description replays it.
pub fn random(
    gpu: &dyn IGpuBackend,
    kernel: &Kernel,
    dtype: DType,
    index: usize,
    seed: u64,
    cases_of_variants: usize,
    passed: &mut Passed,
) -> Verdict {
    let replay = format!("{} {dtype} #{index} (TREFOIL_PARITY_SEED={seed})", kernel.name);
    let case = match draw(kernel, dtype, index, seed, false) {
        Ok((case, _)) => case,
        Err(e) => return Verdict::Fail(format!("{replay}: {e}")),
    };
    let place = if index.is_multiple_of(2) { Placement::Aligned } else { Placement::Unaligned };
    let what = |by: &str| {
        let shapes = case.inputs.iter().map(|(n, t)| format!("{n}: {}{:?}", t.dtype, t.shape));
        let shapes = shapes.collect::<Vec<_>>().join(", ");
        format!("{replay}{by} {shapes} {}", Value::Object(case.args.clone()))
    };
    let (verdict, used) = variants::of(gpu, || held(gpu, kernel, &case, place));
    match verdict {
        Verdict::Pass => passed.add(&used.chosen),
        verdict => return verdict.of(&what("")),
    }
    for variant in used.others_of(kernel.ops) {
        if passed.of(variant) >= cases_of_variants {
            continue;
        }
        let by = format!(" by {}:{}", variant.0, variant.1);
        match variants::pinned(gpu, variant, || held(gpu, kernel, &case, place)) {
            Ok(Verdict::Pass) => passed.add([variant]),
            // It takes one call of several.
            Ok(Verdict::Skip(_)) => {}
            Ok(verdict) => return verdict.of(&what(&by)),
            Err(e) => return Verdict::Fail(format!("{}: {e}", what(&by))),
        }
    }
    Verdict::Pass
}

/// Whether a random case gives what the reference does.
fn held(gpu: &dyn IGpuBackend, kernel: &Kernel, case: &Case, place: Placement) -> Verdict {
    match twice(gpu, kernel, case, place) {
        Ok(outputs) => {
            tolerance::compare(kernel, case, &outputs).map_or_else(Verdict::Fail, |()| Verdict::Pass)
        }
        Err(verdict) => verdict,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use trefoil::{CpuBackend, DType, GradMut, Layout};

    use super::*;
    use crate::cases::k;
    use crate::suite::{HostTensor, Wanted};

    fn case() -> Case {
        Case {
            id: "probe".into(),
            kernel: "probe".into(),
            dtype: DType::F32,
            args: Default::default(),
            inputs: vec![("x".into(), HostTensor::from_f64(DType::F32, &[3], &[1.0, 2.0, 3.0]))],
            strides: BTreeMap::new(),
            accumulate: BTreeMap::new(),
            wanted: Wanted::Named(BTreeSet::new()),
            expected: BTreeMap::new(),
            error: None,
        }
    }

    /// What the runner says of a kernel with this body.
    fn verdict(run: fn(&Cx<'_>) -> R) -> Result<usize, String> {
        let kernel = k("probe", "", "x", "-", "y", &[], run);
        match twice(&CpuBackend::new(), &kernel, &case(), Placement::Unaligned) {
            Ok(outputs) => Ok(outputs.len()),
            Err(Verdict::Fail(e) | Verdict::Skip(e)) => Err(e),
            Err(Verdict::Pass) => unreachable!("a pass is no error"),
        }
    }

    #[test]
    fn misbehaviour_is_found() {
        let copy = verdict(|cx| {
            let y = cx.out("y", DType::F32, &[3])?;
            Ok(cx.gpu.strided_copy(cx.x("x")?, y.g())?)
        });
        assert_eq!(copy, Ok(1));
        let beyond = verdict(|cx| {
            let y = cx.out("y", DType::F32, &[3])?;
            let at = y.v().layout().offset();
            let longer = Layout::contiguous(&[4]).and_then(|l| l.shifted(at)).expect("rank 1");
            Ok(cx.gpu.fill(1.0, y.m().with_layout(longer)?)?)
        });
        assert!(beyond.is_err_and(|e| e.contains("behind")));
        let before = verdict(|cx| {
            let y = cx.out("y", DType::F32, &[3])?;
            let at = y.v().layout().offset();
            let earlier = Layout::contiguous(&[4]).and_then(|l| l.shifted(at - 1)).expect("rank 1");
            Ok(cx.gpu.fill(1.0, y.m().with_layout(earlier)?)?)
        });
        assert!(before.is_err_and(|e| e.contains("before")));
        let partly = verdict(|cx| {
            let y = cx.out("y", DType::F32, &[3])?;
            Ok(cx.gpu.fill(1.0, y.m().map("part", |l| l.narrow(0, 0, 2))?)?)
        });
        assert!(partly.is_err_and(|e| e.contains("differs")));
        let reads = verdict(|cx| {
            let y = cx.out("y", DType::F32, &[3])?;
            Ok(cx.gpu.strided_copy(cx.x("x")?, GradMut { out: y.m(), accumulate: true })?)
        });
        assert!(reads.is_err_and(|e| e.contains("differs")));
        assert!(verdict(|_| panic!("on purpose")).is_err_and(|e| e.contains("on purpose")));
    }
}
