//! Convolution.

use super::*;
use trefoil::ops::activation::Activation;
use trefoil::ops::conv::{CausalConvBwd, CausalConvIo, Conv, ConvBwd, ConvIo, DeformConvBwd, DeformConvIo};

pub(super) fn conv(t: &mut Bed<'_>) {
    shapes(t);
    gradients(t);
    transposed(t);
    columns(t);
    causal(t);
    deformable(t);
}

/// x [2, 4, 5, 6] and w [6, 2, 3, 3] in two groups give y [2, 6, 3, 4].
const X: [usize; 4] = [2, 4, 5, 6];
const W: [usize; 4] = [6, 2, 3, 3];
const Y: [usize; 4] = [2, 6, 3, 4];

fn two() -> Conv {
    Conv::new().groups(2)
}

fn shapes(t: &mut Bed<'_>) {
    let (x, w, y, b) = (t.f32(240), t.f32(108), t.f32(144), t.f32(6));
    let (h, i, small) = (t.buf(DType::F16, 108), t.buf(DType::I32, 240), t.f32(5));
    let io = || ConvIo::new(sh(&x, &X), sh(&w, &W), out(&y, &Y));
    t.accept("a convolution in two groups", |g| g.conv(&two(), io()));
    let y = t.f32(144);
    let io = || ConvIo::new(sh(&x, &X), sh(&w, &W), out(&y, &Y));
    t.refuse("groups that do not fit the weight", &[&y], |g| g.conv(&Conv::new(), io()));
    t.refuse("no groups", &[&y], |g| g.conv(&Conv::new().groups(0), io()));
    t.refuse("groups that do not divide the channels", &[&y], |g| g.conv(&Conv::new().groups(3), io()));
    t.refuse("groups that do not divide the output channels", &[&y], |g| {
        g.conv(&Conv::new().groups(4), with!(io(), w = sh(&w, &[6, 1, 3, 6])))
    });
    t.refuse("stride 0", &[&y], |g| g.conv(&two().stride(0), io()));
    t.refuse("dilation 0", &[&y], |g| g.conv(&two().dilation([1, 0]), io()));
    t.refuse("strides of three axes for two", &[&y], |g| g.conv(&two().stride([1, 1, 1]), io()));
    t.refuse("pads of four axes", &[&y], |g| g.conv(&two().pad([0, 0, 0, 0]), io()));
    t.refuse("padding that gives another output", &[&y], |g| g.conv(&two().pad(1), io()));
    t.refuse("padding behind that gives another output", &[&y], |g| g.conv(&two().pad_end(1), io()));
    t.refuse("stride beyond 2^31", &[&y], |g| g.conv(&two().stride(usize::MAX), io()));
    t.refuse("dilation that overflows", &[&y], |g| g.conv(&two().dilation((1 << 31) - 1), io()));
    t.refuse("a window larger than the input", &[&y], |g| g.conv(&two().dilation(3), io()));
    t.refuse("a window without elements", &[&y], |g| {
        let none = w.view().range(0, 0)?.reshape(&[6, 2, 0, 3])?;
        g.conv(&two(), with!(io(), w = none))
    });
    t.refuse("a weight of another rank", &[&y], |g| g.conv(&two(), with!(io(), w = sh(&w, &[6, 2, 9]))));
    t.refuse("an input of rank 2", &[&y], |g| {
        g.conv(&two(), with!(io(), x = sh(&x, &[8, 30]), w = sh(&w, &[6, 18])))
    });
    t.refuse("an input of rank 6", &[&y], |g| g.conv(&two(), with!(io(), x = sh(&x, &[2, 4, 5, 6, 1, 1]))));
    t.refuse("a weight of another dtype", &[&y], |g| g.conv(&two(), with!(io(), w = sh(&h, &W))));
    t.refuse("integers", &[&y], |g| g.conv(&two(), with!(io(), x = sh(&i, &X))));
    t.refuse("a bias of another size", &[&y], |g| g.conv(&two(), io().bias(small.view())));
    t.refuse("a scale of rank 2", &[&y], |g| g.conv(&two(), io().scale(sh(&b, &[6, 1]))));
    t.refuse("a residual of another shape", &[&y], |g| g.conv(&two(), io().residual(sh(&x, &X))));
    t.refuse("an activation that is not fused", &[&y], |g| g.conv(&two().act(Activation::Mish), io()));
    t.refuse("rows with gaps", &[&y], |g| {
        let apart =
            x.view().with_layout(Layout::strided(&[1, 2, 3, 3], &[120, 60, 12, 2], 0).expect("rank 4"))?;
        let y = y.alias_mut().range(0, 6)?.reshape(&[1, 6, 1, 1])?;
        g.conv(&Conv::new(), ConvIo::new(apart, sh(&w, &W), y))
    });
    let both = t.f32(400);
    t.refuse("output on the input", &[&both], |g| {
        let x = both.view().range(0, 240)?.reshape(&X)?;
        g.conv(&two(), ConvIo::new(x, sh(&w, &W), both.alias_mut().range(200, 144)?.reshape(&Y)?))
    });
    t.refuse("z on y", &[&y], |g| g.conv(&two(), io().z(out(&y, &Y))));
}

