//! Convolution.

use trefoil::Result;
use trefoil::ops::*;

use super::{Bed, DType, F32, F32_BF16, Problem, Row, bytes, flops, row};

/// A square convolution with `pad` of half the window: images, channels, side, output channels, window, stride, dilation, groups.
struct Square {
    n: usize,
    c: usize,
    side: usize,
    k: usize,
    r: usize,
    stride: usize,
    dilation: usize,
    groups: usize,
}

/// 3 x 3 windows, stride 1.
fn square(b: &Bed<'_>, c: usize, side: usize) -> Square {
    let (n, c, side) = (b.pick(1, 2, 64), b.pick(4, c.min(32), c), b.pick(8, side.min(16), side));
    Square { n, c, side, k: c, r: 3, stride: 1, dilation: 1, groups: 1 }
}

impl Square {
    fn plan(&self) -> Conv {
        let pad = self.dilation * (self.r / 2);
        Conv::new().stride(self.stride).pad(pad).dilation(self.dilation).groups(self.groups)
    }

    fn shapes(&self) -> [Vec<usize>; 3] {
        let out = (self.side + 2 * self.dilation * (self.r / 2) - self.dilation * (self.r - 1) - 1)
            / self.stride
            + 1;
        [
            vec![self.n, self.c, self.side, self.side],
            vec![self.k, self.c / self.groups, self.r, self.r],
            vec![self.n, self.k, out, out],
        ]
    }

    /// Operations of one of the three products, and bytes of the three tensors.
    fn work(&self, dt: DType) -> [usize; 2] {
        let [x, w, y] = self.shapes().map(|s| s.iter().product::<usize>());
        [2 * y * w / self.k, (x + w + y) * dt.size()]
    }

    fn forward(self, b: &Bed<'_>, dt: DType, memory: bool, act: Activation) -> Result<Problem> {
        let [xs, ws, ys] = self.shapes();
        let len = |s: &[usize]| s.iter().product::<usize>();
        let (x, w, mut y) = (b.normal(dt, len(&xs))?, b.normal(dt, len(&ws))?, b.empty(dt, len(&ys))?);
        let (p, [ops, moved], bias) = (self.plan().act(act), self.work(dt), b.normal(dt, self.k)?);
        let run = move |g: &dyn trefoil::IGpuBackend| {
            let mut io = ConvIo::new(x.shaped(&xs)?, w.shaped(&ws)?, y.shaped_mut(&ys)?);
            io.bias = Some(bias.view());
            g.conv(&p, io)
        };
        if memory { bytes(moved, run) } else { flops(ops, run) }
    }

    /// dx, dw or both.
    fn backward(self, b: &Bed<'_>, dt: DType, memory: bool, [dx_too, dw_too]: [bool; 2]) -> Result<Problem> {
        let [xs, ws, ys] = self.shapes();
        let len = |s: &[usize]| s.iter().product::<usize>();
        let (x, w, dy) = (b.normal(dt, len(&xs))?, b.normal(dt, len(&ws))?, b.normal(dt, len(&ys))?);
        let (mut dx, mut dw) = (b.empty(dt, len(&xs))?, b.empty(dt, len(&ws))?);
        let (p, [ops, moved]) = (self.plan(), self.work(dt));
        let times = dx_too as usize + dw_too as usize;
        let run = move |g: &dyn trefoil::IGpuBackend| {
            let mut io = ConvBwd::new(dy.shaped(&ys)?);
            (io.x, io.w) = (Some(x.shaped(&xs)?), Some(w.shaped(&ws)?));
            io.dx = if dx_too { Some(dx.shaped_mut(&xs)?.into()) } else { None };
            io.dw = if dw_too { Some(dw.shaped_mut(&ws)?.into()) } else { None };
            g.conv_bwd(&p, io)
        };
        if memory { bytes(times * moved, run) } else { flops(times * ops, run) }
    }
}

fn depthwise(b: &Bed<'_>, stride: usize) -> Square {
    let s = square(b, 256, 28);
    Square { groups: s.c, stride, ..s }
}

