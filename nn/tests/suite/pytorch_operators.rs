//! Operators by PyTorch's names against its values and gradients (tests/golden/operators.py), in f64 on the CPU and in f32 on every backend.

use serde::Deserialize;
use serde_json::Value;
use trefoil::DType;
use trefoil::ops::index::ScatterReduce;
use trefoil::ops::pool::Window;
use trefoil_nn::autograd::backward;
use trefoil_nn::{BagMode, Device, EmbeddingBag, NnError, QuantileInterpolation, Result, Spacing, Tensor};

use crate::common::everywhere::{transfers, values};
use crate::common::{cpu, devices, id};

/// A tensor of the golden file.
#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data: Vec<Value>,
}

/// A number, of which those that JSON lacks are strings.
fn number(v: &Value) -> f64 {
    v.as_f64().unwrap_or_else(|| v.as_str().unwrap().parse().unwrap())
}

impl Entry {
    fn numbers(&self) -> Vec<f64> {
        self.data.iter().map(number).collect()
    }

    /// The tensor, floats in the given dtype.
    fn on(&self, d: &Device, float: DType) -> Tensor {
        let whole: Vec<i64> = self.data.iter().map(|v| v.as_i64().unwrap_or(0)).collect();
        match self.dtype.as_str() {
            "f64" if float == DType::F64 => Tensor::from_slice(d, &self.numbers(), &self.shape),
            "f64" => {
                let narrow: Vec<f32> = self.numbers().iter().map(|&x| x as f32).collect();
                Tensor::from_slice(d, &narrow, &self.shape)
            }
            "i64" => Tensor::from_slice(d, &whole, &self.shape),
            "i32" => Tensor::from_slice(d, &whole.iter().map(|&x| x as i32).collect::<Vec<_>>(), &self.shape),
            "u8" => Tensor::from_slice(d, &whole.iter().map(|&x| x as u8).collect::<Vec<_>>(), &self.shape),
            other => panic!("dtype {other}"),
        }
        .unwrap()
    }
}

/// Arguments by PyTorch's names.
struct Args(Value);

impl Args {
    fn num(&self, key: &str) -> f64 {
        number(&self.0[key])
    }

    fn int(&self, key: &str) -> isize {
        self.0[key].as_i64().unwrap() as isize
    }

    fn size(&self, key: &str) -> usize {
        self.0[key].as_u64().unwrap() as usize
    }

    fn flag(&self, key: &str) -> bool {
        self.0[key].as_bool().unwrap_or(false)
    }

    fn text(&self, key: &str) -> &str {
        self.0[key].as_str().unwrap_or_default()
    }

    fn list<T: serde::de::DeserializeOwned>(&self, key: &str) -> Vec<T> {
        serde_json::from_value(self.0[key].clone()).unwrap()
    }

    fn axis(&self) -> isize {
        self.int("dim")
    }

    fn keep(&self) -> bool {
        self.flag("keepdim")
    }
}

type Outputs = Option<Result<Vec<Tensor>>>;

fn one(t: Result<Tensor>) -> Outputs {
    Some(t.map(|t| vec![t]))
}

fn two(t: Result<(Tensor, Tensor)>) -> Outputs {
    Some(t.map(|(a, b)| vec![a, b]))
}

fn many(t: Result<Vec<Tensor>>) -> Outputs {
    Some(t)
}

fn truth(d: &Device, b: Result<bool>) -> Outputs {
    one(b.and_then(|b| Tensor::from_slice(d, &[u8::from(b)], &[])))
}

fn running(op: &str, a: &Args, t: &[Tensor]) -> Outputs {
    let spacing = || t.get(1).map_or_else(|| Spacing::from(a.num("dx")), Spacing::from);
    match op {
        "logcumsumexp" => one(t[0].logcumsumexp(a.axis())),
        "cumprod" => one(t[0].cumprod(a.axis())),
        "cummax" => two(t[0].cummax(a.axis())),
        "cummin" => two(t[0].cummin(a.axis())),
        "diff" => one(t[0].diff(a.size("n"), a.axis(), t.get(1), t.get(2))),
        "trapezoid" => one(t[0].trapezoid(spacing(), a.axis())),
        "cumulative_trapezoid" => one(t[0].cumulative_trapezoid(spacing(), a.axis())),
        _ => None,
    }
}

