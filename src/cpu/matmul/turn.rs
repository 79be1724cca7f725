//! Sequences of elements that become columns of groups: transposition in vector registers.

/// Elements that are turned around at a time.
const STEP: usize = 4;

/// An element type whose sequences can be turned around.
pub(in crate::cpu) trait Turn: Copy + Default {
    /// Copies `N` contiguous sequences of equal length to the beginning of groups of `width`: group p begins with element p of each.
    #[inline(always)]
    fn turn<const N: usize>(sequences: [&[Self]; N], to: &mut [Self], width: usize) {
        plain(sequences, 0, to, width);
    }
}

impl Turn for f64 {}

impl Turn for f32 {
    #[inline(always)]
    fn turn<const N: usize>(sequences: [&[f32]; N], to: &mut [f32], width: usize) {
        #[cfg(target_arch = "x86_64")]
        let done = match x86::instructions() {
            Some(v) => x86::turn(v, &sequences, to, width),
            None => 0,
        };
        #[cfg(not(target_arch = "x86_64"))]
        let done = 0;
        plain(sequences, done, to, width);
    }
}

/// Element by element, from element `first` on.
#[inline(always)]
fn plain<T: Turn, const N: usize>(sequences: [&[T]; N], first: usize, to: &mut [T], width: usize) {
    for (p, to) in to.chunks_mut(width).enumerate().skip(first) {
        to[..N].iter_mut().zip(sequences).for_each(|(to, s)| *to = s[p]);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::__m128;

    use pulp::Arch;
    use pulp::x86::V3;

    use super::STEP;

    /// AVX2, where the processor has it. `V3::try_new` asks the processor each time.
    #[inline(always)]
    pub(super) fn instructions() -> Option<V3> {
        match Arch::new() {
            Arch::V4(s) => Some(*s),
            Arch::V3(s) => Some(s),
            _ => None,
        }
    }

    /// Turns as many elements as are whole steps of 8 or 4 sequences, and gives their number.
    #[inline(always)]
    pub(super) fn turn<const N: usize>(
        v: V3,
        sequences: &[&[f32]; N],
        to: &mut [f32],
        width: usize,
    ) -> usize {
        let pieces = sequences.map(|s| s.as_chunks::<STEP>().0);
        let steps = pieces[0].len();
        for (step, to) in (0..steps).zip(to.chunks_mut(STEP * width)) {
            match N {
                8 => put(eight(v, std::array::from_fn(|c| &pieces[c][step])), to, width),
                4 => put(four(v, std::array::from_fn(|c| &pieces[c][step])), to, width),
                _ => return 0,
            }
        }
        steps * STEP
    }

    #[inline(always)]
    fn put<const N: usize>(columns: [[f32; N]; STEP], to: &mut [f32], width: usize) {
        for (p, column) in columns.into_iter().enumerate() {
            to[p * width..][..N].copy_from_slice(&column);
        }
    }

    // Instructions that are not inlined into a function with their feature are calls: no closure stands between.

    /// The transpose of 8 x 4: rows i and i + 4 share a register.
    #[inline(always)]
    fn eight(v: V3, rows: [&[f32; STEP]; 8]) -> [[f32; 8]; STEP] {
        let v = v.avx;
        let [a, b, c, d]: [__m128; 4] = std::array::from_fn(|i| pulp::cast(*rows[i]));
        let [e, f, g, h]: [__m128; 4] = std::array::from_fn(|i| pulp::cast(*rows[i + 4]));
        let a = v._mm256_insertf128_ps::<1>(v._mm256_castps128_ps256(a), e);
        let b = v._mm256_insertf128_ps::<1>(v._mm256_castps128_ps256(b), f);
        let c = v._mm256_insertf128_ps::<1>(v._mm256_castps128_ps256(c), g);
        let d = v._mm256_insertf128_ps::<1>(v._mm256_castps128_ps256(d), h);
        let (low, high) = (v._mm256_unpacklo_ps(a, b), v._mm256_unpackhi_ps(a, b));
        let (low2, high2) = (v._mm256_unpacklo_ps(c, d), v._mm256_unpackhi_ps(c, d));
        [
            pulp::cast(v._mm256_shuffle_ps::<0b01_00_01_00>(low, low2)),
            pulp::cast(v._mm256_shuffle_ps::<0b11_10_11_10>(low, low2)),
            pulp::cast(v._mm256_shuffle_ps::<0b01_00_01_00>(high, high2)),
            pulp::cast(v._mm256_shuffle_ps::<0b11_10_11_10>(high, high2)),
        ]
    }

    /// The transpose of 4 x 4.
    #[inline(always)]
    fn four(v: V3, rows: [&[f32; STEP]; 4]) -> [[f32; 4]; STEP] {
        let [a, b, c, d]: [__m128; 4] = rows.map(|r| pulp::cast(*r));
        let v = v.sse;
        let (low, high) = (v._mm_unpacklo_ps(a, b), v._mm_unpackhi_ps(a, b));
        let (low2, high2) = (v._mm_unpacklo_ps(c, d), v._mm_unpackhi_ps(c, d));
        [
            pulp::cast(v._mm_movelh_ps(low, low2)),
            pulp::cast(v._mm_movehl_ps(low2, low)),
            pulp::cast(v._mm_movelh_ps(high, high2)),
            pulp::cast(v._mm_movehl_ps(high2, high)),
        ]
    }
}
