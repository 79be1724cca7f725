//! Where the allocations of a recording lie in one block.

use std::ops::Range;

/// An allocation: bytes, and the first and last call that uses it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Life {
    pub(super) bytes: usize,
    pub(super) calls: Range<usize>,
}

/// Every allocation begins at a multiple of this.
const ALIGNMENT: usize = 256;

/// Offsets of the allocations, none of which overlap while both live, and the bytes of all: the largest first, each at the lowest place that is free
/// (Pisarchyk and Lee, 2020).
pub(super) fn place(lives: &[Life]) -> (Vec<usize>, usize) {
    let size = |l: &Life| l.bytes.max(1).next_multiple_of(ALIGNMENT);
    let mut order: Vec<usize> = (0..lives.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(lives[i].bytes), lives[i].calls.start));
    let (mut offsets, mut placed, mut all) = (vec![0; lives.len()], Vec::<usize>::new(), 0);
    for i in order {
        let own = &lives[i].calls;
        let together = |&j: &usize| own.start < lives[j].calls.end && lives[j].calls.start < own.end;
        let mut taken: Vec<Range<usize>> = placed
            .iter()
            .copied()
            .filter(together)
            .map(|j| offsets[j]..offsets[j] + size(&lives[j]))
            .collect();
        taken.sort_unstable_by_key(|r| r.start);
        let mut at = 0;
        for r in taken {
            if at + size(&lives[i]) <= r.start {
                break;
            }
            at = at.max(r.end);
        }
        offsets[i] = at;
        all = all.max(at + size(&lives[i]));
        placed.push(i);
    }
    (offsets, all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_living_lie_apart_and_the_dead_make_room() {
        // Numbers of a linear congruential generator.
        let mut state = 1u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((state >> 33) % below) as usize
        };
        for _ in 0..20 {
            let lives: Vec<Life> = (0..200)
                .map(|_| {
                    let from = next(400);
                    Life { bytes: 1 + next(100_000), calls: from..from + 1 + next(30) }
                })
                .collect();
            let (offsets, all) = place(&lives);
            let end = |i: usize| offsets[i] + lives[i].bytes;
            for i in 0..lives.len() {
                assert!(offsets[i].is_multiple_of(ALIGNMENT) && end(i) <= all);
                for j in 0..i {
                    let (a, b) = (&lives[i].calls, &lives[j].calls);
                    let together = a.start < b.end && b.start < a.end;
                    assert!(!together || end(i) <= offsets[j] || end(j) <= offsets[i], "{i} {j}");
                }
            }
            let live =
                |at: usize| lives.iter().filter(|l| l.calls.contains(&at)).map(|l| l.bytes).sum::<usize>();
            let least = (0..430).map(live).max().unwrap();
            assert!(all as f64 <= 1.25 * least as f64, "{all} bytes where {least} live at once");
        }
        assert_eq!(place(&[]), (vec![], 0));
    }
}
