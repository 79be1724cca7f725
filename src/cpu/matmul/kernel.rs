//! Blocks of a product in vector registers.

use std::cell::RefCell;
use std::thread::LocalKey;

use pulp::{Simd, WithSimd};

use super::output::Out;
use super::turn::Turn;
use crate::cpu::vector::Float;

/// Vectors of a row of a block.
const VECTORS: usize = 2;
/// Rows of the largest block.
const MOST_ROWS: usize = 12;
/// Columns of the widest block: two vectors of 16 elements.
pub(super) const MOST_COLS: usize = VECTORS * 16;

thread_local! {
    static SINGLE: Rooms<f32> = const { [const { RefCell::new(Vec::new()) }; 2] };
    static DOUBLE: Rooms<f64> = const { [const { RefCell::new(Vec::new()) }; 2] };
}

/// Memory that a thread keeps for a packed A and a packed B.
pub(super) type Rooms<T> = [RefCell<Vec<T>>; 2];

/// An element type of products, and its vectors.
pub(in crate::cpu) trait Element: Float + PartialEq + Turn {
    type Vector<S: Simd>: Copy;
    fn splat<S: Simd>(s: S, x: Self) -> Self::Vector<S>;
    /// a b + c, rounded once where the processor can.
    fn mul_add<S: Simd>(s: S, a: Self::Vector<S>, b: Self::Vector<S>, c: Self::Vector<S>) -> Self::Vector<S>;
    fn multiply<S: Simd>(s: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    fn sum<S: Simd>(s: S, x: Self::Vector<S>) -> Self;
    /// The whole vectors of a slice, and the rest.
    fn vectors<S: Simd>(x: &[Self]) -> (&[Self::Vector<S>], &[Self]);
    fn vectors_mut<S: Simd>(x: &mut [Self]) -> &mut [Self::Vector<S>];
    fn rooms() -> &'static LocalKey<Rooms<Self>>;
}

macro_rules! element {
    ($t:ty, $vector:ident, $room:ident, $splat:ident, $mul_add:ident, $mul:ident, $sum:ident, $of:ident, $of_mut:ident) => {
        #[rustfmt::skip]
        impl Element for $t {
            type Vector<S: Simd> = S::$vector;
            #[inline(always)] fn splat<S: Simd>(s: S, x: $t) -> S::$vector { s.$splat(x) }
            #[inline(always)] fn mul_add<S: Simd>(s: S, a: S::$vector, b: S::$vector, c: S::$vector) -> S::$vector { s.$mul_add(a, b, c) }
            #[inline(always)] fn multiply<S: Simd>(s: S, a: S::$vector, b: S::$vector) -> S::$vector { s.$mul(a, b) }
            #[inline(always)] fn sum<S: Simd>(s: S, x: S::$vector) -> $t { s.$sum(x) }
            #[inline(always)] fn vectors<S: Simd>(x: &[$t]) -> (&[S::$vector], &[$t]) { S::$of(x) }
            #[inline(always)] fn vectors_mut<S: Simd>(x: &mut [$t]) -> &mut [S::$vector] { S::$of_mut(x).0 }
            fn rooms() -> &'static LocalKey<Rooms<$t>> { &$room }
        }
    };
}
element!(
    f32,
    f32s,
    SINGLE,
    splat_f32s,
    mul_add_e_f32s,
    mul_f32s,
    reduce_sum_f32s,
    as_simd_f32s,
    as_mut_simd_f32s
);
element!(
    f64,
    f64s,
    DOUBLE,
    splat_f64s,
    mul_add_e_f64s,
    mul_f64s,
    reduce_sum_f64s,
    as_simd_f64s,
    as_mut_simd_f64s
);

/// Rows and columns of the largest block that these registers hold: its sums, a row of B and one element of A.
pub(super) fn block<S: Simd, T: Element>() -> [usize; 2] {
    let rows = if S::REGISTER_COUNT >= 32 { MOST_ROWS } else { 6 };
    [rows, VECTORS * size_of::<T::Vector<S>>() / size_of::<T>()]
}

/// Y = alpha A B + beta Y for a packed A [k, rows] and the rows of B, `step` elements apart; without reading Y where beta is 0.
pub(super) struct Tile<'t, 'y, T> {
    pub(super) a: &'t [T],
    pub(super) b: &'t [T],
    pub(super) step: usize,
    pub(super) alpha: T,
    pub(super) beta: T,
    pub(super) rows: usize,
    /// Columns that count.
    pub(super) cols: usize,
    pub(super) y: &'t mut Out<'y, T>,
    /// The first row and column of Y.
    pub(super) at: [usize; 2],
}

impl<T: Element> WithSimd for Tile<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        macro_rules! of_rows {
            ($($n:literal)*) => {
                match self.rows {
                    $($n if $n <= 6 || S::REGISTER_COUNT >= 32 => tile::<S, T, $n>(s, self),)*
                    _ => {}
                }
            };
        }
        of_rows!(1 2 3 4 5 6 7 8 9 10 11 12);
    }
}

