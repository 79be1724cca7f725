//! Results of the CPU backend do not depend on the number of threads: the same work in processes with one, two, three and seven of them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::process::Command;

use trefoil::ops::activation::Activation;
use trefoil::ops::attention::{Attention, AttentionBwd, AttentionIo, Causal};
use trefoil::ops::conv::{Conv, ConvBwd, ConvIo};
use trefoil::ops::gemm::{Gemm, GemmIo};
use trefoil::ops::random::{Distribution, Rng};
use trefoil::{BackendExt, Buffer, CpuBackend, DType, IGpuBackend};

/// Set where this test is the process that computes.
const CHILD: &str = "TREFOIL_TEST_THREADS";

/// Normal numbers.
fn normal(gpu: &dyn IGpuBackend, n: usize, seed: u64) -> Buffer {
    let mut x = gpu.alloc(DType::F32, n).unwrap();
    gpu.random(Distribution::Normal { mean: 0.0, std: 1.0 }, Rng::new(seed), x.view_mut()).unwrap();
    x
}

fn bits(gpu: &dyn IGpuBackend, results: &[&Buffer]) -> u64 {
    let mut h = DefaultHasher::new();
    for r in results {
        gpu.download::<f32>(r.view()).unwrap().iter().for_each(|x| x.to_bits().hash(&mut h));
    }
    h.finish()
}

/// A linear layer with bias, GELU and what GELU reads.
fn product(gpu: &dyn IGpuBackend, [m, n, k]: [usize; 3]) -> u64 {
    let (x, w, b) = (normal(gpu, m * k, 1), normal(gpu, n * k, 2), normal(gpu, n, 3));
    let (mut y, mut z) = (normal(gpu, m * n, 4), normal(gpu, m * n, 5));
    let p = Gemm::new().trans(false, true).act(Activation::GeluTanh);
    let mut io =
        GemmIo::new(x.shaped(&[m, k]).unwrap(), w.shaped(&[n, k]).unwrap(), y.shaped_mut(&[m, n]).unwrap());
    (io.bias, io.z) = (Some(b.view()), Some(z.shaped_mut(&[m, n]).unwrap()));
    gpu.gemm(&p, io).unwrap();
    bits(gpu, &[&y, &z])
}

/// Attention and its gradients.
fn attention(gpu: &dyn IGpuBackend, length: usize) -> u64 {
    let (q, lse) = ([2, 3, length, 32], [2, 3, length]);
    let n = q.iter().product();
    let [a, b, c, up] = [1, 2, 3, 4].map(|seed| normal(gpu, n, seed));
    let [mut o, mut dq, mut dk, mut dv] = [n; 4].map(|n| normal(gpu, n, 5));
    let mut sums = normal(gpu, 6 * length, 6);
    let s = |x| Buffer::shaped(x, &q).unwrap();
    let p = Attention::new().causal(Causal::TopLeft);
    let mut io = AttentionIo::new(s(&a), s(&b), s(&c), o.shaped_mut(&q).unwrap());
    io.lse = Some(sums.shaped_mut(&lse).unwrap());
    gpu.attention(&p, io).unwrap();
    let mut io = AttentionBwd::new(s(&up), s(&a), s(&b), s(&c), s(&o), sums.shaped(&lse).unwrap());
    io.dq = Some(dq.shaped_mut(&q).unwrap().into());
    io.dk = Some(dk.shaped_mut(&q).unwrap().into());
    io.dv = Some(dv.shaped_mut(&q).unwrap().into());
    gpu.attention_bwd(&p, io).unwrap();
    bits(gpu, &[&o, &dq, &dk, &dv])
}

/// A convolution of 3 x 3 and its gradients.
fn convolution(gpu: &dyn IGpuBackend, c: usize, side: usize) -> u64 {
    let (xs, ws) = ([5, c, side, side], [c + 3, c, 3, 3]);
    let ys = [5, c + 3, side, side];
    let [nx, nw, ny] = [&xs, &ws, &ys].map(|s| s.iter().product());
    let (x, w, up) = (normal(gpu, nx, 1), normal(gpu, nw, 2), normal(gpu, ny, 3));
    let (mut y, mut dx, mut dw) = (normal(gpu, ny, 4), normal(gpu, nx, 5), normal(gpu, nw, 6));
    let p = Conv::new().pad(1);
    let (xv, wv) = (x.shaped(&xs).unwrap(), w.shaped(&ws).unwrap());
    gpu.conv(&p, ConvIo::new(xv, wv, y.shaped_mut(&ys).unwrap())).unwrap();
    let mut io = ConvBwd::new(up.shaped(&ys).unwrap());
    (io.x, io.w) = (Some(xv), Some(wv));
    io.dx = Some(dx.shaped_mut(&xs).unwrap().into());
    io.dw = Some(dw.shaped_mut(&ws).unwrap().into());
    gpu.conv_bwd(&p, io).unwrap();
    bits(gpu, &[&y, &dx, &dw])
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    if std::env::var_os(CHILD).is_some() {
        let cpu = CpuBackend::new();
        let sizes = [
            [1024, 384, 128],
            [128, 512, 784],
            [33, 1000, 65],
            [2000, 7, 300],
            [5, 640, 700],
            [700, 700, 700],
        ];
        sizes.iter().for_each(|s| println!("bits {s:?} {:x}", product(&cpu, *s)));
        [1, 64, 65, 200].iter().for_each(|l| println!("bits {l} {:x}", attention(&cpu, *l)));
        [[3, 32], [16, 14], [64, 9]]
            .iter()
            .for_each(|[c, s]| println!("bits {c} {:x}", convolution(&cpu, *c, *s)));
        return;
    }
    let run = |threads: &str| {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["results_do_not_depend_on_the_number_of_threads", "--exact", "--nocapture"]);
        let out = child.env(CHILD, "1").env("RAYON_NUM_THREADS", threads).output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "{text}{}", String::from_utf8_lossy(&out.stderr));
        text.lines().filter(|l| l.contains("bits ")).map(str::to_string).collect::<Vec<_>>()
    };
    let one = run("1");
    assert_eq!(one.len(), 13);
    for threads in ["2", "3", "7"] {
        assert_eq!(run(threads), one, "{threads} threads");
    }
}
