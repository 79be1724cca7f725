//! Operators by PyTorch's names against its values and gradients (tests/golden/operators.py), in f64 on the CPU and in f32 on every backend.

use serde_json::Value;
use trefoil::DType;
use trefoil::ops::index::ScatterReduce;
use trefoil::ops::pool::Window;
use trefoil_nn::{
    BagMode, Device, EmbeddingBag, Histogram, MatrixNorm, NnError, QuantileInterpolation, Result, Spacing,
    Tensor, Unique,
};

use crate::common::calls::{Args, Golden, Outputs, many, one, truth, two};
use crate::common::{cpu, devices};

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

fn spectral(op: &str, a: &Args, t: &[Tensor]) -> Outputs {
    let ord = match &a.0["ord"] {
        Value::String(s) => s.clone(),
        v => v.to_string(),
    };
    let ord = match ord.as_str() {
        "nuc" => MatrixNorm::Nuclear,
        "2" => MatrixNorm::Spectral,
        "-2" => MatrixNorm::LeastSingular,
        "1" => MatrixNorm::One,
        "-1" => MatrixNorm::LeastColumn,
        "inf" => MatrixNorm::Infinity,
        "-inf" => MatrixNorm::LeastRow,
        _ => MatrixNorm::Frobenius,
    };
    let (atol, rtol) = (a.0["atol"].as_f64(), a.0["rtol"].as_f64());
    match op {
        "svd" => Some(t[0].svd().and_then(|(u, s, vh)| Ok(vec![u.square()?, s, vh.square()?]))),
        "svdvals" => one(t[0].svdvals()),
        "pinv" => one(t[0].pinv(atol, rtol)),
        "matrix_rank" => one(t[0].matrix_rank(atol, rtol)),
        "matrix_norm" => one(t[0].matrix_norm(ord, a.flag("keepdim"))),
        "cond" => one(t[0].cond(ord)),
        _ => None,
    }
}

fn special(op: &str, _: &Args, t: &[Tensor]) -> Outputs {
    one(match op {
        "erfcx" => t[0].erfcx(),
        "log_ndtr" => t[0].log_ndtr(),
        "ndtri" => t[0].ndtri(),
        "bessel_j0" => t[0].bessel_j0(),
        "bessel_j1" => t[0].bessel_j1(),
        "bessel_y0" => t[0].bessel_y0(),
        "bessel_y1" => t[0].bessel_y1(),
        "spherical_bessel_j0" => t[0].spherical_bessel_j0(),
        "modified_bessel_k0" => t[0].modified_bessel_k0(),
        "modified_bessel_k1" => t[0].modified_bessel_k1(),
        "scaled_modified_bessel_k0" => t[0].scaled_modified_bessel_k0(),
        "scaled_modified_bessel_k1" => t[0].scaled_modified_bessel_k1(),
        "airy_ai" => t[0].airy_ai(),
        "igamma" => t[0].igamma(&t[1]),
        "igammac" => t[0].igammac(&t[1]),
        "igamma_of_3.5" => t[0].full_like(3.5).and_then(|a| a.igamma(&t[0])),
        "igammac_of_3.5" => t[0].full_like(3.5).and_then(|a| a.igammac(&t[0])),
        _ => return None,
    })
}

fn bins(op: &str, a: &Args, t: &[Tensor]) -> Outputs {
    let unique = |u: Result<Unique>| Some(u.map(|u| vec![u.values, u.inverse, u.counts]));
    let histogram = |h: Result<Histogram>| Some(h.map(|h| [vec![h.counts], h.edges].concat()));
    let density = a.flag("density");
    let range: Option<Vec<f64>> = (!a.0["range"].is_null()).then(|| a.list("range"));
    match op {
        "fractional_max_pool3d" => {
            let (kernel, out) = (a.list::<usize>("kernel_size"), a.list::<usize>("output_size"));
            let three = |v: Vec<usize>| <[usize; 3]>::try_from(v).unwrap();
            two(t[0].fractional_max_pool3d(three(kernel), three(out), &t[1]))
        }
        "unique_dim" => unique(t[0].unique_dim(a.axis())),
        "unique_consecutive_dim" => unique(t[0].unique_consecutive_dim(a.axis())),
        "histogram" => {
            histogram(t[0].histogram(a.size("bins"), range.map(|r| [r[0], r[1]]), t.get(1), density))
        }
        "histogram_of_edges" => one(t[0].histogram_of_edges(&t[1], None, density).map(|h| h.counts)),
        "histogramdd_of_edges" => {
            one(t[0].histogramdd_of_edges(&[&t[1], &t[2]], None, density).map(|h| h.counts))
        }
        "histogramdd" => {
            let range = range.map(|r| r.chunks(2).map(|r| [r[0], r[1]]).collect::<Vec<_>>());
            histogram(t[0].histogramdd(&a.list::<usize>("bins"), range.as_deref(), t.get(1), density))
        }
        _ => None,
    }
}

/// Operators that wait for the device, as PyTorch's do, and one that uploads positions.
const WAIT: &[&str] = &[
    "unique",
    "unique_consecutive",
    "unique_dim",
    "unique_consecutive_dim",
    "bincount",
    "index_mask",
    "allclose",
    "equal",
    "matrix_power",
    "svd",
    "svdvals",
    "combinations",
    "tril_indices",
    "triu_indices",
];

const GOLDEN: Golden = Golden {
    file: "operators.json",
    least: 300,
    families: &[
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
        spectral,
        special,
        bins,
    ],
    copying: WAIT,
};

#[test]
fn values_and_gradients_are_those_of_pytorch() {
    GOLDEN.check(&cpu(), DType::F64, false);
}

#[test]
fn every_backend_gives_the_values_of_pytorch() {
    for d in devices() {
        GOLDEN.check(&d, DType::F32, false);
    }
}

#[test]
fn operands_may_be_views() {
    for d in devices() {
        GOLDEN.check(&d, DType::F32, true);
    }
}
