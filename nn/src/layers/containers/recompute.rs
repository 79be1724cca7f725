//! Which layers of a row are computed again in the backward pass, so that a step stays within a budget of bytes at the least work.
//!
//! **The step.** The row is cut into items: a layer that keeps what its forward leaves, or a run of layers that is computed again and leaves only
//! its output and copies of its buffers. At an item's turn in the backward pass there are: what the items before it left, what the item itself
//! takes, and the output of the whole, which the caller holds. A layer takes its `peak`. A run computes its layers again, each of which leaves
//! what it keeps, and goes back through them from the last on; meanwhile the run's output and that output's gradient stay, and so do two copies
//! of its buffers. The forward pass takes no more than that anywhere.
//!
//! **The plan.** Dynamic programming over the positions between layers, from left to right. A state is what the items so far left, in bytes, and
//! the work that is done twice. Whether an item fits behind a state depends on the bytes alone, so of two states the one with more bytes and no
//! less work is dropped: each position has a Pareto front, and the cheapest state of the last one is the best of all plans. Fronts of more than
//! [`MOST`] states are thinned; plans then still fit, and exist whenever one fits, but may not be the cheapest.

use std::ops::Range;

/// States of a front at most, about.
const MOST: usize = 512;

/// What a layer takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Cost {
    /// Bytes that its forward leaves for the backward, its output among them.
    pub(super) kept: u64,
    /// Bytes at the worst moment of its forward and backward, `kept` and the gradient of the output among them, the input not.
    pub(super) peak: u64,
    /// Bytes of its output.
    pub(super) output: u64,
    /// Bytes of its buffers.
    pub(super) buffers: u64,
    /// What its forward costs.
    pub(super) work: u64,
}

/// A layer that keeps what it keeps, or a run that is computed again.
struct Item {
    layers: Range<usize>,
    again: bool,
    /// Bytes that it leaves.
    left: u64,
    /// Bytes at its turn, beside what was left before.
    peak: u64,
    work: u64,
}

/// The items that begin with a layer.
fn items(layers: &[Cost], start: usize) -> impl Iterator<Item = Item> {
    let held = layers.last().map_or(0, |l| l.output);
    let own = layers[start];
    let beside = if start + 1 < layers.len() { held } else { 0 };
    let layer =
        Item { layers: start..start + 1, again: false, left: own.kept, peak: own.peak + beside, work: 0 };
    // Of the layers before the run's last one: what they keep, and the worst of their turns.
    let (mut kept, mut before, mut buffers, mut work) = (0, None::<u64>, 0, 0u64);
    let runs = layers.iter().enumerate().skip(start).map(move |(i, l)| {
        (buffers, work) = (buffers + l.buffers, work.saturating_add(l.work));
        let turn = kept + l.peak;
        let peak = before.map_or(turn, |b| turn.max(b + 2 * l.output));
        (kept, before) = (kept + l.kept, Some(before.map_or(turn, |b| b.max(turn))));
        let (left, peak) = (l.output + buffers, peak + 2 * buffers + held);
        Item { layers: start..i + 1, again: true, left, peak, work }
    });
    std::iter::once(layer).chain(runs)
}

/// The items by the position at which they end.
fn by_end(layers: &[Cost]) -> Vec<Vec<Item>> {
    let mut all: Vec<Vec<Item>> = (0..=layers.len()).map(|_| vec![]).collect();
    for item in (0..layers.len()).flat_map(|start| items(layers, start)) {
        all[item.layers.end].push(item);
    }
    all
}

/// A plan up to some position.
#[derive(Debug, Clone, Copy, Default)]
struct State {
    left: u64,
    work: u64,
    /// Its last item among those that end here, and the state before that.
    item: usize,
    before: usize,
}

/// The states that no other one is better than, by bytes; thinned to the leanest and the cheapest of each of [`MOST`] equal ranges of bytes.
fn front(mut states: Vec<State>) -> Vec<State> {
    states.sort_by_key(|s| (s.left, s.work));
    let mut least = None;
    states.retain(|s| {
        let better = least.is_none_or(|w| s.work < w);
        if better {
            least = Some(s.work);
        }
        better
    });
    if states.len() <= MOST {
        return states;
    }
    let (first, last) = (states[0].left, states[states.len() - 1].left);
    let cell = |s: &State| u128::from(s.left - first) * MOST as u128 / (u128::from(last - first) + 1);
    let cells: Vec<u128> = states.iter().map(cell).collect();
    let keeps = |i: usize| i == 0 || cells.get(i + 1) != Some(&cells[i]);
    states.into_iter().enumerate().filter(|(i, _)| keeps(*i)).map(|(_, s)| s).collect()
}

