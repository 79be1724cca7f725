//! Graphs on the CPU: one pass over the edges per operation, in f64.

pub(super) mod attention;
pub(super) mod csr;

use crate::buffer::{GradMut, View, ViewMut};
use crate::cpu::scratch::*;
use crate::cpu::{Kernels, activation, gather, gather_f64, gather_index, store, store_f64, store_grad};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::graph::*;

/// Values of an optional operand, empty without.
pub(in crate::cpu) fn values(op: &'static str, v: &Option<View<'_>>) -> Result<Vec<f64>> {
    v.map_or(Ok(Vec::new()), |v| gather_f64(op, v))
}

pub(in crate::cpu) fn store_opt(op: &'static str, g: &Option<GradMut<'_>>, data: &[f64]) -> Result<()> {
    g.as_ref().map_or(Ok(()), |g| store_grad(op, g, data))
}

/// Stores whole numbers in whatever index type the output has.
pub(in crate::cpu) fn store_ids(op: &'static str, out: &Option<ViewMut<'_>>, ids: &[i64]) -> Result<()> {
    match out {
        Some(v) if v.dtype() == DType::I64 => store(op, v, ids),
        Some(v) => store(op, v, &ids.iter().map(|&i| i as i32).try_vec()?),
        None => Ok(()),
    }
}

impl Kernels {
    /// A list of nodes; what is not below `limit` is reported and becomes `None`.
    pub(in crate::cpu) fn nodes(
        &self,
        op: &'static str,
        v: View<'_>,
        limit: usize,
    ) -> Result<Vec<Option<usize>>> {
        let list: Vec<_> = gather_index(op, v)?.into_iter().map(|i| i.filter(|&i| i < limit)).try_vec()?;
        if list.contains(&None) {
            self.flag_index_error(op);
        }
        Ok(list)
    }

    /// The row of each entry of a CSR matrix, `None` where its rowptr does not rise from 0 to the number of entries, which is reported.
    pub(in crate::cpu) fn entry_rows(
        &self,
        op: &'static str,
        rowptr: View<'_>,
        entries: usize,
    ) -> Result<Vec<Option<usize>>> {
        let p: Vec<usize> =
            gather_index(op, rowptr)?.into_iter().map(|i| i.unwrap_or(usize::MAX)).try_vec()?;
        let sound = p.first() == Some(&0) && p.last() == Some(&entries) && p.windows(2).all(|w| w[0] <= w[1]);
        if !sound {
            self.flag_index_error(op);
        }
        let mut rows = repeated(entries, None)?;
        for (r, w) in p.windows(2).enumerate() {
            let (from, to) = (w[0].min(entries), w[1].min(entries));
            rows[from.min(to)..to].fill(Some(r));
        }
        Ok(rows)
    }

    /// Reduces messages of `columns` elements per edge into y; NaN wins, the first of equal edges stays.
    fn reduce_messages(
        dst: &[Option<usize>],
        nodes: usize,
        columns: usize,
        r: MessageReduce,
        message: impl Fn(usize, usize) -> f64,
    ) -> Result<(Vec<f64>, Vec<i64>)> {
        let mut y = filled(nodes * columns, 0.0)?;
        let mut arg = filled(nodes * columns, -1i64)?;
        let mut count = filled(nodes, 0usize)?;
        for (e, v) in dst.iter().enumerate().filter_map(|(e, v)| v.map(|v| (e, v))) {
            count[v] += 1;
            for c in 0..columns {
                let (x, at) = (message(e, c), v * columns + c);
                let better = match r {
                    MessageReduce::Sum | MessageReduce::Mean => {
                        y[at] += x;
                        continue;
                    }
                    MessageReduce::Max => x > y[at],
                    MessageReduce::Min => x < y[at],
                };
                if arg[at] < 0 || better || (x.is_nan() && !y[at].is_nan()) {
                    y[at] = x;
                    arg[at] = e as i64;
                }
            }
        }
        if r == MessageReduce::Mean {
            y.iter_mut().enumerate().for_each(|(i, y)| *y /= count[i / columns].max(1) as f64);
        }
        Ok((y, arg))
    }
}

fn degrees(dst: &[Option<usize>], nodes: usize) -> Result<Vec<i64>> {
    let mut n = filled(nodes, 0)?;
    dst.iter().flatten().for_each(|&v| n[v] += 1);
    Ok(n)
}

