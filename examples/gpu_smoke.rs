//! Scratch measurements, not committed.
use trefoil::driver;
use trefoil::ops::*;
use trefoil::*;

fn time(e: &Engine, name: &str, bytes: f64, mut f: impl FnMut()) {
    for _ in 0..3 {
        f();
    }
    e.synchronize().unwrap();
    let n = 20;
    let mut t: Vec<f64> = (0..n)
        .map(|_| {
            let a = e.record().unwrap();
            f();
            let b = e.record().unwrap();
            b.synchronize().unwrap();
            a.elapsed_ns(&b).unwrap() as f64 / 1e3
        })
        .collect();
    t.sort_by(f64::total_cmp);
    println!("{name:32} {:9.1} us {:6.2} TB/s", t[n / 2], bytes / t[n / 2] / 1e6);
}

fn main() {
    for which in std::env::args().skip(1) {
        let d = match which.as_str() {
            "cuda" => driver::cuda_open(0),
            "hip" => driver::hip_open(0),
            _ => driver::opencl_open(0),
        };
        let d = match d {
            Ok(d) => d,
            Err(e) => {
                println!("{which}: {e}");
                continue;
            }
        };
        println!("== {which} {:?}", d.caps());
        let e = Engine::new(d).unwrap();
        let big = !e.caps().is_cpu;
        let n: usize = if big { 64 << 20 } else { 1 << 20 };
        let rng = Rng::new(1);
        let normal = Distribution::Normal { mean: 0.0, std: 1.0 };
        let mk = |dt, n| {
            let mut b = e.alloc(dt, n).unwrap();
            e.random(normal, rng, b.view_mut()).unwrap();
            b
        };
        let x = mk(DType::F32, n);
        let mut t = mk(DType::F32, n);
        e.random(normal, rng.at(1, 0), t.view_mut()).unwrap();
        let mut y = e.alloc(DType::F32, n).unwrap();
        let v = e.download::<f32>(x.view()).unwrap();
        let m = v.iter().map(|&x| x as f64).sum::<f64>() / n as f64;
        let s = v.iter().map(|&x| (x as f64).powi(2)).sum::<f64>() / n as f64;
        println!("normal mean {m:.5} var {s:.5}");
        let b = n as f64 * 4.0;
        time(&e, "copy", 2.0 * b, || e.copy(x.view(), y.view_mut()).unwrap());
        time(&e, "relu f32", 2.0 * b, || e.unary(Unary::Neg, x.view(), y.view_mut()).unwrap());
        time(&e, "exp f32", 2.0 * b, || e.unary(Unary::Exp, x.view(), y.view_mut()).unwrap());
        let got = e.download::<f32>(y.view()).unwrap();
        let worst = v
            .iter()
            .zip(&got)
            .map(|(x, y)| (((*x as f64).exp() - *y as f64) / (*x as f64).exp()).abs())
            .fold(0.0, f64::max);
        println!("exp worst rel {worst:e}");
        time(&e, "exp bwd f32", 3.0 * b, || {
            e.unary_bwd(Unary::Exp, t.view(), x.view(), y.view_mut().into()).unwrap()
        });
        time(&e, "random normal f32", b, || e.random(normal, rng, y.view_mut()).unwrap());
        time(&e, "dropout f32", 2.0 * b, || e.dropout(0.1, rng, x.view(), y.view_mut(), None).unwrap());
        let xb = mk(DType::Bf16, n);
        let mut yb = e.alloc(DType::Bf16, n).unwrap();
        time(&e, "exp bf16", b, || e.unary(Unary::Exp, xb.view(), yb.view_mut()).unwrap());
        let mut l = e.alloc(DType::F32, 1).unwrap();
        let gy = e.upload(&[1.0f32]).unwrap();
        time(&e, "mse fwd", 2.0 * b, || {
            e.loss(
                Loss::Mse,
                Reduction::Mean,
                LossFwd { p: x.view(), t: t.view(), weight: None, mask: None, loss: l.view_mut() },
            )
            .unwrap()
        });
        let lv = e.download::<f32>(l.view()).unwrap()[0];
        println!("mse {lv} (want about {})", {
            let tv = e.download::<f32>(t.view()).unwrap();
            v.iter().zip(&tv).map(|(a, b)| ((a - b) as f64).powi(2)).sum::<f64>() / n as f64
        });
        time(&e, "mse bwd", 3.0 * b, || {
            e.loss_bwd(
                Loss::Mse,
                Reduction::Mean,
                LossBwd {
                    gy: gy.view(),
                    p: x.view(),
                    t: t.view(),
                    weight: None,
                    mask: None,
                    dp: Some(y.view_mut().into()),
                    dt: None,
                },
            )
            .unwrap()
        });
        let (rows, cols) = if big { (8192, 50257) } else { (64, 5025) };
        let lx = mk(DType::F32, rows * cols);
        let mut ldx = e.alloc(DType::F32, rows * cols).unwrap();
        let mut ids = e.alloc(DType::I64, rows).unwrap();
        e.random(Distribution::Int { lo: 0, hi: cols as i64 }, rng, ids.view_mut()).unwrap();
        let mut lse = e.alloc(DType::F32, rows).unwrap();
        let mut den = e.alloc(DType::F32, 1).unwrap();
        let ce = CrossEntropy::new();
        let lb = (rows * cols * 4) as f64;
        time(&e, "xent fwd", lb, || {
            e.cross_entropy(
                &ce,
                CrossEntropyFwd {
                    x: lx.shaped(&[rows, cols]).unwrap(),
                    target: ids.view(),
                    weight: None,
                    loss: l.view_mut(),
                    lse: Some(lse.view_mut()),
                    den: Some(den.view_mut()),
                },
            )
            .unwrap()
        });
        println!("xent {:?}", e.download::<f32>(l.view()).unwrap());
        time(&e, "xent bwd", 2.0 * lb, || {
            e.cross_entropy_bwd(
                &ce,
                CrossEntropyBwd {
                    gy: gy.view(),
                    x: lx.shaped(&[rows, cols]).unwrap(),
                    target: ids.view(),
                    weight: None,
                    lse: lse.view(),
                    den: Some(den.view()),
                    dx: ldx.shaped_mut(&[rows, cols]).unwrap().into(),
                },
            )
            .unwrap()
        });
        drop((lx, ldx));
        let sizes: Vec<usize> = (0..148)
            .map(|i| {
                if i == 0 {
                    38597376
                } else if i % 3 == 0 {
                    1769472
                } else {
                    768
                }
            })
            .map(|s| if big { s } else { s / 64 })
            .collect();
        let mut bufs: Vec<[Buffer; 4]> = sizes
            .iter()
            .map(|&s| [mk(DType::F32, s), mk(DType::F32, s), e.zeros_f32(s), e.zeros_f32(s)])
            .collect();
        let total: f64 = sizes.iter().map(|&s| s as f64 * 4.0).sum();
        let rule = OptimRule::AdamW { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.01 };
        let mut k = 0;
        time(&e, "adamw list", 7.0 * total, || {
            k += 1;
            let mut slots: Vec<ParamSlot<'_>> = bufs
                .iter_mut()
                .map(|b| {
                    let [w, g, m, v] = b;
                    ParamSlot {
                        w: w.view_mut(),
                        g: g.view(),
                        state: [Some(m.view_mut()), Some(v.view_mut()), None],
                        copy: None,
                    }
                })
                .collect();
            e.optimizer_step(&rule, &Step::host(1e-3, k), &mut slots).unwrap();
        });
        let mut norm = e.alloc(DType::F32, 1).unwrap();
        time(&e, "clip list", 3.0 * total, || {
            let mut g: Vec<ViewMut<'_>> = bufs.iter_mut().map(|b| b[1].view_mut()).collect();
            e.clip_grad_norm(&ClipNorm::new(1.0), &mut g, norm.view_mut()).unwrap();
        });
        println!("norm {:?}", e.download::<f32>(norm.view()).unwrap());
        let small = mk(DType::F32, 1024);
        let mut sy = e.alloc(DType::F32, 1024).unwrap();
        for _ in 0..100 {
            e.unary(Unary::Neg, small.view(), sy.view_mut()).unwrap();
        }
        e.synchronize().unwrap();
        let t0 = std::time::Instant::now();
        for _ in 0..10000 {
            e.unary(Unary::Neg, small.view(), sy.view_mut()).unwrap();
        }
        println!("host per launch {:.2} us", t0.elapsed().as_secs_f64() * 1e2);
        e.synchronize().unwrap();
        println!("{:?} {:?}", e.counters(), e.memory());
    }
}
trait Z {
    fn zeros_f32(&self, n: usize) -> Buffer;
}
impl Z for Engine {
    fn zeros_f32(&self, n: usize) -> Buffer {
        let mut b = self.alloc(DType::F32, n).unwrap();
        self.write_bytes(b.view_mut(), &vec![0u8; n * 4]).unwrap();
        b
    }
}
