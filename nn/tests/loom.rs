//! Loom's networks against what Loom computes.
#![allow(missing_docs)]

mod common;

use common::{cpu, devices, id};
use serde_json::Value;
use trefoil::DType;
use trefoil_nn::loom::*;
use trefoil_nn::{Build, Device, Layer, Result, Tensor};

/// Outputs of Loom (`faithful`) and of the intended layers (`corrected`), and how weights and inputs were filled.
fn golden() -> Value {
    serde_json::from_str(include_str!("loom/golden.json")).unwrap()
}

fn weights(n: usize, s: usize) -> Vec<f32> {
    (0..n).map(|k| ((((7 * k + 3 + s) % 11) as f64 - 5.0) / 10.0) as f32).collect()
}

fn biases(n: usize, s: usize) -> Vec<f32> {
    (0..n).map(|k| ((((5 * k + 1 + s) % 7) as f64 - 3.0) / 20.0) as f32).collect()
}

fn inputs(n: usize) -> Vec<f32> {
    (0..n).map(|k| (((5 * k + 2) % 13) as f32 - 6.0) / 4.0).collect()
}

/// Fills a layer as the golden file says. `salt` is that of dense layers, `unit` leaves norms at 1 and 0.
fn fill(l: &LoomLayer, salt: usize, unit: bool) {
    for key in l.weight_keys() {
        let n = l.weight(key).unwrap().len();
        let (w, b) = (|s| weights(n, s), |s| biases(n, s));
        let data = match key {
            "kernel" => w(salt),
            "biases" | "conv_bias" => b(salt),
            "gamma" if unit => vec![1.0; n],
            "beta" if unit => vec![0.0; n],
            "gamma" | "embedding_weights" => w(0),
            "beta" | "bias_h" => b(0),
            "weight_ih" | "q_weights" | "gate_weights" | "weight_ii" => w(0),
            "weight_hh" | "k_weights" | "up_weights" | "weight_if" => w(1),
            "v_weights" | "down_weights" | "weight_ig" => w(2),
            "output_weight" | "weight_io" => w(3),
            "weight_hi" => w(4),
            "weight_hf" => w(5),
            "weight_hg" => w(6),
            "weight_ho" => w(7),
            "q_bias" | "gate_bias" | "bias_i" => b(0),
            "k_bias" | "up_bias" | "bias_f" => b(1),
            "v_bias" | "down_bias" | "bias_g" => b(2),
            "output_bias" | "bias_o" => b(3),
            other => panic!("{other}"),
        };
        l.set_weight(key, &data).unwrap();
    }
    let mut dense = 0;
    for c in l.branches() {
        fill(c, dense, unit);
        dense += usize::from(c.kind() == "Dense");
    }
}

/// One case of the golden file.
#[derive(Clone)]
struct Case {
    name: String,
    layers: String,
    batch: usize,
    x: Vec<f32>,
    origin: Origin,
    grid: Option<[usize; 3]>,
    /// Weights by the file's rule; otherwise as built.
    filled: bool,
    /// Norms keep 1 and 0.
    unit: bool,
    /// Saved and loaded before it runs.
    reload: bool,
    /// A single switch beside the profile.
    switch: fn(&mut Flags),
    /// Index of the output's first dense layer counts up (the grid's salts).
    counted: bool,
}

fn case(name: &str, layers: &str, batch: usize, n: usize) -> Case {
    Case {
        name: name.into(),
        layers: layers.into(),
        batch,
        x: inputs(n),
        origin: Origin::Json,
        grid: None,
        filled: true,
        unit: false,
        reload: false,
        switch: |_| {},
        counted: false,
    }
}

