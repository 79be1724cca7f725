//! Convolution.

use trefoil::ops::activation::Activation;
use trefoil::ops::conv::{CausalConvBwd, CausalConvIo, Conv, ConvBwd, ConvIo, DeformConvBwd, DeformConvIo};
use trefoil::ops::gemm::Precision;
use trefoil::{Buffer, DType, Layout, LayoutError, Result, View, ViewMut};

use crate::case::{Case, CaseError, Operation, both};
use crate::{Context, F32, F32_BF16, Prepared, Problem, bytes, flops, prepared, problem};

/// A convolution with the same window, stride, padding and dilation on every axis.
#[derive(Clone)]
struct Convolution {
    n: usize,
    /// Channels in and out.
    c: usize,
    k: usize,
    /// Sides of the input.
    sides: Vec<usize>,
    /// Side of the window.
    r: usize,
    stride: usize,
    pad: usize,
    dilation: usize,
    groups: usize,
    transposed: bool,
    precision: Precision,
    bias: bool,
    act: Activation,
    /// Whether tensors are channels last; else they are contiguous.
    last: bool,
}

/// Elements of a shape.
fn count(shape: &[usize]) -> usize {
    shape.iter().product()
}

impl Convolution {
    /// 3 x 3 windows over square images of up to these sizes, stride 1, with bias.
    fn square(cx: &Context<'_>, c: usize, side: usize) -> Self {
        let (n, c, side) = (cx.pick(1, 2, 64), cx.pick(4, c.min(32), c), cx.pick(8, side.min(16), side));
        Convolution {
            n,
            c,
            k: c,
            sides: vec![side; 2],
            r: 3,
            stride: 1,
            pad: 1,
            dilation: 1,
            groups: 1,
            transposed: false,
            precision: Precision::Ieee,
            bias: true,
            act: Activation::Identity,
            last: false,
        }
    }

    /// Windows of side `r`, which keep the images' size at stride 1.
    fn window(self, r: usize) -> Self {
        Convolution { r, pad: r / 2, ..self }
    }

    fn depthwise(cx: &Context<'_>, stride: usize) -> Self {
        let s = Self::square(cx, 256, 28);
        Convolution { groups: s.c, stride, ..s }
    }

    fn transposed(cx: &Context<'_>) -> Self {
        let s = Self::square(cx, 128, 32);
        let (n, c, k, side) = (cx.pick(1, 2, 32), cx.pick(4, 16, 128), cx.pick(4, 8, 64), cx.pick(6, 8, 32));
        Convolution { n, c, k, sides: vec![side; 2], r: 4, stride: 2, transposed: true, bias: false, ..s }
    }

    /// The input's sides are under these keys.
    fn of_case(c: &Case, axes: &[&str], transposed: bool) -> Result<Self, CaseError> {
        let conv = Convolution {
            n: c.size("n")?,
            c: c.size("c")?,
            k: c.size("k")?,
            sides: axes.iter().map(|axis| c.size(axis)).collect::<Result<_, _>>()?,
            r: c.size("r")?,
            stride: c.size_or("stride", 1)?,
            pad: c.whole_or("pad", 0)?,
            dilation: c.size_or("dilation", 1)?,
            groups: c.size_or("groups", 1)?,
            transposed,
            precision: c.precision(),
            bias: false,
            act: Activation::Identity,
            last: c.flag("channels_last"),
        };
        match conv.sides.iter().position(|&side| conv.out(side).is_none()) {
            Some(axis) => Err(c.unexpected(axes[axis], "a side that leaves an output")),
            None => Ok(conv),
        }
    }

    /// The output's side, if there is one.
    fn out(&self, side: usize) -> Option<usize> {
        let window = self.dilation * (self.r - 1) + 1;
        if self.transposed {
            ((side - 1) * self.stride + window).checked_sub(2 * self.pad).filter(|&s| s > 0)
        } else {
            (side + 2 * self.pad).checked_sub(window).map(|room| room / self.stride + 1)
        }
    }

    fn plan(&self) -> Conv {
        let p = Conv::new().stride(self.stride).pad(self.pad).dilation(self.dilation);
        p.groups(self.groups).precision(self.precision).act(self.act)
    }

