//! Numbers of files and configurations beyond their limits: each is refused with its place, the limit and the value, in no time.

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::common::cpu;
use serde_json::json;
use trefoil_nn::config::Config;
use trefoil_nn::data::{read_idx, read_npy, read_npz};
use trefoil_nn::network::{LAYERS, NetworkConfig, layer};
use trefoil_nn::{InitContext, NnError, limits};

/// A folder of its own for a test, gone afterwards.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("trefoil-limits-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The message about a network, which comes within a second.
fn refused(json: serde_json::Value) -> String {
    let start = Instant::now();
    let e = NetworkConfig::parse(&json.to_string()).unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert!(matches!(e, NnError::Config { .. }), "{e}");
    e.to_string()
}

fn with_layer(input: serde_json::Value, layer: serde_json::Value) -> serde_json::Value {
    json!({ "inputs": { "x": input }, "layers": [layer] })
}

#[test]
fn large_numbers_cost_no_time() {
    let lstm = |n: u64| json!({ "type": "lstm", "hidden_size": 8, "num_layers": n });
    let e = refused(with_layer(json!([4, 8]), lstm(1_000_000_000)));
    assert!(e.contains("`layers[0].num_layers`: expected at most 1024, got 1000000000"), "{e}");
    let e = refused(with_layer(json!([1_000_000_000, 8]), lstm(1)));
    assert!(e.contains("layers[0]") && e.contains("at most 16777216 steps, got 1000000000"), "{e}");
    let positions = json!({ "type": "positional_encoding", "d_model": 8, "max_len": 2_147_483_648u64 });
    let e = refused(with_layer(json!([4, 8]), positions));
    assert!(e.contains("`layers[0].max_len`: expected at most 16777216, got 2147483648"), "{e}");
    // Nested in another layer.
    let inner = json!({ "type": "bidirectional", "inner": lstm(1025) });
    let e = refused(with_layer(json!([4, 8]), inner));
    assert!(e.contains("`layers[0].inner.num_layers`: expected at most 1024, got 1025"), "{e}");
    let e =
        refused(with_layer(json!([2_000_000_000]), json!({ "type": "split", "num_splits": 2_000_000_000 })));
    assert!(e.contains("`layers[0].num_splits`: expected at most 4096, got 2000000000"), "{e}");
    // Many layers that are each within their limit.
    let many: Vec<_> = (0..20).map(|_| lstm(1000)).collect();
    let e = refused(json!({ "inputs": { "x": [4, 8] }, "layers": many }));
    assert!(e.contains("layers[10]") && e.contains("at most 10000 layers"), "{e}");
    // A single layer.
    let e = layer(&InitContext::new(&cpu(), 1), &lstm(5000)).unwrap_err();
    assert!(e.to_string().contains("at most 1024, got 5000"), "{e}");
}

#[test]
fn what_is_within_the_limits_costs_no_time_either() {
    let start = Instant::now();
    for (input, layer) in [
        (json!([16_000_000, 8]), json!({ "type": "lstm", "hidden_size": 8 })),
        (json!([16_000_000, 8]), json!({ "type": "gru", "hidden_size": 8, "return_sequences": false })),
        (json!([1_000_000, 2, 8, 8]), json!({ "type": "conv_lstm", "filters": 2, "kernel_size": 3 })),
        (json!([4, 8]), json!({ "type": "positional_encoding", "d_model": 8, "max_len": 16_000_000 })),
        (json!([16_000_000, 8]), json!({ "type": "conditional_random_field", "num_tags": 8 })),
        (
            json!([16_000_000, 8]),
            json!({ "type": "spiking", "in_features": 8, "out_features": 4, "batch_first": true }),
        ),
        (
            json!([16_000_000, 8]),
            json!({ "type": "reservoir", "input_size": 8, "reservoir_size": 4, "leaking_rate": 0.5 }),
        ),
        (json!([4, 8]), json!({ "type": "dense", "out_features": 2_000_000_000 })),
        (
            json!([8, 65536]),
            json!({ "type": "multi_head_attention", "embed_dim": 65536, "num_heads": 65536 }),
        ),
        (
            json!([1_048_576, 8, 8]),
            json!({ "type": "convolutional", "out_channels": 1_048_576, "kernel_size": 3, "groups": 1_048_576 }),
        ),
        (json!([1_000_000_000_000u64]), json!({ "type": "dropout" })),
    ] {
        let network = with_layer(input, layer);
        if let Err(e) = NetworkConfig::parse(&network.to_string()) {
            panic!("{network}: {e}");
        }
    }
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}

