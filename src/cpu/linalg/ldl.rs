//! Symmetric indefinite systems, one block of D after the other.

use super::{Dense, Stack, joined};
use crate::cpu::scratch::*;
use crate::cpu::*;
use crate::ops::linalg::*;

/// The pivot of a step: the row that is exchanged, and how many rows the block has; `None` where nothing is left in the column.
fn pivot(a: &Dense, k: usize) -> Option<(usize, usize)> {
    // The lower triangle, mirrored.
    let at = |i: usize, j: usize| a[(i.max(j), i.min(j))].abs();
    let alpha = (1.0 + 17f64.sqrt()) / 8.0;
    let first = at(k, k);
    let mut largest = (k, 0.0);
    for i in k + 1..a.rows {
        let v = at(i, k);
        if v > largest.1 || (v.is_nan() && !f64::is_nan(largest.1)) {
            largest = (i, v);
        }
    }
    let (row, most) = largest;
    if (first == 0.0 && most == 0.0) || first.is_nan() {
        return None;
    }
    if first >= alpha * most {
        return Some((k, 1));
    }
    let others = (k..a.rows).filter(|&j| j != row).map(|j| at(row, j));
    let beside = others.fold(0.0, |m: f64, v| if v.is_nan() || v > m { v } else { m });
    match () {
        () if first >= alpha * most * (most / beside) => Some((k, 1)),
        () if at(row, row) >= alpha * beside => Some((row, 1)),
        () => Some((row, 2)),
    }
}

/// Exchanges rows and columns of the symmetric matrix whose lower triangle is given, from row k on.
fn exchange(a: &mut Dense, k: usize, from: usize, to: usize) {
    let place = |i: usize, j: usize, cols: usize| i.max(j) * cols + i.min(j);
    let (n, cols) = (a.rows, a.cols);
    for i in (k..n).filter(|&i| i != from && i != to) {
        a.data.swap(place(i, from, cols), place(i, to, cols));
    }
    a.data.swap(place(from, from, cols), place(to, to, cols));
}

/// Factors in place of the lower triangle; pivots as LAPACK's, and the number of the first column in which nothing was left.
fn factor(a: &mut Dense) -> Result<(Vec<i32>, i32)> {
    let (n, mut info, mut k) = (a.rows, 0, 0);
    let mut pivots = filled(n, 0i32)?;
    while k < n {
        let Some((to, size)) = pivot(a, k) else {
            pivots[k] = k as i32 + 1;
            info = if info == 0 { k as i32 + 1 } else { info };
            k += 1;
            continue;
        };
        let from = k + size - 1;
        if to != from {
            exchange(a, k, from, to);
        }
        let rest = k + size..n;
        if size == 1 {
            pivots[k] = to as i32 + 1;
            let column = rest.clone().map(|i| a[(i, k)]).try_vec()?;
            for (i, x) in rest.clone().zip(&column) {
                let l = x / a[(k, k)];
                a[(i, k)] = l;
                rest.clone().zip(&column).take(i - k).for_each(|(j, y)| a[(i, j)] -= l * y);
            }
        } else {
            pivots[k..k + 2].fill(-(to as i32 + 1));
            // Divided by the element beside the diagonal, which is the largest of the block.
            let beside = a[(k + 1, k)];
            let (d0, d1) = (a[(k, k)] / beside, a[(k + 1, k + 1)] / beside);
            let scale = (d0 * d1 - 1.0) * beside;
            let columns = rest.clone().map(|i| (a[(i, k)], a[(i, k + 1)])).try_vec()?;
            for (i, (x, y)) in rest.clone().zip(&columns) {
                let (u, v) = ((d1 * x - y) / scale, (d0 * y - x) / scale);
                (a[(i, k)], a[(i, k + 1)]) = (u, v);
                let before = rest.clone().zip(&columns).take(i - k - 1);
                before.for_each(|(j, (x, y))| a[(i, j)] -= u * x + v * y);
            }
        }
        k += size;
    }
    a.triangle(false);
    Ok((pivots, info))
}

/// A block of D: its first row, how many rows it has, and the exchange before it.
struct Block {
    at: usize,
    rows: usize,
    swap: Option<(usize, usize)>,
}