fn statistics(op: &str, a: &Args, t: &[Tensor]) -> Outputs {
    let over = || a.list::<isize>("dim");
    match op {
        "nansum" => one(t[0].nansum(&over(), a.keep())),
        "nanmean" => one(t[0].nanmean(&over(), a.keep())),
        "count_nonzero" => one(t[0].count_nonzero(&over())),
        "std_mean" => two(t[0].std_mean(&over(), a.num("correction"), a.keep())),
        "var_mean" => two(t[0].var_mean(&over(), a.num("correction"), a.keep())),
        "trace" => one(t[0].trace()),
        "dist" => one(t[0].dist(&t[1], a.num("p"))),
        "renorm" => one(t[0].renorm(a.num("p"), a.axis(), a.num("maxnorm"))),
        "cov" => {
            let correction = if a.0["correction"].is_null() { 1.0 } else { a.num("correction") };
            one(t[0].cov(correction, t.get(1), t.get(2)))
        }
        "corrcoef" => one(t[0].corrcoef()),
        _ => None,
    }
}

fn order(op: &str, a: &Args, t: &[Tensor]) -> Outputs {
    let how = match a.text("interpolation") {
        "lower" => QuantileInterpolation::Lower,
        "higher" => QuantileInterpolation::Higher,
        "nearest" => QuantileInterpolation::Nearest,
        "midpoint" => QuantileInterpolation::Midpoint,
        _ => QuantileInterpolation::Linear,
    };
    let along = a.0["dim"].as_i64().map(|d| d as isize);
    let single = a.0["q"].is_number();
    match op {
        "median" => one(t[0].median()),
        "nanmedian" => one(t[0].nanmedian()),
        "median_dim" => two(t[0].median_with_index(a.axis(), a.keep())),
        "nanmedian_dim" => two(t[0].nanmedian_with_index(a.axis(), a.keep())),
        "kthvalue" => two(t[0].kthvalue(a.size("k"), a.axis(), a.keep())),
        "mode" => two(t[0].mode(a.axis(), a.keep())),
        "quantile" if single => one(t[0].quantile(a.num("q"), along, a.keep(), how)),
        "quantile" => one(t[0].quantiles(&a.list::<f64>("q"), along, a.keep(), how)),
        "nanquantile" if single => one(t[0].nanquantile(a.num("q"), along, a.keep(), how)),
        "nanquantile" => one(t[0].nanquantiles(&a.list::<f64>("q"), along, a.keep(), how)),
        _ => None,
    }
}

fn counts(op: &str, a: &Args, t: &[Tensor]) -> Outputs {
    match op {
        "histc" => one(t[0].histc(a.size("bins"), a.num("min"), a.num("max"))),
        "bincount" => one(t[0].bincount(t.get(1), a.size("minlength"))),
        "isin" => one(t[0].isin(&t[1], a.flag("invert"))),
        "unique" => many(t[0].unique().map(|u| vec![u.values, u.inverse, u.counts])),
        "unique_consecutive" => many(t[0].unique_consecutive().map(|u| vec![u.values, u.inverse, u.counts])),
        _ => None,
    }
}

