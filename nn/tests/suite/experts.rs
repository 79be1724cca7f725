//! Mixture of experts and products of many matrices: against loops over the experts and finite differences, on every device.

use trefoil::ops::activation::Activation;
use trefoil::ops::gemm::{Gemm, Precision};
use trefoil::ops::moe::{MoeRouter, RouterScore};
use trefoil_nn::{HostTensor, Result, Tensor};

use crate::common::everywhere::{everywhere, values};
use crate::common::{close, cpu, devices, f32s, id, tensor};

fn same(x: f64) -> f64 {
    x
}

const EXPERTS: usize = 4;
const CHOICES: usize = 2;

/// A layer of experts: tokens `[T, D]`, router logits `[T, E]`, weights `[E, D, O]`.
fn experts(t: &[Tensor], p: &MoeRouter) -> Result<Tensor> {
    let routing = t[1].moe_router(p, CHOICES)?;
    t[0].moe_permute(&routing)?.gemm_ragged(&t[2], &routing.offsets, false)?.moe_unpermute(&routing)
}

/// The same from each token's scores, with the choices read on the host.
fn by_token(t: &[Tensor], p: &MoeRouter) -> Result<Tensor> {
    let scores = match p.score {
        RouterScore::Sigmoid => t[1].sigmoid()?,
        _ => t[1].softmax(-1)?,
    };
    let (best, ids) = scores.topk(CHOICES, -1, true)?;
    let weights = match p.renormalize {
        true => best.div(&best.sum_axes(&[-1], true)?)?,
        false => best,
    };
    let chosen = t[2].index_select(0, &ids.reshape(&[ids.numel()])?)?;
    let tokens = t[0].repeat_interleave(0, CHOICES)?.unsqueeze(1)?;
    let rows = tokens.matmul(&chosen)?.reshape(&[t[0].shape()[0], CHOICES, t[2].shape()[2]])?;
    rows.mul(&weights.unsqueeze(-1)?)?.sum_axes(&[1], false)
}

#[test]
fn a_mixture_is_a_loop_over_its_experts() {
    let shapes: [&[usize]; 3] = [&[7, 3], &[7, EXPERTS], &[EXPERTS, 3, 2]];
    for score in [RouterScore::Softmax, RouterScore::Sigmoid] {
        for renormalize in [false, true] {
            let p = MoeRouter::new().score(score).renormalize(renormalize);
            let what = format!("{p:?}");
            everywhere(&what, &shapes, &[], same, |t, _| experts(t, &p));
            let run = |f: &dyn Fn(&[Tensor], &MoeRouter) -> Result<Tensor>| {
                let leaves: Vec<Tensor> = shapes
                    .iter()
                    .enumerate()
                    .map(|(i, s)| tensor(&cpu(), s, 5 + i as u64).with_grad())
                    .collect();
                let y = f(&leaves, &p).unwrap();
                y.square().unwrap().sum().unwrap().backward().unwrap();
                let grads = leaves.iter().map(|t| values(&t.grad().unwrap()));
                [vec![values(&y)], grads.collect()].concat()
            };
            for (got, want) in run(&experts).iter().zip(&run(&by_token)) {
                close(got, want, 1e-12, &what);
            }
        }
    }
}

#[test]
fn routing() {
    for d in devices() {
        let logits = f32s(&d, &[1., 3., 2., 0., 5., 4., 4., 1., 0., 0., 9., 9.], &[3, 4]);
        let r = logits.moe_router(&MoeRouter::new(), 2).unwrap();
        assert_eq!(r.ids.to_vec::<i32>().unwrap(), [1, 2, 0, 1, 2, 3], "on {}", id(&d));
        assert_eq!(r.counts.to_vec::<i32>().unwrap(), [1, 2, 2, 1]);
        assert_eq!(r.offsets.to_vec::<i32>().unwrap(), [0, 1, 3, 5, 6]);
        assert_eq!(r.perm.to_vec::<i32>().unwrap(), [2, 0, 3, 1, 4, 5]);
        let x = f32s(&d, &[10., 20., 30.], &[3, 1]);
        assert_eq!(x.moe_permute(&r).unwrap().to_vec::<f32>().unwrap(), [20., 10., 20., 10., 30., 30.]);
        // Without tokens.
        let none = logits.narrow(0, 0, 0).unwrap().moe_router(&MoeRouter::new(), 2).unwrap();
        let x = x.narrow(0, 0, 0).unwrap();
        assert_eq!(x.moe_permute(&none).unwrap().moe_unpermute(&none).unwrap().shape(), [0, 1]);
        for (e, part) in [
            (logits.moe_router(&MoeRouter::new(), 5).map(|r| r.ids), "1 to 4"),
            (logits.moe_router(&MoeRouter::new(), 0).map(|r| r.ids), "1 to 4"),
            (logits.reshape(&[12]).unwrap().moe_router(&MoeRouter::new(), 1).map(|r| r.ids), "[T, E]"),
            (logits.narrow(0, 0, 2).unwrap().moe_permute(&r), "3 tokens"),
            (logits.moe_unpermute(&r), "[6, D]"),
        ] {
            let e = e.unwrap_err().to_string();
            assert!(e.contains(part), "{e}");
        }
    }
}