/// Every option of every layer with numbers that are large, or at their limit, alone and together: each network is taken or refused at once.
#[test]
fn no_number_of_a_layer_panics_or_takes_long() {
    let inputs = [json!([8]), json!([8, 8]), json!([8, 8, 8]), json!([8, 8, 8, 8])];
    let (mut taken, mut slowest) = (0, Duration::ZERO);
    for info in LAYERS {
        let options = |large: &dyn Fn(&str) -> Option<u64>| {
            let mut o = serde_json::Map::from_iter([("type".to_string(), json!(info.name))]);
            for key in info.keys {
                match (large(key.name), key.default) {
                    (Some(n), _) => drop(o.insert(key.name.into(), json!(n))),
                    (None, None) => drop(o.insert(key.name.into(), json!(8))),
                    _ => {}
                }
            }
            serde_json::Value::Object(o)
        };
        let mut all = vec![];
        for at_limit in [false, true] {
            for n in [4, 1 << 20, 1 << 31, 1 << 40, limits::NUMBER] {
                let value = move |key: &str| if at_limit { n.min(limits::of(key)) } else { n };
                all.push(options(&|key| Some(value(key))));
                for (i, a) in info.keys.iter().enumerate() {
                    all.push(options(&|key| (key == a.name).then(|| value(key))));
                    for b in &info.keys[..i] {
                        all.push(options(&|key| (key == a.name || key == b.name).then(|| value(key))));
                    }
                }
            }
        }
        for layer in all {
            for input in &inputs {
                let text = with_layer(input.clone(), layer.clone()).to_string();
                let start = Instant::now();
                taken += u32::from(NetworkConfig::parse(&text).is_ok());
                slowest = slowest.max(start.elapsed());
                assert!(start.elapsed() < Duration::from_secs(2), "{text}: {:?}", start.elapsed());
            }
        }
    }
    println!("{taken} networks taken, the slowest after {slowest:?}");
    assert!(taken > 1000, "{taken}");
}

#[test]
fn tensors_have_a_limit() {
    let dense = |n: u64| json!({ "type": "dense", "out_features": n });
    let e = refused(with_layer(json!([2_000_000_000]), dense(2_000_000)));
    assert!(e.contains("layers[0]") && e.contains("at most 281474976710656 elements in a tensor"), "{e}");
    let e = refused(with_layer(json!([2_000_000_000, 2_000_000_000]), dense(1)));
    assert!(e.contains("`inputs.x`") && e.contains("at most 281474976710656 elements"), "{e}");
    let e = refused(with_layer(json!([1u64 << 54]), dense(1)));
    assert!(e.contains("`inputs.x`") && e.contains("at most 9007199254740992, got 18014398509481984"), "{e}");
    // Each parameter fits, all together do not.
    let embedding = json!({ "type": "embedding", "num_embeddings": 2_000_000_000, "embedding_dim": 100_000 });
    let two = json!({ "layers": [embedding, embedding] });
    let e = refused(two);
    assert!(e.contains("`layers`: expected at most 281474976710656 parameters, got 400000000000000"), "{e}");
}

