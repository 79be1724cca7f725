//! Selection, order, scans and the rest of the surface that PyTorch's users look for: every device, gradients, views, residency.

use crate::common::everywhere::{as_view, everywhere, resident, values};
use crate::common::{close, cpu, devices, f32s, id};
use trefoil::DType;
use trefoil::ops::elementwise::Unary;
use trefoil::ops::index::ScatterReduce;
use trefoil::ops::random::Rng;
use trefoil::ops::scan::{CumSum, SegmentReduce};
use trefoil_nn::{HostTensor, Tensor};

fn same(x: f64) -> f64 {
    x
}

fn ints(v: &[i64], shape: &[usize]) -> HostTensor {
    HostTensor::from_slice(v, shape).unwrap()
}

fn mask(v: &[u8], shape: &[usize]) -> HostTensor {
    HostTensor::from_slice(v, shape).unwrap()
}

#[test]
fn gather_and_scatter_rows() {
    let rows = [ints(&[2, 0, 3], &[3])];
    everywhere("index_select", &[&[4, 3]], &rows, same, |t, e| t[0].index_select(0, &e[0]));
    everywhere("index_add", &[&[4, 3], &[3, 3]], &[ints(&[2, 0, 2], &[3])], same, |t, e| {
        t[0].index_add(0, &e[0], &t[1])
    });
    everywhere("index_copy", &[&[3, 4], &[3, 3]], &rows, same, |t, e| t[0].index_copy(-1, &e[0], &t[1]));
    everywhere("index_fill", &[&[3, 5]], &rows, same, |t, e| t[0].index_fill(1, &e[0], 2.5));
    let cells = [ints(&[0, 2, 1, 1, 0, 2], &[2, 3])];
    everywhere("gather", &[&[3, 3]], &cells, same, |t, e| t[0].gather(0, &e[0]));
    everywhere("scatter", &[&[3, 3], &[2, 3]], &cells, same, |t, e| t[0].scatter(0, &e[0], &t[1]));
    everywhere("scatter_add", &[&[3, 3], &[2, 3]], &cells, same, |t, e| t[0].scatter_add(1, &e[0], &t[1]));
    use ScatterReduce::*;
    for (how, include) in
        [(Sum, false), (Prod, true), (Mean, true), (Mean, false), (Amax, true), (Amin, false)]
    {
        everywhere(&format!("scatter_reduce {how:?}"), &[&[3, 3], &[2, 3]], &cells, same, |t, e| {
            t[0].scatter_reduce(how, 1, &e[0], &t[1], include)
        });
    }
}

#[test]
fn tuples_of_indices() {
    let at = [ints(&[0, 2, 1, 1], &[2, 2]), ints(&[3, 0], &[2])];
    everywhere("index", &[&[3, 4, 2]], &at, same, |t, e| t[0].index(&[&e[0], &e[1]]));
    everywhere("index, one tensor", &[&[3, 2]], &at[..1], same, |t, e| t[0].index(&[&e[0]]));
    everywhere("index_put", &[&[3, 4, 2], &[2, 2, 2]], &at, same, |t, e| {
        t[0].index_put(&[&e[0], &e[1]], &t[1], false)
    });
    everywhere("index_put, added", &[&[3, 4, 2], &[2, 1]], &at, same, |t, e| {
        t[0].index_put(&[&e[0], &e[1]], &t[1], true)
    });
    for d in devices() {
        let x = f32s(&d, &[0., 1., 2., 3., 4., 5.], &[2, 3]);
        let i = |v: i64| Tensor::from_slice(&d, &[v], &[1]).unwrap();
        assert_eq!(x.index(&[&i(1), &i(2)]).unwrap().to_vec::<f32>().unwrap(), [5.0]);
        // [0, 3] must not become [1, 0].
        let past = x.index(&[&i(0), &i(3)]).unwrap().to_vec::<f32>();
        assert!(past.is_err(), "{}: an index past its axis gave {past:?}", id(&d));
        assert!(x.index(&[]).is_err());
        assert!(x.index(&[&i(0), &i(0), &i(0)]).is_err());
        assert!(x.index(&[&x]).is_err());
        assert!(x.index_put(&[&i(0), &i(0), &i(0)], &x, false).is_err());
    }
}

