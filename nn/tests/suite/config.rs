//! Training runs described in JSON: every kind of loss, optimizer, schedule and metric runs, every mistake is named.

use crate::common::runs::*;
use crate::common::{cpu, devices, noise, steps_on};
use serde_json::{Value, json};
use trefoil_nn::config::{Config, LossConfig, MetricConfig, OptimizerConfig, ScheduleConfig};
use trefoil_nn::trainer::{Ended, Report};
use trefoil_nn::{LayerExt, NnError};

/// Three classes of points in a table, all in the file's order.
fn table(f: &Folder, n: usize) -> Value {
    let z = noise(5, 4 * n);
    let line = |i: usize| {
        let v: String =
            (0..4).map(|k| format!("{:.3},", z[4 * i + k] + f64::from(u8::from(i % 3 == k)))).collect();
        format!("{v}{}\n", i % 3)
    };
    json!({ "csv": f.write("table.csv", (0..n).map(line).collect::<String>()) })
}

#[test]
fn every_loss_is_trained() {
    let f = Folder::new("losses");
    let x = features(&f);
    let uniform: Vec<f64> = noise(7, N * 4).iter().map(|v| 0.5 + 0.4 * v).collect();
    let signs = |n: usize| -> Vec<f64> { (0..n).map(|i| if i % 3 == 0 { 1.0 } else { -1.0 }).collect() };
    let classes: Vec<i64> = (0..N as i64).map(|i| i % 3).collect();
    let rows = |n: usize| -> Vec<f64> {
        uniform
            .chunks(4)
            .flat_map(|r| {
                let s: f64 = r[..n].iter().sum();
                r[..n].iter().map(move |v| v / s).collect::<Vec<_>>()
            })
            .collect()
    };
    let boxes: Vec<f64> = uniform.chunks(4).flat_map(|r| [r[0], r[1], r[0] + r[2], r[1] + r[3]]).collect();
    let one_hot: Vec<f64> = (0..N * 3).map(|i| f64::from(u8::from(i % 3 == (i / 3) % 3))).collect();
    for (name, path) in [
        ("ids", f.ids("ids.npy", &[N], &classes)),
        ("values", f.floats("values.npy", &[N, 3], &uniform[..N * 3])),
        ("rows", f.floats("rows.npy", &[N, 3], &rows(3))),
        ("one_hot", f.floats("one_hot.npy", &[N, 3], &one_hot)),
        ("signs", f.floats("signs.npy", &[N, 3], &signs(N * 3))),
        ("sign", f.floats("sign.npy", &[N], &signs(N))),
        ("value", f.floats("value.npy", &[N], &uniform[..N])),
        ("pair", f.floats("pair.npy", &[N, 2], &uniform[..N * 2])),
        ("boxes", f.floats("boxes.npy", &[N, 4], &boxes)),
        ("lists", f.ids("lists.npy", &[N, 3], &[1, -1, 0].repeat(N))),
        ("experts", f.ids("experts.npy", &[N, 2], &[0, 2].repeat(N))),
        ("labels", f.ids("labels.npy", &[N, 2], &[1, 2, 2, 0].repeat(N / 2))),
        ("states", f.floats("states.npy", &[N, 2, 2], &noise(4, N * 4))),
        ("patches", f.floats("patches.npy", &[N, 2, 3], &noise(4, N * 6))),
        ("signal", f.floats("signal.npy", &[N, 64], &noise(4, N * 64))),
    ] {
        assert!(path.ends_with(&format!("{name}.npy")));
    }
    let plain = |n: usize| dense(n, json!([]));
    let act = |n: usize, a: &str| dense(n, json!([{ "type": "activation", "kind": a }]));
    let soft = |n: usize| dense(n, json!([{ "type": "softmax" }]));
    let logs = |n: usize| dense(n, json!([{ "type": "log_softmax" }]));
    let shaped = |n: usize, shape: &[usize]| dense(n, json!([{ "type": "reshape", "target_shape": shape }]));
    let mut ctc = shaped(24, &[8, 3]);
    ctc["layers"].as_array_mut().unwrap().push(json!({ "type": "log_softmax" }));
    let mut gauss = act(6, "softplus");
    gauss["layers"].as_array_mut().unwrap().push(json!({ "type": "reshape", "target_shape": [2, 3] }));
    let mut odds = act(2, "sigmoid");
    odds["layers"].as_array_mut().unwrap()[1] = json!({ "type": "log_softmax" });

    let maps = json!({ "outputs": ["near", "far"], "layers": [
        { "type": "dense", "name": "near", "in_features": 3, "out_features": 4, "activation": "tanh" },
        { "type": "dense", "name": "far", "in_features": 4, "out_features": 2 } ] });
    let judge = json!({ "layers": [{ "type": "dense", "in_features": 3, "out_features": 1 }] });

    let cases = [
        ("cross_entropy", json!({ "label_smoothing": 0.1, "weight": [1.0, 2.0, 0.5] }), plain(3), "ids"),
        ("mse", json!({}), plain(3), "values"),
        ("l1", json!({}), plain(3), "values"),
        ("smooth_l1", json!({ "beta": 0.5 }), plain(3), "values"),
        ("huber", json!({ "delta": 0.5 }), plain(3), "values"),
        ("log_cosh", json!({}), plain(3), "values"),
        ("quantile", json!({ "q": 0.9 }), plain(3), "values"),
        ("charbonnier", json!({ "eps": 0.01 }), plain(3), "values"),
        ("mean_bias", json!({}), plain(3), "values"),
        ("hinge", json!({}), plain(3), "signs"),
        ("squared_hinge", json!({}), plain(3), "signs"),
        ("modified_huber", json!({}), plain(3), "signs"),
        ("exponential", json!({}), plain(3), "signs"),
        ("soft_margin", json!({}), plain(3), "signs"),
        ("hinge_embedding", json!({ "margin": 2.0 }), plain(3), "signs"),
        ("wasserstein", json!({}), plain(3), "signs"),
        ("poisson_nll", json!({ "full": true }), plain(3), "values"),
        ("born_mse", json!({}), plain(3), "values"),
        ("bce", json!({}), act(3, "sigmoid"), "values"),
        ("sigmoid_focal", json!({ "gamma": 1.0 }), plain(3), "one_hot"),
        ("binary_focal", json!({ "alpha": 0.5 }), act(3, "sigmoid"), "one_hot"),
        ("bce_with_logits", json!({ "pos_weight": [1.0, 2.0, 3.0] }), plain(3), "values"),
        ("kl_div", json!({ "batch_mean": true }), logs(3), "rows"),
        ("nll", json!({ "weight": [1.0, 2.0, 0.5] }), logs(3), "ids"),
        ("multiclass_focal", json!({ "gamma": 1.0, "alpha": [1.0, 2.0, 1.0] }), plain(3), "ids"),
        ("arc_face", json!({ "scale": 8.0, "margin": 0.2 }), act(3, "tanh"), "ids"),
        ("multi_margin", json!({ "squared": true, "weight": [1.0, 2.0, 1.0] }), plain(3), "ids"),
        ("multi_label_margin", json!({}), plain(3), "lists"),
        ("multi_label_soft_margin", json!({ "weight": [1.0, 2.0, 1.0] }), plain(3), "one_hot"),
        ("categorical_cross_entropy", json!({ "label_smoothing": 0.1 }), soft(3), "rows"),
        ("capsule", json!({ "lambda": 0.25 }), act(3, "sigmoid"), "one_hot"),
        ("cosine", json!({ "scale": 2.0 }), plain(3), "values"),
        ("dice", json!({ "from_logits": true }), plain(3), "one_hot"),
        ("tversky", json!({ "a": 0.3, "b": 0.7 }), act(3, "sigmoid"), "one_hot"),
        ("jaccard", json!({}), act(3, "sigmoid"), "one_hot"),
        ("box_iou", json!({ "overlap": "diou" }), plain(4), "boxes"),
        ("quantum_fidelity", json!({}), shaped(4, &[2, 2]), "states"),
        ("scale_invariant_depth", json!({ "lambda": 0.85 }), act(3, "softplus"), "values"),
        ("rmse", json!({}), plain(3), "values"),
        ("elastic_net", json!({ "alpha": 0.1 }), plain(3), "values"),
        ("sup_con", json!({ "tau": 0.5 }), plain(3), "ids"),
        ("moe_balance", json!({}), soft(3), "experts"),
        ("lovasz", json!({}), soft(3), "ids"),
        ("stft", json!({ "resolutions": [{ "fft": 32, "hop": 8, "window": 16 }] }), plain(64), "signal"),
        ("triplet_margin", json!({ "swap": true }), shaped(9, &[3, 3]), "ids"),
        ("contrastive", json!({ "margin": 2.0 }), shaped(6, &[2, 3]), "value"),
        ("cosine_embedding", json!({ "margin": 0.1 }), shaped(6, &[2, 3]), "sign"),
        ("margin_ranking", json!({ "margin": 0.5 }), plain(2), "sign"),
        ("gaussian_nll", json!({ "full": true }), gauss, "values"),
        ("gaussian_kl", json!({}), shaped(6, &[2, 3]), "ids"),
        ("nt_xent", json!({ "tau": 1.0 }), shaped(6, &[2, 3]), "ids"),
        ("info_nce", json!({}), shaped(6, &[2, 3]), "ids"),
        ("barlow_twins", json!({ "lambda": 0.1 }), shaped(6, &[2, 3]), "ids"),
        ("pairwise_ranking", json!({}), plain(1), "value"),
        ("masked_patch", json!({ "normalize": false }), shaped(6, &[2, 3]), "patches"),
        ("quantiles", json!({ "levels": [0.1, 0.5, 0.9] }), plain(3), "value"),
        ("distillation", json!({ "temperature": 3.0 }), plain(3), "values"),
        ("dino", json!({ "center": [0.1, 0.0, 0.0] }), plain(3), "values"),
        ("z", json!({ "coef": 0.1 }), plain(3), "ids"),
        ("nce", json!({}), plain(3), "ids"),
        ("ordinal", json!({}), plain(2), "ids"),
        ("dpo", json!({ "beta": 1.0 }), plain(2), "pair"),
        ("ipo", json!({ "beta": 1.0 }), plain(2), "pair"),
        ("simpo", json!({ "gamma": 1.0 }), plain(2), "pair"),
        ("orpo", json!({}), odds, "pair"),
        ("adversarial", json!({ "mode": "least_squares", "discriminator": true }), plain(2), "pair"),
        ("rotation_prediction", json!({}), shaped(16, &[4, 4]), "ids"),
        ("perceptual", json!({ "features": maps, "weights": [0.5, 1.0], "l1": true }), plain(3), "values"),
        ("real_esrgan", json!({ "features": maps, "discriminator": judge }), plain(3), "values"),
        ("ctc", json!({ "zero_infinity": true }), ctc, "labels"),
        ("rnnt", json!({}), shaped(36, &[4, 3, 3]), "labels"),
    ];
    let (mut missing, mut wrong) = (LossConfig::names(), vec![]);
    for (name, options, model, target) in cases {
        let data = json!({ "npy": x, "targets": f.at(&format!("{target}.npy")) });
        let mut c = config(data, model);
        let mut loss = options;
        loss["type"] = name.into();
        c["loss"] = loss;
        missing.retain(|n| *n != name);
        let done = match train(&c) {
            Ok(done) => done,
            Err(e) => {
                wrong.push(format!("{name}: {e}"));
                continue;
            }
        };
        let last = done.report.history.last().unwrap();
        if !(last.train_loss.is_finite() && last.step == 2 && done.moved > 0.0 && done.moved.is_finite()) {
            wrong.push(format!("{name} moved the parameters by {}: {last:?}", done.moved));
        }
    }
    assert!(missing.is_empty() && wrong.is_empty(), "not trained: {missing:?}; {wrong:#?}");
}

