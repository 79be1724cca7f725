//! Spectral normalization.

use once_cell::sync::OnceCell;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::core::autograd::no_grad;
use crate::core::error::{NnError, Result, invalid};
use crate::core::tensor::{Tensor, axis};
use crate::module::Init;
use crate::module::hooks;
use crate::module::{InitContext, Layer, LayerExt, Param, Snapshot, Visitor, parametrized};

/// A layer whose weight is divided by its largest singular value (Miyato et al., 2018), `torch.nn.utils.parametrizations.spectral_norm`.
///
/// The weight W counts as a matrix `[h, w]`: one axis (the first; the second for transposed convolutions) against all others. Estimates u
/// and v of its singular vectors take a step of the power iteration, u = normalize(W v) and v = normalize(W^T u), in every forward in
/// training and none in evaluation; sigma = u^T W v. A vector is divided by its norm instead. u and v are constants for the gradient, each
/// forward with its own copies, so several forwards may precede a backward.
///
/// State: that of the inner layer, in which `weight` becomes `parametrizations.weight.original` (the raw weight, which is what trains), and
/// the buffers `parametrizations.weight.0._u [h]` and `parametrizations.weight.0._v [w]`. Around a lazy layer the buffers are made in the
/// first forward. Around a [`Checkpointed`](crate::layers::Checkpointed) layer it works too.
#[derive(Debug)]
pub struct SpectralNormalization {
    inner: Box<dyn Layer>,
    cx: InitContext,
    name: String,
    iterations: usize,
    eps: f64,
    dim: isize,
    state: OnceCell<State>,
    training: AtomicBool,
}

#[derive(Debug)]
struct State {
    weight: Param,
    /// u and v; a vector has none.
    vectors: Option<[Param; 2]>,
}

const OP: &str = "SpectralNormalization";

/// Iterations before the first forward, PyTorch's number.
const FIRST: usize = 15;

impl SpectralNormalization {
    /// Normalizes the parameter `weight` of a layer with one iteration per forward and eps 1e-12. Errors: no such parameter, or a scalar.
    pub fn new(cx: &InitContext, inner: impl Layer + 'static) -> Result<Self> {
        Self::of(cx, inner, "weight")
    }

    /// As [`new`](Self::new) for the parameter `name` (`weight_hh_l0`, or `0.weight` of a part).
    pub fn of(cx: &InitContext, inner: impl Layer + 'static, name: &str) -> Result<Self> {
        let dim = if inner.kind().starts_with("Deconv") { 1 } else { 0 };
        let layer = SpectralNormalization {
            inner: Box::new(inner),
            cx: cx.clone(),
            name: name.to_string(),
            iterations: 1,
            eps: 1e-12,
            dim,
            state: OnceCell::new(),
            training: AtomicBool::new(true),
        };
        layer.anew()
    }

    /// Sets the iterations per forward. Errors: 0.
    pub fn power_iterations(mut self, n: usize) -> Result<Self> {
        if n == 0 {
            return Err(invalid(OP, "n_power_iterations", "at least 1", "0"));
        }
        self.iterations = n;
        Ok(self)
    }

    /// Sets the smallest norm that is divided by, and draws u and v anew. Errors: not a finite number above 0.
    pub fn eps(mut self, eps: f64) -> Result<Self> {
        if !(eps > 0.0 && eps.is_finite()) {
            return Err(invalid(OP, "eps", "a finite number above 0", format!("{eps}")));
        }
        self.eps = eps;
        self.anew()
    }

    /// Sets the axis of the weight that becomes the rows of the matrix, and draws u and v anew. Errors: no such axis.
    pub fn dim(mut self, dim: isize) -> Result<Self> {
        self.dim = dim;
        self.anew()
    }

    /// The layer.
    pub fn inner(&self) -> &dyn Layer {
        &*self.inner
    }

    fn anew(mut self) -> Result<Self> {
        self.state.take();
        // The parameters of a lazy layer come with its first forward.
        if !self.inner.named_parameters().is_empty() {
            self.state()?;
        }
        Ok(self)
    }

