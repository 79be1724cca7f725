//! Which launches of some calls are those of one problem.
//!
//! A network's step has hundreds of launches, of which a variant changes a few. Only these are timed: from the operation that has the problem to the
//! first after it from which on all variants do the same, be that what it calls at its end or what the calls do next.

use crate::ops::core::{Profile, ProfiledLaunch};

/// Where problems were met in calls that were profiled.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Marks {
    /// Operations that had been called when each run of the calls began.
    pub(super) starts: Vec<usize>,
    /// Places of the operations that had the problem.
    pub(super) met: Vec<usize>,
}

/// An operation and its launches.
type Step<'p> = (&'static str, Vec<&'p ProfiledLaunch>);

/// What a run does from each operation that has the problem up to the next one, or to its end.
type Run<'p> = Vec<Vec<Step<'p>>>;

/// The runs of some calls. Operations that launch nothing are left out but for those that have the problem.
fn runs<'p>(profile: &'p Profile, marks: &Marks) -> Vec<Run<'p>> {
    let mut steps: Vec<Step<'p>> = profile.ops.iter().map(|o| (o.name, vec![])).collect();
    for launch in &profile.launches {
        if let Some(step) = launch.op.and_then(|at| steps.get_mut(at)) {
            step.1.push(launch);
        }
    }
    let ends = marks.starts.iter().skip(1).copied().chain([steps.len()]);
    let run = |(start, end): (usize, usize)| {
        let mut met: Vec<usize> = marks.met.iter().copied().filter(|m| (start..end).contains(m)).collect();
        // An operation may ask for its plan several times.
        met.dedup();
        let ends: Vec<usize> = met.iter().skip(1).copied().chain([end]).collect();
        let part = |(&from, to): (&usize, usize)| {
            let all = steps[from..to].iter().enumerate();
            all.filter(|(i, (_, l))| *i == 0 || !l.is_empty()).map(|(_, s)| s.clone()).collect()
        };
        met.iter().zip(ends).map(part).collect()
    };
    marks.starts.iter().copied().zip(ends).map(run).collect()
}

/// Names of operations and launches of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shape(Vec<Vec<(&'static str, Vec<String>)>>);

impl Shape {
    /// That of the first run.
    pub(super) fn of(profile: &Profile, marks: &Marks) -> Self {
        let first = runs(profile, marks).into_iter().next().unwrap_or_default();
        let names = |(op, launches): Step<'_>| (op, launches.iter().map(|l| l.name.clone()).collect());
        Shape(first.into_iter().map(|part| part.into_iter().map(names).collect()).collect())
    }

    /// How many steps at the end of each part all of these shapes have in common; `None` where they have the problem differently often, or never.
    pub(super) fn common(shapes: &[&Shape]) -> Option<Vec<usize>> {
        let (first, others) = shapes.split_first()?;
        if first.0.is_empty() || others.iter().any(|o| o.0.len() != first.0.len()) {
            return None;
        }
        let equal = |i: usize, other: &Shape| {
            let pairs = first.0[i].iter().skip(1).rev().zip(other.0[i].iter().skip(1).rev());
            pairs.take_while(|(a, b)| a == b).count()
        };
        let shortest = |i: usize| others.iter().map(|o| equal(i, o)).min().unwrap_or(0);
        Some((0..first.0.len()).map(shortest).collect())
    }
}

/// Nanoseconds of the launches that are no part of the `common` ends, of all runs; `None` where a run has the problem differently often.
pub(super) fn own_ns(profile: &Profile, marks: &Marks, common: &[usize]) -> Option<u64> {
    let mut sum = 0;
    for run in runs(profile, marks) {
        if run.len() != common.len() {
            return None;
        }
        for (part, &end) in run.iter().zip(common) {
            let own = &part[..part.len().saturating_sub(end).max(1)];
            sum += own.iter().flat_map(|(_, launches)| launches).map(|l| l.ns).sum::<u64>();
        }
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::ops::core::ProfiledOp;

    /// A profile of operations, each with its launches and their times.
    fn profile(ops: &[(&'static str, &[(&str, u64)])]) -> Profile {
        let mut p = Profile::new(Instant::now());
        for (at, (op, launches)) in ops.iter().enumerate() {
            p.ops.push(ProfiledOp::new(op, Some(0)));
            for &(name, ns) in *launches {
                let mut launch = ProfiledLaunch::new(name, Some(at), 0);
                launch.ns = ns;
                p.launches.push(launch);
            }
        }
        p
    }

    fn marks(starts: &[usize], met: &[usize]) -> Marks {
        Marks { starts: starts.to_vec(), met: met.to_vec() }
    }

    #[test]
    fn what_all_variants_do_is_not_counted() {
        // The product is cut in one variant, and one copies its result at its end.
        let tiles = profile(&[("fill", &[("f", 1)]), ("gemm", &[("t", 10)]), ("relu", &[("r", 100)])]);
        let cut = profile(&[("fill", &[("f", 1)]), ("gemm", &[("t", 7), ("s", 2)]), ("relu", &[("r", 90)])]);
        let copies = profile(&[
            ("fill", &[("f", 1)]),
            ("gemm", &[("v", 4)]),
            ("copy", &[("c", 3)]),
            ("relu", &[("r", 80)]),
        ]);
        let m = marks(&[0], &[1, 1]);
        let shapes = [&tiles, &cut, &copies].map(|p| Shape::of(p, &m));
        let common = Shape::common(&shapes.each_ref()).unwrap();
        assert_eq!(common, [1]);
        let own = [&tiles, &cut, &copies].map(|p| own_ns(p, &m, &common));
        assert_eq!(own, [Some(10), Some(9), Some(7)]);
    }

    #[test]
    fn every_occurrence_of_every_run_counts() {
        let layer: [(&'static str, &[(&str, u64)]); 3] =
            [("norm", &[("n", 1000)]), ("gemm", &[("t", 10)]), ("relu", &[("r", 100)])];
        let all: Vec<_> = std::iter::repeat_n(layer, 4).flatten().collect();
        let p = profile(&all);
        let m = marks(&[0, 6], &[1, 4, 7, 10]);
        let shape = Shape::of(&p, &m);
        let common = Shape::common(&[&shape, &shape]).unwrap();
        assert_eq!(common, [2, 1], "relu and the next norm, relu");
        assert_eq!(own_ns(&p, &m, &common), Some(40));
        assert_eq!(own_ns(&p, &marks(&[0, 6], &[1, 4, 7]), &common), None, "once only in the second run");
    }

    #[test]
    fn an_operation_is_never_common_with_itself() {
        let p = profile(&[("gemm", &[("t", 10)])]);
        let m = marks(&[0], &[0]);
        let shape = Shape::of(&p, &m);
        assert_eq!(Shape::common(&[&shape, &shape]), Some(vec![0]));
        assert_eq!(own_ns(&p, &m, &[0]), Some(10));
        let never = Shape::of(&p, &marks(&[0], &[]));
        assert_eq!(Shape::common(&[&never, &never]), None);
        assert_eq!(Shape::common(&[&shape, &never]), None);
    }
}
