//! Transformers and LSTM language models against transformers and PyTorch (`golden/models.py`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::common::everywhere::{resident, values};
use crate::common::layers::refused;
use crate::common::{close, cpu, devices, id};
use serde_json::{Map, Value};
use trefoil::{DType, Engine};
use trefoil_nn::models::*;
use trefoil_nn::{Device, InitContext, Layer, LayerExt, Result, StateDict, StateFile, Tensor, autograd};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// One configuration of a model.
struct Case {
    name: String,
    config: Map<String, Value>,
    inputs: Vec<String>,
    tensors: StateDict,
}

impl Case {
    fn all(model: &str, d: &Device) -> Vec<Case> {
        let text = std::fs::read(golden(&format!("models-{model}.json"))).unwrap();
        let list: Vec<Map<String, Value>> = serde_json::from_slice(&text).unwrap();
        let file = StateFile::open(golden(&format!("models-{model}.safetensors"))).unwrap();
        let tensors = file.state_dict(d).unwrap();
        let case = |c: Map<String, Value>| Case {
            name: c["name"].as_str().unwrap().into(),
            config: c["config"].as_object().unwrap().clone(),
            inputs: serde_json::from_value(c["inputs"].clone()).unwrap(),
            tensors: tensors.clone(),
        };
        list.into_iter().map(case).collect()
    }

    fn group(&self, group: &str) -> StateDict {
        let prefix = format!("{}|{group}|", self.name);
        let part = |(n, t): (&String, &Tensor)| Some((n.strip_prefix(&prefix)?.to_string(), t.clone()));
        self.tensors.iter().filter_map(part).collect()
    }

    fn size(&self, key: &str) -> usize {
        self.config[key].as_u64().unwrap() as usize
    }

    fn sizes(&self, key: &str) -> [usize; 2] {
        serde_json::from_value(self.config[key].clone()).unwrap()
    }

    fn number(&self, key: &str, default: f64) -> f64 {
        self.config.get(key).map_or(default, |v| v.as_f64().unwrap())
    }

    fn flag(&self, key: &str) -> bool {
        self.config.get(key) == Some(&Value::Bool(true))
    }
}

/// A model as the tests see it.
trait Loaded: Layer + Sized {
    fn load(cx: &InitContext, case: &Case) -> Result<Self>;
    fn file(&self) -> Result<StateDict>;
    fn continued(&self, _prompt: &Tensor, _options: &Generation) -> Option<Result<Tensor>> {
        None
    }
}

impl Loaded for Gpt2 {
    fn load(cx: &InitContext, c: &Case) -> Result<Self> {
        let config = Gpt2Config {
            vocab_size: c.size("vocab_size"),
            n_positions: c.size("n_positions"),
            n_embd: c.size("n_embd"),
            n_layer: c.size("n_layer"),
            n_head: c.size("n_head"),
            n_inner: c.size("n_inner"),
            layer_norm_epsilon: c.number("layer_norm_epsilon", 1e-5),
            ..Gpt2Config::small()
        };
        Gpt2::from_hugging_face(cx, &config, &c.group("state"))
    }
    fn file(&self) -> Result<StateDict> {
        self.to_hugging_face()
    }
    fn continued(&self, prompt: &Tensor, options: &Generation) -> Option<Result<Tensor>> {
        Some(self.generate(prompt, options))
    }
}

impl Loaded for Llama {
    fn load(cx: &InitContext, c: &Case) -> Result<Self> {
        let config = LlamaConfig {
            vocab_size: c.size("vocab_size"),
            hidden_size: c.size("hidden_size"),
            intermediate_size: c.size("intermediate_size"),
            num_hidden_layers: c.size("num_hidden_layers"),
            num_attention_heads: c.size("num_attention_heads"),
            num_key_value_heads: c.size("num_key_value_heads"),
            max_position_embeddings: c.size("max_position_embeddings"),
            rms_norm_eps: c.number("rms_norm_eps", 1e-6),
            rope_theta: c.number("rope_theta", 1e4),
            rope_scaling: c.config.get("rope_scaling").map(|s| serde_json::from_value(s.clone()).unwrap()),
            tie_word_embeddings: c.flag("tie_word_embeddings"),
            initializer_range: 0.02,
        };
        Llama::from_hugging_face(cx, &config, &c.group("state"))
    }
    fn file(&self) -> Result<StateDict> {
        self.to_hugging_face()
    }
    fn continued(&self, prompt: &Tensor, options: &Generation) -> Option<Result<Tensor>> {
        Some(self.generate(prompt, options))
    }
}

