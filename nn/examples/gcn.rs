//! Node classification on a graph: which club each member of a split karate club joined, from the friendships and two known members.
//!
//!     TREFOIL_BACKEND=cpu cargo run --release -p trefoil-nn --example gcn
//!
//! A graph convolutional network (Kipf and Welling, 2017): every layer mixes the features of neighbours by the normalised adjacency
//! matrix. The graph is sorted once, on the device.

mod common;

use common::{Outcome, Steady, data, device, learned};
use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil_nn::autograd;
use trefoil_nn::layers::GraphConvolutional;
use trefoil_nn::metrics::count_correct;
use trefoil_nn::{CrossEntropyLoss, Graph, InitContext, Layer, Optimizer, Result, Tensor};

/// Two graph convolutions.
#[derive(Debug, Layer)]
struct Gcn {
    #[layer(skip)]
    graph: Graph,
    first: GraphConvolutional,
    second: GraphConvolutional,
}

impl Gcn {
    /// Features `[nodes, F]` to logits `[nodes, 2]`.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.first.forward_on(&self.graph, x, None)?;
        self.second.forward_on(&self.graph, &x, None)
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
    // Friendships hold both ways; the layers add that everyone is a neighbour of themselves.
    let (src, dst): (Vec<i32>, Vec<i32>) = edges.iter().flat_map(|e| [(e[0], e[1]), (e[1], e[0])]).unzip();
    println!("{n} members, {} friendships", edges.len());
    let ends = Tensor::from_slice(&device, &[src, dst].concat(), &[2, 2 * edges.len()])?;

    // The features say only who is who; what the network learns about the others comes through the graph.
    let ids = Tensor::arange(&device, DType::I64, 0.0, 1.0, n)?;
    let features = ids.one_hot(n, DType::F32)?;
    // Known are the instructor (0) and the administrator (33), around whom the clubs formed.
    let known = Tensor::from_slice(&device, &[0i64, 33], &[2])?;
    let classes = Tensor::from_slice(&device, &clubs, &[n])?;
    let known_classes = classes.index_select(0, &known)?;

    let cx = InitContext::new(&device, 1);
    let model = Gcn {
        graph: Graph::new(&ends, n)?,
        first: GraphConvolutional::new(&cx, n, 16)?.activation(Activation::Relu),
        second: GraphConvolutional::new(&cx, 16, 2)?,
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
