//! Sums and maxima of slices of f32 in interleaved accumulators, which the compiler keeps in vector registers: in a single chain each step would wait
//! for the one before. For use inside [`vectorized`](super::vectorized).

/// Accumulators.
const LANES: usize = 32;
/// Elements that are added in f32, in [`LANES`] sums; those, what is left over, and the sums of blocks are added in f64.
const BLOCK: usize = 1024;

/// All accumulators combined: halves of them with each other, which are vectors, too.
#[inline(always)]
fn halve<T: Copy>(mut all: [T; LANES], f: impl Fn(T, T) -> T) -> T {
    for half in [16, 8, 4, 2, 1] {
        let (low, high) = all.split_at_mut(half);
        low.iter_mut().zip(&*high).for_each(|(a, b)| *a = f(*a, *b));
    }
    all[0]
}

/// The sum of f over elements of two slices of one length, at most [`BLOCK`].
#[inline(always)]
fn block_sum(a: &[f32], b: &[f32], f: &impl Fn(f32, f32) -> f32) -> f64 {
    let (a, b) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest: f64 = a.remainder().iter().zip(b.remainder()).map(|(a, b)| f64::from(f(*a, *b))).sum();
    let mut sums = [0.0; LANES];
    for (a, b) in a.zip(b) {
        sums.iter_mut().zip(a.iter().zip(b)).for_each(|(s, (a, b))| *s += f(*a, *b));
    }
    halve(sums.map(f64::from), |a, b| a + b) + rest
}

/// The sum of f over elements of two slices of one length.
#[inline(always)]
pub(in crate::cpu) fn sum_of(a: &[f32], b: &[f32], f: impl Fn(f32, f32) -> f32) -> f64 {
    // A loop, not a sum of the iterator: that is a function of its own, without the caller's vector instructions.
    let mut sum = 0.0;
    for (a, b) in a.chunks(BLOCK).zip(b.chunks(BLOCK)) {
        sum += block_sum(a, b, &f);
    }
    sum
}

/// The sum of elements.
#[inline(always)]
pub(in crate::cpu) fn sum(x: &[f32]) -> f64 {
    sum_of(x, x, |x, _| x)
}

/// The sum of products.
#[inline(always)]
pub(in crate::cpu) fn dot(a: &[f32], b: &[f32]) -> f64 {
    sum_of(a, b, |a, b| a * b)
}

/// Elements combined by `f`, which does not depend on their order, beginning with `start`.
#[inline(always)]
pub(in crate::cpu) fn fold(x: &[f32], start: f32, f: impl Fn(f32, f32) -> f32) -> f32 {
    let x = x.chunks_exact(LANES);
    let rest = x.remainder().iter().fold(start, |m, x| f(m, *x));
    let mut all = [start; LANES];
    for x in x {
        all.iter_mut().zip(x).for_each(|(m, x)| *m = f(*m, *x));
    }
    f(rest, halve(all, &f))
}

/// The largest element that is not NaN; -inf for none.
#[inline(always)]
pub(in crate::cpu) fn max(x: &[f32]) -> f32 {
    fold(x, f32::NEG_INFINITY, |m, x| if x > m { x } else { m })
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, clippy::disallowed_macros)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_maxima_of_any_length() {
        for n in [0, 1, 31, 32, 100, 1023, 1024, 5000] {
            let x: Vec<f32> = (0..n).map(|i| ((i * 37) % 101) as f32 - 50.0).collect();
            let exact: f64 = x.iter().map(|&x| f64::from(x)).sum();
            assert_eq!((sum(&x), max(&x)), (exact, x.iter().copied().fold(f32::NEG_INFINITY, f32::max)));
            assert_eq!(dot(&x, &x), x.iter().map(|&x| f64::from(x * x)).sum::<f64>());
        }
        let mut x = [1.0; 70];
        (x[3], x[69], x[40]) = (f32::NAN, f32::NAN, 2.0);
        assert!(sum(&x).is_nan());
        assert_eq!(max(&x), 2.0);
    }
}
