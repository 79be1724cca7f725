//! Order on the CPU.

use std::cmp::Ordering;

use crate::cpu::scratch::*;
use crate::cpu::values::sort_positions;
use crate::cpu::*;
use crate::ops::sort::*;

/// Numbers in the order of the sort: NaN above everything, both zeros equal.
trait Ranked: HostElement {
    fn rank(&self, other: &Self) -> Ordering;
}

macro_rules! ranked {
    (floats: $($f:ty),*; integers: $($i:ty),*) => {
        $(impl Ranked for $f {
            fn rank(&self, other: &Self) -> Ordering {
                self.partial_cmp(other).unwrap_or_else(|| self.is_nan().cmp(&other.is_nan()))
            }
        })*
        $(impl Ranked for $i {
            fn rank(&self, other: &Self) -> Ordering {
                self.cmp(other)
            }
        })*
    };
}
ranked!(floats: f32, f64, f16, bf16; integers: i32, i64, u8);

/// Positions of the elements of each slice of [outer, size, inner]; no slices where they are empty, however many that would be.
fn slices([outer, size, inner]: [usize; 3]) -> impl Iterator<Item = Result<Vec<usize>>> {
    let count = if size == 0 { 0 } else { outer * inner };
    (0..count).map(move |s| (0..size).map(|k| (s / inner * size + k) * inner + s % inner).try_vec())
}

pub(in crate::cpu) fn store_index(op: &'static str, v: &ViewMut<'_>, at: &[usize]) -> Result<()> {
    match v.dtype() {
        DType::I32 => update::<i32>(op, v, |i, x| *x = at[i] as i32),
        _ => update::<i64>(op, v, |i, x| *x = at[i] as i64),
    }
}

/// The first `keep` of each slice in order, to row-major [outer, keep, inner].
fn order<T: Ranked>(
    x: &[T],
    extents: [usize; 3],
    keep: usize,
    descending: bool,
) -> Result<(Vec<T>, Vec<usize>)> {
    let [outer, _, inner] = extents;
    let mut y = filled(outer * keep * inner, T::default())?;
    let mut index = filled(outer * keep * inner, 0)?;
    let places = slices([outer, keep, inner]);
    for (from, to) in slices(extents).zip(places) {
        let (from, to) = (from?, to?);
        let mut by: Vec<usize> = (0..from.len()).try_vec()?;
        // The position makes equal elements keep their order; a stable sort would need memory.
        sort_positions(&mut by, &|a, b| {
            let order = x[from[a]].rank(&x[from[b]]);
            if descending { order.reverse() } else { order }.then(a.cmp(&b))
        });
        for (&k, &t) in by.iter().zip(&to) {
            y[t] = x[from[k]];
            index[t] = k;
        }
    }
    Ok((y, index))
}

impl SortOps for Kernels {
    fn sort(&self, axis: usize, descending: bool, io: SortIo<'_>) -> Result<()> {
        const OP: &str = "sort";
        let extents = check_sort(axis, &io)?;
        let _timed = self.count("sort");
        with_dtype!(io.x.dtype(), T => {
            let (y, index) = order(&gather::<T>(OP, io.x)?, extents, extents[1], descending)?;
            io.y.map_or(Ok(()), |v| store(OP, &v, &y))?;
            io.index.map_or(Ok(()), |v| store_index(OP, &v, &index))
        })
    }

    fn topk(
        &self,
        axis: usize,
        largest: bool,
        x: View<'_>,
        y: ViewMut<'_>,
        index: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "topk";
        let (extents, k) = check_topk(axis, &x, &y, &index)?;
        let _timed = self.count("topk");
        with_dtype!(x.dtype(), T => {
            let (values, at) = order(&gather::<T>(OP, x)?, extents, k, largest)?;
            store(OP, &y, &values)?;
            store_index(OP, &index, &at)
        })
    }

    fn sort_bwd(&self, axis: usize, dy: View<'_>, index: View<'_>, dx: GradMut<'_>) -> Result<()> {
        const OP: &str = "sort_bwd";
        let (extents, k) = check_sort_bwd(axis, &dy, &index, &dx)?;
        let _timed = self.count("sort_bwd");
        let [outer, size, inner] = extents;
        let (dy, at) = (gather_f64(OP, dy)?, gather_index(OP, index)?);
        let mut out = filled(dx.out.numel(), 0.0)?;
        for (from, to) in slices([outer, k, inner]).zip(slices(extents)) {
            let to = to?;
            for e in from? {
                match at[e].filter(|&i| i < size) {
                    Some(i) => out[to[i]] = dy[e],
                    None => self.flag_index_error(OP),
                }
            }
        }
        store_grad(OP, &dx, &out)
    }