/// The runs to compute again so that a step takes at most `budget` bytes. Where none does: the bytes that the leanest plan takes.
pub(super) fn plan(layers: &[Cost], budget: u64) -> Result<Vec<Range<usize>>, u64> {
    let by_end = by_end(layers);
    let mut fronts = vec![vec![State::default()]];
    for ending in &by_end[1..] {
        let mut states = vec![];
        for (number, item) in ending.iter().enumerate() {
            let fits = |(_, s): &(usize, &State)| s.left + item.peak <= budget;
            let next = |(before, s): (usize, &State)| {
                let work = s.work.saturating_add(item.work);
                State { left: s.left + item.left, work, item: number, before }
            };
            states.extend(fronts[item.layers.start].iter().enumerate().filter(fits).map(next));
        }
        fronts.push(front(states));
    }
    let (mut at, mut runs) = (layers.len(), vec![]);
    let Some(mut state) = fronts[at].len().checked_sub(1) else { return Err(least(&by_end)) };
    while at > 0 {
        let s = fronts[at][state];
        let item = &by_end[at][s.item];
        if item.again {
            runs.push(item.layers.clone());
        }
        (at, state) = (item.layers.start, s.before);
    }
    runs.reverse();
    Ok(runs)
}

/// Whether some plan fits: at each position the fewest bytes that can be left are the best.
fn fits(by_end: &[Vec<Item>], budget: u64) -> bool {
    let mut fewest = vec![Some(0)];
    for ending in &by_end[1..] {
        let left = |i: &Item| {
            let before = fewest[i.layers.start]?;
            (before + i.peak <= budget).then_some(before + i.left)
        };
        let least = ending.iter().filter_map(left).min();
        fewest.push(least);
    }
    fewest.last().is_some_and(Option::is_some)
}

