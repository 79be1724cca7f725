//! Unary, binary and ternary arithmetic in f64 (floats) and wrapping i64 (integers).

mod formulas;
mod vectorized;

use self::formulas::*;
pub(in crate::cpu) use self::formulas::{maximum, minimum};
use self::vectorized::{slopes, vector_binary, vector_unary};
use crate::buffer::{GradMut, View, ViewMut};
use crate::cpu::scratch::*;
use crate::cpu::values::{Values, change, copy, map1, map2};
use crate::cpu::vector::{self, NO_F32, Narrow, with_narrow};
use crate::cpu::{
    HostElement, Kernels, gather, gather_f64, offsets, store, store_f64, store_grad, with_dtype,
};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::check;
use crate::ops::elementwise::*;

/// Elements as i64.
fn gather_i64(op: &'static str, v: View<'_>) -> Result<Vec<i64>> {
    Ok(match v.dtype() {
        DType::I64 => gather::<i64>(op, v)?,
        DType::I32 => gather::<i32>(op, v)?.into_iter().map(i64::from).try_vec()?,
        _ => gather::<u8>(op, v)?.into_iter().map(i64::from).try_vec()?,
    })
}

/// Stores i64 values, wrapped to the view's integer type.
fn store_i64(op: &'static str, v: &ViewMut<'_>, data: &[i64]) -> Result<()> {
    match v.dtype() {
        DType::I64 => store(op, v, data),
        DType::I32 => store(op, v, &data.iter().map(|&x| x as i32).try_vec()?),
        _ => store(op, v, &data.iter().map(|&x| x as u8).try_vec()?),
    }
}

/// Sums values of a full shape over the axes along which a gradient's shape was repeated, and stores them.
fn store_summed(op: &'static str, grad: &GradMut<'_>, shape: &[usize], full: &[f64]) -> Result<()> {
    let small = crate::layout::Layout::contiguous(grad.out.shape());
    let repeated = check::layout(op, "grad", small.and_then(|l| l.broadcast_to(shape)))?;
    let mut sums = filled(grad.out.numel(), 0.0)?;
    offsets(&repeated).zip(full).for_each(|(at, x)| sums[at] += x);
    store_grad(op, grad, &sums)
}

/// Gives elements from one on as f64.
type Reader<'a> = Box<dyn Fn(usize, &mut [f64]) + Sync + 'a>;

/// What one value becomes, before its rounding to `to`; integers go through i64 so that no digit is lost.
fn widened_to<T: HostElement>(x: T, from: DType, to: DType) -> f64 {
    let as_i64 = |x: T| bytemuck::bytes_of(&x).try_into().map_or(0, i64::from_ne_bytes);
    match (from, to) {
        (DType::I64, DType::F32) => f64::from(as_i64(x) as f32),
        (DType::I64, DType::F16 | DType::Bf16) => {
            // f64 rounded to odd, so that the second rounding is right.
            let (i, y) = (as_i64(x), as_i64(x) as f64);
            let low = i128::from(i).abs() - (y.abs() as i128);
            let step = match low.signum() {
                0 => 0,
                s if y.to_bits() & 1 == 0 => s as i64,
                _ => 0,
            };
            f64::from_bits(y.to_bits().wrapping_add_signed(step))
        }
        (DType::I64 | DType::I32, DType::I32 | DType::U8) => {
            let i = if from == DType::I64 { as_i64(x) } else { x.to_f64() as i64 };
            if to == DType::I32 { f64::from(i as i32) } else { f64::from(i as u8) }
        }
        _ => x.to_f64(),
    }
}

impl ElementwiseOps for Kernels {
    fn unary(&self, op: Unary, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "unary";
        check_unary(op, &x, &y)?;
        let _timed = self.count("unary");
        let dtype = x.dtype();
        if !dtype.is_float() {
            let out: Vec<i64> = gather_i64(OP, x)?.into_iter().map(|x| int_unary(op, x)).try_vec()?;
            return store_i64(OP, &y, &out);
        }
        if op.is_predicate() {
            let out = gather_f64(OP, x)?.into_iter().map(|x| unary_value(op, x, dtype)).try_vec()?;
            return store_f64(OP, &y, &out);
        }
        let f = vector_unary(op);
        match (self.in_f32_unless_few(OP, dtype, f.is_none().then_some(NO_F32), x.numel())?, f) {
            (true, Some(f)) => vector::map1(OP, x, &y.into(), f),
            _ => map1(OP, x, &y.into(), |x| unary_value(op, x, dtype)),
        }
    }

