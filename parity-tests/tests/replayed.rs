//! Every operation recorded and replayed on the CPU backend: the bits of the call itself.
#![allow(missing_docs)]

use std::collections::BTreeSet;

use parity_tests::cases::{KERNELS, Kernel};
use parity_tests::device::{Fail, Pattern, Placement};
use parity_tests::runner::{Run, execute};
use parity_tests::sampler::draw;
use trefoil::ops::{Family, all_ops};
use trefoil::testing::Replayed;
use trefoil::{CpuBackend, IGpuBackend};

/// Random cases of each kernel of the table.
const SHAPES: usize = 2;

fn outcome(run: &Run) -> Option<String> {
    match &run.result {
        Ok(()) => None,
        Err(Fail::Gpu(e)) => Some(e.to_string()),
        Err(Fail::Case(e)) => Some(e.clone()),
    }
}

/// What is not as it should be in two cases of a kernel.
fn differences(
    eager: &dyn IGpuBackend,
    replayed: &dyn IGpuBackend,
    number: usize,
    kernel: &Kernel,
) -> Vec<String> {
    let mut all = vec![];
    for index in 0..SHAPES {
        let dtype = kernel.dtypes[(number + index) % kernel.dtypes.len()];
        let what = format!("{} {dtype} #{index}", kernel.name);
        let case = match draw(kernel, dtype, index, 1, false) {
            Ok((case, _)) => case,
            Err(e) => {
                all.push(format!("{what}: {e}"));
                continue;
            }
        };
        let place = [Placement::Aligned, Placement::Unaligned][index % 2];
        let [want, got] = [eager, replayed].map(|gpu| execute(gpu, kernel, &case, Pattern::Finite, place));
        let [one, other] = [outcome(&want), outcome(&got)];
        if one != other {
            all.push(format!("{what}: {one:?}, replayed {other:?}"));
        }
        if want.outputs != got.outputs {
            all.push(format!("{what}: outputs differ"));
        }
        all.extend(got.problems.iter().map(|p| format!("{what}: {p}")));
    }
    all
}

#[test]
fn a_replay_of_every_operation_gives_its_bits() {
    let (eager, replayed) = (CpuBackend::new(), Replayed::new(CpuBackend::new()));
    let failures: Vec<String> = KERNELS
        .iter()
        .enumerate()
        .flat_map(|(number, kernel)| differences(&eager, &replayed, number, kernel))
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    // Those of the family `Core` are recorded by name or refused: `tests/capture` of the library.
    let seen = replayed.take();
    let want = all_ops().filter(|o| o.family != Family::Core).map(|o| o.name);
    let missing: BTreeSet<_> = want.filter(|name| !seen.contains(name)).collect();
    assert!(missing.is_empty(), "no row replays {missing:?}");
}