/// Offsets that leave out the first and the last row and have an empty group.
fn offsets() -> HostTensor {
    HostTensor::from_slice(&[1i32, 3, 3, 6], &[4]).unwrap()
}

#[test]
fn products_by_groups_of_rows() {
    for trans in [false, true] {
        let b: &[usize] = if trans { &[3, 2, 4] } else { &[3, 4, 2] };
        everywhere(&format!("gemm_ragged {trans}"), &[&[7, 4], b], &[offsets()], same, |t, extra| {
            t[0].gemm_ragged(&t[1], &extra[0], trans)
        });
        let (x, b) = (tensor(&cpu(), &[7, 4], 1), tensor(&cpu(), b, 2));
        let y = x.gemm_ragged(&b, &offsets().to_device(&cpu()).unwrap(), trans).unwrap();
        for (row, group) in [(0, None), (1, Some(0)), (2, Some(0)), (3, Some(2)), (5, Some(2)), (6, None)] {
            let w = group.map(|g| b.select(0, g).unwrap()).map(|w| if trans { w.t().unwrap() } else { w });
            let want = w.map_or(vec![0.0; 2], |w| values(&x.select(0, row).unwrap().matmul(&w).unwrap()));
            close(&values(&y.select(0, row).unwrap()), &want, 1e-12, &format!("row {row}"));
        }
    }
    let (x, b) = (tensor(&cpu(), &[7, 4], 1), tensor(&cpu(), &[3, 5, 2], 2));
    let e = x.gemm_ragged(&b, &offsets().to_device(&cpu()).unwrap(), false).unwrap_err().to_string();
    assert!(e.contains("4 products"), "{e}");
}

#[test]
fn linear_layers_by_groups_of_rows() {
    use Activation::*;
    let shapes: [&[usize]; 3] = [&[7, 4], &[3, 2, 4], &[3, 2]];
    // Fused ones that save their input, their output and nothing, and one that is not fused.
    for act in [Gelu, Sigmoid, Identity, Mish] {
        everywhere(&format!("linear_ragged {act:?}"), &shapes, &[offsets()], same, |t, extra| {
            t[0].linear_ragged(&t[1], Some(&t[2]), &extra[0], act)
        });
        let t: Vec<Tensor> = (1u64..).zip(shapes).map(|(i, s)| tensor(&cpu(), s, i)).collect();
        let offsets = offsets().to_device(&cpu()).unwrap();
        let y = t[0].linear_ragged(&t[1], Some(&t[2]), &offsets, act).unwrap();
        for (row, group) in [(0, None), (1, Some(0)), (4, Some(2)), (6, None)] {
            let x = t[0].narrow(0, row, 1).unwrap();
            let want = group.map_or(vec![0.0; 2], |g| {
                let (w, b) = (t[1].select(0, g).unwrap(), t[2].select(0, g).unwrap());
                values(&x.linear(&w, Some(&b), act, Precision::Ieee).unwrap())
            });
            close(&values(&y.select(0, row).unwrap()), &want, 1e-12, &format!("{act:?}, row {row}"));
        }
    }
}

#[test]
fn sums_of_outer_products_by_groups_of_rows() {
    everywhere("gemm_ragged_sum", &[&[7, 4], &[7, 3]], &[offsets()], same, |t, extra| {
        t[0].gemm_ragged_sum(&t[1], &extra[0])
    });
    let (x, y) = (tensor(&cpu(), &[7, 4], 1), tensor(&cpu(), &[7, 3], 2));
    let offsets = offsets().to_device(&cpu()).unwrap();
    let sums = x.gemm_ragged_sum(&y, &offsets).unwrap();
    for (g, rows) in [(0, 1..3), (1, 3..3), (2, 3..6)] {
        let part = |t: &Tensor| t.narrow(0, rows.start, rows.len()).unwrap();
        let want = values(&part(&x).t().unwrap().matmul(&part(&y)).unwrap());
        close(&values(&sums.select(0, g).unwrap()), &want, 1e-12, &format!("group {g}"));
    }
    let e = x.gemm_ragged_sum(&y.narrow(0, 0, 5).unwrap(), &offsets).unwrap_err().to_string();
    assert!(e.contains("7 rows"), "{e}");
    let e = x.gemm_ragged_sum(&y, &offsets.narrow(0, 0, 0).unwrap()).unwrap_err().to_string();
    assert!(e.contains("offsets"), "{e}");
}

