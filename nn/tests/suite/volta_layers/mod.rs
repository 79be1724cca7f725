//! The second half of the parity table of `volta.rs`: modules, optimizers, losses, data, files.
//!
//! Rows that do not apply: Muon (the library has no such rule); the algorithms of convolutions (chosen by the library, tested there). Rows
//! tested elsewhere as well: safetensors of all dtypes (`files`), readers, transforms and prefetching (`data`), further cases of every
//! layer (`layers*`), loss (`losses.rs`) and optimizer (`optim`), example programs (`examples/`).

mod layers;
mod sequences;
mod state;
mod training;

use crate::common::{devices, f32s, noise};
use trefoil::{Registry, Selector};
use trefoil_nn::{Device, Tensor};

fn each(f: impl Fn(&Device)) {
    devices().iter().for_each(f);
}

fn same(x: f64) -> f64 {
    x
}

fn host(t: &Tensor) -> Vec<f32> {
    t.to_vec().unwrap()
}

/// A tensor of noise on any device.
fn random(d: &Device, shape: &[usize], seed: u64) -> Tensor {
    f32s(d, &noise(seed, shape.iter().product()).iter().map(|&x| x as f32).collect::<Vec<_>>(), shape)
}

/// A state file as bincode writes it: numbers below 251 in one byte, else behind a tag.
fn volta_file(tensors: &[(&str, &[usize], &[f32])]) -> Vec<u8> {
    fn number(out: &mut Vec<u8>, n: usize) {
        match n {
            0..=250 => out.push(n as u8),
            251..=0xffff => out.extend([&[251u8][..], &(n as u16).to_le_bytes()].concat()),
            _ => out.extend([&[252u8][..], &(n as u32).to_le_bytes()].concat()),
        }
    }
    let mut out = vec![];
    number(&mut out, tensors.len());
    for (name, shape, data) in tensors {
        number(&mut out, name.len());
        out.extend(name.as_bytes());
        number(&mut out, data.len());
        data.iter().for_each(|x| out.extend(x.to_le_bytes()));
        number(&mut out, shape.len());
        shape.iter().for_each(|&s| number(&mut out, s));
    }
    out
}

fn temporary(name: &str, bytes: &[u8]) -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!("trefoil-{}-{name}", std::process::id()));
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn absent_devices_are_errors() {
    for name in ["cuda:77", "opencl:77", "hip:77"] {
        let e = Registry::default().open(&name.parse::<Selector>().unwrap());
        assert!(e.is_err(), "{name}");
    }
    assert!("abacus".parse::<Selector>().is_err());
}
