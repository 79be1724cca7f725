//! Training runs described in JSON, and files for them.
#![allow(dead_code, missing_docs)]

use std::path::PathBuf;

use serde_json::{Value, json};
use trefoil::DType;
use trefoil_nn::config::Config;
use trefoil_nn::trainer::Report;
use trefoil_nn::{Device, LayerExt, Result};

use crate::common::{cpu, noise};

pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let p = std::env::temp_dir().join(format!("trefoil-config-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&p);
        std::fs::create_dir_all(&p).unwrap();
        Folder(p)
    }
    pub(crate) fn at(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        std::fs::write(self.0.join(name), bytes).unwrap();
        self.at(name)
    }
    pub(crate) fn npy(&self, name: &str, descr: &str, shape: &[usize], data: Vec<u8>) -> String {
        self.write(name, npy(descr, shape, data))
    }
    pub(crate) fn floats(&self, name: &str, shape: &[usize], v: &[f64]) -> String {
        self.npy(name, "<f4", shape, v.iter().flat_map(|&x| (x as f32).to_le_bytes()).collect())
    }
    pub(crate) fn ids(&self, name: &str, shape: &[usize], v: &[i64]) -> String {
        self.npy(name, "<i8", shape, v.iter().flat_map(|x| x.to_le_bytes()).collect())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn npy(descr: &str, shape: &[usize], data: Vec<u8>) -> Vec<u8> {
    let shape: String = shape.iter().map(|n| format!("{n},")).collect();
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}\n");
    let mut out = b"\x93NUMPY\x01\x00".to_vec();
    out.extend((header.len() as u16).to_le_bytes());
    out.extend(header.as_bytes());
    out.extend(data);
    out
}

/// Features of the items that most tests train on.
pub(crate) const N: usize = 12;

pub(crate) fn features(f: &Folder) -> String {
    f.floats("x.npy", &[N, 4], &noise(3, N * 4))
}

pub(crate) fn dense(out: usize, more: Value) -> Value {
    let mut layers = vec![json!({ "type": "dense", "out_features": out })];
    layers.extend(more.as_array().into_iter().flatten().cloned());
    json!({ "layers": layers })
}

pub(crate) struct Done {
    pub(crate) report: Report,
    pub(crate) moved: f64,
    pub(crate) skipped: Vec<String>,
}

/// Trains on a device, in two batches per epoch unless the description says otherwise.
pub(crate) fn train_on(d: &Device, config: &Value) -> Result<Done> {
    let c = Config::parse(&config.to_string())?;
    let data = c.data.open()?;
    let sources = c.sources(&data, d)?;
    let m = c.model(d, &sources)?;
    let weights = || -> Vec<f64> {
        m.named_parameters()
            .iter()
            .flat_map(|(_, p)| p.get().to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap())
            .map(f64::from)
            .collect()
    };
    let before = weights();
    let mut t = c.trainer(&m, &data, &sources, d)?;
    let report = t.fit(&*sources.train, sources.test.as_deref(), &mut |_| true)?;
    let moved = weights().iter().zip(&before).map(|(a, b)| (a - b).abs()).sum();
    Ok(Done { report, moved, skipped: data.skipped() })
}

pub(crate) fn train(config: &Value) -> Result<Done> {
    train_on(&cpu(), config)
}

pub(crate) fn config(data: Value, model: Value) -> Value {
    json!({ "data": data, "model": model, "optimizer": { "type": "sgd", "lr": 0.01 },
            "train": { "epochs": 1, "batch_size": 6, "seed": 1 } })
}
