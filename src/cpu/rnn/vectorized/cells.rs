//! Single steps.

use super::backward::{gru_bwd, lstm_bwd};
use super::forward::{gru_step, lstm};
use super::*;
use crate::cpu::vector::activation::activate;
use crate::cpu::vector::put;
use crate::ops::activation::Activation;

impl Kernels {
    pub(in crate::cpu::rnn) fn rnn_gates_in_f32<T: Narrow>(
        &self,
        x: View<'_>,
        h: View<'_>,
        weights: RnnWeights<'_>,
        z: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "rnn_gates";
        let rows = z.shape()[1];
        let mut sum = filled(z.numel(), 0.0)?;
        for (v, w, b) in [(x, weights.w_ih, weights.b_ih), (h, weights.w_hh, weights.b_hh)] {
            if let Some(b) = optional::<T>(OP, b)? {
                sum.chunks_mut(rows).for_each(|sum| vector::add(sum, &b));
            }
            let (m, k) = (v.shape()[0], v.shape()[1]);
            let (v, w) = (values::<T>(OP, v)?, values::<T>(OP, w)?);
            let to = (&mut *sum, packed(0, rows));
            multiply(OP, (m, rows, k), (&v, packed(0, k)), (&w, turned(0, k)), 1.0, to, true)?;
        }
        put(OP, &z.grad(false), &sum)
    }

    pub(in crate::cpu::rnn) fn lstm_cell_in_f32<T: Narrow>(
        &self,
        [b, h]: [usize; 2],
        io: LstmCellFwd<'_>,
    ) -> Result<()> {
        const OP: &str = "lstm_cell";
        let (mut gates, c) = (values::<T>(OP, io.z)?, values::<T>(OP, io.c)?);
        let (mut next, mut y) = (filled(b * h, 0.0)?, filled(b * h, 0.0)?);
        let states = next.chunks_mut(h).zip(y.chunks_mut(h));
        for ((gates, c), (next, y)) in gates.chunks_mut(4 * h).zip(c.chunks(h)).zip(states) {
            lstm(gates, c, next, y);
        }
        put(OP, &io.h_next.grad(false), &y)?;
        put(OP, &io.c_next.grad(false), &next)?;
        io.gates.map_or(Ok(()), |to| put(OP, &to.grad(false), &gates))
    }

    pub(in crate::cpu::rnn) fn lstm_cell_bwd_in_f32<T: Narrow>(
        &self,
        [b, h]: [usize; 2],
        io: LstmCellBwd<'_>,
    ) -> Result<()> {
        const OP: &str = "lstm_cell_bwd";
        let first = |v| optional::<T>(OP, v)?.map_or_else(|| filled(b * h, 0.0f32), Ok);
        let (dh, mut dc) = (first(io.dh_next)?, first(io.dc_next)?);
        let gates = values::<T>(OP, io.gates)?;
        let (c, next) = (values::<T>(OP, io.c)?, values::<T>(OP, io.c_next)?);
        let (mut dz, mut room) = (filled(4 * b * h, 0.0)?, filled(h, 0.0)?);
        for (i, (dz, dc)) in dz.chunks_mut(4 * h).zip(dc.chunks_mut(h)).enumerate() {
            let [c, next, dh] = [&c, &next, &dh].map(|v| &v[i * h..][..h]);
            lstm_bwd(&gates[i * 4 * h..][..4 * h], [c, next], dh, dc, dz, &mut room);
        }
        put(OP, &io.dz, &dz)?;
        io.dc.map_or(Ok(()), |to| put(OP, &to, &dc))
    }

    pub(in crate::cpu::rnn) fn gru_cell_in_f32<T: Narrow>(
        &self,
        [b, h]: [usize; 2],
        io: GruCellFwd<'_>,
    ) -> Result<()> {
        const OP: &str = "gru_cell";
        let (mut gates, u, x) = (values::<T>(OP, io.a)?, values::<T>(OP, io.u)?, values::<T>(OP, io.h)?);
        let mut y = filled(b * h, 0.0)?;
        for (i, (gates, y)) in gates.chunks_mut(3 * h).zip(y.chunks_mut(h)).enumerate() {
            let (u, un) = u[i * 3 * h..][..3 * h].split_at(2 * h);
            vector::add(&mut gates[..2 * h], u);
            activate(Activation::Sigmoid, &mut gates[..2 * h]);
            gru_step(RnnCell::Gru, gates, un, &x[i * h..][..h], y);
        }
        put(OP, &io.h_next.grad(false), &y)?;
        for (q, to) in [io.r, io.z, io.n].into_iter().enumerate() {
            let Some(to) = to else { continue };
            put_rows::<T>(OP, &to.grad(false), h, |i| Some(&gates[(3 * i + q) * h..][..h]))?;
        }
        Ok(())
    }

    pub(in crate::cpu::rnn) fn gru_cell_bwd_in_f32<T: Narrow>(
        &self,
        [b, h]: [usize; 2],
        io: GruCellBwd<'_>,
    ) -> Result<()> {
        const OP: &str = "gru_cell_bwd";
        let g = io.gates;
        let mut dh = values::<T>(OP, io.dh_next)?;
        let saved = [g.r, g.z, g.n, g.u, io.h].map(|v| values::<T>(OP, v));
        let [r, z, n, u, x] = saved;
        let saved = [r?, z?, n?, u?, x?];
        let (mut da, mut du) = (filled(3 * b * h, 0.0)?, filled(3 * b * h, 0.0)?);
        let rows = da.chunks_mut(3 * h).zip(du.chunks_mut(3 * h)).zip(dh.chunks_mut(h));
        for (i, ((da, du), dh)) in rows.enumerate() {
            gru_bwd(saved.each_ref().map(|v| &v[i * h..][..h]), dh, du, da);
        }
        put(OP, &io.da, &da)?;
        put(OP, &io.du, &du)?;
        io.dh.map_or(Ok(()), |to| put(OP, &to, &dh))
    }
}