fn gradients(t: &mut Bed<'_>) {
    let (x, w, dy) = (t.f32(240), t.f32(108), t.f32(144));
    let (dx, dw, db) = (t.f32(240), t.f32(108), t.f32(6));
    let outs = [&dx, &dw, &db];
    let io = || {
        ConvBwd::new(sh(&dy, &Y))
            .x(sh(&x, &X))
            .w(sh(&w, &W))
            .dx(out(&dx, &X))
            .dw(out(&dw, &W))
            .dbias(out(&db, &[6]))
    };
    t.refuse("dx without w", &outs, |g| g.conv_bwd(&two(), io().w(None)));
    t.refuse("dw without x", &outs, |g| g.conv_bwd(&two(), io().x(None)));
    t.refuse("dy of another shape", &outs, |g| g.conv_bwd(&two(), with!(io(), dy = sh(&dy, &[2, 6, 4, 3]))));
    t.refuse("dx of another shape", &outs, |g| g.conv_bwd(&two(), io().dx(out(&dx, &[2, 4, 6, 5]))));
    t.refuse("dw of another shape", &outs, |g| g.conv_bwd(&two(), io().dw(out(&dw, &[6, 2, 9, 1]))));
    t.refuse("dbias of another shape", &outs, |g| g.conv_bwd(&two(), io().dbias(out(&db, &[1, 6]))));
    t.refuse("an activation without what it saved", &outs, |g| {
        g.conv_bwd(&two().act(Activation::Relu), io())
    });
    t.refuse("saved values of another shape", &outs, |g| {
        g.conv_bwd(&two().act(Activation::Relu), io().saved(sh(&x, &X)))
    });
    t.refuse("stride 0", &outs, |g| g.conv_bwd(&two().stride(0), io()));
    t.refuse("dx on dy", &outs, |g| {
        let onto = dx.view().range(0, 144)?.reshape(&Y)?;
        g.conv_bwd(&two(), with!(io(), dy = onto))
    });
    t.refuse("dbias on dw", &outs, |g| g.conv_bwd(&two(), io().dbias(dw.alias_mut().range(0, 6)?)));
}

/// x [2, 4, 5] and w [4, 3, 3] with stride 2 give y [2, 3, 11].
fn transposed(t: &mut Bed<'_>) {
    let (x, w, y) = (t.f32(40), t.f32(36), t.f32(66));
    let io = || ConvIo::new(sh(&x, &[2, 4, 5]), sh(&w, &[4, 3, 3]), out(&y, &[2, 3, 11]));
    let p = Conv::new().stride(2);
    t.refuse("output padding of the stride", &[&y], |g| g.conv_transpose(&p.out_pad(2), io()));
    t.refuse("output padding that gives another output", &[&y], |g| g.conv_transpose(&p.out_pad(1), io()));
    t.refuse("padding that leaves nothing", &[&y], |g| g.conv_transpose(&p.pad(6), io()));
    t.refuse("a weight of other channels", &[&y], |g| {
        g.conv_transpose(&p, with!(io(), w = sh(&w, &[3, 4, 3])))
    });
    t.refuse("groups that do not divide the channels", &[&y], |g| g.conv_transpose(&p.groups(3), io()));
    t.refuse("stride 0", &[&y], |g| g.conv_transpose(&Conv::new().stride(0), io()));
    let dx = t.f32(40);
    t.refuse("gradient of another shape", &[&dx], |g| {
        let mut io = ConvBwd::new(sh(&y, &[2, 3, 11]));
        (io.w, io.dx) = (Some(sh(&w, &[4, 3, 3])), Some(out(&dx, &[2, 5, 4]).into()));
        g.conv_transpose_bwd(&p, io)
    });
    t.accept("a transposed convolution", |g| g.conv_transpose(&p, io()));
}

/// x [1, 2, 4, 4] has nine windows of 2 x 2.
fn columns(t: &mut Bed<'_>) {
    let (x, col) = (t.f32(32), t.f32(72));
    let p = Conv::new();
    let (xs, cs) = ([1, 2, 4, 4], [1, 8, 9]);
    t.refuse("columns of another shape", &[&col], |g| {
        g.im2col(&p, &[2, 2], sh(&x, &xs), out(&col, &[1, 9, 8]).into())
    });
    t.refuse("one size for two axes", &[&col], |g| g.im2col(&p, &[2], sh(&x, &xs), out(&col, &cs).into()));
    t.refuse("windows larger than x", &[&col], |g| g.im2col(&p, &[5, 5], sh(&x, &xs), out(&col, &cs).into()));
    t.refuse("windows of nothing", &[&col], |g| g.im2col(&p, &[0, 2], sh(&x, &xs), out(&col, &cs).into()));
    t.refuse("stride 0", &[&col], |g| g.im2col(&p.stride(0), &[2, 2], sh(&x, &xs), out(&col, &cs).into()));
    t.refuse("folding into another shape", &[&x], |g| {
        g.col2im(&p, &[2, 2], sh(&col, &cs), out(&x, &[1, 2, 2, 8]).into())
    });
    t.refuse("folding windows that are not there", &[&x], |g| {
        g.col2im(&p, &[2, 2], sh(&col, &[1, 8, 9]), out(&x, &[1, 1, 4, 8]).into())
    });
    let both = t.f32(104);
    t.refuse("columns on x", &[&both], |g| {
        let x = both.view().range(0, 32)?.reshape(&xs)?;
        g.im2col(&p, &[2, 2], x, both.alias_mut().range(16, 72)?.reshape(&cs)?.into())
    });
}