fn windows(op: &str, a: &Args, t: &[Tensor]) -> Outputs {
    let sizes = |key: &str| a.list::<usize>(key);
    match op {
        "embedding_bag" => {
            let mode = match a.text("mode") {
                "sum" => BagMode::Sum,
                "max" => BagMode::Max,
                _ => BagMode::Mean,
            };
            let options = EmbeddingBag {
                mode,
                padding_idx: a.0["padding_idx"].as_i64(),
                scale_grad_by_freq: a.flag("scale_grad_by_freq"),
                include_last_offset: a.flag("include_last_offset"),
            };
            one(t[0].embedding_bag(&t[1], t.get(2), t.get(3), &options))
        }
        "local_response_norm" => {
            one(t[0].local_response_norm(a.size("size"), a.num("alpha"), a.num("beta"), a.num("k")))
        }
        "max_unpool" => {
            let window =
                Window::new(&sizes("kernel_size")).stride(&sizes("stride")).padding(&sizes("padding"));
            // PyTorch's case without a batch.
            let unbatched = t[0].rank() == window.kernel.len() + 1;
            let wide = |t: &Tensor| if unbatched { t.unsqueeze(0) } else { Ok(t.clone()) };
            let size = (!a.0["size"].is_null()).then(|| sizes("size"));
            let y = wide(&t[0]).and_then(|x| x.max_unpool(&wide(&t[1])?, &window, size.as_deref()));
            one(y.and_then(|y| if unbatched { y.squeeze(0) } else { Ok(y) }))
        }
        "fractional_max_pool2d" => {
            let (kernel, out) = (sizes("kernel_size"), sizes("output_size"));
            two(t[0].fractional_max_pool2d([kernel[0], kernel[1]], [out[0], out[1]], &t[1]))
        }
        "lp_pool" => {
            one(t[0].lp_pool(a.num("p"), &Window::new(&sizes("kernel_size")).stride(&sizes("stride"))))
        }
        _ => None,
    }
}

fn pointwise(op: &str, a: &Args, t: &[Tensor]) -> Outputs {
    match op {
        "celu" => one(t[0].celu(a.num("alpha"))),
        "softsign" => one(t[0].softsign()),
        "softshrink" => one(t[0].softshrink(a.num("lambd"))),
        "hardshrink" => one(t[0].hardshrink(a.num("lambd"))),
        "tanhshrink" => one(t[0].tanhshrink()),
        "threshold" => one(t[0].threshold(a.num("threshold"), a.num("value"))),
        "logsigmoid" => one(t[0].log_sigmoid()),
        "rrelu" => one(t[0].rrelu(a.num("lower"), a.num("upper"), None)),
        "sinc" => one(t[0].sinc()),
        "logit" => one(t[0].logit((!a.0["eps"].is_null()).then(|| a.num("eps")))),
        "heaviside" => one(t[0].heaviside(&t[1])),
        "mvlgamma" => one(t[0].mvlgamma(a.size("p"))),
        "ndtr" => one(t[0].ndtr()),
        "i0" => one(t[0].i0()),
        "i0e" => one(t[0].i0e()),
        "i1" => one(t[0].i1()),
        "i1e" => one(t[0].i1e()),
        "xlog1py" => one(t[0].xlog1py(&t[1])),
        "zeta" => one(t[0].zeta(&t[1])),
        "entr" => one(t[0].entr()),
        "deg2rad" => one(t[0].deg2rad()),
        "rad2deg" => one(t[0].rad2deg()),
        "nan_to_num" => one(t[0].nan_to_num(a.num("nan"), Some(a.num("posinf")), Some(a.num("neginf")))),
        _ => None,
    }
}

fn comparisons(op: &str, a: &Args, t: &[Tensor]) -> Outputs {
    let near = || (a.num("rtol"), a.num("atol"), a.flag("equal_nan"));
    match op {
        "isclose" => {
            let (rtol, atol, nan) = near();
            one(t[0].is_close(&t[1], rtol, atol, nan))
        }
        "allclose" => {
            let (rtol, atol, nan) = near();
            truth(t[0].device(), t[0].all_close(&t[1], rtol, atol, nan))
        }
        "equal" => truth(t[0].device(), t[0].equal(&t[1])),
        "signbit" => one(t[0].sign_bit()),
        "gcd" => one(t[0].gcd(&t[1])),
        "lcm" => one(t[0].lcm(&t[1])),
        _ => None,
    }
}