    /// Input, weight and output.
    fn shapes(&self) -> [Vec<usize>; 3] {
        let channels =
            if self.transposed { [self.c, self.k / self.groups] } else { [self.k, self.c / self.groups] };
        let window = vec![self.r; self.sides.len()];
        let out = self.sides.iter().map(|&s| self.out(s).unwrap_or(0)).collect();
        [
            [vec![self.n, self.c], self.sides.clone()].concat(),
            [channels.to_vec(), window].concat(),
            [vec![self.n, self.k], out].concat(),
        ]
    }

    /// The layout of a tensor's elements in a buffer.
    fn layout(&self, shape: &[usize]) -> Result<Layout, LayoutError> {
        if self.last { Layout::channels_last(shape) } else { Layout::contiguous(shape) }
    }

    /// A tensor's elements.
    fn view<'a>(&self, buffer: &'a Buffer, shape: &[usize]) -> Result<View<'a>> {
        buffer.view().map("tensor", |_| self.layout(shape))
    }

    /// A tensor's elements, to be written.
    fn view_mut<'a>(&self, buffer: &'a mut Buffer, shape: &[usize]) -> Result<ViewMut<'a>> {
        buffer.view_mut().map("tensor", |_| self.layout(shape))
    }

    /// Bytes of the three tensors, and operations of one of the three products.
    fn work(&self, dt: DType) -> [usize; 2] {
        let [x, w, y] = self.shapes();
        // Every element of the smaller map meets a window of weights.
        let met = if self.transposed { count(&x) } else { count(&y) };
        [(count(&x) + count(&w) + count(&y)) * dt.size(), 2 * met * (count(&w) / w[0])]
    }

    fn forward(self, cx: &Context<'_>, dt: DType) -> Result<Prepared> {
        let ([moved, ops], [xs, ws, ys], p) = (self.work(dt), self.shapes(), self.plan());
        let sets = cx.sets(moved);
        let x = cx.normal_sets(dt, count(&xs), sets)?;
        let w = cx.sets_of(sets, |cx| cx.normal_std(dt, count(&ws), 0.05))?;
        let bias = if self.bias { Some(cx.normal(dt, self.k)?) } else { None };
        let mut y = cx.empty(dt, count(&ys))?;
        prepared(moved, ops, move |g, i| {
            let mut io =
                ConvIo::new(self.view(x.at(i), &xs)?, self.view(w.at(i), &ws)?, self.view_mut(&mut y, &ys)?);
            io.bias = bias.as_ref().map(|b| b.view());
            if self.transposed { g.conv_transpose(&p, io) } else { g.conv(&p, io) }
        })
    }

    /// dx, dw or both.
    fn backward(self, cx: &Context<'_>, dt: DType, [want_dx, want_dw]: [bool; 2]) -> Result<Prepared> {
        let ([moved, ops], [xs, ws, ys], p) = (self.work(dt), self.shapes(), self.plan());
        let sets = cx.sets(moved);
        let (x, dy) = (cx.normal_sets(dt, count(&xs), sets)?, cx.normal_sets(dt, count(&ys), sets)?);
        let w = cx.sets_of(sets, |cx| cx.normal_std(dt, count(&ws), 0.05))?;
        let (mut dx, mut dw) = (cx.empty(dt, count(&xs))?, cx.empty(dt, count(&ws))?);
        let times = want_dx as usize + want_dw as usize;
        prepared(times * moved, times * ops, move |g, i| {
            let mut io = ConvBwd::new(self.view(dy.at(i), &ys)?);
            (io.x, io.w) = (Some(self.view(x.at(i), &xs)?), Some(self.view(w.at(i), &ws)?));
            io.dx = if want_dx { Some(self.view_mut(&mut dx, &xs)?.into()) } else { None };
            io.dw = if want_dw { Some(self.view_mut(&mut dw, &ws)?.into()) } else { None };
            if self.transposed { g.conv_transpose_bwd(&p, io) } else { g.conv_bwd(&p, io) }
        })
    }
}

/// A convolution of a case, forward and backward.
macro_rules! operation {
    ($name:literal, $axes:expr, $transposed:literal) => {
        both(
            $name,
            |cx, c| Ok(Convolution::of_case(c, &$axes, $transposed)?.forward(cx, c.dtype()?)?),
            |cx, c| {
                Ok(Convolution::of_case(c, &$axes, $transposed)?.backward(cx, c.dtype()?, [true, true])?)
            },
        )
    };
}

