//! Operations of the CPU in f32 against f64 data, which the reference computes: sizes that are cut into parts, which golden and random cases are
//! too small for.

#[path = "common/values.rs"]
mod values;

use trefoil::ops::activation::Activation;
use trefoil::ops::conv::{Conv, ConvBwd, ConvIo};
use trefoil::ops::pool::{Pooling, Window};
use trefoil::ops::rnn::{GruGates, Recurrence, RnnBwd, RnnCell, RnnFwd, RnnGrads, RnnWeights};
use trefoil::prelude::*;
use trefoil::{Buffer, CpuBackend, DType, GradMut};

use self::values::values;

/// One backend and storage type, and what was computed with it.
struct Run {
    cpu: CpuBackend,
    dtype: DType,
    results: Vec<(&'static str, Vec<f64>)>,
}

fn size(shape: &[usize]) -> usize {
    shape.iter().product()
}

impl Run {
    fn cast(&self, x: &Buffer, dtype: DType) -> Buffer {
        let mut y = self.cpu.alloc(dtype, x.len()).unwrap();
        self.cpu.cast(x.view(), y.view_mut()).unwrap();
        y
    }

    fn tensor(&self, shape: &[usize], seed: u32) -> Buffer {
        self.cast(&self.cpu.upload(&values(size(shape), seed)).unwrap(), self.dtype)
    }

