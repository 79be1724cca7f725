//! Recurrent sequences.

use trefoil::ops::gemm::Precision;
use trefoil::ops::rnn::{
    ConvLstmBwd, ConvLstmFwd, GruCellBwd, GruCellFwd, GruGates, LstmCellBwd, LstmCellFwd, Recurrence, RnnBwd,
    RnnCell, RnnFwd, RnnGrads, RnnWeights,
};
use trefoil::{DType, GradMut};

use crate::core::autograd::{BackwardCtx, GradTarget, Saved, out, record};
use crate::core::error::{Result, invalid};
use crate::core::limits;
use crate::core::tensor::{Operand, Tensor, is_trial, same_device, same_dtype};
use crate::functional::operand::{Inputs, operand, save, saved, view, view_mut, whole};

/// Parameters of one recurrent layer and direction, k = [`RnnCell::gates`].
#[derive(Debug, Clone)]
pub struct RnnParams {
    /// `[k H, I]`.
    pub w_ih: Tensor,
    /// `[k H, H]`.
    pub w_hh: Tensor,
    /// `[k H]`.
    pub b_ih: Option<Tensor>,
    /// `[k H]`.
    pub b_hh: Option<Tensor>,
}

/// Hidden state `[B, H]` of a recurrent layer and, for an LSTM, its cell state.
#[derive(Debug, Clone)]
pub struct RnnState {
    /// Hidden state.
    pub h: Tensor,
    /// Cell state of an LSTM.
    pub c: Option<Tensor>,
}

impl RnnState {
    /// Cut from the graph.
    pub fn detach(&self) -> RnnState {
        RnnState { h: self.h.detach(), c: self.c.as_ref().map(Tensor::detach) }
    }
}