/// The sources of each destination in their order.
fn members(index: &[Option<usize>], nodes: usize) -> Result<Vec<Vec<usize>>> {
    let mut all = repeated(nodes, Vec::new())?;
    for (i, r) in index.iter().enumerate() {
        r.map_or(Ok(()), |r| all[r].try_push(i))?;
    }
    Ok(all)
}

fn mean_of(x: &[f64]) -> f64 {
    x.iter().sum::<f64>() / x.len().max(1) as f64
}

impl GraphOps for Kernels {
    fn degree(&self, dst: View<'_>, degree: ViewMut<'_>) -> Result<()> {
        const OP: &str = "degree";
        check_degree(&dst, &degree)?;
        let _timed = self.count("degree");
        let n = degree.numel();
        store(OP, &degree, &degrees(&self.nodes(OP, dst, n)?, n)?)
    }

    fn sym_normalize(
        &self,
        rowptr: View<'_>,
        col: View<'_>,
        list: Option<View<'_>>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "sym_normalize";
        let nodes = check_sym_normalize(&rowptr, &col, &list, &y)?;
        let _timed = self.count("sym_normalize");
        let n = col.numel();
        let (rows, cols) = (self.entry_rows(OP, rowptr, n)?, self.nodes(OP, col, nodes)?);
        let v = if list.is_some() { values(OP, &list)? } else { filled(n, 1.0)? };
        let mut d = filled(nodes, 0.0)?;
        rows.iter().zip(&v).for_each(|(r, v)| r.iter().for_each(|&r| d[r] += v));
        let out: Vec<f64> = (0..n)
            .map(|p| match (rows[p], cols[p]) {
                (Some(r), Some(c)) if !(d[r] <= 0.0 || d[c] <= 0.0) => v[p] / (d[r].sqrt() * d[c].sqrt()),
                _ => 0.0,
            })
            .try_vec()?;
        store_f64(OP, &y, &out)
    }

    fn spmm(&self, io: Spmm<'_>) -> Result<()> {
        const OP: &str = "spmm";
        let s = check_spmm(&io)?;
        let _timed = self.count("spmm");
        let (rows, cols) = (self.entry_rows(OP, io.rowptr, s.edges)?, self.nodes(OP, io.col, s.others)?);
        let (x, v, bias) = (gather_f64(OP, io.x)?, values(OP, &io.values)?, values(OP, &io.bias)?);
        let mut y = filled(s.nodes * s.columns, 0.0)?;
        let span = s.columns / s.parts.max(1);
        for (p, (r, c)) in rows.iter().zip(&cols).enumerate() {
            let (Some(r), Some(c)) = (r, c) else { continue };
            for k in 0..s.columns {
                let a = if v.is_empty() { 1.0 } else { v[p * s.parts + k / span] };
                y[r * s.columns + k] += a * x[c * s.columns + k];
            }
        }
        if !bias.is_empty() {
            y.iter_mut().enumerate().for_each(|(i, y)| *y += bias[i % bias.len()]);
        }
        y.iter_mut().for_each(|y| *y = activation::value(io.act, *y));
        store_f64(OP, &io.y, &y)
    }

    fn spmm_bwd(&self, io: SpmmBwd<'_>) -> Result<()> {
        const OP: &str = "spmm_bwd";
        let s = check_spmm_bwd(&io)?;
        let _timed = self.count("spmm_bwd");
        let (rows, cols) = (self.entry_rows(OP, io.rowptr, s.edges)?, self.nodes(OP, io.col, s.others)?);
        let (dy, x, v) = (gather_f64(OP, io.dy)?, gather_f64(OP, io.x)?, values(OP, &io.values)?);
        let (mut dx, mut dv) = (filled(x.len(), 0.0)?, filled(v.len(), 0.0)?);
        let span = s.columns / s.parts.max(1);
        for (p, (r, c)) in rows.iter().zip(&cols).enumerate() {
            let (Some(r), Some(c)) = (r, c) else { continue };
            for k in 0..s.columns {
                let g = dy[r * s.columns + k];
                let a = if v.is_empty() { 1.0 } else { v[p * s.parts + k / span] };
                dx[c * s.columns + k] += a * g;
                if !v.is_empty() {
                    dv[p * s.parts + k / span] += g * x[c * s.columns + k];
                }
            }
        }
        store_opt(OP, &io.dx, &dx)?;
        store_opt(OP, &io.dvalues, &dv)?;
        if let Some(g) = &io.dbias {
            let mut db = filled(g.out.numel(), 0.0)?;
            let n = db.len().max(1);
            dy.iter().enumerate().for_each(|(i, g)| db[i % n] += g);
            store_grad(OP, g, &db)?;
        }
        Ok(())
    }

