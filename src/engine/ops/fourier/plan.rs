//! How a Fourier transform runs.

use std::fmt::Debug;
use std::hash::Hash;

use crate::device::Caps;
use crate::dtype::DType;
use crate::engine::plan::{Problem, Reason, Variant};
use crate::engine::tune::ProblemKey;
use crate::spec::BLOCK;

const SOURCE: &str = "kernels/common/fourier/fourier.c";

/// Complex numbers that a thread holds (`GK_FOURIER_EACH`).
const fn each(dtype: DType) -> usize {
    if matches!(dtype, DType::F64) { 8 } else { 16 }
}

/// Complex numbers that a block holds, and places for them in local memory (`GK_FOURIER_PLACES`).
const fn points(dtype: DType) -> [usize; 2] {
    let points = each(dtype) * BLOCK as usize;
    [points, points / 16 * 17 + 32]
}

/// The largest odd factor that a pass takes.
const LARGEST: usize = 13;
/// Neighbouring sequences of a block below which strided reads waste most of what memory delivers.
const NEIGHBOURS: usize = 8;
/// Numbers from which on the vendor's library is taken: a quarter of the smallest problem that was measured.
const LARGE: usize = 1 << 20;
/// The longest rows of a power of two for which it is taken: for rows of 4,096 both take the same time.
const SHORT: usize = 2048;

/// Sequences of n elements, those of `inner` in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FourierProblem {
    pub(crate) n: usize,
    pub(crate) inner: usize,
    pub(crate) dtype: DType,
}

/// Transforms between real numbers and bins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RealFourierProblem {
    pub(crate) of: FourierProblem,
    /// Whether operands lie at multiples of two numbers, and nothing is added to.
    pub(crate) plain: bool,
}

/// The choice among the kernels of this library.
pub(crate) trait Own: Problem<Plan = FourierPlan> + Debug + Hash {
    /// The vendor's library, then the variants of this one.
    const OFFERED: &'static [Variant];

    fn sequences(&self) -> &FourierProblem;
}

/// Number of the variant by the vendor's library.
pub(crate) const CUFFT: usize = 0;
const LIBRARY: Variant = Variant { name: "cufft", source: "vendor library" };

impl Own for FourierProblem {
    const OFFERED: &'static [Variant] = &[LIBRARY, Self::VARIANTS[0], Self::VARIANTS[1], Self::VARIANTS[2]];

    fn sequences(&self) -> &FourierProblem {
        self
    }
}

impl Own for RealFourierProblem {
    const OFFERED: &'static [Variant] =
        &[LIBRARY, Self::VARIANTS[0], Self::VARIANTS[1], Self::VARIANTS[2], Self::VARIANTS[3]];

    fn sequences(&self) -> &FourierProblem {
        &self.of
    }
}

/// All that the time of a call depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Asked<P> {
    pub(crate) own: P,
    pub(crate) outer: usize,
    /// Whether one side has real numbers: read, or written.
    pub(crate) from_reals: bool,
    pub(crate) to_reals: bool,
    /// Whether results are scaled or added to something, for which a vendor's results need a pass of their own.
    pub(crate) finished: bool,
}

impl<P: Own> Asked<P> {
    /// Whether cuFFT is faster than the kernels of this library: real numbers to bins, columns of one matrix, lengths that are no powers of two, and
    /// short rows (PyTorch's times on an H100 in f32, PERFORMANCE.md). Another pass over the results costs as much as is gained, but where a chirp's
    /// transforms of twice the length are spared.
    pub(crate) fn library_is_faster(&self) -> bool {
        let FourierProblem { n, inner, dtype } = *self.own.sequences();
        let all = [n, inner, self.outer].into_iter().fold(1usize, |a, b| a.saturating_mul(b));
        if dtype != DType::F32 || all < LARGE || self.to_reals || inner > 1 && self.outer > 1 {
            return false;
        }
        match self.finished {
            true => factors(n, dtype).is_none(),
            false => self.from_reals || inner > 1 || !n.is_power_of_two() || n <= SHORT,
        }
    }
}

