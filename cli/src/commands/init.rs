//! `trefoil init`: a training run to start from, fitted to data that is there.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use trefoil_nn::config::{Column, Config};
use trefoil_nn::data::table::{Categories, ColumnRole, Missing, Table, TableFormat, TableOptions, Target};
use trefoil_nn::data::text::{Characters, Encoding, read_text};
use trefoil_nn::data::{GraphData, GraphOptions, MeshLabels, mesh_files};

use crate::error::{CliError, Result};
use crate::saved::write_new;

/// Arguments of `init`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  trefoil init csv data/digits.csv                     a classifier of the last column
  trefoil init csv houses.csv --label price --values   a regression of the column `price`
  trefoil init parquet houses.parquet                  a table in Parquet; of Arrow and Feather: init arrow
  trefoil init images photos                           a folder with a folder per class
  trefoil init text book.txt                           a language model of characters
  trefoil init graph edges.csv --labels labels.csv     classes of the nodes of a graph
  trefoil init meshes shapes                           a folder of meshes (.obj, .off) with a folder per class

The data is read once, for its columns, classes and sizes. The file says what there is to change; `trefoil train FILE` runs it as it is.")]
pub(crate) struct Args {
    /// What the data is
    #[arg(value_parser = ["csv", "parquet", "arrow", "images", "text", "graph", "meshes"])]
    kind: String,
    /// The data: a file, of images and meshes a folder of folders, of a graph the file of its edges
    data: PathBuf,
    /// The file to write; it must not be there yet
    #[arg(short, long, value_name = "FILE", default_value = "run.json")]
    out: PathBuf,
    /// Column of the targets of a table: a name, or a number from 0 [default: the last]
    #[arg(long, value_name = "COLUMN")]
    label: Option<String>,
    /// The targets of a table are values, not classes
    #[arg(long)]
    values: bool,
    /// A column of a table that is left out: a name, or a number from 0; may be given several times
    #[arg(long, value_name = "COLUMN")]
    drop: Vec<String>,
    /// The file of nodes and their classes, of a graph, or of meshes and theirs
    #[arg(long, value_name = "FILE")]
    labels: Option<PathBuf>,
}

/// A column as it stands in JSON: a number from 0, or a name.
fn named(text: &str) -> Value {
    text.parse::<usize>().map_or_else(|_| json!(text), |i| json!(i))
}

fn column(option: &str, json: &Value) -> Result<Column> {
    Column::try_from(json.clone()).map_err(|e| CliError::Input(format!("{option}: {e}")))
}

/// A run of perceptrons on a table.
fn table(a: &Args, format: TableFormat) -> Result<Value> {
    let label = a.label.as_deref().map_or(json!("last"), named);
    let target = if a.values { Target::Value } else { Target::Class };
    let drop: Vec<Value> = a.drop.iter().map(|text| named(text)).collect();
    let options = TableOptions {
        format,
        target: target(column("--label", &label)?),
        categories: Categories::Auto,
        missing: Missing::Mean,
        drop: drop.iter().map(|c| column("--drop", c)).collect::<Result<_>>()?,
        ..TableOptions::default()
    };
    let table = Table::read(&a.data, &options, &mut Err)?;
    let mut data = json!({ &a.kind: a.data, "label": label, "split": "random", "test_share": 0.2 });
    let text = table.schema.columns.iter().any(|c| matches!(c.role, ColumnRole::Category { .. }));
    if text {
        data["categorical"] = json!("auto");
    }
    data["missing"] = json!("mean");
    if !drop.is_empty() {
        data["drop"] = Value::Array(drop);
    }
    let outputs = match (a.values, table.classes.iter().max()) {
        (true, _) => {
            data["target"] = json!("value");
            1
        }
        (false, most) => most.map_or(1, |&m| m + 1),
    };
    let most = table.features.iter().fold(0f32, |m, x| m.max(x.abs()));
    if most > 10.0 && !text {
        // Networks learn best from numbers of about 1.
        data["scale"] = json!(1.0 / f64::from(most));
    }
    Ok(json!({
        "data": data,
        "model": { "layers": [
            { "type": "dense", "out_features": 64, "activation": "relu" },
            { "type": "dense", "out_features": 64, "activation": "relu" },
            { "type": "dense", "out_features": outputs }
        ] },
        "loss": if a.values { "mse" } else { "cross_entropy" },
        "optimizer": { "type": "adamw", "lr": 0.002 },
        "schedule": { "type": "cosine" },
        "train": { "epochs": 50, "batch_size": 32, "seed": 1, "run": run_folder(&a.data) }
    }))
}

