//! Radial factors of hyperbolic geometry.

use trefoil::DType;
use trefoil::ops::elementwise::{Binary, Unary};

use crate::core::autograd::{BackwardCtx, Saved, compose, no_grad};
use crate::core::error::Result;
use crate::core::tensor::Tensor;

/// g(sqrt(u)) / sqrt(u) of a function g with g(0) = 0 and g'(0) = 1, for u >= 0. Value and slope are finite at 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Radial {
    Atanh,
    Tanh,
}

impl Radial {
    /// Coefficients of the power series in u.
    fn series(self) -> [f64; 5] {
        match self {
            Radial::Atanh => [1.0, 1.0 / 3.0, 1.0 / 5.0, 1.0 / 7.0, 1.0 / 9.0],
            Radial::Tanh => [1.0, -1.0 / 3.0, 2.0 / 15.0, -17.0 / 315.0, 62.0 / 2835.0],
        }
    }

    /// Below it the series is the better one: the closed form of the slope loses digits like 1/u, the series leaves out u^5.
    fn switch(u: &Tensor) -> f64 {
        if u.dtype() == DType::F64 { 1e-4 } else { 2e-2 }
    }

    fn value(self, u: &Tensor) -> Result<Tensor> {
        let root = u.clamp(Some(Self::switch(u)), None)?.sqrt()?;
        let g = match self {
            Radial::Atanh => root.unary(Unary::Atanh)?,
            Radial::Tanh => root.tanh()?,
        };
        choose(u, &g.div(&root)?, &self.series())
    }

    /// Derivative at u, where the value is y.
    fn slope(self, u: &Tensor, y: &Tensor) -> Result<Tensor> {
        let large = u.clamp(Some(Self::switch(u)), None)?;
        // g' as a function of u: 1 / (1 - u), and 1 - tanh^2 with tanh = y sqrt(u).
        let inner = match self {
            Radial::Atanh => large.unary(Unary::RsubScalar { c: 1.0 })?.recip()?,
            Radial::Tanh => y.square()?.mul(&large)?.unary(Unary::RsubScalar { c: 1.0 })?,
        };
        let closed = inner.sub(y)?.div(&large)?.mul_scalar(0.5)?;
        let c = self.series();
        choose(u, &closed, &[c[1], 2.0 * c[2], 3.0 * c[3], 4.0 * c[4]])
    }
}

/// `closed` where u is large, the power series where it is small.
fn choose(u: &Tensor, closed: &Tensor, series: &[f64]) -> Result<Tensor> {
    let at = Radial::switch(u);
    let small = u.clamp(None, Some(at))?;
    let Some((&last, rest)) = series.split_last() else { return Ok(closed.clone()) };
    let mut y = small.mul_scalar(last)?;
    for (i, &c) in rest.iter().enumerate().rev() {
        y = y.add_scalar(c)?;
        y = if i > 0 { y.mul(&small)? } else { y };
    }
    let mask = u.binary(Binary::Ge, &Tensor::full(u.device(), u.dtype(), &[], at)?)?;
    closed.where_(&mask, &y)
}

impl Tensor {
    /// The radial factor of each element, which is a squared norm.
    pub(crate) fn radial(&self, f: Radial) -> Result<Tensor> {
        let u = self.detach();
        let y = no_grad(|| f.value(&u))?;
        let plain = y.clone();
        Ok(y.record("radial", &[self], || {
            let (u, y) = (Saved::new(&u), Saved::new(&plain));
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    let u = u.input(cx, 0)?;
                    return compose(cx, &[(0, u)], |t| Ok(vec![f.value(&t[0])?]));
                }
                let dx = f.slope(u.get(cx)?, y.get(cx)?)?.mul(&cx.dy()?)?;
                cx.give(0, dx)
            }
        }))
    }
}