fn by_index(op: &str, a: &Args, t: &[Tensor]) -> Outputs {
    let (k, first, second) = (|key| a.int(key), "dim1", "dim2");
    match op {
        "index_reduce" => {
            let how = match a.text("reduce") {
                "prod" => ScatterReduce::Prod,
                "mean" => ScatterReduce::Mean,
                "amin" => ScatterReduce::Amin,
                _ => ScatterReduce::Amax,
            };
            let include = a.0["include_self"].as_bool().unwrap_or(true);
            one(t[0].index_reduce(a.axis(), &t[1], &t[2], how, include))
        }
        "take" => one(t[0].take(&t[1])),
        "put" => one(t[0].put(&t[1], &t[2], a.flag("accumulate"))),
        "index_mask" => one(t[0].index_mask(&t[1])),
        "select_scatter" => one(t[0].select_scatter(&t[1], a.axis(), k("index"))),
        "slice_scatter" => {
            one(t[0].slice_scatter(&t[1], a.axis(), a.size("start"), a.size("end"), a.size("step")))
        }
        "diagonal_scatter" => {
            let [a1, a2] = if a.0[first].is_null() { [0, 1] } else { [k(first), k(second)] };
            one(t[0].diagonal_scatter(&t[1], k("offset"), a1, a2))
        }
        "diag_embed" => one(t[0].diag_embed(k("offset"), k(first), k(second))),
        "diag" => one(t[0].diag(k("diagonal"))),
        _ => None,
    }
}

fn arrangement(op: &str, a: &Args, t: &[Tensor]) -> Outputs {
    let parts: Vec<&Tensor> = t.iter().collect();
    let axes = |key: &str| a.list::<isize>(key);
    match op {
        "rot90" => one(t[0].rot90(a.int("k"), [axes("dims")[0], axes("dims")[1]])),
        "moveaxis" => one(t[0].moveaxis(&axes("source"), &axes("destination"))),
        "unflatten" => one(t[0].unflatten(a.axis(), &axes("sizes"))),
        "tile" => one(t[0].tile(&a.list::<usize>("dims"))),
        "atleast_1d" => one(t[0].atleast_1d()),
        "atleast_2d" => one(t[0].atleast_2d()),
        "atleast_3d" => one(t[0].atleast_3d()),
        "hstack" => one(Tensor::hstack(&parts)),
        "vstack" => one(Tensor::vstack(&parts)),
        "dstack" => one(Tensor::dstack(&parts)),
        "column_stack" => one(Tensor::column_stack(&parts)),
        "unbind" => many(t[0].unbind(a.axis())),
        "tensor_split" => many(t[0].tensor_split(a.axis(), a.size("indices_or_sections"))),
        "broadcast_tensors" => many(Tensor::broadcast_tensors(&parts)),
        "block_diag" => one(Tensor::block_diag(&parts)),
        "meshgrid" => many(Tensor::meshgrid(&parts, a.text("indexing") == "xy")),
        "cartesian_prod" => one(Tensor::cartesian_prod(&parts)),
        "combinations" => one(t[0].combinations(a.size("r"), a.flag("with_replacement"))),
        "unravel_index" => many(t[0].unravel_index(&a.list::<usize>("shape"))),
        "logspace" => {
            let (d, dtype) = (t[0].device(), t[0].dtype());
            one(Tensor::logspace(d, dtype, a.num("start"), a.num("end"), a.size("steps"), a.num("base")))
        }
        "vander" => one(t[0].vander((!a.0["N"].is_null()).then(|| a.size("N")), a.flag("increasing"))),
        _ => None,
    }
}

fn created(op: &str, a: &Args, t: &[Tensor]) -> Outputs {
    let (d, dtype) = (t[0].device(), t[0].dtype());
    let window = |make: fn(&Device, DType, usize, bool) -> Result<Tensor>| {
        one(make(d, dtype, a.size("window_length"), a.flag("periodic")))
    };
    let place = || (a.size("row"), a.size("col"), a.int("offset"));
    match op {
        "hann_window" => window(Tensor::hann_window),
        "blackman_window" => window(Tensor::blackman_window),
        "bartlett_window" => window(Tensor::bartlett_window),
        "hamming_window" => {
            let (n, periodic) = (a.size("window_length"), a.flag("periodic"));
            one(Tensor::hamming_window(d, dtype, n, periodic, a.num("alpha"), a.num("beta")))
        }
        "kaiser_window" => {
            let (n, periodic) = (a.size("window_length"), a.flag("periodic"));
            one(Tensor::kaiser_window(d, dtype, n, periodic, a.num("beta")))
        }
        "tril_indices" => one(Tensor::tril_indices(d, place().0, place().1, place().2)),
        "triu_indices" => one(Tensor::triu_indices(d, place().0, place().1, place().2)),
        _ => None,
    }
}

