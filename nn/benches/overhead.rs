//! Host time that trefoil-nn adds to an operation, with recording on, over the bare call of the backend with an output of its own.
//!
//!     cargo bench -p trefoil-nn                    all operations on the CPU backend
//!     TREFOIL_BACKEND=cuda cargo bench -p trefoil-nn -- add
//!     cargo bench -p trefoil-nn -- --test          every measurement once, to see that it runs
//!
//! Tensors are tiny, so that the host's work is what is measured. The table at the end has the least time per call of all samples: other
//! programs on the machine can only add to it. On a device whose queue fills up the difference still is the host's, as both wait alike.

use std::cell::Cell;
use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::Criterion;
use trefoil::ops::activation::{Activation, Saved};
use trefoil::ops::elementwise::{Binary, BinaryBwd};
use trefoil::ops::gemm::{Gemm, GemmIo, Precision};
use trefoil::ops::reduce::Reduce;
use trefoil::{DType, Registry, Selector};
use trefoil_nn::{Device, Result, Tensor};

/// What an operation may cost on top.
const TARGET: f64 = 2e-6;

type Call<'a> = Box<dyn Fn() -> Result<()> + 'a>;

/// An operation as the backend and as trefoil-nn offer it.
struct Row<'a> {
    name: &'static str,
    /// Operations per call.
    count: f64,
    bare: Call<'a>,
    ours: Call<'a>,
}

fn noise(d: &Device, shape: &[usize]) -> Result<Tensor> {
    let n: usize = shape.iter().product();
    Tensor::from_slice(d, &(0..n).map(|i| (i as f32 * 0.7).sin()).collect::<Vec<_>>(), shape)
}

fn rows(d: &Device) -> Result<Vec<Row<'_>>> {
    let (a, b) = (noise(d, &[4, 8])?, noise(d, &[4, 8])?);
    let (w, v) = (noise(d, &[8, 8])?, noise(d, &[8])?);
    let [x, y, weight, bias] = [&a, &b, &w, &v].map(Tensor::with_grad);
    let out = move |shape: &[usize]| Tensor::empty(d, DType::F32, shape);
    let plain = (a.clone(), b.clone());
    let add = move || -> Result<()> {
        let y = out(&[4, 8])?;
        let (a, b) = (plain.0.operand(), plain.1.operand());
        Ok(d.binary(Binary::Add { alpha: 1.0 }, a.view()?, b.view()?, y.operand().view_mut()?)?)
    };
    let relu = {
        let a = a.clone();
        move || -> Result<()> {
            let y = out(&[4, 8])?;
            Ok(d.activation(Activation::Relu, a.operand().view()?, y.operand().view_mut()?)?)
        }
    };
    let sum = {
        let a = a.clone();
        move || -> Result<()> {
            let y = out(&[])?;
            Ok(d.reduce(Reduce::Sum, &[0, 1], a.operand().view()?, y.operand().view_mut()?)?)
        }
    };
    let linear = {
        let (a, w, v) = (a.clone(), w.clone(), v.clone());
        let p = Gemm::new().trans(false, true).act(Activation::Relu);
        move || -> Result<()> {
            let y = out(&[4, 8])?;
            let (a, w, v, yo) = (a.operand(), w.operand(), v.operand(), y.operand());
            let mut io = GemmIo::new(a.view()?, w.view()?, yo.view_mut()?);
            io.bias = Some(v.view()?);
            Ok(d.gemm(&p, io)?)
        }
    };
    // Ten products and their gradients: twenty operations of the backend, the seed and the copies into leaves not counted.
    let chain = {
        let (a, b) = (a.clone(), b.clone());
        move || -> Result<()> {
            for _ in 0..10 {
                let y = out(&[4, 8])?;
                d.binary(Binary::Mul, a.operand().view()?, b.operand().view()?, y.operand().view_mut()?)?;
            }
            for _ in 0..10 {
                let (da, db) = (out(&[4, 8])?, out(&[4, 8])?);
                let (ao, bo, dy) = (a.operand(), b.operand(), a.operand());
                let (dao, dbo) = (da.operand(), db.operand());
                let grads = (Some(dao.grad(false)?), Some(dbo.grad(true)?));
                let io = BinaryBwd::new(dy.view()?, ao.view()?, bo.view()?).da(grads.0).db(grads.1);
                d.binary_bwd(Binary::Mul, io)?;
            }
            Ok(())
        }
    };
    let chained = {
        let (x, y) = (x.clone(), y.clone());
        let seed = noise(d, &[4, 8])?;
        move || -> Result<()> {
            let mut z = x.clone();
            for _ in 0..10 {
                z = z.mul(&y)?;
            }
            z.backward_with(&seed)?;
            x.zero_grad()?;
            y.zero_grad()
        }
    };
    let act_bwd = {
        let a = a.clone();
        move || -> Result<()> {
            let (y, dx) = (out(&[4, 8])?, out(&[4, 8])?);
            let (ao, yo) = (a.operand(), y.operand());
            d.activation(Activation::Relu, ao.view()?, yo.view_mut()?)?;
            let saved = Saved::Output(yo.view()?);
            Ok(d.activation_bwd(Activation::Relu, ao.view()?, saved, dx.operand().grad(false)?)?)
        }
    };
    let relu_back = {
        let x = x.clone();
        let seed = noise(d, &[4, 8])?;
        move || -> Result<()> {
            x.relu()?.backward_with(&seed)?;
            x.zero_grad()
        }
    };
    let drop_result = |t: Tensor| drop(black_box(t));
    let (x1, x2, x3, x4, x5) = (x.clone(), x.clone(), x.clone(), x.clone(), x);
    Ok(vec![
        Row {
            name: "add",
            count: 1.0,
            bare: Box::new(add),
            ours: Box::new(move || x1.add(&y).map(drop_result)),
        },
        Row {
            name: "relu",
            count: 1.0,
            bare: Box::new(relu),
            ours: Box::new(move || x2.relu().map(drop_result)),
        },
        Row {
            name: "sum",
            count: 1.0,
            bare: Box::new(sum),
            ours: Box::new(move || x3.sum().map(drop_result)),
        },
        Row {
            name: "linear with relu",
            count: 1.0,
            bare: Box::new(linear),
            ours: Box::new(move || {
                x4.linear(&weight, Some(&bias), Activation::Relu, Precision::Ieee).map(drop_result)
            }),
        },
        Row {
            name: "reshape (a view: all of it is ours)",
            count: 1.0,
            bare: Box::new(|| Ok(())),
            ours: Box::new(move || x5.reshape(&[8, 4]).map(drop_result)),
        },
        Row { name: "relu and its gradient", count: 2.0, bare: Box::new(act_bwd), ours: Box::new(relu_back) },
        Row {
            name: "10 products and their gradients",
            count: 20.0,
            bare: Box::new(chain),
            ours: Box::new(chained),
        },
    ])
}

