//! Node classification on a graph: which club each member of a split karate club joined, from the friendships and two known members.
//!
//!     TREFOIL_BACKEND=cpu cargo run --release -p trefoil-nn --example gcn
//!
//! A graph convolutional network (Kipf and Welling, 2017): every layer mixes the features of neighbours by the normalised adjacency
//! matrix. The backend's graph operations are used directly; [`CustomOp`] puts the sparse product into the autograd graph.

mod common;

use common::{Outcome, Steady, data, device, learned};
use trefoil::DType;
use trefoil::ops::graph::{Csr, CsrIo, GraphOps, Spmm};
use trefoil_nn::autograd::{self, BackwardCtx, CustomOp};
use trefoil_nn::layers::Dense;
use trefoil_nn::metrics::count_correct;
use trefoil_nn::{CrossEntropyLoss, InitContext, Layer, Optimizer, Result, Tensor, Visitor};

/// D^-1/2 (A + I) D^-1/2 in CSR form, on the device. A symmetric matrix: the gradient of a product takes the same way back.
#[derive(Debug, Clone)]
struct Adjacency {
    rowptr: Tensor,
    col: Tensor,
    values: Tensor,
}

impl Adjacency {
    /// From both ends of each edge, i32 `[E]`.
    fn new(nodes: usize, rows: &Tensor, cols: &Tensor) -> Result<Self> {
        let (device, edges) = (rows.device(), rows.numel());
        let index = |n: usize| Tensor::empty(device, DType::I32, &[n]);
        let (rowptr, col) = (index(nodes + 1)?, index(edges)?);
        let values = Tensor::empty(device, DType::F32, &[edges])?;
        let (r, c, p, oc) = (rows.operand(), cols.operand(), rowptr.operand(), col.operand());
        let mut io = CsrIo::new(r.view()?);
        (io.col, io.rowptr, io.out_col) = (Some(c.view()?), Some(p.view_mut()?), Some(oc.view_mut()?));
        device.csr(Csr::FromCoo, io)?;
        device.sym_normalize(p.view()?, oc.view()?, None, values.operand().view_mut()?)?;
        Ok(Adjacency { rowptr, col, values })
    }

    fn times(&self, x: &Tensor) -> Result<Tensor> {
        let (x, y) = (x.contiguous()?, Tensor::empty(x.device(), x.dtype(), x.shape())?);
        let (p, c, v) = (self.rowptr.operand(), self.col.operand(), self.values.operand());
        let (from, to) = (x.operand(), y.operand());
        x.device().spmm(Spmm::new(p.view()?, c.view()?, from.view()?, to.view_mut()?).values(v.view()?))?;
        Ok(y)
    }
}

impl CustomOp for Adjacency {
    fn name(&self) -> &'static str {
        "adjacency"
    }

    fn forward(&self, inputs: &[Tensor], _: &mut Vec<Tensor>) -> Result<Vec<Tensor>> {
        Ok(vec![self.times(&inputs[0])?])
    }

    fn backward(&self, cx: &mut BackwardCtx<'_>, _: &[Tensor]) -> Result<()> {
        let dx = self.times(&cx.dy()?)?;
        cx.give(0, dx)
    }
}

/// Two graph convolutions.
#[derive(Debug)]
struct Gcn {
    adjacency: Adjacency,
    first: Dense,
    second: Dense,
}

impl Layer for Gcn {
    /// Features `[nodes, F]` to logits `[nodes, 2]`.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mix = |x: Tensor| Ok(autograd::apply(self.adjacency.clone(), &[x])?.remove(0));
        let x = mix(self.first.forward(x)?)?.relu()?;
        mix(self.second.forward(&x)?)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("first", &self.first);
        v.child("second", &self.second);
    }
}

/// The integers of a CSV file, line by line, without its header.
fn table(name: &str) -> std::result::Result<Vec<Vec<i32>>, Box<dyn std::error::Error>> {
    let text = std::fs::read_to_string(data(name))?;
    let line = |l: &str| l.split(',').map(|c| Ok(c.trim().parse()?)).collect();
    text.lines().skip(1).map(line).collect()
}

fn main() -> Outcome {
    let device = device()?;
    let clubs: Vec<i64> = table("karate-labels.csv")?.iter().map(|l| l[1].into()).collect();
    let (n, edges) = (clubs.len(), table("karate.csv")?);
    // Friendships hold both ways, and everyone is a neighbour of themselves.
    let both = edges.iter().flat_map(|e| [(e[0], e[1]), (e[1], e[0])]).chain((0..n as i32).map(|i| (i, i)));
    let (rows, cols): (Vec<i32>, Vec<i32>) = both.unzip();
    println!("{n} members, {} friendships", edges.len());
    let rows = Tensor::from_slice(&device, &rows, &[rows.len()])?;
    let cols = Tensor::from_slice(&device, &cols, &[cols.len()])?;

    // The features say only who is who; what the network learns about the others comes through the graph.
    let ids = Tensor::arange(&device, DType::I64, 0.0, 1.0, n)?;
    let features = ids.one_hot(n, DType::F32)?;
    // Known are the instructor (0) and the administrator (33), around whom the clubs formed.
    let known = Tensor::from_slice(&device, &[0i64, 33], &[2])?;
    let classes = Tensor::from_slice(&device, &clubs, &[n])?;
    let known_classes = classes.index_select(0, &known)?;

    let cx = InitContext::new(&device, 1);
    let model = Gcn {
        adjacency: Adjacency::new(n, &rows, &cols)?,
        first: Dense::new(&cx, n, 16)?,
        second: Dense::new(&cx, 16, 2)?,
    };
    let mut optimizer = Optimizer::adam(&model, 1e-2)?;
    let steady = Steady::new(&device, 3);
    for step in 1..=200 {
        optimizer.zero_grad()?;
        let logits = model.forward(&features)?.index_select(0, &known)?;
        let loss = CrossEntropyLoss::default().forward(&logits, &known_classes)?;
        loss.backward()?;
        optimizer.step()?;
        steady.step();
        if step % 50 == 0 {
            println!("step {step:>3}  loss {:.4}", loss.item::<f32>()?);
            steady.pause();
        }
    }
    steady.finish();

    let logits = autograd::no_grad(|| model.forward(&features))?;
    let right = count_correct(&logits, &classes)?.item::<i64>()?;
    learned(format!("{right} of {n} members in the right club, at least 31 wanted"), right >= 31)
}