#[test]
fn nll_takes_the_class_axis_of_cross_entropy() {
    let f = Folder::new("class_axis");
    let x = features(&f);
    let labels = f.ids("labels.npy", &[N, 2], &[1, 2, 2, 0].repeat(N / 2));
    for (dim, shape) in [(1, [3, 2]), (-1, [2, 3])] {
        let losses = ["nll", "cross_entropy"].map(|name| {
            let ends = [
                json!({ "type": "reshape", "target_shape": shape }),
                json!({ "type": "log_softmax", "dim": dim }),
            ];
            let mut c = config(json!({ "npy": x, "targets": labels }), dense(6, json!(ends)));
            c["loss"] = json!({ "type": name, "dim": dim });
            train(&c).unwrap().report.history.last().unwrap().train_loss
        });
        assert!((losses[0] - losses[1]).abs() < 1e-6 && losses[0] > 0.1, "axis {dim}: {losses:?}");
    }
}

/// Methods that evaluate the loss themselves.
const CLOSURES: [&str; 10] = [
    "coordinate_descent",
    "conjugate_gradient",
    "bfgs",
    "lbfgs",
    "dfp",
    "newton_cg",
    "newton",
    "levenberg_marquardt",
    "trust_region",
    "admm",
];

/// Trains by such a method, and compares what it says where it does not fit.
fn minimizes(name: &str, mut c: Value) {
    if !["coordinate_descent", "lbfgs", "admm"].contains(&name) {
        c["optimizer"] = json!(name);
    }
    if name == "levenberg_marquardt" {
        let e = train(&c).err().unwrap().to_string();
        assert!(e.contains("levenberg_marquardt") && e.contains("MseLoss"), "{e}");
        return;
    }
    let done = train(&c).unwrap_or_else(|e| panic!("{name}: {e}"));
    let last = done.report.history.last().unwrap();
    assert_eq!((last.step, last.lr), (2, 1.0), "{name}");
    assert!(done.moved > 1e-6, "{name} moved the parameters by {}", done.moved);
    for (section, key, value) in [
        ("train", "ema", json!(0.9)),
        ("train", "clip_norm", json!(1.0)),
        ("optimizer", "maximize", json!(true)),
        ("optimizer", "groups", json!([{ "max_rank": 1 }])),
    ] {
        let mut c = c.clone();
        if section == "optimizer" && c["optimizer"].is_string() {
            c["optimizer"] = json!({ "type": name });
        }
        c[section][key] = value;
        let e = train(&c).err().unwrap_or_else(|| panic!("{name} with {key}")).to_string();
        assert!(e.contains(&format!("`{section}.{key}`")) && e.contains(name), "{e}");
    }
}