fn main() -> Result<()> {
    let selector = match std::env::var("TREFOIL_BACKEND") {
        Ok(_) => Selector::from_env()?,
        Err(_) => "cpu".parse::<Selector>()?,
    };
    let d = Registry::default().open(&selector)?;
    let mut c = Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800))
        .configure_from_args();
    let mut table = vec![];
    for row in rows(&d)? {
        let mut least = [f64::INFINITY; 2];
        for (least, (side, call)) in least.iter_mut().zip([("bare", &row.bare), ("nn", &row.ours)]) {
            let best = Cell::new(f64::INFINITY);
            let failed = Cell::new(None);
            c.bench_function(&format!("{} {side}", row.name), |b| {
                b.iter_custom(|iters| {
                    let from = Instant::now();
                    for _ in 0..iters {
                        if let Err(e) = call() {
                            failed.set(Some(e));
                        }
                    }
                    let took = from.elapsed();
                    best.set(best.get().min(took.as_secs_f64() / iters as f64));
                    // What is queued must not wait for the next sample.
                    if let Err(e) = d.synchronize() {
                        failed.set(Some(e.into()));
                    }
                    took
                });
            });
            if let Some(e) = failed.take() {
                return Err(e);
            }
            *least = best.get();
        }
        table.push((row.name, least, (least[1] - least[0]) / row.count));
    }
    println!("{:38} {:>10} {:>10} {:>14}", "Least time in us", "bare", "nn", "added per op");
    for (name, [bare, ours], added) in table.iter().filter(|(_, l, _)| l[0].is_finite()) {
        let mark = if *added < TARGET { "" } else { "  above the target" };
        println!("{name:38} {:>10.3} {:>10.3} {:>14.3}{mark}", bare * 1e6, ours * 1e6, added * 1e6);
    }
    c.final_summary();
    Ok(())
}
