//! `data.transforms`: changes of batches on the device.

use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use trefoil::DType;

use super::kind::{Row, kind, names, row};
use crate::core::error::{NnError, Result};
use crate::core::options::{COUNT, FINITE, POSITIVE, SHARE, join, read, within};
use crate::core::tensor::Device;
use crate::train::data::transform::{Draws, Mixup, Normalize, OneHot, RandomCrop, RandomErase, RandomFlip};
use crate::train::data::{Batch, Transform};

/// What transforms are made for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Site<'a> {
    pub(super) device: &'a Device,
    pub(super) dtype: DType,
    /// Classes of the data.
    pub(super) classes: usize,
}

type Make = Arc<dyn Fn(Site<'_>) -> Result<Box<dyn Transform>> + Send + Sync>;

/// Which batches a transform changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum On {
    /// Those of training and of tests; the default of transforms that draw nothing.
    Both,
    /// Those of training; the default of transforms that draw.
    Train,
    /// Those of tests.
    Test,
}

/// A transform, chosen by its `type` (see [`TransformConfig::names`]).
#[derive(Clone)]
pub struct TransformConfig {
    name: &'static str,
    make: Make,
    on: On,
}

impl fmt::Debug for TransformConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TransformConfig({}, {:?})", self.name, self.on)
    }
}

/// A transform with its default place.
type Made = (On, Make);

fn drawn<T: Transform + 'static>(f: impl Fn(Site<'_>) -> Result<T> + Send + Sync + 'static) -> Made {
    (On::Train, Arc::new(move |site| Ok(Box::new(f(site)?))))
}

fn steady<T: Transform + 'static>(f: impl Fn(Site<'_>) -> Result<T> + Send + Sync + 'static) -> Made {
    (On::Both, drawn(f).1)
}

/// A number for all, or a list.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a number or a list of numbers")]
enum Each {
    One(f64),
    All(Vec<f64>),
}

impl Each {
    fn list(self) -> Vec<f64> {
        match self {
            Each::One(x) => vec![x],
            Each::All(list) => list,
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Side {
    Horizontal,
    Vertical,
}

pub(super) static TRANSFORMS: &[Row<Made>] = &[
    row!("normalize" { mean: Each; std: Each; } |path| {
        let (mean, std) = (mean.list(), std.list());
        within(path, "mean", &mean, &FINITE)?;
        within(path, "std", &std, &POSITIVE)?;
        if mean.len() != std.len() {
            let what = format!("expected {} deviations, one per mean, got {}", mean.len(), std.len());
            return Err(NnError::config(join(path, "std"), what));
        }
        steady(move |s| Normalize::new(s.device, s.dtype, &mean, &std))
    }),
    row!("one_hot" { classes: Option<usize> = null, COUNT; } |path| {
        let path = path.to_string();
        steady(move |s| match classes.unwrap_or(s.classes) {
            0 => Err(NnError::config(join(&path, "classes"), "expected class ids in the data, got values")),
            classes => Ok(OneHot { classes, dtype: s.dtype }),
        })
    }),
    row!("random_flip" { p: f64 = 0.5, SHARE; side: Side = "horizontal"; } |_path| {
        let vertical = matches!(side, Side::Vertical);
        drawn(move |_| if vertical { RandomFlip::vertical(p) } else { RandomFlip::horizontal(p) })
    }),
    row!("random_crop" { size: [usize; 2], COUNT; padding: usize = 0; } |_path| {
        drawn(move |_| RandomCrop::new((size[0], size[1]), padding))
    }),
    row!("random_erase" {
        p: f64 = 0.5, SHARE;
        area: [f64; 2] = [0.02, 0.33], SHARE;
        ratio: [f64; 2] = [0.3, 3.3], POSITIVE;
        value: f64 = 0.0, FINITE;
    } |path| {
        for (key, [lo, hi]) in [("area", area), ("ratio", ratio)] {
            if lo > hi {
                let what = format!("expected the smaller bound first, got [{lo}, {hi}]");
                return Err(NnError::config(join(path, key), what));
            }
        }
        drawn(move |_| Ok(RandomErase { p, area: (area[0], area[1]), ratio: (ratio[0], ratio[1]), value }))
    }),
    row!("mixup" { alpha: f64 = 0.2, POSITIVE; } |_path| drawn(move |_| Mixup::new(alpha))),
];

impl TransformConfig {
    pub(super) fn read(path: &str, json: Value) -> Result<Self> {
        let mut place = None;
        let json = match json {
            Value::Object(mut keys) => {
                if let Some(v) = keys.remove("on") {
                    place = Some(read(&join(path, "on"), v)?);
                }
                Value::Object(keys)
            }
            json => json,
        };
        let (name, (default, make)) = kind(path, "a transform", json, TRANSFORMS)?;
        Ok(TransformConfig { name, make, on: place.unwrap_or(default) })
    }

    /// Names of all transforms.
    pub fn names() -> Vec<&'static str> {
        names(TRANSFORMS)
    }

    /// The `type`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The transform, if it belongs to training (or to tests).
    pub(super) fn build(&self, site: Site<'_>, train: bool) -> Option<Result<Box<dyn Transform>>> {
        let wanted = self.on == On::Both || (self.on == On::Train) == train;
        wanted.then(|| (self.make)(site))
    }
}

/// Makes the features the target, as autoencoders need it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Autoencode;

impl Transform for Autoencode {
    fn apply(&self, batch: Batch, _draws: &mut Draws) -> Result<Batch> {
        Ok(Batch { y: batch.x.clone(), ..batch })
    }
}

/// Multiplies the features.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale(pub(super) f64);

impl Transform for Scale {
    fn apply(&self, batch: Batch, _draws: &mut Draws) -> Result<Batch> {
        Ok(Batch { x: batch.x.mul_scalar(self.0)?, ..batch })
    }
}
