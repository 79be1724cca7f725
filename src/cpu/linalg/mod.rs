//! Dense linear algebra on the CPU, in f64, from the definitions: one matrix after the other, without blocks.

mod decomposition;
mod ldl;
mod singular;

use crate::cpu::scratch::*;
use crate::cpu::*;
use crate::ops::linalg::*;

/// A row-major matrix.
#[derive(Debug, Clone)]
pub(in crate::cpu) struct Dense {
    pub(in crate::cpu) rows: usize,
    pub(in crate::cpu) cols: usize,
    pub(in crate::cpu) data: Vec<f64>,
}

impl Dense {
    pub(in crate::cpu) fn new(rows: usize, cols: usize, data: &[f64]) -> Result<Self> {
        Ok(Dense { rows, cols, data: data.try_to_vec()? })
    }

    pub(in crate::cpu) fn zeros(rows: usize, cols: usize) -> Result<Self> {
        Ok(Dense { rows, cols, data: filled(rows * cols, 0.0)? })
    }

    pub(in crate::cpu) fn identity(rows: usize, cols: usize) -> Result<Self> {
        let mut m = Dense::zeros(rows, cols)?;
        (0..rows.min(cols)).for_each(|i| m[(i, i)] = 1.0);
        Ok(m)
    }

    pub(in crate::cpu) fn t(&self) -> Result<Self> {
        let at = |i: usize| self[(i % self.rows, i / self.rows)];
        let data = (0..self.data.len()).map(at).try_vec()?;
        Ok(Dense { rows: self.cols, cols: self.rows, data })
    }

    pub(in crate::cpu) fn times(&self, other: &Dense) -> Result<Self> {
        let mut out = Dense::zeros(self.rows, other.cols)?;
        for i in 0..self.rows {
            for k in 0..self.cols {
                let a = self[(i, k)];
                for j in 0..other.cols {
                    out[(i, j)] += a * other[(k, j)];
                }
            }
        }
        Ok(out)
    }

    fn swap_rows(&mut self, a: usize, b: usize) {
        (0..self.cols).for_each(|c| self.data.swap(a * self.cols + c, b * self.cols + c));
    }

    /// Elements outside of a triangle become 0.
    fn triangle(&mut self, upper: bool) {
        let cols = self.cols.max(1);
        for (i, v) in self.data.iter_mut().enumerate() {
            let (r, c) = (i / cols, i % cols);
            if if upper { c < r } else { c > r } {
                *v = 0.0;
            }
        }
    }
}

impl std::ops::Index<(usize, usize)> for Dense {
    type Output = f64;

    fn index(&self, (r, c): (usize, usize)) -> &f64 {
        &self.data[r * self.cols + c]
    }
}

impl std::ops::IndexMut<(usize, usize)> for Dense {
    fn index_mut(&mut self, (r, c): (usize, usize)) -> &mut f64 {
        &mut self.data[r * self.cols + c]
    }
}

/// The matrices of an operand.
pub(in crate::cpu) struct Stack {
    m: Matrices,
    data: Vec<f64>,
}

impl Stack {
    pub(in crate::cpu) fn load(op: &'static str, v: View<'_>, rows: usize, cols: usize) -> Result<Self> {
        let data = gather_f64(op, v)?;
        let batch = data.len().checked_div(rows * cols).unwrap_or(0);
        Ok(Stack { m: Matrices { batch, rows, cols }, data })
    }

    pub(in crate::cpu) fn get(&self, i: usize) -> Result<Dense> {
        let size = self.m.rows * self.m.cols;
        Dense::new(self.m.rows, self.m.cols, &self.data[i * size..(i + 1) * size])
    }
}

/// L of a symmetric positive definite matrix, or the size of the first minor that is not.
fn cholesky_of(a: &Dense) -> Result<std::result::Result<Dense, usize>> {
    let n = a.rows;
    let mut l = Dense::zeros(n, n)?;
    for j in 0..n {
        let pivot = a[(j, j)] - (0..j).map(|k| l[(j, k)] * l[(j, k)]).sum::<f64>();
        // NaN is not above 0 either.
        if pivot.is_nan() || pivot <= 0.0 {
            return Ok(Err(j + 1));
        }
        let root = pivot.sqrt();
        l[(j, j)] = root;
        for i in j + 1..n {
            let s: f64 = (0..j).map(|k| l[(i, k)] * l[(j, k)]).sum();
            l[(i, j)] = (a[(i, j)] - s) / root;
        }
    }
    Ok(Ok(l))
}