impl Loaded for MambaLanguageModel {
    fn load(cx: &InitContext, c: &Case) -> Result<Self> {
        let or = |key: &str, plain: usize| c.config.get(key).map_or(plain, |_| c.size(key));
        let config = MambaConfig {
            vocab_size: c.size("vocab_size"),
            hidden_size: c.size("hidden_size"),
            state_size: c.size("state_size"),
            num_hidden_layers: c.size("num_hidden_layers"),
            expand: or("expand", 2),
            conv_kernel: or("conv_kernel", 4),
            time_step_rank: c.config.get("time_step_rank").map(|_| c.size("time_step_rank")),
            layer_norm_epsilon: c.number("layer_norm_epsilon", 1e-5),
            tie_word_embeddings: !c.config.contains_key("tie_word_embeddings"),
            initializer_range: 0.1,
        };
        MambaLanguageModel::from_hugging_face(cx, &config, &c.group("state"))
    }
    fn file(&self) -> Result<StateDict> {
        self.to_hugging_face()
    }
    fn continued(&self, prompt: &Tensor, options: &Generation) -> Option<Result<Tensor>> {
        Some(self.generate(prompt, options))
    }
}

impl Loaded for Bert {
    fn load(cx: &InitContext, c: &Case) -> Result<Self> {
        let config = BertConfig {
            vocab_size: c.size("vocab_size"),
            hidden_size: c.size("hidden_size"),
            num_hidden_layers: c.size("num_hidden_layers"),
            num_attention_heads: c.size("num_attention_heads"),
            intermediate_size: c.size("intermediate_size"),
            max_position_embeddings: c.size("max_position_embeddings"),
            layer_norm_eps: c.number("layer_norm_eps", 1e-12),
            pad_token_id: c.number("pad_token_id", 0.0) as i64,
            ..BertConfig::base_uncased()
        };
        Bert::from_hugging_face(cx, &config, &c.group("state"))
    }
    fn file(&self) -> Result<StateDict> {
        self.to_hugging_face()
    }
}

impl Loaded for VisionTransformer {
    fn load(cx: &InitContext, c: &Case) -> Result<Self> {
        let config = VisionTransformerConfig {
            image_size: c.sizes("image_size"),
            patch_size: c.sizes("patch_size"),
            num_channels: c.size("num_channels"),
            hidden_size: c.size("hidden_size"),
            num_hidden_layers: c.size("num_hidden_layers"),
            num_attention_heads: c.size("num_attention_heads"),
            intermediate_size: c.size("intermediate_size"),
            layer_norm_eps: c.number("layer_norm_eps", 1e-12),
            num_labels: c.size("num_labels"),
            ..VisionTransformerConfig::base_patch16_224()
        };
        VisionTransformer::from_hugging_face(cx, &config, &c.group("state"))
    }
    fn file(&self) -> Result<StateDict> {
        self.to_hugging_face()
    }
}

