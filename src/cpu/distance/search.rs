//! Search among vectors on the CPU, in f64, from the definitions.

use std::cmp::Ordering;

use crate::cpu::reduce::sum;
use crate::cpu::scratch::*;
use crate::cpu::sort::store_index;
use crate::cpu::values::sort_positions;
use crate::cpu::*;
use crate::ops::distance::*;

/// Smallest norm that is divided by.
const LEAST_NORM: f64 = 1e-8;

fn dot(a: &[f64], b: &[f64]) -> f64 {
    sum(a.iter().zip(b).map(|(a, b)| a * b))
}

fn score(metric: Metric, q: &[f64], x: &[f64]) -> f64 {
    // A norm that is NaN stays NaN.
    let norm = |v: &[f64]| if dot(v, v).sqrt() < LEAST_NORM { LEAST_NORM } else { dot(v, v).sqrt() };
    match metric {
        Metric::SquaredEuclidean => sum(q.iter().zip(x).map(|(q, x)| (q - x) * (q - x))),
        Metric::InnerProduct => dot(q, x),
        Metric::Cosine => dot(q, x) / (norm(q) * norm(x)),
    }
}

/// The nearer first, NaN last, of equal ones the lower number first.
fn order(metric: Metric, a: (f64, usize), b: (f64, usize)) -> Ordering {
    let nearer = match metric {
        Metric::SquaredEuclidean => a.0.partial_cmp(&b.0),
        _ => b.0.partial_cmp(&a.0),
    };
    nearer.unwrap_or_else(|| a.0.is_nan().cmp(&b.0.is_nan())).then(a.1.cmp(&b.1))
}

/// Vector i of so many elements.
fn row(all: &[f64], i: usize, len: usize) -> &[f64] {
    &all[i * len..(i + 1) * len]
}

impl SearchOps for Kernels {
    fn distance_matrix(
        &self,
        metric: Metric,
        queries: View<'_>,
        points: View<'_>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "distance_matrix";
        let e = check_distance_matrix(&queries, &points, &y)?;
        let _timed = self.count(OP);
        let (q, x) = (gather_f64(OP, queries)?, gather_f64(OP, points)?);
        let pairs = (0..e.count).flat_map(|i| (0..e.n).map(move |j| (i, j)));
        let all = pairs.map(|(i, j)| score(metric, row(&q, i, e.len), row(&x, j, e.len))).try_vec()?;
        store_f64(OP, &y, &all)
    }

    fn nearest(
        &self,
        metric: Metric,
        queries: View<'_>,
        points: View<'_>,
        y: ViewMut<'_>,
        index: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "nearest";
        let (e, k) = check_nearest(&queries, &points, &y, &index)?;
        let _timed = self.count(OP);
        let (q, x) = (gather_f64(OP, queries)?, gather_f64(OP, points)?);
        let (mut scores, mut numbers) = (with_capacity(e.count * k)?, with_capacity(e.count * k)?);
        for i in 0..e.count {
            let of_all = (0..e.n).map(|j| score(metric, row(&q, i, e.len), row(&x, j, e.len))).try_vec()?;
            let mut all: Vec<usize> = (0..e.n).try_vec()?;
            sort_positions(&mut all, &|a, b| order(metric, (of_all[a], a), (of_all[b], b)));
            scores.try_extend(all.iter().take(k).map(|&a| of_all[a]))?;
            numbers.try_extend(all.iter().take(k).copied())?;
        }
        store_f64(OP, &y, &scores)?;
        store_index(OP, &index, &numbers)
    }

    fn pq_tables(
        &self,
        metric: Metric,
        queries: View<'_>,
        centroids: View<'_>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "pq_tables";
        let e = check_pq_tables(metric, &queries, &centroids, &y)?;
        let _timed = self.count(OP);
        let (q, c) = (gather_f64(OP, queries)?, gather_f64(OP, centroids)?);
        let entry = |at: usize| {
            let (part, code) = (at / PQ_CODES, at % (e.n * PQ_CODES));
            score(metric, row(&q, part, e.len), row(&c, code, e.len))
        };
        store_f64(OP, &y, &(0..e.count * e.n * PQ_CODES).map(entry).try_vec()?)
    }

    fn pq_scan(&self, tables: View<'_>, codes: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "pq_scan";
        let e = check_pq_scan(&tables, &codes, &y)?;
        let _timed = self.count(OP);
        let (t, c) = (gather_f64(OP, tables)?, gather::<u8>(OP, codes)?);
        let entry = |query: usize, point: usize| {
            let part = |j: usize| t[(query * e.len + j) * PQ_CODES + usize::from(c[point * e.len + j])];
            sum((0..e.len).map(part))
        };
        let pairs = (0..e.count).flat_map(|i| (0..e.n).map(move |j| (i, j)));
        store_f64(OP, &y, &pairs.map(|(i, j)| entry(i, j)).try_vec()?)
    }
}
