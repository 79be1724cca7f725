//! Recurrent networks.

use trefoil::ops::{GruGates, Recurrence, RnnBwd, RnnCell, RnnFwd, RnnGrads, RnnOps, RnnWeights};
use trefoil_nn::{Device, Tensor};

use super::case::Case;
use super::ops::{precision, random, work};
use super::timing::Prepared;
use crate::error::Result;

/// A case ready to run; `None` if it is none of these operations.
pub(super) fn prepare(c: &Case, d: &Device) -> Result<Option<Prepared>> {
    match c.op() {
        "lstm" => sequence(c, d, RnnCell::Lstm).map(Some),
        "gru" => sequence(c, d, RnnCell::Gru).map(Some),
        _ => Ok(None),
    }
}

/// One layer over a whole sequence, from states of zero, as training runs it: with everything saved, all gradients taken.
fn sequence(c: &Case, d: &Device, cell: RnnCell) -> Result<Prepared> {
    let (t, b, i, h, dt) = (c.size("t")?, c.size("b")?, c.size("in")?, c.size("hidden")?, c.dtype()?);
    let (k, lstm) = (cell.gates(), cell == RnnCell::Lstm);
    let std = (h as f64).powf(-0.5);
    let (x, dy) = (random(d, dt, &[t, b, i], 1, 1.0)?, random(d, dt, &[t, b, h], 2, 1.0)?);
    let (w_ih, w_hh) = (random(d, dt, &[k * h, i], 3, std)?, random(d, dt, &[k * h, h], 4, std)?);
    let (b_ih, b_hh) = (random(d, dt, &[k * h], 5, std)?, random(d, dt, &[k * h], 6, std)?);
    let new = |shape: &[usize]| Tensor::empty(d, dt, shape);
    let (y, states, cells) = (new(&[t, b, h])?, new(&[t + 1, b, h])?, new(&[t + 1, b, h])?);
    let (h_t, c_t, gates) = (new(&[b, h])?, new(&[b, h])?, new(&[t, b, 4 * h])?);
    let saved = (0..4).map(|_| new(&[t, b, h])).collect::<trefoil_nn::Result<Vec<_>>>()?;
    let p = Recurrence::new().precision(precision(c));
    let forward = {
        let (d, x, w_ih, w_hh) = (d.clone(), x.clone(), w_ih.clone(), w_hh.clone());
        let (states, cells, gates, saved) = (states.clone(), cells.clone(), gates.clone(), saved.clone());
        move |_: usize| -> Result<()> {
            let (x, u, v) = (x.operand(), w_ih.operand(), w_hh.operand());
            let (bu, bv, y) = (b_ih.operand(), b_hh.operand(), y.operand());
            let weights = RnnWeights::new(u.view()?, v.view()?).biases(bu.view()?, bv.view()?);
            let (h, c, g) = (states.operand(), cells.operand(), gates.operand());
            let (h_t, c_t) = (h_t.operand(), c_t.operand());
            let each: Vec<_> = saved.iter().map(|s| s.operand()).collect();
            let mut io = RnnFwd::new(x.view()?, weights, y.view_mut()?);
            io.h = Some(h.view_mut()?);
            io.h_t = Some(h_t.view_mut()?);
            if lstm {
                (io.c, io.gates, io.c_t) = (Some(c.view_mut()?), Some(g.view_mut()?), Some(c_t.view_mut()?));
            } else {
                let view = |k: usize| each[k].view_mut().map(Some);
                io.gru = GruGates { r: view(0)?, z: view(1)?, n: view(2)?, u: view(3)? };
            }
            Ok(d.rnn(cell, &p, io)?)
        }
    };
    // The backward reads what one forward saved.
    forward(0)?;
    let size = dt.size();
    let flops = 2.0 * (t * b * k * h) as f64 * (i + h) as f64;
    let fwd = work((t * b * (i + 7 * h) + k * h * (i + h)) * size, flops, forward);
    let (dx, dwx, dwh) = (new(&[t, b, i])?, new(&[k * h, i])?, new(&[k * h, h])?);
    let (dbx, dbh) = (new(&[k * h])?, new(&[k * h])?);
    let d = d.clone();
    let bwd = work((t * b * (2 * i + 7 * h) + 2 * k * h * (i + h)) * size, 2.0 * flops, move |_| {
        let (g, x, u, v) = (dy.operand(), x.operand(), w_ih.operand(), w_hh.operand());
        let (h, c, a) = (states.operand(), cells.operand(), gates.operand());
        let each: Vec<_> = saved.iter().map(|s| s.operand()).collect();
        let (dx, dwx, dwh, dbx, dbh) =
            (dx.operand(), dwx.operand(), dwh.operand(), dbx.operand(), dbh.operand());
        let gru = if lstm {
            None
        } else {
            let view = |k: usize| each[k].view();
            Some(GruGates { r: view(0)?, z: view(1)?, n: view(2)?, u: view(3)? })
        };
        let io = RnnBwd {
            dy: Some(g.view()?),
            dh_t: None,
            dc_t: None,
            x: x.view()?,
            weights: RnnWeights::new(u.view()?, v.view()?),
            lengths: None,
            h: h.view()?,
            c: if lstm { Some(c.view()?) } else { None },
            gates: if lstm { Some(a.view()?) } else { None },
            gru,
            grads: RnnGrads {
                dx: Some(dx.grad(false)?),
                dw_ih: Some(dwx.grad(false)?),
                dw_hh: Some(dwh.grad(false)?),
                db_ih: Some(dbx.grad(false)?),
                db_hh: Some(dbh.grad(false)?),
                ..RnnGrads::default()
            },
        };
        Ok(d.rnn_bwd(cell, &p, io)?)
    });
    Ok(Prepared { fwd, bwd: Some(bwd) })
}