    fn message_passing(&self, m: Message, r: MessageReduce, io: Messages<'_>) -> Result<()> {
        const OP: &str = "message_passing";
        let s = check_messages(m, r, &io)?;
        let _timed = self.count("message_passing");
        let sources = if m == Message::CopyE { i32::MAX as usize } else { s.others };
        let (src, dst) = (self.nodes(OP, io.src, sources)?, self.nodes(OP, io.dst, s.nodes)?);
        let (x, ev) = (values(OP, &io.x)?, values(OP, &io.e)?);
        store_ids(OP, &io.degree, &degrees(&dst, s.nodes)?)?;
        let (d, span) = (s.columns, s.columns / s.parts.max(1));
        let at = |v: Option<usize>, c: usize| v.map_or(0.0, |v| x[v * d + c]);
        if m == Message::UDotV {
            let per = io.y.numel() / s.edges.max(1);
            let span = d / per.max(1);
            let dot = |i: usize| {
                let (e, h) = (i / per, i % per);
                (h * span..(h + 1) * span).map(|c| at(src[e], c) * at(dst[e], c)).sum()
            };
            return store_f64(OP, &io.y, &(0..io.y.numel()).map(dot).try_vec()?);
        }
        let e_at = |e: usize, c: usize| ev[e * s.parts + c / span];
        let (y, arg) = Self::reduce_messages(&dst, s.nodes, d, r, |e, c| match m {
            Message::CopyU => at(src[e], c),
            Message::CopyE => e_at(e, c),
            Message::UMulE => at(src[e], c) * e_at(e, c),
            Message::UAddE => at(src[e], c) + e_at(e, c),
            Message::UAddV => at(src[e], c) + at(dst[e], c),
            Message::USubV => at(src[e], c) - at(dst[e], c),
            Message::UMulV | Message::UDotV => at(src[e], c) * at(dst[e], c),
        })?;
        store_ids(OP, &io.arg, &arg)?;
        store_f64(OP, &io.y, &y)
    }

    fn message_passing_bwd(&self, m: Message, r: MessageReduce, io: MessagesBwd<'_>) -> Result<()> {
        const OP: &str = "message_passing_bwd";
        let s = check_messages_bwd(m, r, &io)?;
        let _timed = self.count("message_passing_bwd");
        let sources = if m == Message::CopyE { i32::MAX as usize } else { s.others };
        let (src, dst) = (self.nodes(OP, io.src, sources)?, self.nodes(OP, io.dst, s.nodes)?);
        let (dy, x, ev) = (gather_f64(OP, io.dy)?, values(OP, &io.x)?, values(OP, &io.e)?);
        let arg = io.arg.map_or(Ok(Vec::new()), |a| gather_index(OP, a))?;
        let count: Vec<f64> = match io.degree {
            Some(n) => gather_f64(OP, n)?,
            None => degrees(&dst, s.nodes)?.into_iter().map(|n| n as f64).try_vec()?,
        };
        let (d, span) = (s.columns, s.columns / s.parts.max(1));
        let mut dx = filled(if m == Message::CopyE { 0 } else { s.others * d }, 0.0)?;
        let mut de = filled(s.edges * s.parts, 0.0)?;
        let per = if m == Message::UDotV { dy.len() / s.edges.max(1) } else { 1 };
        for e in 0..s.edges {
            let (Some(u), Some(v)) = (src[e], dst[e]) else { continue };
            for c in 0..d {
                let g = match r {
                    _ if m == Message::UDotV => dy[e * per + c / (d / per)],
                    MessageReduce::Sum => dy[v * d + c],
                    MessageReduce::Mean => dy[v * d + c] / count[v],
                    MessageReduce::Max | MessageReduce::Min => {
                        if arg[v * d + c] == Some(e) {
                            dy[v * d + c]
                        } else {
                            0.0
                        }
                    }
                };
                let part = e * s.parts + c / span;
                match m {
                    Message::CopyU => dx[u * d + c] += g,
                    Message::CopyE => de[part] += g,
                    Message::UMulE => {
                        if !ev.is_empty() {
                            dx[u * d + c] += g * ev[part];
                        }
                        if s.parts > 0 {
                            de[part] += g * x[u * d + c];
                        }
                    }
                    Message::UAddE => {
                        dx[u * d + c] += g;
                        if s.parts > 0 {
                            de[part] += g;
                        }
                    }
                    Message::UAddV => {
                        dx[u * d + c] += g;
                        dx[v * d + c] += g;
                    }
                    Message::USubV => {
                        dx[u * d + c] += g;
                        dx[v * d + c] -= g;
                    }
                    Message::UMulV | Message::UDotV => {
                        dx[u * d + c] += g * x[v * d + c];
                        dx[v * d + c] += g * x[u * d + c];
                    }
                }
            }
        }
        store_opt(OP, &io.dx, &dx)?;
        store_opt(OP, &io.de, &de)
    }