/// X with T X = B for a triangle T, whose other elements are not read.
fn substitute(t: &Dense, b: &Dense, upper: bool, unit: bool) -> Result<Dense> {
    let (n, mut x) = (t.rows, b.clone());
    for step in 0..n {
        let i = if upper { n - 1 - step } else { step };
        let before = if upper { i + 1..n } else { 0..i };
        for c in 0..x.cols {
            let s: f64 = before.clone().map(|j| t[(i, j)] * x[(j, c)]).sum();
            let v = x[(i, c)] - s;
            x[(i, c)] = if unit { v } else { v / t[(i, i)] };
        }
    }
    Ok(x)
}

/// X of a triangular system.
fn solve_triangle(p: Triangular, a: &Dense, b: &Dense) -> Result<Dense> {
    let upper = p.upper != p.trans;
    match (p.left, p.trans) {
        (true, false) => substitute(a, b, upper, p.unit),
        (true, true) => substitute(&a.t()?, b, upper, p.unit),
        (false, false) => substitute(&a.t()?, &b.t()?, !upper, p.unit)?.t(),
        (false, true) => substitute(a, &b.t()?, !upper, p.unit)?.t(),
    }
}

/// Factors in place; rows of the exchanges from 1, and the number of the first pivot that is 0.
fn factor(a: &mut Dense) -> Result<(Vec<i32>, i32)> {
    let (least, mut info) = (a.rows.min(a.cols), 0);
    let mut pivots = with_capacity(least)?;
    for j in 0..least {
        let mut best = j;
        for i in j + 1..a.rows {
            let (v, b) = (a[(i, j)].abs(), a[(best, j)].abs());
            if v > b || (v.is_nan() && !b.is_nan()) {
                best = i;
            }
        }
        pivots.try_push(best as i32 + 1)?;
        a.swap_rows(j, best);
        let d = a[(j, j)];
        if d == 0.0 {
            info = if info == 0 { j as i32 + 1 } else { info };
            continue;
        }
        for i in j + 1..a.rows {
            let l = a[(i, j)] / d;
            a[(i, j)] = l;
            for c in j + 1..a.cols {
                a[(i, c)] -= l * a[(j, c)];
            }
        }
    }
    Ok((pivots, info))
}

/// Stores NaN-free copies of matrices one after the other.
fn joined(all: Vec<Dense>) -> Result<Vec<f64>> {
    let mut out = with_capacity(all.iter().map(|m| m.data.len()).sum())?;
    for m in all {
        out.try_extend(m.data)?;
    }
    Ok(out)
}

impl LinalgOps for Kernels {
    fn cholesky(&self, upper: bool, a: View<'_>, l: ViewMut<'_>, info: ViewMut<'_>) -> Result<()> {
        const OP: &str = "cholesky";
        let m = check_cholesky(&a, &l, &info)?;
        let _timed = self.count("cholesky");
        let mut failed = filled(info.numel(), 0i32)?;
        if !m.is_empty() {
            let (stack, mut all) = (Stack::load(OP, a, m.rows, m.rows)?, with_capacity(m.batch)?);
            for (i, failed) in failed.iter_mut().enumerate() {
                let a = stack.get(i)?;
                let lower = cholesky_of(&if upper { a.t()? } else { a })?;
                let found = match lower {
                    Ok(l) => l,
                    Err(at) => {
                        *failed = at as i32;
                        Dense { rows: m.rows, cols: m.rows, data: filled(m.rows * m.rows, f64::NAN)? }
                    }
                };
                all.try_push(if upper { found.t()? } else { found })?;
            }
            store_f64(OP, &l, &joined(all)?)?;
        }
        store(OP, &info, &failed)
    }

