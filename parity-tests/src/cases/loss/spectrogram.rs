//! Losses between spectrograms.

use trefoil::ops::loss::{StftLossBwd, StftLossFwd, StftResolution};

use crate::cases::Bound::Derived;
use crate::cases::{Kernel, pair};
use crate::device::{Cx, Fail, R};

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
        return Ok(cx.gpu.stft_loss_bwd(&list, StftLossBwd::new(cx.x("gy")?, p, t, dp.g()))?);
    }
    let loss = cx.out("loss", p.dtype().accumulator(), &[])?;
    Ok(cx.gpu.stft_loss(&list, StftLossFwd::new(p, t, loss.m()))?)
}

pub(super) const ROWS: &[&[Kernel]] =
    &[&pair!("multi_resolution_stft_loss", "L44", "p, t", "resolutions", "dp", ["stft_loss"], run)
        .bound(Derived)
        .sample(|s| {
            // Lengths of every kind: powers of two, small factors, primes, beyond shared memory.
            let some = [[64, 48, 37, 5], [512, 300, 2048, 31], [1000, 257, 9, 4], [4096, 6, 128, 1024]];
            let lengths = if s.small { [4, 6, 7, 8] } else { some[s.below(4)] };
            let mut list: Vec<[usize; 3]> = (0..1 + s.below(3))
                .map(|_| {
                    let fft = lengths[s.below(4)];
                    [fft, 0, 4 + s.below(fft - 3)]
                })
                .collect();
            let most = |i: usize| list.iter().map(|r| r[i]).max().unwrap_or(1);
            // The gradient of a logarithm near 0 is a matter of rounding: every frame has one pulse in its middle.
            let (fft, window) = (most(0), most(2));
            let hop = window.div_ceil(2) + s.below(3);
            list.iter_mut().for_each(|r| r[1] = hop);
            let shape = [1 + s.below(3), (fft / 2 / hop + 1 + s.below(4)) * hop + 1 + s.below(hop - 1)];
            for name in ["p", "t"] {
                s.pulses(name, &shape, hop, (0.375 * window as f64).sqrt());
            }
            s.arg("resolutions", serde_json::json!(list));
        })];