    fn keep(&mut self, name: &'static str, x: &Buffer) {
        let x = self.cast(x, DType::F64);
        self.results.push((name, self.cpu.download(x.view()).unwrap()));
    }
}

/// Runs `f` on f32 and on f64 data and compares what it keeps.
fn compare(what: &str, f: impl Fn(&mut Run)) {
    let run = |dtype| {
        let mut run = Run { cpu: CpuBackend::new(), dtype, results: vec![] };
        f(&mut run);
        run.results
    };
    for ((name, got), (_, want)) in run(DType::F32).into_iter().zip(run(DType::F64)) {
        let largest = want.iter().fold(0.0f64, |m, x| m.max(x.abs()));
        for (i, (g, w)) in got.iter().zip(&want).enumerate() {
            assert!((g - w).abs() <= 2e-5 * (largest + 1e-3), "{what}, {name}[{i}]: {g}, expected {w}");
        }
    }
}

/// A convolution of x [n, ci, h, h] with windows of k x k, and its gradients, the first time stored and then added.
fn convolution(what: &str, [n, ci, co, h, k]: [usize; 5], p: Conv) {
    let out = p.output_size(&[h, h], &[k, k]).unwrap();
    let (xs, ws) = ([n, ci, h, h], [co, ci / p.groups, k, k]);
    let ys = [n, co, out[0], out[1]];
    compare(what, |run| {
        let (x, w, bias, dy) =
            (run.tensor(&xs, 1), run.tensor(&ws, 2), run.tensor(&[co], 3), run.tensor(&ys, 4));
        let residual = run.tensor(&ys, 5);
        let mut y = run.tensor(&ys, 6);
        let io = ConvIo::new(x.shaped(&xs).unwrap(), w.shaped(&ws).unwrap(), y.shaped_mut(&ys).unwrap());
        let io = io.bias(bias.view()).residual(residual.shaped(&ys).unwrap());
        run.cpu.conv(&p, io).unwrap();
        run.keep("y", &y);
        let (mut dx, mut dw, mut db) = (run.tensor(&xs, 7), run.tensor(&ws, 8), run.tensor(&[co], 9));
        for accumulate in [false, true] {
            let io = ConvBwd::new(dy.shaped(&ys).unwrap())
                .x(x.shaped(&xs).unwrap())
                .w(w.shaped(&ws).unwrap())
                .saved(Some(y.shaped(&ys).unwrap()).filter(|_| p.act != Activation::Identity))
                .dx(GradMut { out: dx.shaped_mut(&xs).unwrap(), accumulate })
                .dw(GradMut { out: dw.shaped_mut(&ws).unwrap(), accumulate })
                .dbias(GradMut { out: db.view_mut(), accumulate });
            run.cpu.conv_bwd(&p, io).unwrap();
        }
        run.keep("dx", &dx);
        run.keep("dw", &dw);
        run.keep("dbias", &db);
    });
}

#[test]
fn convolutions_in_parts() {
    let same = Conv::new().pad(1);
    convolution("planes of several products", [2, 3, 5, 30, 3], same);
    convolution("many images with a thread each", [9, 3, 4, 26, 3], same.act(Activation::Relu));
    convolution("stride and dilation", [3, 4, 6, 33, 3], same.stride(2).dilation(2));
    convolution("groups of images", [40, 8, 6, 7, 3], same.groups(2));
    convolution("many groups of images", [60, 4, 4, 9, 3], same.groups(4).act(Activation::Tanh));
    convolution("windows with taps that read nothing", [20, 6, 5, 1, 3], same);
    convolution("one tap", [3, 7, 4, 25, 1], Conv::new());
    convolution("one tap of small planes", [30, 7, 4, 4, 1], Conv::new().stride(2));
}

/// A sequence of 5 steps for 37 rows, more than a part holds, and its gradients.
fn sequence(cell: RnnCell, p: Recurrence, ragged: bool) {
    let (t, b, i, h) = (5, 37, 6, 9);
    let rows = cell.gates() * h;
    let order = |w| if p.batch_first { [b, t, w] } else { [t, b, w] };
    let (each, states, lstm) = ([t, b, h], [t + 1, b, h], cell == RnnCell::Lstm);
    compare(&format!("{cell:?}, {p:?}, ragged {ragged}"), |run| {
        let (x, dy) = (run.tensor(&order(i), 1), run.tensor(&order(h), 2));
        let (w_ih, w_hh) = (run.tensor(&[rows, i], 3), run.tensor(&[rows, h], 4));
        let (b_ih, b_hh, h_0) = (run.tensor(&[rows], 5), run.tensor(&[rows], 6), run.tensor(&[b, h], 7));
        let lengths: Vec<i32> = (0..b as i32).map(|b| if ragged { b % 7 } else { 9 }).collect();
        let lengths = run.cpu.upload(&lengths).unwrap();
        let mut y = run.tensor(&order(h), 8);
        let [mut hs, mut cs] = [9, 10].map(|s| run.tensor(&states, s));
        let mut gates = run.tensor(&[t, b, rows], 11);
        let mut gru = [12, 13, 14, 15].map(|s| run.tensor(&each, s));
        let weights = RnnWeights::new(w_ih.shaped(&[rows, i]).unwrap(), w_hh.shaped(&[rows, h]).unwrap());
        let (x_view, h_0) = (x.shaped(&order(i)).unwrap(), h_0.shaped(&[b, h]).unwrap());
        {
            let with = weights.biases(b_ih.view(), b_hh.view());
            let mut io = RnnFwd::new(x_view, with, y.shaped_mut(&order(h)).unwrap())
                .h_0(h_0)
                .lengths(lengths.view())
                .h(hs.shaped_mut(&states).unwrap());
            if lstm {
                io = io.c(cs.shaped_mut(&states).unwrap()).gates(gates.shaped_mut(&[t, b, rows]).unwrap());
            }
            if cell.is_gru() {
                let [r, z, n, u] = gru.each_mut().map(|g| Some(g.shaped_mut(&each).unwrap()));
                io.gru = GruGates::new(r, z, n, u);
            }
            run.cpu.rnn(cell, &p, io).unwrap();
        }
        run.keep("y", &y);
        run.keep("h", &hs);
        let [mut dx, mut dh] = [run.tensor(&order(i), 16), run.tensor(&[b, h], 17)];
        let [mut dw_ih, mut dw_hh] = [run.tensor(&[rows, i], 18), run.tensor(&[rows, h], 19)];
        let [mut db_ih, mut db_hh] = [run.tensor(&[rows], 20), run.tensor(&[rows], 21)];
        let add = |out| GradMut { out, accumulate: true };
        let grads = RnnGrads::new()
            .dx(add(dx.shaped_mut(&order(i)).unwrap()))
            .dh_0(add(dh.shaped_mut(&[b, h]).unwrap()))
            .dw_ih(add(dw_ih.shaped_mut(&[rows, i]).unwrap()))
            .dw_hh(add(dw_hh.shaped_mut(&[rows, h]).unwrap()))
            .db_ih(add(db_ih.view_mut()))
            .db_hh(add(db_hh.view_mut()));
        let [r, z, n, u] = gru.each_ref().map(|g| g.shaped(&each).unwrap());
        let io = RnnBwd::new(x_view, weights, hs.shaped(&states).unwrap())
            .dy(dy.shaped(&order(h)).unwrap())
            .lengths(lengths.view())
            .c(lstm.then(|| cs.shaped(&states).unwrap()))
            .gates(lstm.then(|| gates.shaped(&[t, b, rows]).unwrap()))
            .gru(cell.is_gru().then(|| GruGates::new(r, z, n, u)))
            .grads(grads);
        run.cpu.rnn_bwd(cell, &p, io).unwrap();
        let all = [
            ("dx", dx),
            ("dh_0", dh),
            ("dw_ih", dw_ih),
            ("dw_hh", dw_hh),
            ("db_ih", db_ih),
            ("db_hh", db_hh),
        ];
        all.iter().for_each(|(name, x)| run.keep(name, x));
    });
}

#[test]
fn sequences_in_parts() {
    for cell in [RnnCell::Lstm, RnnCell::Gru, RnnCell::GruResetBefore, RnnCell::Tanh, RnnCell::Relu] {
        sequence(cell, Recurrence::new(), false);
        sequence(cell, Recurrence::new().reverse(true), true);
        sequence(cell, Recurrence::new().batch_first(true), true);
    }
}

#[test]
fn pooling_in_parts() {
    let (xs, window) = ([6, 5, 40, 41], Window::new(&[3, 3]).stride(&[2, 2]).padding(&[1, 1]));
    let out = window.output_size(&xs[2..]).unwrap();
    let (ys, windows) = ([6, 5, out[0], out[1]], Pooling::from(window));
    compare("pooling", |run| {
        let (x, dy) = (run.tensor(&xs, 1), run.tensor(&ys, 2));
        let (mut y, mut dx) = (run.tensor(&ys, 3), run.tensor(&xs, 4));
        let mut index = run.cpu.alloc(DType::I32, y.len()).unwrap();
        let (x, dy) = (x.shaped(&xs).unwrap(), dy.shaped(&ys).unwrap());
        let at = index.shaped_mut(&ys).unwrap();
        run.cpu.max_pool(windows, x, y.shaped_mut(&ys).unwrap(), Some(at)).unwrap();
        run.keep("max", &y);
        let add = GradMut { out: dx.shaped_mut(&xs).unwrap(), accumulate: true };
        run.cpu.max_pool_bwd(windows, dy, index.shaped(&ys).unwrap(), add).unwrap();
        run.cpu.avg_pool(windows, x, y.shaped_mut(&ys).unwrap()).unwrap();
        let add = GradMut { out: dx.shaped_mut(&xs).unwrap(), accumulate: true };
        run.cpu.avg_pool_bwd(windows, dy, add).unwrap();
        run.keep("average", &y);
        run.keep("dx", &dx);
    });
}

#[test]
fn copies_in_parts() {
    let (cpu, shape) = (CpuBackend::new(), [30, 17, 41]);
    let x = values(size(&shape), 1);
    let from = cpu.upload(&x).unwrap();
    let view = from.shaped(&shape).unwrap();
    for axes in [[0, 1, 2], [1, 0, 2], [2, 1, 0], [0, 2, 1]] {
        let sizes = axes.map(|a| shape[a]);
        let strides = axes.map(|a| [17 * 41, 41, 1][a]);
        let want = |i: usize| {
            let at = [i / (sizes[1] * sizes[2]), i / sizes[2] % sizes[1], i % sizes[2]];
            x[at.iter().zip(strides).map(|(i, s)| i * s).sum::<usize>()]
        };
        let mut to = cpu.upload(&vec![1.0f32; x.len()]).unwrap();
        let mut sum = 1.0;
        for accumulate in [true, false] {
            let out = GradMut { out: to.shaped_mut(&sizes).unwrap(), accumulate };
            cpu.strided_copy(view.map("axes", |l| l.permute(&axes)).unwrap(), out).unwrap();
            let got: Vec<f32> = cpu.download(to.view()).unwrap();
            assert!(got.iter().enumerate().all(|(i, y)| *y == want(i) + sum), "{axes:?}, {accumulate}");
            sum = 0.0;
        }
    }
    let [a, b] = [[30, 2, 41], [30, 15, 41]];
    let (first, second) = (&x[..size(&a)], &x[size(&a)..]);
    let parts = [cpu.upload(first).unwrap(), cpu.upload(second).unwrap()];
    let mut y = cpu.alloc(DType::F32, x.len()).unwrap();
    let views = [parts[0].shaped(&a).unwrap(), parts[1].shaped(&b).unwrap()];
    cpu.concat(1, &views, y.shaped_mut(&shape).unwrap()).unwrap();
    let got: Vec<f32> = cpu.download(y.view()).unwrap();
    for r in 0..30 {
        assert_eq!(got[r * 17 * 41..][..2 * 41], first[r * 2 * 41..][..2 * 41]);
        assert_eq!(got[r * 17 * 41 + 2 * 41..][..15 * 41], second[r * 15 * 41..][..15 * 41]);
    }
}
