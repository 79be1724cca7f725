//! Times the training steps of a file of cases (`benches/cpu/cases.json`) with Burn on its backend for the CPU, Flex: forward, cross-entropy, backward,
//! update. Prints one JSON object of microseconds per step, medians.
//!
//! Usage: `burn-steps CASES [ID]`

use std::time::{Duration, Instant};

use burn::backend::{Autodiff, Flex};
use burn::module::{AutodiffModule, Module};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::MaxPool2dConfig;
use burn::nn::{
    BatchNorm, BatchNormConfig, DropoutConfig, Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig,
    Linear, LinearConfig, Lstm, LstmConfig, PaddingConfig2d,
};
use burn::optim::{AdamConfig, AdamWConfig, GradientsParams, Optimizer};
use burn::tensor::activation::{gelu_approximate, relu};
use burn::tensor::module::attention;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Distribution, Int, Tensor};
use serde_json::{Map, Value};

type B = Autodiff<Flex>;

/// A field of a case.
fn number(c: &Value, key: &str) -> usize {
    c[key].as_u64().unwrap_or_else(|| panic!("the case has no number {key:?}")) as usize
}

/// A list of numbers of a case.
fn numbers(c: &Value, key: &str) -> Vec<usize> {
    c[key].as_array().into_iter().flatten().filter_map(Value::as_u64).map(|n| n as usize).collect()
}

/// Random class numbers below `classes`.
fn classes<const D: usize>(shape: [usize; D], classes: usize) -> Tensor<B, D, Int> {
    Tensor::<B, D>::random(shape, Distribution::Uniform(0.0, classes as f64 - 0.01), &Default::default())
        .int()
}

fn normal<const D: usize>(shape: [usize; D]) -> Tensor<B, D> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), &Default::default())
}

/// Dense layers with relu between them.
#[derive(Module, Debug)]
struct Mlp<B: burn::tensor::backend::Backend> {
    layers: Vec<Linear<B>>,
}

impl Mlp<B> {
    fn new(sizes: &[usize]) -> Self {
        Mlp {
            layers: sizes
                .windows(2)
                .map(|s| LinearConfig::new(s[0], s[1]).init(&Default::default()))
                .collect(),
        }
    }

    fn forward(&self, mut x: Tensor<B, 2>) -> Tensor<B, 2> {
        for (i, layer) in self.layers.iter().enumerate() {
            x = layer.forward(x);
            if i + 1 < self.layers.len() {
                x = relu(x);
            }
        }
        x
    }
}

#[derive(Module, Debug)]
struct Cnn<B: burn::tensor::backend::Backend> {
    convs: Vec<Conv2d<B>>,
    norms: Vec<BatchNorm<B>>,
    head: Mlp<B>,
    pool_last: bool,
    dropout: Option<f64>,
}

impl Cnn<B> {
    fn new(c: &Value) -> Self {
        let device = Default::default();
        let channels = [vec![number(c, "in")], numbers(c, "channels")].concat();
        let convs: Vec<_> = channels
            .windows(2)
            .map(|s| {
                Conv2dConfig::new([s[0], s[1]], [3, 3])
                    .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
                    .init(&device)
            })
            .collect();
        let normalized = c["batch_norm"] == true;
        let norms =
            channels[1..].iter().filter(|_| normalized).map(|n| BatchNormConfig::new(*n).init(&device));
        let pool_last = c["pool_last"] == true;
        let side = number(c, "h");
        let last = if pool_last { side / 2 } else { side >> convs.len() };
        let inputs = channels[convs.len()] * last * last;
        let head = Mlp::new(&[vec![inputs], numbers(c, "hidden"), vec![number(c, "classes")]].concat());
        Cnn { norms: norms.collect(), convs, head, pool_last, dropout: c["dropout"].as_f64() }
    }

    fn forward(&self, mut x: Tensor<B, 4>) -> Tensor<B, 2> {
        let pool = MaxPool2dConfig::new([2, 2]).init();
        for (i, conv) in self.convs.iter().enumerate() {
            x = conv.forward(x);
            if let Some(norm) = self.norms.get(i) {
                x = norm.forward(x);
            }
            x = relu(x);
            if !self.pool_last || i + 1 == self.convs.len() {
                x = pool.forward(x);
            }
        }
        if let Some(p) = self.dropout {
            x = DropoutConfig::new(p).init().forward(x);
        }
        self.head.forward(x.flatten(1, 3))
    }
}

#[derive(Module, Debug)]
struct LstmLm<B: burn::tensor::backend::Backend> {
    table: Embedding<B>,
    cell: Lstm<B>,
    head: Linear<B>,
}

impl LstmLm<B> {
    fn new(c: &Value) -> Self {
        let (vocab, d, device) = (number(c, "vocab"), number(c, "d"), Default::default());
        LstmLm {
            table: EmbeddingConfig::new(vocab, d).init(&device),
            cell: LstmConfig::new(d, d, true).init(&device),
            head: LinearConfig::new(d, vocab).init(&device),
        }
    }

    fn forward(&self, ids: Tensor<B, 2, Int>) -> Tensor<B, 2> {
        let (states, _) = self.cell.forward(self.table.forward(ids), None);
        self.head.forward(states).flatten(0, 1)
    }
}

/// A transformer block with its norms before attention and feed-forward part.
#[derive(Module, Debug)]
struct Block<B: burn::tensor::backend::Backend> {
    n1: LayerNorm<B>,
    n2: LayerNorm<B>,
    qkv: Linear<B>,
    o: Linear<B>,
    f1: Linear<B>,
    f2: Linear<B>,
    heads: usize,
}