    fn sddmm(
        &self,
        op: EdgeOp,
        src: View<'_>,
        dst: View<'_>,
        x: View<'_>,
        y: View<'_>,
        out: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "sddmm";
        let s = check_sddmm(op, &src, &dst, &x, &y, &out)?;
        let _timed = self.count("sddmm");
        let (src, dst) = (self.nodes(OP, src, s.sources)?, self.nodes(OP, dst, s.targets)?);
        let (x, y) = (gather_f64(OP, x)?, gather_f64(OP, y)?);
        let (d, span) = (s.columns, s.columns / s.parts.max(1));
        let mut z = filled(s.edges * s.parts, 0.0)?;
        for (e, (u, v)) in src.iter().zip(&dst).enumerate() {
            let (Some(u), Some(v)) = (u, v) else { continue };
            for c in 0..d {
                let (a, b) = (x[u * d + c], y[v * d + c]);
                z[e * s.parts + c / span] += match op {
                    EdgeOp::Dot | EdgeOp::Mul => a * b,
                    EdgeOp::Add => a + b,
                    EdgeOp::Sub => a - b,
                };
            }
        }
        store_f64(OP, &out, &z)
    }

    fn sddmm_bwd(&self, op: EdgeOp, io: SddmmBwd<'_>) -> Result<()> {
        const OP: &str = "sddmm_bwd";
        let s = check_sddmm_bwd(op, &io)?;
        let _timed = self.count("sddmm_bwd");
        let (src, dst) = (self.nodes(OP, io.src, s.sources)?, self.nodes(OP, io.dst, s.targets)?);
        let (g, x, y) = (gather_f64(OP, io.dout)?, gather_f64(OP, io.x)?, gather_f64(OP, io.y)?);
        let (d, span) = (s.columns, s.columns / s.parts.max(1));
        let (mut dx, mut dy) = (filled(x.len(), 0.0)?, filled(y.len(), 0.0)?);
        for (e, (u, v)) in src.iter().zip(&dst).enumerate() {
            let (Some(u), Some(v)) = (u, v) else { continue };
            for c in 0..d {
                let (i, j, g) = (u * d + c, v * d + c, g[e * s.parts + c / span]);
                let (a, b) = match op {
                    EdgeOp::Dot | EdgeOp::Mul => (g * y[j], g * x[i]),
                    EdgeOp::Add => (g, g),
                    EdgeOp::Sub => (g, -g),
                };
                dx[i] += a;
                dy[j] += b;
            }
        }
        store_opt(OP, &io.dx, &dx)?;
        store_opt(OP, &io.dy, &dy)
    }

    fn group_reduce(&self, how: GroupReduce, io: GroupIo<'_>) -> Result<()> {
        const OP: &str = "group_reduce";
        let s = check_group(how, &io)?;
        let _timed = self.count("group_reduce");
        let index = self.nodes(OP, io.index, s.nodes)?;
        let src = gather_f64(OP, io.src)?;
        store_ids(OP, &io.counts, &degrees(&index, s.nodes)?)?;
        let groups = members(&index, s.nodes)?;
        let mut y = filled(s.outer * s.nodes * s.inner, 0.0)?;
        let mut arg = filled(y.len(), -1i64)?;
        for (at, y) in y.iter_mut().enumerate() {
            let (o, r, c) = (at / (s.nodes * s.inner), at / s.inner % s.nodes, at % s.inner);
            let list = &groups[r];
            let x: Vec<f64> = list.iter().map(|i| src[(o * s.sources + i) * s.inner + c]).try_vec()?;
            let mut pick = |better: fn(f64, f64) -> bool, empty: f64| {
                let mut best: Option<usize> = None;
                for (k, &v) in x.iter().enumerate() {
                    if best.is_none_or(|b| better(v, x[b]) || (v.is_nan() && !x[b].is_nan())) {
                        best = Some(k);
                    }
                }
                arg[at] = best.map_or(-1, |b| list[b] as i64);
                best.map_or(empty, |b| x[b])
            };
            *y = match how {
                GroupReduce::Sum => x.iter().sum(),
                GroupReduce::Mean => mean_of(&x),
                GroupReduce::Prod => x.iter().product(),
                GroupReduce::Max { empty } => pick(|a, b| a > b, empty),
                GroupReduce::Min { empty } => pick(|a, b| a < b, empty),
                GroupReduce::Std { .. } if x.is_empty() => 0.0,
                GroupReduce::Std { correction, eps } => {
                    let (mean, n) = (mean_of(&x), (x.len() as f64 - f64::from(correction)).max(1.0));
                    (x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n + eps).sqrt()
                }
            };
        }
        store_ids(OP, &io.arg, &arg)?;
        store_grad(OP, &io.y, &y)
    }

