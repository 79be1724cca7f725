//! Products beside sums in f64.

#![allow(clippy::disallowed_methods, clippy::disallowed_macros)]

use super::blocked::{Plan, plan};
use super::*;

/// Whole numbers of small magnitude, whose sums of products are exact in f32.
fn values<T: Element>(n: usize, seed: usize) -> Vec<T> {
    (0..n).map(|i| T::from_f64(((i * 7 + seed * 5 + i / 3) % 11) as f64 - 5.0)).collect()
}

/// Strides of a matrix in memory: by rows, by columns, with gaps, every second element, one row again and again.
fn places(m: usize, n: usize) -> [Place; 4] {
    [(n, 1), (1, m), (n + 3, 1), (2 * n + 1, 2)].map(|(rows, cols)| Place { at: 3, rows, cols })
}

fn of(x: &[impl Element], p: Place, r: usize, c: usize) -> f64 {
    x[p.from(r, c).at].to_f64()
}

/// The product without vectors, and with those of AVX2 where there are any.
fn with_fewer_instructions<T: Element>(product: &Product<'_, T>, y: &mut [Vec<T>; 2], place: Place) {
    product.run(pulp::Scalar::new(), &mut y[0], place).expect("a product");
    #[cfg(target_arch = "x86_64")]
    if let Some(s) = pulp::x86::V3::try_new() {
        return product.run(s, &mut y[1], place).expect("a product");
    }
    y[1] = y[0].clone();
}

fn check<T: Element>(size @ (m, n, k): (usize, usize, usize), [pa, pb, py]: [Place; 3], threads: bool) {
    let len = |p: Place, m: usize, n: usize| p.at + m * p.rows + n * p.cols + 1;
    let (a, b) = (values::<T>(len(pa, m, k), 1), values::<T>(len(pb, k, n), 2));
    for [alpha, beta] in [[1.0, 0.0], [2.0, 1.0], [-1.0, 0.5]] {
        let before = values::<T>(len(py, m, n), 3);
        let mut y = before.clone();
        let [alpha_t, beta_t] = [alpha, beta].map(T::from_f64);
        product("gemm", size, alpha_t, (&a, pa), (&b, pb), beta_t, (&mut y, py), threads).expect("a product");
        let mut again = [before.clone(), before.clone()];
        let (arranged, place) = arranged([m, n, k], [alpha_t, beta_t], (&a, pa), (&b, pb), py, threads);
        with_fewer_instructions(&arranged, &mut again, place);
        let mut wanted = before.clone();
        for (r, c) in (0..m).flat_map(|r| (0..n).map(move |c| (r, c))) {
            let sum: f64 = (0..k).map(|p| of(&a, pa, r, p) * of(&b, pb, p, c)).sum();
            wanted[py.from(r, c).at] = T::from_f64(alpha * sum + beta * of(&before, py, r, c));
        }
        let all = [&y].into_iter().chain(&again);
        assert!(all.into_iter().all(|y| *y == wanted), "{size:?} {pa:?} {pb:?} {py:?} {alpha} {beta}");
    }
}

#[test]
fn every_layout_and_plan_gives_the_sums() {
    let sizes = [(1, 1, 1), (1, 37, 300), (37, 1, 20), (3, 70, 9), (14, 33, 270), (15, 64, 5), (29, 40, 33)];
    for (i, (m, n, k)) in sizes.into_iter().chain([(97, 101, 260), (64, 32, 7)]).enumerate() {
        for (j, py) in places(m, n).into_iter().enumerate() {
            for pa in places(m, k) {
                let pb = places(k, n)[(i + j) % 4];
                check::<f32>((m, n, k), [pa, pb, py], (i + j) % 2 == 0);
            }
            check::<f64>((m, n, k), [places(m, k)[j], places(k, n)[j], py], j % 2 == 0);
        }
    }
}

#[test]
fn operands_repeat_rows_columns_and_elements() {
    for steps in [(0, 1), (1, 0), (0, 0)] {
        let again = Place { at: 2, rows: steps.0, cols: steps.1 };
        for (m, n, k) in [(1, 40, 30), (5, 33, 40), (60, 70, 30)] {
            check::<f32>((m, n, k), [again, places(k, n)[0], places(m, n)[0]], false);
            check::<f32>((m, n, k), [places(m, k)[0], again, places(m, n)[0]], true);
        }
    }
}

#[test]
fn products_of_several_packings_give_the_sums() {
    for (m, n, k) in [(50, 600, 600), (300, 20, 260), (520, 530, 10)] {
        for py in places(m, n) {
            check::<f32>((m, n, k), [places(m, k)[1], places(k, n)[1], py], true);
        }
    }
}