impl Loaded for LstmLanguageModel {
    fn load(cx: &InitContext, c: &Case) -> Result<Self> {
        let config = LstmLanguageModelConfig {
            vocab_size: c.size("vocab_size"),
            embedding_dim: c.size("embedding_dim"),
            hidden_size: c.size("hidden_size"),
            num_layers: c.size("num_layers"),
            dropout: 0.5,
            tie_weights: c.flag("tie_weights"),
        };
        let model = LstmLanguageModel::new(cx, &config)?;
        let convert = |(n, t): (String, Tensor)| Ok((n, t.to_dtype(cx.param_dtype())?));
        model.load_state_dict(&c.group("state").into_iter().map(convert).collect::<Result<_>>()?)?;
        Ok(model)
    }
    fn file(&self) -> Result<StateDict> {
        self.state_dict()
    }
    fn continued(&self, prompt: &Tensor, options: &Generation) -> Option<Result<Tensor>> {
        Some(self.generate(prompt, options))
    }
}

fn compare(what: &str, got: &StateDict, want: &StateDict, tolerance: f64) {
    assert_eq!(got.keys().collect::<Vec<_>>(), want.keys().collect::<Vec<_>>(), "{what}");
    for (name, t) in got {
        assert_eq!(t.shape(), want[name].shape(), "{what}: {name}");
        close(&values(t), &values(&want[name]), tolerance, &format!("{what}: {name}"));
    }
}

/// Outputs by number.
fn listed(outputs: &[Tensor]) -> StateDict {
    outputs.iter().enumerate().map(|(i, y)| (i.to_string(), y.clone())).collect()
}

/// Outputs, gradients, the file and greedy continuations of all configurations.
fn agrees<M: Loaded>(model: &str) {
    for d in devices() {
        // The other devices run one configuration: their kernels have golden cases of their own.
        let count = if id(&d) == id(&cpu()) { usize::MAX } else { 1 };
        for case in Case::all(model, &d).iter().take(count) {
            check::<M>(case, &d);
        }
    }
}

fn check<M: Loaded>(case: &Case, d: &Device) {
    let what = format!("{} on {}", case.name, id(d));
    let cx = InitContext::new(d, 1);
    let model = M::load(&cx, case).unwrap_or_else(|e| panic!("{what}: {e}"));
    model.eval();
    compare(&what, &model.file().unwrap(), &case.group("state"), 0.0);

    let given = case.group("in");
    let inputs: Vec<Tensor> = case.inputs.iter().map(|n| given[n].clone()).collect();
    let upstream = case.group("dout");
    let pass = || -> Result<Vec<Tensor>> {
        let outputs = model.forward_all(&inputs)?;
        let roots: Vec<_> = outputs
            .iter()
            .enumerate()
            .filter_map(|(i, y)| Some((y, Some(upstream.get(&i.to_string())?))))
            .collect();
        autograd::backward(&roots, false)?;
        Ok(outputs.iter().take(upstream.len()).cloned().collect())
    };
    let outputs = pass().unwrap_or_else(|e| panic!("{what}: {e}"));
    compare(&format!("{what}, outputs"), &listed(&outputs), &case.group("out"), 2e-5);

    // Gradients in the places of the parameters have the file's names.
    let twin = M::load(&cx, case).unwrap();
    let grads: StateDict =
        model.named_parameters().into_iter().map(|(n, p)| (n, p.get().grad().unwrap())).collect();
    twin.load_state_dict(&grads).unwrap();
    compare(&format!("{what}, gradients"), &twin.file().unwrap(), &case.group("grad"), 1e-4);

    model.zero_grad().unwrap();
    resident(&what, d, || pass().map(drop)).unwrap();

    if let (Some(prompt), Some(want)) =
        (case.group("generated").get("prompt"), case.group("generated").get("all"))
    {
        let new = want.shape()[1] - prompt.shape()[1];
        let all = resident(&what, d, || model.continued(prompt, &Generation::greedy(new))).unwrap().unwrap();
        assert_eq!(values(&all), values(want), "{what}: generated");
    }
}

#[test]
fn gpt2_agrees_with_transformers() {
    agrees::<Gpt2>("gpt2");
}

#[test]
fn llama_agrees_with_transformers() {
    agrees::<Llama>("llama");
}

#[test]
fn mamba_agrees_with_transformers() {
    agrees::<MambaLanguageModel>("mamba");
}

