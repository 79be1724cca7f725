//! Times of variants, and which of them is faster.

use rustc_hash::FxHashSet;

use super::record::Record;
use super::share::{Marks, Shape, own_ns};
use super::{Decision, OP, Trying};
use crate::engine::Engine;
use crate::error::{GpuError, Result};
use crate::ops::core::{Profile, Tuned};

/// Runs of which a time is the mean take about so long, but there are no more than that many: a run of a few microseconds alone tells little.
const SAMPLE_NS: u64 = 2_000_000;
const MOST_RUNS: u64 = 64;
/// Rounds in which every variant is timed once, within about so long in all.
const ROUNDS: std::ops::RangeInclusive<u64> = 5..=9;
const ROUNDS_NS: u64 = 500_000_000;
/// How many times the fastest first time a variant may take to be timed again.
const HOPELESS: u64 = 4;
/// Parts of the preferred variant's time by which another must be faster, and rounds, of those that there are, in which it must be.
const GAIN: u64 = 50;
const WINS: (usize, usize) = (7, 8);
/// How often calls are searched for choices: another variant may make others.
const PASSES: usize = 3;

/// The times of candidates, and the one to take.
#[derive(Debug, PartialEq, Eq)]
struct Race {
    /// Median nanoseconds; `None` for those that do not run.
    times: Vec<Option<u64>>,
    winner: usize,
}

/// What a candidate took: its own launches on the device, and all that was done meanwhile by the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cost {
    ns: u64,
    wall_ns: u64,
}

/// Times candidates, of which the first is preferred. `time(i, n)` gives the cost of a run, the mean of `n`, of candidate i; `None` where it does not
/// run. All are timed in turn, so that a clock that changes meets all. `None` where the first does not run.
fn race(count: usize, time: &mut dyn FnMut(usize, u64) -> Result<Option<Cost>>) -> Result<Option<Race>> {
    let first = (0..count).map(|i| time(i, 1)).collect::<Result<Vec<_>>>()?;
    if first[0].is_none() {
        return Ok(None);
    }
    let mut times: Vec<_> = first.iter().map(|cost| cost.map(|c| c.ns)).collect();
    let fastest = times.iter().flatten().min().copied().unwrap_or_default();
    let hopeful = |i: &usize| *i == 0 || times[*i].is_some_and(|ns| ns <= fastest.saturating_mul(HOPELESS));
    let racing: Vec<usize> = (0..count).filter(hopeful).collect();
    if racing.len() == 1 {
        return Ok(Some(Race { times, winner: 0 }));
    }
    let wall = |i: usize| first[i].map_or(1, |c| c.wall_ns).max(1);
    let runs = |i: usize| (SAMPLE_NS / wall(i)).clamp(1, MOST_RUNS);
    let round: u64 = racing.iter().map(|&i| runs(i).saturating_mul(wall(i))).sum();
    let rounds = (ROUNDS_NS / round.max(1)).clamp(*ROUNDS.start(), *ROUNDS.end());
    let mut samples = vec![vec![]; count];
    for turn in 0..rounds as usize {
        for k in 0..racing.len() {
            let i = racing[(k + turn) % racing.len()];
            match time(i, runs(i))? {
                Some(cost) => samples[i].push(cost.ns),
                // It ran before, so the calls are not the same every time.
                None => return Ok(None),
            }
        }
    }
    for (time, samples) in times.iter_mut().zip(&samples).filter(|(_, s)| !s.is_empty()) {
        *time = Some(median(samples));
    }
    let winner = winner(&times, &samples);
    Ok(Some(Race { times, winner }))
}

/// The fastest of those that have samples, if that is more than chance; else the first.
fn winner(times: &[Option<u64>], samples: &[Vec<u64>]) -> usize {
    let raced = (0..times.len()).filter(|&i| !samples[i].is_empty());
    let fastest = raced.min_by_key(|&i| times[i]).unwrap_or(0);
    let wins = samples[fastest].iter().zip(&samples[0]).filter(|(own, first)| own < first).count();
    let [own, preferred] = [fastest, 0].map(|i| times[i].unwrap_or_default());
    let clear = own.saturating_add(preferred / GAIN) < preferred;
    let often = wins * WINS.1 >= samples[0].len() * WINS.0;
    if clear && often { fastest } else { 0 }
}