impl Block<B> {
    fn new(d: usize, heads: usize) -> Self {
        let device = Default::default();
        let norm = || LayerNormConfig::new(d).init(&device);
        let linear = |a: usize, b: usize| LinearConfig::new(a, b).init(&device);
        let (qkv, o, f1, f2) = (linear(d, 3 * d), linear(d, d), linear(d, 4 * d), linear(4 * d, d));
        Block { n1: norm(), n2: norm(), qkv, o, f1, f2, heads }
    }

    fn forward(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        let [b, t, d] = x.dims();
        let qkv = self.qkv.forward(self.n1.forward(x.clone())).chunk(3, 2);
        let [q, k, v] = [0, 1, 2]
            .map(|i: usize| qkv[i].clone().reshape([b, t, self.heads, d / self.heads]).swap_dims(1, 2));
        let options = AttentionModuleOptions { is_causal: true, ..Default::default() };
        let mixed = attention(q, k, v, None, None, options).swap_dims(1, 2).reshape([b, t, d]);
        let x = x + self.o.forward(mixed);
        let inner = gelu_approximate(self.f1.forward(self.n2.forward(x.clone())));
        x + self.f2.forward(inner)
    }
}

#[derive(Module, Debug)]
struct Gpt<B: burn::tensor::backend::Backend> {
    table: Embedding<B>,
    places: Embedding<B>,
    blocks: Vec<Block<B>>,
    norm: LayerNorm<B>,
}

impl Gpt<B> {
    fn new(c: &Value) -> Self {
        let (d, device) = (number(c, "d"), Default::default());
        Gpt {
            table: EmbeddingConfig::new(number(c, "vocab"), d).init(&device),
            places: EmbeddingConfig::new(number(c, "t"), d).init(&device),
            blocks: (0..number(c, "layers")).map(|_| Block::new(d, number(c, "h"))).collect(),
            norm: LayerNormConfig::new(d).init(&device),
        }
    }

    fn forward(&self, ids: Tensor<B, 2, Int>) -> Tensor<B, 2> {
        let mut x = self.table.forward(ids) + self.places.weight.val().unsqueeze::<3>();
        for block in &self.blocks {
            x = block.forward(x);
        }
        // The table of the input is the output's matrix, too.
        self.norm.forward(x).flatten::<2>(0, 1).matmul(self.table.weight.val().transpose())
    }
}

/// Median microseconds of steps for a second, after three.
fn time<M: AutodiffModule<B> + Clone>(
    c: &Value,
    model: M,
    y: Tensor<B, 1, Int>,
    forward: impl Fn(&M) -> Tensor<B, 2>,
) -> f64 {
    match c["op"] == "train_gpt" || c["adamw"] == true {
        true => steps(AdamWConfig::new().with_weight_decay(0.01).init(), model, y, forward),
        false => steps(AdamConfig::new().init(), model, y, forward),
    }
}

fn steps<M: AutodiffModule<B>, O: Optimizer<M, B>>(
    mut optimizer: O,
    model: M,
    y: Tensor<B, 1, Int>,
    forward: impl Fn(&M) -> Tensor<B, 2>,
) -> f64 {
    let loss = CrossEntropyLossConfig::new().init(&Default::default());
    let mut model = Some(model);
    let mut step = || {
        if let Some(m) = model.take() {
            let grads = loss.forward(forward(&m), y.clone()).backward();
            let grads = GradientsParams::from_grads(grads, &m);
            model = Some(optimizer.step(1e-3, m, grads));
        }
    };
    (0..3).for_each(|_| step());
    let (mut times, start) = (vec![], Instant::now());
    while times.len() < 5 || start.elapsed() < Duration::from_secs(1) {
        let begin = Instant::now();
        step();
        times.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Times a case; none of an operation that is not here.
fn run(c: &Value) -> Option<f64> {
    match c["op"].as_str()? {
        "train_mlp" => {
            let sizes = [vec![number(c, "in")], numbers(c, "hidden"), vec![number(c, "out")]].concat();
            let (batch, outputs) = (number(c, "batch"), number(c, "out"));
            let x = normal([batch, sizes[0]]);
            Some(time(c, Mlp::new(&sizes), classes([batch], outputs), move |m| m.forward(x.clone())))
        }
        "train_cnn" => {
            let (b, h) = (number(c, "b"), number(c, "h"));
            let x = normal([b, number(c, "in"), h, h]);
            Some(time(c, Cnn::new(c), classes([b], number(c, "classes")), move |m| m.forward(x.clone())))
        }
        "train_lstm_lm" | "train_gpt" => {
            let (b, t, vocab) = (number(c, "b"), number(c, "t"), number(c, "vocab"));
            let (x, y) = (classes([b, t], vocab), classes([b * t], vocab));
            Some(match c["op"] == "train_gpt" {
                true => time(c, Gpt::new(c), y, move |m| m.forward(x.clone())),
                false => time(c, LstmLm::new(c), y, move |m| m.forward(x.clone())),
            })
        }
        _ => None,
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let cases: Vec<Value> =
        serde_json::from_str(&std::fs::read_to_string(args.next().ok_or("name the file of cases")?)?)?;
    let only = args.next();
    let chosen = cases.iter().filter(|c| only.as_deref().is_none_or(|id| c["id"] == id));
    let results: Map<String, Value> =
        chosen.filter_map(|c| Some((c["id"].as_str()?.to_string(), run(c)?.into()))).collect();
    println!("{}", Value::Object(results));
    Ok(())
}