#[test]
fn bert_agrees_with_transformers() {
    agrees::<Bert>("bert");
}

#[test]
fn vision_transformer_agrees_with_transformers() {
    agrees::<VisionTransformer>("vit");
}

#[test]
fn lstm_language_model_agrees_with_pytorch() {
    agrees::<LstmLanguageModel>("lstm");
}

#[test]
fn models_run_in_every_float() {
    fn run<M: Loaded>(model: &str) {
        let case = Case::all(model, &cpu()).remove(0);
        let inputs: Vec<Tensor> = case.group("in").into_values().collect();
        for (dtype, tolerance) in [(DType::F64, 1e-5), (DType::F16, 0.02), (DType::Bf16, 0.15)] {
            let m = M::load(&InitContext::new(&cpu(), 1).dtype(dtype), &case).unwrap();
            m.eval();
            let cast = |t: &Tensor| if t.dtype().is_float() { t.to_dtype(dtype).unwrap() } else { t.clone() };
            let y = m.forward(&cast(&inputs[0])).unwrap();
            assert_eq!(y.dtype(), dtype, "{model}");
            close(&values(&y), &values(&case.group("out")["0"]), tolerance, &format!("{model} in {dtype}"));
            let dy = case.group("dout")["0"].to_dtype(dtype).unwrap();
            y.backward_with(&dy).unwrap();
        }
    }
    run::<Gpt2>("gpt2");
    run::<Llama>("llama");
    run::<MambaLanguageModel>("mamba");
    run::<Bert>("bert");
    run::<VisionTransformer>("vit");
    run::<LstmLanguageModel>("lstm");
}

/// Names and shapes of well-known models, made from the configurations of transformers.
#[test]
fn presets_have_the_tensors_of_the_models_they_name() {
    let device: Device = Arc::new(Engine::shapes());
    let text = std::fs::read(golden("models-presets.json")).unwrap();
    let lists: BTreeMap<String, BTreeMap<String, Vec<usize>>> = serde_json::from_slice(&text).unwrap();
    type Load<'a> = &'a dyn Fn(&InitContext, &StateDict) -> Result<(usize, StateDict)>;
    let check = |name: &str, count: usize, load: Load<'_>| {
        // Files have other dtypes than models.
        let empty = |shape: &[usize]| Tensor::empty(&device, DType::F16, shape).unwrap();
        let state: StateDict = lists[name].iter().map(|(n, s)| (n.clone(), empty(s))).collect();
        let (parameters, file) =
            load(&InitContext::new(&device, 1), &state).unwrap_or_else(|e| panic!("{name}: {e}"));
        let shapes: BTreeMap<String, Vec<usize>> =
            file.into_iter().map(|(n, t)| (n, t.shape().to_vec())).collect();
        assert_eq!(shapes, lists[name], "{name}");
        assert_eq!(parameters, count, "{name}");
        // A tensor less is refused.
        let short: StateDict = state.into_iter().skip(1).collect();
        assert!(load(&InitContext::new(&device, 1), &short).is_err(), "{name}");
    };
    check("gpt2", 124_439_808, &|cx, state| {
        let m = Gpt2::from_hugging_face(cx, &Gpt2Config::small(), state)?;
        Ok((m.num_parameters(), m.to_hugging_face()?))
    });
    check("bert-base-uncased", 109_482_240, &|cx, state| {
        let m = Bert::from_hugging_face(cx, &BertConfig::base_uncased(), state)?;
        Ok((m.num_parameters(), m.to_hugging_face()?))
    });
    check("vit-base-patch16-224", 86_567_656, &|cx, state| {
        let m =
            VisionTransformer::from_hugging_face(cx, &VisionTransformerConfig::base_patch16_224(), state)?;
        Ok((m.num_parameters(), m.to_hugging_face()?))
    });
    check("Llama-3.2-1B", 1_235_814_400, &|cx, state| {
        let m = Llama::from_hugging_face(cx, &LlamaConfig::llama3_2_1b(), state)?;
        Ok((m.num_parameters(), m.to_hugging_face()?))
    });
    check("mamba-130m", 129_135_360, &|cx, state| {
        let m = MambaLanguageModel::from_hugging_face(cx, &MambaConfig::mamba_130m(), state)?;
        Ok((m.num_parameters(), m.to_hugging_face()?))
    });
    check("TinyLlama-1.1B", 1_100_048_384, &|cx, state| {
        let m = Llama::from_hugging_face(cx, &LlamaConfig::tiny_llama_1b(), state)?;
        Ok((m.num_parameters(), m.to_hugging_face()?))
    });
}

