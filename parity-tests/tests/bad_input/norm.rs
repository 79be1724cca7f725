//! Normalization, gated units, masked softmax, bias with dropout.

use super::*;
use trefoil::ops::activation::{Activation, ActivationBiasBwd, GatedGrad, GatedInput, Saved};
use trefoil::ops::norm::{
    BatchNorm, BatchNormBwd, BatchNormFwd, BatchStats, GroupNorm, GroupNormBwd, GroupNormFwd, InstanceNorm,
    Momentum, RowNorm, RowNormBwd, RowNormFwd, Running,
};
use trefoil::ops::random::{BiasDropout, DropoutMask, Rng};

fn rows(t: &mut Bed<'_>) {
    let (x, y, k, h) = (t.f32(12), t.f32(12), t.f32(4), t.buf(DType::F16, 12));
    let (k3, r3, i) = (t.f32(3), t.f32(3), t.buf(DType::I32, 12));
    let s = [3, 4];
    let fwd = |g: &dyn IGpuBackend, p: RowNorm, f: &dyn Fn(&mut RowNormFwd<'_>)| {
        let (gamma, mut io) = (k.view(), RowNormFwd::new(sh(&x, &s), out(&y, &s)));
        io.gamma = Some(gamma);
        f(&mut io);
        g.row_norm(&p, io)
    };
    t.accept("layer norm", |g| fwd(g, RowNorm::layer(), &|_| ()));
    let y2 = t.f32(12);
    let bad = |g: &dyn IGpuBackend, p: RowNorm| g.row_norm(&p, RowNormFwd::new(sh(&x, &s), out(&y2, &s)));
    t.refuse("eps of 0", &[&y2], |g| bad(g, RowNorm::layer().eps(0.0)));
    t.refuse("eps that is no number", &[&y2], |g| bad(g, RowNorm::rms().eps(f64::NAN)));
    t.refuse("no axis", &[&y2], |g| bad(g, RowNorm::layer().axes(0)));
    t.refuse("more axes than there are", &[&y2], |g| bad(g, RowNorm::layer().axes(3)));
    t.refuse("an activation that is not fused", &[&y2], |g| bad(g, RowNorm::layer().act(Activation::Mish)));
    t.refuse("gamma of another size", &[&y2], |g| {
        let mut io = RowNormFwd::new(sh(&x, &s), out(&y2, &s));
        io.gamma = Some(k3.view());
        g.row_norm(&RowNorm::layer(), io)
    });
    t.refuse("a residual of another shape", &[&y2], |g| {
        let mut io = RowNormFwd::new(sh(&x, &s), out(&y2, &s));
        io.residual = Some(sh(&x, &[4, 3]));
        g.row_norm(&RowNorm::layer(), io)
    });
    t.refuse("a mean of RMS norm", &[&y2, &r3], |g| {
        let mut io = RowNormFwd::new(sh(&x, &s), out(&y2, &s));
        io.mean = Some(r3.alias_mut());
        g.row_norm(&RowNorm::rms(), io)
    });
    t.refuse("statistics of another size", &[&y2, &k3], |g| {
        let mut io = RowNormFwd::new(sh(&x, &[4, 3]), out(&y2, &[4, 3]));
        io.rstd = Some(k3.alias_mut());
        g.row_norm(&RowNorm::layer(), io)
    });
    t.refuse("a result of another dtype", &[&h], |g| {
        g.row_norm(&RowNorm::layer(), RowNormFwd::new(sh(&x, &s), out(&h, &s)))
    });
    t.refuse("a result on its input", &[&y2], |g| {
        g.row_norm(&RowNorm::layer(), RowNormFwd::new(sh(&y2, &s), out(&y2, &s)))
    });
    t.refuse("integers", &[&i], |g| g.row_norm(&RowNorm::layer(), RowNormFwd::new(sh(&i, &s), out(&i, &s))));
    t.refuse("a gradient without the mean", &[&y2], |g| {
        let mut io = RowNormBwd::new(sh(&x, &s), sh(&x, &s), r3.view());
        io.dx = Some(out(&y2, &s).into());
        g.row_norm_bwd(&RowNorm::layer(), io)
    });
    t.refuse("a gradient of gamma of another size", &[&k3], |g| {
        let mut io = RowNormBwd::new(sh(&x, &s), sh(&x, &s), r3.view());
        io.dgamma = Some(k3.alias_mut().into());
        g.row_norm_bwd(&RowNorm::rms(), io)
    });
    t.refuse("normalisation along axis 2 of rank 2", &[&y2], |g| {
        g.l2_normalize(2, 1e-12, sh(&x, &s), out(&y2, &s))
    });
    t.refuse("a negative eps", &[&y2], |g| g.l2_normalize(1, -1.0, sh(&x, &s), out(&y2, &s)));
    t.refuse("a gradient of another shape", &[&y2], |g| {
        g.l2_normalize_bwd(1, 1e-12, sh(&x, &[4, 3]), sh(&x, &s), out(&y2, &s).into())
    });
}