    fn cholesky_bwd(&self, upper: bool, dl: View<'_>, l: View<'_>, da: GradMut<'_>) -> Result<()> {
        const OP: &str = "cholesky_bwd";
        let m = check_cholesky_bwd(&dl, &l, &da)?;
        let _timed = self.count("cholesky_bwd");
        if m.is_empty() {
            return Ok(());
        }
        let (n, mut all) = (m.rows, with_capacity(m.batch)?);
        let (dls, ls) = (Stack::load(OP, dl, n, n)?, Stack::load(OP, l, n, n)?);
        for i in 0..m.batch {
            let turn = |x: Dense| if upper { x.t() } else { Ok(x) };
            let (mut dl, mut l) = (turn(dls.get(i)?)?, turn(ls.get(i)?)?);
            dl.triangle(false);
            l.triangle(false);
            let mut p = l.t()?.times(&dl)?;
            p.triangle(false);
            (0..n).for_each(|i| p[(i, i)] *= 0.5);
            let s = solve_triangle(Triangular::lower().trans(true), &l, &p)?;
            let s = solve_triangle(Triangular::lower().left(false), &l, &s)?;
            let mut g = s.t()?;
            g.data.iter_mut().zip(&s.data).for_each(|(g, s)| *g = (*g + s) / 2.0);
            all.try_push(g)?;
        }
        store_grad(OP, &da, &joined(all)?)
    }

    fn triangular_solve(&self, p: Triangular, a: View<'_>, b: View<'_>, x: ViewMut<'_>) -> Result<()> {
        const OP: &str = "triangular_solve";
        let m = check_triangular_solve(p, &a, &b, &x)?;
        let _timed = self.count("triangular_solve");
        if x.numel() == 0 {
            return Ok(());
        }
        let [rows, cols] = if p.left { [m.rows, m.cols] } else { [m.cols, m.rows] };
        let (a, b) = (Stack::load(OP, a, m.rows, m.rows)?, Stack::load(OP, b, rows, cols)?);
        let all = (0..m.batch).map(|i| solve_triangle(p, &a.get(i)?, &b.get(i)?)).try_vec_ok()?;
        store_f64(OP, &x, &joined(all)?)
    }

    fn triangular_solve_bwd(&self, p: Triangular, io: TriangularSolveBwd<'_>) -> Result<()> {
        const OP: &str = "triangular_solve_bwd";
        let m = check_triangular_solve_bwd(p, &io)?;
        let _timed = self.count("triangular_solve_bwd");
        let (n, [rows, cols]) = (m.rows, if p.left { [m.rows, m.cols] } else { [m.cols, m.rows] });
        if m.batch == 0 || n == 0 {
            return Ok(());
        }
        let (dx, x) = (Stack::load(OP, io.dx, rows, cols)?, Stack::load(OP, io.x, rows, cols)?);
        let a = Stack::load(OP, io.a, n, n)?;
        let (mut das, mut dbs) = (with_capacity(m.batch)?, with_capacity(m.batch)?);
        for i in 0..m.batch {
            let [dx, x] = match m.cols {
                0 => [Dense::zeros(rows, cols)?, Dense::zeros(rows, cols)?],
                _ => [dx.get(i)?, x.get(i)?],
            };
            let u = solve_triangle(p.trans(!p.trans), &a.get(i)?, &dx)?;
            // The gradient of op(A).
            let g = if p.left { u.times(&x.t()?)? } else { x.t()?.times(&u)? };
            let mut g = if p.trans { g.t()? } else { g };
            g.triangle(p.upper);
            g.data.iter_mut().for_each(|v| *v = -*v);
            if p.unit {
                (0..n).for_each(|i| g[(i, i)] = 0.0);
            }
            das.try_push(g)?;
            dbs.try_push(u)?;
        }
        if let Some(g) = &io.da {
            store_grad(OP, g, &joined(das)?)?;
        }
        io.db.as_ref().map_or(Ok(()), |g| store_grad(OP, g, &joined(dbs)?))
    }

    fn lu_factor(&self, io: LuFactor<'_>) -> Result<()> {
        const OP: &str = "lu_factor";
        let m = check_lu_factor(&io)?;
        let _timed = self.count("lu_factor");
        let mut info = filled(io.info.numel(), 0i32)?;
        if !m.is_empty() {
            let stack = Stack::load(OP, io.a, m.rows, m.cols)?;
            let (mut all, mut pivots) = (with_capacity(m.batch)?, with_capacity(io.pivots.numel())?);
            for (i, info) in info.iter_mut().enumerate() {
                let mut a = stack.get(i)?;
                let (rows, failed) = factor(&mut a)?;
                *info = failed;
                pivots.try_extend(rows)?;
                all.try_push(a)?;
            }
            store_f64(OP, &io.lu, &joined(all)?)?;
            store(OP, &io.pivots, &pivots)?;
        }
        store(OP, &io.info, &info)
    }

