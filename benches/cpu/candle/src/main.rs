//! Times the training steps of a file of cases (`benches/cpu/cases.json`) on the CPU with candle: clear gradients, forward, cross-entropy, backward,
//! update. Prints one JSON object of microseconds per step, medians.
//!
//! Usage: `candle-steps CASES [ID]`

use std::time::{Duration, Instant};

use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::{
    AdamW, Conv2dConfig, Dropout, Embedding, Linear, Module, ModuleT, Optimizer, ParamsAdamW, RNN,
    VarBuilder, VarMap, batch_norm, conv2d, embedding, layer_norm, linear, loss::cross_entropy, lstm,
    ops::softmax,
};
use serde_json::{Map, Value};

/// A step's forward pass: its logits.
type Forward = Box<dyn Fn(&Tensor) -> Result<Tensor>>;

/// A model with its input and targets.
struct Case {
    forward: Forward,
    x: Tensor,
    y: Tensor,
}

/// A field of a case.
fn number(c: &Value, key: &str) -> usize {
    c[key].as_u64().unwrap_or_else(|| panic!("the case has no number {key:?}")) as usize
}

/// A list of numbers of a case.
fn numbers(c: &Value, key: &str) -> Vec<usize> {
    c[key].as_array().into_iter().flatten().filter_map(Value::as_u64).map(|n| n as usize).collect()
}

/// Random class numbers below `classes`.
fn classes(n: usize, classes: usize) -> Result<Tensor> {
    Tensor::rand(0f32, classes as f32, n, &Device::Cpu)?.to_dtype(DType::U32)
}

fn mlp(c: &Value, vb: VarBuilder) -> Result<Case> {
    let sizes: Vec<usize> = [vec![number(c, "in")], numbers(c, "hidden"), vec![number(c, "out")]].concat();
    let layers = sizes
        .windows(2)
        .enumerate()
        .map(|(i, s)| linear(s[0], s[1], vb.pp(i)))
        .collect::<Result<Vec<_>>>()?;
    let forward = move |x: &Tensor| {
        let mut x = x.clone();
        for (i, layer) in layers.iter().enumerate() {
            x = layer.forward(&x)?;
            if i + 1 < layers.len() {
                x = x.relu()?;
            }
        }
        Ok(x)
    };
    let batch = number(c, "batch");
    let x = Tensor::randn(0f32, 1.0, (batch, sizes[0]), &Device::Cpu)?;
    Ok(Case { forward: Box::new(forward), x, y: classes(batch, number(c, "out"))? })
}

fn cnn(c: &Value, vb: VarBuilder) -> Result<Case> {
    let channels = [vec![number(c, "in")], numbers(c, "channels")].concat();
    let (side, batch) = (number(c, "h"), number(c, "b"));
    let config = Conv2dConfig { padding: 1, ..Default::default() };
    let convs = channels
        .windows(2)
        .enumerate()
        .map(|(i, s)| conv2d(s[0], s[1], 3, config, vb.pp(i)))
        .collect::<Result<Vec<_>>>()?;
    let normalized = c["batch_norm"] == true;
    let norms = (0..convs.len() * usize::from(normalized))
        .map(|i| batch_norm(channels[i + 1], 1e-5, vb.pp(format!("n{i}"))))
        .collect::<Result<Vec<_>>>()?;
    let pool_last = c["pool_last"] == true;
    let last = if pool_last { side / 2 } else { side >> convs.len() };
    let widths =
        [vec![channels[convs.len()] * last * last], numbers(c, "hidden"), vec![number(c, "classes")]]
            .concat();
    let dense = widths
        .windows(2)
        .enumerate()
        .map(|(i, s)| linear(s[0], s[1], vb.pp(format!("head{i}"))))
        .collect::<Result<Vec<_>>>()?;
    let dropout = c["dropout"].as_f64().map(|p| Dropout::new(p as f32));
    let forward = move |x: &Tensor| {
        let mut x = x.clone();
        for (i, conv) in convs.iter().enumerate() {
            x = conv.forward(&x)?;
            if let Some(norm) = norms.get(i) {
                x = norm.forward_t(&x, true)?;
            }
            x = x.relu()?;
            if !pool_last || i + 1 == convs.len() {
                x = x.max_pool2d(2)?;
            }
        }
        if let Some(dropout) = &dropout {
            x = dropout.forward(&x, true)?;
        }
        x = x.flatten_from(1)?;
        for (i, layer) in dense.iter().enumerate() {
            x = layer.forward(&x)?;
            if i + 1 < dense.len() {
                x = x.relu()?;
            }
        }
        Ok(x)
    };
    let x = Tensor::randn(0f32, 1.0, (batch, channels[0], side, side), &Device::Cpu)?;
    Ok(Case { forward: Box::new(forward), x, y: classes(batch, number(c, "classes"))? })
}

/// Ids and the ids that follow, of random sequences.
fn language(c: &Value, forward: Forward) -> Result<Case> {
    let (b, t, vocab) = (number(c, "b"), number(c, "t"), number(c, "vocab"));
    Ok(Case { forward, x: classes(b * t, vocab)?.reshape((b, t))?, y: classes(b * t, vocab)? })
}

