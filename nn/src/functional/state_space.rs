//! State-space models, linear attention and linear recurrences.

use trefoil::ops::state_space::{
    AssociativeScanBwd, GatedDeltaScan, GatedDeltaScanBwd, GlaScan, GlaScanBwd, SelectiveScan,
    SelectiveScanBwd, SsdScan, SsdScanBwd,
};

use crate::core::autograd::{BackwardCtx, Saved, out};
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, same_device};
use crate::functional::operand::{Inputs, operand, save, saved, view, whole};

/// What [`Tensor::selective_scan`] may have beside its operands.
#[derive(Debug, Clone, Copy, Default)]
pub struct SelectiveScanOptions<'a> {
    /// Share of the input that is added to the result, `[E]`.
    pub d: Option<&'a Tensor>,
    /// Gate `[B, T, E]`: results are multiplied by silu(z).
    pub z: Option<&'a Tensor>,
    /// State before the first step, `[B, E, N]`, f32 (f64 for f64 data); no gradient flows to it. Zeros without.
    pub initial: Option<&'a Tensor>,
    /// Takes softplus(dt) for dt.
    pub softplus: bool,
}

/// The last axis and the `heads` axes `[B, .., V]` of a state: those of the values without time, and the width of the keys.
fn state_shape(op: &'static str, keys: &Tensor, values: &Tensor, rank: usize) -> Result<Vec<usize>> {
    if keys.rank() != rank || values.rank() != rank {
        let got = format!("shapes {:?} and {:?}", keys.shape(), values.shape());
        return Err(invalid(op, "operands", format!("sequences of rank {rank}"), got));
    }
    let mut shape = values.shape().to_vec();
    shape.remove(1);
    shape.push(keys.shape()[rank - 1]);
    Ok(shape)
}

/// Memory for the last state.
fn new_state(op: &'static str, keys: &Tensor, values: &Tensor, rank: usize) -> Result<Tensor> {
    let shape = state_shape(op, keys, values, rank)?;
    Tensor::empty(values.device(), values.dtype().accumulator(), &shape)
}

