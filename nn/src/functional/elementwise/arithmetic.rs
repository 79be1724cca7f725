//! Arithmetic with broadcasting.

use trefoil::ops::elementwise::{Binary, BinaryBwd, Ternary, TernaryBwd, Unary};
use trefoil::{DType, Dims, broadcast_shapes};

use crate::core::autograd::{BackwardCtx, Saved, out};
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Device, Tensor, same_device, same_handle};
use crate::functional::derivatives::elementwise as derivatives;

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

/// In a pass that creates a graph: gives the gradients of operands, summed to their shapes. Without them the operation is first order only.
fn give_all<const N: usize>(
    cx: &mut BackwardCtx<'_>,
    grads: Option<[Option<Tensor>; N]>,
    of: &[&Tensor; N],
) -> Result<()> {
    let Some(grads) = grads else { return cx.first_order_only() };
    for (i, (g, x)) in grads.into_iter().zip(of).enumerate() {
        match g {
            Some(g) if cx.needs(i) => cx.give(i, g.sum_to_shape(x.shape())?)?,
            None if cx.needs(i) => cx.first_order_only()?,
            _ => {}
        }
    }
    Ok(())
}

impl Tensor {
    /// op(x) element by element.
    pub fn unary(&self, op: Unary) -> Result<Tensor> {
        let x = self.operand();
        let dtype = if op.is_predicate() { DType::U8 } else { self.dtype() };
        let y = Tensor::result_of(&[self], dtype, self.shape())?;
        self.device().unary(op, x.view()?, y.operand().view_mut()?)?;
        if !op.is_differentiable() {
            return Ok(y);
        }
        Ok(y.record("unary", &[self], || {
            let x = Saved::new(self);
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    let dx = derivatives::unary(op, &cx.dy()?, &x.input(cx, 0)?)?;
                    return cx.give_form(0, dx);
                }
                let Some(dx) = cx.target_like_input(0)? else { return Ok(()) };
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
        let y = Tensor::result_of(&[self, b], dtype, &shape)?;
        self.device().binary(op, self.operand().view()?, b.operand().view()?, y.operand().view_mut()?)?;
        let constant = |t: &Tensor, differentiable: bool| if differentiable { t.clone() } else { t.detach() };
        let [da, db] = op.differentiable();
        // As PyTorch, which refuses the gradient of the first operand.
        let da = da || matches!(op, Binary::Igamma | Binary::Igammac);
        Ok(y.record("binary", &[&constant(self, da), &constant(b, db)], || {
            let (a, b) = (Saved::new(self), Saved::new(b));
            // Sums read neither operand's values, so overwriting them later does no harm.
            let linear = matches!(
                op,
                Binary::Add { .. } | Binary::Sub | Binary::AddScaled { .. } | Binary::Lerp { .. }
            );
            move |cx: &mut BackwardCtx<'_>| {
                let dy = cx.dy()?;
                if cx.create_graph() {
                    // Sums read shapes alone.
                    let at = |s: &Saved, i: usize| if linear { Ok(s.any().clone()) } else { s.input(cx, i) };
                    let x = [at(&a, 0)?, at(&b, 1)?];
                    let grads = derivatives::binary(op, &dy, &x[0], &x[1])?;
                    return give_all(cx, grads, &x.each_ref());
                }
                let [copies_a, copies_b] = match op {
                    Binary::Add { alpha: 1.0 } => [true, true],
                    Binary::Add { .. } | Binary::Sub => [true, false],
                    _ => [false, false],
                };
                let da = if copies_a && cx.pass(0, &dy)? { None } else { cx.target_like_input(0)? };
                let db = if copies_b && cx.pass(1, &dy)? { None } else { cx.target_like_input(1)? };
                if da.is_none() && db.is_none() {
                    return Ok(());
                }
                let (a, b) = if linear { (a.any(), b.any()) } else { (a.get(cx)?, b.get(cx)?) };
                let (dyo, ao, bo) = (dy.operand(), a.operand(), b.operand());
                let (da, db) = (out(&da)?, out(&db)?);
                let io = BinaryBwd::new(dyo.view()?, ao.view()?, bo.view()?).da(da).db(db);
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
        let y = Tensor::result_of(&[self, b, c], b.dtype(), &shape)?;
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
                if cx.create_graph() {
                    let x = [a.input(cx, 0)?, b.input(cx, 1)?, c.input(cx, 2)?];
                    let grads = derivatives::ternary(op, &cx.dy()?, x.each_ref())?;
                    return give_all(cx, Some(grads), &x.each_ref());
                }
                let (da, db, dc) =
                    (cx.target_like_input(0)?, cx.target_like_input(1)?, cx.target_like_input(2)?);
                let dy = cx.dy()?;
                let (a, b, c) = (a.get(cx)?.operand(), b.get(cx)?.operand(), c.get(cx)?.operand());
                let dyo = dy.operand();
                let (da, db, dc) = (out(&da)?, out(&db)?, out(&dc)?);
                let io = TernaryBwd::new(dyo.view()?, a.view()?, b.view()?, c.view()?).da(da).db(db).dc(dc);
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

    /// A copy on another device (through the host) or another handle of the same one (on the device); gradients travel back. On the same
    /// handle the tensor itself.
    pub fn to_device(&self, device: &Device) -> Result<Tensor> {
        if same_handle(device, self.device()) {
            return Ok(self.clone());
        }
        let y = if device.id() == self.device().id() && self.numel() > 0 {
            let buffer = self.device().alloc(self.dtype(), self.numel())?;
            let dst = buffer.alias_mut().reshape(self.shape())?;
            self.device().strided_copy(self.operand().view()?, dst.into())?;
            // The new handle's stream waits for the copy.
            Tensor::from_buffer(device, device.adopt(buffer)?, self.shape())?
        } else {
            let y = Tensor::empty(device, self.dtype(), self.shape())?;
            y.write_bytes(&self.to_bytes()?)?;
            y
        };
        let home = self.device().clone();
        Ok(y.record("to_device", &[self], || {
            move |cx: &mut BackwardCtx<'_>| {
                let dx = cx.dy()?.to_device(&home)?;
                cx.give(0, dx)
            }
        }))
    }

    /// Self where `mask` (u8) is true, `other` elsewhere; all three broadcast. `torch.where(mask, self, other)`.
    #[doc(alias = "where")]
    pub fn where_(&self, mask: &Tensor, other: &Tensor) -> Result<Tensor> {
        mask.ternary(Ternary::Where, self, other)
    }

    /// `value` where `mask` (u8) is true, self elsewhere; both broadcast.
    pub fn masked_fill(&self, mask: &Tensor, value: f64) -> Result<Tensor> {
        self.constant("masked_fill", value)?.where_(mask, self)
    }

    /// A scalar of this tensor's dtype and device. Errors: a fraction for integers, which it would lose.
    fn constant(&self, op: &'static str, c: f64) -> Result<Tensor> {
        if !self.dtype().is_float() && c.fract() != 0.0 {
            return Err(invalid(op, "c", format!("an integer, as {} is", self.dtype()), format!("{c}")));
        }
        Tensor::full(self.device(), self.dtype(), &[], c)
    }

    /// Values limited to [lo, hi]; an absent bound does not bind.
    pub fn clamp(&self, lo: Option<f64>, hi: Option<f64>) -> Result<Tensor> {
        self.unary(Unary::Clamp { lo, hi })
    }

    /// Values limited to [lo, hi] with tensors as bounds, broadcast; lo > hi gives hi.
    pub fn clamp_between(&self, lo: &Tensor, hi: &Tensor) -> Result<Tensor> {
        self.ternary(Ternary::Clamp, lo, hi)
    }

    /// op(x, c): of floats as a unary operation, of integers as a binary one with an integer.
    fn with_scalar(&self, op: &'static str, float: Unary, integer: Binary, c: f64) -> Result<Tensor> {
        if self.dtype().is_float() {
            return self.unary(float);
        }
        self.binary(integer, &self.constant(op, c)?)
    }

    /// c * x. Errors: a fraction for integers.
    pub fn mul_scalar(&self, c: f64) -> Result<Tensor> {
        self.with_scalar("mul_scalar", Unary::Scale { c }, Binary::Mul, c)
    }

    /// x / c. Errors: integers, which [`div_floor`](Tensor::div_floor) and [`div_trunc`](Tensor::div_trunc) divide.
    pub fn div_scalar(&self, c: f64) -> Result<Tensor> {
        let c = self.constant("div_scalar", c)?;
        self.div(&c)
    }

    /// c / x. Errors: integers.
    pub fn rdiv_scalar(&self, c: f64) -> Result<Tensor> {
        self.constant("rdiv_scalar", c)?.div(self)
    }

    /// x + c. Errors: a fraction for integers.
    pub fn add_scalar(&self, c: f64) -> Result<Tensor> {
        self.with_scalar("add_scalar", Unary::AddScalar { c }, Binary::Add { alpha: 1.0 }, c)
    }

    /// x - c. Errors: a fraction for integers.
    pub fn sub_scalar(&self, c: f64) -> Result<Tensor> {
        self.with_scalar("sub_scalar", Unary::AddScalar { c: -c }, Binary::Sub, c)
    }

    /// c - x. Errors: a fraction for integers.
    #[doc(alias = "rsub")]
    pub fn rsub_scalar(&self, c: f64) -> Result<Tensor> {
        if self.dtype().is_float() {
            return self.unary(Unary::RsubScalar { c });
        }
        self.constant("rsub_scalar", c)?.sub(self)
    }

    /// x^c.
    pub fn pow_scalar(&self, c: f64) -> Result<Tensor> {
        self.unary(Unary::PowScalar { c })
    }

    /// Rounded to the nearest value at `decimals` decimal places, halves to even. No gradient but 0.
    pub fn round(&self, decimals: i32) -> Result<Tensor> {
        self.unary(Unary::Round { decimals })
    }

    /// NaN and infinities replaced; `None` for an infinity stands for the largest finite value with its sign.
    pub fn nan_to_num(&self, nan: f64, posinf: Option<f64>, neginf: Option<f64>) -> Result<Tensor> {
        self.unary(Unary::NanToNum { nan, posinf, neginf })
    }

    /// n-th derivative of [`digamma`](Tensor::digamma). Errors: a negative order.
    pub fn polygamma(&self, n: i32) -> Result<Tensor> {
        self.unary(Unary::Polygamma { n })
    }

    /// a + alpha * b, broadcast; `torch.add(a, b, alpha=alpha)`.
    pub fn add_scaled(&self, b: &Tensor, alpha: f64) -> Result<Tensor> {
        self.binary(Binary::Add { alpha }, b)
    }

    /// a + t * (b - a), broadcast; exact at t = 0 and 1.
    pub fn lerp(&self, b: &Tensor, t: f64) -> Result<Tensor> {
        self.binary(Binary::Lerp { t }, b)
    }

    /// a + t * (b - a) with a tensor of weights, broadcast.
    pub fn lerp_by(&self, b: &Tensor, t: &Tensor) -> Result<Tensor> {
        self.ternary(Ternary::Lerp, b, t)
    }

    /// a * b + c with a single rounding, broadcast.
    #[doc(alias = "fma")]
    #[doc(alias = "mulacc")]
    pub fn mul_add(&self, b: &Tensor, c: &Tensor) -> Result<Tensor> {
        self.ternary(Ternary::Fma, b, c)
    }

    /// a + v * b * c, broadcast.
    pub fn addcmul(&self, b: &Tensor, c: &Tensor, v: f64) -> Result<Tensor> {
        self.ternary(Ternary::Addcmul { v }, b, c)
    }

    /// a + v * b / c, broadcast.
    pub fn addcdiv(&self, b: &Tensor, c: &Tensor, v: f64) -> Result<Tensor> {
        self.ternary(Ternary::Addcdiv { v }, b, c)
    }
}

macro_rules! unary_methods {
    ($($(#[$attr:meta])* $name:ident => $op:ident, $doc:literal;)*) => {
        impl Tensor {$(
            #[doc = $doc]
            $(#[$attr])*
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
    exp10 => Exp10, "10^x";
    expm1 => Expm1, "e^x - 1, accurate near 0";
    #[doc(alias = "log")]
    ln => Log, "natural logarithm";
    log2 => Log2, "base-2 logarithm";
    log10 => Log10, "base-10 logarithm";
    log1p => Log1p, "ln(1 + x), accurate near 0";
    sqrt => Sqrt, "square root";
    rsqrt => Rsqrt, "1 / sqrt(x)";
    cbrt => Cbrt, "real cube root";
    square => Square, "x^2";
    #[doc(alias = "reciprocal")]
    recip => Reciprocal, "1 / x";
    sin => Sin, "sine";
    cos => Cos, "cosine";
    tan => Tan, "tangent";
    asin => Asin, "inverse sine";
    acos => Acos, "inverse cosine";
    atan => Atan, "inverse tangent";
    sinh => Sinh, "hyperbolic sine";
    cosh => Cosh, "hyperbolic cosine";
    asinh => Asinh, "inverse hyperbolic sine";
    acosh => Acosh, "inverse hyperbolic cosine";
    atanh => Atanh, "inverse hyperbolic tangent";
    erf => Erf, "error function";
    erfc => Erfc, "complementary error function";
    erfinv => Erfinv, "inverse error function";
    lgamma => Lgamma, "ln |Gamma(x)|";
    digamma => Digamma, "derivative of ln Gamma";
    i0 => I0, "modified Bessel function of the first kind, order 0";
    i0e => I0e, "modified Bessel function of the first kind, order 0, times e^-|x|";
    i1 => I1, "modified Bessel function of the first kind, order 1";
    i1e => I1e, "modified Bessel function of the first kind, order 1, times e^-|x|";
    erfcx => Erfcx, "e^(x^2) erfc(x)";
    log_ndtr => LogNdtr, "logarithm of the distribution function of the standard normal distribution";
    ndtri => Ndtri, "quantile of the standard normal distribution";
    bessel_j0 => BesselJ0, "Bessel function of the first kind, order 0";
    bessel_j1 => BesselJ1, "Bessel function of the first kind, order 1";
    bessel_y0 => BesselY0, "Bessel function of the second kind, order 0; NaN for negative numbers";
    bessel_y1 => BesselY1, "Bessel function of the second kind, order 1; NaN for negative numbers";
    modified_bessel_k0 => K0, "modified Bessel function of the second kind, order 0; NaN for negative numbers";
    modified_bessel_k1 => K1, "modified Bessel function of the second kind, order 1; NaN for negative numbers";
    scaled_modified_bessel_k0 => K0e, "modified Bessel function of the second kind, order 0, times e^x";
    scaled_modified_bessel_k1 => K1e, "modified Bessel function of the second kind, order 1, times e^x";
    airy_ai => AiryAi, "Airy function Ai; no gradient, as in PyTorch";
    sinc => Sinc, "sin(pi x) / (pi x), 1 at 0";
    floor => Floor, "largest integer not above x";
    ceil => Ceil, "smallest integer not below x";
    trunc => Trunc, "integer part";
    frac => Frac, "x - trunc(x)";
    #[doc(alias = "isnan")]
    is_nan => IsNan, "u8 mask: is NaN";
    #[doc(alias = "isinf")]
    is_inf => IsInf, "u8 mask: is an infinity";
    #[doc(alias = "isfinite")]
    is_finite => IsFinite, "u8 mask: neither NaN nor an infinity";
    logical_not => LogicalNot, "u8 mask: is zero";
    bitwise_not => BitwiseNot, "complement of integers";
}

macro_rules! binary_methods {
    ($($(#[$attr:meta])* $name:ident => $op:expr, $doc:literal;)*) => {
        impl Tensor {$(
            #[doc = $doc]
            #[doc = ", broadcast."]
            $(#[$attr])*
            pub fn $name(&self, b: &Tensor) -> Result<Tensor> {
                self.binary($op, b)
            }
        )*}
    };
}
binary_methods! {
    add => Binary::Add { alpha: 1.0 }, "a + b";
    sub => Binary::Sub, "a - b";
    #[doc(alias = "elem_mul")]
    mul => Binary::Mul, "a * b";
    div => Binary::Div, "a / b";
    #[doc(alias = "floor_divide")]
    div_floor => Binary::DivFloor, "a / b rounded down";
    div_trunc => Binary::DivTrunc, "a / b rounded towards 0";
    pow => Binary::Pow, "a^b";
    #[doc(alias = "max_elem")]
    maximum => Binary::Maximum, "the larger, NaN wins; a tie shares the gradient";
    minimum => Binary::Minimum, "the smaller, NaN wins; a tie shares the gradient";
    fmax => Binary::Fmax, "the larger, numbers win over NaN; a tie shares the gradient";
    fmin => Binary::Fmin, "the smaller, numbers win over NaN; a tie shares the gradient";
    clamp_min => Binary::ClampMin, "max(a, b) with b as a bound: a tie has no gradient";
    clamp_max => Binary::ClampMax, "min(a, b) with b as a bound: a tie has no gradient";
    #[doc(alias = "modulo")]
    fmod => Binary::Fmod, "remainder with the dividend's sign";
    remainder => Binary::Remainder, "remainder with the divisor's sign";
    atan2 => Binary::Atan2, "angle of (b, a)";
    hypot => Binary::Hypot, "sqrt(a^2 + b^2) without overflow";
    copysign => Binary::Copysign, "|a| with the sign of b";
    logaddexp => Binary::Logaddexp, "ln(e^a + e^b)";
    logaddexp2 => Binary::Logaddexp2, "log2(2^a + 2^b)";
    xlogy => Binary::Xlogy, "a ln b, 0 where a = 0";
    xlog1py => Binary::Xlog1py, "a ln(1 + b), 0 where a = 0";
    nextafter => Binary::Nextafter, "the number next to a towards b; no gradient";
    zeta => Binary::Zeta, "Hurwitz zeta function, sum of (k + b)^-a from k = 0; a gradient for b alone";
    #[doc(alias = "gammainc")]
    igamma => Binary::Igamma, "regularized lower incomplete gamma function P(a, b); a gradient for b alone, that for a is an error";
    #[doc(alias = "gammaincc")]
    igammac => Binary::Igammac, "regularized upper incomplete gamma function, 1 - P(a, b); a gradient for b alone, as for P";
    ldexp => Binary::Ldexp, "a * 2^b with b of i32";
    eq => Binary::Eq, "u8 mask: a = b";
    ne => Binary::Ne, "u8 mask: a != b";
    #[doc(alias = "cmplt")]
    lt => Binary::Lt, "u8 mask: a < b";
    le => Binary::Le, "u8 mask: a <= b";
    gt => Binary::Gt, "u8 mask: a > b";
    ge => Binary::Ge, "u8 mask: a >= b";
    logical_and => Binary::LogicalAnd, "of u8 masks: a and b";
    logical_or => Binary::LogicalOr, "of u8 masks: a or b";
    logical_xor => Binary::LogicalXor, "of u8 masks: a or b, not both";
    bitwise_and => Binary::BitwiseAnd, "of integers: a & b";
    bitwise_or => Binary::BitwiseOr, "of integers: a | b";
    bitwise_xor => Binary::BitwiseXor, "of integers: a ^ b";
    #[doc(alias = "bitwise_left_shift")]
    shl => Binary::Shl, "of integers: a << b, 0 for shifts by the width or more";
    #[doc(alias = "bitwise_right_shift")]
    shr => Binary::Shr, "of integers: a >> b, filled with the sign";
}

macro_rules! comparisons {
    ($($name:ident => $op:ident, $doc:literal;)*) => {
        impl Tensor {$(
            #[doc = $doc]
            #[doc = " Errors: a fraction to compare integers with."]
            pub fn $name(&self, c: f64) -> Result<Tensor> {
                let c = self.constant(stringify!($name), c)?;
                self.binary(Binary::$op, &c)
            }
        )*}
    };
}
comparisons! {
    eq_scalar => Eq, "u8 mask: x = c.";
    ne_scalar => Ne, "u8 mask: x != c.";
    lt_scalar => Lt, "u8 mask: x < c.";
    le_scalar => Le, "u8 mask: x <= c.";
    gt_scalar => Gt, "u8 mask: x > c.";
    ge_scalar => Ge, "u8 mask: x >= c.";
}