#[test]
fn every_optimizer_takes_steps() {
    let f = Folder::new("optimizers");
    let data = table(&f, N);
    for name in OptimizerConfig::names() {
        let mut c = config(data.clone(), dense(3, json!([])));
        c["optimizer"] = json!({ "type": name, "lr": 0.01 });
        if CLOSURES.contains(&name) {
            minimizes(name, c);
            continue;
        }
        // Rules that find their rate begin with one that two steps would not show.
        if ["dadapt_sgd", "dadapt_adam", "prodigy"].contains(&name) {
            c["optimizer"]["d0"] = 0.1.into();
        }
        let done = train(&c).unwrap_or_else(|e| panic!("{name}: {e}"));
        let last = done.report.history.last().unwrap();
        assert_eq!((last.step, last.lr), (2, 0.01), "{name}");
        // A projection onto everything is a plain step.
        assert!(done.moved > 1e-6, "{name} moved the parameters by {}", done.moved);
    }
    let mut c = config(data, dense(3, json!([])));
    c["optimizer"] = json!("adamw");
    assert_eq!(train(&c).unwrap().report.history[0].lr, 1e-3);
}

#[test]
fn groups_take_parameters_by_name_and_rank() {
    let f = Folder::new("groups");
    let mut c = config(table(&f, N), dense(5, json!([{ "type": "dense", "out_features": 3 }])));
    // Only the second layer's bias has a rate.
    c["optimizer"] = json!({ "type": "sgd", "lr": 0.5, "groups": [
        { "names": ["1.bias"] }, { "names": ["*"], "lr_factor": 0.0 } ] });
    let run = |c: &Value| {
        let d = cpu();
        let c = Config::parse(&c.to_string()).unwrap();
        let data = c.data.open().unwrap();
        let s = c.sources(&data, &d).unwrap();
        let m = c.model(&d, &s).unwrap();
        let values = || -> Vec<(String, Vec<f32>)> {
            m.named_parameters().iter().map(|(n, p)| (n.clone(), p.get().to_vec().unwrap())).collect()
        };
        let before = values();
        c.trainer(&m, &data, &s, &d).unwrap().fit(&*s.train, None, &mut |_| true).unwrap();
        let moved = values().into_iter().zip(before).filter(|(a, b)| a != b);
        moved.map(|(a, _)| a.0).collect::<Vec<_>>()
    };
    assert_eq!(run(&c), ["1.bias"]);
    c["optimizer"]["groups"] = json!([{ "max_rank": 1, "lr_factor": 0.0, "weight_decay": 0.0 }]);
    assert_eq!(run(&c), ["0.weight", "1.weight"]);
    c["optimizer"] = json!({ "type": "lamb", "lr": 0.5, "groups": [{ "max_rank": 1, "layer_wise": false }] });
    assert_eq!(run(&c).len(), 4);
    c["optimizer"]["groups"] = json!([{ "names": ["*norm*"] }]);
    let e = train(&c).err().unwrap().to_string();
    assert!(e.contains("optimizer.groups[0]") && e.contains("0.weight"), "{e}");
}

