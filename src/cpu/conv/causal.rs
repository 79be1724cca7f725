//! Causal convolution on the CPU.

use crate::buffer::View;
use crate::cpu::activation;
use crate::cpu::scratch::*;
use crate::cpu::{Kernels, gather_f64, store_f64, store_grad};
use crate::error::Result;
use crate::ops::activation::Activation;
use crate::ops::conv::*;

/// State and sequence in one row per channel, [N * C, K-1 + L].
fn rows(op: &'static str, s: CausalShape, x: View<'_>, state: Option<View<'_>>) -> Result<Vec<Vec<f64>>> {
    let before = s.k - 1;
    let x = gather_f64(op, x)?;
    let state = state.map(|v| gather_f64(op, v)).transpose()?;
    (0..s.n * s.c)
        .map(|r| {
            let mut row = with_capacity(before + s.len)?;
            match &state {
                Some(v) => row.try_extend(v[r * before..(r + 1) * before].iter().copied())?,
                None => row.try_extend(std::iter::repeat_n(0.0, before))?,
            }
            row.try_extend(x[r * s.len..(r + 1) * s.len].iter().copied())?;
            Ok(row)
        })
        .try_vec_ok()
}

/// Values before the activation, [N, C, L]. The first `absent` elements of a row do not exist, and their weights do not count.
fn linear(
    s: CausalShape,
    absent: usize,
    rows: &[Vec<f64>],
    w: &[f64],
    bias: Option<&[f64]>,
) -> Result<Vec<f64>> {
    let mut z = with_capacity(rows.len() * s.len)?;
    for (r, row) in rows.iter().enumerate() {
        let c = r % s.c;
        let w = &w[c * s.k..(c + 1) * s.k];
        let at = |l: usize| {
            let there = w.iter().zip(&row[l..]).skip(absent.saturating_sub(l));
            there.map(|(w, x)| w * x).sum::<f64>() + bias.map_or(0.0, |b| b[c])
        };
        z.try_extend((0..s.len).map(at))?;
    }
    Ok(z)
}

impl CausalConvOps for Kernels {
    fn causal_conv1d(&self, act: Activation, io: CausalConvIo<'_>) -> Result<()> {
        const OP: &str = "causal_conv1d";
        let s = check_causal_conv1d(act, &io)?;
        let _timed = self.count("causal_conv1d");
        let rows = rows(OP, s, io.x, io.state)?;
        let (w, bias) = (gather_f64(OP, io.w)?, io.bias.map(|b| gather_f64(OP, b)).transpose()?);
        let mut y = linear(s, if io.state.is_some() { 0 } else { s.k - 1 }, &rows, &w, bias.as_deref())?;
        y.iter_mut().for_each(|y| *y = activation::value(act, *y));
        store_f64(OP, &io.y, &y)?;
        match &io.new_state {
            Some(out) => store_f64(OP, out, &rows.iter().flat_map(|r| &r[s.len..]).copied().try_vec()?),
            None => Ok(()),
        }
    }

    fn causal_conv1d_bwd(&self, act: Activation, io: CausalConvBwd<'_>) -> Result<()> {
        const OP: &str = "causal_conv1d_bwd";
        let s = check_causal_conv1d_bwd(act, &io)?;
        let _timed = self.count("causal_conv1d_bwd");
        let rows = rows(OP, s, io.x, io.state)?;
        let (w, bias) = (gather_f64(OP, io.w)?, io.bias.map(|b| gather_f64(OP, b)).transpose()?);
        let mut dz = gather_f64(OP, io.dy)?;
        let z = linear(s, if io.state.is_some() { 0 } else { s.k - 1 }, &rows, &w, bias.as_deref())?;
        dz.iter_mut().zip(z).for_each(|(d, z)| *d = activation::gradient(act, *d, z));
        let (mut dx, mut dw, mut db) = (filled(dz.len(), 0.0)?, filled(w.len(), 0.0)?, filled(s.c, 0.0)?);
        for (r, row) in rows.iter().enumerate() {
            let c = r % s.c;
            for (l, &d) in dz[r * s.len..(r + 1) * s.len].iter().enumerate() {
                db[c] += d;
                for j in 0..s.k {
                    dw[c * s.k + j] += d * row[l + j];
                    // Element l + j of the row is x[l + j - (K-1)].
                    if let Some(i) = (l + j).checked_sub(s.k - 1) {
                        dx[r * s.len + i] += d * w[c * s.k + j];
                    }
                }
            }
        }
        for (g, v) in [(&io.dx, dx), (&io.dw, dw), (&io.dbias, db)] {
            g.as_ref().map_or(Ok(()), |g| store_grad(OP, g, &v))?;
        }
        Ok(())
    }
}
