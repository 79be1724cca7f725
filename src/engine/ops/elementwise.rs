//! Unary, binary and ternary arithmetic.

use crate::buffer::{GradMut, View, ViewMut};
use crate::driver::Arg;
use crate::engine::Engine;
use crate::engine::launch::{Grid, Merged, aligned16, dims, real};
use crate::error::Result;
use crate::ops::*;
use crate::spec::elementwise::*;

/// C name and parameters of a function of one value.
fn unary_kernel(op: Unary) -> (&'static str, [f64; 3]) {
    match op {
        Unary::Neg => ("gk_op_neg", [0.0; 3]),
        Unary::Exp => ("gk_op_exp", [0.0; 3]),
        Unary::IsNan => ("gk_op_isnan", [0.0; 3]),
        _ => todo!(),
    }
}

impl Engine {
    /// y = f(x) for any function of `kernels/common/{unary,activation}_ops.h`; operands are checked.
    pub(super) fn map(
        &self,
        op: &'static str,
        x: &View<'_>,
        y: &ViewMut<'_>,
        params: [f64; 3],
    ) -> Result<()> {
        let n = x.numel();
        if n == 0 {
            return Ok(());
        }
        let (dt, v) = (x.dtype(), y.as_view());
        let m = Merged::new([x.layout(), v.layout()]);
        let mut args = vec![self.arg_in(x), self.arg_in(&v), Arg::I64(n as i64)];
        let p = params.map(|p| real(dt, p));
        if v.dtype() == dt && m.is_flat(0) && m.is_flat(1) {
            let wide = aligned16(x) && aligned16(&v);
            args.push(Arg::I32(wide as i32));
            args.extend(p);
            let items = if wide { n.div_ceil(16 / dt.size()) } else { n };
            return self.launch(&UNARY_FLAT, dt, op, Grid::Stride(items), &args);
        }
        args.extend([Arg::I32(m.shape.len() as i32), dims(m.shape.iter().copied())]);
        args.extend(m.strides.iter().map(|s| dims(s.iter().copied())));
        args.extend(p);
        let kernel = if v.dtype() == dt { &UNARY_ND } else { &UNARY_MASK };
        self.launch(kernel, dt, op, Grid::Stride(n), &args)
    }

    /// dx (+)= g(dy, saved) for any function of `kernels/common/{unary,activation}_ops.h`; operands are checked.
    pub(super) fn map_bwd(
        &self,
        op: &'static str,
        dy: &View<'_>,
        saved: &View<'_>,
        dx: &GradMut<'_>,
        params: [f64; 3],
    ) -> Result<()> {
        let n = dy.numel();
        if n == 0 {
            return Ok(());
        }
        let (dt, v) = (dy.dtype(), dx.out.as_view());
        let m = Merged::new([dy.layout(), saved.layout(), v.layout()]);
        let mut args = vec![self.arg_in(dy), self.arg_in(saved), self.arg_in(&v), Arg::I64(n as i64)];
        let p = params.map(|p| real(dt, p));
        let accumulate = Arg::I32(dx.accumulate as i32);
        if (0..3).all(|k| m.is_flat(k)) {
            let wide = [dy, saved, &v].into_iter().all(aligned16);
            args.extend([Arg::I32(wide as i32), accumulate]);
            args.extend(p);
            let items = if wide { n.div_ceil(16 / dt.size()) } else { n };
            return self.launch(&UNARY_BWD_FLAT, dt, op, Grid::Stride(items), &args);
        }
        args.extend([Arg::I32(m.shape.len() as i32), dims(m.shape.iter().copied())]);
        args.extend(m.strides.iter().map(|s| dims(s.iter().copied())));
        args.push(accumulate);
        args.extend(p);
        self.launch(&UNARY_BWD_ND, dt, op, Grid::Stride(n), &args)
    }
}

#[allow(unused_variables)]
impl ElementwiseOps for Engine {
    fn unary(&self, op: Unary, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        check_unary(op, &x, &y)?;
        self.own("unary", "x", &x)?;
        self.own("unary", "y", &y.as_view())?;
        let (name, params) = unary_kernel(op);
        self.map(name, &x, &y, params)
    }

    fn unary_bwd(&self, op: Unary, dy: View<'_>, x: View<'_>, dx: GradMut<'_>) -> Result<()> {
        check_unary_bwd(op, &dy, &x, &dx)?;
        self.own("unary_bwd", "dy", &dy)?;
        self.own("unary_bwd", "x", &x)?;
        self.own("unary_bwd", "dx", &dx.out.as_view())?;
        let (name, params) = unary_kernel(op);
        self.map_bwd(name, &dy, &x, &dx, params)
    }

    fn binary(&self, op: Binary, a: View<'_>, b: View<'_>, y: ViewMut<'_>) -> Result<()> {
        todo!()
    }
    fn binary_bwd(&self, op: Binary, io: BinaryBwd<'_>) -> Result<()> {
        todo!()
    }
    fn ternary(&self, op: Ternary, a: View<'_>, b: View<'_>, c: View<'_>, y: ViewMut<'_>) -> Result<()> {
        todo!()
    }
    fn ternary_bwd(&self, op: Ternary, io: TernaryBwd<'_>) -> Result<()> {
        todo!()
    }
    fn cast(&self, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        todo!()
    }
}