fn products(op: &str, a: &Args, t: &[Tensor]) -> Outputs {
    let factors = || (a.num("beta"), a.num("alpha"));
    let upper = a.flag("upper");
    // Of a matrix that is positive definite.
    let factor = |a: &Tensor| {
        let two = Tensor::eye(a.device(), a.dtype(), a.shape()[a.rank() - 1])?.mul_scalar(2.0)?;
        Ok::<_, NnError>(a.matmul(&a.t()?)?.add(&two)?.cholesky_ex(upper)?.0)
    };
    match op {
        "addmm" => one(t[0].addmm(&t[1], &t[2], factors().0, factors().1)),
        "addbmm" => one(t[0].addbmm(&t[1], &t[2], factors().0, factors().1)),
        "addr" => one(t[0].addr(&t[1], &t[2], factors().0, factors().1)),
        "tensordot" => {
            let over = a.list::<Vec<isize>>("dims");
            one(t[0].tensordot(&t[1], &over[0], &over[1]))
        }
        "inner" => one(t[0].inner(&t[1])),
        "kron" => one(t[0].kron(&t[1])),
        "cross" => one(t[0].cross(&t[1], a.axis())),
        "bilinear" => one(t[0].bilinear(&t[1], &t[2], t.get(3))),
        "multi_dot" => one(Tensor::multi_dot(&t.iter().collect::<Vec<_>>())),
        "cholesky_solve" => one(factor(&t[1]).and_then(|l| t[0].cholesky_solve(&l, upper))),
        "cholesky_inverse" => one(factor(&t[0]).and_then(|l| l.cholesky_inverse(upper))),
        "matrix_power" => one(t[0].matrix_power(a.int("n") as i64)),
        _ => None,
    }
}

/// Operators that wait for the device, as PyTorch's do, and one that uploads positions.
const WAIT: &[&str] = &[
    "unique",
    "unique_consecutive",
    "bincount",
    "index_mask",
    "allclose",
    "equal",
    "matrix_power",
    "combinations",
    "tril_indices",
    "triu_indices",
];

#[derive(Deserialize)]
struct Case {
    op: String,
    args: Value,
    inputs: Vec<Entry>,
    outputs: Vec<Option<Entry>>,
    dout: Vec<Option<Entry>>,
    din: Vec<Option<Entry>>,
}

fn cases() -> Vec<Case> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/operators.json");
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

/// What differs, if anything does: NaN and infinities have to be in the same places.
fn differences(got: &Tensor, want: &Entry, tolerance: f64) -> Option<String> {
    if got.shape() != want.shape {
        return Some(format!("shape {:?} instead of {:?}", got.shape(), want.shape));
    }
    if got.dtype().is_float() != (want.dtype == "f64") || (want.dtype == "i64") != (got.dtype() == DType::I64)
    {
        return Some(format!("{} instead of {}", got.dtype(), want.dtype));
    }
    if got.dtype() == DType::I64 {
        let (g, w) = (got.contiguous().unwrap().to_vec::<i64>().unwrap(), &want.data);
        return g.iter().zip(w).any(|(g, w)| Some(*g) != w.as_i64()).then(|| format!("{g:?}, not {w:?}"));
    }
    let (g, w) = (values(got), want.numbers());
    let same =
        |g: f64, w: f64| g == w || (g.is_nan() && w.is_nan()) || (g - w).abs() <= tolerance * (1.0 + w.abs());
    g.iter().zip(&w).any(|(&g, &w)| !same(g, w)).then(|| format!("{g:?}, not {w:?}"))
}