#[test]
fn sizes_of_other_presets() {
    let cx = InitContext::new(&(Arc::new(Engine::shapes()) as Device), 1);
    for (config, count) in [
        (Gpt2Config::medium(), 354_823_168),
        (Gpt2Config::large(), 774_030_080),
        (Gpt2Config::xl(), 1_557_611_200),
    ] {
        assert_eq!(Gpt2::new(&cx, &config).unwrap().num_parameters(), count);
    }
    for (config, count) in [
        (LlamaConfig::llama2_7b(), 6_738_415_616),
        (LlamaConfig::llama3_8b(), 8_030_261_248),
        (LlamaConfig::llama3_1_8b(), 8_030_261_248),
    ] {
        assert_eq!(Llama::new(&cx, &config).unwrap().num_parameters(), count);
    }
    for (config, count) in
        [(BertConfig::base_cased(), 108_310_272), (BertConfig::large_uncased(), 335_141_888)]
    {
        assert_eq!(Bert::new(&cx, &config).unwrap().num_parameters(), count);
    }
    let large = VisionTransformerConfig::large_patch16_224();
    assert_eq!(VisionTransformer::new(&cx, &large).unwrap().num_parameters(), 304_326_632);
    let (medium, large) =
        (LstmLanguageModelConfig::penn_treebank_medium(), LstmLanguageModelConfig::penn_treebank_large());
    assert_eq!(LstmLanguageModel::new(&cx, &medium).unwrap().num_parameters(), 19_780_400);
    assert_eq!(LstmLanguageModel::new(&cx, &large).unwrap().num_parameters(), 66_034_000);
}

#[test]
fn files_of_other_versions_load() {
    // Masks, the table under a second name, no prefix.
    let case = Case::all("gpt2", &cpu()).remove(0);
    let d = cpu();
    let mut other = Case::all("gpt2", &d).remove(0);
    let prefix = format!("{}|state|", case.name);
    let put = |tensors: &mut StateDict, name: &str, t: Tensor| tensors.insert(format!("{prefix}{name}"), t);
    other.tensors = case
        .tensors
        .iter()
        .map(|(n, t)| {
            (n.replace("|state|transformer.", "|state|"), t.to_dtype(DType::Bf16).unwrap_or(t.clone()))
        })
        .collect();
    put(&mut other.tensors, "h.0.attn.bias", Tensor::ones(&d, DType::U8, &[1, 1, 12, 12]).unwrap());
    put(&mut other.tensors, "h.1.attn.masked_bias", Tensor::ones(&d, DType::F32, &[1]).unwrap());
    put(&mut other.tensors, "lm_head.weight", case.group("state")["transformer.wte.weight"].clone());
    let cx = InitContext::new(&d, 2);
    let (a, b) = (Gpt2::load(&cx, &case).unwrap(), Gpt2::load(&cx, &other).unwrap());
    compare("a file in bf16", &b.state_dict().unwrap(), &a.state_dict().unwrap(), 0.01);

    let case = Case::all("bert", &cpu()).remove(0);
    let mut other = Case::all("bert", &cpu()).remove(0);
    let older = |n: &str| {
        n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
    };
    other.tensors = case.tensors.iter().map(|(n, t)| (older(n), t.clone())).collect();
    let head = format!("{}|state|cls.seq_relationship.bias", case.name);
    other.tensors.insert(head, Tensor::ones(&d, DType::F32, &[2]).unwrap());
    let (a, b) = (Bert::load(&cx, &case).unwrap(), Bert::load(&cx, &other).unwrap());
    compare("older names", &b.state_dict().unwrap(), &a.state_dict().unwrap(), 0.0);
}