    fn group_reduce_bwd(&self, how: GroupReduce, io: GroupBwd<'_>) -> Result<()> {
        const OP: &str = "group_reduce_bwd";
        let s = check_group_bwd(how, &io)?;
        let _timed = self.count("group_reduce_bwd");
        let dy = gather_f64(OP, io.dy)?;
        let mut d = filled(s.outer * s.sources * s.inner, 0.0)?;
        let (there, here) = (
            |o: usize, r: usize, c: usize| (o * s.nodes + r) * s.inner + c,
            |o: usize, i: usize, c: usize| (o * s.sources + i) * s.inner + c,
        );
        if let (GroupReduce::Max { .. } | GroupReduce::Min { .. }, Some(arg)) = (how, io.arg) {
            let ids = crate::cpu::graph::csr::signed_ids(OP, arg)?;
            if ids.iter().any(|&i| i < -1 || i >= s.sources as i64) {
                self.flag_index_error(OP);
            }
            for (at, &i) in ids.iter().enumerate().filter(|(_, i)| (0..s.sources as i64).contains(*i)) {
                d[here(at / (s.nodes * s.inner), i as usize, at % s.inner)] += dy[at];
            }
            return store_grad(OP, &io.dsrc, &d);
        }
        let Some(index) = io.index else { return Ok(()) };
        let index = self.nodes(OP, index, s.nodes)?;
        let (src, y) = (values(OP, &io.src)?, values(OP, &io.y)?);
        let counts = values(OP, &io.counts)?;
        for (r, list) in members(&index, s.nodes)?.iter().enumerate() {
            for (o, c) in (0..s.outer).flat_map(|o| (0..s.inner).map(move |c| (o, c))) {
                let g = dy[there(o, r, c)];
                let x: Vec<f64> = match src.is_empty() {
                    true => Vec::new(),
                    false => list.iter().map(|&i| src[here(o, i, c)]).try_vec()?,
                };
                let mean = mean_of(&x);
                // Products of what lies before and behind each source.
                let before: Vec<f64> =
                    x.iter().scan(1.0, |p, v| Some(std::mem::replace(p, *p * v))).try_vec()?;
                let mut behind = 1.0;
                for (k, &i) in list.iter().enumerate().rev() {
                    d[here(o, i, c)] = match how {
                        GroupReduce::Sum => g,
                        GroupReduce::Mean => g / counts[r],
                        GroupReduce::Prod => g * (before[k] * behind),
                        GroupReduce::Std { correction, .. } => {
                            let n = (x.len() as f64 - f64::from(correction)).max(1.0);
                            g * (x[k] - mean) / (n * y[there(o, r, c)])
                        }
                        GroupReduce::Max { .. } | GroupReduce::Min { .. } => 0.0,
                    };
                    behind *= x.get(k).copied().unwrap_or(1.0);
                }
            }
        }
        store_grad(OP, &io.dsrc, &d)
    }
}

/// Rows of values that share an index type: moves `values` by `perm`.
pub(in crate::cpu) fn permuted(
    op: &'static str,
    v: View<'_>,
    perm: &[usize],
    out: &ViewMut<'_>,
) -> Result<()> {
    super::with_dtype!(v.dtype(), T => {
        let from = gather::<T>(op, v)?;
        store(op, out, &perm.iter().map(|&p| from[p]).try_vec()?)
    })
}