/// Images, channels, side of a deformable convolution of 3 x 3 taps, and its elements: x, w, offsets, mask, y.
fn deformable(b: &Bed<'_>) -> ([usize; 3], [usize; 5]) {
    let (n, c, side) = (b.pick(1, 1, 16), b.pick(4, 16, 128), b.pick(6, 12, 56));
    let plane = n * side * side;
    ([n, c, side], [c * plane, c * c * 9, 18 * plane, 9 * plane, c * plane])
}

fn causal(b: &Bed<'_>) -> [usize; 3] {
    [b.pick(1, 2, 16), b.pick(4, 32, 2048), b.pick(64, 256, 2048)]
}

pub(super) const ROWS: &[Row] = &[
    row("conv", "3x3_256x14", F32_BF16, |b, dt| {
        square(b, 256, 14).forward(b, dt, false, Activation::Identity)
    }),
    row("conv", "3x3_64x56", F32, |b, dt| square(b, 64, 56).forward(b, dt, false, Activation::Identity)),
    row("conv", "3x3_192x28_relu", F32, |b, dt| {
        let s = square(b, 192, 28);
        Square { k: b.pick(4, 40, 192), ..s }.forward(b, dt, false, Activation::Relu)
    }),
    row("conv", "3x3_64x56_to_128", F32, |b, dt| {
        let s = square(b, 64, 56);
        Square { k: b.pick(128, 128, 128), n: b.pick(32, 64, 64), side: b.pick(24, 20, 56), ..s }.forward(
            b,
            dt,
            false,
            Activation::Identity,
        )
    }),
    row("conv", "3x3_to_64", F32, |b, dt| {
        let s = square(b, 64, 56);
        Square { k: 64, n: b.pick(64, 64, 64), side: b.pick(24, 24, 56), ..s }.forward(
            b,
            dt,
            false,
            Activation::Identity,
        )
    }),
    row("conv", "3x3_512x7_one_image", F32_BF16, |b, dt| {
        let s = square(b, 512, 7);
        Square { n: 1, c: b.pick(40, 40, 512), k: b.pick(40, 40, 512), ..s }.forward(
            b,
            dt,
            false,
            Activation::Identity,
        )
    }),
    row("conv", "7x7_stride2_3x224", F32, |b, dt| {
        let s = square(b, 64, 224);
        Square { c: 3, r: 7, stride: 2, ..s }.forward(b, dt, false, Activation::Identity)
    }),
    row("conv", "1x1_64x56_to_256", F32_BF16, |b, dt| {
        let s = square(b, 64, 56);
        Square { k: 4 * s.c, r: 1, ..s }.forward(b, dt, false, Activation::Identity)
    }),
    row("conv", "3x3_32x56", F32, |b, dt| {
        let s = square(b, 32, 56);
        Square { k: 32, ..s }.forward(b, dt, false, Activation::Identity)
    }),
    row("conv", "depthwise_3x3", F32_BF16, |b, dt| {
        depthwise(b, 1).forward(b, dt, true, Activation::Identity)
    }),
    row("conv", "depthwise_7x7", F32, |b, dt| {
        Square { r: 7, ..depthwise(b, 1) }.forward(b, dt, true, Activation::Identity)
    }),
    row("conv", "depthwise_3x3_stride2", F32, |b, dt| {
        depthwise(b, 2).forward(b, dt, true, Activation::Identity)
    }),
    row("conv_bwd", "dx_3x3_256x14", F32_BF16, |b, dt| {
        square(b, 256, 14).backward(b, dt, false, [true, false])
    }),
    row("conv_bwd", "dw_3x3_256x14", F32_BF16, |b, dt| {
        square(b, 256, 14).backward(b, dt, false, [false, true])
    }),
    row("conv_bwd", "dx_3x3_128x28_stride2", F32, |b, dt| {
        Square { stride: 2, ..square(b, 128, 28) }.backward(b, dt, false, [true, false])
    }),
    row("conv_bwd", "dw_3x3_to_128", F32, |b, dt| {
        let s = square(b, 128, 28);
        Square { k: 128, c: b.pick(8, 16, 128), ..s }.backward(b, dt, false, [false, true])
    }),
    row("conv_bwd", "both_3x3_64x56", F32, |b, dt| square(b, 64, 56).backward(b, dt, false, [true, true])),
    row("conv_bwd", "depthwise_3x3", F32_BF16, |b, dt| depthwise(b, 1).backward(b, dt, true, [true, true])),
    row("conv_bwd", "depthwise_7x7", F32, |b, dt| {
        Square { r: 7, ..depthwise(b, 1) }.backward(b, dt, true, [true, true])
    }),
    row("conv_transpose", "4x4_stride2_128x32", F32, |b, dt| {
        let (n, c, k, side) = (b.pick(1, 2, 32), b.pick(4, 16, 128), b.pick(4, 8, 64), b.pick(6, 8, 32));
        let (xs, ws, ys) = ([n, c, side, side], [c, k, 4, 4], [n, k, 2 * side, 2 * side]);
        let (x, w) = (b.normal(dt, xs.iter().product())?, b.normal(dt, ws.iter().product())?);
        let (mut y, p) = (b.empty(dt, ys.iter().product())?, Conv::new().stride(2).pad(1));
        flops(2 * n * c * side * side * k * 16, move |g| {
            g.conv_transpose(&p, ConvIo::new(x.shaped(&xs)?, w.shaped(&ws)?, y.shaped_mut(&ys)?))
        })
    }),
    row("conv_transpose_bwd", "4x4_stride2_128x32", F32, |b, dt| {
        let (n, c, k, side) = (b.pick(1, 2, 32), b.pick(4, 16, 128), b.pick(4, 8, 64), b.pick(6, 8, 32));
        let (xs, ws, ys) = ([n, c, side, side], [c, k, 4, 4], [n, k, 2 * side, 2 * side]);
        let (x, w) = (b.normal(dt, xs.iter().product())?, b.normal(dt, ws.iter().product())?);
        let (dy, p) = (b.normal(dt, ys.iter().product())?, Conv::new().stride(2).pad(1));
        let (mut dx, mut dw) = (b.empty(dt, xs.iter().product())?, b.empty(dt, ws.iter().product())?);
        flops(4 * n * c * side * side * k * 16, move |g| {
            let mut io = ConvBwd::new(dy.shaped(&ys)?);
            (io.x, io.w) = (Some(x.shaped(&xs)?), Some(w.shaped(&ws)?));
            (io.dx, io.dw) = (Some(dx.shaped_mut(&xs)?.into()), Some(dw.shaped_mut(&ws)?.into()));
            g.conv_transpose_bwd(&p, io)
        })
    }),
    row("im2col", "3x3_64x56", F32_BF16, |b, dt| {
        let s = square(b, 64, 56);
        let (p, [xs, ..]) = (s.plan(), s.shapes());
        let cs = [s.n, s.c * 9, s.side * s.side];
        let (x, mut col) = (b.normal(dt, xs.iter().product())?, b.empty(dt, cs.iter().product())?);
        let moved = (x.len() + col.len()) * dt.size();
        bytes(moved, move |g| g.im2col(&p, &[3, 3], x.shaped(&xs)?, col.shaped_mut(&cs)?.into()))
    }),
    row("col2im", "3x3_64x56", F32_BF16, |b, dt| {
        let s = square(b, 64, 56);
        let (p, [xs, ..]) = (s.plan(), s.shapes());
        let cs = [s.n, s.c * 9, s.side * s.side];
        let (mut x, col) = (b.empty(dt, xs.iter().product())?, b.normal(dt, cs.iter().product())?);
        let moved = (x.len() + col.len()) * dt.size();
        bytes(moved, move |g| g.col2im(&p, &[3, 3], col.shaped(&cs)?, x.shaped_mut(&xs)?.into()))
    }),
    row("causal_conv1d", "k4_swish", F32_BF16, |b, dt| {
        let s = causal(b);
        let (len, c) = (s.iter().product::<usize>(), s[1]);
        let (x, w, bias, mut y) =
            (b.normal(dt, len)?, b.normal(dt, 4 * c)?, b.normal(dt, c)?, b.empty(dt, len)?);
        let mut state = b.zeros(dt, s[0] * c * 3)?;
        bytes(2 * len * dt.size(), move |g| {
            let io = CausalConvIo {
                x: x.shaped(&s)?,
                w: w.shaped(&[c, 4])?,
                bias: Some(bias.view()),
                state: None,
                y: y.shaped_mut(&s)?,
                new_state: Some(state.shaped_mut(&[s[0], c, 3])?),
            };
            g.causal_conv1d(Activation::Swish { beta: 1.0 }, io)
        })
    }),
    row("causal_conv1d_bwd", "k4_swish", F32_BF16, |b, dt| {
        let s = causal(b);
        let (len, c) = (s.iter().product::<usize>(), s[1]);
        let (dy, x, w, bias) =
            (b.normal(dt, len)?, b.normal(dt, len)?, b.normal(dt, 4 * c)?, b.normal(dt, c)?);
        let (mut dx, mut dw, mut db) = (b.empty(dt, len)?, b.empty(dt, 4 * c)?, b.empty(dt, c)?);
        bytes(3 * len * dt.size(), move |g| {
            let io = CausalConvBwd {
                dy: dy.shaped(&s)?,
                x: x.shaped(&s)?,
                w: w.shaped(&[c, 4])?,
                bias: Some(bias.view()),
                state: None,
                dx: Some(dx.shaped_mut(&s)?.into()),
                dw: Some(dw.shaped_mut(&[c, 4])?.into()),
                dbias: Some(db.view_mut().into()),
            };
            g.causal_conv1d_bwd(Activation::Swish { beta: 1.0 }, io)
        })
    }),
    row("deform_conv", "3x3_mask", F32, |b, dt| {
        let ([n, c, s], len) = deformable(b);
        let (x, w, o) = (b.normal(dt, len[0])?, b.normal(dt, len[1])?, b.normal(dt, len[2])?);
        let (m, mut y) = (b.positive(dt, len[3])?, b.empty(dt, len[4])?);
        flops(18 * n * c * c * s * s, move |g| {
            let io = DeformConvIo {
                x: x.shaped(&[n, c, s, s])?,
                w: w.shaped(&[c, c, 3, 3])?,
                offset: o.shaped(&[n, 18, s, s])?,
                mask: Some(m.shaped(&[n, 9, s, s])?),
                bias: None,
                y: y.shaped_mut(&[n, c, s, s])?,
            };
            g.deform_conv(&Conv::new().pad(1), io)
        })
    }),
    row("deform_conv_bwd", "3x3_mask", F32, |b, dt| {
        let ([n, c, s], len) = deformable(b);
        let (x, w, o) = (b.normal(dt, len[0])?, b.normal(dt, len[1])?, b.normal(dt, len[2])?);
        let (m, dy) = (b.positive(dt, len[3])?, b.normal(dt, len[4])?);
        let (mut dx, mut dw) = (b.empty(dt, len[0])?, b.empty(dt, len[1])?);
        let (mut doff, mut dm) = (b.empty(dt, len[2])?, b.empty(dt, len[3])?);
        flops(36 * n * c * c * s * s, move |g| {
            let io = DeformConvBwd {
                dy: dy.shaped(&[n, c, s, s])?,
                x: x.shaped(&[n, c, s, s])?,
                w: w.shaped(&[c, c, 3, 3])?,
                offset: o.shaped(&[n, 18, s, s])?,
                mask: Some(m.shaped(&[n, 9, s, s])?),
                dx: Some(dx.shaped_mut(&[n, c, s, s])?.into()),
                dw: Some(dw.shaped_mut(&[c, c, 3, 3])?.into()),
                doffset: Some(doff.shaped_mut(&[n, 18, s, s])?.into()),
                dmask: Some(dm.shaped_mut(&[n, 9, s, s])?.into()),
                dbias: None,
            };
            g.deform_conv_bwd(&Conv::new().pad(1), io)
        })
    }),
];