#[test]
fn bert_and_vision_transformer_refuse_what_does_not_fit() {
    let case = Case::all("bert", &cpu()).remove(1);
    let cx = InitContext::new(&cpu(), 1);
    let bert = Bert::load(&cx, &case).unwrap();
    bert.eval();
    let x = case.group("in");
    let (tokens, mask) = (&x["ids"], &x["attention_mask"]);
    // What padding stands for changes nothing.
    let other = tokens.add(&mask.eq_scalar(0.0).unwrap().to_dtype(DType::I64).unwrap()).unwrap();
    let pooled = |t: &Tensor| values(&bert.encode(t, None, Some(mask)).unwrap().1);
    assert_eq!(pooled(tokens), pooled(&other));
    refused(bert.encode(tokens, Some(&mask.narrow(1, 0, 2).unwrap()), None), &["Bert", "token_type_ids"]);
    refused(
        bert.encode(tokens, None, Some(&mask.to_dtype(DType::F32).unwrap())),
        &["Bert", "attention_mask"],
    );
    refused(bert.forward(&mask.to_dtype(DType::F32).unwrap()), &["Bert", "ids"]);
    refused(bert.forward_all(&[]), &["Bert", "inputs"]);
    let config = BertConfig { pad_token_id: 20, vocab_size: 20, ..BertConfig::base_uncased() };
    refused(
        Bert::new(&InitContext::new(&(Arc::new(Engine::shapes()) as Device), 1), &config),
        &["padding_idx"],
    );

    let vit = VisionTransformer::load(&cx, &Case::all("vit", &cpu()).remove(0)).unwrap();
    let image = |shape: &[usize]| Tensor::zeros(&cpu(), DType::F32, shape).unwrap();
    refused(vit.forward(&image(&[1, 3, 8, 4])), &["VisionTransformer", "[B, 3, 8, 8]"]);
    refused(vit.forward(&image(&[3, 8, 8])), &["VisionTransformer", "images"]);
    for patch_size in [[3, 4], [0, 4], [16, 8]] {
        let config = VisionTransformerConfig { patch_size, image_size: [8, 8], ..vit.config().clone() };
        refused(VisionTransformer::new(&cx, &config), &["VisionTransformer", "patch_size"]);
    }
    let widths = LstmLanguageModelConfig {
        embedding_dim: 3,
        tie_weights: true,
        ..LstmLanguageModelConfig::penn_treebank_medium()
    };
    refused(LstmLanguageModel::new(&cx, &widths), &["LstmLanguageModel", "embedding_dim", "tied"]);
    refused(Gpt2::new(&cx, &Gpt2Config { n_layer: 0, ..Gpt2Config::small() }), &["Gpt2", "n_layer"]);
}

#[test]
fn residual_projections_of_gpt2_start_narrower() {
    let model = Gpt2::new(
        &InitContext::new(&cpu(), 1),
        &Gpt2Config {
            vocab_size: 50,
            n_embd: 64,
            n_layer: 8,
            n_head: 4,
            n_inner: 256,
            ..Gpt2Config::small()
        },
    )
    .unwrap();
    let deviation = |name: &str| {
        let state = model.state_dict().unwrap();
        let v = values(&state[name]);
        (v.iter().map(|x| x * x).sum::<f64>() / v.len() as f64).sqrt()
    };
    for (name, std) in [
        ("wte.weight", 0.02),
        ("h.3.linear1.weight", 0.02),
        ("h.3.linear2.weight", 0.005),
        ("h.7.self_attn.out_proj.weight", 0.005),
    ] {
        assert!((deviation(name) / std - 1.0).abs() < 0.05, "{name}: {}", deviation(name));
    }
}