    fn linear_assignment(&self, cost: View<'_>, counts: Option<View<'_>>, column: ViewMut<'_>) -> Result<()> {
        const OP: &str = "linear_assignment";
        let [problems, rows, columns] = check_linear_assignment(&cost, counts.as_ref(), &column)?;
        let _timed = self.count("linear_assignment");
        let counts = match counts {
            Some(c) => self.lookup(OP, c, rows + 1)?.into_iter().map(|n| n.unwrap_or(0)).try_vec()?,
            None => filled(problems, rows)?,
        };
        let cost = gather_f64(OP, cost)?;
        let mut found = filled(problems * rows, -1i64)?;
        for (b, n) in counts.into_iter().enumerate() {
            let (cost, to) = (&cost[b * rows * columns..], &mut found[b * rows..(b + 1) * rows]);
            if n <= columns {
                let of = least_cost(n, columns, |r, c| cost[r * columns + c])?;
                to[..n].copy_from_slice(&of);
            } else {
                let of = least_cost(columns, n, |c, r| cost[r * columns + c])?;
                for (c, r) in of.into_iter().enumerate().filter(|(_, r)| *r >= 0) {
                    to[r as usize] = c as i64;
                }
            }
        }
        store::<i64>(OP, &column, &found)
    }

    fn search_sorted(
        &self,
        right: bool,
        sorted: View<'_>,
        values: View<'_>,
        index: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "search_sorted";
        let (edges, per) = check_search_sorted(&sorted, &values, &index)?;
        let _timed = self.count("search_sorted");
        with_dtype!(values.dtype(), T => {
            let (sorted, values) = (gather::<T>(OP, sorted)?, gather::<T>(OP, values)?);
            let at: Vec<usize> = values
                .iter()
                .enumerate()
                .map(|(i, v)| {
                    let row = per.map_or(0, |p| i / p);
                    // A value that is not equal to itself is NaN.
                    if v.partial_cmp(v).is_none() {
                        return edges;
                    }
                    sorted[row * edges..(row + 1) * edges].partition_point(|e| match e.rank(v) {
                        Ordering::Less => true,
                        Ordering::Equal => right,
                        Ordering::Greater => false,
                    })
                })
                .try_vec()?;
            store_index(OP, &index, &at)
        })
    }
}

/// The columns of n rows among m >= n columns whose costs have the least sum, by augmenting paths. Rows and columns count from 1 here; column 0
/// belongs to the row that looks for one. A row from which no path leads to a free column over finite costs has -1.
fn least_cost(n: usize, m: usize, cost: impl Fn(usize, usize) -> f64) -> Result<Vec<i64>> {
    let (mut of_row, mut of_column) = (filled(n + 1, 0.0)?, filled(m + 1, 0.0)?);
    let mut owner = filled(m + 1, 0usize)?;
    for row in 1..=n {
        owner[0] = row;
        let (mut least, mut from) = (filled(m + 1, f64::INFINITY)?, filled(m + 1, 0)?);
        let mut done = filled(m + 1, false)?;
        let mut at = 0;
        while at == 0 || owner[at] != 0 {
            done[at] = true;
            let r = owner[at];
            let (mut step, mut next) = (f64::INFINITY, 0);
            for c in (1..=m).filter(|&c| !done[c]) {
                let pair = cost(r - 1, c - 1);
                let reduced = pair - of_row[r] - of_column[c];
                if pair.is_finite() && reduced < least[c] {
                    (least[c], from[c]) = (reduced, at);
                }
                if least[c] < step {
                    (step, next) = (least[c], c);
                }
            }
            if next == 0 {
                // No free column in reach: all stay as they are.
                at = 0;
                break;
            }
            for (c, &closed) in done.iter().enumerate() {
                if closed {
                    of_row[owner[c]] += step;
                    of_column[c] -= step;
                } else {
                    least[c] -= step;
                }
            }
            at = next;
        }
        while at != 0 {
            owner[at] = owner[from[at]];
            at = from[at];
        }
    }
    let mut found = filled(n, -1)?;
    for (c, &row) in owner.iter().enumerate().skip(1) {
        if row > 0 {
            found[row - 1] = c as i64 - 1;
        }
    }
    Ok(found)
}
