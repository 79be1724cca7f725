//! Operations and losses of views (other strides, gaps) give the same bits as of the copies in row-major order.

macro_rules! rows {
    ($($name:literal [$($arg:expr),*] |$t:ident| $body:expr;)*) => {
        vec![$(Row { name: $name, args: vec![$($arg),*], run: Box::new(|$t: &[Tensor]| Ok(Vec::from($body))) }),*]
    };
}

mod complete;
mod elementwise;
mod losses;
mod matrices;
mod networks;

use crate::common::{devices, id, noise};
use Arg::*;
use trefoil::DType;
use trefoil_nn::{Device, Result, Tensor};

/// An operand.
#[derive(Clone, Copy)]
enum Arg {
    /// f32 in (0.05, 0.95).
    F(&'static [usize]),
    /// -1 and 1.
    Sign(&'static [usize]),
    /// i64 below a limit.
    Ids(&'static [usize], i64),
    /// i32 below a limit, from 1.
    Count(&'static [usize], i32),
    /// i32, all equal.
    Equal(&'static [usize], i32),
    /// u8, 0 and 1.
    Mask(&'static [usize]),
}

impl Arg {
    fn dense(self, d: &Device, seed: u64) -> Tensor {
        let (F(shape) | Sign(shape) | Ids(shape, _) | Count(shape, _) | Equal(shape, _) | Mask(shape)) = self;
        let v = noise(seed, shape.iter().product());
        let unit = |x: f64| 0.5 + 0.5 * x;
        match self {
            F(_) => {
                let v: Vec<f32> = v.iter().map(|&x| (0.5 + 0.45 * x) as f32).collect();
                Tensor::from_slice(d, &v, shape)
            }
            Sign(_) => {
                let v: Vec<f32> = v.iter().map(|&x| x.signum() as f32).collect();
                Tensor::from_slice(d, &v, shape)
            }
            Ids(_, n) => {
                let v: Vec<i64> = v.iter().map(|&x| (unit(x) * n as f64) as i64).collect();
                Tensor::from_slice(d, &v, shape)
            }
            Count(_, n) => {
                let v: Vec<i32> = v.iter().map(|&x| 1 + (unit(x) * (n - 1) as f64) as i32).collect();
                Tensor::from_slice(d, &v, shape)
            }
            Equal(_, n) => Tensor::from_slice(d, &vec![n; v.len()], shape),
            Mask(_) => {
                let v: Vec<u8> = v.iter().map(|&x| u8::from(x > -0.3)).collect();
                Tensor::from_slice(d, &v, shape)
            }
        }
        .unwrap()
    }
}

/// The same elements in the order of the columns.
fn transposed(t: &Tensor) -> Tensor {
    match t.rank() {
        0 | 1 => gaps(t),
        _ => t.transpose(0, -1).unwrap().contiguous().unwrap().transpose(0, -1).unwrap(),
    }
}

/// The same elements, every second one of a tensor twice as wide.
fn gaps(t: &Tensor) -> Tensor {
    if t.rank() == 0 {
        return t.clone();
    }
    let wide = Tensor::stack(-1, &[t, t]).unwrap().flatten(-2, -1).unwrap();
    let n = wide.shape()[t.rank() - 1];
    wide.slice(-1, 1, n, 2).unwrap()
}

type Run = Box<dyn Fn(&[Tensor]) -> Result<Vec<Tensor>>>;

struct Row {
    name: &'static str,
    args: Vec<Arg>,
    run: Run,
}

/// Name, shape and bytes of a result.
type Bits = (String, Vec<usize>, Vec<u8>);

/// Outputs, and the gradients of each for all floating operands.
fn results(row: &Row, inputs: &[Tensor]) -> Result<Vec<Bits>> {
    let leaves: Vec<Tensor> = inputs.iter().map(Tensor::with_grad).collect();
    let mut all = vec![];
    for (i, y) in (row.run)(&leaves)?.iter().enumerate() {
        all.push((format!("output {i}"), y.shape().to_vec(), y.to_bytes()?));
        if !y.requires_grad() {
            continue;
        }
        let w: Vec<f32> = noise(70 + i as u64, y.numel()).iter().map(|&v| v as f32).collect();
        let w = Tensor::from_slice(y.device(), &w, y.shape())?.to_dtype(y.dtype())?;
        y.mul(&w)?.sum()?.backward_retain()?;
        for (k, t) in leaves.iter().enumerate() {
            if let Some(g) = t.grad() {
                all.push((format!("gradient {k} of output {i}"), g.shape().to_vec(), g.to_bytes()?));
                t.zero_grad()?;
            }
        }
    }
    Ok(all)
}

/// Products of matrices and sums take other layouts as they are, without a copy, and some devices then add in another order: equal up to
/// rounding.
const SUMMED: &[&str] = &[
    "matmul",
    "linear",
    "dot",
    "einsum",
    "expand",
    "reduce",
    "sum",
    "mean",
    "sum_axes",
    "mean_axes",
    "var",
    "mean_var",
    "norm",
    "logsumexp",
    "sum_to_shape",
    "squash",
];

fn equal(name: &str, a: &Bits, b: &Bits) -> bool {
    let float = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    let near = |a: &[u8], b: &[u8]| (float(a) - float(b)).abs() <= 1e-6 * (1.0 + float(b).abs());
    a.1 == b.1
        && match SUMMED.contains(&name) {
            true => a.2.len() == b.2.len() && a.2.chunks(4).zip(b.2.chunks(4)).all(|(a, b)| near(a, b)),
            false => a.2 == b.2,
        }
}

fn same_bits(rows: &[Row]) {
    let mut wrong = vec![];
    for d in devices() {
        for row in rows {
            let dense: Vec<Tensor> =
                row.args.iter().enumerate().map(|(i, a)| a.dense(&d, 5 + i as u64)).collect();
            let want = results(row, &dense).unwrap_or_else(|e| panic!("{}: {e}", row.name));
            for (how, view) in [("transposed", transposed as fn(&Tensor) -> Tensor), ("with gaps", gaps)] {
                let place = |what: &str| format!("{} of views {how} on {}: {what}", row.name, id(&d));
                let views: Vec<Tensor> = dense.iter().map(view).collect();
                assert!(views.iter().all(|v| !v.is_contiguous() || v.numel() < 2), "{}", place("no views"));
                match results(row, &views) {
                    Err(e) => wrong.push(place(&e.to_string())),
                    Ok(got) if got.len() != want.len() => wrong.push(place("another number of results")),
                    Ok(got) => {
                        let pairs = got.iter().zip(&want).filter(|(g, w)| !equal(row.name, g, w));
                        wrong.extend(pairs.map(|(g, _)| place(&format!("other numbers in {}", g.0))));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

const M: &[usize] = &[4, 6];
const IMAGE: &[usize] = &[2, 4, 6, 6];

/// The gradient of a repeated view as an operand has all its elements; the repetition sums them up.
#[test]
fn gradients_of_repeated_operands() {
    for d in devices() {
        let w: Vec<f32> = noise(9, 72).iter().map(|&v| v as f32).collect();
        let full = Tensor::from_slice(&d, &w, &[3, 4, 6]).unwrap();
        for shape in [&[4usize, 6][..], &[6], &[]] {
            let x = Tensor::full(&d, DType::F32, shape, 0.5).unwrap().with_grad();
            let n = x.numel();
            let want: Vec<f32> = (0..n).map(|i| w.iter().skip(i).step_by(n).sum()).collect();
            for swapped in [false, true] {
                x.zero_grad().unwrap();
                let wide = x.expand(&[3, 4, 6]).unwrap();
                wide.retain_grad().unwrap();
                let y = if swapped { full.mul(&wide) } else { wide.mul(&full) };
                y.unwrap().sum().unwrap().backward().unwrap();
                let place = format!("{shape:?}, {swapped} on {}", id(&d));
                assert_eq!(wide.grad().unwrap().to_vec::<f32>().unwrap(), w, "{place}");
                let got = x.grad().unwrap().to_vec::<f32>().unwrap();
                assert!(got.iter().zip(&want).all(|(g, w)| (g - w).abs() < 1e-4), "{place}: {got:?}");
            }
        }
    }
}
