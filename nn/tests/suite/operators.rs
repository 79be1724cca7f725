//! Operators, numbers beside tensors, negative positions, sums of products in Einstein's notation, tensors as text.

use crate::common::everywhere::{everywhere, values};
use crate::common::{close, cpu, devices, f32s, gradcheck, noise, tensor};
use trefoil::ops::optimizer::OptimRule;
use trefoil_nn::{DType, EinsumPath, EinsumStep, Optimizer, Result, Tensor};

#[test]
fn operators_chain_and_carry_gradients() {
    everywhere(
        "operators",
        &[&[2, 3], &[3], &[2, 1]],
        &[],
        |x| x + 3.0,
        |t, _| {
            let [a, b, c] = [&t[0], &t[1], &t[2]];
            // A result stands on either side of a tensor; a number on either side of a tensor.
            let y = ((a - b * c)? / b)?;
            (2.0 / (1.0 + ((y * c)?.square()? * 2)?)?)? + ((-a)? * 0.5)?
        },
    );
    let d = cpu();
    let x = Tensor::from_slice(&d, &[3i64, -4, 7], &[3]).unwrap();
    let got = |t: Result<Tensor>| t.unwrap().to_vec::<i64>().unwrap();
    assert_eq!(got(&x * 2), [6, -8, 14]);
    assert_eq!(got(10 - &x), [7, 14, 3]);
    assert_eq!(got((&x + 1).unwrap() - 2.0), [2, -5, 6]);
    assert_eq!(got(-x.clone()), [-3, 4, -7]);
    let text = (&x * 0.5).unwrap_err().to_string();
    assert!(text.contains("mul_scalar") && text.contains("an integer") && text.contains("0.5"), "{text}");
    // The error of the inner operation comes out of the chain.
    let wrong = tensor(&d, &[4], 1);
    let text = (tensor(&d, &[2, 3], 2) * (&wrong + tensor(&d, &[3], 3))).unwrap_err().to_string();
    assert!(text.contains("[4]") && text.contains("[3]"), "{text}");
}

#[test]
fn positions_count_from_the_end() {
    for d in devices() {
        let x = f32s(&d, &[0., 1., 2., 3., 4., 5.], &[2, 3]);
        assert_eq!(x.select(-1, -1).unwrap().to_vec::<f32>().unwrap(), [2., 5.]);
        assert_eq!(x.select(0, -2isize).unwrap().to_vec::<f32>().unwrap(), [0., 1., 2.]);
        assert_eq!(x.narrow(1, -2, 2).unwrap().to_vec::<f32>().unwrap(), [1., 2., 4., 5.]);
    }
    let x = f32s(&cpu(), &[0., 1., 2.], &[3]);
    for (got, arg) in [(x.select(0, -4), "-4"), (x.select(0, 3), "3"), (x.narrow(0, -4, 1), "-4")] {
        let text = got.unwrap_err().to_string();
        assert!(text.contains("-3 to ") && text.contains(arg), "{text}");
    }
    assert!(x.narrow(0, usize::MAX, 2).is_err() && x.narrow(0, 3, 0).is_ok() && x.narrow(0, -1, 2).is_err());
}

/// The sum over all values of all labels, one product at a time. `rest` gives the axes that `...` stands for as digits.
fn direct(terms: &[&str], output: &str, operands: &[(Vec<f64>, &[usize])]) -> Vec<f64> {
    let mut labels: Vec<char> = output.chars().collect();
    labels.extend(terms.iter().flat_map(|t| t.chars()));
    let mut seen = std::collections::BTreeSet::new();
    labels.retain(|l| seen.insert(*l));
    let size = |l: char| {
        let of = |(t, (_, s)): (&&str, &(Vec<f64>, &[usize]))| {
            t.chars().zip(s.iter()).filter(|(m, _)| *m == l).map(|(_, n)| *n).max().unwrap_or(1)
        };
        terms.iter().zip(operands).map(of).max().unwrap()
    };
    let sizes: Vec<usize> = labels.iter().map(|&l| size(l)).collect();
    let outer: usize = sizes[..output.len()].iter().product();
    let inner: usize = sizes[output.len()..].iter().product();
    let mut result = vec![0.0; outer];
    for at in 0..outer * inner {
        let mut rest = at;
        let mut index = vec![0; labels.len()];
        for (i, n) in sizes.iter().enumerate().rev() {
            index[i] = rest % n;
            rest /= n;
        }
        let factor = |(t, (data, shape)): (&&str, &(Vec<f64>, &[usize]))| {
            let place = t.chars().zip(shape.iter()).fold(0, |p, (l, &n)| {
                let i = labels.iter().position(|&m| m == l).unwrap();
                p * n + if n == 1 { 0 } else { index[i] }
            });
            data[place]
        };
        result[at / inner] += terms.iter().zip(operands).map(factor).product::<f64>();
    }
    result
}