#[test]
fn every_schedule_changes_the_rate() {
    let f = Folder::new("schedules");
    let data = table(&f, N);
    // Rates of four epochs of two steps, as of the last step of each epoch.
    let cases = [
        ("constant", json!({}), [1.0, 1.0, 1.0, 1.0]),
        ("step", json!({ "every": 2, "gamma": 0.5 }), [1.0, 1.0, 0.5, 0.5]),
        ("multi_step", json!({ "milestones": [1, 3], "gamma": 0.1 }), [1.0, 0.1, 0.1, 0.01]),
        ("linear", json!({ "start": 0.5, "end": 1.0, "epochs": 2 }), [0.625, 0.875, 1.0, 1.0]),
        ("exponential", json!({ "gamma": 0.25 }), [0.5, 0.125, 0.03125, 0.0078125]),
        ("cosine", json!({}), [0.9619398, 0.6913417, 0.3086583, 0.0380602]),
        ("cosine_restarts", json!({ "epochs": 1, "factor": 2 }), [0.5, 0.8535534, 0.1464466, 0.9619398]),
        ("polynomial", json!({ "power": 2.0 }), [0.765625, 0.390625, 0.140625, 0.015625]),
        ("warmup", json!({ "epochs": 2 }), [0.4375, 0.8125, 1.0, 1.0]),
        ("one_cycle", json!({ "rise": 0.5, "div": 10.0 }), [0.325, 1.0, 0.5000005, 0.00001]),
        ("plateau", json!({ "factor": 0.5, "patience": 0, "threshold": 10.0 }), [1.0, 0.5, 0.25, 0.125]),
    ];
    let rates = |schedule: Value| -> Vec<f64> {
        let mut c = config(data.clone(), dense(3, json!([])));
        c["optimizer"]["lr"] = 1.0.into();
        c["train"]["epochs"] = 4.into();
        c["schedule"] = schedule;
        train(&c).unwrap().report.history.iter().map(|s| s.lr).collect()
    };
    let mut missing = ScheduleConfig::names();
    for (name, mut schedule, want) in cases {
        schedule["type"] = name.into();
        let got = rates(schedule);
        let near = got.iter().zip(&want).all(|(a, b)| (a - b).abs() < 2e-3 + 1e-3 * b);
        assert!(near, "{name}: {got:?}, expected {want:?}");
        missing.retain(|n| *n != name);
    }
    assert!(missing.is_empty(), "not run: {missing:?}");
    // A rise before any schedule.
    let got = rates(json!({ "type": "step", "every": 1, "gamma": 0.5, "warmup": 2, "warmup_start": 0.0 }));
    assert!((got[0] - 0.25).abs() < 1e-9 && (got[1] - 0.75).abs() < 1e-9 && got[3] == 0.5, "{got:?}");
}