    fn state(&self) -> Result<&State> {
        self.state.get_or_try_init(|| {
            let all = self.inner.named_parameters();
            let Some((_, weight)) = all.iter().find(|(n, _)| *n == self.name) else {
                let names: Vec<&str> = all.iter().map(|(n, _)| n.as_str()).collect();
                let want = format!("a parameter of {}: {}", self.inner.kind(), names.join(", "));
                return Err(invalid(OP, "name", want, format!("`{}`", self.name)));
            };
            let w = weight.get().detach();
            let at = axis(OP, self.dim, w.rank())?;
            let vectors = match w.rank() {
                1 => None,
                _ => Some(no_grad(|| {
                    let m = self.matrix(&w)?;
                    let normal = Init::Normal { mean: 0.0, std: 1.0 };
                    let cx = self.cx.clone().dtype(w.dtype());
                    let draw = |n: usize| self.unit(&normal.tensor(&cx, &[n], 1, 1)?.to_device(w.device())?);
                    let start = [draw(w.shape()[at])?, draw(m.shape()[1])?];
                    Ok::<_, NnError>(self.iterate(&m, start, FIRST)?.map(Param::buffer))
                })?),
            };
            Ok(State { weight: weight.clone(), vectors })
        })
    }

    /// The weight as `[h, w]`.
    fn matrix(&self, w: &Tensor) -> Result<Tensor> {
        let at = axis(OP, self.dim, w.rank())?;
        let order: Vec<isize> =
            std::iter::once(at).chain((0..w.rank()).filter(|&a| a != at)).map(|a| a as isize).collect();
        let rows = w.shape()[at];
        w.permute(&order)?.reshape(&[rows, w.numel().checked_div(rows).unwrap_or(0)])
    }

    /// x / max(|x|, eps).
    fn unit(&self, x: &Tensor) -> Result<Tensor> {
        x.div(&x.norm(2.0)?.clamp(Some(self.eps), None)?)
    }

    fn iterate(&self, m: &Tensor, [mut u, mut v]: [Tensor; 2], n: usize) -> Result<[Tensor; 2]> {
        let t = m.transpose(0, 1)?.contiguous()?;
        for _ in 0..n {
            u = self.unit(&m.matmul(&v)?)?;
            v = self.unit(&t.matmul(&u)?)?;
        }
        Ok([u, v])
    }

    /// W / sigma, in the graph of W.
    fn normalized(&self) -> Result<(Param, Tensor)> {
        let State { weight, vectors } = self.state()?;
        let w = weight.get();
        let Some([u, v]) = vectors else { return Ok((weight.clone(), self.unit(&w)?)) };
        let m = self.matrix(&w)?;
        let [u, v] = no_grad(|| {
            if !self.training.load(Ordering::Relaxed) {
                // The next forward in training overwrites the buffers, which this one's backward may still need.
                return Ok([u.get().copy()?, v.get().copy()?]);
            }
            let next = self.iterate(&m.detach(), [u.get(), v.get()], self.iterations)?;
            u.get().assign(&next[0])?;
            v.get().assign(&next[1])?;
            Ok::<_, NnError>(next)
        })?;
        let sigma = u.dot(&m.matmul(&v)?)?;
        Ok((weight.clone(), w.div(&sigma)?))
    }

    fn run<T>(&self, forward: impl Fn() -> Result<T>) -> Result<T> {
        if self.state.get().is_none() {
            // A lazy layer makes its parameters on trial.
            let before = Snapshot::take(&*self.inner)?;
            let done = no_grad(&forward);
            before.restore(&*self.inner)?;
            done?;
        }
        let (weight, normalized) = self.normalized()?;
        parametrized(vec![(weight, normalized)], forward)
    }
}

impl Layer for SpectralNormalization {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.run(|| hooks::layer("", &*self.inner, x))
    }

    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.run(|| hooks::layers("", &*self.inner, inputs))
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.training(&self.training);
        let Some(state) = self.state.get() else { return v.flattened(&*self.inner) };
        let (path, leaf) = match self.name.rsplit_once('.') {
            Some((path, leaf)) => (format!("{path}."), leaf),
            None => (String::new(), self.name.as_str()),
        };
        let own = |rest: &str| format!("{path}parametrizations.{leaf}.{rest}");
        v.renamed(&*self.inner, |name| match name == self.name {
            true => own("original"),
            false => name.to_string(),
        });
        if let Some([left, right]) = &state.vectors {
            v.buffer(&own("0._u"), left);
            v.buffer(&own("0._v"), right);
        }
    }

    fn no_gradient(&self) -> Option<String> {
        self.inner.no_gradient()
    }
}