/// The same elements in memory of another order, or with gaps between them; gradients go to `t`.
fn scattered(t: &Tensor) -> Tensor {
    let view = match t.rank() {
        0 => Ok(t.clone()),
        1 => Tensor::stack(1, &[t, t]).and_then(|pairs| pairs.select(1, 0)),
        _ => t.t().and_then(|t| t.contiguous()?.t()),
    };
    view.unwrap()
}

/// Runs a case, of views where they are asked for, and says what differs from PyTorch.
fn wrong(c: &Case, d: &Device, float: DType, views: bool) -> Option<String> {
    let tolerance = if float == DType::F64 { 1e-9 } else { 2e-5 };
    let differentiable = c.dout.iter().any(Option::is_some);
    let place = |e: &Entry| {
        let t = e.on(d, float);
        if differentiable && t.dtype().is_float() { t.with_grad() } else { t }
    };
    let inputs: Vec<Tensor> = c.inputs.iter().map(place).collect();
    let args = Args(c.args.clone());
    let families = [
        running,
        statistics,
        order,
        counts,
        windows,
        pointwise,
        comparisons,
        by_index,
        arrangement,
        created,
        products,
    ];
    let operands: Vec<Tensor> = inputs.iter().map(|t| if views { scattered(t) } else { t.clone() }).collect();
    let run = || {
        let before = transfers(d);
        let result = families.iter().find_map(|f| f(&c.op, &args, &operands));
        (result, transfers(d) != before)
    };
    let (mut result, mut moved) = run();
    // The first use of a vendor's library checks its results.
    if moved {
        (result, moved) = run();
    }
    let outputs = match result {
        Some(Ok(outputs)) => outputs,
        Some(Err(e)) => return Some(e.to_string()),
        None => return Some("the test does not know this operator".into()),
    };
    if moved && !WAIT.contains(&c.op.as_str()) {
        return Some("copies between host and device".into());
    }
    if outputs.len() != c.outputs.len() {
        return Some(format!("{} outputs instead of {}", outputs.len(), c.outputs.len()));
    }
    for (i, (got, want)) in outputs.iter().zip(&c.outputs).enumerate() {
        if let Some(what) = want.as_ref().and_then(|w| differences(got, w, tolerance)) {
            return Some(format!("output {i}: {what}"));
        }
    }
    let upstream: Vec<Option<Tensor>> = c.dout.iter().map(|e| e.as_ref().map(|e| e.on(d, float))).collect();
    let roots = outputs.iter().zip(&upstream).filter(|(_, g)| g.is_some()).map(|(y, g)| (y, g.as_ref()));
    let roots: Vec<_> = roots.collect();
    if differentiable && let Err(e) = backward(&roots, false) {
        return Some(format!("backward: {e}"));
    }
    c.din.iter().zip(&inputs).enumerate().find_map(|(i, (want, x))| {
        let want = want.as_ref()?;
        let Some(got) = x.grad() else {
            let zero = want.numbers().iter().all(|&x| x == 0.0);
            return (!zero).then(|| format!("input {i} has no gradient"));
        };
        Some(format!("gradient {i}: {}", differences(&got, want, tolerance)?))
    })
}

fn check(d: &Device, float: DType, views: bool) {
    let all = cases();
    assert!(all.len() > 200, "only {} cases", all.len());
    let failed: Vec<String> = all
        .iter()
        .enumerate()
        .filter_map(|(i, c)| Some(format!("case {i}, {} {}: {}", c.op, c.args, wrong(c, d, float, views)?)))
        .collect();
    assert!(failed.is_empty(), "{} in {float} on {}:\n{}", failed.len(), id(d), failed.join("\n"));
}

#[test]
fn values_and_gradients_are_those_of_pytorch() {
    check(&cpu(), DType::F64, false);
}

#[test]
fn every_backend_gives_the_values_of_pytorch() {
    for d in devices() {
        check(&d, DType::F32, false);
    }
}

#[test]
fn operands_may_be_views() {
    for d in devices() {
        check(&d, DType::F32, true);
    }
}