    fn unary_bwd(&self, op: Unary, dy: View<'_>, x: View<'_>, dx: GradMut<'_>) -> Result<()> {
        const OP: &str = "unary_bwd";
        check_unary_bwd(op, &dy, &x, &dx)?;
        let _timed = self.count("unary_bwd");
        map2(OP, [dy, x], &dx, |dy, x| unary_gradient(op, dy, x))
    }

    fn binary(&self, op: Binary, a: View<'_>, b: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "binary";
        check_binary(op, &a, &b, &y)?;
        let _timed = self.count("binary");
        let dtype = a.dtype();
        let (a, b) = (a.broadcast_to(y.shape())?, b.broadcast_to(y.shape())?);
        if dtype.is_float() {
            if a.dtype() == b.dtype() && a.dtype() == y.dtype() {
                let f = vector_binary(op);
                return match (self.in_f32(OP, dtype, f.is_none().then_some(NO_F32))?, f) {
                    (true, Some(f)) => vector::map2(OP, [a, b], &y.into(), f),
                    _ => map2(OP, [a, b], &y.into(), |a, b| binary_value(op, a, b, dtype)),
                };
            }
            let (a, b) = (gather_f64(OP, a)?, gather_f64(OP, b)?);
            let out = a.into_iter().zip(b).map(|(a, b)| binary_value(op, a, b, dtype)).try_vec()?;
            return store_f64(OP, &y, &out);
        }
        let (a, b) = (gather_i64(OP, a)?, gather_i64(OP, b)?);
        let bits = 8 * dtype.size() as i64;
        let out: Vec<Option<i64>> =
            a.into_iter().zip(b).map(|(a, b)| int_binary(op, a, b, bits)).try_vec()?;
        if out.contains(&None) {
            self.flag_index_error(OP);
        }
        store_i64(OP, &y, &out.into_iter().map(Option::unwrap_or_default).try_vec()?)
    }

    fn binary_bwd(&self, op: Binary, io: BinaryBwd<'_>) -> Result<()> {
        const OP: &str = "binary_bwd";
        check_binary_bwd(op, &io)?;
        let _timed = self.count("binary_bwd");
        let slopes = slopes(op);
        let why_not = if slopes.is_none() { Some(NO_F32) } else { vectorized::shared_block(&io)? };
        if let (true, Some(slopes)) =
            (self.in_f32_unless_few(OP, io.dy.dtype(), why_not, io.dy.numel())?, slopes)
        {
            return vectorized::binary_bwd(slopes, &io);
        }
        let shape = io.dy.shape();
        let [a, b] = [io.a.broadcast_to(shape)?, io.b.broadcast_to(shape)?];
        let (dy, a, b) = (gather_f64(OP, io.dy)?, gather_f64(OP, a)?, gather_f64(OP, b)?);
        let all: Vec<[f64; 2]> = (0..dy.len()).map(|i| binary_gradient(op, dy[i], a[i], b[i])).try_vec()?;
        for (k, grad) in [&io.da, &io.db].into_iter().enumerate() {
            if let Some(g) = grad {
                store_summed(OP, g, shape, &all.iter().map(|d| d[k]).try_vec()?)?;
            }
        }
        Ok(())
    }

    fn ternary(&self, op: Ternary, a: View<'_>, b: View<'_>, c: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "ternary";
        check_ternary(op, &a, &b, &c, &y)?;
        let _timed = self.count("ternary");
        let [a, b, c] = [a.broadcast_to(y.shape())?, b.broadcast_to(y.shape())?, c.broadcast_to(y.shape())?];
        if op == Ternary::Where {
            let mask = gather::<u8>(OP, a)?;
            return with_dtype!(y.dtype(), T => {
                let (b, c) = (gather::<T>(OP, b)?, gather::<T>(OP, c)?);
                let out: Vec<T> = (0..mask.len()).map(|i| if mask[i] != 0 { b[i] } else { c[i] }).try_vec()?;
                store(OP, &y, &out)
            });
        }
        let (a, b, c) = (gather_f64(OP, a)?, gather_f64(OP, b)?, gather_f64(OP, c)?);
        let out: Vec<f64> = (0..a.len()).map(|i| ternary_value(op, a[i], b[i], c[i])).try_vec()?;
        store_f64(OP, &y, &out)
    }

