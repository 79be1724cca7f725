//! Operators of PyTorch beyond its values: gradients against differences, second gradients, randomness, errors.

use crate::common::everywhere::{resident, values};
use crate::common::{close, cpu, devices, gradcheck, tensor};
use trefoil::DType;
use trefoil::ops::pool::Window;
use trefoil::ops::random::Rng;
use trefoil_nn::autograd::{GradOptions, grad};
use trefoil_nn::{BagMode, EmbeddingBag, Histogram, NnError, QuantileInterpolation, Result, Tensor};

fn same(x: f64) -> f64 {
    x
}

fn ids(v: &[i64], shape: &[usize]) -> Tensor {
    Tensor::from_slice(&cpu(), v, shape).unwrap()
}

#[test]
fn gradients_are_those_of_differences() {
    let (wide, far) = (|x: f64| 2.0 * x, |x: f64| x.signum() * (x.abs() + 0.6));
    gradcheck("logcumsumexp", &[&[2, 7]], wide, |t| t[0].logcumsumexp(1));
    gradcheck("cumprod", &[&[3, 6]], wide, |t| t[0].cumprod(-1));
    gradcheck("cummax", &[&[2, 6]], same, |t| Ok(t[0].cummax(1)?.0));
    gradcheck("diff", &[&[4, 3]], same, |t| t[0].diff(2, 0, None, None));
    gradcheck("trapezoid", &[&[2, 5], &[5]], same, |t| t[0].trapezoid(&t[1], 1));
    gradcheck("renorm", &[&[3, 4]], wide, |t| t[0].renorm(2.0, 0, 1.0));
    gradcheck("cov", &[&[3, 5]], same, |t| t[0].cov(1.0, None, None));
    gradcheck("std_mean", &[&[3, 5]], same, |t| {
        let (std, mean) = t[0].std_mean(&[1], 1.0, false)?;
        std.mul(&mean)
    });
    gradcheck("median", &[&[3, 5]], same, |t| Ok(t[0].median_with_index(1, false)?.0));
    gradcheck("quantile", &[&[3, 5]], same, |t| {
        t[0].quantiles(&[0.2, 0.7], Some(1), true, QuantileInterpolation::Linear)
    });
    gradcheck("celu", &[&[2, 5]], wide, |t| t[0].celu(0.7));
    gradcheck("softshrink", &[&[2, 5]], far, |t| t[0].softshrink(0.5));
    gradcheck("log_sigmoid", &[&[2, 5]], wide, |t| t[0].log_sigmoid());
    gradcheck("logit", &[&[2, 5]], |x| 0.4 * x + 0.5, |t| t[0].logit(None));
    gradcheck("i0e", &[&[2, 5]], far, |t| t[0].i0e());
    let positive = |x: f64| 1.5 + x;
    gradcheck("erfcx", &[&[2, 5]], wide, |t| t[0].erfcx());
    gradcheck("log_ndtr", &[&[2, 5]], wide, |t| t[0].log_ndtr());
    gradcheck("ndtri", &[&[2, 5]], |x| 0.4 * x + 0.5, |t| t[0].ndtri());
    gradcheck("bessel_j0", &[&[2, 5]], |x| 12.0 * x, |t| t[0].bessel_j0());
    gradcheck("bessel_j1", &[&[2, 5]], |x| 12.0 * x, |t| t[0].bessel_j1());
    gradcheck("bessel_y0", &[&[2, 5]], positive, |t| t[0].bessel_y0());
    gradcheck("bessel_y1", &[&[2, 5]], positive, |t| t[0].bessel_y1());
    gradcheck("spherical_bessel_j0", &[&[2, 5]], wide, |t| t[0].spherical_bessel_j0());
    gradcheck("modified_bessel_k0", &[&[2, 5]], positive, |t| t[0].modified_bessel_k0());
    gradcheck("modified_bessel_k1", &[&[2, 5]], positive, |t| t[0].modified_bessel_k1());
    gradcheck("scaled_modified_bessel_k0", &[&[2, 5]], positive, |t| t[0].scaled_modified_bessel_k0());
    gradcheck("scaled_modified_bessel_k1", &[&[2, 5]], positive, |t| t[0].scaled_modified_bessel_k1());
    gradcheck("igamma", &[&[2, 5]], positive, |t| t[0].full_like(2.5)?.igamma(&t[0]));
    gradcheck("igammac, broadcast", &[&[5]], positive, |t| {
        t[0].full_like(0.75)?.reshape(&[5, 1])?.igammac(&t[0])
    });
    gradcheck("kron", &[&[2, 2], &[3, 1]], same, |t| t[0].kron(&t[1]));
    gradcheck("cross", &[&[2, 3], &[1, 3]], same, |t| t[0].cross(&t[1], -1));
    gradcheck("bilinear", &[&[2, 3], &[2, 2], &[4, 3, 2]], same, |t| t[0].bilinear(&t[1], &t[2], None));
    gradcheck("matrix_power", &[&[2, 3, 3]], same, |t| t[0].matrix_power(3));
    gradcheck("local_response_norm", &[&[1, 5, 3]], same, |t| t[0].local_response_norm(3, 0.5, 0.75, 1.0));
    gradcheck("lp_pool", &[&[1, 2, 4, 4]], far, |t| t[0].lp_pool(2.0, &Window::new(&[2, 2])));
    let (flat, starts) = (ids(&[1, 3, 0, 1, 4, 3], &[6]), ids(&[0, 2, 2, 5], &[4]));
    for mode in [BagMode::Sum, BagMode::Mean, BagMode::Max] {
        let options = EmbeddingBag { mode, padding_idx: Some(3), ..Default::default() };
        gradcheck(&format!("bags, {mode:?}"), &[&[5, 3]], same, |t| {
            t[0].embedding_bag(&flat, Some(&starts), None, &options)
        });
    }
    let rows = ids(&[2, 0], &[2]);
    gradcheck("diagonal_scatter", &[&[3, 3], &[3]], same, |t| t[0].diagonal_scatter(&t[1], 0, 0, 1));
    gradcheck("index_put by put", &[&[2, 3], &[2]], same, |t| t[0].put(&rows, &t[1], false));
}