/// A call, and what the vendor's library says to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offered<'a, P> {
    pub(crate) asked: Asked<P>,
    pub(crate) vendor: Result<(), &'a str>,
}

impl<P: Own> Problem for Offered<'_, P> {
    type Plan = FourierPlan;

    const VARIANTS: &'static [Variant] = P::OFFERED;

    fn plan(&self, variant: usize, caps: &Caps) -> Result<FourierPlan, Reason> {
        match variant {
            CUFFT => self.vendor.map(|()| FourierPlan::Vendor).map_err(|why| why.to_string().into()),
            own => self.asked.own.plan(own - 1, caps),
        }
    }

    fn prefers(&self, variant: usize, caps: &Caps) -> bool {
        match variant {
            CUFFT => self.asked.library_is_faster(),
            own => self.asked.own.prefers(own - 1, caps),
        }
    }

    /// What the library says changes with what is pinned; a measured choice holds for the call.
    fn key(&self) -> Option<&dyn ProblemKey> {
        Some(&self.asked)
    }
}

/// How they are transformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FourierPlan {
    /// By the vendor's library.
    Vendor,
    /// n real numbers as n/2 pairs, in local memory.
    RealPairs,
    /// In local memory.
    Local,
    /// As n1 by n2, in two passes over memory.
    TwoPass { n1: usize, n2: usize },
    /// As a convolution of length m.
    Chirp { m: usize },
}

/// The passes of a length: factors up to [`LARGEST`] and powers of 2 up to 16 (8 in f64) of about one size; `None` where there is a larger one.
pub(crate) fn factors(n: usize, dtype: DType) -> Option<Vec<usize>> {
    let (twos, most) = (n.trailing_zeros() as usize, each(dtype).ilog2() as usize);
    let mut rest = n >> twos;
    let passes = match twos {
        // Reads of less than 4 neighbours waste a part of what memory delivers.
        3 | 4 if rest == 1 => 2,
        _ => twos.div_ceil(most),
    };
    let mut all: Vec<usize> = (0..passes).map(|i| 1 << ((twos + i) / passes)).collect();
    for f in [3, 5, 7, 11, LARGEST] {
        while rest.is_multiple_of(f) {
            all.push(f);
            rest /= f;
        }
    }
    if n == 1 {
        all.push(1);
    }
    (rest == 1).then_some(all)
}

/// Sequences of n elements that a block can hold: 0 if not even one.
fn capacity(n: usize, dtype: DType) -> Option<usize> {
    let threads = BLOCK as usize;
    let passes = factors(n, dtype)?;
    let held = passes.iter().map(|r| threads * r * (each(dtype) / r).max(1) / n).min()?;
    let [_, places] = points(dtype);
    let stored = if n + n / 16 <= places { (places / ((n + n / 16) | 1)).max(1) } else { 0 };
    Some(held.min(stored))
}

/// Sequences that a block takes at once: as many as it can hold, but so that there are blocks for the whole device.
pub(crate) fn per_block(n: usize, all: usize, dtype: DType, caps: &Caps) -> usize {
    let share = all.div_ceil(2 * caps.compute_units.max(1) as usize);
    capacity(n, dtype).unwrap_or(1).clamp(1, share.max(NEIGHBOURS))
}

/// The split of n whose parts are nearest to its root, both short enough for a block.
fn split(n: usize, dtype: DType) -> Option<[usize; 2]> {
    let fits = |n: usize| capacity(n, dtype).is_some_and(|c| c > 0);
    let n1 = (2..=n.isqrt()).rev().find(|d| n.is_multiple_of(*d))?;
    (fits(n1) && fits(n / n1)).then_some([n1, n / n1])
}