#[test]
fn lists_of_products() {
    for (ta, tb) in [(false, false), (false, true), (true, false), (true, true)] {
        let p = Gemm::new().scaled(0.5, 0.0).trans(ta, tb);
        let stored = |t: bool, r: usize, c: usize| if t { vec![c, r] } else { vec![r, c] };
        let shapes = [stored(ta, 3, 4), stored(ta, 2, 5), stored(tb, 4, 2), stored(tb, 5, 6)];
        let shapes: Vec<&[usize]> = shapes.iter().map(Vec::as_slice).collect();
        let what = format!("gemm_grouped {ta} {tb}");
        let flat = |y: Vec<Tensor>| {
            let rows = y.iter().map(|t| t.reshape(&[t.numel()])).collect::<Result<Vec<_>>>()?;
            Tensor::concat(0, &rows.iter().collect::<Vec<_>>())
        };
        everywhere(&what, &shapes, &[], same, |t, _| {
            flat(Tensor::gemm_grouped(&p, &[&t[0], &t[1]], &[&t[2], &t[3]])?)
        });
        let t: Vec<Tensor> =
            shapes.iter().enumerate().map(|(i, s)| tensor(&cpu(), s, 3 + i as u64)).collect();
        let y = Tensor::gemm_grouped(&p, &[&t[0], &t[1]], &[&t[2], &t[3]]).unwrap();
        let op = |t: &Tensor, on: bool| if on { t.t().unwrap() } else { t.clone() };
        for i in 0..2 {
            let want = op(&t[i], ta).matmul(&op(&t[2 + i], tb)).unwrap().mul_scalar(0.5).unwrap();
            close(&values(&y[i]), &values(&want), 1e-12, &what);
        }
    }
    // One weight in several products, and a gradient for some operands alone.
    everywhere("a shared weight", &[&[3, 4], &[4, 2]], &[], same, |t, _| {
        let constant = Tensor::arange(t[0].device(), t[0].dtype(), -1.0, 0.3, 12)?.reshape(&[3, 4])?;
        let y = Tensor::gemm_grouped(&Gemm::new(), &[&t[0], &constant], &[&t[1], &t[1]])?;
        y[0].add(&y[1].mul_scalar(2.0)?)
    });
    assert!(Tensor::gemm_grouped(&Gemm::new(), &[], &[]).unwrap().is_empty());
    let x = tensor(&cpu(), &[2, 2], 1);
    assert!(Tensor::gemm_grouped(&Gemm::new(), &[&x], &[]).is_err());
    assert!(Tensor::gemm_grouped(&Gemm::new(), &[&x], &[&x.reshape(&[4]).unwrap()]).is_err());
    assert!(Tensor::gemm_grouped(&Gemm::new(), &[&x], &[&x.reshape(&[1, 4]).unwrap()]).is_err());
}

#[test]
fn bilinear_forms_summed_by_groups_of_rows() {
    let shapes: [&[usize]; 3] = [&[7, 4], &[7, 3], &[2, 4, 3]];
    everywhere("bilinear_ragged", &shapes, &[offsets()], same, |t, extra| {
        t[0].bilinear_ragged(&t[1], &t[2], &extra[0])
    });
    let t: Vec<Tensor> = (1u64..).zip(shapes).map(|(i, s)| tensor(&cpu(), s, i)).collect();
    let offsets = offsets().to_device(&cpu()).unwrap();
    let y = t[0].bilinear_ragged(&t[1], &t[2], &offsets).unwrap();
    let each = t[0].bilinear(&t[1], &t[2], None).unwrap();
    for (g, rows) in [(0, 1..3), (1, 3..3), (2, 3..6)] {
        let want = values(&each.narrow(0, rows.start, rows.len()).unwrap().sum_axes(&[0], false).unwrap());
        close(&values(&y.select(0, g).unwrap()), &want, 1e-12, &format!("group {g}"));
    }
    let e = t[0].bilinear_ragged(&t[1], &t[2].transpose(1, 2).unwrap(), &offsets).unwrap_err().to_string();
    assert!(e.contains("`w`"), "{e}");
    let e = t[0].bilinear_ragged(&t[1].narrow(0, 0, 5).unwrap(), &t[2], &offsets).unwrap_err().to_string();
    assert!(e.contains("7 rows"), "{e}");
}