/// The gradient of the sum of squares of a gradient, against differences of that gradient.
#[test]
fn gradients_can_be_differentiated_again() {
    let twice = |what: &str, shape: &[usize], f: &dyn Fn(&Tensor) -> Result<Tensor>| {
        gradcheck(
            what,
            &[shape],
            |x| x + 0.1,
            |t| {
                let create_graph = t[0].requires_grad();
                let x = if create_graph { t[0].clone() } else { t[0].with_grad() };
                let loss = f(&x)?.square()?.sum()?;
                let found =
                    grad(&[(&loss, None)], &[&x], GradOptions { create_graph, ..Default::default() })?;
                found[0].as_ref().map_or_else(|| x.zeros_like(), |g| Ok(g.clone()))
            },
        );
    };
    twice("logcumsumexp", &[2, 4], &|x| x.logcumsumexp(1));
    twice("cumprod", &[2, 4], &|x| x.cumprod(1));
    twice("median of all", &[5], &|x| x.median()?.mul(x));
    twice("quantile", &[2, 4], &|x| x.quantile(0.3, Some(1), false, QuantileInterpolation::Linear));
    twice("celu", &[2, 4], &|x| x.celu(0.7));
    twice("trapezoid", &[2, 4], &|x| x.exp()?.trapezoid(0.5, 1));
    twice("select_scatter", &[2, 3], &|x| x.exp()?.select_scatter(&x.select(1, 0)?.square()?, 1, 2));
    twice("erfcx", &[5], &|x| x.erfcx());
    twice("log_ndtr", &[5], &|x| x.log_ndtr());
    twice("ndtri", &[5], &|x| x.mul_scalar(0.3)?.add_scalar(0.5)?.ndtri());
    twice("bessel_j1", &[5], &|x| x.bessel_j0()?.mul(&x.bessel_j1()?));
    twice("bessel_y1", &[5], &|x| x.exp()?.bessel_y0()?.mul(&x.exp()?.bessel_y1()?));
    twice("modified_bessel_k1", &[5], &|x| {
        x.exp()?.modified_bessel_k0()?.mul(&x.exp()?.modified_bessel_k1()?)
    });
    twice("scaled_modified_bessel_k1", &[5], &|x| {
        x.exp()?.scaled_modified_bessel_k0()?.mul(&x.exp()?.scaled_modified_bessel_k1()?)
    });
    twice("igamma", &[5], &|x| x.full_like(1.5)?.igamma(&x.exp()?));
    twice("igammac", &[5], &|x| x.full_like(1.5)?.igammac(&x.exp()?));
    twice("tensordot", &[2, 3], &|x| x.tensordot(x, &[1], &[1]));
}