#[test]
fn every_metric_is_reported() {
    let f = Folder::new("metrics");
    let mut data = table(&f, 18);
    data["test_rows"] = 6.into();
    let mut c = config(data.clone(), dense(3, json!([])));
    c["metrics"] = json!(["accuracy", { "type": "top_k", "k": 2 }, "precision", { "type": "recall", "average": "micro" },
        { "type": "f1", "average": "weighted" }, { "type": "f1", "average": 1, "classes": 3 }, "perplexity"]);
    let m = train(&c).unwrap().report.history[0].metrics.clone();
    let names: Vec<&str> = m.keys().map(String::as_str).collect();
    assert_eq!(names, ["accuracy", "f1_1", "f1_weighted", "perplexity", "precision", "recall_micro", "top2"]);
    data["target"] = "value".into();
    let mut c = config(data.clone(), dense(1, json!([])));
    c["metrics"] = json!(["mae", "rmse", "r2"]);
    let m = train(&c).unwrap().report.history[0].metrics.clone();
    assert!(m.len() == 3 && m["rmse"] >= m["mae"], "{m:?}");
    let binary = json!({ "csv": f.write("two.csv", "0.1,0\n0.9,1\n".repeat(9)), "test_rows": 4 });
    let mut c = config(binary, dense(2, json!([])));
    c["metrics"] = json!(["auc"]);
    assert!([0.0, 1.0].contains(&train(&c).unwrap().report.history[0].metrics["auc"]));
    assert_eq!(MetricConfig::names().len(), 10);
}

