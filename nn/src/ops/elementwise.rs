//! Arithmetic with broadcasting.

use trefoil::ops::{Binary, BinaryBwd, Ternary, TernaryBwd, Unary};
use trefoil::{DType, Dims, broadcast_shapes};

use crate::autograd::{BackwardCtx, Saved, out};
use crate::error::{Result, invalid};
use crate::tensor::{Device, Tensor, same_device};

pub(crate) fn broadcast(op: &'static str, a: &[usize], b: &[usize]) -> Result<Dims> {
    broadcast_shapes(a, b).map_err(|at| {
        invalid(
            op,
            "b",
            format!("a shape that broadcasts with {a:?}"),
            format!("{b:?} (axis {at} from the right)"),
        )
    })
}

impl Tensor {
    /// op(x) element by element.
    pub fn unary(&self, op: Unary) -> Result<Tensor> {
        let x = self.operand();
        let dtype = if op.is_predicate() { DType::U8 } else { self.dtype() };
        let y = Tensor::empty(self.device(), dtype, self.shape())?;
        self.device().unary(op, x.view()?, y.operand().view_mut()?)?;
        if !op.is_differentiable() {
            return Ok(y);
        }
        Ok(y.record("unary", &[self], || {
            let x = Saved::new(self);
            move |cx: &mut BackwardCtx<'_>| {
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                let (dy, x) = (cx.dy()?.operand(), x.get(cx)?);
                Ok(x.device().unary_bwd(op, dy.view()?, x.operand().view()?, dx.out()?)?)
            }
        }))
    }

    /// op(self, b) with broadcasting. Errors: `Invalid` for shapes that do not broadcast or unequal dtypes.
    pub fn binary(&self, op: Binary, b: &Tensor) -> Result<Tensor> {
        same_device("binary", self, b)?;
        let shape = broadcast("binary", self.shape(), b.shape())?;
        let dtype = if op.is_predicate() { DType::U8 } else { self.dtype() };
        let y = Tensor::empty(self.device(), dtype, &shape)?;
        self.device().binary(op, self.operand().view()?, b.operand().view()?, y.operand().view_mut()?)?;
        let constant = |t: &Tensor, differentiable: bool| if differentiable { t.clone() } else { t.detach() };
        let [da, db] = op.differentiable();
        Ok(y.record("binary", &[&constant(self, da), &constant(b, db)], || {
            let (a, b) = (Saved::new(self), Saved::new(b));
            // Sums read neither operand's values, so overwriting them later does no harm.
            let linear = matches!(
                op,
                Binary::Add { .. } | Binary::Sub | Binary::AddScaled { .. } | Binary::Lerp { .. }
            );
            move |cx: &mut BackwardCtx<'_>| {
                let (da, db) = (cx.target(0)?, cx.target(1)?);
                let dy = cx.dy()?;
                let (a, b) = if linear { (a.any(), b.any()) } else { (a.get(cx)?, b.get(cx)?) };
                let (dyo, ao, bo) = (dy.operand(), a.operand(), b.operand());
                let (da, db) = (out(&da)?, out(&db)?);
                let io = BinaryBwd { dy: dyo.view()?, a: ao.view()?, b: bo.view()?, da, db };
                Ok(dy.device().binary_bwd(op, io)?)
            }
        }))
    }

    /// op(self, b, c) with broadcasting.
    pub fn ternary(&self, op: Ternary, b: &Tensor, c: &Tensor) -> Result<Tensor> {
        same_device("ternary", self, b)?;
        same_device("ternary", self, c)?;
        let ab = broadcast("ternary", self.shape(), b.shape())?;
        let shape = broadcast("ternary", &ab, c.shape())?;
        let y = Tensor::empty(self.device(), b.dtype(), &shape)?;
        self.device().ternary(
            op,
            self.operand().view()?,
            b.operand().view()?,
            c.operand().view()?,
            y.operand().view_mut()?,
        )?;
        Ok(y.record("ternary", &[self, b, c], || {
            let (a, b, c) = (Saved::new(self), Saved::new(b), Saved::new(c));
            move |cx: &mut BackwardCtx<'_>| {
                let (da, db, dc) = (cx.target(0)?, cx.target(1)?, cx.target(2)?);
                let dy = cx.dy()?;
                let (a, b, c) = (a.get(cx)?.operand(), b.get(cx)?.operand(), c.get(cx)?.operand());
                let dyo = dy.operand();
                let (da, db, dc) = (out(&da)?, out(&db)?, out(&dc)?);
                let io = TernaryBwd { dy: dyo.view()?, a: a.view()?, b: b.view()?, c: c.view()?, da, db, dc };
                Ok(dy.device().ternary_bwd(op, io)?)
            }
        }))
    }

    /// Converted to another dtype; gradients are converted back.
    pub fn to_dtype(&self, dtype: DType) -> Result<Tensor> {
        if dtype == self.dtype() {
            return Ok(self.clone());
        }
        let y = Tensor::empty(self.device(), dtype, self.shape())?;
        self.device().cast(self.operand().view()?, y.operand().view_mut()?)?;
        let back = self.dtype();
        Ok(y.record("to_dtype", &[self], || {
            move |cx: &mut BackwardCtx<'_>| {
                let dx = cx.dy()?.to_dtype(back)?;
                cx.give(0, dx)
            }
        }))
    }

    /// A copy on another device (through the host); gradients travel back.
    pub fn to_device(&self, device: &Device) -> Result<Tensor> {
        if device.id() == self.device().id() {
            return Ok(self.clone());
        }
        let y = Tensor::empty(device, self.dtype(), self.shape())?;
        y.write_bytes(&self.to_bytes()?)?;
        let home = self.device().clone();
        Ok(y.record("to_device", &[self], || {
            move |cx: &mut BackwardCtx<'_>| {
                let dx = cx.dy()?.to_device(&home)?;
                cx.give(0, dx)
            }
        }))
    }

    /// Self where `mask` (u8) is true, `other` elsewhere; all three broadcast.
    pub fn where_(&self, mask: &Tensor, other: &Tensor) -> Result<Tensor> {
        mask.ternary(Ternary::Where, self, other)
    }

    /// Values limited to [lo, hi]; an absent bound does not bind.
    pub fn clamp(&self, lo: Option<f64>, hi: Option<f64>) -> Result<Tensor> {
        self.unary(Unary::Clamp { lo, hi })
    }

    /// c * x.
    pub fn mul_scalar(&self, c: f64) -> Result<Tensor> {
        self.unary(Unary::Scale { c })
    }

    /// x + c.
    pub fn add_scalar(&self, c: f64) -> Result<Tensor> {
        self.unary(Unary::AddScalar { c })
    }

    /// x^c.
    pub fn pow_scalar(&self, c: f64) -> Result<Tensor> {
        self.unary(Unary::PowScalar { c })
    }

    /// a*b + c with a single rounding.
    pub fn mul_add(&self, b: &Tensor, c: &Tensor) -> Result<Tensor> {
        self.ternary(Ternary::Fma, b, c)
    }
}