#[test]
fn rows_of_any_width_are_grouped() {
    let d = cpu();
    // Rows of a few digits: every width goes through another sequence of pairs.
    for width in [1, 2, 3, 5, 8, 13] {
        let digits: Vec<i64> = (0..40 * width).map(|i| ((i as i64 * 7919) % 23) % 2).collect();
        let x = Tensor::from_slice(&d, &digits, &[40, width]).unwrap();
        let u = x.unique_dim(0).unwrap();
        let mut want: Vec<&[i64]> = digits.chunks(width).collect();
        want.sort_unstable();
        want.dedup();
        assert_eq!(u.values.to_vec::<i64>().unwrap(), want.concat(), "width {width}");
        let back = u.values.index_select(0, &u.inverse).unwrap();
        assert_eq!(back.to_vec::<i64>().unwrap(), digits, "width {width}");
        assert_eq!(u.counts.to_vec::<i64>().unwrap().iter().sum::<i64>(), 40);
    }
}

#[test]
fn dropout_of_feature_maps_and_alpha_dropout() {
    for d in devices() {
        let x = Tensor::ones(&d, DType::F32, &[20, 10, 3, 2]).unwrap();
        let y = resident("feature_dropout", &d, || x.feature_dropout(0.25, Rng::new(5)).unwrap());
        let maps: Vec<Vec<f64>> = values(&y).chunks(6).map(<[f64]>::to_vec).collect();
        assert!(maps.iter().all(|m| m.iter().all(|&v| v == m[0])), "maps are kept or dropped as a whole");
        let kept = maps.iter().filter(|m| m[0] != 0.0).count();
        assert!((120..180).contains(&kept), "{kept} of 200 kept");
        assert!(maps.iter().all(|m| m[0] == 0.0 || (m[0] - 4.0 / 3.0).abs() < 1e-6));

        let x = Tensor::randn(&d, DType::F32, &[100, 100], Rng::new(7)).unwrap().with_grad();
        let y = resident("alpha_dropout", &d, || x.alpha_dropout(0.2, Rng::new(8)).unwrap());
        let all = values(&y);
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        let var = all.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / all.len() as f64;
        assert!(mean.abs() < 0.05 && (var - 1.0).abs() < 0.05, "mean {mean}, variance {var}");
        y.sum().unwrap().backward().unwrap();
        let dropped = values(&x.grad().unwrap()).iter().filter(|&&g| g == 0.0).count();
        assert!((1700..2300).contains(&dropped), "{dropped} of 10000 dropped");
        let y = x.reshape(&[100, 10, 10]).unwrap().feature_alpha_dropout(0.5, Rng::new(9)).unwrap();
        let maps: Vec<f64> = values(&y);
        let saturated = maps.chunks(10).filter(|m| m.iter().all(|v| v == &m[0])).count();
        assert!((400..600).contains(&saturated), "{saturated} of 1000 maps dropped");

        let x = Tensor::linspace(&d, DType::F32, -1.0, 1.0, 1001).unwrap();
        let y = values(&x.rrelu(0.1, 0.3, Some(Rng::new(3))).unwrap());
        for (x, y) in values(&x).iter().zip(&y) {
            let slope = y / x;
            assert!(
                if *x > 0.0 { y == x } else { *x == 0.0 || (0.0999..0.3001).contains(&slope) },
                "{x}: {y}"
            );
        }
    }
}

