//! Semantics of the graph.

use crate::common::{cpu, f32s, gradcheck, tensor};
use trefoil::ops::core::CoreOps;
use trefoil::ops::elementwise::ElementwiseOps;
use trefoil::ops::elementwise::Unary;
use trefoil_nn::autograd::{BackwardCtx, CustomOp, NoGrad, apply, backward, grad_enabled, no_grad};
use trefoil_nn::{NnError, Result, Tensor};

fn leaf(data: &[f32]) -> Tensor {
    f32s(&cpu(), data, &[data.len()]).with_grad()
}

fn grad(t: &Tensor) -> Vec<f32> {
    t.grad().expect("a gradient").to_vec().unwrap()
}

#[test]
fn gradients_accumulate_until_cleared() {
    let x = leaf(&[1.0, 2.0]);
    x.square().unwrap().sum().unwrap().backward().unwrap();
    assert_eq!(grad(&x), [2.0, 4.0]);
    x.square().unwrap().sum().unwrap().backward().unwrap();
    assert_eq!(grad(&x), [4.0, 8.0]);
    x.zero_grad().unwrap();
    assert!(x.grad().is_none());
}

#[test]
fn no_grad_records_nothing_and_nests() {
    let x = leaf(&[1.0]);
    assert!(grad_enabled());
    let y = no_grad(|| {
        assert!(!grad_enabled());
        let inner = NoGrad::new();
        drop(inner);
        assert!(!grad_enabled());
        x.square().unwrap()
    });
    assert!(grad_enabled());
    assert!(!y.requires_grad());
    assert!(matches!(y.backward(), Err(NnError::NoGraph)));
}

#[test]
fn no_grad_ends_with_a_panic_too() {
    let caught = std::panic::catch_unwind(|| no_grad(|| panic!("on purpose")));
    assert!(caught.is_err() && grad_enabled());
}

#[test]
fn detach_cuts_the_graph_and_shares_memory() {
    let x = leaf(&[3.0]);
    let y = x.square().unwrap();
    let d = y.detach();
    assert!(!d.requires_grad() && d.shares_storage(&y));
    // d/dx of x^2 * const(x^2)
    y.mul(&d).unwrap().backward().unwrap();
    assert_eq!(grad(&x), [54.0]);
}

#[test]
fn a_freed_graph_is_an_error_before_anything_accumulates() {
    let x = leaf(&[2.0]);
    let h = x.square().unwrap();
    let (a, b) = (h.exp().unwrap(), h.square().unwrap());
    a.backward().unwrap();
    let before = grad(&x);
    let e = b.backward().unwrap_err();
    assert!(matches!(e, NnError::GraphFreed { .. }), "{e}");
    assert_eq!(grad(&x), before);
}

#[test]
fn a_retained_graph_can_be_used_again() {
    let x = leaf(&[2.0]);
    let y = x.square().unwrap();
    y.backward_retain().unwrap();
    y.backward().unwrap();
    assert_eq!(grad(&x), [8.0]);
    assert!(matches!(y.backward(), Err(NnError::GraphFreed { op: "unary" })));
}

#[test]
fn only_scalars_start_by_themselves() {
    let x = leaf(&[1.0, 2.0]);
    let y = x.square().unwrap();
    assert!(matches!(y.backward(), Err(NnError::NotScalar { .. })));
    let g = f32s(&cpu(), &[10.0, 100.0], &[2]);
    y.backward_with(&g).unwrap();
    assert_eq!(grad(&x), [20.0, 400.0]);
    let y = x.square().unwrap();
    assert!(matches!(y.backward_with(&f32s(&cpu(), &[1.0], &[1])), Err(NnError::GradShape { .. })));
}

#[test]
fn several_roots_at_once() {
    let x = leaf(&[3.0]);
    let (a, b) = (x.square().unwrap(), x.mul_scalar(5.0).unwrap());
    backward(&[(&a, None), (&b, None), (&x, None)], false).unwrap();
    assert_eq!(grad(&x), [6.0 + 5.0 + 1.0]);
}

#[test]
fn intermediate_gradients_are_kept_on_request() {
    let x = leaf(&[3.0]);
    let h = x.square().unwrap();
    let k = h.mul_scalar(2.0).unwrap();
    h.retain_grad().unwrap();
    k.square().unwrap().backward().unwrap();
    assert_eq!(grad(&h), [72.0]);
    assert!(k.grad().is_none());
    assert!(x.is_leaf() && !h.is_leaf());
}

#[test]
fn a_saved_tensor_that_was_overwritten_is_noticed() {
    let x = leaf(&[3.0]);
    let w = f32s(&cpu(), &[2.0], &[1]);
    let y = x.mul(&w).unwrap();
    w.fill(5.0).unwrap();
    assert!(matches!(y.backward(), Err(NnError::SavedModified { op: "binary", .. })));
    // A sum saves no values.
    let y = x.add(&w).unwrap();
    w.fill(7.0).unwrap();
    y.backward().unwrap();
    assert_eq!(grad(&x), [1.0]);
}

