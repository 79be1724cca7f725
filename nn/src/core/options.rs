//! Options of what a file describes: layers, losses, optimizers, data and so on.
//!
//! [`options!`] declares the options of one type: their names, which are the keys in the file, their types, defaults and limits. The reader,
//! its errors and the tables of the documents come from that declaration.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::error::{NnError, Result};

/// An option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Its key.
    pub name: &'static str,
    /// Its default as JSON text; none if it is required.
    pub default: Option<&'static str>,
    /// Its type in Rust: `f64`, `Option<usize>`.
    pub of: &'static str,
}

/// Declares the options of a type: `Name { option: type = default, LIMIT; .. }`, with defaults as JSON and a [`Limit`] for numbers; an option
/// without a default is required. Makes a struct of them, the list `KEYS`, and `take`, which reads them.
macro_rules! options {
    ($options:ident { $($key:ident : $t:ty $(= $default:expr)? $(, $limit:ident)?;)* }) => {
        struct $options {
            $($key: $t,)*
        }

        impl $options {
            const KEYS: &[$crate::core::options::Key] = &[$($crate::core::options::Key {
                name: stringify!($key),
                default: $crate::core::options::given(&[$(stringify!($default))?]),
                of: stringify!($t),
            }),*];

            /// Reads the options of `of`, which stands at `path`. Errors: unknown, missing, of a wrong type, out of their limits.
            fn take(
                path: &str,
                of: &str,
                keys: serde_json::Map<String, serde_json::Value>,
            ) -> $crate::core::error::Result<Self> {
                // Some types have no options.
                #[allow(unused_mut, unused_variables)]
                let mut keys = $crate::core::options::resolve(path, of, Self::KEYS, keys)?;
                let all = $options { $($key: $crate::core::options::option(path, stringify!($key), &mut keys)?,)* };
                $($($crate::core::options::within(path, stringify!($key), &all.$key, &$limit)?;)?)*
                Ok(all)
            }
        }
    };
}
pub(crate) use options;

/// What a list of at most one element holds.
pub(crate) const fn given<T: Copy>(list: &[T]) -> Option<T> {
    match list {
        [one] => Some(*one),
        _ => None,
    }
}

/// `path.key`.
pub(crate) fn join(path: &str, key: &str) -> String {
    match (path, key) {
        ("", _) => key.to_string(),
        (_, "" | ".") => path.to_string(),
        _ if key.starts_with('[') => format!("{path}{key}"),
        _ => format!("{path}.{key}"),
    }
}

/// A value of a known type. Errors: [`NnError::Config`] with its path, what was expected and what is there.
pub(crate) fn read<T: DeserializeOwned>(path: &str, value: Value) -> Result<T> {
    serde_path_to_error::deserialize(value).map_err(|e| malformed(path, &e))
}

fn malformed(path: &str, e: &serde_path_to_error::Error<serde_json::Error>) -> NnError {
    NnError::config(join(path, &e.path().to_string()), suggest(&e.inner().to_string()))
}

/// The value of an option. One after the other: what serde makes of a type is compiled once then, and not anew in every set of options.
pub(crate) fn option<T: DeserializeOwned>(path: &str, key: &str, keys: &mut Map<String, Value>) -> Result<T> {
    read(&join(path, key), keys.remove(key).unwrap_or_default())
}

/// Drops keys without a value, which have their defaults.
pub(crate) fn drop_nulls(keys: &mut Map<String, Value>) {
    keys.retain(|_, v| !v.is_null());
}

/// The keys of an object.
pub(crate) fn object(path: &str, value: Value, expected: &str) -> Result<Map<String, Value>> {
    match value {
        Value::Object(keys) => Ok(keys),
        v => Err(NnError::config(path, format!("invalid type: expected {expected}, got {v}"))),
    }
}

/// The name nearest to one that is not known, if a third of its letters at most are wrong.
pub(crate) fn nearest<'a>(name: &str, all: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let distance = |other: &&str| strsim::damerau_levenshtein(name, other);
    all.into_iter().filter(|n| 3 * distance(n) <= n.len().max(3)).min_by_key(distance)
}

/// An error of serde, with the nearest name where a field or variant is not known.
pub(crate) fn suggest(error: &str) -> String {
    let unknown = ["unknown field `", "unknown variant `"].into_iter().find_map(|p| error.strip_prefix(p));
    // The name, and then those that were expected, stand between backticks.
    let mut names = unknown.unwrap_or_default().split('`').step_by(2);
    let name = names.next().unwrap_or_default();
    match nearest(name, names) {
        Some(near) => format!("{error}; did you mean `{near}`?"),
        None => error.to_string(),
    }
}