#[test]
fn gumbel_softmax_draws_the_categories() {
    for d in devices() {
        let share = [0.5f32, 0.3, 0.2];
        let logits: Vec<f32> = (0..2000).flat_map(|_| share.map(f32::ln)).collect();
        let x = Tensor::from_slice(&d, &logits, &[2000, 3]).unwrap().with_grad();
        let y = resident("gumbel_softmax", &d, || x.gumbel_softmax(0.5, true, 1, Rng::new(4)).unwrap());
        let rows: Vec<Vec<f64>> = values(&y).chunks(3).map(<[f64]>::to_vec).collect();
        for (i, want) in share.iter().enumerate() {
            let drawn = rows.iter().filter(|r| (r[i] - 1.0).abs() < 1e-6).count() as f32 / 2000.0;
            assert!((drawn - want).abs() < 0.05, "category {i}: {drawn}");
        }
        assert!(rows.iter().all(|r| (r.iter().sum::<f64>() - 1.0).abs() < 1e-6));
        let soft = x.gumbel_softmax(0.5, false, 1, Rng::new(4)).unwrap();
        let slope = |y: &Tensor| {
            x.zero_grad().unwrap();
            y.square().unwrap().sum().unwrap().backward().unwrap();
            values(&x.grad().unwrap())
        };
        let weights = y.detach();
        assert!(slope(&soft).iter().any(|g| g.abs() > 1e-3));
        // Twice the one-hot value times the slope of the soft sample.
        let want = {
            let soft = x.gumbel_softmax(0.5, false, 1, Rng::new(4)).unwrap();
            x.zero_grad().unwrap();
            soft.mul(&weights).unwrap().mul_scalar(2.0).unwrap().sum().unwrap().backward().unwrap();
            values(&x.grad().unwrap())
        };
        close(&slope(&y), &want, 1e-4, "gradient of a hard sample");
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let d = cpu();
    let x = tensor(&d, &[2, 3], 1);
    let refused = |arg: &str, y: Result<Tensor>| match y {
        Err(e @ NnError::Gpu(_)) => assert!(e.to_string().contains(arg), "{arg}: {e}"),
        other => panic!("{arg}: {other:?}"),
    };
    let linear = QuantileInterpolation::Linear;
    refused("k", x.kthvalue(4, 1, false).map(|y| y.0));
    refused("q", x.quantile(1.5, None, false, linear));
    refused("q", x.quantiles(&[], None, false, linear));
    refused("f32 or f64", x.to_dtype(DType::F16).unwrap().quantile(0.5, None, false, linear));
    refused("element", x.narrow(1, 0, 0).unwrap().median_with_index(1, false).map(|y| y.0));
    refused("spacing", x.trapezoid(&tensor(&d, &[4], 2), 1));
    refused("sizes", x.unflatten(1, &[2, -1]));
    refused("sizes", x.unflatten(1, &[-1, -1]));
    refused("to", x.moveaxis(&[0, 1], &[0, 0]));
    refused("plane", x.rot90(1, [0, -2]));
    refused("matrix", x.unsqueeze(0).unwrap().trace());
    refused("p", x.renorm(0.0, 0, 1.0));
    refused("maxnorm", x.renorm(2.0, 0, -1.0));
    refused("fweights", x.cov(1.0, Some(&ids(&[1, 2], &[2])), None));
    refused("bins", x.histc(0, 0.0, 1.0));
    refused("max", x.histc(3, 1.0, 0.0));
    refused("vector of integers", x.bincount(None, 0));
    refused("at least 0", ids(&[1, -1], &[2]).bincount(None, 0));
    refused("weights", ids(&[1, 1], &[2]).bincount(Some(&tensor(&d, &[3], 1)), 0));
    refused("integers", x.gcd(&x));
    refused("rtol", x.is_close(&x, -1.0, 0.0, false));
    refused("3 elements", x.cross(&x, 0));
    refused("b_axes", x.tensordot(&x, &[0], &[1]));
    refused("parts", Tensor::multi_dot(&[&x, &tensor(&d, &[3], 1), &x]));
    refused("square", x.matrix_power(2));
    refused("alpha", x.celu(0.0));
    refused("lambda", x.softshrink(-1.0));
    refused("p", x.feature_dropout(1.5, Rng::new(1)));
    refused("N, C", tensor(&d, &[3], 1).feature_dropout(0.5, Rng::new(1)));
    refused("mask", x.index_mask(&ids(&[1, 0], &[2])));
    refused("src", x.put(&ids(&[1, 0], &[2]), &x, false));
    let planes = x.unsqueeze(0).unwrap();
    refused("index", planes.max_unpool(&ids(&[1], &[1]), &Window::new(&[2]), None));
    refused("size", planes.max_unpool(&ids(&[0; 6], &[1, 2, 3]), &Window::new(&[2]), Some(&[2, 3])));
    refused("tau", x.gumbel_softmax(0.0, false, 1, Rng::new(1)));
    refused("self", x.combinations(2, false));
    refused("choices", Tensor::zeros(&d, DType::F32, &[100]).unwrap().combinations(50, false));
    refused("rows", Tensor::tril_indices(&d, 1 << 20, 1 << 20, isize::MAX));
    refused("window", planes.max_unpool(&ids(&[0; 6], &[1, 2, 3]), &Window::new(&[2]).stride(&[]), None));
    refused("integers", x.unravel_index(&[2, 3]).map(|y| y[0].clone()));
    refused("samples", tensor(&d, &[1, 2, 4, 4], 1).fractional_max_pool2d([2, 2], [2, 2], &x).map(|y| y.0));
    let volume = tensor(&d, &[1, 2, 4, 4, 4], 1);
    refused("samples", volume.fractional_max_pool3d([2; 3], [2; 3], &x).map(|y| y.0));
    let counts = |h: Result<Histogram>| h.map(|h| h.counts);
    refused("bins", counts(x.histogram(0, None, None, false)));
    refused("range", counts(x.histogram(3, Some([1.0, -1.0]), None, false)));
    refused("weight", counts(x.histogram(3, None, Some(&ids(&[1, 2], &[2])), false)));
    refused("edges", counts(ids(&[1, 2], &[2]).histogram_of_edges(&x, None, false)));
    refused("points", counts(x.histogramdd(&[2], None, None, false)));
    refused("axis", x.unique_dim(2).map(|u| u.values));
    let bag = EmbeddingBag { mode: BagMode::Max, ..Default::default() };
    refused("weights", x.embedding_bag(&ids(&[0, 1], &[1, 2]), None, Some(&tensor(&d, &[1, 2], 1)), &bag));
    refused("ids", x.embedding_bag(&ids(&[0, 1], &[2]), None, None, &bag));
    refused("self", x.local_response_norm(3, 1.0, 1.0, 1.0));
    let order = Tensor::ones(&d, DType::F32, &[3]).unwrap().with_grad();
    let y = order.igamma(&order.detach()).unwrap().sum().unwrap();
    let failed = y.backward().unwrap_err().to_string();
    assert!(failed.contains("da") && failed.contains("Igamma"), "{failed}");
}