#[test]
fn views_share_storage() {
    let t = tensor(&cpu(), &[2, 3, 4], 1);
    let views = [
        t.reshape(&[6, 4]).unwrap(),
        t.permute(&[2, 0, 1]).unwrap(),
        t.slice(1, 0, 3, 2).unwrap(),
        t.select(0, 1).unwrap(),
        t.unsqueeze(-1).unwrap(),
        t.narrow(0, 0, 1).unwrap().expand(&[5, 3, 4]).unwrap(),
    ];
    assert!(views.iter().all(|v| v.shares_storage(&t)));
    assert!(!t.permute(&[2, 0, 1]).unwrap().contiguous().unwrap().shares_storage(&t));
    assert!(!t.copy().unwrap().shares_storage(&t));
    // Writing through a view reaches the whole.
    let x = f32s(&cpu(), &[0.0; 6], &[2, 3]);
    x.select(1, 1).unwrap().fill(4.0).unwrap();
    assert_eq!(x.to_vec::<f32>().unwrap(), [0.0, 4.0, 0.0, 0.0, 4.0, 0.0]);
}

#[test]
fn the_given_gradient_is_never_written_to() {
    let x = leaf(&[1.0, 2.0]);
    let g = f32s(&cpu(), &[1.0, 1.0], &[2]);
    let y = x.reshape(&[2]).unwrap();
    backward(&[(&y, Some(&g)), (&x, Some(&g))], false).unwrap();
    assert_eq!(grad(&x), [2.0, 2.0]);
    assert_eq!(g.to_vec::<f32>().unwrap(), [1.0, 1.0]);
}

/// Sums hand their gradient on without a copy. Whatever else adds to it must not reach the other operand.
#[test]
fn gradients_that_sums_share_stay_apart() {
    let shapes: &[&[usize]] = &[&[2, 3], &[2, 3]];
    let f = |x: f64| x;
    gradcheck("a residual block", shapes, f, |t| {
        let x = t[0].mul(&t[1])?;
        x.add(&x.tanh()?)
    });
    gradcheck("two residual blocks", shapes, f, |t| {
        let x = t[0].mul(&t[1])?;
        let y = x.add(&x.tanh()?)?;
        y.add(&y.mul(&t[1])?.tanh()?)
    });
    gradcheck("both operands used again", shapes, f, |t| {
        let (a, b) = (t[0].tanh()?, t[1].square()?);
        a.add(&b)?.mul(&a)?.add(&b.mul(&a)?)
    });
    gradcheck("a tensor and itself", shapes, f, |t| {
        let x = t[0].mul(&t[1])?;
        x.add(&x)?.add(&x.sub(&x.tanh()?)?)?.mul(&x)
    });
    gradcheck("views of a sum", shapes, f, |t| {
        let x = t[0].mul(&t[1])?;
        let y = x.t()?.add(&t[0].tanh()?.t()?)?;
        y.add(&x.square()?.t()?)?.mul(&x.t()?)
    });
    gradcheck("broadcast", &[&[2, 3], &[3]], f, |t| {
        let (x, b) = (t[0].tanh()?, t[1].tanh()?);
        x.add(&b)?.sub(&b)?.add(&x.mul(&b)?)
    });
}

#[test]
fn a_residual_sum_costs_no_launch_in_the_backward() {
    let launches = |f: fn(&Tensor) -> Result<Tensor>| {
        let x = leaf(&[1.0, 2.0]);
        let (d, y) = (x.device().clone(), f(&x).unwrap());
        let up = f32s(&d, &[1.0, 1.0], &[2]);
        let before = d.counters().launches;
        y.backward_with(&up).unwrap();
        d.counters().launches - before
    };
    let chain = launches(|x| x.tanh()?.square()?.sin()?.exp());
    let residual = launches(|x| {
        let h = x.tanh()?;
        h.add(&h.square()?.sin()?)?.exp()
    });
    assert_eq!(residual, chain);
}

#[test]
fn deep_graphs_need_no_stack() {
    let x = leaf(&[1.0]);
    let run = move || {
        let mut y = x.clone();
        for _ in 0..20_000 {
            y = y.add_scalar(0.0).unwrap();
        }
        let unused = y.neg().unwrap();
        y.backward().unwrap();
        drop(unused);
        assert_eq!(grad(&x), [1.0]);
    };
    std::thread::Builder::new().stack_size(256 * 1024).spawn(run).unwrap().join().unwrap();
}

/// x^3 by hand.
struct Cube;