#[test]
fn masks() {
    let m = [mask(&[1, 0, 0, 1, 1, 0], &[2, 3]), mask(&[0, 1, 1], &[3])];
    everywhere("masked_fill", &[&[2, 3]], &m, same, |t, e| t[0].masked_fill(&e[1], -2.0));
    everywhere("masked_scatter", &[&[2, 3], &[4]], &m, same, |t, e| t[0].masked_scatter(&e[0], &t[1]));
    everywhere("where", &[&[2, 1], &[1, 3]], &m, same, |t, e| t[0].where_(&e[0], &t[1]));
    for d in devices() {
        let x = as_view(&d, &[1., 2., 3., 4., 5., 6.], &[2, 3]).with_grad();
        let m = m[1].to_device(&d).unwrap();
        let y = x.masked_select(&m).unwrap();
        assert_eq!(y.to_vec::<f32>().unwrap(), [2., 3., 5., 6.], "{}", id(&d));
        y.square().unwrap().sum().unwrap().backward().unwrap();
        assert_eq!(x.grad().unwrap().to_vec::<f32>().unwrap(), [0., 4., 6., 0., 10., 12.], "{}", id(&d));
        let at = x.gt_scalar(4.0).unwrap().nonzero().unwrap();
        assert_eq!((at.shape(), at.to_vec::<i64>().unwrap()), (&[2, 2][..], vec![1, 1, 1, 2]), "{}", id(&d));
        assert_eq!(x.lt_scalar(0.0).unwrap().nonzero().unwrap().shape(), [0, 2]);
        let none = x.masked_select(&x.lt_scalar(0.0).unwrap()).unwrap();
        assert_eq!(none.shape(), [0]);
        assert_eq!(m.logical_not().unwrap().logical_or(&m).unwrap().to_vec::<u8>().unwrap(), [1; 3]);
        assert_eq!(m.logical_xor(&m).unwrap().any(&[0], false).unwrap().item::<u8>().unwrap(), 0);
        assert_eq!(m.logical_and(&m).unwrap().all(&[0], false).unwrap().item::<u8>().unwrap(), 0);
    }
}

#[test]
fn order() {
    everywhere("sort", &[&[3, 5]], &[], same, |t, _| Ok(t[0].sort(1, false)?.0));
    everywhere("sort, descending", &[&[4, 3]], &[], same, |t, _| Ok(t[0].sort(0, true)?.0));
    everywhere("topk", &[&[3, 6]], &[], same, |t, _| Ok(t[0].topk(2, -1, true)?.0));
    for d in devices() {
        let x = f32s(&d, &[3., 1., 2., 1.], &[4]);
        let (v, i) = x.sort(0, false).unwrap();
        assert_eq!(
            (v.to_vec::<f32>().unwrap(), i.to_vec::<i64>().unwrap()),
            (vec![1., 1., 2., 3.], vec![1, 3, 2, 0])
        );
        assert_eq!(x.argsort(0, true).unwrap().to_vec::<i64>().unwrap(), [0, 2, 1, 3]);
        assert_eq!(x.topk(2, 0, false).unwrap().1.to_vec::<i64>().unwrap(), [1, 3]);
        assert!(x.topk(5, 0, true).is_err());
        let edges = f32s(&d, &[1., 2., 3.], &[3]);
        let at = f32s(&d, &[2.0, 0.0, 2.5], &[3]);
        assert_eq!(edges.search_sorted(&at, false).unwrap().to_vec::<i64>().unwrap(), [1, 0, 2]);
        assert_eq!(edges.search_sorted(&at, true).unwrap().to_vec::<i64>().unwrap(), [2, 0, 2]);
    }
}

#[test]
fn running_sums_and_segments() {
    everywhere("cumsum", &[&[2, 4, 3]], &[], same, |t, _| t[0].cumsum(1));
    let p = CumSum::new().exclusive(true).reverse(true);
    everywhere("cumsum, from behind", &[&[3, 4]], &[], same, |t, _| t[0].cumsum_with(p, -1));
    let offsets = [ints(&[0, 2, 2, 5], &[4])];
    for op in [SegmentReduce::Sum, SegmentReduce::Mean, SegmentReduce::Max, SegmentReduce::Var] {
        everywhere(&format!("{op:?} of segments"), &[&[5, 3]], &offsets, same, |t, e| {
            t[0].segment_reduce(op, &e[0])
        });
    }
    let n = Tensor::from_slice(&cpu(), &[1i32, 2, 3], &[3]).unwrap();
    assert_eq!(n.cumsum(0).unwrap().to_vec::<i64>().unwrap(), [1, 3, 6]);
    assert!(n.segment_reduce(SegmentReduce::Sum, &n.reshape(&[3, 1]).unwrap()).is_err());
}

