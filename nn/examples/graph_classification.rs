//! Classification of whole graphs: how a graph grew, seen from its edges alone.
//!
//!     TREFOIL_BACKEND=cpu cargo run --release -p trefoil-nn --example graph_classification
//!
//! Three kinds of graphs of 16 to 32 nodes: rings with chords, trees whose new nodes prefer those that have many neighbours, and trees whose
//! new nodes join one of the last two. A graph isomorphism network (Xu et al., 2019) tells nodes apart by their surroundings, the readout takes
//! the mean over the nodes of each graph, so that the number of nodes says nothing. The graphs of a set are one graph of many parts.

mod common;

use common::{Outcome, Steady, device, learned};
use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil_nn::autograd;
use trefoil_nn::layers::{GraphIsomorphism, Readout, ReadoutMode};
use trefoil_nn::metrics::count_correct;
use trefoil_nn::{CrossEntropyLoss, Device, Graph, InitContext, Layer, Optimizer, Result, Tensor};

/// Ways to grow.
const KINDS: usize = 3;

/// Three rounds of messages, then one vector per graph.
#[derive(Debug, Layer)]
struct Classifier {
    #[layer(skip)]
    graph: Graph,
    rounds: [GraphIsomorphism; 3],
    readout: Readout,
}

impl Classifier {
    fn new(cx: &InitContext, graph: Graph, width: usize) -> Result<Classifier> {
        let round = |inputs: usize| -> Result<GraphIsomorphism> {
            Ok(GraphIsomorphism::new(cx, inputs, width)?.activation(Activation::Relu))
        };
        let rounds = [round(1)?, round(width)?, round(width)?];
        let readout = Readout::new(cx, width, KINDS)?.mode(ReadoutMode::Mean)?;
        Ok(Classifier { graph, rounds, readout })
    }

    /// Features `[nodes, 1]` to logits `[graphs, KINDS]`.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = x.clone();
        for round in &self.rounds {
            x = round.forward_on(&self.graph, &x)?;
        }
        self.readout.forward_on(&x, self.graph.batch()?)
    }
}

/// Numbers below n, by Marsaglia's xorshift.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % n
    }
}

/// The edges of a graph of n nodes.
fn grow(draw: &mut Draw, kind: usize, n: usize) -> Vec<(usize, usize)> {
    match kind {
        0 => {
            let ring = (0..n).map(|i| (i, (i + 1) % n));
            let chords: Vec<_> = (0..n / 5)
                .map(|_| {
                    let (a, far) = (draw.below(n), 2 + draw.below(n - 3));
                    (a, (a + far) % n)
                })
                .collect();
            ring.chain(chords).collect()
        }
        1 => {
            // Each node stands in this list once per neighbour.
            let mut ends = vec![0, 1];
            let mut edges = vec![(0, 1)];
            for i in 2..n {
                let to = ends[draw.below(ends.len())];
                edges.push((i, to));
                ends.extend([i, to]);
            }
            edges
        }
        _ => (1..n).map(|i| (i, i - 1 - draw.below(2.min(i)))).collect(),
    }
}

/// `count` graphs as one, and the kind of each.
fn graphs(device: &Device, draw: &mut Draw, count: usize) -> Result<(Graph, Tensor)> {
    let mut parts = vec![];
    let mut kinds = vec![];
    for i in 0..count {
        let n = 16 + draw.below(17);
        let (src, dst): (Vec<i64>, Vec<i64>) = grow(draw, i % KINDS, n)
            .into_iter()
            .flat_map(|(a, b)| [(a as i64, b as i64), (b as i64, a as i64)])
            .unzip();
        let ends = Tensor::from_slice(device, &[&src[..], &dst].concat(), &[2, src.len()])?;
        parts.push(Graph::new(&ends, n)?);
        kinds.push((i % KINDS) as i64);
    }
    let whole = Graph::from_graphs(&parts.iter().collect::<Vec<_>>())?;
    Ok((whole, Tensor::from_slice(device, &kinds, &[count])?))
}

fn main() -> Outcome {
    let device = device()?;
    let mut draw = Draw(0x9e37_79b9_7f4a_7c15);
    let (known, kinds) = graphs(&device, &mut draw, 300)?;
    let (held_out, wanted) = graphs(&device, &mut draw, 150)?;
    println!(
        "{} graphs of {} nodes and {} edges in all",
        known.num_graphs(),
        known.num_src(),
        known.num_edges() / 2
    );

    // Nodes have no features: the same number for all.
    let alike = |g: &Graph| Tensor::full(&device, DType::F32, &[g.num_src(), 1], 1.0);
    let (features, other) = (alike(&known)?, alike(&held_out)?);
    let mut model = Classifier::new(&InitContext::new(&device, 1), known, 24)?;
    let mut optimizer = Optimizer::adam(&model, 1e-2)?;
    let steady = Steady::new(&device, 3);
    for step in 1..=80 {
        optimizer.zero_grad()?;
        let loss = CrossEntropyLoss::default().forward(&model.forward(&features)?, &kinds)?;
        loss.backward()?;
        optimizer.step()?;
        steady.step();
        if step % 20 == 0 {
            println!("step {step:>3}  loss {:.4}", loss.item::<f32>()?);
            steady.pause();
        }
    }
    steady.finish();

    model.graph = held_out;
    let logits = autograd::no_grad(|| model.forward(&other))?;
    let right = count_correct(&logits, &wanted)?.item::<i64>()?;
    learned(format!("{right} of 150 other graphs told apart, at least 143 wanted"), right >= 143)
}
