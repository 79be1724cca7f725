//! Table lookup.

use std::sync::Mutex;

use trefoil::DType;
use trefoil::ops::embedding::EmbeddingGrad;

use crate::core::autograd::grad_enabled;
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::module::Init;
use crate::module::{InitContext, Layer, Param, Visitor};

/// Rows of a table by id, i32 or i64 `[..] -> [.., D]`; `torch.nn.Embedding`.
///
/// State: `weight [V, D]`, drawn from N(0, 1) unless set otherwise. Equal ids add up in the gradient, in a fixed order. An id outside of
/// the table gives zeros and fails the next call that waits for the device.
#[derive(Debug)]
pub struct Embedding {
    weight: Param,
    options: EmbeddingGrad,
    scaled: bool,
    max_norm: Option<(f64, f64)>,
    sparse: Option<Mutex<Vec<Lookup>>>,
}

/// A lookup whose gradient was not taken yet.
#[derive(Debug)]
struct Lookup {
    ids: Tensor,
    /// The rows that it gave, a leaf of the graph.
    rows: Tensor,
}

impl Embedding {
    /// A table of `num_embeddings` rows of `width` numbers. Errors: a size of 0.
    pub fn new(cx: &InitContext, num_embeddings: usize, width: usize) -> Result<Self> {
        if num_embeddings == 0 || width == 0 {
            let got = format!("{num_embeddings} num_embeddings of width {width}");
            return Err(invalid("Embedding", "num_embeddings", "sizes of at least 1", got));
        }
        let normal = Init::Normal { mean: 0.0, std: 1.0 };
        let weight = normal.param(cx, &[num_embeddings, width], num_embeddings, width)?;
        Ok(Embedding { weight, options: EmbeddingGrad::new(), scaled: false, max_norm: None, sparse: None })
    }

    /// Sets how the table is filled and fills it anew; the padding row is 0.
    pub fn init(self, cx: &InitContext, init: Init) -> Result<Self> {
        let shape = self.weight.get().shape().to_vec();
        self.weight.set(init.tensor(cx, &shape, shape[0], shape[1])?);
        self.clear_padding()?;
        Ok(self)
    }

    /// Row that is 0 at first and gets no gradient; a negative number counts from the end. Errors: a row that the table does not have.
    pub fn padding_idx(mut self, row: i64) -> Result<Self> {
        let rows = self.weight.get().shape()[0] as i64;
        if !(-rows..rows).contains(&row) {
            let want = format!("a row in [-{rows}, {rows})");
            return Err(invalid("Embedding", "padding_idx", want, format!("{row}")));
        }
        self.options = self.options.padding_idx(Some(row));
        self.clear_padding()?;
        Ok(self)
    }

    fn clear_padding(&self) -> Result<()> {
        let Some(row) = self.options.padding_idx else { return Ok(()) };
        let w = self.weight.get().detach();
        let rows = w.shape()[0] as i64;
        w.select(0, row.rem_euclid(rows) as usize)?.fill(0.0)
    }

    /// Multiplies the result by sqrt(D), the Transformer's convention.
    pub fn scale_by_sqrt_dim(mut self) -> Self {
        self.scaled = true;
        self
    }

    /// Divides a row's gradient by the number of ids that name it.
    pub fn scale_grad_by_freq(mut self) -> Self {
        self.options = self.options.scale_grad_by_freq(true);
        self
    }

    /// Before each lookup scales the named rows in place down to a `norm_type`-norm of at most `max_norm`. Errors: a negative bound, a
    /// degree not above 0.
    pub fn max_norm(mut self, max_norm: f64, norm_type: f64) -> Result<Self> {
        if max_norm.is_nan() || max_norm < 0.0 || norm_type.is_nan() || norm_type <= 0.0 {
            let got = format!("bound {max_norm}, degree {norm_type}");
            return Err(invalid("Embedding", "max_norm", "a bound of at least 0 and a degree above 0", got));
        }
        self.max_norm = Some((max_norm, norm_type));
        Ok(self)
    }