impl Problem for FourierProblem {
    type Plan = FourierPlan;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: "local", source: SOURCE },
        Variant { name: "two_pass", source: SOURCE },
        Variant { name: "chirp", source: SOURCE },
    ];

    fn plan(&self, variant: usize, _: &Caps) -> Result<FourierPlan, Reason> {
        let n = self.n;
        if variant == 2 {
            return Ok(FourierPlan::Chirp { m: (2 * n - 1).next_power_of_two() });
        }
        let Some(capacity) = capacity(n, self.dtype) else {
            return Err(format!("the length {n} has a prime factor above {LARGEST}").into());
        };
        let most = points(self.dtype)[0];
        match variant {
            0 if capacity == 0 => Err(format!("a block holds {most} elements, the length is {n}").into()),
            0 => Ok(FourierPlan::Local),
            _ => match split(n, self.dtype) {
                Some([n1, n2]) => Ok(FourierPlan::TwoPass { n1, n2 }),
                None => Err(format!("the length {n} is no product of two that fit a block").into()),
            },
        }
    }

    /// Strided sequences too long for neighbours in one block take two passes of short ones.
    fn prefers(&self, variant: usize, _: &Caps) -> bool {
        let alone = self.inner > 1 && capacity(self.n, self.dtype).is_some_and(|c| c < NEIGHBOURS);
        variant != 0 || !alone || split(self.n, self.dtype).is_none()
    }
}