fn lstm_lm(c: &Value, vb: VarBuilder) -> Result<Case> {
    let (vocab, d) = (number(c, "vocab"), number(c, "d"));
    let table = embedding(vocab, d, vb.pp("e"))?;
    let cell = lstm(d, d, Default::default(), vb.pp("r"))?;
    let head = linear(d, vocab, vb.pp("o"))?;
    let forward = move |ids: &Tensor| {
        let states = cell.seq(&table.forward(ids)?)?;
        head.forward(&cell.states_to_tensor(&states)?)?.flatten_to(1)
    };
    language(c, Box::new(forward))
}

/// A transformer block with its norms before attention and feed-forward part.
fn block(d: usize, heads: usize, mask: Tensor, vb: VarBuilder) -> Result<Forward> {
    let (n1, n2) = (layer_norm(d, 1e-5, vb.pp("n1"))?, layer_norm(d, 1e-5, vb.pp("n2"))?);
    let (qkv, o) = (linear(d, 3 * d, vb.pp("qkv"))?, linear(d, d, vb.pp("o"))?);
    let (f1, f2) = (linear(d, 4 * d, vb.pp("f1"))?, linear(4 * d, d, vb.pp("f2"))?);
    Ok(Box::new(move |x| {
        let (b, t, _) = x.dims3()?;
        let qkv = qkv.forward(&n1.forward(x)?)?.reshape((b, t, 3, heads, d / heads))?;
        let part = |i: usize| qkv.narrow(2, i, 1)?.squeeze(2)?.transpose(1, 2)?.contiguous();
        let scores =
            (part(0)?.matmul(&part(1)?.t()?)? / ((d / heads) as f64).sqrt())?.broadcast_add(&mask)?;
        let mixed = softmax(&scores, D::Minus1)?.matmul(&part(2)?)?.transpose(1, 2)?.reshape((b, t, d))?;
        let x = (x + o.forward(&mixed)?)?;
        &x + f2.forward(&f1.forward(&n2.forward(&x)?)?.gelu()?)?
    }))
}

fn gpt(c: &Value, vb: VarBuilder) -> Result<Case> {
    let (vocab, t, d, heads) = (number(c, "vocab"), number(c, "t"), number(c, "d"), number(c, "h"));
    let table: Embedding = embedding(vocab, d, vb.pp("te"))?;
    let places = vb.get_with_hints((t, d), "pe", candle_nn::init::DEFAULT_KAIMING_NORMAL)?;
    let hidden: Vec<f32> = (0..t * t).map(|i| if i % t > i / t { f32::NEG_INFINITY } else { 0.0 }).collect();
    let mask = Tensor::from_vec(hidden, (t, t), &Device::Cpu)?;
    let blocks = (0..number(c, "layers"))
        .map(|i| block(d, heads, mask.clone(), vb.pp(format!("b{i}"))))
        .collect::<Result<Vec<_>>>()?;
    let norm = layer_norm(d, 1e-5, vb.pp("n"))?;
    let head = Linear::new(table.embeddings().clone(), None);
    let forward = move |ids: &Tensor| {
        let mut x = table.forward(ids)?.broadcast_add(&places)?;
        for block in &blocks {
            x = block(&x)?;
        }
        head.forward(&norm.forward(&x)?)?.flatten_to(1)
    };
    language(c, Box::new(forward))
}

/// Median microseconds of steps for a second, after three.
fn time(case: &Case, optimizer: &mut AdamW) -> Result<f64> {
    let mut step = || optimizer.backward_step(&cross_entropy(&(case.forward)(&case.x)?, &case.y)?);
    for _ in 0..3 {
        step()?;
    }
    let (mut times, start) = (vec![], Instant::now());
    while times.len() < 5 || start.elapsed() < Duration::from_secs(1) {
        let begin = Instant::now();
        step()?;
        times.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let cases: Vec<Value> =
        serde_json::from_str(&std::fs::read_to_string(args.next().ok_or("name the file of cases")?)?)?;
    let only = args.next();
    let mut results = Map::new();
    for c in cases.iter().filter(|c| only.as_deref().is_none_or(|id| c["id"] == id)) {
        let vars = VarMap::new();
        let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
        let case = match c["op"].as_str() {
            Some("train_mlp") => mlp(c, vb)?,
            Some("train_cnn") => cnn(c, vb)?,
            Some("train_lstm_lm") => lstm_lm(c, vb)?,
            Some("train_gpt") => gpt(c, vb)?,
            _ => continue,
        };
        let weight_decay = if c["op"] == "train_gpt" || c["adamw"] == true { 0.01 } else { 0.0 };
        let mut optimizer =
            AdamW::new(vars.all_vars(), ParamsAdamW { lr: 1e-3, weight_decay, ..Default::default() })?;
        results.insert(c["id"].as_str().unwrap_or_default().into(), time(&case, &mut optimizer)?.into());
    }
    println!("{}", Value::Object(results));
    Ok(())
}
