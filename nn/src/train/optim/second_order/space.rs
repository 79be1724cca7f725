//! The parameters as a vector on the device, with the loss, its gradient and products with its Hessian there.

use trefoil::DType;
use trefoil::ops::elementwise::Binary;

use super::super::arena::Arena;
use crate::core::autograd::{GradOptions, enable_grad, grad, hessian_product, no_grad};
use crate::core::error::{NnError, Result, invalid};
use crate::core::tensor::Tensor;
use crate::module::Param;

/// Computes the loss, or residuals.
pub(crate) type Closure<'a> = dyn FnMut() -> Result<Tensor> + 'a;

/// Numbers at a point, from one copy to the host.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Reading {
    /// Loss.
    pub(crate) f: f64,
    /// Largest element of the gradient g.
    pub(crate) g_max: f64,
    /// g.g
    pub(crate) gg: f64,
    /// Sum of the magnitudes of g.
    pub(crate) g_abs: f64,
    /// g.d along a direction d.
    pub(crate) slope: f64,
    /// y.y of the change y of the gradient since the search began.
    pub(crate) yy: f64,
    /// g.y
    pub(crate) gy: f64,
}

impl Reading {
    pub(crate) fn is_finite(&self) -> bool {
        self.f.is_finite() && self.gg.is_finite() && self.slope.is_finite()
    }
}

/// A search direction, and the gradient where it starts.
#[derive(Clone, Copy)]
pub(crate) struct Ray<'a> {
    pub(crate) d: &'a Tensor,
    pub(crate) g0: &'a Tensor,
}

/// The parameters as one vector, between which zeros may lie (they stay zero).
pub(crate) struct Space {
    pub(crate) arena: Arena,
    /// Values and gradients of the whole arena.
    pub(crate) x: Tensor,
    pub(crate) g: Tensor,
    /// Where each parameter starts, and its leaf.
    leaves: Vec<(usize, Param)>,
    /// Positions of the parameters in the vectors, once they were asked for.
    positions: Option<Tensor>,
    /// The loss of the last evaluation with its graph, while the parameters are as they were.
    loss: Option<Tensor>,
    /// Gradients with their graphs there.
    graph: Option<Vec<Tensor>>,
    pub(crate) evaluations: u64,
    pub(crate) products: u64,
    pub(crate) reads: u64,
    pub(crate) bytes: u64,
}

/// Bytes of a copy to the host.
const MOST: usize = 64;

impl Space {
    /// Errors: no parameters; several devices or dtypes; f16 and bf16; those of an arena.
    pub(crate) fn new(params: Vec<(String, Param)>) -> Result<Space> {
        const OP: &str = "ClosureOptimizer";
        let params: Vec<_> = params.into_iter().filter(|(_, p)| p.requires_grad()).collect();
        let Some((_, first)) = params.first() else {
            return Err(invalid(OP, "params", "at least one parameter", "none (all are frozen?)"));
        };
        let first = first.get();
        if !matches!(first.dtype(), DType::F32 | DType::F64) {
            return Err(invalid(OP, "params", "f32 or f64", first.dtype().name()));
        }
        for (_, p) in &params {
            let t = p.get();
            crate::core::tensor::same_device(OP, &first, &t)?;
            if t.dtype() != first.dtype() {
                let got = format!("{} and {}", first.dtype(), t.dtype());
                return Err(invalid(OP, "params", "parameters of one dtype", got));
            }
        }
        let kept: Vec<Param> = params.iter().map(|(_, p)| p.clone()).collect();
        let Some(arena) = Arena::new(params, 0)? else {
            return Err(invalid(OP, "params", "at least one parameter", "none"));
        };
        let (x, g) = arena.flat()?;
        // A parameter that stands under two names has one gradient, different ones in one memory have two.
        let mut leaves: Vec<(usize, Param)> = vec![];
        for (start, p) in arena.starts().zip(kept) {
            if !leaves.iter().any(|(_, known)| known.same(&p)) {
                leaves.push((start, p));
            }
        }
        let (positions, loss, graph) = (None, None, None);
        let (evaluations, products, reads, bytes) = (0, 0, 0, 0);
        Ok(Space { arena, x, g, leaves, positions, loss, graph, evaluations, products, reads, bytes })
    }

    pub(crate) fn dtype(&self) -> DType {
        self.x.dtype()
    }

    /// Number of parameters.
    pub(crate) fn parameters(&self) -> usize {
        self.blocks().iter().map(|(_, len)| len).sum()
    }

