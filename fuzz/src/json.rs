//! Mutation of JSON by its structure, so that most of what comes out is still a configuration.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::rng::Rng;

/// What the seeds are made of.
#[derive(Debug, Default)]
pub(crate) struct Words {
    keys: Vec<String>,
    strings: Vec<String>,
    /// Objects and lists, to be put elsewhere.
    parts: Vec<Value>,
}

impl Words {
    /// Collects them.
    pub(crate) fn of<'a>(texts: impl Iterator<Item = &'a [u8]>) -> Self {
        let (mut keys, mut strings, mut parts) = (BTreeSet::new(), BTreeSet::new(), vec![]);
        for text in texts {
            let mut todo: Vec<Value> = serde_json::from_slice(text).into_iter().collect();
            while let Some(v) = todo.pop() {
                match &v {
                    Value::String(s) => drop(strings.insert(s.clone())),
                    Value::Array(list) => todo.extend(list.iter().cloned()),
                    Value::Object(map) => {
                        keys.extend(map.keys().cloned());
                        todo.extend(map.values().cloned());
                    }
                    _ => {}
                }
                // Whole configurations would outgrow every limit after a few splices.
                if (v.is_object() || v.is_array()) && v.to_string().len() < 400 {
                    parts.push(v);
                }
            }
        }
        Words { keys: keys.into_iter().collect(), strings: strings.into_iter().collect(), parts }
    }

    /// A text with up to four changes; `None` for what is no JSON.
    pub(crate) fn mutate(&self, text: &[u8], rng: &mut Rng) -> Option<Vec<u8>> {
        let mut root: Value = serde_json::from_slice(text).ok()?;
        for _ in 0..1 + rng.below(4) {
            let at = rng.below(count(&root));
            self.change(nth(&mut root, at)?, rng);
        }
        serde_json::to_vec(&root).ok()
    }

    fn change(&self, v: &mut Value, rng: &mut Rng) {
        if rng.one_in(6) {
            *v = self.other(rng);
            return;
        }
        match v {
            Value::Number(_) => *v = number(rng),
            Value::String(s) => s.clone_from(rng.pick(&self.strings).unwrap_or(&String::new())),
            Value::Bool(b) => *b = !*b,
            Value::Null => *v = self.other(rng),
            Value::Array(list) => {
                let at = rng.below(list.len());
                match rng.below(4) {
                    0 if !list.is_empty() => drop(list.remove(at)),
                    1 if !list.is_empty() => list.push(list[at].clone()),
                    2 if !list.is_empty() => {
                        let to = rng.below(list.len());
                        list.swap(at, to);
                    }
                    _ => list.insert(at, self.other(rng)),
                }
            }
            Value::Object(map) => {
                let at = rng.below(map.len());
                let key = map.keys().nth(at).cloned();
                match key.filter(|_| rng.one_in(2)) {
                    Some(key) => drop(map.remove(&key)),
                    None => {
                        let key = rng.pick(&self.keys).cloned().unwrap_or_default();
                        map.insert(key, self.other(rng));
                    }
                }
            }
        }
    }

    fn other(&self, rng: &mut Rng) -> Value {
        match rng.below(8) {
            0 => Value::Null,
            1 => rng.one_in(2).into(),
            2 | 3 => number(rng),
            4 => rng.pick(&self.strings).cloned().into(),
            5 => json!([number(rng), number(rng)]),
            _ => rng.pick(&self.parts).cloned().unwrap_or_default(),
        }
    }
}

/// Mostly small, as sizes are.
fn number(rng: &mut Rng) -> Value {
    match rng.below(10) {
        0..=4 => rng.below(9).into(),
        5 => json!(rng.below(1000) as f64 / 500.0),
        6 => json!([1e300, -1.5, 1e-30, 0.0, 1e9, -1.0][rng.below(6)]),
        7 => json!(rng.hostile() as i64),
        _ => rng.hostile().into(),
    }
}

/// Number of values in a tree.
fn count(v: &Value) -> usize {
    1 + match v {
        Value::Array(list) => list.iter().map(count).sum(),
        Value::Object(map) => map.values().map(count).sum(),
        _ => 0,
    }
}

/// Value number `n` of a tree, from the root.
fn nth(v: &mut Value, n: usize) -> Option<&mut Value> {
    if n == 0 {
        return Some(v);
    }
    let mut left = n - 1;
    let parts: Box<dyn Iterator<Item = &mut Value>> = match v {
        Value::Array(list) => Box::new(list.iter_mut()),
        Value::Object(map) => Box::new(map.values_mut()),
        _ => return None,
    };
    for part in parts {
        let size = count(part);
        if left < size {
            return nth(part, left);
        }
        left -= size;
    }
    None
}
