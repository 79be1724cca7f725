//! Linear layers with few weights.

use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::gemm::Precision;
use trefoil::ops::random::Rng;

use crate::core::autograd::BackwardCtx;
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, is_trial, same_dtype};
use crate::functional::Graph;
use crate::layers::attention::scores::check_width;
use crate::layers::graph::cache::{Last, Seen};
use crate::layers::graph::convolutional::check_size;
use crate::module::{Init, InitContext, Layer, Param, Visitor};

const OP: &str = "SparseLinear";

/// y = act(x W^T + b) with a sparse W at fixed random positions, `[.., in] -> [.., out]`; `torch.sparse.mm` with a trained CSR matrix. Only
/// the elements at these positions are stored and trained. Products are sparse where less than one weight in 20 is stored; else the whole
/// matrix, zeros included, is multiplied, which is faster.
///
/// State: `values [nnz]`, nnz = max(1, floor(in out (1 - sparsity))), from U(-a, a) of Glorot and Bengio for the dense matrix; their rows
/// and columns, not trained, `indices [2, nnz]` (i64, as `torch.sparse_coo_tensor` has them), different positions in any order; `bias [out]`
/// = 0.
#[derive(Debug)]
pub struct SparseLinear {
    /// Inputs, outputs.
    sizes: [usize; 2],
    values: Param,
    indices: Param,
    bias: Option<Param>,
    act: Activation,
    pattern: Last<Seen, Pattern>,
}

/// The positions, as the product reads them.
#[derive(Debug, Clone)]
enum Pattern {
    /// As a graph from inputs to outputs.
    Edges(Graph),
    /// As numbers of elements of the matrix, and for each of its elements the number of its value, or that of a zero behind the values.
    Elements { places: Tensor, sources: Tensor },
}

/// From one element in so many on, the product of the whole matrix, which adds up tiles, is faster than one by the indices.
const DENSE: usize = 20;

impl SparseLinear {
    /// `in_features -> out_features` with a part `sparsity` of the weights left out, with bias and relu; the positions are those of seed 42.
    /// Errors: a size of 0, a sparsity outside of [0, 1).
    pub fn new(cx: &InitContext, in_features: usize, out_features: usize, sparsity: f64) -> Result<Self> {
        Self::with_seed(cx, in_features, out_features, sparsity, 42)
    }

    /// As [`new`](SparseLinear::new), with the positions of another seed.
    pub fn with_seed(
        cx: &InitContext,
        in_features: usize,
        out_features: usize,
        sparsity: f64,
        seed: u64,
    ) -> Result<Self> {
        let sizes = [in_features, out_features];
        let indices = positions(cx, sizes, sparsity, seed)?;
        let count = indices.shape()[1];
        Ok(SparseLinear {
            sizes,
            values: Init::Glorot.param(cx, &[count], in_features, out_features)?,
            indices: Param::buffer(indices),
            bias: Some(Init::Zeros.param(cx, &[out_features], in_features, out_features)?),
            act: Activation::Relu,
            pattern: Last::default(),
        })
    }

    setters! {
        /// Sets the activation.
        activation: Activation => act;
    }

    /// Without bias.
    pub fn no_bias(mut self) -> Self {
        self.bias = None;
        self
    }

    /// The positions, examined once.
    fn pattern(&self) -> Result<Pattern> {
        let indices = self.indices.get();
        let make = || {
            let ([row, column], [inputs, outputs]) =
                ([indices.select(0, 0)?, indices.select(0, 1)?], self.sizes);
            check_different(&row, &column)?;
            // Refuses positions outside of the matrix.
            let graph = Graph::bipartite(&Tensor::stack(0, &[&column, &row])?, inputs, outputs)?;
            let count = row.numel();
            if count.saturating_mul(DENSE) < inputs * outputs {
                return Ok((Seen::new(&indices), Pattern::Edges(graph)));
            }
            let device = row.device();
            let places = row.mul(&Tensor::full(device, row.dtype(), &[], inputs as f64)?)?.add(&column)?;
            let numbers = Tensor::arange(device, DType::I64, 0.0, 1.0, count)?;
            let none = Tensor::full(device, DType::I64, &[inputs * outputs], count as f64)?;
            let sources = none.scatter(0, &places, &numbers)?;
            Ok((Seen::new(&indices), Pattern::Elements { places, sources }))
        };
        self.pattern.get(|s| s.is(&indices), make)
    }