pub(super) const OPERATIONS: &[Operation] = &[
    operation!("conv1d", ["w"], false),
    operation!("conv2d", ["h", "w"], false),
    operation!("conv3d", ["d", "h", "w"], false),
    operation!("conv_transpose2d", ["h", "w"], true),
];

/// Images, channels, side of a deformable convolution of 3 x 3 taps, and its elements: x, w, offsets, mask, y.
fn deformable(cx: &Context<'_>) -> ([usize; 3], [usize; 5]) {
    let (n, c, side) = (cx.pick(1, 1, 16), cx.pick(4, 16, 128), cx.pick(6, 12, 56));
    let plane = n * side * side;
    ([n, c, side], [c * plane, c * c * 9, 18 * plane, 9 * plane, c * plane])
}

/// Batch, channels and length of a causal convolution.
fn causal(cx: &Context<'_>) -> [usize; 3] {
    [cx.pick(1, 2, 16), cx.pick(4, 32, 2048), cx.pick(64, 256, 2048)]
}

/// Causal convolution with `k` taps and the state behind it.
fn causal_conv(cx: &Context<'_>, dt: DType, k: usize) -> Result<Prepared> {
    let s = causal(cx);
    let (len, c) = (s.iter().product::<usize>(), s[1]);
    let (x, w, bias, mut y) =
        (cx.normal(dt, len)?, cx.normal(dt, k * c)?, cx.normal(dt, c)?, cx.empty(dt, len)?);
    let mut state = cx.zeros(dt, s[0] * c * (k - 1))?;
    bytes(2 * len * dt.size(), move |g| {
        let io = CausalConvIo::new(x.shaped(&s)?, w.shaped(&[c, k])?, y.shaped_mut(&s)?)
            .bias(bias.view())
            .new_state(state.shaped_mut(&[s[0], c, k - 1])?);
        g.causal_conv1d(Activation::Swish { beta: 1.0 }, io)
    })
}

/// All gradients of [`causal_conv`].
fn causal_conv_bwd(cx: &Context<'_>, dt: DType, k: usize) -> Result<Prepared> {
    let s = causal(cx);
    let (len, c) = (s.iter().product::<usize>(), s[1]);
    let (dy, x, w, bias) =
        (cx.normal(dt, len)?, cx.normal(dt, len)?, cx.normal(dt, k * c)?, cx.normal(dt, c)?);
    let (mut dx, mut dw, mut db) = (cx.empty(dt, len)?, cx.empty(dt, k * c)?, cx.empty(dt, c)?);
    bytes(3 * len * dt.size(), move |g| {
        let io = CausalConvBwd::new(dy.shaped(&s)?, x.shaped(&s)?, w.shaped(&[c, k])?)
            .bias(bias.view())
            .dx(dx.shaped_mut(&s)?)
            .dw(dw.shaped_mut(&[c, k])?)
            .dbias(db.view_mut());
        g.causal_conv1d_bwd(Activation::Swish { beta: 1.0 }, io)
    })
}