#[test]
fn reductions() {
    everywhere("std", &[&[3, 4]], &[], same, |t, _| t[0].std(&[1], 1.0, false));
    everywhere("prod", &[&[3, 4]], &[], same, |t, _| t[0].prod(&[0], true));
    everywhere("norm of axes", &[&[2, 3, 4]], &[], same, |t, _| t[0].norm_axes(2.0, &[0, 2], false));
    everywhere("l2_normalize", &[&[3, 4]], &[], same, |t, _| t[0].l2_normalize(0, 1e-6));
    everywhere("max", &[&[3, 4]], &[], same, |t, _| t[0].max());
    everywhere("min", &[&[3, 4]], &[], same, |t, _| t[0].min());
    everywhere("min_max", &[&[3, 4]], &[], same, |t, _| {
        let (lo, hi) = t[0].min_max(&[1], false)?;
        lo.mul_scalar(2.0)?.add(&hi)
    });
    for d in devices() {
        let x = as_view(&d, &[3., -1., 2., 7., 0., 5.], &[2, 3]);
        let (lo, hi) = resident("min_max", &d, || x.min_max(&[1], true).unwrap());
        assert_eq!((lo.shape(), values(&lo), values(&hi)), (&[2, 1][..], vec![-1., 0.], vec![3., 7.]));
    }
}

#[test]
fn activations() {
    everywhere("leaky_relu", &[&[3, 4]], &[], same, |t, _| t[0].leaky_relu(0.1));
    everywhere("elu", &[&[3, 4]], &[], same, |t, _| t[0].elu(1.0));
    everywhere("softplus", &[&[3, 4]], &[], same, |t, _| t[0].softplus());
    everywhere("prelu", &[&[2, 3, 4], &[3]], &[], same, |t, _| t[0].prelu(&t[1]));
    let m = [HostTensor::from_slice(&[0f32, -1.0, 0.5, 0.0], &[4]).unwrap()];
    everywhere("masked_softmax", &[&[2, 3, 4]], &m, same, |t, e| {
        t[0].masked_softmax(0.5, Some(&e[0].to_dtype(t[0].dtype())?))
    });
}

#[test]
fn movement() {
    everywhere("chunk", &[&[5, 2]], &[], same, |t, _| {
        let parts = t[0].chunk(0, 2)?;
        assert_eq!(parts.iter().map(|p| p.shape()[0]).collect::<Vec<_>>(), [3, 2]);
        parts[0].sum()?.mul_scalar(2.0)?.add(&parts[1].square()?.sum()?)
    });
    everywhere("repeat", &[&[2, 3]], &[], same, |t, _| t[0].repeat(&[2, 3]));
    everywhere("t", &[&[2, 3, 4]], &[], same, |t, _| t[0].t());
    everywhere("expand_as", &[&[1, 3], &[2, 3]], &[], same, |t, _| t[0].expand_as(&t[1])?.mul(&t[1]));
    everywhere("slice_scatter", &[&[5, 3], &[2, 3]], &[], same, |t, _| t[0].slice_scatter(&t[1], 0, 1, 5, 2));
    everywhere("outer", &[&[3], &[4]], &[], same, |t, _| t[0].outer(&t[1]));
    everywhere("addcmul", &[&[3, 4], &[4], &[3, 1]], &[], same, |t, _| t[0].addcmul(&t[1], &t[2], 0.5));
    everywhere(
        "addcdiv",
        &[&[3, 4], &[4], &[3, 1]],
        &[],
        |x| x.abs() + 0.5,
        |t, _| t[0].addcdiv(&t[1], &t[2], -2.0),
    );
    everywhere("lerp", &[&[3, 4], &[4]], &[], same, |t, _| t[0].lerp(&t[1], 0.3));
    everywhere("lerp_by", &[&[3, 4], &[4], &[3, 1]], &[], same, |t, _| t[0].lerp_by(&t[1], &t[2]));
    everywhere("clamp_between", &[&[3, 4], &[4], &[4]], &[], same, |t, _| {
        t[0].clamp_between(&t[1].sub_scalar(0.6)?, &t[2].add_scalar(0.5)?)
    });
    let x = f32s(&cpu(), &[0., 1., 2., 3.], &[2, 2]);
    assert_eq!(x.repeat(&[1, 2]).unwrap().to_vec::<f32>().unwrap(), [0., 1., 0., 1., 2., 3., 2., 3.]);
    assert_eq!(x.repeat(&[0, 1]).unwrap().shape(), [0, 2]);
    assert!(x.repeat(&[2]).is_err());
    assert!(x.repeat(&[usize::MAX, 2]).is_err());
    assert!(x.repeat_interleave(0, usize::MAX).is_err());
    assert!(x.chunk(0, 0).is_err());
    assert_eq!(x.chunk(0, 5).unwrap().len(), 2);
    assert!(x.pad(trefoil::ops::shape::PadMode::Constant(0.0), &[(isize::MAX, 1), (0, 0)]).is_err());
    assert!(x.split(0, &[usize::MAX, 3]).is_err());
    assert_eq!(x.slice(0, 0, 2, usize::MAX).unwrap().shape(), [1, 2]);
}