    /// Length of the vectors.
    pub(crate) fn len(&self) -> usize {
        self.x.numel()
    }

    pub(crate) fn zeros(&self) -> Result<Tensor> {
        self.x.zeros_like()
    }

    /// Start and length of each parameter in the vectors; those that share memory are one.
    pub(crate) fn blocks(&self) -> Vec<(usize, usize)> {
        let mut all: Vec<_> = self.leaves.iter().map(|(start, p)| (*start, p.get().numel())).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Positions of the parameters in the vectors, made on the device: a matrix of them alone is smaller than one with what lies between.
    pub(crate) fn positions(&mut self) -> Result<Tensor> {
        if let Some(p) = &self.positions {
            return Ok(p.clone());
        }
        let blocks = self.blocks();
        let range = |&(start, len): &(usize, usize)| {
            Tensor::arange(self.x.device(), DType::I64, start as f64, 1.0, len)
        };
        let parts = blocks.iter().map(range).collect::<Result<Vec<_>>>()?;
        let all = Tensor::concat(0, &parts.iter().collect::<Vec<_>>())?;
        Ok(self.positions.insert(all).clone())
    }

    /// A vector from its values at [`positions`](Space::positions), zeros elsewhere.
    pub(crate) fn spread(&mut self, values: &Tensor) -> Result<Tensor> {
        let at = self.positions()?;
        self.zeros()?.index_copy(0, &at, values)
    }

    /// Parts of a vector in the shapes of the parameters.
    fn parts(&self, v: &Tensor) -> Result<Vec<Tensor>> {
        let part = |(start, p): &(usize, Param)| {
            let t = p.get();
            v.narrow(0, *start, t.numel())?.reshape(t.shape())
        };
        self.leaves.iter().map(part).collect()
    }

    /// One gradient for each parameter, as a vector. Parameters that share memory add up.
    fn pack(&self, parts: &[Tensor], into: &Tensor) -> Result<()> {
        for (i, (src, dst)) in parts.iter().zip(self.parts(into)?).enumerate() {
            let start = self.leaves[i].0;
            let again = self.leaves[..i].iter().any(|(s, _)| *s == start);
            let (src, dst) = (src.detach().operand(), dst.operand());
            into.device().strided_copy(src.view()?, dst.grad(again)?)?;
        }
        into.storage().touch();
        Ok(())
    }

    fn leaf_tensors(&self) -> Vec<Tensor> {
        self.leaves.iter().map(|(_, p)| p.get()).collect()
    }

    /// The parameters are no longer those of the last evaluation.
    pub(crate) fn moved(&mut self) {
        (self.loss, self.graph) = (None, None);
        self.arena.touch();
    }

    /// Sets the parameters to from + a d.
    pub(crate) fn move_to(&mut self, from: &Tensor, a: f64, d: &Tensor) -> Result<()> {
        self.moved();
        let (xo, fo, d_o) = (self.x.operand(), from.operand(), d.operand());
        let add = Binary::Add { alpha: a };
        Ok(self.x.device().binary(add, fo.view()?, d_o.view()?, xo.view_mut()?)?)
    }

    /// Sets the parameters.
    pub(crate) fn set(&mut self, x: &Tensor) -> Result<()> {
        self.moved();
        self.x.assign(x)
    }

    /// Reads scalars of the device in one copy.
    pub(crate) fn read(&mut self, scalars: &[Tensor]) -> Result<Vec<f64>> {
        let wide = scalars.iter().any(|t| t.dtype() == DType::F64);
        let dtype = if wide { DType::F64 } else { DType::F32 };
        let parts =
            scalars.iter().map(|t| t.detach().to_dtype(dtype)?.reshape(&[1])).collect::<Result<Vec<_>>>()?;
        let all = Tensor::concat(0, &parts.iter().collect::<Vec<_>>())?;
        let bytes = all.numel() * dtype.size();
        if bytes > MOST {
            return Err(invalid("minimize", "scalars", format!("at most {MOST} bytes"), format!("{bytes}")));
        }
        (self.reads, self.bytes) = (self.reads + 1, self.bytes + bytes as u64);
        match wide {
            true => all.to_vec::<f64>(),
            false => Ok(all.to_vec::<f32>()?.into_iter().map(f64::from).collect()),
        }
    }

    /// What the closure gives, in the graph.
    pub(crate) fn call(&mut self, closure: &mut Closure<'_>) -> Result<Tensor> {
        self.arena.check()?;
        self.evaluations += 1;
        let value = enable_grad(closure)?;
        if !value.requires_grad() {
            return Err(NnError::NoGraph);
        }
        Ok(value)
    }

    /// Loss and gradient at the present parameters. The loss stays on the device.
    pub(crate) fn evaluate(&mut self, closure: &mut Closure<'_>) -> Result<Tensor> {
        self.arena.zero_grad()?;
        let loss = self.call(closure)?;
        if loss.numel() != 1 {
            return Err(NnError::NotScalar { shape: loss.shape().to_vec() });
        }
        loss.backward_retain()?;
        let value = loss.detach();
        self.loss = Some(loss);
        Ok(value)
    }

    /// [`evaluate`](Space::evaluate) with the numbers that the host needs.
    pub(crate) fn measure(&mut self, closure: &mut Closure<'_>, ray: Option<Ray<'_>>) -> Result<Reading> {
        let f = self.evaluate(closure)?;
        let mut scalars = self.gradient_scalars()?;
        scalars.insert(0, f);
        if let Some(Ray { d, g0 }) = ray {
            let y = self.g.sub(g0)?;
            scalars.extend([self.g.dot(d)?, y.dot(&y)?, self.g.dot(&y)?]);
        }
        let v = self.read(&scalars)?;
        let at = |i: usize| v.get(i).copied().unwrap_or(0.0);
        Ok(Reading { f: at(0), g_max: at(1), gg: at(2), g_abs: at(3), slope: at(4), yy: at(5), gy: at(6) })
    }

    /// Largest element, sum of squares and sum of magnitudes of the gradient.
    pub(crate) fn gradient_scalars(&self) -> Result<Vec<Tensor>> {
        let g = &self.g;
        Ok(vec![g.norm(f64::INFINITY)?, g.dot(g)?, g.norm(1.0)?])
    }

    /// Error if the closure gives another loss or gradient at the same point, to the bit.
    pub(crate) fn check_closure(&mut self, closure: &mut Closure<'_>, first: f64) -> Result<()> {
        let g = self.g.copy()?;
        let f = self.evaluate(closure)?;
        let same = g.eq(&self.g)?.all(&[0], false)?.to_dtype(DType::F32)?;
        let v = self.read(&[f, same])?;
        // NaN is examined elsewhere.
        if first.is_finite() && (v[0] != first || v[1] == 0.0) {
            return Err(NnError::NonDeterministicClosure { first, second: v[0] });
        }
        Ok(())
    }

    /// Gradients with their graph at the present parameters. Evaluates the closure again only where these have moved since it was.
    pub(crate) fn prepare_products(&mut self, closure: &mut Closure<'_>) -> Result<()> {
        if self.graph.is_some() {
            return Ok(());
        }
        if self.loss.is_none() {
            self.evaluate(closure)?;
        }
        let Some(loss) = &self.loss else { return Ok(()) };
        let leaves = self.leaf_tensors();
        let options = GradOptions { allow_unused: true, ..GradOptions::create_graph() };
        let found = grad(&[(loss, None)], &leaves.iter().collect::<Vec<_>>(), options)?;
        let dense = found.into_iter().zip(&leaves).map(|(g, x)| g.map_or_else(|| x.zeros_like(), Ok));
        self.graph = Some(dense.collect::<Result<_>>()?);
        Ok(())
    }

    /// H v at the point of [`prepare_products`](Space::prepare_products).
    pub(crate) fn hessian(&mut self, v: &Tensor) -> Result<Tensor> {
        self.products += 1;
        let out = self.zeros()?;
        let parts = self.parts(v)?;
        if let Some(g) = &self.graph {
            let found = hessian_product(g, &self.leaf_tensors(), &parts.iter().collect::<Vec<_>>())?;
            self.pack(&found, &out)?;
        }
        Ok(out)
    }

    /// The parameters' leaves.
    pub(crate) fn with_leaves<T>(&self, f: impl FnOnce(&[Tensor]) -> Result<T>) -> Result<T> {
        f(&self.leaf_tensors())
    }

    /// A vector of one tensor for each parameter.
    pub(crate) fn vector(&self, parts: &[Tensor]) -> Result<Tensor> {
        let out = self.zeros()?;
        no_grad(|| self.pack(parts, &out))?;
        Ok(out)
    }

    /// Parts of a vector for each parameter.
    pub(crate) fn tangents(&self, v: &Tensor) -> Result<Vec<Tensor>> {
        self.parts(v)
    }
}