fn median(samples: &[u64]) -> u64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}

impl Engine {
    /// What [`InteropOps::tune_calls`](crate::ops::core::InteropOps::tune_calls) answers.
    pub(crate) fn tune(&self, calls: &mut dyn FnMut() -> Result<()>) -> Result<Vec<Tuned>> {
        self.check_poison()?;
        self.recorded(OP, "what is recorded does not run, so that nothing can be timed")?;
        if !self.driver().runs_kernels() {
            return calls().map(|()| vec![]);
        }
        let Some(store) = self.inner.choices.store() else {
            let what = "TREFOIL_TUNE=off leaves out what tune_calls would measure";
            return Err(GpuError::Config(what.into()));
        };
        let trying = store.try_calls()?;
        let mut tuned = vec![];
        let done = self.tune_all(&trying, calls, &mut tuned);
        drop(trying);
        // Also what was measured before a failure.
        if !tuned.is_empty() {
            let kept = store.keep(tuned.iter().map(|t| (t.op, t.problem.as_str())));
            tuned.iter_mut().for_each(|t| t.kept = kept);
        }
        done.map(|()| tuned)
    }

    fn tune_all(
        &self,
        trying: &Trying<'_>,
        calls: &mut dyn FnMut() -> Result<()>,
        tuned: &mut Vec<Tuned>,
    ) -> Result<()> {
        // Compiles, and lets libraries time and check their kernels, which may change whether they take a problem.
        calls()?;
        self.wait_idle()?;
        let mut seen = FxHashSet::default();
        for _ in 0..PASSES {
            let mut fresh = trying.decisions(calls)?;
            fresh.retain(|d| seen.insert(d.digest) && d.candidates.len() > 1);
            if fresh.is_empty() {
                break;
            }
            for d in fresh {
                match self.race_of(trying, &d, calls)? {
                    Some(race) => tuned.push(trying.remember(&d, &race)),
                    None => {
                        let id = self.device_caps().id;
                        log::debug!(
                            "{id}: the calls of {} are not the same every time; it is not tuned",
                            d.op
                        );
                    }
                }
            }
        }
        Ok(())
    }

