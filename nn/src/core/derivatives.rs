//! Gradients as values, and what is made of gradients of gradients.

use std::collections::HashSet;
use std::sync::Arc;

use crate::core::engine;
use crate::core::error::{NnError, Result, invalid};
use crate::core::grad_mode::{NoGrad, enable_grad, no_grad};
use crate::core::tensor::{BackwardCtx, Collected, Edge, Tensor};

/// How [`grad`] differentiates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GradOptions {
    /// Records the gradients, so that they can be differentiated again.
    pub create_graph: bool,
    /// Whether the graph can be used again; by default as `create_graph` says.
    pub retain_graph: Option<bool>,
    /// Inputs without influence on the outputs have the gradient `None` instead of being an error.
    pub allow_unused: bool,
}

impl GradOptions {
    /// Gradients that can be differentiated again.
    pub fn create_graph() -> Self {
        GradOptions { create_graph: true, ..Self::default() }
    }
}

/// Gradients of the sum of `outputs`, each contracted with its gradient (1 for a tensor of one element without), with respect to `inputs`:
/// leaves or intermediate tensors. Nothing is added to what leaves have collected. `torch.autograd.grad`.
///
/// ```
/// use trefoil_nn::{Tensor, autograd::{GradOptions, grad}};
/// # let device = trefoil::Registry::default().open(&"cpu".parse::<trefoil::Selector>()?)?;
/// let x = Tensor::from_slice(&device, &[2f64], &[1])?.with_grad();
/// let y = x.pow_scalar(3.0)?;
/// let first = grad(&[(&y, None)], &[&x], GradOptions::create_graph())?;
/// let Some(slope) = &first[0] else { unreachable!() };
/// let second = grad(&[(slope, None)], &[&x], GradOptions::default())?;
/// assert_eq!(second[0].as_ref().map(|t| t.item::<f64>()).transpose()?, Some(12.0));
/// # Ok::<(), trefoil_nn::NnError>(())
/// ```
///
/// Errors: as [`Tensor::backward`]; [`NnError::NoGraph`] for an input that requires no gradient; [`NnError::UnusedInput`];
/// [`NnError::NotTwiceDifferentiable`] where a graph is to be created.
pub fn grad(
    outputs: &[(&Tensor, Option<&Tensor>)],
    inputs: &[&Tensor],
    options: GradOptions,
) -> Result<Vec<Option<Tensor>>> {
    let wanted =
        inputs.iter().map(|t| t.edge().cloned().ok_or(NnError::NoGraph)).collect::<Result<Vec<_>>>()?;
    let found = collect(outputs, &wanted, options)?;
    match found.iter().position(Option::is_none) {
        Some(index) if !options.allow_unused => Err(NnError::UnusedInput { index }),
        _ => Ok(found),
    }
}

fn collect(
    outputs: &[(&Tensor, Option<&Tensor>)],
    wanted: &[Edge],
    options: GradOptions,
) -> Result<Vec<Option<Tensor>>> {
    let retain = options.retain_graph.unwrap_or(options.create_graph);
    let walk = || {
        let start = engine::seeds("grad", outputs)?;
        let useful = Some(engine::leading_to(&start, wanted));
        let mut into = Collected { useful, create_graph: options.create_graph, ..Collected::default() };
        engine::run(start, &mut into, retain, wanted)
    };
    if options.create_graph {
        return enable_grad(walk);
    }
    let _guard = NoGrad::new();
    walk()
}

/// Gradients with zeros where an input has no influence.
fn dense(
    outputs: &[(&Tensor, Option<&Tensor>)],
    inputs: &[Tensor],
    create_graph: bool,
) -> Result<Vec<Tensor>> {
    if outputs.iter().all(|(y, _)| !y.requires_grad()) {
        return inputs.iter().map(Tensor::zeros_like).collect();
    }
    let options = GradOptions { create_graph, retain_graph: Some(true), allow_unused: true };
    let refs: Vec<&Tensor> = inputs.iter().collect();
    let found = grad(outputs, &refs, options)?;
    found.into_iter().zip(inputs).map(|(g, x)| g.map_or_else(|| x.zeros_like(), Ok)).collect()
}

