//! From JSON to layers.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use trefoil::GpuError;

use super::part::part;
use super::unknown::unknown_type;
use super::{LAYERS, LayerInfo};
use crate::core::error::{NnError, Result};
use crate::core::options::{join, read, resolve};
use crate::layers::Sequential;
use crate::module::{InitContext, Layer};

/// A layer's description with the place where it stands.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    pub(super) info: &'static LayerInfo,
    pub(super) path: &'a str,
    /// Everything but what was taken out.
    pub(super) options: Map<String, Value>,
}

impl<'a> Entry<'a> {
    /// Finds the type. Errors: no object, no type, an unknown one.
    pub(super) fn new(path: &'a str, json: &Value) -> Result<Self> {
        let Value::Object(options) = json else {
            return Err(NnError::config(path, format!("expected an object with a `type`, got {json}")));
        };
        let mut options = options.clone();
        let name = match options.remove("type") {
            Some(Value::String(name)) => name,
            Some(v) => {
                let what = format!("expected the name of a layer type, got {v}");
                return Err(NnError::config(join(path, "type"), what));
            }
            None => return Err(NnError::config(join(path, "type"), "is missing")),
        };
        let Some(info) = LAYERS.iter().find(|l| l.name == name) else {
            return Err(NnError::config(join(path, "type"), unknown_type(&name)));
        };
        Ok(Entry { info, path, options })
    }

    /// Takes a key that does not belong to the layer itself.
    pub(super) fn take<T: DeserializeOwned>(&mut self, key: &str) -> Result<Option<T>> {
        match self.options.remove(key) {
            None | Some(Value::Null) => Ok(None),
            Some(v) => read(&join(self.path, key), v).map(Some),
        }
    }

    /// The place, and the options with defaults for those that were not given. Errors: unknown keys, missing ones.
    pub(super) fn resolve(self, cx: &'a InitContext) -> Result<(Site<'a>, Map<String, Value>)> {
        let Entry { info, path, options } = self;
        Ok((Site { cx, path, info }, resolve(path, info.name, info.keys, options)?))
    }

    /// Makes the layer as a part of a network. Errors: as [`build`](Entry::build).
    pub(super) fn build_part(self, cx: &'a InitContext) -> Result<Box<dyn Layer>> {
        Ok(part(self.info, self.build(cx)?))
    }

    /// Makes the layer. Errors: [`NnError::Config`] with the path of the value that does not fit.
    pub(super) fn build(self, cx: &'a InitContext) -> Result<Box<dyn Layer>> {
        let Entry { info, path, options } = self;
        let site = Site { cx, path, info };
        (info.build)(&site, options).map_err(|e| site.explain(e))
    }
}

/// Where a layer is being made.
#[derive(Debug)]
pub(super) struct Site<'a> {
    pub(super) cx: &'a InitContext,
    path: &'a str,
    info: &'static LayerInfo,
}

impl Site<'_> {
    /// The path of an option.
    pub(super) fn path(&self, key: &str) -> String {
        join(self.path, key)
    }

    /// An error about one of the options.
    pub(super) fn wrong(&self, key: &str, what: impl Into<String>) -> NnError {
        NnError::config(join(self.path, key), what)
    }

    /// Makes the layer that stands under a key.
    pub(super) fn layer(&self, key: &str, json: &Value) -> Result<Box<dyn Layer>> {
        Entry::new(&join(self.path, key), json)?.build_part(self.cx)
    }

    /// Makes the layers of a list under a key.
    pub(super) fn list(&self, key: &str, layers: &[Value]) -> Result<Sequential> {
        list(self.cx, &join(self.path, key), layers)
    }

    /// Gives an error of a constructor the path of the option that it is about: arguments have the names of their options.
    pub(super) fn explain(&self, e: NnError) -> NnError {
        let NnError::Gpu(GpuError::Invalid(e)) = e else { return e };
        let is_key = |name: &str| self.info.keys.iter().any(|k| k.name == name);
        let key = Some(e.arg).filter(|name| is_key(name));
        let place = join(self.path, key.unwrap_or(""));
        let place = if place.is_empty() { ".".into() } else { place };
        let arg = if key.is_some() { String::new() } else { format!(" {}:", e.arg) };
        NnError::config(place, format!("{}:{arg} expected {}, got {}", self.info.kind, e.expected, e.got))
    }
}

/// Makes a layer that stands at `path` and has no name.
pub(super) fn build(cx: &InitContext, path: &str, json: &Value) -> Result<Box<dyn Layer>> {
    Entry::new(path, json)?.build(cx)
}

/// Error unless a name can stand in the names of a state dictionary.
pub(super) fn check_name(path: &str, name: &str) -> Result<()> {
    if name.is_empty() || name.contains('.') {
        let what = format!("expected a name without dots, got `{name}`");
        return Err(NnError::config(join(path, "name"), what));
    }
    Ok(())
}

/// Makes layers in a row, each under its `name` or its position. Errors: also two of one name.
pub(super) fn list(cx: &InitContext, path: &str, layers: &[Value]) -> Result<Sequential> {
    let mut all = Sequential::new();
    for (i, json) in layers.iter().enumerate() {
        let at = format!("{path}[{i}]");
        let mut entry = Entry::new(&at, json)?;
        let key = match entry.take::<String>("name")? {
            Some(name) => {
                check_name(&at, &name)?;
                name
            }
            None => i.to_string(),
        };
        if all.by_name(&key).is_some() {
            return Err(NnError::config(join(&at, "name"), format!("a second layer `{key}` in {path}")));
        }
        all = all.named(key, entry.build_part(cx)?);
    }
    Ok(all)
}