impl Problem for RealFourierProblem {
    type Plan = FourierPlan;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: "real_pairs", source: SOURCE },
        Variant { name: "local", source: SOURCE },
        Variant { name: "two_pass", source: SOURCE },
        Variant { name: "chirp", source: SOURCE },
    ];

    fn plan(&self, variant: usize, caps: &Caps) -> Result<FourierPlan, Reason> {
        let FourierProblem { n, dtype, .. } = self.of;
        match variant {
            0 if !self.plain => Err("an operand lies at no multiple of two numbers, or is added to".into()),
            0 if !n.is_power_of_two() || n < 4 => {
                Err(format!("the length {n} is no power of 2 from 4 on").into())
            }
            0 if capacity(n / 2, dtype) == Some(0) => {
                Err(format!("{} pairs do not fit a block", n / 2).into())
            }
            0 => Ok(FourierPlan::RealPairs),
            _ => self.of.plan(variant - 1, caps),
        }
    }

    fn prefers(&self, variant: usize, caps: &Caps) -> bool {
        variant == 0 || self.of.prefers(variant - 1, caps)
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
        assert_eq!(chosen(4096, 1), FourierPlan::Local);
        assert_eq!(chosen(512, 64), FourierPlan::Local);
        assert_eq!(chosen(2048, 64), FourierPlan::TwoPass { n1: 32, n2: 64 });
        assert_eq!(chosen(6930, 1), FourierPlan::TwoPass { n1: 77, n2: 90 });
        assert_eq!(chosen(1 << 20, 1), FourierPlan::TwoPass { n1: 1024, n2: 1024 });
        assert_eq!(chosen(17, 1), FourierPlan::Chirp { m: 64 });
        assert_eq!(chosen(4099, 1), FourierPlan::Chirp { m: 16384 });
        assert_eq!(chosen(1_000_003, 1), FourierPlan::Chirp { m: 1 << 21 });
    }

    #[test]
    fn real_numbers_of_a_power_of_two_are_taken_as_pairs() {
        let of = |n, plain| {
            let of = FourierProblem { n, inner: 1, dtype: DType::F32 };
            best(&RealFourierProblem { of, plain }, &gpu()).expect("a plan").1
        };
        assert_eq!(of(8192, true), FourierPlan::RealPairs);
        assert_eq!(of(4, true), FourierPlan::RealPairs);
        assert_eq!(of(2048, false), FourierPlan::Local);
        assert_eq!(of(2, true), FourierPlan::Local);
        assert_eq!(of(3000, true), FourierPlan::Local);
        assert!(matches!(of(16384, true), FourierPlan::TwoPass { .. }));
    }

    /// A complex call in f32 of which the library takes everything.
    fn asked(n: usize, [outer, inner]: [usize; 2]) -> Asked<FourierProblem> {
        let own = FourierProblem { n, inner, dtype: DType::F32 };
        Asked { own, outer, from_reals: false, to_reals: false, finished: false }
    }

    fn plan_of<P: Own>(asked: Asked<P>, vendor: Result<(), &str>) -> FourierPlan {
        best(&Offered { asked, vendor }, &gpu()).expect("a plan").1
    }

    #[test]
    fn the_library_comes_first_where_it_was_faster() {
        let takes = |asked| plan_of(asked, Ok(())) == FourierPlan::Vendor;
        // The problems that were measured.
        assert!(takes(asked(1024, [16384, 1])));
        assert!(!takes(asked(4096, [4096, 1])));
        assert!(takes(asked(4096, [1, 4096])));
        assert!(takes(asked(4099, [1024, 1])));
        // Their neighbours.
        assert!(takes(asked(3000, [4096, 1])) && takes(asked(2048, [4096, 1])));
        assert!(!takes(asked(1024, [512, 1])), "there is little to compute");
        assert!(!takes(asked(4096, [4, 4096])), "a call for each matrix");
        let double = |asked: Asked<FourierProblem>| Asked {
            own: FourierProblem { dtype: DType::F64, ..asked.own },
            ..asked
        };
        assert!(!takes(double(asked(4099, [1024, 1]))), "f64 was not measured");
        // What is scaled goes over memory once more.
        let finished = |asked: Asked<FourierProblem>| Asked { finished: true, ..asked };
        assert!(!takes(finished(asked(1024, [16384, 1]))) && !takes(finished(asked(4096, [1, 4096]))));
        assert!(takes(finished(asked(4099, [1024, 1]))));
    }

    #[test]
    fn real_numbers_to_bins_are_the_librarys_and_bins_to_real_numbers_are_not() {
        let of = FourierProblem { n: 2048, inner: 1, dtype: DType::F32 };
        let own = RealFourierProblem { of, plain: true };
        let rfft = Asked { own, outer: 16384, from_reals: true, to_reals: false, finished: false };
        assert_eq!(plan_of(rfft, Ok(())), FourierPlan::Vendor);
        assert_eq!(plan_of(rfft, Err("no vendor library")), FourierPlan::RealPairs);
        let irfft = Asked { from_reals: false, to_reals: true, ..rfft };
        assert_eq!(plan_of(irfft, Ok(())), FourierPlan::RealPairs);
        let offered = |asked, vendor| Offered { asked, vendor };
        assert_eq!(offered(irfft, Ok(())).plan(CUFFT, &gpu()), Ok(FourierPlan::Vendor));
        let refused = offered(irfft, Err("no vendor library")).plan(CUFFT, &gpu());
        assert!(refused.is_err_and(|why| why.contains("no vendor library")));
    }

    #[test]
    fn without_the_library_the_variants_are_those_of_this_one() {
        for n in [1, 17, 1024, 4099, 1 << 18] {
            for [outer, inner] in [[4096, 1], [1, 4096]] {
                let own = FourierProblem { n, inner, dtype: DType::F32 };
                let plan = best(&own, &gpu()).expect("a plan").1;
                assert_eq!(plan_of(asked(n, [outer, inner]), Err("hidden")), plan);
            }
        }
        assert_eq!(<Offered<'_, FourierProblem>>::VARIANTS[CUFFT].name, "cufft");
        assert_eq!(<Offered<'_, RealFourierProblem>>::VARIANTS.len(), RealFourierProblem::VARIANTS.len() + 1);
    }

    #[test]
    fn factors_multiply_to_the_length_and_a_block_holds_them() {
        for dtype in [DType::F32, DType::F64] {
            for n in 1..5000 {
                let Some(all) = factors(n, dtype) else { continue };
                assert_eq!(all.iter().product::<usize>(), n);
                assert!(all.iter().all(|&f| f <= each(dtype).max(LARGEST)), "{all:?}");
                let held = capacity(n, dtype).expect("it has factors");
                assert!(held * n <= points(dtype)[1], "{n}: {held} sequences");
            }
        }
        assert_eq!(factors(1024, DType::F32), Some(vec![8, 8, 16]));
        assert_eq!(factors(1024, DType::F64), Some(vec![4, 4, 8, 8]));
        assert_eq!(factors(16, DType::F32), Some(vec![4, 4]));
        assert_eq!(factors(34, DType::F32), None);
    }
}
