//! `trefoil generate`: continues a text by the language model of a run.

use std::io::Write;

use trefoil_nn::config::ModelConfig;
use trefoil_nn::data::text::{Bytes, Characters, Encoding};
use trefoil_nn::models::Generation;
use trefoil_nn::network::Network;
use trefoil_nn::{DType, InitContext, Tensor};

use crate::backend::BackendArg;
use crate::error::{CliError, Result};
use crate::saved::SavedArgs;

/// Arguments of `generate`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  trefoil generate runs/text --prompt \"Once upon\"
  trefoil generate runs/text --prompt \"Once upon\" --tokens 500 --temperature 0.8 --seed 3
  trefoil generate runs/text --prompt \"Once upon\" --greedy    the likeliest token each time

For runs on `text`. Tokens are drawn from the network's distribution; the choices are those of transformers' generate. At each step the network
sees as many of the last tokens as it was trained on at once (data.length).")]
pub(crate) struct Args {
    #[command(flatten)]
    saved: SavedArgs,
    #[command(flatten)]
    backend: BackendArg,
    /// The text to continue
    #[arg(long, value_name = "TEXT")]
    prompt: String,
    /// Tokens to add
    #[arg(long, value_name = "N", default_value_t = 200)]
    tokens: usize,
    /// The likeliest token each time, instead of draws
    #[arg(long, conflicts_with_all = ["temperature", "top_k", "top_p", "min_p", "seed"])]
    greedy: bool,
    /// Divides the logits: below 1 likelier tokens, above 1 more variety
    #[arg(long, value_name = "T", default_value_t = 1.0)]
    temperature: f64,
    /// Draw among so many likeliest tokens
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Draw among the likeliest tokens that together have this probability
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    top_p: f64,
    /// Draw among the tokens that have at least this share of the largest probability
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    min_p: f64,
    /// Makes tokens that the text has less likely: above 1 fewer repetitions
    #[arg(long, value_name = "F", default_value_t = 1.0)]
    repetition_penalty: f64,
    /// Seed of the draws
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

#[cfg(feature = "tokenizers")]
fn tokenizer(file: &str) -> Result<Box<dyn Encoding>> {
    Ok(Box::new(trefoil_nn::data::text::Tokenizer::open(file)?))
}

#[cfg(not(feature = "tokenizers"))]
fn tokenizer(_file: &str) -> Result<Box<dyn Encoding>> {
    Err(CliError::Input(
        "the run uses a tokenizer, which this build has not: build it with `--features tokenizers`".into(),
    ))
}

pub(crate) fn run(a: &Args, out: &mut dyn Write) -> Result<()> {
    let run = a.saved.open()?;
    let (config, data) = (&run.config, run.config.data.json());
    let (kind, ModelConfig::Network(network)) = (config.data.kind(), &config.model) else {
        return Err(CliError::Input(format!("{} describes no network", run.folder.display())));
    };
    if kind != "text" {
        let text = format!(
            "generate: expected a run on `text`, got one on `{kind}` ({}); `trefoil predict` is for rows",
            run.folder.display()
        );
        return Err(CliError::Input(text));
    }
    let encoding: Box<dyn Encoding> = match (&run.mapping.vocabulary, data["tokenizer"].as_str()) {
        (Some(characters), _) => Box::new(Characters::of(characters)),
        (None, Some(file)) => tokenizer(file)?,
        (None, None) => Box::new(Bytes),
    };
    let ids: Vec<i64> = encoding.encode(&a.prompt)?.into_iter().map(i64::from).collect();
    if ids.is_empty() {
        return Err(CliError::Input("--prompt: expected at least one token, got an empty text".into()));
    }
    let length = data["length"].as_u64().unwrap_or(1) as usize;
    let device = a.backend.open()?;
    let cx = InitContext::new(&device, config.train.seed).dtype(config.train.precision.dtype());
    let mut model = Network::for_items(&cx, network, "model", &[(&[length], DType::I64)])?;
    config.adapt(&cx, &mut model)?;
    run.restore(&model, a.saved.weights())?;
    let mut options = match a.greedy {
        true => Generation::greedy(a.tokens),
        false => {
            let sampled = Generation::sampled(a.tokens, a.seed);
            sampled.temperature(a.temperature).top_p(a.top_p).min_p(a.min_p)
        }
    };
    (options.top_k, options.repetition_penalty) = (a.top_k, a.repetition_penalty);
    let prompt = Tensor::from_slice(&device, &ids, &[1, ids.len()])?;
    let all = options.continued(&model, &prompt, length)?.to_vec::<i64>()?;
    let all: Vec<u32> = all.into_iter().filter_map(|i| u32::try_from(i).ok()).collect();
    writeln!(out, "{}", encoding.decode(&all)?)?;
    Ok(())
}