/// The smallest budget into which a plan fits.
fn least(by_end: &[Vec<Item>]) -> u64 {
    let kept = by_end.iter().flatten().filter(|i| !i.again);
    // All layers that keep what they keep fit into the sum of what they leave and take.
    let (mut low, mut high) = (0, kept.map(|i| i.left + i.peak).sum::<u64>());
    while low < high {
        let middle = low + (high - low) / 2;
        if fits(by_end, middle) { high = middle } else { low = middle + 1 }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that look random.
    struct Noise(u64);

    impl Noise {
        fn below(&mut self, n: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.0 >> 33) % n
        }

        fn row(&mut self, n: usize) -> Vec<Cost> {
            let layer = |r: &mut Self| {
                let output = r.below(9);
                let kept = output + r.below(20);
                let peak = kept + output + r.below(12);
                Cost { kept, peak, output, buffers: r.below(3), work: 1 + r.below(30) }
            };
            (0..n).map(|_| layer(self)).collect()
        }
    }

    /// Every way to cut `start..n` into layers and runs.
    fn all_cuts(start: usize, n: usize) -> Vec<Vec<(Range<usize>, bool)>> {
        if start == n {
            return vec![vec![]];
        }
        let mut all = vec![];
        for end in start + 1..=n {
            for rest in all_cuts(end, n) {
                for again in [false, true] {
                    if again || end == start + 1 {
                        all.push([vec![(start..end, again)], rest.clone()].concat());
                    }
                }
            }
        }
        all
    }

    /// A step, moment by moment: the most that is there at a time, and the work that is done again.
    fn step(layers: &[Cost], cut: &[(Range<usize>, bool)]) -> (u64, u64) {
        let whole = layers.last().map_or(0, |l| l.output);
        let sum = |run: &Range<usize>, of: fn(&Cost) -> u64| layers[run.clone()].iter().map(of).sum::<u64>();
        let left = |(run, again): &(Range<usize>, bool)| match again {
            true => layers[run.end - 1].output + sum(run, |l| l.buffers),
            false => sum(run, |l| l.kept),
        };
        let mut live: u64 = cut.iter().map(left).sum();
        let (mut most, mut work) = (0, 0);
        for item in cut.iter().rev() {
            live -= left(item);
            let (run, again) = item;
            if !again {
                let beside = if run.end == layers.len() { 0 } else { whole };
                most = most.max(live + layers[run.start].peak + beside);
                continue;
            }
            work += sum(run, |l| l.work);
            let beside = live + whole + 2 * sum(run, |l| l.buffers);
            let mut again = sum(run, |l| l.kept);
            for i in run.clone().rev() {
                again -= layers[i].kept;
                let output = if i + 1 == run.end { 0 } else { 2 * layers[run.end - 1].output };
                most = most.max(beside + again + layers[i].peak + output);
            }
        }
        (most, work)
    }

    /// The items of a row with these runs.
    fn cut_of(runs: &[Range<usize>], n: usize) -> Vec<(Range<usize>, bool)> {
        let (mut at, mut all) = (0, vec![]);
        while at < n {
            let run = runs.iter().find(|r| r.start == at);
            all.push(run.map_or((at..at + 1, false), |r| (r.clone(), true)));
            at = all[all.len() - 1].0.end;
        }
        all
    }

    #[test]
    fn plans_are_the_best_of_all() {
        let mut noise = Noise(1);
        for round in 0..150 {
            let n = 1 + noise.below(6) as usize;
            let layers = noise.row(n);
            let all: Vec<(u64, u64)> = all_cuts(0, n).iter().map(|cut| step(&layers, cut)).collect();
            let leanest = all.iter().map(|a| a.0).min().unwrap();
            let most = all.iter().map(|a| a.0).max().unwrap();
            for budget in [0, leanest.saturating_sub(1)] {
                if budget < leanest {
                    assert_eq!(plan(&layers, budget), Err(leanest), "round {round}: {layers:?}");
                }
            }
            for budget in leanest..=most {
                let best = all.iter().filter(|a| a.0 <= budget).map(|a| a.1).min();
                let runs = plan(&layers, budget).unwrap();
                let (peak, work) = step(&layers, &cut_of(&runs, n));
                assert!(peak <= budget, "round {round}, {budget} bytes: {runs:?} takes {peak}");
                assert_eq!(Some(work), best, "round {round}, {budget} bytes: {layers:?}, {runs:?}");
            }
        }
        assert_eq!(plan(&[], 0), Ok(vec![]));
    }

    #[test]
    fn equal_layers_have_runs_only_where_the_budget_needs_them() {
        let layer = Cost { kept: 2, peak: 5, output: 1, buffers: 0, work: 10 };
        let layers = [layer; 64];
        assert_eq!(plan(&layers, 64 * 2 + 5), Ok(vec![]));
        let again = |budget: u64| plan(&layers, budget).unwrap().iter().map(Range::len).sum::<usize>();
        let counts: Vec<usize> = [130, 100, 60, 40].map(again).to_vec();
        assert!(counts.is_sorted() && counts[0] < 16 && counts[3] > 32, "{counts:?}");
        let leanest = plan(&layers, 0).unwrap_err();
        assert!(leanest < 40 && plan(&layers, leanest).is_ok(), "{leanest}");
    }

    #[test]
    fn long_rows_of_unequal_layers_still_fit() {
        let mut noise = Noise(7);
        let mut layers = noise.row(80);
        for l in &mut layers {
            // Sums that are all different: fronts would double with every layer.
            (l.kept, l.peak) = (l.kept * 1_000_003 + noise.below(1 << 20), l.peak * 1_000_003 + (1 << 21));
            l.work = 1 + noise.below(1 << 40);
        }
        let (whole, _) = step(&layers, &cut_of(&[], 80));
        assert_eq!(plan(&layers, whole), Ok(vec![]));
        let leanest = plan(&layers, 0).unwrap_err();
        for budget in [leanest, leanest + (whole - leanest) / 4, leanest + (whole - leanest) / 2] {
            let runs = plan(&layers, budget).unwrap();
            let (peak, work) = step(&layers, &cut_of(&runs, 80));
            let all: u64 = layers.iter().map(|l| l.work).sum();
            assert!(peak <= budget && work <= all, "{peak} of {budget}");
            assert_eq!(plan(&layers, budget), Ok(runs), "the same plan every time");
        }
    }
}