impl Tensor {
    /// The recurrence `y[t] = self[t] y[t-1] + b[t]` along axis 1 of `[B, T, ..]`, elementwise, from 0; `reverse` runs from the last step.
    /// Blelloch (1990). Errors: `Invalid` for shapes or dtypes that differ, fewer than two axes.
    pub fn associative_scan(&self, b: &Tensor, reverse: bool) -> Result<Tensor> {
        const OP: &str = "associative_scan";
        same_device(OP, self, b)?;
        let (a, b) = (self.contiguous()?, b.contiguous()?);
        let y = a.like(a.shape())?;
        let (ao, bo, yo) = (a.operand(), b.operand(), y.operand());
        a.device().associative_scan(reverse, ao.view()?, bo.view()?, yo.view_mut()?)?;
        let result = y.clone();
        Ok(y.record(OP, &[&a, &b], || {
            let (a, y) = (Saved::new(&a), Saved::new(&result));
            move |cx: &mut BackwardCtx<'_>| {
                let (da, db) = (cx.target(0)?, cx.target(1)?);
                let dy = cx.dy()?.contiguous()?;
                let (a, y, dyo) = (a.get(cx)?.operand(), y.get(cx)?.operand(), dy.operand());
                let mut io = AssociativeScanBwd::new(dyo.view()?, a.view()?).y(y.view()?);
                (io.da, io.db) = (out(&da)?, out(&db)?);
                Ok(dy.device().associative_scan_bwd(reverse, io)?)
            }
        }))
    }

    /// Gated linear attention of these queries `[B, T, H, D]`: `S = S diag(g) + v k^T`, `y = S q` for each head. Keys `[B, T, H, D]`, values
    /// `[B, T, H, V]`, decay `g` `[B, T, H]` or per key column `[B, T, H, D]`; D at most 256. Gives `[B, T, H, V]` and the last state
    /// `[B, H, V, D]` (f32, f64 for f64 data), which `initial` takes up; no gradient flows through states. Yang et al. (2024). Errors:
    /// `Invalid` for shapes and dtypes that do not fit.
    pub fn gla_scan(
        &self,
        k: &Tensor,
        v: &Tensor,
        g: &Tensor,
        initial: Option<&Tensor>,
    ) -> Result<(Tensor, Tensor)> {
        const OP: &str = "gla_scan";
        for t in [k, v, g].into_iter().chain(initial) {
            same_device(OP, self, t)?;
        }
        let state = new_state(OP, self, v, 4)?;
        let (q, k, v, g) = (self.contiguous()?, k.contiguous()?, v.contiguous()?, g.contiguous()?);
        let (initial, y) = (whole(initial)?, v.like(v.shape())?);
        let [qo, ko, vo, go, yo, so] = [&q, &k, &v, &g, &y, &state].map(Tensor::operand);
        let io = operand(initial.as_ref());
        let io =
            GlaScan::new(qo.view()?, ko.view()?, vo.view()?, go.view()?, yo.view_mut()?).initial(view(&io)?);
        q.device().gla_scan(io.state(so.view_mut()?))?;
        let y = y.record(OP, &[&q, &k, &v, &g], || {
            let ([q, k, v, g], initial) = ([&q, &k, &v, &g].map(Saved::new), save(initial.as_ref()));
            move |cx: &mut BackwardCtx<'_>| {
                let (dq, dk, dv, dg) = (cx.target(0)?, cx.target(1)?, cx.target(2)?, cx.target(3)?);
                let dy = cx.dy()?.contiguous()?;
                let (q, k) = (q.get(cx)?.operand(), k.get(cx)?.operand());
                let (v, g, initial) = (v.get(cx)?.operand(), g.get(cx)?.operand(), saved(cx, &initial)?);
                let dyo = dy.operand();
                let mut io = GlaScanBwd::new(dyo.view()?, q.view()?, k.view()?, v.view()?, g.view()?);
                io.initial = view(&initial)?;
                (io.dq, io.dk, io.dv, io.dg) = (out(&dq)?, out(&dk)?, out(&dv)?, out(&dg)?);
                Ok(dy.device().gla_scan_bwd(io)?)
            }
        });
        Ok((y, state))
    }

    /// The gated delta rule of these queries `[B, T, H, D]`: `S = a S (I - b k k^T) + b v k^T`, `y = S q` for each head. Decay `a` and writing
    /// strength `b` are `[B, T, H]`; otherwise as [`Tensor::gla_scan`]. Yang et al. (2025). Errors: as there.
    pub fn gated_delta_scan(
        &self,
        k: &Tensor,
        v: &Tensor,
        a: &Tensor,
        b: &Tensor,
        initial: Option<&Tensor>,
    ) -> Result<(Tensor, Tensor)> {
        const OP: &str = "gated_delta_scan";
        for t in [k, v, a, b].into_iter().chain(initial) {
            same_device(OP, self, t)?;
        }
        let state = new_state(OP, self, v, 4)?;
        let (q, k, v) = (self.contiguous()?, k.contiguous()?, v.contiguous()?);
        let (a, b, initial) = (a.contiguous()?, b.contiguous()?, whole(initial)?);
        let y = v.like(v.shape())?;
        let [qo, ko, vo, ao, bo] = [&q, &k, &v, &a, &b].map(Tensor::operand);
        let (yo, so, io) = (y.operand(), state.operand(), operand(initial.as_ref()));
        let first = view(&io)?;
        let io =
            GatedDeltaScan::new(qo.view()?, ko.view()?, vo.view()?, ao.view()?, bo.view()?, yo.view_mut()?);
        q.device().gated_delta_scan(io.initial(first).state(so.view_mut()?))?;
        let y = y.record(OP, &[&q, &k, &v, &a, &b], || {
            let ([q, k, v, a, b], initial) = ([&q, &k, &v, &a, &b].map(Saved::new), save(initial.as_ref()));
            move |cx: &mut BackwardCtx<'_>| {
                let (dq, dk, dv) = (cx.target(0)?, cx.target(1)?, cx.target(2)?);
                let (da, db) = (cx.target(3)?, cx.target(4)?);
                let dy = cx.dy()?.contiguous()?;
                let (q, k, v) = (q.get(cx)?.operand(), k.get(cx)?.operand(), v.get(cx)?.operand());
                let (a, b, initial) = (a.get(cx)?.operand(), b.get(cx)?.operand(), saved(cx, &initial)?);
                let dyo = dy.operand();
                let mut io = GatedDeltaScanBwd::new(
                    dyo.view()?,
                    q.view()?,
                    k.view()?,
                    v.view()?,
                    a.view()?,
                    b.view()?,
                );
                io.initial = view(&initial)?;
                (io.dq, io.dk, io.dv, io.da, io.db) = (out(&dq)?, out(&dk)?, out(&dv)?, out(&da)?, out(&db)?);
                Ok(dy.device().gated_delta_scan_bwd(io)?)
            }
        });
        Ok((y, state))
    }

    /// The selective state-space model of Mamba over these inputs `[B, T, E]`: `h = exp(dt a) h + dt b x`, `y = (c . h + d x) silu(z)` for
    /// each channel. Step sizes `dt` `[B, T, E]`, rates `a` `[E, N]`, `b` and `c` `[B, T, N]`; N at most 256. Gives `[B, T, E]` and the last
    /// state `[B, E, N]` (f32, f64 for f64 data), through which no gradient flows. Gu and Dao (2023). Errors: `Invalid` for shapes and dtypes
    /// that do not fit.
    pub fn selective_scan(
        &self,
        dt: &Tensor,
        a: &Tensor,
        b: &Tensor,
        c: &Tensor,
        options: &SelectiveScanOptions<'_>,
    ) -> Result<(Tensor, Tensor)> {
        const OP: &str = "selective_scan";
        let SelectiveScanOptions { d, z, initial, softplus } = *options;
        for t in [dt, a, b, c].into_iter().chain(d).chain(z).chain(initial) {
            same_device(OP, self, t)?;
        }
        let state = new_state(OP, c, self, 3)?;
        let (x, dt, a) = (self.contiguous()?, dt.contiguous()?, a.contiguous()?);
        let (b, c, initial) = (b.contiguous()?, c.contiguous()?, whole(initial)?);
        let (d, z, y) = (whole(d)?, whole(z)?, x.like(x.shape())?);
        let [xo, dto, ao, bo, co] = [&x, &dt, &a, &b, &c].map(Tensor::operand);
        let ([yo, so], [skip, zo, io]) =
            ([&y, &state].map(Tensor::operand), [&d, &z, &initial].map(|t| operand(t.as_ref())));
        {
            let mut args = SelectiveScan::new(
                xo.view()?,
                dto.view()?,
                ao.view()?,
                bo.view()?,
                co.view()?,
                yo.view_mut()?,
            );
            (args.d, args.z, args.initial) = (view(&skip)?, view(&zo)?, view(&io)?);
            x.device().selective_scan(softplus, args.state(so.view_mut()?))?;
        }
        let mut inputs = Inputs { list: vec![&x, &dt, &a, &b, &c] };
        let [id, iz] = [&d, &z].map(|t| inputs.push(t.as_ref()));
        let y = y.record(OP, &inputs.list, || {
            let [x, dt, a, b, c] = [&x, &dt, &a, &b, &c].map(Saved::new);
            let [d, z, initial] = [&d, &z, &initial].map(|t| save(t.as_ref()));
            move |cx: &mut BackwardCtx<'_>| {
                let (dx, ddt, da) = (cx.target(0)?, cx.target(1)?, cx.target(2)?);
                let (db, dc, dd, dz) = (cx.target(3)?, cx.target(4)?, cx.target(id)?, cx.target(iz)?);
                let dy = cx.dy()?.contiguous()?;
                let (x, dt, a) = (x.get(cx)?.operand(), dt.get(cx)?.operand(), a.get(cx)?.operand());
                let (b, c) = (b.get(cx)?.operand(), c.get(cx)?.operand());
                let (d, z, initial) = (saved(cx, &d)?, saved(cx, &z)?, saved(cx, &initial)?);
                let dyo = dy.operand();
                let mut io = SelectiveScanBwd::new(
                    dyo.view()?,
                    x.view()?,
                    dt.view()?,
                    a.view()?,
                    b.view()?,
                    c.view()?,
                );
                (io.d, io.z, io.initial) = (view(&d)?, view(&z)?, view(&initial)?);
                (io.dx, io.ddt, io.da) = (out(&dx)?, out(&ddt)?, out(&da)?);
                (io.db, io.dc, io.dd, io.dz) = (out(&db)?, out(&dc)?, out(&dd)?, out(&dz)?);
                Ok(dy.device().selective_scan_bwd(softplus, io)?)
            }
        });
        Ok((y, state))
    }

    /// The state-space model of Mamba-2 over these inputs `[B, T, H, P]`: `h = exp(dt a) h + dt x b^T`, `y = h c + d x` for each head. Step
    /// sizes `dt` `[B, T, H]`, rates `a` and shares `d` `[H]`, `b` and `c` `[B, T, G, N]` where G divides H; N at most 256. Gives
    /// `[B, T, H, P]` and the last state `[B, H, P, N]` (f32, f64 for f64 data), through which no gradient flows. Dao and Gu (2024). Errors:
    /// `Invalid` for shapes and dtypes that do not fit.
    pub fn ssd_scan(
        &self,
        dt: &Tensor,
        a: &Tensor,
        b: &Tensor,
        c: &Tensor,
        d: Option<&Tensor>,
        initial: Option<&Tensor>,
    ) -> Result<(Tensor, Tensor)> {
        const OP: &str = "ssd_scan";
        for t in [dt, a, b, c].into_iter().chain(d).chain(initial) {
            same_device(OP, self, t)?;
        }
        let state = new_state(OP, c, self, 4)?;
        let (x, dt, a) = (self.contiguous()?, dt.contiguous()?, a.contiguous()?);
        let (b, c, initial) = (b.contiguous()?, c.contiguous()?, whole(initial)?);
        let (d, y) = (whole(d)?, x.like(x.shape())?);
        let [xo, dto, ao, bo, co] = [&x, &dt, &a, &b, &c].map(Tensor::operand);
        let ([yo, so], [skip, io]) =
            ([&y, &state].map(Tensor::operand), [&d, &initial].map(|t| operand(t.as_ref())));
        {
            let mut args =
                SsdScan::new(xo.view()?, dto.view()?, ao.view()?, bo.view()?, co.view()?, yo.view_mut()?);
            (args.d, args.initial) = (view(&skip)?, view(&io)?);
            x.device().ssd_scan(args.state(so.view_mut()?))?;
        }
        let mut inputs = Inputs { list: vec![&x, &dt, &a, &b, &c] };
        let id = inputs.push(d.as_ref());
        let y = y.record(OP, &inputs.list, || {
            let [x, dt, a, b, c] = [&x, &dt, &a, &b, &c].map(Saved::new);
            let [d, initial] = [&d, &initial].map(|t| save(t.as_ref()));
            move |cx: &mut BackwardCtx<'_>| {
                let (dx, ddt, da) = (cx.target(0)?, cx.target(1)?, cx.target(2)?);
                let (db, dc, dd) = (cx.target(3)?, cx.target(4)?, cx.target(id)?);
                let dy = cx.dy()?.contiguous()?;
                let (x, dt, a) = (x.get(cx)?.operand(), dt.get(cx)?.operand(), a.get(cx)?.operand());
                let (b, c) = (b.get(cx)?.operand(), c.get(cx)?.operand());
                let (d, initial) = (saved(cx, &d)?, saved(cx, &initial)?);
                let dyo = dy.operand();
                let mut io =
                    SsdScanBwd::new(dyo.view()?, x.view()?, dt.view()?, a.view()?, b.view()?, c.view()?);
                (io.d, io.initial) = (view(&d)?, view(&initial)?);
                (io.dx, io.ddt, io.da) = (out(&dx)?, out(&ddt)?, out(&da)?);
                (io.db, io.dc, io.dd) = (out(&db)?, out(&dc)?, out(&dd)?);
                Ok(dy.device().ssd_scan_bwd(io)?)
            }
        });
        Ok((y, state))
    }
}