#[test]
fn sums_do_not_depend_on_the_number_of_threads() {
    let (m, n, k) = (150, 200, 530);
    let (a, b) = (values::<f32>(m * k, 1), values::<f32>(k * n, 2));
    let scaled = |x: Vec<f32>| x.into_iter().map(|x| x * 0.37).collect::<Vec<_>>();
    let (a, b) = (scaled(a), scaled(b));
    let place = |cols| Place { at: 0, rows: cols, cols: 1 };
    let by = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
        let mut y = vec![0.0f32; m * n];
        let to = (&mut *y, place(n));
        pool.install(|| {
            product("gemm", (m, n, k), 0.7, (&a, place(k)), (&b, place(n)), 0.0, to, true)
                .expect("a product");
        });
        y
    };
    let one = by(1);
    assert!([2, 3, 16].into_iter().all(|threads| by(threads) == one));
}

#[test]
fn nothing_to_sum_scales_y() {
    let p = places(2, 3)[0];
    let mut y = vec![2.0f32; 12];
    product("gemm", (2, 3, 0), 1.0, (&[], p), (&[], p), 0.5, (&mut y, p), false).expect("a product");
    assert_eq!(y, [2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
    product("gemm", (2, 3, 0), 1.0, (&[], p), (&[], p), 0.0, (&mut y, p), false).expect("a product");
    assert_eq!(y[3..9], [0.0; 6]);
    product("gemm", (0, 3, 2), 1.0, (&[], p), (&y.clone(), p), 0.0, (&mut y, p), false).expect("a product");
}

#[test]
fn matrices_beyond_their_slices_are_refused() {
    let p = Place { at: 0, rows: 4, cols: 1 };
    let x = [1.0f32; 16];
    let run = |a: Place, b: Place, y: Place| {
        let mut out = [7.0f32; 16];
        let result = product("gemm", (4, 4, 4), 1.0, (&x, a), (&x, b), 0.0, (&mut out, y), false);
        assert!(result.is_ok() || out == [7.0; 16]);
        result.is_ok()
    };
    let beyond = Place { at: 1, ..p };
    let same = Place { rows: 0, ..p };
    assert!(run(p, p, p));
    assert!(!run(beyond, p, p) && !run(p, beyond, p) && !run(p, p, beyond) && !run(p, p, same));
    assert!(!run(Place { rows: usize::MAX, ..p }, p, p));
}

#[test]
fn packed_panels_give_the_same() {
    for (m, n, k) in [(1, 5, 3), (20, 70, 300), (64, 32, 40), (40, 70, 300)] {
        let (width, whole) = (panel::<f32>(), places(k, n)[0]);
        let (a, b) = (values::<f32>(m * k, 1), values::<f32>(whole.at + k * n, 2));
        let panels = panels("gemm", (k, n), (&b, whole)).expect("panels");
        for (p, c) in (0..k).flat_map(|p| (0..n).map(move |c| (p, c))) {
            let at = c / width * block_step(width, k) + p * width + c % width;
            assert_eq!(panels[at], b[whole.from(p, c).at]);
        }
        let place = |cols| Place { at: 0, rows: cols, cols: 1 };
        let run = |of_panels: bool| {
            let (mut y, a) = (vec![1.0f32; m * n], (&*a, place(k)));
            let to = (&mut *y, place(n));
            match of_panels {
                true => product_of_panels("gemm", (m, n, k), 1.0, a, &panels, 1.0, to, true),
                false => product("gemm", (m, n, k), 1.0, a, (&b, whole), 1.0, to, true),
            }
            .expect("a product");
            y
        };
        assert_eq!(run(true), run(false));
        // Y by columns: its rows are not divided among threads.
        let (mut turned, to) = (vec![1.0f32; m * n], Place { at: 0, rows: 1, cols: m });
        let a_rows = (&*a, place(k));
        product_of_panels("gemm", (m, n, k), 1.0, a_rows, &panels, 1.0, (&mut turned, to), true)
            .expect("a product");
        let y = run(true);
        assert!((0..m * n).all(|i| turned[i] == y[i % m * n + i / m]));
        let (mut y, few) = (vec![0.0f32; m * n], &panels[1..]);
        let to = (&mut *y, place(n));
        assert!(product_of_panels("gemm", (m, n, k), 1.0, (&a, place(k)), few, 1.0, to, true).is_err());
    }
}

#[test]
fn sizes_and_layouts_choose_the_plan() {
    let of = |[m, n, k]: [usize; 3], rows, threads| {
        plan::<f32>([m, n, k], Right::Matrix(&[], Place { at: 0, rows, cols: 1 }), [12, 32], threads)
    };
    assert_eq!(of([1, 70, 64], 1, 2), Plan::Dots);
    assert_eq!(of([3, 5, 68], 5, 2), Plan::Few);
    // One thread takes all; of two each half of what divides evenly, and of more a few rows or columns.
    assert_eq!(of([128, 512, 784], 512, 1), Plan::Parts([132, 512]));
    assert_eq!(of([128, 512, 784], 512, 2), Plan::Parts([132, 256]));
    assert_eq!(of([1024, 128, 512], 128, 2), Plan::Parts([516, 128]));
    assert_eq!(of([1024, 512, 512], 512, 4), Plan::Parts([516, 256]));
    assert_eq!(of([12, 70, 64], 70, 2), Plan::Parts([12, 64]));
    assert_eq!(plan::<f32>([43, 20, 64], Right::Panels(&[]), [12, 32], 2), Plan::Parts([24, 32]));
}