fn channels(t: &mut Bed<'_>) {
    let (x, y, c4, c3) = (t.f32(24), t.f32(24), t.f32(4), t.f32(3));
    let (rm, rv, n) = (t.f32(4), t.f32(4), t.f32(2));
    let s = [2, 4, 3];
    t.refuse("groups that do not divide", &[&y], |g| {
        g.group_norm(&GroupNorm::new(3), GroupNormFwd::new(sh(&x, &s), out(&y, &s)))
    });
    t.refuse("no groups", &[&y], |g| {
        g.group_norm(&GroupNorm::new(0), GroupNormFwd::new(sh(&x, &s), out(&y, &s)))
    });
    t.refuse("a vector", &[&y], |g| {
        g.group_norm(&GroupNorm::new(1), GroupNormFwd::new(x.view(), out(&y, &[24])))
    });
    t.refuse("beta of another size", &[&y], |g| {
        let mut io = GroupNormFwd::new(sh(&x, &s), out(&y, &s));
        io.beta = Some(c3.view());
        g.group_norm(&GroupNorm::new(2), io)
    });
    t.refuse("running statistics of groups", &[&y, &rm, &rv], |g| {
        let mut io = GroupNormFwd::new(sh(&x, &s), out(&y, &s));
        let momentum = Momentum::Factor(0.1);
        io.running = Some(Running::new(rm.alias_mut(), rv.alias_mut(), momentum));
        g.group_norm(&GroupNorm::new(4), io)
    });
    t.refuse("instances of one value", &[&y], |g| {
        let io = GroupNormFwd::new(sh(&x, &[6, 4]), out(&y, &[6, 4]));
        g.instance_norm(&InstanceNorm::new(), io)
    });
    t.refuse("saved statistics of other groups", &[&y], |g| {
        let mut io = GroupNormBwd::new(sh(&x, &s), sh(&x, &s), sh(&c4, &[2, 2]), sh(&c4, &[2, 2]));
        io.dx = Some(out(&y, &s).into());
        g.group_norm_bwd(&GroupNorm::new(4), io)
    });
    t.refuse("one value per channel", &[&y], |g| {
        let io = BatchNormFwd::new(sh(&x, &[1, 24]), BatchStats::Batch(None), out(&y, &[1, 24]));
        g.batch_norm(&BatchNorm::new(), io)
    });
    t.refuse("running statistics of another size", &[&y, &rm, &c3], |g| {
        let momentum = Momentum::Factor(0.1);
        let running = Running::new(rm.alias_mut(), c3.alias_mut(), momentum);
        let stats = BatchStats::Batch(Some(running));
        g.batch_norm(&BatchNorm::new(), BatchNormFwd::new(sh(&x, &s), stats, out(&y, &s)))
    });
    t.refuse("a counter of floats", &[&y, &rm, &rv, &n], |g| {
        let momentum = Momentum::Cumulative(n.alias_mut().range(0, 1)?);
        let running = Running::new(rm.alias_mut(), rv.alias_mut(), momentum);
        let stats = BatchStats::Batch(Some(running));
        g.batch_norm(&BatchNorm::new(), BatchNormFwd::new(sh(&x, &s), stats, out(&y, &s)))
    });
    t.refuse("a momentum that is no number", &[&y, &rm, &rv], |g| {
        let momentum = Momentum::Factor(f64::NAN);
        let running = Running::new(rm.alias_mut(), rv.alias_mut(), momentum);
        let stats = BatchStats::Batch(Some(running));
        g.batch_norm(&BatchNorm::new(), BatchNormFwd::new(sh(&x, &s), stats, out(&y, &s)))
    });
    t.refuse("given statistics of another size", &[&y], |g| {
        let stats = BatchStats::Given { mean: c3.view(), var: c3.view() };
        g.batch_norm(&BatchNorm::new(), BatchNormFwd::new(sh(&x, &s), stats, out(&y, &s)))
    });
    t.refuse("a gradient of batch norm into another shape", &[&y], |g| {
        let mut io = BatchNormBwd::new(sh(&x, &s), sh(&x, &s), c4.view(), c4.view());
        io.dx = Some(out(&y, &[4, 2, 3]).into());
        g.batch_norm_bwd(&BatchNorm::new(), io)
    });
}