#[test]
fn training_settings_are_used() {
    let f = Folder::new("settings");
    let mut data = table(&f, 24);
    data["test_rows"] = 6.into();
    let model = || {
        dense(8, json!([{ "type": "activation", "kind": "tanh" }, { "type": "dense", "out_features": 3 }]))
    };
    for d in devices() {
        let epochs = steps_on(&d, 20, 6);
        let run = |settings: Value| {
            let mut c = config(data.clone(), model());
            c["optimizer"] = json!({ "type": "adam", "lr": 0.01 });
            let train = c["train"].as_object_mut().unwrap();
            train.extend([("epochs".to_string(), epochs.into())]);
            train.extend(settings.as_object().unwrap().clone());
            train_on(&d, &c).unwrap().report
        };
        let plain = run(json!({}));
        let last = |r: &Report| r.history.last().unwrap().clone();
        for precision in ["f16", "bf16"] {
            let half = run(json!({ "precision": precision, "clip_norm": 10.0 }));
            let off = (last(&half).train_loss - last(&plain).train_loss).abs();
            assert!(off < 0.05, "{precision} is off by {off}");
        }
        let scaled = run(json!({ "loss_scaling": { "initial": 8, "interval": 5 }, "master_weights": false }));
        assert!((last(&scaled).train_loss - last(&plain).train_loss).abs() < 1e-3);
        // Three micro-batches make one step.
        let parts = run(json!({ "batch_size": 2, "accumulate": 3 }));
        let steps = 3 * epochs as u64;
        assert_eq!((last(&parts).step, last(&plain).step), (steps, steps));
        assert!((last(&parts).train_loss - last(&plain).train_loss).abs() < 1e-3);
        let average = run(json!({ "ema": 0.9 }));
        assert_ne!(last(&average).test_loss, last(&plain).test_loss);
        assert_eq!(last(&average).train_loss, last(&plain).train_loss);
        let kept = run(json!({ "ema": { "decay": 0.9, "evaluate": false } }));
        assert_eq!(last(&kept).test_loss, last(&plain).test_loss);
        let watched = run(json!({ "anomaly": 2, "clip_value": 100.0 }));
        assert!((last(&watched).train_loss - last(&plain).train_loss).abs() < 1e-6);
        let stopped = run(json!({ "early_stopping": { "patience": 1, "min_delta": 10.0 } }));
        assert_eq!((stopped.ended, stopped.history.len()), (Ended::Stalled, 3));
        assert_eq!(last(&run(json!({}))).train_loss, last(&plain).train_loss);
        assert_ne!(last(&run(json!({ "seed": 2 }))).train_loss, last(&plain).train_loss);
    }
    // What is not finite is found, and the step named.
    let wild = f.write("wild.csv", "1e30,0\n2e30,1\n1e38,2\n3e38,1\n".repeat(4));
    let mut c = config(json!({ "csv": wild }), dense(3, json!([])));
    c["train"]["anomaly"] = true.into();
    c["optimizer"]["lr"] = 1e30.into();
    assert!(matches!(train(&c), Err(NnError::Anomaly { .. })));
}

/// A configuration that is right, for tests of what is not.
fn right() -> Value {
    json!({
        "data": { "csv": "data/digits.csv", "transforms": [{ "type": "random_flip" }], "sampler": { "type": "all" } },
        "model": { "layers": [{ "type": "dense", "out_features": 10 }] },
        "loss": { "type": "smooth_l1", "beta": 0.5 },
        "optimizer": { "type": "adamw", "groups": [{ "names": ["*"] }] },
        "schedule": { "type": "cosine" },
        "metrics": [{ "type": "top_k" }],
        "train": { "epochs": 1, "ema": 0.5, "early_stopping": { "patience": 1 } }
    })
}

