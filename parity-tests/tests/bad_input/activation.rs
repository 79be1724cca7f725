//! Activations and softmax.

use super::*;
use trefoil::ops::activation::{Activation, Saved};
use trefoil::ops::softmax::Softmax;

pub(super) fn activation(t: &mut Bed<'_>) {
    let (x, y, d) = (t.f32(12), t.f32(12), t.f32(12));
    let i = t.buf(DType::I64, 12);
    t.refuse("softmax along axis 2 of rank 2", &[&y], |g| {
        g.softmax(Softmax::Softmax, 2, sh(&x, &[3, 4]), out(&y, &[3, 4]))
    });
    t.refuse("softmax into another shape", &[&y], |g| {
        g.softmax(Softmax::Softmax, 1, sh(&x, &[3, 4]), out(&y, &[4, 3]))
    });
    t.refuse("activation of integers", &[&i], |g| g.activation(Activation::Relu, i.view(), out(&i, &[12])));
    t.refuse("gelu gradient from the output", &[&d], |g| {
        g.activation_bwd(Activation::Gelu, x.view(), Saved::Output(y.view()), out(&d, &[12]).into())
    });
    t.refuse("sigmoid gradient from the input", &[&d], |g| {
        g.activation_bwd(Activation::Sigmoid, x.view(), Saved::Input(y.view()), out(&d, &[12]).into())
    });
    t.refuse("elu gradient from the output with negative alpha", &[&d], |g| {
        g.activation_bwd(
            Activation::Elu { alpha: -1.0 },
            x.view(),
            Saved::Output(y.view()),
            out(&d, &[12]).into(),
        )
    });
    t.refuse("softmax gradient of another shape", &[&d], |g| {
        g.softmax_bwd(Softmax::LogSoftmax, 0, sh(&x, &[3, 4]), sh(&y, &[4, 3]), out(&d, &[4, 3]).into())
    });
}