impl Tensor {
    /// Runs a recurrence over this sequence `[T, B, I]` (`[B, T, I]` with `batch_first`): all hidden states `[T, B, H]` (`[B, T, H]`) and
    /// the last state. States start from `initial` or from zeros. `lengths`, i32 `[B]`: steps at and behind a row's length leave its state
    /// as it is and give 0. Oracle `torch.nn.LSTM`, `GRU`, `RNN` with one layer. Errors: `Invalid` for shapes and dtypes that do not fit.
    pub fn rnn(
        &self,
        cell: RnnCell,
        p: &Recurrence,
        weights: &RnnParams,
        initial: Option<&RnnState>,
        lengths: Option<&Tensor>,
    ) -> Result<(Tensor, RnnState)> {
        const OP: &str = "rnn";
        same_device(OP, self, &weights.w_ih)?;
        same_dtype(OP, self, &weights.w_ih)?;
        let (&[outer, inner, _], &[_, hidden]) = (self.shape(), weights.w_hh.shape()) else {
            let got = format!("shapes {:?} and {:?}", self.shape(), weights.w_hh.shape());
            return Err(invalid(OP, "x", "a sequence of rank 3 and recurrent weights of rank 2", got));
        };
        let (steps, batch) = if p.batch_first { (inner, outer) } else { (outer, inner) };
        check_steps(OP, steps)?;
        let lstm = cell == RnnCell::Lstm;
        let x = self.contiguous()?;
        let (w_ih, w_hh) = (weights.w_ih.contiguous()?, weights.w_hh.contiguous()?);
        let (b_ih, b_hh) = (whole(weights.b_ih.as_ref())?, whole(weights.b_hh.as_ref())?);
        let (h_0, c_0) = (whole(initial.map(|s| &s.h))?, whole(initial.and_then(|s| s.c.as_ref()))?);
        let lengths = whole(lengths)?;
        for t in [&b_ih, &b_hh, &h_0, &c_0, &lengths].into_iter().flatten() {
            same_device(OP, self, t)?;
        }

        let mut inputs = Inputs::default();
        let [ix, iw, ih] = [&x, &w_ih, &w_hh].map(|t| inputs.push(Some(t)));
        let [ib, ibh, i0, ic] = [&b_ih, &b_hh, &h_0, &c_0].map(|t| inputs.push(t.as_ref()));
        let tracked = inputs.tracked();
        let state = [batch, hidden];
        let new = |on: bool, shape: &[usize]| if on { self.like(shape).map(Some) } else { Ok(None) };
        let y = self.like(&[outer, inner, hidden])?;
        let h_t = self.like(&state)?;
        let c_t = new(lstm, &state)?;
        let all = [steps + 1, batch, hidden];
        let (hs, cs) = (new(tracked, &all)?, new(tracked && lstm, &all)?);
        let gates = new(tracked && lstm, &[steps, batch, 4 * hidden])?;
        let mut gru = vec![];
        for _ in 0..4 {
            gru.push(new(tracked && cell.is_gru(), &[steps, batch, hidden])?);
        }
        // A trial checks operands: those of a few steps fit like those of all of them.
        let (x_run, y_run) = if is_trial(self.device()) && !tracked {
            let few = steps.min(2);
            let [outer, inner] = if p.batch_first { [batch, few] } else { [few, batch] };
            (self.like(&[outer, inner, self.shape()[2]])?, self.like(&[outer, inner, hidden])?)
        } else {
            (x.clone(), y.clone())
        };
        {
            let (xo, yo, ho) = (x_run.operand(), y_run.operand(), h_t.operand());
            let (wo, who) = (w_ih.operand(), w_hh.operand());
            let [bo, bho, h0, c0] = [&b_ih, &b_hh, &h_0, &c_0].map(|t| operand(t.as_ref()));
            let [cto, hso, cso, go, lo] = [&c_t, &hs, &cs, &gates, &lengths].map(|t| operand(t.as_ref()));
            let gru: Vec<Option<Operand>> = gru.iter().map(|t| operand(t.as_ref())).collect();
            let mut io = RnnFwd::new(xo.view()?, params(&wo, &who, &bo, &bho)?, yo.view_mut()?);
            (io.h_0, io.c_0, io.lengths) = (view(&h0)?, view(&c0)?, view(&lo)?);
            (io.h_t, io.c_t) = (Some(ho.view_mut()?), view_mut(&cto)?);
            (io.h, io.c, io.gates) = (view_mut(&hso)?, view_mut(&cso)?, view_mut(&go)?);
            if let [r, z, n, u] = gru.as_slice() {
                io.gru = GruGates::new(view_mut(r)?, view_mut(z)?, view_mut(n)?, view_mut(u)?);
            }
            self.device().rnn(cell, p, io)?;
        }

        let outputs: Vec<Tensor> = [Some(y), Some(h_t), c_t].into_iter().flatten().collect();
        let p = *p;
        let outputs = record(OP, &inputs.list, outputs, || {
            let [x, w_ih, w_hh] = [&x, &w_ih, &w_hh].map(Saved::new);
            let [hs, cs, gates, lengths] = [&hs, &cs, &gates, &lengths].map(|t| save(t.as_ref()));
            let gru: Vec<Option<Saved>> = gru.iter().map(|t| save(t.as_ref())).collect();
            move |cx: &mut BackwardCtx<'_>| {
                let (dx, dw_ih, dw_hh) = (cx.target(ix)?, cx.target(iw)?, cx.target(ih)?);
                let (db_ih, db_hh) = (cx.target(ib)?, cx.target(ibh)?);
                let (dh_0, dc_0) = (cx.target(i0)?, cx.target(ic)?);
                let upstream = |i: usize| cx.upstream(i).map(Tensor::contiguous).transpose();
                let (dy, dh_t, dc_t) = (upstream(0)?, upstream(1)?, upstream(2)?);
                let [dyo, dho, dco] = [&dy, &dh_t, &dc_t].map(|t| operand(t.as_ref()));
                let (xo, wo, who) = (x.get(cx)?, w_ih.get(cx)?.operand(), w_hh.get(cx)?.operand());
                let device = xo.device().clone();
                let xo = xo.operand();
                let Some(h) = saved(cx, &hs)? else { return Ok(()) };
                let (c, gates, lengths) = (saved(cx, &cs)?, saved(cx, &gates)?, saved(cx, &lengths)?);
                let gru = gru.iter().map(|s| saved(cx, s)).collect::<Result<Vec<_>>>()?;
                let gru = match gru.as_slice() {
                    [Some(r), Some(z), Some(n), Some(u)] => {
                        Some(GruGates::new(r.view()?, z.view()?, n.view()?, u.view()?))
                    }
                    _ => None,
                };
                let io = RnnBwd::new(xo.view()?, RnnWeights::new(wo.view()?, who.view()?), h.view()?)
                    .dy(view(&dyo)?)
                    .dh_t(view(&dho)?)
                    .dc_t(view(&dco)?)
                    .lengths(view(&lengths)?)
                    .c(view(&c)?)
                    .gates(view(&gates)?)
                    .gru(gru)
                    .grads(
                        RnnGrads::new()
                            .dx(out(&dx)?)
                            .dh_0(out(&dh_0)?)
                            .dc_0(out(&dc_0)?)
                            .dw_ih(out(&dw_ih)?)
                            .dw_hh(out(&dw_hh)?)
                            .db_ih(out(&db_ih)?)
                            .db_hh(out(&db_hh)?),
                    );
                Ok(device.rnn_bwd(cell, &p, io)?)
            }
        });
        state_of(outputs)
    }

    /// Convolutional LSTM (Shi et al., 2015) over `[T, N, Ci, H, W]`: all hidden states `[T, N, Hc, H, W]` and the last state `[N, Hc, H,
    /// W]`. Both convolutions keep the size of the image. Errors: `Invalid` for even kernel sizes and shapes that do not fit.
    pub fn conv_lstm(
        &self,
        weights: &ConvLstmParams,
        initial: Option<&RnnState>,
    ) -> Result<(Tensor, RnnState)> {
        const OP: &str = "conv_lstm";
        same_device(OP, self, &weights.w_ih)?;
        same_dtype(OP, self, &weights.w_ih)?;
        let (&[steps, n, _, h, w], &[_, hidden, ..]) = (self.shape(), weights.w_hh.shape()) else {
            let got = format!("shapes {:?} and {:?}", self.shape(), weights.w_hh.shape());
            return Err(invalid(OP, "x", "images [T, N, C, H, W] and recurrent weights of rank 4", got));
        };
        check_steps(OP, steps)?;
        let state = [n, hidden, h, w];
        let x = self.contiguous()?;
        let (wx, wh) = (weights.w_ih.contiguous()?, weights.w_hh.contiguous()?);
        let (b, p) = (whole(weights.bias.as_ref())?, whole(weights.peephole.as_ref())?);
        let zeros = || Tensor::zeros(self.device(), self.dtype(), &state);
        let (h_0, c_0) = match initial {
            Some(s) => (s.h.contiguous()?, s.c.as_ref().map_or_else(zeros, Tensor::contiguous)?),
            None => (zeros()?, zeros()?),
        };
        for t in [Some(&h_0), Some(&c_0), b.as_ref(), p.as_ref()].into_iter().flatten() {
            same_device(OP, self, t)?;
        }
        let mut inputs = Inputs::default();
        let at = [Some(&x), Some(&wx), Some(&wh), Some(&h_0), Some(&c_0), b.as_ref(), p.as_ref()]
            .map(|t| inputs.push(t));
        let tracked = inputs.tracked();
        let y = self.like(&[steps, n, hidden, h, w])?;
        let (h_t, c_t) = (self.like(&state)?, self.like(&state)?);
        let new = |shape: &[usize]| if tracked { self.like(shape).map(Some) } else { Ok(None) };
        let all = [steps + 1, n, hidden, h, w];
        let (hs, cs, gates) = (new(&all)?, new(&all)?, new(&[steps, n, 4 * hidden, h, w])?);
        let (x_run, y_run) = if is_trial(self.device()) && !tracked {
            let few = |t: &Tensor| self.like(&[&[steps.min(2)], &t.shape()[1..]].concat());
            (few(&x)?, few(&y)?)
        } else {
            (x.clone(), y.clone())
        };
        {
            let [xo, wxo, who, h0, c0] = [&x_run, &wx, &wh, &h_0, &c_0].map(Tensor::operand);
            let [yo, hto, cto] = [&y_run, &h_t, &c_t].map(Tensor::operand);
            let [bo, po, hso, cso, go] = [&b, &p, &hs, &cs, &gates].map(|t| operand(t.as_ref()));
            let io = ConvLstmFwd::new(
                xo.view()?,
                h0.view()?,
                c0.view()?,
                wxo.view()?,
                who.view()?,
                yo.view_mut()?,
            )
            .b(view(&bo)?)
            .p(view(&po)?)
            .h_t(hto.view_mut()?)
            .c_t(cto.view_mut()?)
            .h(view_mut(&hso)?)
            .c(view_mut(&cso)?)
            .gates(view_mut(&go)?);
            self.device().conv_lstm(Precision::Ieee, io)?;
        }
        let outputs = record(OP, &inputs.list, vec![y, h_t, c_t], || {
            let [x, wx, wh] = [&x, &wx, &wh].map(Saved::new);
            let [p, hs, cs, gates] = [&p, &hs, &cs, &gates].map(|t| save(t.as_ref()));
            move |cx: &mut BackwardCtx<'_>| {
                let [mut dx, mut dwx, mut dwh, mut dh_0, mut dc_0, mut db, mut dp] = [const { None }; 7];
                let targets = [&mut dx, &mut dwx, &mut dwh, &mut dh_0, &mut dc_0, &mut db, &mut dp];
                for (slot, &i) in targets.into_iter().zip(&at) {
                    *slot = cx.target(i)?;
                }
                let upstream = |i: usize| cx.upstream(i).map(Tensor::contiguous).transpose();
                let (dy, dh_t, dc_t) = (upstream(0)?, upstream(1)?, upstream(2)?);
                let [dyo, dho, dco] = [&dy, &dh_t, &dc_t].map(|t| operand(t.as_ref()));
                let (x, wx, wh) = (x.get(cx)?, wx.get(cx)?.operand(), wh.get(cx)?.operand());
                let (device, x) = (x.device().clone(), x.operand());
                let (Some(h), Some(c), Some(gates)) = (saved(cx, &hs)?, saved(cx, &cs)?, saved(cx, &gates)?)
                else {
                    return Ok(());
                };
                let p = saved(cx, &p)?;
                let io =
                    ConvLstmBwd::new(x.view()?, wx.view()?, wh.view()?, gates.view()?, c.view()?, h.view()?)
                        .dy(view(&dyo)?)
                        .dh_t(view(&dho)?)
                        .dc_t(view(&dco)?)
                        .p(view(&p)?)
                        .dx(out(&dx)?)
                        .dh_0(out(&dh_0)?)
                        .dc_0(out(&dc_0)?)
                        .dwx(out(&dwx)?)
                        .dwh(out(&dwh)?)
                        .db(out(&db)?)
                        .dp(out(&dp)?);
                Ok(device.conv_lstm_bwd(Precision::Ieee, io)?)
            }
        });
        state_of(outputs)
    }
}