impl CustomOp for Cube {
    fn name(&self) -> &'static str {
        "cube"
    }
    fn forward(&self, inputs: &[Tensor], save: &mut Vec<Tensor>) -> Result<Vec<Tensor>> {
        save.push(inputs[0].clone());
        Ok(vec![inputs[0].pow_scalar(3.0)?, inputs[0].neg()?])
    }
    fn backward(&self, cx: &mut BackwardCtx<'_>, saved: &[Tensor]) -> Result<()> {
        let three = saved[0].square()?.mul_scalar(3.0)?;
        let dx = three.mul(&cx.dy()?)?.sub(&cx.dy_at(1)?)?;
        if let Some(target) = cx.target(0)? {
            target.prepare()?;
            let out = target.tensor().operand();
            let (d, o) = (dx.operand(), out.view()?);
            dx.device().binary(
                trefoil::ops::elementwise::Binary::Add { alpha: 1.0 },
                o,
                d.view()?,
                out.view_mut()?,
            )?;
        }
        Ok(())
    }
}

#[test]
fn custom_operations() {
    let x = leaf(&[2.0]);
    let out = apply(Cube, std::slice::from_ref(&x)).unwrap();
    assert_eq!(out[0].item::<f32>().unwrap(), 8.0);
    // Only the first output is used: the gradient of the other is zero.
    out[0].backward().unwrap();
    assert_eq!(grad(&x), [12.0]);
    let out = apply(Cube, std::slice::from_ref(&x)).unwrap();
    out[0].add(&out[1]).unwrap().backward().unwrap();
    assert_eq!(grad(&x), [12.0 + 11.0]);
    assert!(!apply(Cube, &[x.detach()]).unwrap()[0].requires_grad());
}

/// Gives a gradient of the wrong shape.
struct Wrong;

impl CustomOp for Wrong {
    fn name(&self) -> &'static str {
        "wrong"
    }
    fn forward(&self, inputs: &[Tensor], _: &mut Vec<Tensor>) -> Result<Vec<Tensor>> {
        Ok(vec![inputs[0].sum()?])
    }
    fn backward(&self, cx: &mut BackwardCtx<'_>, _: &[Tensor]) -> Result<()> {
        let dy = cx.dy()?;
        cx.give(0, dy)
    }
}

#[test]
fn a_gradient_of_the_wrong_shape_is_an_error() {
    let x = leaf(&[1.0, 2.0]);
    let y = apply(Wrong, &[x]).unwrap().remove(0);
    assert!(matches!(y.backward(), Err(NnError::GradShape { op: "wrong", index: 0, .. })));
}

#[test]
fn integer_results_carry_no_gradient() {
    let x = leaf(&[1.0, 3.0, 2.0]);
    assert!(!x.argmax(0).unwrap().requires_grad());
    assert!(!x.gt(&x).unwrap().requires_grad());
    let (v, i) = x.max_with_index(0).unwrap();
    assert!(v.requires_grad() && !i.requires_grad());
    assert_eq!(i.item::<i64>().unwrap(), 1);
    assert!(!f32s(&cpu(), &[1.0], &[1]).to_dtype(trefoil::DType::I32).unwrap().with_grad().requires_grad());
}

#[test]
fn errors_are_typed_and_name_what_does_not_fit() {
    let d = cpu();
    let (a, b) = (tensor(&d, &[2, 3], 1), tensor(&d, &[4], 2));
    for e in [
        a.add(&b).unwrap_err(),
        a.matmul(&b).unwrap_err(),
        a.reshape(&[7]).unwrap_err(),
        a.permute(&[0, 0]).unwrap_err(),
        a.softmax(2).unwrap_err(),
        a.narrow(1, 2, 2).unwrap_err(),
        a.split(1, &[1, 1]).unwrap_err(),
        a.squeeze(0).unwrap_err(),
        a.expand(&[2, 4]).unwrap_err(),
        a.item::<f64>().unwrap_err(),
        a.to_vec::<f32>().unwrap_err(),
        Tensor::concat(0, &[]).unwrap_err(),
        Tensor::from_slice(&d, &[1.0f32], &[2]).unwrap_err(),
        a.dropout(1.5, trefoil::ops::random::Rng::new(0)).unwrap_err(),
    ] {
        assert!(matches!(e, NnError::Gpu(trefoil::GpuError::Invalid(_))), "{e:?}");
    }
}

#[test]
fn gradients_can_be_had_from_several_threads() {
    let x = leaf(&[1.0; 8]);
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                for _ in 0..10 {
                    x.square().unwrap().sum().unwrap().backward().unwrap();
                }
            });
        }
    });
    assert_eq!(grad(&x), [80.0; 8]);
}

#[test]
fn device_calls_of_ones_own_go_through_operands() {
    let x = f32s(&cpu(), &[1.0, 4.0], &[2]);
    let y = Tensor::zeros(&cpu(), trefoil::DType::F32, &[2]);
    drop(y);
    let y = Tensor::zeros(x.device(), trefoil::DType::F32, &[2]).unwrap();
    x.device().unary(Unary::Sqrt, x.operand().view().unwrap(), y.operand().view_mut().unwrap()).unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), [1.0, 2.0]);
}