    fn lu_solve(
        &self,
        trans: bool,
        lu: View<'_>,
        pivots: View<'_>,
        b: View<'_>,
        x: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "lu_solve";
        let m = check_lu_solve(&lu, &pivots, &b, &x)?;
        let _timed = self.count("lu_solve");
        if x.numel() == 0 {
            return Ok(());
        }
        let n = m.rows;
        let (lu, b) = (Stack::load(OP, lu, n, n)?, Stack::load(OP, b, n, m.cols)?);
        let (rows, mut all) = (gather::<i32>(OP, pivots)?, with_capacity(m.batch)?);
        if rows.iter().any(|&p| p < 1 || p as usize > n) {
            self.flag_index_error(OP);
        }
        for i in 0..m.batch {
            let (f, mut v) = (lu.get(i)?, b.get(i)?);
            let exchanges = rows[i * n..(i + 1) * n].iter().enumerate();
            let mut exchanges: Vec<_> = exchanges
                .filter(|(_, p)| **p >= 1 && **p as usize <= n)
                .map(|(i, p)| (i, *p as usize - 1))
                .try_vec()?;
            let (low, high) = (Triangular::lower().unit(true).trans(trans), Triangular::upper().trans(trans));
            if trans {
                v = solve_triangle(low, &f, &solve_triangle(high, &f, &v)?)?;
                exchanges.reverse();
            }
            exchanges.iter().for_each(|&(a, b)| v.swap_rows(a, b));
            if !trans {
                v = solve_triangle(high, &f, &solve_triangle(low, &f, &v)?)?;
            }
            all.try_push(v)?;
        }
        store_f64(OP, &x, &joined(all)?)
    }

    fn lu_det(&self, io: LuDet<'_>) -> Result<()> {
        const OP: &str = "lu_det";
        let m = check_lu_det(&io)?;
        let _timed = self.count("lu_det");
        let (n, data, pivots) = (m.rows, gather_f64(OP, io.lu)?, gather::<i32>(OP, io.pivots)?);
        let mut det = filled(m.batch, 1.0)?;
        let (mut sign, mut logs) = (filled(m.batch, 1.0)?, filled(m.batch, 0.0)?);
        for w in 0..m.batch {
            for i in 0..n {
                let d = data[(w * n + i) * n + i];
                let flip = if pivots[w * n + i] as i64 == i as i64 + 1 { 1.0 } else { -1.0 };
                det[w] *= flip * d;
                sign[w] *= flip * if d == 0.0 || d.is_nan() { d } else { d.signum() };
                logs[w] += d.abs().ln();
            }
        }
        for (out, values) in [(&io.det, &det), (&io.sign, &sign), (&io.logabsdet, &logs)] {
            out.as_ref().map_or(Ok(()), |out| store_f64(OP, out, values))?;
        }
        Ok(())
    }

    fn newton_schulz(&self, steps: usize, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "newton_schulz";
        let m = check_newton_schulz(steps, &x, &y)?;
        let _timed = self.count("newton_schulz");
        if m.is_empty() {
            return Ok(());
        }
        let stack = Stack::load(OP, x, m.rows, m.cols)?;
        let [a, b, c] = NEWTON_SCHULZ;
        let mut all = with_capacity(m.batch)?;
        for i in 0..m.batch {
            let x = stack.get(i)?;
            let norm = x.data.iter().map(|v| v * v).sum::<f64>().sqrt() + NEWTON_SCHULZ_EPS;
            let mut x = if m.rows > m.cols { x.t()? } else { x };
            x.data.iter_mut().for_each(|v| *v /= norm);
            for _ in 0..steps {
                let gram = x.times(&x.t()?)?;
                let mut p = gram.times(&gram)?;
                p.data.iter_mut().zip(&gram.data).for_each(|(p, g)| *p = b * g + c * *p);
                let mut next = p.times(&x)?;
                next.data.iter_mut().zip(&x.data).for_each(|(n, x)| *n += a * x);
                x = next;
            }
            all.try_push(if m.rows > m.cols { x.t()? } else { x })?;
        }
        store_f64(OP, &y, &joined(all)?)
    }
}