/// Operands whose elements lie in memory once and appear several times: their gradients are those of each appearance, summed by expand.
#[test]
fn expanded_operands() {
    type F = fn(&Tensor, &Tensor) -> trefoil_nn::Result<Tensor>;
    let ops: [(&str, F); 13] = [
        ("add", Tensor::add),
        ("mul", Tensor::mul),
        ("div", Tensor::div),
        ("maximum", Tensor::maximum),
        ("the other way", |a, b| b.mul(a)),
        ("mul_add", |a, b| a.mul_add(b, a)),
        ("square", |a, b| a.square()?.mul(b)),
        ("relu", |a, b| a.relu()?.mul(b)),
        ("reductions", |a, b| a.sum_axes(&[0], true)?.add(&a.amax(&[1], true)?)?.mul(b)),
        ("dot", Tensor::dot),
        ("matmul", |a, b| a.matmul(&b.t()?)),
        ("cumsum", |a, b| a.cumsum(0)?.mul(b)),
        ("concat", |a, b| Tensor::concat(0, &[a, b])),
    ];
    for (i, (name, f)) in ops.into_iter().enumerate() {
        let from: &[usize] = if i % 2 == 0 { &[1, 3] } else { &[4, 1] };
        let whole = |t: &[Tensor]| f(&t[0].expand(&[4, 3])?, &t[1]);
        everywhere(name, &[from, &[4, 3]], &[], |x| x.abs() + 0.2, |t, _| whole(t));
    }
    everywhere("softmax", &[&[1, 3], &[4, 3]], &[], same, |t, _| {
        t[0].expand(&[4, 3])?.softmax(-1)?.mul(&t[1])
    });
    everywhere("a scalar", &[&[], &[4, 3]], &[], same, |t, _| t[0].expand(&[4, 3])?.mul(&t[1]));
}