/// A small convolutional network on images of 64 by 64.
fn images(a: &Args) -> Result<Value> {
    let entries = std::fs::read_dir(&a.data).map_err(CliError::file("read", &a.data))?;
    let classes = entries.flatten().filter(|e| e.path().is_dir()).count();
    if classes < 2 {
        let text = format!(
            "init: expected a folder with a folder per class in {}, got {classes} folders",
            a.data.display()
        );
        return Err(CliError::Input(text));
    }
    let conv = |n: usize| json!({ "type": "convolutional", "out_channels": n, "kernel_size": 3, "padding": 1, "activation": "relu" });
    let pool = json!({ "type": "pooling", "mode": "max", "kernel_size": 2 });
    Ok(json!({
        "data": { "images": a.data, "size": [64, 64], "scale": 1.0 / 255.0, "test_share": 0.2 },
        "model": { "layers": [
            conv(16), pool, conv(32), pool, conv(64), pool,
            { "type": "flatten" },
            { "type": "dense", "out_features": 64, "activation": "relu" },
            { "type": "dense", "out_features": classes }
        ] },
        "loss": "cross_entropy",
        "optimizer": { "type": "adamw", "lr": 0.001 },
        "schedule": { "type": "cosine" },
        "train": { "epochs": 30, "batch_size": 32, "seed": 1, "run": run_folder(&a.data) }
    }))
}

/// A recurrent language model of characters.
fn text(a: &Args) -> Result<Value> {
    let written = read_text(&a.data)?;
    let size = Characters::of(&written).size();
    let length = 64.min(written.chars().count() / 8).max(1);
    Ok(json!({
        "data": { "text": a.data, "length": length, "test_share": 0.1 },
        "model": { "layers": [
            { "type": "embedding", "num_embeddings": size, "embedding_dim": 32 },
            { "type": "lstm", "input_size": 32, "hidden_size": 128 },
            { "type": "dense", "out_features": size }
        ] },
        "loss": "cross_entropy",
        "optimizer": { "type": "adam", "lr": 0.005 },
        "schedule": { "type": "cosine" },
        "metrics": ["perplexity"],
        "train": { "epochs": 20, "batch_size": 16, "seed": 1, "clip_norm": 1.0, "run": run_folder(&a.data) }
    }))
}

/// Two graph convolutions on the nodes of a graph.
fn graph(a: &Args) -> Result<Value> {
    let Some(labels) = &a.labels else {
        return Err(CliError::Input(
            "init graph: expected --labels FILE with the nodes and their classes, got none".into(),
        ));
    };
    let options = GraphOptions { undirected: true, ..GraphOptions::default() };
    let graph = GraphData::read_csv(&a.data, None, &options)?;
    let items = graph.labels(labels, &options)?;
    let classes = items.y().to_vec::<i64>()?.into_iter().max().unwrap_or(0) + 1;
    let nodes = graph.nodes();
    Ok(json!({
        "data": { "graph": a.data, "labels": labels, "undirected": true, "split": "random", "test_share": 0.5 },
        "model": {
            "inputs": { "x": [nodes], "edge_index": { "shape": [-1], "dtype": "i64" } },
            "layers": [
                { "type": "graph_convolutional", "name": "first", "inputs": ["x", "edge_index"], "in_features": nodes, "out_features": 16, "activation": "relu" },
                { "type": "graph_convolutional", "name": "second", "inputs": ["first", "edge_index"], "in_features": 16, "out_features": classes }
            ]
        },
        "loss": "cross_entropy",
        "optimizer": { "type": "adam", "lr": 0.01 },
        "train": { "epochs": 100, "batch_size": 32, "seed": 1, "run": run_folder(&a.data) }
    }))
}

