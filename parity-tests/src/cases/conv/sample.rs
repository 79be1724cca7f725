//! Random inputs and arguments of the rows.

use crate::sampler::Dom::{Any, Range};
use crate::sampler::Sample;

/// What a sampler draws: shapes of a convolution that has an output.
pub(super) struct Drawn {
    axes: usize,
    groups: usize,
    cig: usize,
    cog: usize,
    n: usize,
    kernel: Vec<usize>,
    stride: Vec<usize>,
    pad: Vec<usize>,
    dilation: Vec<usize>,
}

impl Drawn {
    fn new(s: &mut Sample, axes: usize) -> Self {
        let mut list =
            |least: usize, count: usize| (0..axes).map(|_| least + s.below(count)).collect::<Vec<_>>();
        let (kernel, stride, pad, dilation) = (list(1, 3), list(1, 3), list(0, 3), list(1, 2));
        let edge = [1, 2, 3, 5, 17, 33, 70, 130];
        let (groups, cig, cog, n) = if s.small {
            (1 + s.below(2), 1 + s.below(2), 1 + s.below(2), 1 + s.below(2))
        } else {
            (1 + s.below(3), edge[s.below(6)], edge[s.below(8)], [0, 1, 2, 3][s.below(4)])
        };
        Drawn { axes, groups, cig, cog, n, kernel, stride, pad, dilation }
    }

    /// Strides of two by two and few channels in some cases, whose adjoints have kernels of their own; of outputs where it is drawn `back`.
    fn with_few_channels(self, s: &mut Sample, back: bool) -> Self {
        if self.axes != 2 || s.aligned() != Some(1) {
            return self;
        }
        let kernel = vec![1 + s.below(7), 1 + s.below(7)];
        let (stride, dilation, few, many) = (vec![2; 2], vec![1; 2], 1 + s.below(4), 16 + s.below(30));
        let (cig, cog) = if back { (many, few) } else { (few, many) };
        Drawn { n: self.n.max(1), groups: 1, cig, cog, kernel, stride, dilation, ..self }
    }

    /// Elements of a window on an axis.
    fn span(&self, a: usize) -> usize {
        self.dilation[a] * (self.kernel[a] - 1) + 1
    }

    /// Axes of an input that a window fits into.
    fn input(&self, s: &mut Sample) -> Vec<usize> {
        let extra = if s.small { 3 } else { [1, 40, 13, 6][self.axes] };
        (0..self.axes)
            .map(|a| {
                let least = self.span(a).saturating_sub(2 * self.pad[a]).max(1);
                least + s.below(extra)
            })
            .collect()
    }

    fn output(&self, input: &[usize]) -> Vec<usize> {
        let one = |a: usize| (input[a] + 2 * self.pad[a] - self.span(a)) / self.stride[a] + 1;
        (0..self.axes).map(one).collect()
    }

    fn args(&self, s: &mut Sample) {
        s.arg("s", self.stride.clone());
        s.arg("p", self.pad.clone());
        s.arg("d", self.dilation.clone());
    }
}

pub(super) fn cat(a: &[usize], b: &[usize]) -> Vec<usize> {
    [a, b].concat()
}

/// A half-wide range keeps the sums near 1.
pub(super) fn weight(s: &mut Sample, shape: &[usize]) {
    let terms: usize = shape[1..].iter().product();
    let r = (terms.max(1) as f64).sqrt().recip() * 2.0;
    s.put("w", shape, Range(-r, r));
}

pub(super) fn draw(s: &mut Sample, axes: usize) -> Drawn {
    let d = Drawn::new(s, axes).with_few_channels(s, false);
    let input = d.input(s);
    s.put("x", &cat(&[d.n, d.groups * d.cig], &input), Any);
    weight(s, &cat(&[d.groups * d.cog, d.cig], &d.kernel));
    d.args(s);
    s.arg("g", d.groups);
    d
}

/// A bias, except where a gradient without one is derived from the case.
pub(super) fn draw_biased(s: &mut Sample, axes: usize) {
    let d = draw(s, axes);
    if s.coin() || s.small {
        s.put("b", &[d.groups * d.cog], Any);
    }
    // The weight gradients have the kernel's sizes as an argument, of which the forward knows nothing.
}

pub(super) fn draw_depthwise(s: &mut Sample) {
    let mut d = Drawn::new(s, 2);
    (d.groups, d.cig, d.cog) = (d.groups * d.cig, 1, 1 + s.below(2));
    if s.coin() {
        (d.stride, d.dilation) = (vec![1, d.stride[1]], vec![1, d.dilation[1]]);
    }
    // Square windows that keep the map's size, or halve it, have kernels of their own: those whose rows are whole fours, and others.
    let special = match s.aligned() {
        Some(i @ 1..=3) => Some((2 * i + 1, 1)),
        // The sides take turns, and those of 16 bits begin with the other one.
        Some(i) if i % 2 == 0 => Some((3 + 2 * ((i / 2 + s.vector() / 8) % 2), 2)),
        None if !s.small && s.coin() => Some((3 + 2 * s.below(2), 2)),
        _ => None,
    };
    if let Some((side, stride)) = special {
        d.n = d.n.max(1);
        (d.kernel, d.stride) = (vec![side; 2], vec![stride; 2]);
        (d.pad, d.dilation) = (vec![side / 2; 2], vec![1; 2]);
    }
    let mut input = d.input(s);
    if let Some((_, 2)) = special {
        input = vec![1 + s.below(19), 1 + s.below(19)];
        if s.aligned().is_some() {
            // Gradients of several channels per group have other kernels.
            (d.cog, input[1]) = (1, input[1].next_multiple_of(4));
        }
    }
    s.put("x", &cat(&[d.n, d.groups], &input), Any);
    weight(s, &cat(&[d.groups * d.cog, 1], &d.kernel));
    s.put("b", &[d.groups * d.cog], Any);
    d.args(s);
}

