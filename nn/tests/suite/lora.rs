//! Low-rank adapters: what they compute, what is trained, merging, files.

use crate::common::everywhere::values;
use crate::common::runs::{Folder, N, config as run_of, features, train, train_on};
use crate::common::{close, cpu, devices, noise, tensor};
use serde_json::{Value, json};
use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil_nn::config::{SavedRun, Weights};
use trefoil_nn::layers::{Dense, Lora, LoraConfig, MultiHeadAttention, Sequential};
use trefoil_nn::state_file::{self, StateFile};
use trefoil_nn::{Device, InitContext, Layer, LayerExt, MseLoss, NnError, Optimizer, Param, Result, Tensor};

fn model(cx: &InitContext) -> Result<Sequential> {
    Ok(Sequential::new().push(Dense::new(cx, 4, 6)?.activation(Activation::Tanh)).push(Dense::new(cx, 6, 3)?))
}

fn config(rank: usize, targets: &[&str]) -> LoraConfig {
    LoraConfig { rank, alpha: 6.0, targets: targets.iter().map(|t| t.to_string()).collect() }
}

fn find(model: &dyn Layer, name: &str) -> Param {
    let all = model.named_state();
    all.into_iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("no {name}")).1
}

/// Adapters with products other than 0.
fn adapted(d: &Device, dtype: DType) -> Lora<Sequential> {
    let cx = InitContext::new(d, 3).dtype(dtype);
    let lora = Lora::new(&cx, model(&cx).unwrap(), &config(2, &["*"])).unwrap();
    for (seed, name) in [(1, "0.lora_B.weight"), (2, "1.lora_B.weight")] {
        let b = find(&lora, name).get().detach();
        let data: Vec<f32> = noise(seed, b.numel()).into_iter().map(|x| x as f32).collect();
        b.assign(&Tensor::from_slice(d, &data, b.shape()).unwrap().to_dtype(dtype).unwrap()).unwrap();
    }
    lora
}

#[test]
fn adapters_begin_as_the_model_and_have_the_names_of_peft() {
    let d = cpu();
    let cx = InitContext::new(&d, 5);
    let plain = model(&InitContext::new(&d, 5)).unwrap();
    let lora = Lora::new(&cx, model(&cx).unwrap(), &config(2, &["1"])).unwrap();
    let x = tensor(&d, &[5, 4], 1).to_dtype(DType::F32).unwrap();
    assert_eq!(values(&lora.forward(&x).unwrap()), values(&plain.forward(&x).unwrap()));
    let names: Vec<String> = lora.named_state().into_iter().map(|(n, _)| n).collect();
    assert_eq!(names, ["0.weight", "0.bias", "1.weight", "1.bias", "1.lora_A.weight", "1.lora_B.weight"]);
    let trained: Vec<String> =
        lora.named_parameters().into_iter().filter(|(_, p)| p.requires_grad()).map(|(n, _)| n).collect();
    assert_eq!(trained, ["1.lora_A.weight", "1.lora_B.weight"]);
    let files: Vec<String> = lora.adapter_state().into_keys().collect();
    assert_eq!(files, ["base_model.model.1.lora_A.weight", "base_model.model.1.lora_B.weight"]);
    assert_eq!(find(&lora, "1.lora_A.weight").get().shape(), [2, 6]);
    assert_eq!(find(&lora, "1.lora_B.weight").get().shape(), [3, 2]);
}

/// Outputs and gradients of x W^T + b + scale (x A^T) B^T, layer by layer.
#[test]
fn outputs_and_gradients_are_those_of_separate_products() {
    let d = cpu();
    let lora = adapted(&d, DType::F64);
    let x = tensor(&d, &[5, 4], 7).with_grad();
    let weights = tensor(&d, &[5, 3], 8);
    lora.forward(&x).unwrap().mul(&weights).unwrap().sum().unwrap().backward().unwrap();

    let again = x.detach().with_grad();
    let leaf = |name: &str| find(&lora, name).get().detach().with_grad();
    let factors: Vec<[Tensor; 2]> =
        (0..2).map(|i| ["A", "B"].map(|part| leaf(&format!("{i}.lora_{part}.weight")))).collect();
    let layer = |x: &Tensor, i: usize| -> Result<Tensor> {
        let fixed = |name: &str| find(&lora, &format!("{i}.{name}")).get().detach();
        let [a, b] = &factors[i];
        let low = x.matmul(&a.t()?)?.matmul(&b.t()?)?.mul_scalar(6.0 / 2.0)?;
        x.matmul(&fixed("weight").t()?)?.add(&fixed("bias"))?.add(&low)
    };
    let y = layer(&layer(&again, 0).unwrap().tanh().unwrap(), 1).unwrap();
    close(&values(&lora.forward(&x).unwrap()), &values(&y), 1e-12, "outputs");
    y.mul(&weights).unwrap().sum().unwrap().backward().unwrap();
    close(&values(&x.grad().unwrap()), &values(&again.grad().unwrap()), 1e-12, "gradient of x");
    for (i, [a, b]) in factors.iter().enumerate() {
        for (part, want) in [("A", a), ("B", b)] {
            let name = format!("{i}.lora_{part}.weight");
            let (got, want) = (find(&lora, &name).get().grad().unwrap(), want.grad().unwrap());
            assert!(values(&want).iter().any(|g| g.abs() > 1e-3), "{name}");
            close(&values(&got), &values(&want), 1e-12, &name);
        }
        assert!(find(&lora, &format!("{i}.weight")).get().grad().is_none(), "weights are frozen");
    }
}