fn cases() -> Vec<Case> {
    let mut all = vec![];
    let dense = |act: &str| {
        let act = if act.is_empty() { String::new() } else { format!(r#""activation":"{act}","#) };
        format!(r#"{{"type":"dense",{act}"input_size":3,"output_size":2}}"#)
    };
    for act in ["", "gelu", "leaky_relu", "linear", "relu", "sigmoid", "softplus", "tanh"] {
        all.push(case(&format!("dense/{act}"), &dense(act), 2, 6));
    }
    all.push(Case { filled: false, ..case("dense/no_init", &dense("relu"), 1, 3) });
    let stitch = case("stitch/before", &dense("identity"), 1, 3);
    all.push(Case {
        name: "stitch/after_reload".into(),
        reload: true,
        origin: Origin::Code,
        ..stitch.clone()
    });
    all.push(Case { origin: Origin::Code, ..stitch });

    let conv1d = r#"{"type":"conv1d","activation":"leaky_relu","input_channels":2,"kernel_size":3,"padding":1,"input_length":5"#;
    all.push(case("conv1d", &format!(r#"{conv1d},"filters":2,"stride":1}}"#), 2, 20));
    all.push(case("conv1d/s2", &format!(r#"{conv1d},"filters":3,"stride":2}}"#), 1, 10));
    let guide = r#"{"type":"conv1d","activation":"leaky_relu","conv1d_in_channels":2,"conv1d_filters":2,
        "conv1d_kernel_size":3,"conv1d_stride":1,"conv1d_padding":1}"#;
    all.push(case("conv1d/guide_keys", guide, 1, 10));
    for stride in ["", r#""stride":1,"#, r#""stride":2,"#] {
        let layer = format!(
            r#"{{"type":"conv2d",{stride}"activation":"leaky_relu","input_channels":2,"filters":2,"kernel_size":3,"padding":1,"input_height":4,"input_width":4}}"#
        );
        all.push(case(&format!("conv2d/{stride}"), &layer, 1, 32));
    }
    let ids = vec![0.0, 4.0, 5.0, -1.0, 2.7, -0.5];
    let embedding = r#"{"type":"embedding","vocab_size":5,"embedding_dim":3}"#;
    all.push(Case { x: ids, ..case("embedding", embedding, 1, 0) });
    let square = r#"{"type":"dense","activation":"tanh","input_size":2,"output_size":2}"#;
    let grid = [square; 4].join(",");
    all.push(Case { grid: Some([2, 2, 1]), counted: true, ..case("grid2x2", &grid, 1, 2) });

    for batch in [1, 2] {
        let (ln, rms) = (r#"{"type":"layer_norm","norm_size":4}"#, r#"{"type":"rms_norm","norm_size":4}"#);
        all.push(case(&format!("layer_norm/b{batch}"), ln, batch, 8));
        all.push(case(&format!("rms_norm/b{batch}"), rms, batch, 8));
    }
    for kind in ["rnn", "lstm"] {
        let layer = format!(r#"{{"type":"{kind}","input_size":2,"hidden_size":3,"seq_length":3}}"#);
        all.push(case(kind, &layer, 2, 12));
    }

    let mha = r#"{"type":"mha","d_model":4,"num_heads":2,"seq_length":3}"#;
    all.push(case("mha/json", mha, 1, 12));
    let code = Case { origin: Origin::Code, ..case("mha/network_programmatic", mha, 1, 12) };
    all.push(Case { name: "mha/concat".into(), switch: |f| f.mha_unprojected = true, ..code.clone() });
    all.push(Case { name: "mha/projected".into(), switch: |f| f.mha_unprojected = false, ..code.clone() });
    let grouped =
        r#"{"type":"multi_head_attention","d_model":4,"num_heads":2,"num_kv_heads":1,"seq_length":3}"#;
    let gqa = Case { layers: grouped.into(), name: "mha/gqa_projected".into(), ..code.clone() };
    all.push(Case { switch: |f| f.mha_unprojected = false, ..gqa });
    all.push(Case { name: "mha/after_bundle_reload".into(), reload: true, ..code.clone() });
    all.push(code);

    let swiglu = |n: usize| format!(r#"{{"type":"swiglu","input_height":{n},"output_height":4}}"#);
    let block = |name: &str, layers: &[&str], batch: usize| Case {
        origin: Origin::Code,
        unit: true,
        ..case(name, &layers.join(","), batch, 12)
    };
    all.push(Case { origin: Origin::Code, ..case("swiglu/direct_no_residual", &swiglu(3), 1, 6) });
    let (ln, rms, s4) =
        (r#"{"type":"layernorm","norm_size":4}"#, r#"{"type":"rmsnorm","norm_size":4}"#, swiglu(4));
    all.push(block("block/ln-swiglu b1", &[ln, &s4], 1));
    all.push(block("block/ln-swiglu b3", &[ln, &s4], 3));
    all.push(block("block/swiglu-ln-swiglu b3", &[&s4, ln, &s4], 3));
    all.push(block("block/swiglu-swiglu b3", &[&s4, &s4], 3));
    all.push(block("block/rms-swiglu", &[rms, &s4], 3));
    all.push(block("block/rms-mha-rms-swiglu b1", &[rms, mha, rms, &s4], 1));

    let branches = format!(r#""branches":[{},{}]"#, dense("tanh"), dense("sigmoid"));
    for mode in ["", "add", "avg", "concat", "filter", "multiply"] {
        let layer = format!(r#"{{"type":"parallel","combine_mode":"{mode}",{branches}}}"#);
        all.push(case(&format!("parallel/{mode}"), &layer, 2, 6));
    }
    let cells = r#""grid_output_rows":2,"grid_output_cols":1,"grid_output_layers":1,"grid_positions":[
        {"branch_index":0,"target_row":1,"target_col":0,"target_layer":0},
        {"branch_index":1,"target_row":0,"target_col":0,"target_layer":0}]"#;
    let scatter = format!(r#"{{"type":"parallel","combine_mode":"grid_scatter",{cells},{branches}}}"#);
    all.push(case("parallel/grid_scatter", &scatter, 2, 6));

    all.push(case("residual/alone", r#"{"type":"residual"}"#, 1, 6));
    let inner = [
        dense("tanh"),
        r#"{"type":"layer_norm","norm_size":2}"#.into(),
        r#"{"type":"dense","activation":"sigmoid","input_size":2,"output_size":2}"#.into(),
    ]
    .join(",");
    let sequential = format!(r#"{{"type":"sequential","branches":[{inner}]}}"#);
    all.push(Case { unit: true, ..case("sequential(dense,ln,dense)", &sequential, 2, 6) });
    let rectified = format!(
        r#"{{"type":"sequential","branches":[{},{}]}}"#,
        dense("relu"),
        square.replace("tanh", "relu")
    );
    all.push(Case { filled: false, ..case("sequential_init", &rectified, 2, 6) });

    let softmax = |name: &str, keys: &str, batch: usize| {
        case(&format!("softmax/{name}"), &format!(r#"{{"type":"softmax"{keys}}}"#), batch, 6)
    };
    all.push(softmax("standard", "", 1));
    all.push(softmax("std_b2", r#","softmax_variant":"standard""#, 2));
    all.push(softmax("temp0.5", r#","softmax_variant":"temperature","temperature":0.5"#, 1));
    all.push(softmax("grid2x3", r#","softmax_variant":"grid","softmax_rows":2,"softmax_cols":3"#, 1));
    all.push(softmax("grid_no_dims", r#","softmax_variant":"grid""#, 1));
    all.push(softmax("hier", r#","softmax_variant":"hierarchical","hierarchy_levels":[3,2]"#, 1));
    let mask = r#","softmax_variant":"masked","mask":[true,false,true,true,false,true]"#;
    all.push(softmax("masked", mask, 1));
    all.push(softmax("sparse", r#","softmax_variant":"sparse""#, 1));
    all.push(softmax("entmax1.5", r#","softmax_variant":"entmax","entmax_alpha":1.5"#, 1));
    let clusters = r#","softmax_variant":"adaptive","adaptive_clusters":[[0,1],[2,3],[4,5]]"#;
    all.push(softmax("adaptive", clusters, 1));
    all.push(softmax("mixture", r#","softmax_variant":"mixture","mixture_weights":[0.5,0.5]"#, 1));
    all
}

fn config(c: &Case) -> LoomConfig {
    let n = serde_json::from_str::<Value>(&format!("[{}]", c.layers)).unwrap().as_array().unwrap().len();
    let [rows, cols, layers] = c.grid.unwrap_or([1, 1, n]);
    let text = format!(
        r#"{{"id":"{}","batch_size":{},"grid_rows":{rows},"grid_cols":{cols},"layers_per_cell":{layers},"layers":[{}]}}"#,
        c.name.replace('"', "'"),
        c.batch,
        c.layers
    );
    let read = LoomConfig::from_json(&text).unwrap_or_else(|e| panic!("{}: {e}", c.name));
    LoomConfig { origin: c.origin, ..read }
}

fn build(c: &Case, flags: &Flags, d: &Device, dtype: DType) -> Result<LoomNetwork> {
    let cx = Build::new(d, 1).dtype(dtype);
    let net = LoomNetwork::new(&cx, &config(c), flags)?;
    if c.filled {
        for (i, l) in net.layers().iter().enumerate() {
            fill(l, if c.counted { i } else { 0 }, c.unit);
        }
    }
    if c.reload {
        let mut b = Bundle::default();
        b.insert("x", &net)?;
        return Bundle::from_json(&b.to_json()?)?.network("x", &cx, flags);
    }
    Ok(net)
}

fn run(c: &Case, flags: &Flags, d: &Device) -> Result<Vec<f64>> {
    let net = build(c, flags, d, DType::F32)?;
    let x = Tensor::from_slice(d, &c.x, &[c.x.len()])?;
    Ok(net.forward(&x)?.to_vec::<f32>()?.into_iter().map(f64::from).collect())
}

fn numbers(v: &Value) -> Vec<f64> {
    v.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

fn distance(got: &[f64], want: &[f64], what: &str) -> f64 {
    assert_eq!(got.len(), want.len(), "{what}: lengths");
    got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

#[test]
fn faithful() {
    let golden = golden();
    let want = golden["faithful"].as_object().unwrap();
    let cases = cases();
    let mut names: Vec<&str> = cases.iter().map(|c| c.name.as_str()).collect();
    names.sort_unstable();
    let mut keys: Vec<&str> = want.keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(names, keys, "every case, none twice");
    assert_eq!(names.len(), 59);
    for d in devices() {
        // The specification's bound on the CPU; on devices the largest distance that was seen, with room.
        let bound = if id(&d) == id(&cpu()) { 2e-7 } else { 1e-6 };
        let (mut worst, mut failed) = ((0.0, ""), vec![]);
        for c in &cases {
            let mut flags = Flags::faithful();
            (c.switch)(&mut flags);
            let got = run(c, &flags, &d).unwrap_or_else(|e| panic!("{}: {e}", c.name));
            let e = distance(&got, &numbers(&want[&c.name]), &c.name);
            if e > worst.0 {
                worst = (e, &c.name);
            }
            if e > bound || e.is_nan() {
                failed.push(format!("{}: {e:e}\n  {got:?}\n  {:?}", c.name, want[&c.name]));
            }
        }
        println!("{}: largest distance {:e} ({})", id(&d), worst.0, worst.1);
        assert!(
            failed.is_empty(),
            "{} of {} on {}:\n{}",
            failed.len(),
            cases.len(),
            id(&d),
            failed.join("\n")
        );
    }
}
