//! Random numbers that follow from a seed: SplitMix64 (Steele, Lea, Flood 2014).

/// A generator.
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    /// The generator of one input.
    pub(crate) fn new(target: &str, seed: u64, index: u64) -> Self {
        let mut hash = blake3::Hasher::new();
        hash.update(target.as_bytes()).update(&seed.to_le_bytes()).update(&index.to_le_bytes());
        let mut first = [0; 8];
        first.copy_from_slice(&hash.finalize().as_bytes()[..8]);
        Rng(u64::from_le_bytes(first))
    }

    /// 64 random bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 for `n` = 0.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % (n as u64).max(1)) as usize
    }

    /// True once in `n` times.
    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// One element, if there is one.
    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        from.get(self.below(from.len()))
    }

    /// `n` random bytes.
    pub(crate) fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).take(n).collect()
    }

    /// A number that code is apt to get wrong.
    pub(crate) fn hostile(&mut self) -> u64 {
        let near = |rng: &mut Self, x: u64| x.wrapping_add(rng.below(5) as u64).wrapping_sub(2);
        match self.below(8) {
            0..=2 => self.below(10) as u64,
            3 => self.below(1000) as u64,
            4 => {
                let bit = self.below(64);
                near(self, 1 << bit)
            }
            5 => near(self, 0),
            6 => {
                let x = [i32::MAX as u64, u32::MAX.into(), i64::MAX as u64, 1 << 53, 1_000_000_000]
                    [self.below(5)];
                near(self, x)
            }
            _ => self.next() >> self.below(64),
        }
    }
}