#[test]
fn einsum_is_the_sum_over_all_labels() {
    // An equation, its terms and output with `...` written out, and shapes.
    type Case<'a> = (&'a str, &'a [&'a str], &'a str, &'a [&'a [usize]]);
    let cases: &[Case<'_>] = &[
        ("bij,bjk->bik", &["bij", "bjk"], "bik", &[&[2, 3, 4], &[2, 4, 5]]),
        ("ij,jk", &["ij", "jk"], "ik", &[&[3, 4], &[4, 2]]),
        ("ba", &["ba"], "ab", &[&[2, 3]]),
        ("ii->i", &["ii"], "i", &[&[4, 4]]),
        ("ii", &["ii"], "", &[&[4, 4]]),
        ("iji,j->ij", &["iji", "j"], "ij", &[&[3, 2, 3], &[2]]),
        ("i,j->ji", &["i", "j"], "ji", &[&[3], &[4]]),
        ("ij->j", &["ij"], "j", &[&[3, 4]]),
        ("bhqd, bhkd -> bhqk", &["bhqd", "bhkd"], "bhqk", &[&[2, 2, 3, 4], &[2, 2, 5, 4]]),
        ("...ij,jk->...ik", &["10ij", "jk"], "10ik", &[&[2, 3, 2, 4], &[4, 2]]),
        ("...i,...i->...", &["10i", "0i"], "10", &[&[2, 3, 4], &[3, 4]]),
        ("ab,bc,cd,d->a", &["ab", "bc", "cd", "d"], "a", &[&[2, 3], &[3, 4], &[4, 5], &[5]]),
        ("ij,ij->ij", &["ij", "ij"], "ij", &[&[3, 1], &[3, 4]]),
        ("ik,jk->", &["ik", "jk"], "", &[&[2, 3], &[4, 3]]),
        ("bn,anm,bm->ba", &["bn", "anm", "bm"], "ba", &[&[2, 5], &[3, 5, 4], &[2, 4]]),
    ];
    for (equation, terms, output, shapes) in cases {
        let f = |t: &[Tensor]| Tensor::einsum(equation, &t.iter().collect::<Vec<_>>());
        let data: Vec<(Vec<f64>, &[usize])> =
            shapes.iter().enumerate().map(|(i, s)| (noise(i as u64 + 5, s.iter().product()), *s)).collect();
        let of: Vec<Tensor> = data.iter().map(|(v, s)| Tensor::from_slice(&cpu(), v, s).unwrap()).collect();
        let y = f(&of).unwrap_or_else(|e| panic!("{equation}: {e}"));
        close(&values(&y), &direct(terms, output, &data), 1e-12, equation);
        gradcheck(equation, shapes, |x| x, f);
    }
    everywhere(
        "einsum",
        &[&[2, 3, 4], &[4, 5], &[2, 5]],
        &[],
        |x| x,
        |t, _| Tensor::einsum("bij,jk,bk->bi", &[&t[0], &t[1], &t[2]]),
    );
}

