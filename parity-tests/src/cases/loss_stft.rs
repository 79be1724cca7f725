//! Losses between spectrograms.

use trefoil::ops::*;

use super::Bound::Close;
use super::{Kernel, pair};
use crate::device::{Cx, Fail, R};
use crate::random_cases::Dom::Any;

fn resolutions(cx: &Cx<'_>) -> R<Vec<StftResolution>> {
    let rows = cx.size_lists("resolutions")?;
    rows.iter()
        .map(|r| match r[..] {
            [fft, hop, window] => Ok(StftResolution::new(fft, hop, window)),
            _ => Err(Fail::Case(format!("resolution {r:?} is not [fft, hop, window]"))),
        })
        .collect()
}

fn run(cx: &Cx<'_>) -> R {
    let (list, p, t) = (resolutions(cx)?, cx.x("p")?, cx.x("t")?);
    if cx.is_gradient() {
        let dp = cx.like("dp", &p)?;
        return Ok(cx.gpu.stft_loss_bwd(&list, StftLossBwd { gy: cx.x("gy")?, p, t, dp: dp.g() })?);
    }
    let loss = cx.out("loss", p.dtype().accumulator(), &[])?;
    Ok(cx.gpu.stft_loss(&list, StftLossFwd { p, t, loss: loss.m() })?)
}

pub(super) const ROWS: &[&[Kernel]] =
    &[&pair!("multi_resolution_stft_loss", "L44", "p, t", "resolutions", "dp", ["stft_loss"], run)
        .bound(Close(2e-5, 2e-5))
        .grad_bound(Close(5e-5, 2e-5))
        .sample(|s| {
            // Lengths of every kind: powers of two, small factors, primes, beyond shared memory.
            let lengths = if s.small {
                [4, 6, 7, 8]
            } else {
                [[64, 48, 37, 1], [512, 300, 2048, 31], [1000, 257, 9, 2]][s.below(3)]
            };
            let list: Vec<[usize; 3]> = (0..1 + s.below(3))
                .map(|_| {
                    let fft = lengths[s.below(4)];
                    [fft, 1 + s.below(fft), 1 + s.below(fft)]
                })
                .collect();
            let longest = list.iter().map(|r| r[0]).max().unwrap_or(1);
            let shape = [1 + s.below(3), longest / 2 + 1 + s.below(2 * longest)];
            s.put("p", &shape, Any);
            s.put("t", &shape, Any);
            s.arg("resolutions", serde_json::json!(list));
        })];
