//! Discrete Fourier transforms.

use trefoil::ops::fourier::Fft;
use trefoil::{DType, Result};

use crate::{Context, F32, Prepared, Problem, bytes, problem};

/// Complex transforms of [outer, n, inner] along n.
fn complex(cx: &Context<'_>, dt: DType, [outer, n, inner]: [usize; 3]) -> Result<Prepared> {
    let (s, all) = ([outer, n, inner, 2], 2 * outer * n * inner);
    let (x, mut y) = (cx.normal(dt, all)?, cx.empty(dt, all)?);
    bytes(2 * all * dt.size(), move |g| g.fft(&Fft::new(), 1, x.shaped(&s)?, y.shaped_mut(&s)?.into()))
}

pub(super) const PROBLEMS: &[Problem] = &[
    problem("fft", "rows", F32, |cx, dt| {
        complex(cx, dt, [cx.pick(2, 16, 16_384), cx.pick(16, 256, 1024), 1])
    }),
    problem("fft", "two_pass", F32, |cx, dt| {
        complex(cx, dt, [cx.pick(1, 2, 4096), cx.pick(2310, 4096, 4096), 1])
    }),
    problem("fft", "columns", F32, |cx, dt| {
        complex(cx, dt, [1, cx.pick(300, 1024, 4096), cx.pick(3, 16, 4096)])
    }),
    problem("fft", "prime", F32, |cx, dt| complex(cx, dt, [cx.pick(1, 2, 1024), cx.pick(17, 257, 4099), 1])),
    problem("rfft", "rows", F32, |cx, dt| {
        let [r, n] = [cx.pick(2, 16, 16_384), cx.pick(16, 256, 2048)];
        let (x, mut y) = (cx.normal(dt, r * n)?, cx.empty(dt, r * (n + 2))?);
        bytes(r * (2 * n + 2) * dt.size(), move |g| {
            g.rfft(&Fft::new(), x.shaped(&[r, n])?, y.shaped_mut(&[r, n / 2 + 1, 2])?.into())
        })
    }),
    problem("irfft", "rows", F32, |cx, dt| {
        let [r, n] = [cx.pick(2, 16, 16_384), cx.pick(16, 256, 2048)];
        let (x, mut y) = (cx.normal(dt, r * (n + 2))?, cx.empty(dt, r * n)?);
        bytes(r * (2 * n + 2) * dt.size(), move |g| {
            g.irfft(&Fft::new(), x.shaped(&[r, n / 2 + 1, 2])?, y.shaped_mut(&[r, n])?.into())
        })
    }),
];