/// The blocks that pivots name, and whether all are such as a factorisation leaves.
fn blocks(pivots: &[i32]) -> Result<(Vec<Block>, bool)> {
    let (mut all, mut good, mut k) = (with_capacity(pivots.len())?, true, 0);
    while k < pivots.len() {
        let p = pivots[k];
        let two = p < 0 && pivots.get(k + 1) == Some(&p);
        let rows = if two { 2 } else { 1 };
        let (from, to) = (k + rows - 1, i64::from(p).abs() - 1);
        let fits = (p > 0 || two) && to >= from as i64 && to < pivots.len() as i64;
        good &= fits;
        let swap = (fits && to != from as i64).then_some((from, to as usize));
        all.try_push(Block { at: k, rows, swap })?;
        k += rows;
    }
    Ok((all, good))
}

/// The rows of a block of X by its block of D, in place.
fn divide(f: &Dense, b: &Block, x: &mut Dense) {
    let k = b.at;
    for c in 0..x.cols {
        if b.rows == 1 {
            x[(k, c)] /= f[(k, k)];
            continue;
        }
        let beside = f[(k + 1, k)];
        let (d0, d1) = (f[(k, k)] / beside, f[(k + 1, k + 1)] / beside);
        let (u, v, scale) = (x[(k, c)] / beside, x[(k + 1, c)] / beside, d0 * d1 - 1.0);
        x[(k, c)] = (d1 * u - v) / scale;
        x[(k + 1, c)] = (d0 * v - u) / scale;
    }
}

/// X with A X = B, by LAPACK's `sytrs`: exchanges and columns of L in turn, D, and back.
fn solve(f: &Dense, blocks: &[Block], x: &mut Dense) {
    let n = f.rows;
    for b in blocks {
        b.swap.into_iter().for_each(|(from, to)| x.swap_rows(from, to));
        for c in 0..x.cols {
            for j in b.at..b.at + b.rows {
                (b.at + b.rows..n).for_each(|i| x[(i, c)] -= f[(i, j)] * x[(j, c)]);
            }
        }
        divide(f, b, x);
    }
    for b in blocks.iter().rev() {
        for c in 0..x.cols {
            for j in b.at..b.at + b.rows {
                x[(j, c)] -= (b.at + b.rows..n).map(|i| f[(i, j)] * x[(i, c)]).sum::<f64>();
            }
        }
        b.swap.into_iter().for_each(|(from, to)| x.swap_rows(from, to));
    }
}

impl LdlOps for Kernels {
    fn ldl_factor(&self, io: LdlFactor<'_>) -> Result<()> {
        const OP: &str = "ldl_factor";
        let m = check_ldl_factor(&io)?;
        let _timed = self.count(OP);
        let mut info = filled(io.info.numel(), 0i32)?;
        if !m.is_empty() {
            let stack = Stack::load(OP, io.a, m.rows, m.cols)?;
            let (mut all, mut pivots) = (with_capacity(m.batch)?, with_capacity(io.pivots.numel())?);
            for (i, info) in info.iter_mut().enumerate() {
                let mut a = stack.get(i)?;
                let (rows, empty) = factor(&mut a)?;
                *info = empty;
                pivots.try_extend(rows)?;
                all.try_push(a)?;
            }
            store_f64(OP, &io.ld, &joined(all)?)?;
            store(OP, &io.pivots, &pivots)?;
        }
        store(OP, &io.info, &info)
    }

    fn ldl_solve(&self, ld: View<'_>, pivots: View<'_>, b: View<'_>, x: ViewMut<'_>) -> Result<()> {
        const OP: &str = "ldl_solve";
        let m = check_ldl_solve(&ld, &pivots, &b, &x)?;
        let _timed = self.count(OP);
        if x.numel() == 0 {
            return Ok(());
        }
        let n = m.rows;
        let (ld, b) = (Stack::load(OP, ld, n, n)?, Stack::load(OP, b, n, m.cols)?);
        let (pivots, mut all) = (gather::<i32>(OP, pivots)?, with_capacity(m.batch)?);
        for i in 0..m.batch {
            let (blocks, good) = blocks(&pivots[i * n..(i + 1) * n])?;
            if !good {
                self.flag_index_error(OP);
            }
            let mut v = b.get(i)?;
            solve(&ld.get(i)?, &blocks, &mut v);
            all.try_push(v)?;
        }
        store_f64(OP, &x, &joined(all)?)
    }
}