/// Error for more steps than [`limits::STEPS`].
fn check_steps(op: &'static str, steps: usize) -> Result<()> {
    if steps <= limits::STEPS {
        return Ok(());
    }
    Err(invalid(op, "x", format!("at most {} steps", limits::STEPS), format!("{steps}")))
}

/// The steps of a loop over time that are run: all, or on trial as many as show the shapes. Errors: more than [`limits::STEPS`].
pub(crate) fn steps_to_run(op: &'static str, x: &Tensor, steps: usize) -> Result<usize> {
    check_steps(op, steps)?;
    Ok(if is_trial(x.device()) { steps.min(2) } else { steps })
}

/// Parameters of a convolutional LSTM with F filters; gates in the order i, f, g, o.
#[derive(Debug, Clone)]
pub struct ConvLstmParams {
    /// `[4 F, C, kh, kw]`.
    pub w_ih: Tensor,
    /// `[4 F, F, kh, kw]`.
    pub w_hh: Tensor,
    /// `[4 F]`.
    pub bias: Option<Tensor>,
    /// Weights of the cell state in i, f and o: `[3, F, H, W]` or `[3, F, 1, 1]`.
    pub peephole: Option<Tensor>,
}

fn params<'a>(
    w_ih: &'a Operand,
    w_hh: &'a Operand,
    b_ih: &'a Option<Operand>,
    b_hh: &'a Option<Operand>,
) -> Result<RnnWeights<'a>> {
    let mut w = RnnWeights::new(w_ih.view()?, w_hh.view()?);
    (w.b_ih, w.b_hh) = (view(b_ih)?, view(b_hh)?);
    Ok(w)
}