#[inline(always)]
fn tile<S: Simd, T: Element, const ROWS: usize>(s: S, t: Tile<'_, '_, T>) {
    let width = block::<S, T>()[1];
    let mut sums = [[T::splat(s, T::default()); VECTORS]; ROWS];
    for (a, b) in t.a.as_chunks::<ROWS>().0.iter().zip(t.b.chunks(t.step)) {
        let (b, _) = T::vectors::<S>(&b[..width]);
        let b: [T::Vector<S>; VECTORS] = std::array::from_fn(|i| b[i]);
        for (a, sums) in a.iter().zip(&mut sums) {
            let a = T::splat(s, *a);
            b.iter().zip(sums).for_each(|(b, sum)| *sum = T::mul_add(s, a, *b, *sum));
        }
    }
    let ([row, col], (alpha, beta)) = (t.at, (t.alpha, t.beta));
    if t.y.step == 1 && t.cols == width {
        let (alpha, none) = (T::splat(s, alpha), beta == T::default());
        let beta = T::splat(s, beta);
        for (r, sums) in sums.into_iter().enumerate() {
            let y = T::vectors_mut::<S>(&mut t.y.row(row + r, col)[..width]);
            for (y, sum) in y.iter_mut().zip(sums) {
                let sum = T::multiply(s, alpha, sum);
                *y = if none { sum } else { T::mul_add(s, beta, *y, sum) };
            }
        }
        return;
    }
    let (mut stored, step) = ([T::default(); MOST_COLS], t.y.step);
    for (r, sums) in sums.into_iter().enumerate() {
        T::vectors_mut::<S>(&mut stored[..width]).iter_mut().zip(sums).for_each(|(to, sum)| *to = sum);
        Merge { alpha, beta, sums: &stored[..t.cols], y: t.y.row(row + r, col), step }.with_simd(s);
    }
}

/// y = beta y + alpha sums for every `step`-th element of a row; without reading it where beta is 0.
pub(super) struct Merge<'a, T> {
    pub(super) alpha: T,
    pub(super) beta: T,
    pub(super) sums: &'a [T],
    pub(super) y: &'a mut [T],
    pub(super) step: usize,
}

impl<T: Element> WithSimd for Merge<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Merge { alpha, beta, sums, y, step } = self;
        let merged = |y: T, sum: T| if beta == T::default() { alpha * sum } else { beta * y + alpha * sum };
        match step {
            1 => y.iter_mut().zip(sums).for_each(|(y, s)| *y = merged(*y, *s)),
            _ => y.iter_mut().step_by(step).zip(sums).for_each(|(y, s)| *y = merged(*y, *s)),
        }
    }
}

/// Columns that [`Dots`] takes at once.
const DOTS: usize = 4;

/// sums[j] = x . B[j] for the rows of B, `step` elements apart.
pub(super) struct Dots<'a, T> {
    pub(super) x: &'a [T],
    pub(super) b: &'a [T],
    pub(super) step: usize,
    pub(super) sums: &'a mut [T],
}

impl<T: Element> WithSimd for Dots<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let (x, rest) = T::vectors::<S>(self.x);
        for (j, sums) in self.sums.chunks_mut(DOTS).enumerate() {
            // The last rows are taken again where fewer are left.
            let rows: [_; DOTS] = std::array::from_fn(|i| {
                let j = j * DOTS + i.min(sums.len() - 1);
                T::vectors::<S>(&self.b[j * self.step..][..self.x.len()])
            });
            let mut dots = [T::splat(s, T::default()); DOTS];
            for (p, x) in x.iter().enumerate() {
                dots.iter_mut().zip(&rows).for_each(|(d, (b, _))| *d = T::mul_add(s, *x, b[p], *d));
            }
            for ((sum, dot), (_, b)) in sums.iter_mut().zip(dots).zip(rows) {
                *sum = rest.iter().zip(b).fold(T::sum(s, dot), |sum, (x, b)| sum + *x * *b);
            }
        }
    }
}