/// The names that are known, for an error about one that is not: the nearest, if there is one near, and all.
pub(crate) fn known<'a>(name: &str, all: impl IntoIterator<Item = &'a str>) -> String {
    let all: Vec<&str> = all.into_iter().collect();
    let near = nearest(name, all.iter().copied()).map_or(String::new(), |n| format!("did you mean `{n}`? "));
    format!("{near}known are {}", if all.is_empty() { "none".into() } else { all.join(", ") })
}

/// Error unless all keys are known.
pub(crate) fn check_keys<'a>(
    path: &str,
    of: &str,
    keys: &Map<String, Value>,
    all: impl IntoIterator<Item = &'a str>,
) -> Result<()> {
    let all: Vec<&str> = all.into_iter().collect();
    let Some(key) = keys.keys().find(|k| !all.contains(&k.as_str())) else { return Ok(()) };
    let what = format!("unknown field `{key}` of `{of}`; {}", known(key, all));
    Err(NnError::config(join(path, key), what))
}

/// The options with defaults for those that were not given. Errors: unknown keys, missing ones.
pub(crate) fn resolve(
    path: &str,
    of: &str,
    all: &[Key],
    mut keys: Map<String, Value>,
) -> Result<Map<String, Value>> {
    check_keys(path, of, &keys, all.iter().map(|k| k.name))?;
    for key in all {
        if keys.contains_key(key.name) {
            continue;
        }
        let at = || join(path, key.name);
        let Some(text) = key.default else {
            return Err(NnError::config(at(), format!("is missing; `{of}` requires it")));
        };
        let value = serde_json::from_str(text).map_err(|e| NnError::config(at(), e.to_string()))?;
        keys.insert(key.name.to_string(), value);
    }
    Ok(keys)
}

/// Numbers that an option may have.
pub(crate) struct Limit {
    pub(crate) ok: fn(f64) -> bool,
    pub(crate) says: &'static str,
}

/// Above 0.
pub(crate) const POSITIVE: Limit = Limit { ok: |x| x > 0.0 && x.is_finite(), says: "a value above 0" };
/// At least 0.
pub(crate) const NOT_NEGATIVE: Limit =
    Limit { ok: |x| x >= 0.0 && x.is_finite(), says: "a value of at least 0" };
/// Decays.
pub(crate) const BELOW_ONE: Limit = Limit { ok: |x| (0.0..1.0).contains(&x), says: "a value in [0, 1)" };
/// Probabilities.
pub(crate) const SHARE: Limit = Limit { ok: |x| (0.0..=1.0).contains(&x), says: "a value in [0, 1]" };
/// Neither end of the unit interval.
pub(crate) const BETWEEN: Limit = Limit { ok: |x| x > 0.0 && x < 1.0, says: "a value between 0 and 1" };
/// Counts.
pub(crate) const COUNT: Limit = Limit { ok: |x| x >= 1.0, says: "at least 1" };
/// No infinity.
pub(crate) const FINITE: Limit = Limit { ok: f64::is_finite, says: "a finite number" };

/// What a [`Limit`] can be held against.
pub(crate) trait Numbers {
    fn numbers(&self) -> Vec<f64>;
}

macro_rules! numbers {
    ($($t:ty)*) => {
        $(impl Numbers for $t {
            fn numbers(&self) -> Vec<f64> {
                vec![*self as f64]
            }
        })*
    };
}
numbers!(f64 u32 u64 usize);

impl<T: Numbers> Numbers for Option<T> {
    fn numbers(&self) -> Vec<f64> {
        self.iter().flat_map(T::numbers).collect()
    }
}

impl<T: Numbers> Numbers for Vec<T> {
    fn numbers(&self) -> Vec<f64> {
        self.iter().flat_map(T::numbers).collect()
    }
}

impl<T: Numbers, const N: usize> Numbers for [T; N] {
    fn numbers(&self) -> Vec<f64> {
        self.iter().flat_map(T::numbers).collect()
    }
}

/// Error unless all numbers are within the limit.
pub(crate) fn within(path: &str, key: &str, x: &impl Numbers, limit: &Limit) -> Result<()> {
    match x.numbers().into_iter().find(|&x| !(limit.ok)(x)) {
        Some(bad) => Err(NnError::config(join(path, key), format!("expected {}, got {bad}", limit.says))),
        None => Ok(()),
    }
}