    /// The race of the variants that a choice has; `None` where the calls do not repeat it.
    fn race_of(
        &self,
        trying: &Trying<'_>,
        d: &Decision,
        calls: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Option<Race>> {
        // These runs compile what they need, and show which launches are the problem's.
        let mut shapes = vec![];
        for i in 0..d.candidates.len() {
            let run = self.runs_of(trying, d, i, 1, calls)?;
            shapes.push(run.map(|(profile, marks)| Shape::of(&profile, &marks)));
        }
        let ran: Vec<&Shape> = shapes.iter().flatten().collect();
        let Some(common) = Shape::common(&ran) else { return Ok(None) };
        race(d.candidates.len(), &mut |i, n| {
            if shapes[i].is_none() {
                return Ok(None);
            }
            let Some((profile, marks)) = self.runs_of(trying, d, i, n, calls)? else { return Ok(None) };
            let own = own_ns(&profile, &marks, &common);
            Ok(own
                .map(|ns| Cost { ns: (ns / n).max(1), wall_ns: profile.host_ns.max(profile.device_ns) / n }))
        })
    }

    /// What `n` runs of `calls` do with a candidate for a choice, and where they have it. `None` where it does not run. Errors: those of the
    /// preferred candidate, and those after which the device is lost.
    fn runs_of(
        &self,
        trying: &Trying<'_>,
        d: &Decision,
        candidate: usize,
        n: u64,
        calls: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Option<(Profile, Marks)>> {
        let (variant, name) = d.candidates[candidate];
        let mut runs = || {
            (0..n).try_for_each(|_| {
                trying.begin_run();
                calls()
            })
        };
        let (profile, marks) = trying.with(d.digest, variant, || self.profile(&mut runs));
        match profile {
            Ok(profile) => Ok(Some((profile, marks))),
            Err(e) if candidate == 0 || e.is_fatal() || self.check_poison().is_err() => Err(e),
            Err(e) => {
                log::warn!("{}: the variant `{name}` of {} is not timed: {e}", self.device_caps().id, d.op);
                Ok(None)
            }
        }
    }
}

impl Trying<'_> {
    /// Takes the result of a race into use.
    fn remember(&self, d: &Decision, race: &Race) -> Tuned {
        let named = d.candidates.iter().zip(&race.times);
        let times: Vec<_> = named.filter_map(|(c, ns)| Some((c.1.to_string(), (*ns)?))).collect();
        let [chosen, preferred] = [race.winner, 0].map(|i| d.candidates[i].1.to_string());
        let record = Record { chosen, preferred, times };
        self.0.remember(d.op, &d.problem, record.clone());
        let Record { chosen, preferred, times } = record;
        Tuned { op: d.op, problem: d.problem.clone(), chosen, preferred, times, kept: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A race of candidates whose times are given by candidate and number of the sample; how often each was timed.
    fn timed(count: usize, ns: impl Fn(usize, usize) -> Option<u64>) -> (Option<Race>, Vec<usize>) {
        let mut calls = vec![0; count];
        let race = race(count, &mut |i, _| {
            calls[i] += 1;
            Ok(ns(i, calls[i]).map(|ns| Cost { ns, wall_ns: 1_000_000 }))
        });
        (race.unwrap(), calls)
    }

    #[test]
    fn a_clearly_faster_candidate_wins() {
        let (race, calls) = timed(3, |i, n| Some([1_000_000, 900_000, 950_000][i] + n as u64));
        let race = race.unwrap();
        assert_eq!(race.winner, 1);
        assert!(calls.iter().all(|&n| n > *ROUNDS.start() as usize), "{calls:?}");
        // The first times decide who is timed again, and are in no median.
        let (race, _) = timed(2, |i, n| Some(if n == 1 { 1 } else { [100_000, 50_000][i] }));
        assert_eq!(race, Some(Race { times: vec![Some(100_000), Some(50_000)], winner: 1 }));
    }

    #[test]
    fn what_is_no_more_than_chance_leaves_the_preferred_one() {
        let (race, _) = timed(2, |i, _| Some([100_000, 99_000][i]));
        assert_eq!(race.unwrap().winner, 0, "one percent");
        // Faster in the median, but not almost every time.
        let (race, _) =
            timed(2, |i, n| Some(if i == 1 && n % 4 == 0 { 140_000 } else { [100_000, 90_000][i] }));
        let race = race.unwrap();
        assert_eq!((race.times[1], race.winner), (Some(90_000), 0));
    }

    #[test]
    fn the_hopeless_and_those_that_do_not_run_are_left_alone() {
        let (race, calls) = timed(4, |i, _| [Some(100_000), Some(900_000), None, Some(40_000)][i]);
        let times = vec![Some(100_000), Some(900_000), None, Some(40_000)];
        assert_eq!(race, Some(Race { times, winner: 3 }));
        assert_eq!(calls[1..3], [1, 1]);
        let (race, calls) = timed(2, |i, _| Some([10_000, 90_000][i]));
        assert_eq!((race.unwrap().winner, calls), (0, vec![1, 1]));
    }

    #[test]
    fn calls_that_do_not_repeat_are_not_judged() {
        assert_eq!(timed(2, |i, _| (i == 1).then_some(5)).0, None);
        assert_eq!(timed(2, |i, n| (i == 0 || n < 4).then_some(5)).0, None);
        let e = race(2, &mut |i, _| match i {
            0 => Ok(Some(Cost { ns: 5, wall_ns: 5 })),
            _ => Err(GpuError::Config("lost".into())),
        });
        assert!(e.is_err_and(|e| e.to_string().contains("lost")));
    }
}
