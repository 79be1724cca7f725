//! What a file says about a softmax.

use super::{Op, Place, Planner, SoftmaxPlan, fail, first, times};
use crate::core::error::Result;
use crate::interop::loom::definition::LayerDefinition;
use crate::interop::loom::flags::Flag;
use crate::layers::SoftmaxKind;

impl Planner<'_> {
    pub(super) fn softmax(
        &mut self,
        path: &str,
        d: &LayerDefinition,
        size: Option<usize>,
        at: Place,
        batch: usize,
    ) -> Result<Op> {
        let whole = at.branch && self.ask(Flag::SoftmaxBranchBuffer, path, self.flags.softmax_branch_buffer);
        // What one call sees: a sample, or in a branch Loom's whole batch.
        let seen = if whole { size.map(|n| times(n, &[batch])) } else { size };
        let temperature = match d.temperature {
            None | Some(0.0) => 1.0,
            Some(t) if t > 0.0 && t.is_finite() => f64::from(t),
            Some(t) => return fail(format!("{path}.temperature"), format!("must be above 0, not {t}")),
        };
        let standard = |temperature| SoftmaxPlan::Kind(SoftmaxKind::Standard { temperature });
        let variant = d.softmax_variant.as_deref().unwrap_or("standard");
        let plan = match variant {
            "" | "standard" | "temperature" => standard(temperature),
            "grid" => match (first([d.softmax_rows]), first([d.softmax_cols])) {
                (Some(rows), Some(cols)) => self.grid_softmax(path, [rows, cols], temperature, seen)?,
                _ => standard(1.0),
            },
            "hierarchical" => {
                let levels = d.hierarchy_levels.clone().unwrap_or_default();
                let n = levels.iter().try_fold(1usize, |a, &b| a.checked_mul(b));
                let fits = seen.is_none() || seen == n;
                if levels.is_empty() {
                    standard(1.0)
                } else if n == Some(0) || n.is_none() {
                    return fail(format!("{path}.hierarchy_levels"), "must be above 0");
                } else if !fits && self.ask(Flag::SoftmaxFallback, path, self.flags.softmax_fallback) {
                    standard(temperature)
                } else {
                    SoftmaxPlan::Kind(SoftmaxKind::Hierarchical { levels, temperature, tree: false })
                }
            }
            "gumbel" => SoftmaxPlan::Kind(SoftmaxKind::Gumbel { temperature, hard: false }),
            "masked" => match d.mask.clone().filter(|m| !m.is_empty()) {
                None => standard(1.0),
                Some(mask) => {
                    let fits = seen.is_none_or(|n| n == mask.len());
                    if !fits && self.ask(Flag::SoftmaxFallback, path, self.flags.softmax_fallback) {
                        standard(temperature)
                    } else {
                        SoftmaxPlan::Kind(SoftmaxKind::Masked { mask, temperature })
                    }
                }
            },
            "sparse" => match self.ask(Flag::SoftmaxSparseBug, path, self.flags.softmax_sparse_bug) {
                true => SoftmaxPlan::SparseBug,
                false => SoftmaxPlan::Kind(SoftmaxKind::Sparse),
            },
            "entmax" => self.entmax(path, d.entmax_alpha.unwrap_or(0.0)),
            "adaptive" | "mixture"
                if self.ask(Flag::SoftmaxUnimplemented, path, self.flags.softmax_unimplemented) =>
            {
                standard(1.0)
            }
            "adaptive" => match d.adaptive_clusters.clone() {
                Some(clusters) => SoftmaxPlan::Kind(SoftmaxKind::Adaptive { clusters }),
                None => return fail(format!("{path}.adaptive_clusters"), "is missing"),
            },
            "mixture" => match &d.mixture_weights {
                Some(w) if !w.is_empty() => SoftmaxPlan::Kind(SoftmaxKind::Mixture {
                    weights: w.iter().map(|&w| f64::from(w)).collect(),
                }),
                _ => return fail(format!("{path}.mixture_weights"), "is missing"),
            },
            other => {
                let key = format!("{path}.softmax_variant");
                if !self.ask(Flag::UnknownSoftmax, &key, self.flags.unknown_softmax) {
                    return fail(key, format!("unknown variant `{other}`"));
                }
                standard(temperature)
            }
        };
        Ok(Op::Softmax { plan, whole })
    }

    fn grid_softmax(
        &mut self,
        path: &str,
        [rows, cols]: [usize; 2],
        temperature: f64,
        seen: Option<usize>,
    ) -> Result<SoftmaxPlan> {
        let longer = seen.is_some_and(|n| n > rows.saturating_mul(cols));
        if longer && self.ask(Flag::SoftmaxFallback, path, self.flags.softmax_fallback) {
            return Ok(SoftmaxPlan::CutGrid { rows, cols, temperature });
        }
        Ok(SoftmaxPlan::Kind(SoftmaxKind::Grid { rows, cols, temperature }))
    }

    /// Alpha of at most 1 is softmax.
    fn entmax(&mut self, path: &str, alpha: f32) -> SoftmaxPlan {
        let alpha = f64::from(alpha);
        if alpha.is_nan() || alpha <= 1.0 {
            return SoftmaxPlan::Kind(SoftmaxKind::Standard { temperature: 1.0 });
        }
        let bug = self.flags.softmax_sparse_bug;
        if self.ask(Flag::EntmaxBlend, path, self.flags.entmax_blend) {
            self.mattered(Flag::SoftmaxSparseBug, path);
            return match (alpha >= 2.0, bug) {
                (true, true) => SoftmaxPlan::SparseBug,
                (true, false) => SoftmaxPlan::Kind(SoftmaxKind::Sparse),
                (false, bug) => SoftmaxPlan::Blend { weight: alpha - 1.0, bug },
            };
        }
        SoftmaxPlan::Kind(SoftmaxKind::Entmax { alpha })
    }
}
