//! What was determined for the problems of a vendor's library: a plan for each, or why there is none.
//!
//! Plans are kept up to a bound; beyond it all are given up and made again as needed. Which of them were used last is not noted: a program that meets
//! more problems than the bound gains little from the plans of the oldest.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The plan of a problem, or why it has none.
type Made<P> = std::result::Result<P, String>;

/// Plans by problem.
#[derive(Debug)]
pub(crate) struct PlanCache<K, P> {
    most: usize,
    plans: Mutex<HashMap<K, Made<P>>>,
}

/// Keeps all others from the plans.
pub(crate) struct Held<'a, K, P> {
    _plans: MutexGuard<'a, HashMap<K, Made<P>>>,
}

impl<K: Copy + Eq + Hash, P> PlanCache<K, P> {
    /// Room for `most` problems.
    pub(crate) fn new(most: usize) -> Self {
        PlanCache { most, plans: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, Made<P>>> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `f` with the plan of a problem. One that is not known is made; if there is no room for it, plans that are given up go to `end`. Nobody else
    /// uses a plan meanwhile, nor what the plans share.
    pub(crate) fn with<T>(
        &self,
        problem: &K,
        make: impl FnOnce() -> Made<P>,
        end: impl FnMut(P),
        f: impl FnOnce(&mut P) -> T,
    ) -> std::result::Result<T, String> {
        let mut plans = self.lock();
        if let Some(plan) = plans.get_mut(problem) {
            return plan.as_mut().map(f).map_err(|why| why.clone());
        }
        let plan = make();
        if plans.len() >= self.most {
            plans.drain().filter_map(|(_, plan)| plan.ok()).for_each(end);
        }
        let plan = plans.entry(*problem).or_insert(plan);
        plan.as_mut().map(f).map_err(|why| why.clone())
    }

    /// Keeps all others from the plans, and from what the plans share.
    pub(crate) fn hold(&self) -> Held<'_, K, P> {
        Held { _plans: self.lock() }
    }

    /// Takes all plans out.
    pub(crate) fn take(&self) -> Vec<P> {
        self.lock().drain().filter_map(|(_, plan)| plan.ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_made_once_and_a_refusal_is_kept() {
        let (cache, mut made) = (PlanCache::new(8), 0);
        let mut ask = |problem: u32| {
            let make = || {
                made += 1;
                if problem.is_multiple_of(2) { Ok(10 * problem) } else { Err(format!("{problem} is odd")) }
            };
            cache.with(&problem, make, |_| panic!("there is room"), |plan| *plan)
        };
        for _ in 0..3 {
            assert_eq!(ask(2), Ok(20));
            assert_eq!(ask(3), Err("3 is odd".into()));
        }
        assert_eq!(made, 2);
    }

    #[test]
    fn a_plan_can_be_changed_in_place() {
        let cache = PlanCache::new(8);
        let add = || {
            cache.with(
                &"one",
                || Ok(vec![]),
                drop,
                |plan| {
                    plan.push(1);
                    plan.len()
                },
            )
        };
        assert_eq!([add(), add()], [Ok(1), Ok(2)]);
    }

    #[test]
    fn beyond_the_bound_all_plans_are_given_up_and_none_is_lost() {
        let cache = PlanCache::new(3);
        let mut ended = Vec::new();
        for problem in 0..7 {
            let make = || if problem == 1 { Err("refused".to_string()) } else { Ok(problem) };
            let got = cache.with(&problem, make, |plan| ended.push(plan), |plan| *plan);
            assert_eq!(got.is_ok(), problem != 1);
        }
        ended.sort_unstable();
        // A refusal takes room as well; it has nothing that could end.
        assert_eq!(ended, [0, 2, 3, 4, 5]);
        assert_eq!(cache.take(), [6]);
        assert!(cache.take().is_empty());
    }

    #[test]
    fn a_panic_leaves_the_plans_usable() {
        let cache = PlanCache::new(3);
        let run = || cache.with(&1, || Ok(2), drop, |_| panic!("in the library"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err());
        assert_eq!(cache.with(&1, || Err("made twice".into()), drop, |plan| *plan), Ok(2));
        drop(cache.hold());
    }
}