    /// Gradients of the rows that were looked up instead of one as large as the table, `torch.nn.Embedding(sparse=True)`: where recording is
    /// on, the layer keeps what it looked up until [`take_sparse_grad`](Self::take_sparse_grad). The table is
    /// [frozen](Param::set_requires_grad), so that optimizers of the whole model leave it out, and belongs to a
    /// [`SparseOptimizer`](crate::optim::SparseOptimizer).
    ///
    /// ```
    /// use trefoil::{Registry, Selector};
    /// use trefoil_nn::layers::Embedding;
    /// use trefoil_nn::optim::{OptimRule, SparseOptimizer};
    /// use trefoil_nn::{InitContext, Layer, Tensor};
    ///
    /// let device = Registry::default().open(&"cpu".parse::<Selector>()?)?;
    /// let words = Embedding::new(&InitContext::new(&device, 1), 100_000, 8)?.sparse();
    /// let rule = OptimRule::Adam { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.0 };
    /// let mut optimizer = SparseOptimizer::new(words.weight(), rule, 0.01)?;
    /// let ids = Tensor::from_slice(&device, &[7i64, 3, 7], &[3])?;
    /// words.forward(&ids)?.square()?.sum()?.backward()?;
    /// if let Some((ids, grads)) = words.take_sparse_grad()? {
    ///     optimizer.step(&ids, &grads)?;
    /// }
    /// # Ok::<(), trefoil_nn::NnError>(())
    /// ```
    pub fn sparse(mut self) -> Self {
        self.weight.set_requires_grad(false);
        self.sparse = Some(Mutex::default());
        self
    }

    /// Ids `[k]` (i64) that were looked up since the last call and reached by a backward pass, and the gradients `[k, D]` of their rows;
    /// repeated ids stay apart, that of padding has gradient 0. `None` where there are none, and without [`sparse`](Self::sparse).
    pub fn take_sparse_grad(&self) -> Result<Option<(Tensor, Tensor)>> {
        let Some(lookups) = &self.sparse else { return Ok(None) };
        let all = std::mem::take(&mut *lookups.lock().unwrap_or_else(|p| p.into_inner()));
        let rows = self.weight.get().shape()[0] as i64;
        let (mut ids, mut grads) = (vec![], vec![]);
        for Lookup { ids: at, rows: y } in all {
            let Some(mut grad) = y.grad() else { continue };
            if let Some(padding) = self.options.padding_idx {
                let hidden = at.eq_scalar(padding.rem_euclid(rows) as f64)?.unsqueeze(-1)?;
                grad = grad.masked_fill(&hidden, 0.0)?;
            }
            ids.push(at.reshape(&[at.numel()])?.to_dtype(DType::I64)?);
            grads.push(grad.reshape(&[at.numel(), y.shape()[at.rank()]])?);
        }
        if ids.is_empty() {
            return Ok(None);
        }
        let joined = |parts: &[Tensor]| Tensor::concat(0, &parts.iter().collect::<Vec<_>>());
        Ok(Some((joined(&ids)?, joined(&grads)?)))
    }

    fn look_up(&self, weight: &Tensor, ids: &Tensor) -> Result<Tensor> {
        let Some(lookups) = self.sparse.as_ref().filter(|_| grad_enabled()) else {
            return weight.embedding(ids, &self.options);
        };
        if self.options.scale_grad_by_freq {
            return Err(invalid(
                "Embedding",
                "scale_grad_by_freq",
                "false where gradients are sparse",
                "true",
            ));
        }
        let rows = weight.detach().embedding(ids, &self.options)?.with_grad();
        let kept = Lookup { ids: ids.detach(), rows: rows.clone() };
        lookups.lock().unwrap_or_else(|p| p.into_inner()).push(kept);
        Ok(rows)
    }

    /// The table `[V, D]`.
    pub fn weight(&self) -> &Param {
        &self.weight
    }
}

impl Layer for Embedding {
    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        if !ids.dtype().is_index() {
            return Err(invalid("Embedding", "ids", "dtype i32 or i64", ids.dtype().name()));
        }
        let weight = self.weight.get();
        if let Some((bound, degree)) = self.max_norm {
            weight.detach().embedding_renorm(ids, bound, degree)?;
        }
        let y = self.look_up(&weight, ids)?;
        if self.scaled { y.mul_scalar((weight.shape()[1] as f64).sqrt()) } else { Ok(y) }
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.param("weight", &self.weight);
    }
}