/// Error unless there is one vector of the same shape and dtype for each tensor.
fn check_vectors(op: &'static str, of: &[Tensor], v: &[&Tensor]) -> Result<()> {
    if of.len() != v.len() {
        return Err(invalid(op, "v", format!("{} vectors", of.len()), format!("{}", v.len())));
    }
    for (t, v) in of.iter().zip(v) {
        if t.shape() != v.shape() || t.dtype() != v.dtype() {
            let expected = format!("{} {:?}", t.dtype(), t.shape());
            return Err(invalid(op, "v", expected, format!("{} {:?}", v.dtype(), v.shape())));
        }
    }
    Ok(())
}

fn leaves(inputs: &[&Tensor]) -> Vec<Tensor> {
    inputs.iter().map(|t| t.detach().with_grad()).collect()
}

/// The sum of the products of the elements of two lists.
fn contracted(a: &[Tensor], b: &[&Tensor]) -> Result<Option<Tensor>> {
    let mut total: Option<Tensor> = None;
    for (a, b) in a.iter().zip(b) {
        let part = a.mul(b)?.sum()?;
        total = Some(match total {
            Some(t) => t.add(&part)?,
            None => part,
        });
    }
    Ok(total)
}

/// The value of `f` at `inputs`, and the product of `v` (of the value's shape) with its Jacobian for each input.
/// `torch.autograd.functional.vjp`. Errors: those of `f` and of [`grad`]; `Invalid` for a `v` of another shape or dtype.
pub fn vjp(
    f: impl FnOnce(&[Tensor]) -> Result<Tensor>,
    inputs: &[&Tensor],
    v: &Tensor,
) -> Result<(Tensor, Vec<Tensor>)> {
    let x = leaves(inputs);
    let y = enable_grad(|| f(&x))?;
    check_vectors("vjp", std::slice::from_ref(&y), &[v])?;
    let g = dense(&[(&y, Some(v))], &x, false)?;
    Ok((y.detach(), g))
}

/// The value of `f` at `inputs`, and its directional derivative along `v` (one vector of each input's shape), by differentiating a
/// [`vjp`] with respect to its vector, in which it is linear. `torch.autograd.functional.jvp`. Errors: those of `f` and of [`grad`] with
/// `create_graph`; `Invalid` for vectors of other shapes or dtypes.
pub fn jvp(
    f: impl FnOnce(&[Tensor]) -> Result<Tensor>,
    inputs: &[&Tensor],
    v: &[&Tensor],
) -> Result<(Tensor, Tensor)> {
    let x = leaves(inputs);
    check_vectors("jvp", &x, v)?;
    let y = enable_grad(|| f(&x))?;
    let tangent = push_forward(&y, &x, v)?;
    Ok((y.detach(), tangent))
}

/// The derivative of `y` along `v`, vectors of the inputs `x`.
pub(crate) fn push_forward(y: &Tensor, x: &[Tensor], v: &[&Tensor]) -> Result<Tensor> {
    let u = y.zeros_like()?.with_grad();
    let g = dense(&[(y, Some(&u))], x, true)?;
    let along = enable_grad(|| contracted(&g, v))?;
    match along {
        Some(s) if s.requires_grad() => {
            let d = dense(&[(&s, None)], std::slice::from_ref(&u), false)?;
            d.into_iter().next().map_or_else(|| y.zeros_like(), Ok)
        }
        _ => y.zeros_like(),
    }
}

/// The value of the scalar function `f` at `inputs`, and the product of its Hessian with `v` (one vector of each input's shape), by
/// differentiating the gradient's product with `v`. `torch.autograd.functional.hvp`. Errors: those of `f` and of [`grad`] with
/// `create_graph`; `Invalid` for vectors of other shapes or dtypes.
pub fn hvp(
    f: impl FnOnce(&[Tensor]) -> Result<Tensor>,
    inputs: &[&Tensor],
    v: &[&Tensor],
) -> Result<(Tensor, Vec<Tensor>)> {
    let x = leaves(inputs);
    check_vectors("hvp", &x, v)?;
    let y = enable_grad(|| f(&x))?;
    let g = dense(&[(&y, None)], &x, true)?;
    let products = hessian_product(&g, &x, v)?;
    Ok((y.detach(), products))
}

/// The derivatives with respect to `x` of the product of `v` with a gradient `g` that was created with its graph.
pub(crate) fn hessian_product(g: &[Tensor], x: &[Tensor], v: &[&Tensor]) -> Result<Vec<Tensor>> {
    match enable_grad(|| contracted(g, v))? {
        Some(s) => dense(&[(&s, None)], x, false),
        None => Ok(vec![]),
    }
}