    /// W with zeros at the other positions, `[out, in]`. Each element is read from its value, and its gradient there: nothing is sorted.
    fn matrix(&self, places: &Tensor, sources: &Tensor) -> Result<Tensor> {
        let values = self.values.get();
        let zero = Tensor::zeros(values.device(), values.dtype(), &[1])?;
        let matrix = Tensor::concat(0, &[&values.detach(), &zero])?.index_select(0, sources)?;
        let matrix = matrix.record(OP, &[&values], || {
            let places = places.clone();
            move |cx: &mut BackwardCtx<'_>| match cx.needs(0) {
                true => cx.give(0, cx.dy()?.index_select(0, &places)?),
                false => Ok(()),
            }
        });
        matrix.reshape(&[self.sizes[1], self.sizes[0]])
    }
}

impl Layer for SparseLinear {
    /// Errors: `Invalid` for another width, and for positions, loaded from a file, that occur twice;
    /// [`NnError::OutOfRange`](crate::NnError::OutOfRange) for positions outside of the matrix.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [inputs, outputs] = self.sizes;
        check_width(OP, "x", x, inputs)?;
        same_dtype(OP, x, &self.values.get())?;
        let graph = match self.pattern()? {
            Pattern::Edges(graph) => graph,
            Pattern::Elements { places, sources } => {
                let bias = self.bias.as_ref().map(Param::get);
                let matrix = self.matrix(&places, &sources)?;
                return x.linear(&matrix, bias.as_ref(), self.act, Precision::Ieee);
            }
        };
        let rows = x.reshape(&[x.numel() / inputs, inputs])?;
        // A sparse product has the rows of its second factor by input.
        let y = graph.spmm(&rows.t()?, Some(&self.values.get()), None, Activation::Identity)?.t()?;
        let y = y.reshape(&[&x.shape()[..x.rank() - 1], &[outputs]].concat())?;
        match &self.bias {
            Some(b) => y.add(&b.get())?.activation(self.act),
            None => y.activation(self.act),
        }
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.param("values", &self.values);
        v.buffer("indices", &self.indices);
        if let Some(b) = &self.bias {
            v.param("bias", b);
        }
    }
}

/// Different random positions of a matrix, row by row: `[2, nnz]`.
fn positions(cx: &InitContext, [inputs, outputs]: [usize; 2], sparsity: f64, seed: u64) -> Result<Tensor> {
    for (arg, n) in [("in_features", inputs), ("out_features", outputs)] {
        check_size(OP, arg, n)?;
    }
    if !(0.0..1.0).contains(&sparsity) {
        return Err(invalid(OP, "sparsity", "a number in [0, 1)", format!("{sparsity}")));
    }
    let Some(total) = inputs.checked_mul(outputs) else {
        return Err(invalid(OP, "out_features", "a matrix that fits", format!("{outputs} * {inputs}")));
    };
    // Subtracting the product rounds 100 (1 - 0.9) to 10.
    let count = (total as f64 - total as f64 * sparsity).floor().max(1.0) as usize;
    if is_trial(cx.device()) {
        return Tensor::zeros(cx.device(), DType::I64, &[2, count]);
    }
    let order = Tensor::permutation(cx.device(), total, Rng::new(seed))?;
    let mut at = order.narrow(0, 0, count)?.to_vec::<i64>()?;
    at.sort_unstable();
    let width = inputs as i64;
    let both: Vec<i64> = at.iter().map(|p| p / width).chain(at.iter().map(|p| p % width)).collect();
    Tensor::from_slice(cx.device(), &both, &[2, count])
}

/// Error with a position that occurs twice. Waits for the device.
fn check_different(row: &Tensor, column: &Tensor) -> Result<()> {
    if is_trial(row.device()) {
        return Ok(());
    }
    let mut all: Vec<(i64, i64)> = row.to_vec()?.into_iter().zip(column.to_vec()?).collect();
    all.sort_unstable();
    match all.windows(2).find(|w| w[0] == w[1]) {
        Some(w) => Err(invalid(OP, "indices", "different positions", format!("{:?} twice", w[0]))),
        None => Ok(()),
    }
}