/// Output and state from the list of an operation's results.
fn state_of(outputs: Vec<Tensor>) -> Result<(Tensor, RnnState)> {
    let mut all = outputs.into_iter();
    match (all.next(), all.next()) {
        (Some(y), Some(h)) => Ok((y, RnnState { h, c: all.next() })),
        _ => Err(invalid("rnn", "outputs", "an output and a state", "fewer")),
    }
}

/// Memory for a gradient that the backend computes but nobody wants, shaped as `like`.
fn scratch(target: &Option<GradTarget>, like: &Tensor) -> Result<Option<Operand>> {
    match target {
        Some(_) => Ok(None),
        None => Ok(Some(like.like(like.shape())?.operand())),
    }
}

/// The target, or the memory beside it.
fn either<'a>(target: &'a Option<GradTarget>, spare: &'a Option<Operand>) -> Result<Option<GradMut<'a>>> {
    match (target, spare) {
        (Some(t), _) => t.out().map(Some),
        (None, spare) => spare.as_ref().map(|o| o.grad(false)).transpose(),
    }
}

impl Tensor {
    /// The pointwise part of a step of an LSTM: gates before their activation, which are this tensor `[B, 4 H]` (input, forget, cell,
    /// output), and the cell state `[B, H]` give the next hidden and cell states, floats. Source `nn.LSTMCell` behind its two products.
    /// Errors: `Invalid` for shapes and dtypes that do not fit.
    pub fn lstm_cell(&self, c: &Tensor) -> Result<(Tensor, Tensor)> {
        const OP: &str = "lstm_cell";
        same_device(OP, self, c)?;
        let (z, c) = (self.contiguous()?, c.contiguous()?);
        let tracked = Inputs { list: vec![&z, &c] }.tracked();
        let (h_next, c_next) = (c.like(c.shape())?, c.like(c.shape())?);
        let gates = if tracked { Some(z.like(z.shape())?) } else { None };
        let [zo, co, ho, no] = [&z, &c, &h_next, &c_next].map(Tensor::operand);
        let go = operand(gates.as_ref());
        let mut io = LstmCellFwd::new(zo.view()?, co.view()?, ho.view_mut()?, no.view_mut()?);
        io.gates = view_mut(&go)?;
        z.device().lstm_cell(io)?;
        let next = c_next.clone();
        let mut outputs = record(OP, &[&z, &c], vec![h_next, c_next], || {
            let (gates, c, next) = (save(gates.as_ref()), Saved::new(&c), Saved::new(&next));
            move |cx: &mut BackwardCtx<'_>| {
                let (dz, dc) = (cx.target(0)?, cx.target(1)?);
                let Some(gates) = &gates else { return Ok(()) };
                let [dh, dn] = [0, 1].map(|i| cx.upstream(i).map(Tensor::contiguous).transpose());
                let (dh, dn) = (dh?, dn?);
                let (c, next) = (c.get(cx)?.clone(), next.get(cx)?.operand());
                let spare = scratch(&dz, gates.get(cx)?)?;
                let (co, go) = (c.operand(), gates.get(cx)?.operand());
                let Some(into) = either(&dz, &spare)? else { return Ok(()) };
                let (ho, no) = (operand(dh.as_ref()), operand(dn.as_ref()));
                let mut io = LstmCellBwd::new(go.view()?, co.view()?, next.view()?, into);
                (io.dh_next, io.dc_next, io.dc) = (view(&ho)?, view(&no)?, out(&dc)?);
                Ok(c.device().lstm_cell_bwd(io)?)
            }
        });
        match (outputs.pop(), outputs.pop()) {
            (Some(c), Some(h)) => Ok((h, c)),
            _ => Err(invalid(OP, "outputs", "two states", "fewer")),
        }
    }

    /// The pointwise part of a step of a GRU: the input's products, which are this tensor `[B, 3 H]` (reset, update, candidate), those of
    /// the hidden state `u` `[B, 3 H]`, and that state `h` `[B, H]` give the next one, floats. Source `nn.GRUCell` behind its two products.
    /// Errors: `Invalid` for shapes and dtypes that do not fit.
    pub fn gru_cell(&self, u: &Tensor, h: &Tensor) -> Result<Tensor> {
        const OP: &str = "gru_cell";
        same_device(OP, self, u)?;
        same_device(OP, self, h)?;
        let (a, u, h) = (self.contiguous()?, u.contiguous()?, h.contiguous()?);
        let tracked = Inputs { list: vec![&a, &u, &h] }.tracked();
        let gate = || if tracked { h.like(h.shape()).map(Some) } else { Ok(None) };
        let gates = [gate()?, gate()?, gate()?];
        let y = h.like(h.shape())?;
        let [ao, uo, ho, yo] = [&a, &u, &h, &y].map(Tensor::operand);
        let [r, z, n] = [0, 1, 2].map(|i| operand(gates[i].as_ref()));
        let mut io = GruCellFwd::new(ao.view()?, uo.view()?, ho.view()?, yo.view_mut()?);
        (io.r, io.z, io.n) = (view_mut(&r)?, view_mut(&z)?, view_mut(&n)?);
        y.device().gru_cell(io)?;
        Ok(y.record(OP, &[&a, &u, &h], || {
            let gates: Vec<Saved> = gates.iter().flatten().map(Saved::new).collect();
            let (u, h) = (Saved::new(&u), Saved::new(&h));
            move |cx: &mut BackwardCtx<'_>| {
                let targets = [cx.target(0)?, cx.target(1)?];
                let dh = cx.target(2)?;
                let dy = cx.dy()?.contiguous()?;
                let gates = gates.iter().map(|g| Ok(g.get(cx)?.operand())).collect::<Result<Vec<_>>>()?;
                let [r, z, n] = gates.as_slice() else { return Ok(()) };
                let (u, h) = (u.get(cx)?, h.get(cx)?);
                let width = h.shape()[1];
                let last = u.narrow(1, 2 * width, width)?.operand();
                let [sa, su] = [&targets[0], &targets[1]].map(|t| scratch(t, u));
                let (sa, su) = (sa?, su?);
                let (ho, dyo) = (h.operand(), dy.operand());
                let saved = GruGates::new(r.view()?, z.view()?, n.view()?, last.view()?);
                let (Some(da), Some(du)) = (either(&targets[0], &sa)?, either(&targets[1], &su)?) else {
                    return Ok(());
                };
                let mut io = GruCellBwd::new(dyo.view()?, saved, ho.view()?, da, du);
                io.dh = out(&dh)?;
                Ok(dy.device().gru_cell_bwd(io)?)
            }
        }))
    }
}

/// Lengths of sequences as recurrent layers take them, i32 `[B]`. Errors: `Invalid` for a length outside of 1 to `steps`.
pub fn sequence_lengths(
    device: &crate::core::tensor::Device,
    lengths: &[usize],
    steps: usize,
) -> Result<Tensor> {
    let host = lengths
        .iter()
        .map(|&n| i32::try_from(n).ok().filter(|_| n >= 1 && n <= steps))
        .collect::<Option<Vec<i32>>>()
        .ok_or_else(|| {
            invalid("lengths", "lengths", format!("lengths from 1 to {steps}"), format!("{lengths:?}"))
        })?;
    Tensor::from_slice(device, &host, &[host.len()])
}

/// Lengths that a layer was given: integers `[B]`, as i32.
pub(crate) fn check_lengths(op: &'static str, lengths: &Tensor, batch: usize) -> Result<Tensor> {
    if lengths.shape() != [batch] || !matches!(lengths.dtype(), DType::I32 | DType::I64) {
        let got = format!("{} {:?}", lengths.dtype(), lengths.shape());
        return Err(invalid(op, "lengths", format!("integers of shape [{batch}]"), got));
    }
    lengths.to_dtype(DType::I32)
}
