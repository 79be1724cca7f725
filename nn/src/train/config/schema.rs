//! A JSON Schema of training runs, from the tables from which they are read.

use serde_json::{Map, Value, json};

use super::data::COMMON;
use super::{Common, TrainConfig, sections};
use crate::core::options::Key;
use crate::network::LAYERS;

/// Keys that all types of a section have beside their own.
const SHARED: &[(&str, &[&str])] = &[
    ("optimizer", &["groups", "maximize"]),
    ("schedule", &["warmup", "warmup_start"]),
    ("data.transforms", &["on"]),
];

/// The schema of a Rust type, as far as JSON tells it apart: numbers, texts, lists. What else an option may be is left to the reader.
fn of_type(name: &str) -> Value {
    let name = name.replace(' ', "");
    let inner = |outer: &str| name.strip_prefix(outer).and_then(|n| n.strip_suffix('>')).map(str::to_string);
    if let Some(inner) = inner("Option<") {
        return match of_type(&inner) {
            Value::Object(mut schema) if schema.contains_key("type") => {
                let kind = schema.remove("type").unwrap_or_default();
                schema.insert("type".into(), json!([kind, "null"]));
                Value::Object(schema)
            }
            any => any,
        };
    }
    if let Some(inner) = inner("Vec<") {
        return json!({ "type": "array", "items": of_type(&inner) });
    }
    match name.as_str() {
        "f64" | "f32" => json!({ "type": "number" }),
        "usize" | "u64" | "u32" => json!({ "type": "integer", "minimum": 0 }),
        "bool" => json!({ "type": "boolean" }),
        "String" | "PathBuf" | "char" => json!({ "type": "string" }),
        _ => json!({}),
    }
}

/// An option with its default.
fn option(key: &Key) -> Value {
    let mut schema = of_type(key.of);
    if let (Some(text), Some(keys)) = (key.default, schema.as_object_mut())
        && let Ok(default) = serde_json::from_str(text)
    {
        keys.insert("default".into(), default);
    }
    schema
}

/// An object of a `type` with its options; `shared` are keys that all types have.
fn of_kind(name: &str, keys: &[Key], shared: &[&str]) -> Value {
    let mut properties = Map::from_iter([("type".to_string(), json!({ "const": name }))]);
    properties.extend(keys.iter().map(|k| (k.name.to_string(), option(k))));
    properties.extend(shared.iter().map(|k| (k.to_string(), json!({}))));
    let required: Vec<&str> =
        std::iter::once("type").chain(keys.iter().filter(|k| k.default.is_none()).map(|k| k.name)).collect();
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

/// A section: the name of a type that requires no options, or an object with a `type`.
fn of_section(types: &[(&'static str, &'static [Key])], shared: &[&str]) -> Value {
    let plain = types.iter().filter(|(_, keys)| keys.iter().all(|k| k.default.is_some()));
    let plain: Vec<&str> = plain.map(|(name, _)| *name).collect();
    let objects = types.iter().map(|(name, keys)| of_kind(name, keys, shared));
    json!({ "anyOf": std::iter::once(json!({ "enum": plain })).chain(objects).collect::<Vec<_>>() })
}

/// Keys with the type that a value has: of settings, from their defaults.
fn like(value: &Value) -> Value {
    match value {
        Value::Bool(_) => json!({ "type": "boolean", "default": value }),
        Value::Number(n) if n.is_f64() => json!({ "type": "number", "default": value }),
        Value::Number(_) => json!({ "type": "integer", "minimum": 0, "default": value }),
        Value::String(_) => json!({ "type": "string", "default": value }),
        Value::Array(_) => json!({ "type": "array", "default": value }),
        _ => json!({}),
    }
}

/// `data`: for each kind of file its own keys and those of all.
fn of_data(types: &[(&'static str, &'static [Key])], sampler: &Value, transforms: &Value) -> Value {
    let common = Common::default();
    let shared = |name: &&str| {
        let schema = match *name {
            "sampler" => sampler.clone(),
            "transforms" => json!({ "type": "array", "items": transforms }),
            "test" => json!({ "type": "object" }),
            "target" => json!({ "enum": ["class", "value", "input", null] }),
            "split" => json!({ "enum": ["last", "random", null] }),
            "on_error" => json!({ "enum": ["fail", "skip"] }),
            "scale" => json!({ "type": "number", "default": common.scale }),
            "test_rows" | "resident_bytes" | "threads" | "ahead" => {
                json!({ "type": "integer", "minimum": 0 })
            }
            _ => json!({}),
        };
        (name.to_string(), schema)
    };
    let all: Vec<(String, Value)> = COMMON.iter().map(shared).collect();
    let kinds = types.iter().map(|(name, keys)| {
        let mut properties: Map<String, Value> = all.iter().cloned().collect();
        properties.extend(keys.iter().map(|k| (k.name.to_string(), option(k))));
        let required: Vec<&str> = keys.iter().filter(|k| k.default.is_none()).map(|k| k.name).collect();
        json!({ "title": name, "type": "object", "properties": properties, "required": required, "additionalProperties": false })
    });
    json!({ "oneOf": kinds.collect::<Vec<_>>() })
}

/// A network: its inputs, and layers with the options of their types.
fn of_model() -> Value {
    let layers: Vec<Value> = LAYERS.iter().map(|l| of_kind(l.name, l.keys, &["name", "inputs"])).collect();
    json!({
        "type": "object",
        "properties": {
            "version": { "const": 1 },
            "inputs": { "type": "object" },
            "layers": { "type": "array", "minItems": 1, "items": { "oneOf": layers } },
            "outputs": {}
        },
        "required": ["layers"]
    })
}

/// A JSON Schema (2020-12) of a training run, made from the tables that read it: sections, types, options, defaults. It knows names and kinds of
/// values; ranges, and options that depend on others, are checked by [`Config::parse`](super::Config::parse).
pub fn json_schema() -> Value {
    let all = sections();
    let types = |path: &str| all.iter().find(|s| s.path == path).map_or(&[][..], |s| s.types.as_slice());
    let shared = |path: &str| SHARED.iter().find(|(p, _)| *p == path).map_or(&[][..], |(_, keys)| *keys);
    let section = |path: &str| of_section(types(path), shared(path));
    let train = serde_json::to_value(TrainConfig::default()).unwrap_or_default();
    let mut train: Map<String, Value> =
        train.as_object().into_iter().flatten().map(|(k, v)| (k.clone(), like(v))).collect();
    // Settings that are absent by default.
    for key in ["clip_norm", "clip_value", "patience", "early_stopping", "ema", "lora", "loss_scaling", "run"]
    {
        train.insert(key.into(), json!({}));
    }
    train.insert("precision".into(), json!({ "enum": ["f32", "f16", "bf16"], "default": "f32" }));
    train.insert("anomaly".into(), json!({ "type": ["boolean", "integer"], "default": false }));
    let data = of_data(types("data"), &section("data.sampler"), &section("data.transforms"));
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A training run of trefoil",
        "type": "object",
        "properties": {
            "data": data,
            "model": of_model(),
            "loss": section("loss"),
            "optimizer": section("optimizer"),
            "schedule": section("schedule"),
            "metrics": { "type": "array", "items": section("metrics") },
            "train": { "type": "object", "properties": train, "additionalProperties": false }
        },
        "required": ["data", "model"],
        "additionalProperties": false
    })
}