/// Derivatives of every element of `f` with respect to every element of every input: of shape `[f.., input..]` for each input. One pass for
/// each element of the result, so for small results. `torch.autograd.functional.jacobian`. Errors: those of `f` and of [`grad`].
pub fn jacobian(f: impl FnOnce(&[Tensor]) -> Result<Tensor>, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
    let x = leaves(inputs);
    let y = enable_grad(|| f(&x))?;
    let rows = jacobian_rows(&y, &x)?;
    let join = |(i, x): (usize, &Tensor)| {
        let shape = [y.shape(), x.shape()].concat();
        if rows.is_empty() {
            return x.like(&shape);
        }
        Tensor::stack(0, &rows.iter().map(|r| &r[i]).collect::<Vec<_>>())?.reshape(&shape)
    };
    no_grad(|| x.iter().enumerate().map(join).collect())
}

/// The gradients of each element of `y` in row-major order.
pub(crate) fn jacobian_rows(y: &Tensor, x: &[Tensor]) -> Result<Vec<Vec<Tensor>>> {
    let n = y.numel();
    let unit = Tensor::eye(y.device(), y.dtype(), n)?;
    let row = |i: usize| {
        let seed = unit.select(0, i)?.reshape(y.shape())?;
        dense(&[(y, Some(&seed))], x, false)
    };
    (0..n).map(row).collect()
}

/// In a pass that creates a graph: gives the gradients of an operation that equals `f`, made of other operations. `inputs`: places among
/// the operation's inputs with the tensors [there](crate::core::tensor::Saved::input), in the order in which `f` takes them.
pub(crate) fn compose(
    cx: &mut BackwardCtx<'_>,
    inputs: &[(usize, Tensor)],
    f: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
) -> Result<()> {
    // A node of its own for each, so that the inner pass ends there and not behind.
    let own = |(i, t): &(usize, Tensor)| if cx.needs(*i) { alias(t) } else { t.clone() };
    let at: Vec<Tensor> = inputs.iter().map(own).collect();
    let outputs = f(&at)?;
    give_all(cx, inputs, &at, &outputs)
}

/// Gives the gradients of `outputs`, which were made of the tensors `at` in place of `inputs`.
fn give_all(
    cx: &mut BackwardCtx<'_>,
    inputs: &[(usize, Tensor)],
    at: &[Tensor],
    outputs: &[Tensor],
) -> Result<()> {
    let mut roots = vec![];
    for (i, y) in outputs.iter().enumerate() {
        if let (Some(dy), true) = (cx.upstream(i), y.requires_grad()) {
            roots.push((y.clone(), dy.clone()));
        }
    }
    let mut seen = HashSet::new();
    let needed: Vec<(usize, Edge)> = (inputs.iter().zip(at))
        .filter(|((i, _), _)| cx.needs(*i) && seen.insert(*i))
        .filter_map(|((i, _), t)| Some((*i, t.edge()?.clone())))
        .collect();
    let wanted: Vec<Edge> = needed.iter().map(|(_, e)| e.clone()).collect();
    let roots: Vec<_> = roots.iter().map(|(y, dy)| (y, Some(dy))).collect();
    let found = collect(&roots, &wanted, GradOptions::create_graph())?;
    for ((i, _), g) in needed.into_iter().zip(found) {
        if let Some(g) = g {
            cx.give(i, g)?;
        }
    }
    Ok(())
}

/// The same tensor behind a node of its own.
fn alias(t: &Tensor) -> Tensor {
    t.relayout(*t.layout()).record("alias", &[t], || {
        |cx: &mut BackwardCtx<'_>| {
            let dy = cx.dy()?;
            cx.give(0, dy)
        }
    })
}

/// A linear map of tensors, outside of the graph.
pub(crate) type Map = Arc<dyn Fn(&Tensor) -> Result<Tensor> + Send + Sync>;

/// f(x) of a linear map f with the adjoint g, which can be differentiated as often as wanted.
pub(crate) fn linear_map(op: &'static str, x: &Tensor, f: Map, g: Map) -> Result<Tensor> {
    let y = no_grad(|| f(&x.detach()))?;
    Ok(y.record(op, &[x], || {
        move |cx: &mut BackwardCtx<'_>| {
            let dx = linear_map(op, &cx.dy()?, g.clone(), f.clone())?;
            cx.give(0, dx)
        }
    }))
}