pub(super) const PROBLEMS: &[Problem] = &[
    problem("conv", "3x3_256x14", F32_BF16, |cx, dt| Convolution::square(cx, 256, 14).forward(cx, dt)),
    problem("conv", "3x3_256x14_channels_last", F32_BF16, |cx, dt| {
        Convolution { last: true, ..Convolution::square(cx, 256, 14) }.forward(cx, dt)
    }),
    problem("conv", "3x3_64x56", F32, |cx, dt| Convolution::square(cx, 64, 56).forward(cx, dt)),
    problem("conv", "3x3_192x28_relu", F32, |cx, dt| {
        let (k, act) = (cx.pick(4, 40, 192), Activation::Relu);
        Convolution { k, act, ..Convolution::square(cx, 192, 28) }.forward(cx, dt)
    }),
    problem("conv", "3x3_64x56_to_128", F32, |cx, dt| {
        let (n, sides) = (cx.pick(32, 64, 64), vec![cx.pick(24, 20, 56); 2]);
        Convolution { k: 128, n, sides, ..Convolution::square(cx, 64, 56) }.forward(cx, dt)
    }),
    problem("conv", "3x3_to_64", F32, |cx, dt| {
        let sides = vec![cx.pick(24, 24, 56); 2];
        Convolution { k: 64, n: 64, sides, ..Convolution::square(cx, 64, 56) }.forward(cx, dt)
    }),
    problem("conv", "3x3_512x7_one_image", F32_BF16, |cx, dt| {
        let c = cx.pick(40, 72, 512);
        Convolution { n: 1, c, k: c, ..Convolution::square(cx, 512, 7) }.forward(cx, dt)
    }),
    problem("conv", "7x7_stride2_3x224", F32, |cx, dt| {
        let s = Convolution::square(cx, 64, 224).window(7);
        Convolution { c: 3, stride: 2, ..s }.forward(cx, dt)
    }),
    problem("conv", "1x1_64x56_to_256", F32_BF16, |cx, dt| {
        let s = Convolution::square(cx, 64, 56).window(1);
        Convolution { k: 4 * s.c, ..s }.forward(cx, dt)
    }),
    problem("conv", "3x3_32x56", F32, |cx, dt| {
        Convolution { k: 32, ..Convolution::square(cx, 32, 56) }.forward(cx, dt)
    }),
    problem("conv", "depthwise_3x3", F32_BF16, |cx, dt| {
        Convolution::depthwise(cx, 1).forward(cx, dt).map(Prepared::by_bytes)
    }),
    problem("conv", "depthwise_7x7", F32, |cx, dt| {
        Convolution::depthwise(cx, 1).window(7).forward(cx, dt).map(Prepared::by_bytes)
    }),
    problem("conv", "depthwise_9x9", F32, |cx, dt| {
        Convolution::depthwise(cx, 1).window(9).forward(cx, dt).map(Prepared::by_bytes)
    }),
    problem("conv", "depthwise_3x3_stride2", F32_BF16, |cx, dt| {
        Convolution::depthwise(cx, 2).forward(cx, dt).map(Prepared::by_bytes)
    }),
    problem("conv", "depthwise_5x5_stride2", F32, |cx, dt| {
        Convolution::depthwise(cx, 2).window(5).forward(cx, dt).map(Prepared::by_bytes)
    }),
    problem("conv", "depthwise_3x3_dilated", F32, |cx, dt| {
        let s = Convolution::depthwise(cx, 1);
        Convolution { pad: 2, dilation: 2, ..s }.forward(cx, dt).map(Prepared::by_bytes)
    }),
    problem("conv_bwd", "dx_3x3_256x14", F32_BF16, |cx, dt| {
        Convolution::square(cx, 256, 14).backward(cx, dt, [true, false])
    }),
    problem("conv_bwd", "dw_3x3_256x14", F32_BF16, |cx, dt| {
        Convolution::square(cx, 256, 14).backward(cx, dt, [false, true])
    }),
    problem("conv_bwd", "dx_3x3_128x28_stride2", F32, |cx, dt| {
        Convolution { stride: 2, ..Convolution::square(cx, 128, 28) }.backward(cx, dt, [true, false])
    }),
    problem("conv_bwd", "dx_7x7_stride2_3x224", F32, |cx, dt| {
        let s = Convolution::square(cx, 64, 224).window(7);
        Convolution { c: 3, stride: 2, ..s }.backward(cx, dt, [true, false])
    }),
    problem("conv_bwd", "dw_3x3_to_128", F32, |cx, dt| {
        let c = cx.pick(8, 16, 128);
        Convolution { k: 128, c, ..Convolution::square(cx, 128, 28) }.backward(cx, dt, [false, true])
    }),
    problem("conv_bwd", "both_3x3_64x56", F32, |cx, dt| {
        Convolution::square(cx, 64, 56).backward(cx, dt, [true, true])
    }),
    problem("conv_bwd", "depthwise_3x3", F32_BF16, |cx, dt| {
        Convolution::depthwise(cx, 1).backward(cx, dt, [true, true]).map(Prepared::by_bytes)
    }),
    problem("conv_bwd", "depthwise_7x7", F32, |cx, dt| {
        Convolution::depthwise(cx, 1).window(7).backward(cx, dt, [true, true]).map(Prepared::by_bytes)
    }),
    problem("conv_bwd", "depthwise_9x9", F32, |cx, dt| {
        Convolution::depthwise(cx, 1).window(9).backward(cx, dt, [true, true]).map(Prepared::by_bytes)
    }),
    problem("conv_bwd", "depthwise_3x3_stride2", F32_BF16, |cx, dt| {
        Convolution::depthwise(cx, 2).backward(cx, dt, [true, true]).map(Prepared::by_bytes)
    }),
    problem("conv_bwd", "depthwise_5x5_stride2", F32, |cx, dt| {
        Convolution::depthwise(cx, 2).window(5).backward(cx, dt, [true, true]).map(Prepared::by_bytes)
    }),
    problem("conv_transpose", "4x4_stride2_128x32", F32, |cx, dt| {
        Convolution::transposed(cx).forward(cx, dt)
    }),
    problem("conv_transpose_bwd", "4x4_stride2_128x32", F32, |cx, dt| {
        Convolution::transposed(cx).backward(cx, dt, [true, true])
    }),
    problem("im2col", "3x3_64x56", F32_BF16, |cx, dt| {
        let s = Convolution::square(cx, 64, 56);
        let (p, [xs, ..]) = (s.plan(), s.shapes());
        let cs = [s.n, s.c * 9, count(&s.sides)];
        let (x, mut col) = (cx.normal(dt, count(&xs))?, cx.empty(dt, count(&cs))?);
        let moved = (x.len() + col.len()) * dt.size();
        bytes(moved, move |g| g.im2col(&p, &[3, 3], x.shaped(&xs)?, col.shaped_mut(&cs)?.into()))
    }),
    problem("col2im", "3x3_64x56", F32_BF16, |cx, dt| {
        let s = Convolution::square(cx, 64, 56);
        let (p, [xs, ..]) = (s.plan(), s.shapes());
        let cs = [s.n, s.c * 9, count(&s.sides)];
        let (mut x, col) = (cx.empty(dt, count(&xs))?, cx.normal(dt, count(&cs))?);
        let moved = (x.len() + col.len()) * dt.size();
        bytes(moved, move |g| g.col2im(&p, &[3, 3], col.shaped(&cs)?, x.shaped_mut(&xs)?.into()))
    }),
    problem("causal_conv1d", "k4_swish", F32_BF16, |cx, dt| causal_conv(cx, dt, 4)),
    problem("causal_conv1d", "k5_swish", F32, |cx, dt| causal_conv(cx, dt, 5)),
    problem("causal_conv1d_bwd", "k4_swish", F32_BF16, |cx, dt| causal_conv_bwd(cx, dt, 4)),
    problem("causal_conv1d_bwd", "k5_swish", F32, |cx, dt| causal_conv_bwd(cx, dt, 5)),
    problem("deform_conv", "3x3_mask", F32, |cx, dt| {
        let ([n, c, s], len) = deformable(cx);
        let (x, w, o) = (cx.normal(dt, len[0])?, cx.normal(dt, len[1])?, cx.normal(dt, len[2])?);
        let (m, mut y) = (cx.positive(dt, len[3])?, cx.empty(dt, len[4])?);
        flops(18 * n * c * c * s * s, move |g| {
            let io = DeformConvIo::new(
                x.shaped(&[n, c, s, s])?,
                w.shaped(&[c, c, 3, 3])?,
                o.shaped(&[n, 18, s, s])?,
                y.shaped_mut(&[n, c, s, s])?,
            )
            .mask(m.shaped(&[n, 9, s, s])?);
            g.deform_conv(&Conv::new().pad(1), io)
        })
    }),
    problem("deform_conv_bwd", "3x3_mask", F32, |cx, dt| {
        let ([n, c, s], len) = deformable(cx);
        let (x, w, o) = (cx.normal(dt, len[0])?, cx.normal(dt, len[1])?, cx.normal(dt, len[2])?);
        let (m, dy) = (cx.positive(dt, len[3])?, cx.normal(dt, len[4])?);
        let (mut dx, mut dw) = (cx.empty(dt, len[0])?, cx.empty(dt, len[1])?);
        let (mut doff, mut dm) = (cx.empty(dt, len[2])?, cx.empty(dt, len[3])?);
        flops(36 * n * c * c * s * s, move |g| {
            let io = DeformConvBwd::new(
                dy.shaped(&[n, c, s, s])?,
                x.shaped(&[n, c, s, s])?,
                w.shaped(&[c, c, 3, 3])?,
                o.shaped(&[n, 18, s, s])?,
            )
            .mask(m.shaped(&[n, 9, s, s])?)
            .dx(dx.shaped_mut(&[n, c, s, s])?)
            .dw(dw.shaped_mut(&[c, c, 3, 3])?)
            .doffset(doff.shaped_mut(&[n, 18, s, s])?)
            .dmask(dm.shaped_mut(&[n, 9, s, s])?);
            g.deform_conv_bwd(&Conv::new().pad(1), io)
        })
    }),
];