macro_rules! unary_methods {
    ($($name:ident => $op:ident, $doc:literal;)*) => {
        impl Tensor {$(
            #[doc = $doc]
            pub fn $name(&self) -> Result<Tensor> {
                self.unary(Unary::$op)
            }
        )*}
    };
}
unary_methods! {
    neg => Neg, "-x";
    abs => Abs, "|x|; the gradient at 0 is 0";
    sign => Sign, "-1, 0 or 1";
    exp => Exp, "e^x";
    exp2 => Exp2, "2^x";
    expm1 => Expm1, "e^x - 1";
    ln => Log, "natural logarithm";
    log2 => Log2, "base-2 logarithm";
    log1p => Log1p, "ln(1 + x)";
    sqrt => Sqrt, "square root";
    rsqrt => Rsqrt, "1 / sqrt(x)";
    square => Square, "x^2";
    recip => Reciprocal, "1 / x";
    sin => Sin, "sine";
    cos => Cos, "cosine";
    tan => Tan, "tangent";
    erf => Erf, "error function";
    floor => Floor, "largest integer not above x";
    ceil => Ceil, "smallest integer not below x";
    is_nan => IsNan, "u8 mask: is NaN";
    is_finite => IsFinite, "u8 mask: neither NaN nor an infinity";
    logical_not => LogicalNot, "u8 mask: is zero";
}

macro_rules! binary_methods {
    ($($name:ident => $op:expr, $doc:literal;)*) => {
        impl Tensor {$(
            #[doc = $doc]
            #[doc = ", broadcast."]
            pub fn $name(&self, b: &Tensor) -> Result<Tensor> {
                self.binary($op, b)
            }
        )*}
    };
}
binary_methods! {
    add => Binary::Add { alpha: 1.0 }, "a + b";
    sub => Binary::Sub, "a - b";
    mul => Binary::Mul, "a * b";
    div => Binary::Div, "a / b";
    pow => Binary::Pow, "a^b";
    maximum => Binary::Maximum, "the larger; a tie shares the gradient";
    minimum => Binary::Minimum, "the smaller; a tie shares the gradient";
    fmod => Binary::Fmod, "remainder with the dividend's sign";
    remainder => Binary::Remainder, "remainder with the divisor's sign";
    atan2 => Binary::Atan2, "angle of (b, a)";
    eq => Binary::Eq, "u8 mask: a = b";
    ne => Binary::Ne, "u8 mask: a != b";
    lt => Binary::Lt, "u8 mask: a < b";
    le => Binary::Le, "u8 mask: a <= b";
    gt => Binary::Gt, "u8 mask: a > b";
    ge => Binary::Ge, "u8 mask: a >= b";
}