#[test]
fn runs_have_limits() {
    let run = |train: serde_json::Value| {
        let json = json!({ "data": { "csv": "x.csv" }, "model": { "layers": [{ "type": "dense", "out_features": 1 }] },
                           "train": train });
        Config::parse(&json.to_string()).map(|_| ()).map_err(|e| e.to_string())
    };
    run(json!({ "epochs": 1_000_000_000, "batch_size": 1 << 24, "seed": u64::MAX })).unwrap();
    for (train, want) in [
        (json!({ "epochs": 1_000_000_001 }), "`train.epochs`: expected at most 1000000000, got 1000000001"),
        (json!({ "batch_size": 16_777_217 }), "`train.batch_size`: expected at most 16777216, got 16777217"),
        (json!({ "patience": 1u64 << 54 }), "`train.patience`: expected at most 9007199254740992"),
    ] {
        let e = run(train).unwrap_err();
        assert!(e.contains(want), "{e}");
    }
}

#[test]
fn headers_that_claim_too_much_allocate_nothing() {
    let folder = Folder::new("claims");
    let path = folder.0.join("claim");
    // 2^40 bytes in a file of 20.
    let idx =
        [&[0, 0, 0x08, 2][..], &(1u32 << 20).to_be_bytes(), &(1u32 << 20).to_be_bytes(), &[0; 8]].concat();
    std::fs::write(&path, &idx).unwrap();
    let e = read_idx(&path).unwrap_err().to_string();
    assert!(e.contains("1099511627776 bytes of elements") && e.contains("at most 20"), "{e}");
    let mut gz = flate2::write::GzEncoder::new(vec![], flate2::Compression::best());
    gz.write_all(&idx).unwrap();
    let packed = gz.finish().unwrap();
    std::fs::write(&path, &packed).unwrap();
    let e = read_idx(&path).unwrap_err().to_string();
    assert!(e.contains(&format!("at most {}", packed.len() as u64 * limits::INFLATED)), "{e}");

    let npy = |shape: &str| {
        let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n");
        [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), &[0; 16]].concat()
    };
    std::fs::write(&path, npy("(1099511627776,)")).unwrap();
    let e = read_npy(&path).unwrap_err().to_string();
    assert!(e.contains("4398046511104 bytes of elements"), "{e}");
    let mut zip = rawzip::ZipArchiveWriter::new(std::fs::File::create(&path).unwrap());
    let (mut entry, config) = zip.new_file("a.npy").start().unwrap();
    let mut writer = config.wrap(&mut entry);
    writer.write_all(&npy("(1099511627776,)")).unwrap();
    let (_, sums) = writer.finish().unwrap();
    entry.finish(sums).unwrap();
    zip.finish().unwrap();
    let e = read_npz(&path, None).unwrap_err().to_string();
    assert!(e.contains("4398046511104 bytes of elements") && e.contains("`a`"), "{e}");
    // A header of 4 GiB.
    std::fs::write(&path, [b"\x93NUMPY\x02\x00", &u32::MAX.to_le_bytes()[..], &[b' '; 64]].concat()).unwrap();
    let e = read_npy(&path).unwrap_err().to_string();
    assert!(e.contains("a header of at most 1048576 bytes"), "{e}");
}

#[test]
fn files_that_are_read_whole_have_a_limit() {
    let folder = Folder::new("files");
    let path = folder.0.join("config.json");
    // Sparse: it takes no room on the disk.
    std::fs::File::create(&path).unwrap().set_len(limits::CONFIG_BYTES + 1).unwrap();
    for e in [NetworkConfig::load(&path).unwrap_err(), Config::load(&path).unwrap_err()] {
        assert!(matches!(&e, NnError::Data { .. }), "{e}");
        assert!(e.to_string().contains("at most 16777216 bytes, found 16777217"), "{e}");
    }
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let e = Config::parse(&deep).unwrap_err().to_string();
    assert!(e.contains("recursion limit"), "{e}");
}

#[cfg(feature = "images")]
#[test]
fn images_have_a_limit() {
    let folder = Folder::new("images");
    let class = folder.0.join("class");
    std::fs::create_dir(&class).unwrap();
    std::fs::write(class.join("a.png"), b"").unwrap();
    let e = trefoil_nn::data::ImageFolder::open(&folder.0).unwrap().resize(u32::MAX, u32::MAX).unwrap_err();
    assert!(e.to_string().contains("at most 67108864 pixels"), "{e}");
}