#[test]
fn merged_weights_give_the_same_outputs() {
    for d in devices() {
        let lora = adapted(&d, DType::F32);
        let x = Tensor::linspace(&d, DType::F32, -1.0, 1.0, 20).unwrap().reshape(&[5, 4]).unwrap();
        let before = values(&find(&lora, "0.weight").get());
        let want = values(&lora.forward(&x).unwrap());
        lora.merge().unwrap();
        lora.merge().unwrap();
        assert!(lora.is_merged());
        assert_ne!(values(&find(&lora, "0.weight").get()), before);
        close(&values(&lora.forward(&x).unwrap()), &want, 1e-5, "merged");
        assert!(lora.load_adapter_state(&lora.adapter_state()).is_err());
        lora.unmerge().unwrap();
        close(&values(&find(&lora, "0.weight").get()), &before, 1e-6, "unmerged");
        close(&values(&lora.forward(&x).unwrap()), &want, 1e-5, "unmerged");
        lora.merge().unwrap();
        close(&values(&lora.into_model().forward(&x).unwrap()), &want, 1e-5, "the model alone");
    }
}

#[test]
fn adapters_alone_are_trained_and_saved() {
    let folder = std::env::temp_dir().join(format!("trefoil-lora-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for d in devices() {
        let cx = InitContext::new(&d, 4);
        let lora = Lora::new(&cx, model(&cx).unwrap(), &config(3, &["*"])).unwrap();
        let frozen = |lora: &Lora<Sequential>| -> Vec<Vec<f64>> {
            let all = lora.named_parameters().into_iter().filter(|(_, p)| !p.requires_grad());
            all.map(|(_, p)| values(&p.get())).collect()
        };
        let before = frozen(&lora);
        let x = Tensor::linspace(&d, DType::F32, -1.0, 1.0, 32).unwrap().reshape(&[8, 4]).unwrap();
        let target = x.narrow(1, 0, 3).unwrap().square().unwrap();
        let mut optimizer = Optimizer::adam(&lora, 0.02).unwrap();
        let mut losses = vec![];
        for _ in 0..60 {
            optimizer.zero_grad().unwrap();
            let loss = MseLoss::default().forward(&lora.forward(&x).unwrap(), &target).unwrap();
            loss.backward().unwrap();
            optimizer.step().unwrap();
            losses.push(loss.item::<f32>().unwrap());
        }
        assert!(losses[59] < 0.3 * losses[0], "{losses:?}");
        assert_eq!(frozen(&lora), before, "what is frozen stays");

        let file = folder.join("adapter_model.safetensors");
        state_file::save(&lora.adapter_state(), &file, &Default::default()).unwrap();
        let other = InitContext::new(&d, 4);
        let fresh = Lora::new(&other, model(&other).unwrap(), &config(3, &["*"])).unwrap();
        let read = StateFile::open(&file).unwrap().state_dict(&d).unwrap();
        fresh.load_adapter_state(&read).unwrap();
        assert_eq!(values(&fresh.forward(&x).unwrap()), values(&lora.forward(&x).unwrap()));
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn projections_of_attention_are_adapted() {
    let d = cpu();
    let cx = InitContext::new(&d, 2);
    let layer = MultiHeadAttention::new(&cx, 8, 2).unwrap();
    let matrices: Vec<String> =
        layer.named_parameters().into_iter().filter(|(_, p)| p.get().rank() == 2).map(|(n, _)| n).collect();
    let lora = Lora::new(&cx, layer, &config(2, &["*"])).unwrap();
    assert_eq!(lora.adapter_state().len(), 2 * matrices.len());
    let x = tensor(&d, &[2, 3, 8], 3).to_dtype(DType::F32).unwrap();
    lora.forward(&x).unwrap().square().unwrap().sum().unwrap().backward().unwrap();
    for (name, p) in lora.named_parameters().iter().filter(|(n, _)| n.contains("lora_B")) {
        let g = p.get().grad().unwrap_or_else(|| panic!("{name} has no gradient"));
        assert!(values(&g).iter().any(|g| g.abs() > 1e-6), "{name}");
    }
}

#[test]
fn wrong_configurations_are_refused() {
    let d = cpu();
    let cx = InitContext::new(&d, 1);
    let refused = |c: LoraConfig, arg: &str| {
        let e = Lora::new(&cx, model(&cx).unwrap(), &c).unwrap_err();
        assert!(matches!(e, NnError::Gpu(_)) && e.to_string().contains(arg), "{e}");
    };
    refused(config(0, &["*"]), "rank");
    refused(LoraConfig { alpha: f64::NAN, ..config(1, &["*"]) }, "alpha");
    refused(config(1, &[]), "targets");
    refused(config(1, &["0", "no_such"]), "no_such");
    refused(config(1, &["*.bias"]), "*.bias");
    let lora = adapted(&d, DType::F32);
    let mut state = lora.adapter_state();
    let first = state.keys().next().unwrap().clone();
    let taken = state.remove(&first).unwrap();
    assert!(matches!(lora.load_adapter_state(&state), Err(NnError::StateNames { .. })));
    state.insert(first, taken.t().unwrap().contiguous().unwrap());
    assert!(matches!(lora.load_adapter_state(&state), Err(NnError::StateShape { .. })));
}

/// A run on values, with its folder.
fn run_with(f: &Folder, name: &str, more: Value) -> Value {
    let targets = f.floats("y.npy", &[N, 2], &noise(4, N * 2));
    let model = json!({ "layers": [
        { "type": "dense", "name": "body", "out_features": 5, "activation": "tanh" },
        { "type": "dense", "name": "head", "out_features": 2 } ] });
    let mut run = run_of(json!({ "npy": features(f), "targets": targets }), model);
    run["optimizer"] = json!({ "type": "adam", "lr": 0.02 });
    let train = run["train"].as_object_mut().unwrap();
    train.insert("epochs".into(), 5.into());
    train.insert("run".into(), f.at(name).into());
    train.extend(more.as_object().unwrap().clone());
    run
}

#[test]
fn a_run_adapts_the_weights_of_another_one() {
    for d in devices() {
        let f = Folder::new("lora");
        train_on(&d, &run_with(&f, "base", json!({}))).unwrap();
        let weights = f.at("base/best.safetensors");
        let lora = json!({ "rank": 2, "alpha": 4.0, "targets": ["body"], "modules_to_save": ["head.bias"], "weights": weights });
        let done = train_on(&d, &run_with(&f, "adapted", json!({ "lora": lora }))).unwrap();
        assert!(done.moved > 0.0);
        let base = SavedRun::open(f.at("base")).unwrap().state(Weights::Best).unwrap();
        let saved = SavedRun::open(f.at("adapted")).unwrap();
        let after = saved.state(Weights::Last).unwrap();
        let names: Vec<&str> = after.keys().map(String::as_str).collect();
        let adapters = ["body.lora_A.weight", "body.lora_B.weight"];
        assert_eq!(names, ["body.bias", adapters[0], adapters[1], "body.weight", "head.bias", "head.weight"]);
        let floats = |state: &std::collections::BTreeMap<String, trefoil_nn::HostTensor>, name: &str| {
            state[name].to_vec::<f32>().unwrap()
        };
        for name in ["body.weight", "body.bias", "head.weight"] {
            assert_eq!(floats(&after, name), floats(&base, name), "{name} is frozen");
        }
        assert_ne!(floats(&after, "head.bias"), floats(&base, "head.bias"));
        assert!(floats(&after, adapters[1]).iter().all(|&b| b != 0.0));
        // The folder is enough to make the network again, without the file of the weights.
        std::fs::remove_file(&weights).unwrap();
        let data = saved.data().unwrap();
        let sources = saved.config.sources(&data, &d).unwrap();
        let mut model = saved.config.model(&d, &sources).unwrap();
        saved.restore(&model, Weights::Last).unwrap();
        assert_eq!(values(&find(&model, adapters[1]).get()).len(), 10);
        let x = Tensor::linspace(&d, DType::F32, -1.0, 1.0, 8).unwrap().reshape(&[2, 4]).unwrap();
        let want = values(&model.forward(&x).unwrap());
        model.merge_adapters().unwrap();
        close(&values(&model.forward(&x).unwrap()), &want, 1e-5, "merged");
        assert!(model.named_state().iter().all(|(name, _)| !name.contains("lora")));
    }
}

#[test]
fn runs_that_cannot_adapt_say_why() {
    let f = Folder::new("lora-wrong");
    train(&run_with(&f, "base", json!({}))).unwrap();
    let refused = |lora: Value, what: &str| {
        let e = match train(&run_with(&f, "adapted", json!({ "lora": lora }))) {
            Err(e) => e.to_string(),
            Ok(_) => panic!("{what}: it ran"),
        };
        assert!(e.contains(what), "{what}: {e}");
    };
    refused(json!({ "rank": 0 }), "train.lora.rank");
    refused(json!({ "ranks": 1 }), "ranks");
    refused(json!({ "targets": ["tail"] }), "`tail`");
    refused(json!({ "modules_to_save": ["tail"] }), "train.lora.modules_to_save[0]");
    refused(json!({ "weights": f.at("none.safetensors") }), "none.safetensors");
    // A file without the frozen weights.
    let other = InitContext::new(&cpu(), 1);
    let path = f.at("other.safetensors");
    let state = Dense::new(&other, 4, 5).unwrap().state_dict().unwrap();
    state_file::save(&state, &path, &Default::default()).unwrap();
    refused(json!({ "weights": path }), "body.weight");
}