/// Two convolutions of the edges of meshes, and the mean of each mesh.
fn meshes(a: &Args) -> Result<Value> {
    let files = mesh_files(std::slice::from_ref(&a.data))?;
    let found = match &a.labels {
        Some(labels) => MeshLabels::read_csv(labels, &files, None, ',', None)?,
        None => MeshLabels::of_folders(&files)?,
    };
    let classes = found.classes.iter().max().map_or(1, |most| most + 1);
    let index = |shape: Value| json!({ "shape": shape, "dtype": "i64" });
    let mut data = json!({ "meshes": a.data, "split": "random", "test_share": 0.25 });
    if let Some(labels) = &a.labels {
        data["labels"] = json!(labels);
    }
    Ok(json!({
        "data": data,
        "model": {
            "inputs": { "x": [5], "gemm": index(json!([4])), "mesh": index(json!([])) },
            "layers": [
                { "type": "mesh_edge_conv", "name": "first", "inputs": ["x", "gemm"], "in_channels": 5, "out_channels": 16 },
                { "type": "mesh_edge_conv", "name": "second", "inputs": ["first", "gemm"], "in_channels": 16, "out_channels": 16 },
                { "type": "readout", "inputs": ["second", "mesh"], "in_features": 16, "out_features": classes, "mode": "mean",
                  "num_graphs": files.len() }
            ]
        },
        "loss": "cross_entropy",
        "optimizer": { "type": "adam", "lr": 0.01 },
        "train": { "epochs": 60, "batch_size": found.meshes.len(), "seed": 1, "run": run_folder(&a.data) }
    }))
}

/// `runs/NAME` for a file of that name.
fn run_folder(data: &Path) -> String {
    let name = data.file_stem().map_or("run".into(), |n| n.to_string_lossy());
    format!("runs/{name}")
}

/// JSON with a line per section, layer and other list entry.
fn layout(json: &Value) -> String {
    let sections = json.as_object().into_iter().flatten();
    let order = ["data", "model", "loss", "optimizer", "schedule", "metrics", "train"];
    let mut sections: Vec<(&String, &Value)> = sections.collect();
    sections.sort_by_key(|(name, _)| order.iter().position(|o| o == name));
    let section = |(name, v): &(&String, &Value)| match v["layers"].as_array() {
        Some(layers) => {
            let inputs = v.get("inputs").map_or(String::new(), |i| format!("    \"inputs\": {i},\n"));
            let layers: Vec<String> = layers.iter().map(|l| format!("      {l}")).collect();
            format!("  \"{name}\": {{\n{inputs}    \"layers\": [\n{}\n    ]\n  }}", layers.join(",\n"))
        }
        None => format!("  \"{name}\": {v}"),
    };
    format!("{{\n{}\n}}\n", sections.iter().map(section).collect::<Vec<_>>().join(",\n"))
}

pub(crate) fn run(a: &Args, out: &mut dyn Write) -> Result<()> {
    let json = match a.kind.as_str() {
        "csv" => table(a, TableFormat::Csv)?,
        "parquet" => table(a, TableFormat::Parquet)?,
        "arrow" => table(a, TableFormat::Arrow)?,
        "images" => images(a)?,
        "text" => text(a)?,
        "graph" => graph(a)?,
        _ => meshes(a)?,
    };
    // What is written can be read.
    Config::from_value(json.clone())?;
    write_new(&a.out, &layout(&json))?;
    writeln!(out, "wrote {}; train it: trefoil train {}", a.out.display(), a.out.display())?;
    Ok(())
}