#[test]
fn elementwise_names() {
    type F = fn(&Tensor) -> trefoil_nn::Result<Tensor>;
    let anywhere: [(&str, F, Unary); 8] = [
        ("exp10", Tensor::exp10, Unary::Exp10),
        ("asin", Tensor::asin, Unary::Asin),
        ("acos", Tensor::acos, Unary::Acos),
        ("atan", Tensor::atan, Unary::Atan),
        ("sinh", Tensor::sinh, Unary::Sinh),
        ("erfc", Tensor::erfc, Unary::Erfc),
        ("erfinv", Tensor::erfinv, Unary::Erfinv),
        ("atanh", Tensor::atanh, Unary::Atanh),
    ];
    for (name, f, op) in anywhere {
        everywhere(name, &[&[3, 4]], &[], |x| 0.8 * x, |t, _| f(&t[0]));
        let x = f32s(&cpu(), &[0.25, -0.5], &[2]);
        assert_eq!(
            f(&x).unwrap().to_vec::<f32>().unwrap(),
            x.unary(op).unwrap().to_vec::<f32>().unwrap(),
            "{name}"
        );
    }
    let positive: [(&str, F); 4] = [
        ("log10", Tensor::log10),
        ("cbrt", Tensor::cbrt),
        ("acosh", Tensor::acosh),
        ("lgamma", Tensor::lgamma),
    ];
    for (name, f) in positive {
        everywhere(name, &[&[3, 4]], &[], |x| x.abs() + 1.2, |t, _| f(&t[0]));
    }
    type B = fn(&Tensor, &Tensor) -> trefoil_nn::Result<Tensor>;
    let two: [(&str, B); 7] = [
        ("hypot", Tensor::hypot),
        ("fmax", Tensor::fmax),
        ("fmin", Tensor::fmin),
        ("logaddexp", Tensor::logaddexp),
        ("logaddexp2", Tensor::logaddexp2),
        ("xlogy", Tensor::xlogy),
        ("clamp_min", Tensor::clamp_min),
    ];
    for (name, f) in two {
        everywhere(name, &[&[3, 4], &[4]], &[], |x| x.abs() + 0.1, |t, _| f(&t[0], &t[1]));
    }
    everywhere("scalars", &[&[3, 4]], &[], same, |t, _| {
        t[0].sub_scalar(0.5)?.rsub_scalar(2.0)?.div_scalar(3.0)?.add_scaled(&t[0], 0.25)
    });
    for d in devices() {
        let x = f32s(&d, &[1.6, -1.6, f32::NAN, f32::INFINITY], &[4]);
        let v = |t: trefoil_nn::Result<Tensor>| t.unwrap().to_vec::<f32>().unwrap();
        assert_eq!(v(x.nan_to_num(7.0, Some(8.0), None)), [1.6, -1.6, 7.0, 8.0]);
        assert_eq!(v(x.narrow(0, 0, 2).unwrap().trunc()), [1.0, -1.0]);
        assert_eq!(v(x.narrow(0, 0, 2).unwrap().round(0)), [2.0, -2.0]);
        close(&values(&x.narrow(0, 0, 2).unwrap().frac().unwrap()), &[0.6, -0.6], 1e-6, "frac");
        let two = f32s(&d, &[2.0], &[]);
        assert_eq!(v(x.narrow(0, 0, 2).unwrap().div_floor(&two)), [0.0, -1.0]);
        assert_eq!(v(x.narrow(0, 0, 2).unwrap().div_trunc(&two)), [0.0, -0.0]);
        assert_eq!(v(two.copysign(&x.narrow(0, 0, 2).unwrap())), [2.0, -2.0]);
        assert_eq!(x.is_inf().unwrap().to_vec::<u8>().unwrap(), [0, 0, 0, 1]);
        for (f, want) in [
            (Tensor::eq_scalar as fn(&Tensor, f64) -> _, [0u8, 1, 0]),
            (Tensor::ne_scalar, [1, 0, 1]),
            (Tensor::lt_scalar, [1, 0, 0]),
            (Tensor::le_scalar, [1, 1, 0]),
            (Tensor::gt_scalar, [0, 0, 1]),
            (Tensor::ge_scalar, [0, 1, 1]),
        ] {
            let n = Tensor::from_slice(&d, &[1i32, 2, 3], &[3]).unwrap();
            assert_eq!(f(&n, 2.0).unwrap().to_vec::<u8>().unwrap(), want);
            assert!(f(&n, 2.5).is_err(), "a fraction");
        }
        let (a, b) =
            (Tensor::from_slice(&d, &[12i32], &[]).unwrap(), Tensor::from_slice(&d, &[10i32], &[]).unwrap());
        let bit = |t: trefoil_nn::Result<Tensor>| t.unwrap().item::<i32>().unwrap();
        assert_eq!([bit(a.bitwise_and(&b)), bit(a.bitwise_or(&b)), bit(a.bitwise_xor(&b))], [8, 14, 6]);
        let one = Tensor::from_slice(&d, &[1i32], &[]).unwrap();
        assert_eq!([bit(a.shl(&one)), bit(a.shr(&one)), bit(a.bitwise_not())], [24, 6, -13]);
        assert_eq!(v(two.ldexp(&one)), [4.0]);
    }
}

#[test]
fn creation_and_chance() {
    for d in devices() {
        let v = |t: &Tensor| t.to_vec::<f32>().unwrap();
        assert_eq!(v(&Tensor::eye(&d, DType::F32, 2).unwrap()), [1., 0., 0., 1.]);
        let x = f32s(&d, &[5., 6.], &[2, 1]);
        assert_eq!(v(&x.zeros_like().unwrap()), [0., 0.]);
        assert_eq!(v(&x.ones_like().unwrap()), [1., 1.]);
        assert_eq!(v(&x.full_like(4.0).unwrap()), [4., 4.]);
        assert_eq!(x.rand_like(Rng::new(1)).unwrap().shape(), [2, 1]);
        let p = f32s(&d, &[0.0, 1.0], &[2]);
        assert_eq!(p.bernoulli(Rng::new(3)).unwrap().to_vec::<u8>().unwrap(), [0, 1]);
        let w = f32s(&d, &[0.0, 2.0, 0.0], &[1, 3]);
        assert_eq!(w.multinomial(4, Rng::new(3)).unwrap().to_vec::<i64>().unwrap(), [1; 4]);
        assert!(p.multinomial(1, Rng::new(3)).is_err());
        assert!(Tensor::xavier_uniform(&d, DType::F32, &[], Rng::new(0)).is_err());
        assert!(Tensor::he_normal(&d, DType::F32, &[3, 0], Rng::new(0)).is_err());
    }
}