/// Operands of the gradient of four rows with a bias.
fn with_bias<'a>(
    [d, x, y]: [&'a Buffer; 3],
    dbias: &'a Buffer,
    n: usize,
) -> trefoil::Result<ActivationBiasBwd<'a>> {
    let dbias = dbias.alias_mut().range(0, n)?.grad(false);
    Ok(ActivationBiasBwd::new(sh(d, &[4, 3]), Saved::Input(sh(x, &[4, 3])), out(y, &[4, 3]), dbias))
}

fn fused(t: &mut Bed<'_>) {
    let (x, y, d) = (t.f32(12), t.f32(12), t.f32(12));
    let (half, a2, m) = (t.f32(6), t.f32(2), t.buf(DType::U8, 12));
    let sigmoid = Activation::Sigmoid;
    t.refuse("halves of an odd axis", &[&half], |g| {
        let input = GatedInput::Halves { x: sh(&x, &[4, 3]), axis: 1, gate_first: false };
        g.gated(sigmoid, input, half.alias_mut().range(0, 4)?.reshape(&[4, 1])?)
    });
    t.refuse("halves along axis 2 of rank 2", &[&half], |g| {
        let input = GatedInput::Halves { x: sh(&x, &[3, 4]), axis: 2, gate_first: false };
        g.gated(sigmoid, input, out(&half, &[3, 2]))
    });
    t.refuse("gate and factor of two shapes", &[&y], |g| {
        let input = GatedInput::Two { gate: sh(&x, &[3, 4]), up: sh(&d, &[4, 3]) };
        g.gated(sigmoid, input, out(&y, &[3, 4]))
    });
    t.refuse("a gate of softplus", &[&y], |g| {
        let input = GatedInput::Two { gate: x.view(), up: d.view() };
        g.gated(Activation::Softplus { beta: 1.0, threshold: 20.0 }, input, y.alias_mut())
    });
    t.refuse("gradients of the other form", &[&y], |g| {
        let input = GatedInput::Two { gate: x.view(), up: d.view() };
        g.gated_bwd(sigmoid, x.view(), input, GatedGrad::Halves(y.alias_mut().into()))
    });
    t.refuse("two slopes for three channels", &[&y], |g| {
        g.prelu(sh(&x, &[4, 3]), a2.view(), out(&y, &[4, 3]))
    });
    t.refuse("a gradient of slopes of another size", &[&y, &a2], |g| {
        let one = x.view().range(0, 1)?;
        let (dx, da) = (out(&y, &[4, 3]).into(), a2.alias_mut().into());
        g.prelu_bwd(sh(&d, &[4, 3]), sh(&x, &[4, 3]), one, Some(dx), Some(da))
    });
    t.refuse("a bias of another size than rows", &[&y, &a2], |g| {
        g.activation_bias_bwd(Activation::Gelu, with_bias([&d, &x, &y], &a2, 2)?)
    });
    t.refuse("the input of a sigmoid with a bias", &[&y, &half], |g| {
        g.activation_bias_bwd(sigmoid, with_bias([&d, &x, &y], &half, 3)?)
    });
    t.refuse("a bias of one group with offsets", &[&y, &half], |g| {
        g.activation_bias_bwd(Activation::Gelu, with_bias([&d, &x, &y], &half, 3)?.offsets(m.view()))
    });
    t.refuse("a mask that does not broadcast", &[&y], |g| {
        g.masked_softmax(1.0, sh(&x, &[3, 4]), Some(sh(&d, &[4, 3])), out(&y, &[3, 4]))
    });
    t.refuse("a mask of bytes", &[&y], |g| {
        g.masked_softmax(1.0, sh(&x, &[3, 4]), Some(sh(&m, &[3, 4])), out(&y, &[3, 4]))
    });
    t.refuse("a masked gradient of another shape", &[&y], |g| {
        g.masked_softmax_bwd(1.0, sh(&x, &[4, 3]), sh(&d, &[3, 4]), out(&y, &[3, 4]).into())
    });
    let io = || BiasDropout::new(sh(&x, &[6, 2]), a2.view(), out(&y, &[6, 2]));
    t.refuse("a bias of another size", &[&y], |g| {
        let short = with!(io(), bias = half.view());
        g.bias_dropout(0.5, Rng::new(1), short)
    });
    t.refuse("a probability above 1", &[&y], |g| g.bias_dropout(1.5, Rng::new(1), io()));
    t.refuse("a gradient of the bias of another size", &[&half], |g| {
        let mask = DropoutMask::Regenerate(Rng::new(1));
        g.bias_dropout_bwd(0.5, mask, sh(&x, &[6, 2]), None, Some(half.alias_mut().into()))
    });
}

pub(super) fn norm(t: &mut Bed<'_>) {
    rows(t);
    channels(t);
    fused(t);
}
