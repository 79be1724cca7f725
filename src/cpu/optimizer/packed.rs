//! Optimizer steps with moments in 8-bit codes or bf16.

use crate::buffer::View;
use crate::cpu::optimizer::{bias, store_all, update};
use crate::cpu::random::Words;
use crate::cpu::scratch::*;
use crate::cpu::{Kernels, gather, gather_f64, store, store_f64};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::optimizer::*;
use crate::ops::random::Rng;

/// The moments that a slot stores.
fn decode(op: &'static str, p: &PackedSlot<'_>) -> Result<(Vec<f64>, Vec<f64>)> {
    let Some(scales) = &p.scales else {
        return Ok((gather_f64(op, p.m.as_view())?, gather_f64(op, p.v.as_view())?));
    };
    let scales = gather_f64(op, scales.as_view())?;
    let (a, b) = scales.split_at(scales.len() / 2);
    let bytes = |v: View<'_>| gather::<u8>(op, v);
    let m = bytes(p.m.as_view())?;
    let m = m.iter().enumerate().map(|(i, &c)| f64::from(c as i8) / 127.0 * a[i / PACKED_BLOCK]).try_vec()?;
    let v = bytes(p.v.as_view())?;
    let v =
        v.iter().enumerate().map(|(i, &c)| (f64::from(c) / 255.0 * b[i / PACKED_BLOCK]).powi(2)).try_vec()?;
    Ok((m, v))
}

/// Stores moments in the slot's form.
fn encode(
    op: &'static str,
    p: &PackedSlot<'_>,
    m: &[f64],
    v: &[f64],
    mut draw: Option<&mut Words>,
) -> Result<()> {
    let Some(scales) = &p.scales else {
        store_f64(op, &p.m, m)?;
        let Some(draw) = draw else { return store_f64(op, &p.v, v) };
        let rounded = v.iter().enumerate().map(|(i, &x)| {
            let bits = (x as f32).to_bits();
            if !(x as f32).is_finite() {
                return x;
            }
            let up = (draw.word(i) >> 16) < (bits & 0xffff);
            f64::from(f32::from_bits(((bits >> 16) + u32::from(up)) << 16))
        });
        return store_f64(op, &p.v, &rounded.try_vec()?);
    };
    let roots: Vec<f64> = v.iter().map(|x| x.sqrt()).try_vec()?;
    let largest = |values: &[f64]| -> Result<Vec<f64>> {
        let most =
            |b: &[f64]| b.iter().fold(0.0f64, |m, x| if x.abs() > m || x.is_nan() { x.abs() } else { m });
        values.chunks(PACKED_BLOCK).map(most).try_vec()
    };
    let (mut a, b) = (largest(m)?, largest(&roots)?);
    // A scale that is 0 or not finite leaves no codes.
    let share = |x: f64, most: f64| if most > 0.0 && most.is_finite() { x / most } else { 0.0 };
    let cm: Vec<u8> = (0..m.len())
        .map(|i| (share(m[i], a[i / PACKED_BLOCK]) * 127.0).round_ties_even() as i8 as u8)
        .try_vec()?;
    let mut cv = filled(v.len(), 0u8)?;
    for (i, c) in cv.iter_mut().enumerate() {
        let x = share(roots[i], b[i / PACKED_BLOCK]) * 255.0;
        let code = match &mut draw {
            Some(d) => x.floor() + f64::from(u8::from(d.unit(DType::F32, i) < x - x.floor())),
            None => x.round_ties_even(),
        };
        *c = if x > 0.0 { code.clamp(1.0, 255.0) as u8 } else { 0 };
    }
    store(op, &p.m, &cm)?;
    store(op, &p.v, &cv)?;
    a.try_extend(b)?;
    store_f64(op, scales, &a)
}

impl PackedOptimizerOps for Kernels {
    fn optimizer_step_packed(
        &self,
        rule: &OptimRule,
        step: &Step<'_>,
        rng: Option<Rng<'_>>,
        params: &mut [PackedSlot<'_>],
    ) -> Result<()> {
        const OP: &str = "optimizer_step_packed";
        check_packed(rule, step, rng.as_ref(), params)?;
        let _timed = self.count("optimizer_step_packed");
        let Some(now) = self.now(OP, step, params.first().map(|p| p.w.dtype()))? else { return Ok(()) };
        let factors = (1.0, bias(rule, now.t));
        for (j, p) in params.iter().filter(|p| p.w.numel() > 0).enumerate() {
            let words = rng.map(|r| Words::new(OP, &r.at(r.stream.wrapping_add(j as u64), r.offset)));
            let mut draw = words.transpose()?;
            let mut w = gather_f64(OP, p.w.as_view())?;
            let g = gather_f64(OP, p.g)?;
            let (mut m, mut v) = decode(OP, p)?;
            for i in 0..w.len() {
                let mut s = [m[i], v[i], 0.0, 0.0];
                w[i] = update(rule, w[i], g[i] * now.unscale, &mut s, now.lr, now.t, factors);
                [m[i], v[i], ..] = s;
            }
            store_all(OP, &w, &p.w, p.copy.as_ref())?;
            encode(OP, p, &m, &v, draw.as_mut())?;
        }
        Ok(())
    }
}