#[test]
fn every_mistake_has_its_place() {
    Config::parse(&right().to_string()).unwrap();
    // A pointer, what is put there, the place in the message, words of it.
    for (at, v, key, words) in [
        ("/dat", json!({}), "dat", "unknown field"),
        ("/data", json!(3), "data", "expected an object"),
        ("/data", json!({}), "data", "expected one of the keys csv, parquet, arrow, npy"),
        ("/data/npy", json!("x.npy"), "data", "csv and npy"),
        ("/data/length", json!(3), "data.length", "unknown field `length` of `csv`"),
        ("/data/csv", json!(3), "data.csv", "expected path string"),
        ("/data/label", json!(-1), "data.label", "the name of a column or its number from 0, got -1"),
        ("/data/separator", json!(",,"), "data.separator", "expected a character"),
        ("/data/target", json!("klass"), "data.target", "expected one of `class`, `value`"),
        ("/data/scale", json!("a"), "data.scale", "expected f64"),
        ("/data/item_shape", json!([0]), "data.item_shape", "at least 1, got [0]"),
        ("/data/train_rows", json!(0), "data.train_rows", "at least 1, got 0"),
        ("/data/test_share", json!(1.5), "data.test_share", "[0, 1], got 1.5"),
        ("/data/threads", json!(0), "data.threads", "at least 1, got 0"),
        ("/data/on_error", json!("ignore"), "data.on_error", "`fail` or `skip`"),
        ("/data/split", json!("first"), "data.split", "`last` or `random`"),
        ("/data/test", json!({ "rows": 1 }), "data.test.rows", "unknown field"),
        ("/data/test", json!({ "csv": 1 }), "data.test.csv", "expected path string"),
        ("/data/transforms", json!({}), "data.transforms", "expected a list"),
        ("/data/transforms/0", json!({ "type": "blur" }), "data.transforms[0].type", "known are normalize"),
        ("/data/transforms/0/p", json!(2), "data.transforms[0].p", "[0, 1], got 2"),
        ("/data/transforms/0/on", json!("never"), "data.transforms[0].on", "expected one of `both`"),
        (
            "/data/transforms/0",
            json!({ "type": "normalize", "mean": [0, 0], "std": 1 }),
            "data.transforms[0].std",
            "expected 2 deviations",
        ),
        (
            "/data/transforms/0",
            json!({ "type": "normalize", "mean": "a", "std": 1 }),
            "data.transforms[0].mean",
            "a number or a list",
        ),
        ("/data/transforms/0", json!({ "type": "random_crop" }), "data.transforms[0].size", "is missing"),
        (
            "/data/transforms/0",
            json!({ "type": "random_erase", "area": [0.5, 0.1] }),
            "data.transforms[0].area",
            "smaller bound first",
        ),
        ("/data/sampler", json!("some"), "data.sampler.type", "expected a sampler, got `some`"),
        ("/data/sampler", json!({ "type": "weighted", "weights": 3 }), "data.sampler.weights", "got 3"),
        (
            "/data/sampler",
            json!({ "type": "distributed", "rank": 2, "world": 2 }),
            "data.sampler.rank",
            "below world",
        ),
        (
            "/loss/type",
            json!("l7"),
            "loss.type",
            "expected a loss, got `l7`; did you mean `l1`? known are cross_entropy, mse",
        ),
        ("/loss/beta", json!(-1), "loss.beta", "at least 0, got -1"),
        ("/loss/beta", json!("1"), "loss.beta", "expected f64"),
        (
            "/loss/betta",
            json!(1),
            "loss.betta",
            "unknown field `betta` of `smooth_l1`; did you mean `beta`? known are beta",
        ),
        ("/loss", json!({ "beta": 1 }), "loss.type", "is missing"),
        (
            "/loss",
            json!({ "type": "cross_entropy", "label_smoothing": 1 }),
            "loss.label_smoothing",
            "[0, 1), got 1",
        ),
        ("/loss", json!({ "type": "cross_entropy", "dim": 2 }), "loss.dim", "expected 1 or -1"),
        ("/loss", json!({ "type": "nll", "dim": 0 }), "loss.dim", "expected 1 or -1"),
        ("/loss", json!({ "type": "box_iou", "overlap": "none" }), "loss.overlap", "`iou`, `giou`"),
        ("/loss", json!({ "type": "quantiles" }), "loss.levels", "is missing"),
        ("/loss", json!({ "type": "triplet_margin", "p": 0 }), "loss.p", "above 0, got 0"),
        (
            "/loss",
            json!({ "type": "stft", "resolutions": [{ "fft": 0, "hop": 1, "window": 1 }] }),
            "loss.resolutions[0]",
            "at least 1, got 0",
        ),
        ("/optimizer", json!(7), "optimizer", "an object with a `type`, got 7"),
        ("/optimizer/type", json!("adamm"), "optimizer.type", "known are sgd, momentum, adam"),
        ("/optimizer/type", json!(["adam"]), "optimizer.type", "expected the name of an optimizer"),
        ("/optimizer/betas", json!([0.9, 1.0]), "optimizer.betas", "[0, 1), got 1"),
        ("/optimizer/betas", json!([0.9]), "optimizer.betas", "invalid length 1"),
        ("/optimizer/lr", json!(0), "optimizer.lr", "above 0, got 0"),
        ("/optimizer/momentum", json!(0.9), "optimizer.momentum", "unknown field `momentum` of `adamw`"),
        ("/optimizer", json!({ "type": "sgd" }), "optimizer.lr", "is missing"),
        (
            "/optimizer",
            json!({ "type": "rprop", "etas": [0.5, 0.9] }),
            "optimizer.etas[1]",
            "above 1, got 0.9",
        ),
        (
            "/optimizer",
            json!({ "type": "projected", "lr": 1, "lo": 1, "hi": 0 }),
            "optimizer.lo",
            "at most hi = 0",
        ),
        ("/optimizer/groups/0", json!({ "weight_decay": 0 }), "optimizer.groups[0]", "expected `names` or"),
        ("/optimizer/groups/0/weight_decay", json!(-1), "optimizer.groups[0].weight_decay", "got -1"),
        ("/optimizer/groups/0/lr", json!(1), "optimizer.groups[0].lr", "unknown field"),
        ("/schedule/type", json!("sine"), "schedule.type", "expected a schedule, got `sine`"),
        ("/schedule/warmup", json!(-1), "schedule.warmup", "at least 0, got -1"),
        ("/schedule/gamma", json!(1), "schedule.gamma", "unknown field `gamma` of `cosine`"),
        ("/schedule", json!({ "type": "step", "every": 0, "gamma": 1 }), "schedule.every", "above 0, got 0"),
        ("/metrics", json!("accuracy"), "metrics", "expected a list"),
        ("/metrics/0/k", json!(0), "metrics[0].k", "at least 1, got 0"),
        ("/metrics/0", json!("speed"), "metrics[0].type", "expected a metric, got `speed`"),
        ("/metrics/0", json!({ "type": "f1", "average": "mean" }), "metrics[0].average", "got \"mean\""),
        ("/train/epochs", json!(0), "train.epochs", "at least 1, got 0"),
        ("/train/accumulate", json!(0), "train.accumulate", "at least 1, got 0"),
        ("/train/precision", json!("f8"), "train.precision", "`f32`, `f16`"),
        ("/train/ema", json!(2), "train.ema", "[0, 1], got 2"),
        ("/train/ema", json!("much"), "train.ema", "expected a decay or an object"),
        ("/train/loss_scaling", json!({ "growth": 0.5 }), "train.loss_scaling.growth", "at least 1, got 0.5"),
        ("/train/anomaly", json!(0), "train.anomaly", "at least 1, got 0"),
        ("/train/patience", json!(1), "train.patience", "`early_stopping`, got both"),
        ("/train/early_stopping/min", json!(1), "train.early_stopping.min", "unknown field"),
        ("/train/epoch", json!(1), "train.epoch", "did you mean `epochs`?"),
        ("/train/precision", json!("f3"), "train.precision", "did you mean `f32`?"),
    ] {
        let mut c = right();
        let (parent, last) = at.rsplit_once('/').unwrap();
        match c.pointer_mut(parent).unwrap() {
            Value::Array(list) => list[last.parse::<usize>().unwrap()] = v.clone(),
            object => object[last] = v.clone(),
        }
        match Config::parse(&c.to_string()) {
            Err(NnError::Config { key: k, what, .. }) => {
                assert_eq!(k, key, "{at} = {v}: {what}");
                assert!(what.contains(words), "{at} = {v}: {what}");
            }
            other => panic!("{at} = {v}: {other:?}"),
        }
    }
    for key in ["data", "model"] {
        let mut c = right();
        c.as_object_mut().unwrap().remove(key);
        let e = Config::parse(&c.to_string()).unwrap_err().to_string();
        assert!(e.contains(&format!("`{key}`: is missing")), "{e}");
    }
}