    fn ternary_bwd(&self, op: Ternary, io: TernaryBwd<'_>) -> Result<()> {
        const OP: &str = "ternary_bwd";
        check_ternary_bwd(op, &io)?;
        let _timed = self.count("ternary_bwd");
        let shape = io.dy.shape();
        let [a, b, c] = [io.a.broadcast_to(shape)?, io.b.broadcast_to(shape)?, io.c.broadcast_to(shape)?];
        let dy = gather_f64(OP, io.dy)?;
        let (a, b, c) = (gather_f64(OP, a)?, gather_f64(OP, b)?, gather_f64(OP, c)?);
        let all: Vec<[f64; 3]> =
            (0..dy.len()).map(|i| ternary_gradient(op, dy[i], a[i], b[i], c[i])).try_vec()?;
        for (k, grad) in [&io.da, &io.db, &io.dc].into_iter().enumerate() {
            if let Some(g) = grad {
                store_summed(OP, g, shape, &all.iter().map(|d| d[k]).try_vec()?)?;
            }
        }
        Ok(())
    }

    fn cast(&self, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        check_cast(&x, &y)?;
        let _timed = self.count("cast");
        let (from, to) = (x.dtype(), y.dtype());
        if from == to {
            return with_dtype!(from, T => copy::<T>("cast", x, &y.into()));
        }
        let narrow = |d| [DType::F32, DType::F16, DType::Bf16].contains(&d);
        if narrow(from) && narrow(to) {
            return with_narrow!(from, T => with_narrow!(to, U => {
                let x = Values::<T>::new("cast", x, &[y.block().id()])?;
                change::<U>("cast", &y, |at, y| {
                    y.iter_mut().zip(&x[at..]).for_each(|(y, x)| *y = U::narrow(x.widen()));
                })
            }));
        }
        // By way of f64, some elements at a time: types and not pairs of types are compiled.
        let read: Reader<'_> = with_dtype!(from, T => {
            let x = Values::<T>::new("cast", x, &[y.block().id()])?;
            Box::new(move |at, room| {
                room.iter_mut().zip(&x[at..]).for_each(|(r, &x)| *r = widened_to(x, from, to));
            })
        });
        with_dtype!(to, U => change::<U>("cast", &y, |at, y| {
            let mut room = [0.0; 64];
            for (i, y) in y.chunks_mut(64).enumerate() {
                let room = &mut room[..y.len()];
                read(at + 64 * i, room);
                y.iter_mut().zip(&*room).for_each(|(y, &x)| *y = <U as HostElement>::from_f64(x));
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;
    use crate::backend::BackendExt;
    use crate::cpu::CpuBackend;

    type Function = fn(f64) -> f64;

    /// A result that is rounded to f32 first can end on the wrong side of the middle of two numbers of 16 bits.
    #[test]
    fn results_of_16_bits_are_rounded_once() {
        let cpu = CpuBackend::new();
        let x: Vec<f16> = (1..f16::INFINITY.to_bits()).map(f16::from_bits).try_vec().unwrap();
        let (from, mut to) = (cpu.upload(&x).unwrap(), cpu.upload(&x).unwrap());
        let functions: [(Unary, Function); 4] = [
            (Unary::Reciprocal, |x| 1.0 / x),
            (Unary::Cbrt, f64::cbrt),
            (Unary::Atan, f64::atan),
            (Unary::Log1p, f64::ln_1p),
        ];
        for (op, f) in functions {
            cpu.unary(op, from.view(), to.view_mut()).unwrap();
            for (x, y) in x.iter().zip(cpu.download::<f16>(to.view()).unwrap()) {
                let off = |y: f16| (y.to_f64() - f(x.to_f64())).abs();
                let around = [y.to_bits().saturating_sub(1), y.to_bits() + 1].map(f16::from_bits);
                assert!(y.is_infinite() || around.iter().all(|&n| off(y) <= off(n)), "{op:?} of {x}: {y}");
            }
        }
    }
}