#[test]
fn einsum_plans_and_refuses() {
    // The chain is contracted from its cheap end: a vector never meets two matrices.
    let path = EinsumPath::new("ab,bc,c->a", &[&[100, 100], &[100, 100], &[100]]).unwrap();
    let steps: Vec<EinsumStep> = path.steps().collect();
    let by = |m, k, n| EinsumStep::Product { batch: 1, m, k, n };
    assert_eq!(steps, [by(100, 100, 1), by(100, 100, 1)]);
    assert!(path.to_string().starts_with("bc,c->b: 1 matrix products [100, 100] by [100, 1]\n"), "{path}");

    let d = cpu();
    let (a, b) = (tensor(&d, &[2, 3], 1), tensor(&d, &[3, 4], 2));
    let ids = Tensor::from_slice(&d, &[1i64, 2, 3], &[3]).unwrap();
    let refused = |equation: &str, operands: &[&Tensor], words: &[&str]| {
        let text = Tensor::einsum(equation, operands).unwrap_err().to_string();
        assert!(words.iter().all(|w| text.contains(w)), "{equation}: {text}");
    };
    refused("ij,jk->ik", &[&a], &["einsum", "2 operands", "1 tensors"]);
    refused("ij,jk->ik", &[&a, &a], &["3 elements of `j`", "2 in operand 1"]);
    refused("ijk,jk->i", &[&a, &b], &["the axes `ijk`", "[2, 3]"]);
    refused("ij,jk->iq", &[&a, &b], &["`q`"]);
    refused("ij,jk->ii", &[&a, &b], &["each label once"]);
    refused("i1,jk->i", &[&a, &b], &["letters"]);
    refused("ij->i->j", &[&a], &["letters"]);
    refused("", &[], &["0 tensors"]);
    refused("i,i->", &[&ids, &ids], &["floats", "i64"]);
    refused("i,ij->j", &[&ids, &b], &["dtype i64", "f64 in operand 1"]);
    assert_eq!(Tensor::einsum("i,j->ij", &[&ids, &ids]).unwrap().shape(), [3, 3]);
}

#[test]
fn tensors_print_as_numpy_prints_arrays() {
    let d = cpu();
    let f = |v: &[f32], shape: &[usize]| f32s(&d, v, shape).to_string();
    // Expected: `str` of NumPy 2 for the same arrays.
    assert_eq!(f(&[1.0, 2.5, -3.125, 0.0], &[2, 2]), "[[ 1.     2.5  ]\n [-3.125  0.   ]]");
    assert_eq!(f(&[0.1, 0.2, 1.0 / 3.0], &[3]), "[0.1        0.2        0.33333334]");
    assert_eq!(f(&[1e-5, 1.5], &[2]), "[1.0e-05 1.5e+00]");
    assert_eq!(f(&[f32::NAN, f32::INFINITY, -1.0], &[3]), "[nan inf -1.]");
    assert_eq!(f(&[2.5], &[]), "2.5");
    assert_eq!(
        f(&[1., 2., 3., 4., 5., 6., 7., 8.], &[2, 2, 2]),
        "[[[1. 2.]\n  [3. 4.]]\n\n [[5. 6.]\n  [7. 8.]]]"
    );
    let ids = Tensor::from_slice(&d, &[1i64, -20, 3], &[3]).unwrap();
    assert_eq!(ids.to_string(), "[  1 -20   3]");
    let half = f32s(&d, &[0.1, 2.0], &[2]).to_dtype(DType::F16).unwrap();
    assert_eq!(half.to_string(), "[0.1 2. ]");
    let long = Tensor::arange(&d, DType::I64, 0.0, 1.0, 4000).unwrap();
    assert_eq!(long.to_string(), "[   0    1    2 ... 3997 3998 3999]");
    let wide = long.reshape(&[40, 100]).unwrap().to_string();
    let rows: Vec<&str> = wide.lines().collect();
    assert_eq!(rows[0], "[[   0    1    2 ...   97   98   99]");
    assert_eq!((rows[3], rows.len()), (" ...", 7));
    assert_eq!(rows[6], " [3900 3901 3902 ... 3997 3998 3999]]");
    for other in devices() {
        let x = Tensor::linspace(&other, DType::F32, 0.0, 1.0, 5).unwrap();
        assert_eq!(x.to_string(), "[0.   0.25 0.5  0.75 1.  ]");
    }
}

#[test]
fn rules_have_constructors() {
    let rule = OptimRule::adamw(0.01);
    assert_eq!(rule, OptimRule::AdamW { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.01 });
    let cx = trefoil_nn::InitContext::new(&cpu(), 1);
    let model = trefoil_nn::layers::Dense::new(&cx, 2, 2).unwrap();
    assert!(Optimizer::new(&model, OptimRule::nesterov(0.9), 0.1).is_ok());
}
