//! The variants of softmax.

use serde::Deserialize;

use crate::core::error::{NnError, Result};
use crate::layers::{SoftmaxKind, SoftmaxVariant};
use crate::network::build::Site;
use crate::network::options::layer_type;

/// The names of [`SoftmaxKind`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Standard,
    Grid,
    Hierarchical,
    Gumbel,
    Masked,
    Sparse,
    Entmax,
    Adaptive,
    Mixture,
}

/// An option that the kind requires.
fn required<T>(site: &Site<'_>, key: &str, kind: Kind, value: Option<T>) -> Result<T> {
    value.ok_or_else(|| site.wrong(key, format!("is missing; the kind {kind:?} requires it")))
}

layer_type! {
    SOFTMAX_VARIANT: 0, "SoftmaxVariant", "softmax_variant", Utility, "none (F.gumbel_softmax and others)", (1, 1);
    {
        kind: Kind = "standard";
        temperature: f64 = 1;
        rows: Option<usize> = null;
        cols: Option<usize> = null;
        levels: Option<Vec<usize>> = null;
        tree: bool = false;
        hard: bool = false;
        mask: Option<Vec<bool>> = null;
        alpha: f64 = 1.5;
        clusters: Option<Vec<Vec<usize>>> = null;
        weights: Option<Vec<f64>> = null;
    }
    |o, site| {
        let (kind, temperature) = (o.kind, o.temperature);
        let unread: [(&str, bool, &[Kind]); 6] = [
            ("rows", o.rows.is_some(), &[Kind::Grid]),
            ("cols", o.cols.is_some(), &[Kind::Grid]),
            ("levels", o.levels.is_some(), &[Kind::Hierarchical]),
            ("mask", o.mask.is_some(), &[Kind::Masked]),
            ("clusters", o.clusters.is_some(), &[Kind::Adaptive]),
            ("weights", o.weights.is_some(), &[Kind::Mixture]),
        ];
        if let Some((key, ..)) = unread.iter().find(|(_, given, kinds)| *given && !kinds.contains(&kind)) {
            return Err::<_, NnError>(site.wrong(key, format!("the kind {kind:?} has no such option")));
        }
        SoftmaxVariant::new(site.cx, match kind {
            Kind::Standard => SoftmaxKind::Standard { temperature },
            Kind::Grid => SoftmaxKind::Grid {
                rows: required(site, "rows", kind, o.rows)?,
                cols: required(site, "cols", kind, o.cols)?,
                temperature,
            },
            Kind::Hierarchical => SoftmaxKind::Hierarchical {
                levels: required(site, "levels", kind, o.levels)?,
                temperature,
                tree: o.tree,
            },
            Kind::Gumbel => SoftmaxKind::Gumbel { temperature, hard: o.hard },
            Kind::Masked => SoftmaxKind::Masked { mask: required(site, "mask", kind, o.mask)?, temperature },
            Kind::Sparse => SoftmaxKind::Sparse,
            Kind::Entmax => SoftmaxKind::Entmax { alpha: o.alpha },
            Kind::Adaptive => SoftmaxKind::Adaptive { clusters: required(site, "clusters", kind, o.clusters)? },
            Kind::Mixture => SoftmaxKind::Mixture { weights: required(site, "weights", kind, o.weights)? },
        })?
    }
}
