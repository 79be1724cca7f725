//! Choice among several implementations of an operation.
//!
//! An operation with variants lists them best first; each says whether it applies to the problem at hand. `TREFOIL_VARIANT` pins:
//! `portable` takes the portable text everywhere, `gemm:cublaslt` one variant of one operation (and it is an error if that does not apply).

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Engine;
use crate::error::{GpuError, Result};
use crate::ops::core::Choice;

/// Name of the variant that the portable text serves.
pub(crate) const PORTABLE: &str = "portable";

/// One implementation of an operation.
pub(crate) struct Variant<'a> {
    pub(crate) name: &'static str,
    /// File under `kernels/`, or the vendor library.
    pub(crate) source: &'static str,
    /// Whether it takes the problem, or why not.
    pub(crate) applicable: &'a dyn Fn() -> std::result::Result<(), Cow<'static, str>>,
}

/// Pinned variants of a device.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    any: AtomicBool,
    map: RwLock<HashMap<String, String>>,
}

impl Pins {
    pub(crate) fn from_env() -> Result<Self> {
        let pins = Pins::default();
        for part in std::env::var("TREFOIL_VARIANT").unwrap_or_default().split(',').filter(|p| !p.is_empty())
        {
            match part.split_once(':') {
                Some((op, name)) if crate::ops::all_ops().any(|o| o.name == op) => pins.pin(op, name),
                None if part == PORTABLE => pins.pin("*", PORTABLE),
                _ => {
                    let what =
                        format!("TREFOIL_VARIANT: `{part}` is neither `{PORTABLE}` nor `OPERATION:VARIANT`");
                    return Err(GpuError::Config(what.into()));
                }
            }
        }
        Ok(pins)
    }

    pub(crate) fn pin(&self, op: &str, variant: &str) {
        self.map.write().unwrap_or_else(|p| p.into_inner()).insert(op.into(), variant.into());
        self.any.store(true, Ordering::Release);
    }

    fn get(&self, op: &str) -> Option<String> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let map = self.map.read().unwrap_or_else(|p| p.into_inner());
        map.get(op).or_else(|| map.get("*")).cloned()
    }
}

impl Engine {
    /// What [`CoreOps::explain`](crate::ops::core::CoreOps::explain) answers: the decision for operations with variants, else the portable text.
    pub(crate) fn explain_op(&self, info: &'static crate::ops::OpInfo) -> Result<Choice> {
        if matches!(info.name, "gemm" | "gemm_bwd" | "gemm_grouped") {
            return self.explain_gemm(info.name);
        }
        if matches!(info.name, "rnn" | "rnn_bwd") {
            return self.explain_rnn(info.name);
        }
        if matches!(info.name, "conv" | "conv_bwd" | "conv_transpose" | "conv_transpose_bwd") {
            return self.explain_conv(info.name);
        }
        let files: std::collections::BTreeSet<_> =
            crate::spec::all_kernels().filter(|k| k.family == info.family).map(|k| k.file).collect();
        let source = files.into_iter().map(|f| format!("kernels/common/{f}")).collect::<Vec<_>>().join(", ");
        Ok(Choice { op: info.name, chosen: PORTABLE.into(), source, rejected: vec![] })
    }

    /// Position of the variant that runs: the pinned one, else the first that applies.
    pub(crate) fn choose(&self, op: &'static str, variants: &[Variant<'_>]) -> Result<usize> {
        let unsupported =
            |why: String| GpuError::Unsupported { op, device: self.device_caps().id, why: why.into() };
        if let Some(pin) = self.inner.device.variants.get(op) {
            let Some(at) = variants.iter().position(|v| v.name == pin) else {
                let known: Vec<_> = variants.iter().map(|v| v.name).collect();
                return Err(unsupported(format!("it has no variant `{pin}`; known: {}", known.join(", "))));
            };
            return match (variants[at].applicable)() {
                Ok(()) => Ok(at),
                Err(why) => Err(unsupported(format!("the pinned variant `{pin}` does not apply: {why}"))),
            };
        }
        variants
            .iter()
            .position(|v| (v.applicable)().is_ok())
            .ok_or_else(|| unsupported("no variant applies".into()))
    }

    /// The decision of [`Engine::choose`] in words.
    pub(crate) fn explain_choice(&self, op: &'static str, variants: &[Variant<'_>]) -> Result<Choice> {
        let at = self.choose(op, variants)?;
        let rejected = variants.iter().enumerate().filter(|&(i, _)| i != at).map(|(_, v)| {
            let why = (v.applicable)().err().unwrap_or_else(|| "another variant is preferred".into());
            (v.name.to_string(), why.into_owned())
        });
        Ok(Choice {
            op,
            chosen: variants[at].name.into(),
            source: variants[at].source.into(),
            rejected: rejected.collect(),
        })
    }
}
