//! How a Fourier transform runs.

use crate::device::Caps;
use crate::dtype::DType;
use crate::engine::plan::{Problem, Reason, Variant};

const SOURCE: &str = "kernels/common/fourier/fourier.c";

/// Complex numbers of a block in local memory (`GK_FOURIER_POINTS`).
const fn points(dtype: DType) -> usize {
    if matches!(dtype, DType::F64) { 1024 } else { 2048 }
}

/// The largest factor that a pass takes.
const LARGEST: usize = 13;
/// Neighbouring sequences of a block below which strided reads waste most of what memory delivers.
const NEIGHBOURS: usize = 8;

/// Sequences of n elements, those of `inner` in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FourierProblem {
    pub(crate) n: usize,
    pub(crate) inner: usize,
    pub(crate) dtype: DType,
}

/// How they are transformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FourierPlan {
    /// In local memory.
    Local,
    /// As n1 by n2, in two passes over memory.
    TwoPass { n1: usize, n2: usize },
    /// As a convolution of length m.
    Chirp { m: usize },
}

/// Factors of 13 and less in base 16, the lowest first; `None` where there is a larger one.
pub(crate) fn factors(mut n: usize) -> Option<i64> {
    let (mut all, mut shift) = (0i64, 0);
    for f in [4, 2, 3, 5, 7, 11, LARGEST] {
        while n.is_multiple_of(f) {
            (all, n) = (all | (f as i64) << shift, n / f);
            shift += 4;
        }
    }
    (n == 1).then_some(all)
}

/// Sequences that a block takes at once.
pub(crate) fn per_block(n: usize, dtype: DType) -> usize {
    (points(dtype) / n).clamp(1, 256)
}

/// The split of n whose parts are nearest to its root, both at most `most`.
fn split(n: usize, most: usize) -> Option<[usize; 2]> {
    let root = n.isqrt().min(most);
    let n1 = (1..=root).rev().find(|d| n.is_multiple_of(*d))?;
    (n / n1 <= most).then_some([n1, n / n1])
}

impl Problem for FourierProblem {
    type Plan = FourierPlan;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: "local", source: SOURCE },
        Variant { name: "two_pass", source: SOURCE },
        Variant { name: "chirp", source: SOURCE },
    ];

    fn plan(&self, variant: usize, _: &Caps) -> Result<FourierPlan, Reason> {
        let large = || Reason::from(format!("the length {} has a prime factor above {LARGEST}", self.n));
        match variant {
            0 if factors(self.n).is_none() => Err(large()),
            0 if self.n > points(self.dtype) => {
                Err(format!("the length {} is above {}", self.n, points(self.dtype)).into())
            }
            0 => Ok(FourierPlan::Local),
            1 if factors(self.n).is_none() => Err(large()),
            1 => match split(self.n, points(self.dtype)) {
                Some([n1, n2]) if n1 > 1 => Ok(FourierPlan::TwoPass { n1, n2 }),
                _ => {
                    Err(format!("the length {} is no product of two up to {}", self.n, points(self.dtype))
                        .into())
                }
            },
            _ => Ok(FourierPlan::Chirp { m: (2 * self.n - 1).next_power_of_two() }),
        }
    }

    /// Strided sequences too long for neighbours in one block take two passes of short ones.
    fn prefers(&self, variant: usize, _: &Caps) -> bool {
        let alone = self.inner > 1 && self.n > points(self.dtype) / NEIGHBOURS;
        variant != 0 || !alone || split(self.n, points(self.dtype)).is_none_or(|[n1, _]| n1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::geometry::tests::gpu;
    use crate::engine::plan::best;

    fn chosen(n: usize, inner: usize) -> FourierPlan {
        let problem = FourierProblem { n, inner, dtype: DType::F32 };
        best(&problem, &gpu()).expect("a plan").1
    }

    #[test]
    fn lengths_choose_the_variant() {
        assert_eq!(chosen(1, 1), FourierPlan::Local);
        assert_eq!(chosen(2048, 1), FourierPlan::Local);
        assert_eq!(chosen(2048, 64), FourierPlan::TwoPass { n1: 32, n2: 64 });
        assert_eq!(chosen(2310, 1), FourierPlan::TwoPass { n1: 42, n2: 55 });
        assert_eq!(chosen(1 << 20, 1), FourierPlan::TwoPass { n1: 1024, n2: 1024 });
        assert_eq!(chosen(17, 1), FourierPlan::Chirp { m: 64 });
        assert_eq!(chosen(1_000_003, 1), FourierPlan::Chirp { m: 1 << 21 });
    }

    #[test]
    fn factors_multiply_to_the_length() {
        for n in 1..3000 {
            let Some(mut all) = factors(n) else { continue };
            let mut product = 1;
            while all > 0 {
                (product, all) = (product * (all & 15) as usize, all >> 4);
            }
            assert_eq!(product, n);
        }
        assert_eq!(factors(34), None);
    }
}