fn causal(t: &mut Bed<'_>) {
    let (x, w, b, y) = (t.f32(30), t.f32(9), t.f32(3), t.f32(30));
    let state = t.f32(12);
    let (xs, ws) = ([2, 3, 5], [3, 3]);
    let io = || CausalConvIo::new(sh(&x, &xs), sh(&w, &ws), out(&y, &xs)).bias(b.view());
    let none = Activation::Identity;
    t.refuse("a weight of other channels", &[&y], |g| {
        g.causal_conv1d(none, with!(io(), w = w.view().range(0, 6)?.reshape(&[2, 3])?))
    });
    t.refuse("a weight without taps", &[&y], |g| {
        g.causal_conv1d(none, with!(io(), w = w.view().range(0, 0)?.reshape(&[3, 0])?))
    });
    t.refuse("a sequence of rank 2", &[&y], |g| g.causal_conv1d(none, with!(io(), x = sh(&x, &[6, 5]))));
    t.refuse("a state of another length", &[&y], |g| {
        g.causal_conv1d(none, io().state(sh(&state, &[2, 2, 3])))
    });
    t.refuse("an activation that is not fused", &[&y], |g| g.causal_conv1d(Activation::Mish, io()));
    t.refuse("the state on y", &[&y], |g| {
        let onto = y.alias_mut().range(0, 12)?.reshape(&[2, 3, 2])?;
        g.causal_conv1d(none, io().new_state(onto))
    });
    t.refuse("the new state partly on the old one", &[&state, &y], |g| {
        let all = t_part(&state);
        g.causal_conv1d(none, io().state(all.0).new_state(all.1))
    });
    let dx = t.f32(30);
    t.refuse("gradient of another shape", &[&dx], |g| {
        let io = CausalConvBwd::new(sh(&y, &xs), sh(&x, &xs), sh(&w, &ws)).dx(out(&dx, &[2, 5, 3]));
        g.causal_conv1d_bwd(none, io)
    });
}

/// The state of one image seen as such, and the same elements in another order.
fn t_part(state: &Buffer) -> (View<'_>, ViewMut<'_>) {
    let shifted = Layout::strided(&[2, 3, 2], &[2, 4, 1], 0).expect("rank 3");
    (sh(state, &[2, 3, 2]), state.alias_mut().with_layout(shifted).expect("twelve elements"))
}

/// x [1, 4, 4, 4], w [2, 4, 2, 2], one deformation group: offset [1, 8, 3, 3], mask [1, 4, 3, 3], y [1, 2, 3, 3].
fn deformable(t: &mut Bed<'_>) {
    let (x, w, o, m, y) = (t.f32(64), t.f32(32), t.f32(72), t.f32(36), t.f32(18));
    let (xs, ws, ys) = ([1, 4, 4, 4], [2, 4, 2, 2], [1, 2, 3, 3]);
    let io = || {
        DeformConvIo::new(sh(&x, &xs), sh(&w, &ws), sh(&o, &[1, 8, 3, 3]), out(&y, &ys))
            .mask(sh(&m, &[1, 4, 3, 3]))
    };
    let p = Conv::new();
    t.refuse("offsets for other windows", &[&y], |g| {
        g.deform_conv(&p, with!(io(), offset = sh(&o, &[1, 9, 2, 4])))
    });
    t.refuse("offsets of half a group", &[&y], |g| {
        g.deform_conv(&p, with!(io(), offset = o.view().range(0, 36)?.reshape(&[1, 4, 3, 3])?))
    });
    t.refuse("a mask of another shape", &[&y], |g| g.deform_conv(&p, io().mask(sh(&m, &[1, 9, 2, 2]))));
    t.refuse("three axes", &[&y], |g| g.deform_conv(&p, with!(io(), x = sh(&x, &[1, 4, 4, 2, 2]))));
    t.refuse("another output", &[&y], |g| g.deform_conv(&p, with!(io(), y = out(&y, &[1, 2, 9, 1]))));
    let dm = t.f32(36);
    t.refuse("gradient of a mask that is not there", &[&dm], |g| {
        let io = DeformConvBwd::new(sh(&y, &ys), sh(&x, &xs), sh(&w, &ws), sh(&o, &[1, 8, 3, 3]))
            .dmask(out(&dm, &[1, 4, 3, 3]));
        g.deform_conv_bwd(&p, io)
    });
}