pub(super) fn draw_transpose(s: &mut Sample, axes: usize) {
    let d = Drawn::new(s, axes).with_few_channels(s, true);
    let mut op = Vec::new();
    let mut input = Vec::new();
    for a in 0..axes {
        op.push(s.below(d.stride[a].max(d.dilation[a])));
        // The output keeps an element when the padding is taken off.
        let least = (2 * d.pad[a]).saturating_sub(d.span(a) + op[a]) / d.stride[a] + 1;
        input.push(least + 1 + s.below(if s.small { 2 } else { [1, 30, 9, 4][axes] }));
    }
    s.put("x", &cat(&[d.n, d.groups * d.cig], &input), Any);
    weight(s, &cat(&[d.groups * d.cig, d.cog], &d.kernel));
    s.put("b", &[d.groups * d.cog], Any);
    d.args(s);
    s.arg("op", op);
    s.arg("g", d.groups);
}

pub(super) fn draw_causal(s: &mut Sample) {
    let (n, c, mut kk) = (1 + s.below(3), 1 + s.below(5), 1 + s.below(6));
    // A few taps over rows of whole 16-byte items, which have kernels of their own.
    let runs = s.aligned().is_some_and(|i| i % 2 == 0).then(|| s.vector() * [1, 2, 77, 300][s.below(4)]);
    if runs.is_some() {
        kk = 1 + s.below(s.vector().clamp(3, 4));
    }
    let len = if let Some(len) = runs {
        len
    } else if s.small {
        1 + s.below(5)
    } else {
        [1, 2, 31, 257, 1000, 0][s.below(6)]
    };
    s.put("x", &[n, c, len], Any);
    s.put("w", &[c, kk], Any);
    s.put("b", &[c], Any);
    let act = if s.coin() { "swish" } else { "none" };
    s.arg("act", act);
}

pub(super) fn draw_state(s: &mut Sample) {
    draw_causal(s);
    let (x, w) = (s.shape_of("x"), s.shape_of("w"));
    s.put("state", &[x[0], x[1], w[1] - 1], Any);
}

pub(super) fn draw_fused(s: &mut Sample) {
    let mut d = Drawn::new(s, 2);
    d.n = d.n.max(1);
    // Depthwise ones have kernels of their own, with this epilogue.
    if let Some(stride @ 1..=2) = s.aligned() {
        let side = 3 + 2 * s.below(2);
        (d.cig, d.cog, d.kernel, d.stride) = (1, 1 + s.below(2), vec![side; 2], vec![stride; 2]);
        (d.pad, d.dilation) = (vec![side / 2; 2], vec![1; 2]);
    }
    let input = d.input(s);
    s.put("x", &cat(&[d.n, d.groups * d.cig], &input), Any);
    weight(s, &cat(&[d.groups * d.cog, d.cig], &d.kernel));
    s.put("b", &[d.groups * d.cog], Any);
    s.put("residual", &cat(&[d.n, d.groups * d.cog], &d.output(&input)), Any);
    d.args(s);
    s.arg("g", d.groups);
    let acts = ["none", "leaky_relu", "gelu", "gelu_tanh", "sigmoid", "tanh", "swish", "relu", "hardswish"];
    let act = acts[s.below(if s.small { 7 } else { 9 })];
    s.arg("act", act);
}

pub(super) fn draw_deform(s: &mut Sample) {
    let mut d = Drawn::new(s, 2);
    let deform = 1 + s.below(2);
    (d.cig, d.n) = ((d.cig * deform).min(6), d.n.min(2));
    d.cig = d.cig.next_multiple_of(deform);
    let input = d.input(s);
    let (taps, out) = (d.kernel[0] * d.kernel[1], d.output(&input));
    s.put("x", &cat(&[d.n, d.groups * d.cig], &input), Any);
    weight(s, &cat(&[d.groups * d.cog, d.cig], &d.kernel));
    // The bound of 16-bit storage compares with sums of magnitudes, which have to be sampled at the same places.
    let shift = if s.dtype.is_half() { Range(0.05, 1.7) } else { Any };
    s.put("offset", &[d.n, deform * taps * 2, out[0], out[1]], shift);
    if s.coin() {
        s.put("mask", &[d.n, deform * taps, out[0], out[1]], Any);
    }
    s.put("b", &[d.groups * d.cog], Any);
    d.args(s);
    s.arg("g", d.groups);
}

pub(super) fn draw_columns(s: &mut Sample) {
    let d = Drawn::new(s, 2);
    let input = d.input(s);
    s.put("x", &cat(&[d.n, d.cig], &input), Any);
    d.args(s);
    s.arg("k", d.kernel.clone());
}

pub(super) fn draw_folded(s: &mut Sample) {
    let d = Drawn::new(s, 2);
    let input = d.input(s);
    let out = d.output(&input);
    s.put("col", &[d.n, d.cig * d.kernel[0] * d.kernel[1], out[0] * out[1]], Any);
    d.args(s);
    s.arg("k", d.kernel.clone());
    s.arg("output_size", input);
}
