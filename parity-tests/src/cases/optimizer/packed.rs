//! Steps whose state is kept in bf16 or in 8-bit codes.

use trefoil::ops::optimizer::{OptimRule, PACKED_BLOCK, PackedSlot};
use trefoil::ops::random::Rng;
use trefoil::{Buffer, DType};

use super::clock::{Clock, state};
use super::sample::draw_decayed;
use crate::cases::{Kernel, k};
use crate::device::{Cx, R, Tensor};
use crate::oracle;
use crate::sampler::Dom::{Any, Positive};
use crate::sampler::Sample;

fn packed_rule(cx: &Cx<'_>) -> R<OptimRule> {
    let (b1, b2, eps, wd) = (cx.f("b1")?, cx.f("b2")?, cx.f("eps")?, cx.f("wd")?);
    Ok(if cx.b("decoupled")? {
        OptimRule::AdamW { b1, b2, eps, wd }
    } else {
        OptimRule::Adam { b1, b2, eps, wd }
    })
}

fn rng(cx: &Cx<'_>) -> R<Option<Rng<'static>>> {
    if cx.opt_f("seed")?.is_none() {
        return Ok(None);
    }
    Ok(Some(Rng::new(cx.bits("seed")?).at(cx.bits("stream")?, cx.bits("offset")?)))
}

fn bf16_states(cx: &Cx<'_>) -> R {
    let (g, w) = (cx.x("g")?, cx.inout("w", "w")?);
    let [m, v] = ["m", "v"].map(|n| state(cx, n, DType::Bf16, w.v().shape()));
    let (m, v) = (m?, v?);
    let (rule, rng) = (packed_rule(cx)?, rng(cx)?);
    let mut clock = Clock::new(cx)?;
    for i in 0..cx.n("steps")? {
        let step = clock.step(cx, i)?;
        let g = g.map("steps", |l| l.select(0, i))?;
        let mut slots = [PackedSlot::new(w.m(), g, m.m(), v.m())];
        cx.gpu.optimizer_step_packed(&rule, &step, rng, &mut slots)?;
    }
    Ok(())
}

/// One step with codes in memory off every boundary.
fn run_codes<'a>(cx: &Cx<'a>, w: &Tensor, scales: &Tensor) -> R<[Buffer; 2]> {
    let (g, n) = (cx.x("g")?, w.v().numel());
    let lead = if cx.has_output("w") { 0 } else { 3 };
    let code = |name: &str| -> R<Buffer> {
        let mut b = cx.scratch(DType::U8, n + lead)?;
        if let Some(v) = cx.opt(name) {
            cx.gpu.copy(v.reshape(&[n])?, b.view_mut().range(lead, n)?)?;
        }
        Ok(b)
    };
    let (mut m, mut v) = (code("m")?, code("v")?);
    let (rule, rng) = (packed_rule(cx)?, rng(cx)?);
    let mut clock = Clock::new(cx)?;
    let step = clock.step(cx, 0)?;
    let (cm, cv) = (m.view_mut().range(lead, n)?, v.view_mut().range(lead, n)?);
    let mut slots = [PackedSlot::new(w.m(), g, cm, cv).scales(scales.m())];
    cx.gpu.optimizer_step_packed(&rule, &step, rng, &mut slots)?;
    Ok([m, v])
}

fn blocks(n: usize) -> [usize; 2] {
    [2, n.div_ceil(PACKED_BLOCK)]
}

fn codes(cx: &Cx<'_>) -> R {
    let w = cx.inout("w", "w")?;
    let scales = state(cx, "scales", DType::F32, &blocks(w.v().numel()))?;
    run_codes(cx, &w, &scales).map(drop)
}

/// The codes as numbers.
fn code_numbers(cx: &Cx<'_>) -> R {
    let w = cx.inout("new_w", "w")?;
    let n = w.v().numel();
    let scales = state(cx, "scales", DType::F32, &blocks(n))?;
    let made = run_codes(cx, &w, &scales)?;
    for (name, codes) in ["codes_m", "codes_v"].into_iter().zip(&made) {
        let mut bytes = vec![0; n];
        cx.gpu.read_bytes(codes.view().range(3, n)?, &mut bytes)?;
        let value = |c: &u8| if name == "codes_m" { f32::from(*c as i8) } else { f32::from(*c) };
        // Whole numbers up to 256 are exact in bf16.
        let halves: Vec<u8> =
            bytes.iter().flat_map(|c| ((value(c).to_bits() >> 16) as u16).to_le_bytes()).collect();
        let to = cx.out(name, DType::Bf16, &[n])?;
        cx.gpu.write_bytes(to.m(), &halves)?;
    }
    Ok(())
}

fn draw_packed(s: &mut Sample) {
    draw_decayed(s, &[]);
    s.forget("copy");
    s.arg("steps", 1);
    let shape = s.drop("g");
    s.put("g", &[&[1], &shape[1..]].concat(), Any);
    let d = s.coin();
    s.arg("decoupled", d);
    if s.coin() {
        let seed = s.below(1000);
        s.arg("seed", seed);
        s.arg("stream", 3);
        s.arg("offset", 17);
    }
}

fn draw_codes(s: &mut Sample) {
    draw_packed(s);
    s.forget("steps");
    let shape = s.shape_of("w");
    s.drop("g");
    s.put("g", &shape, Any);
    if s.coin() {
        s.typed("m", DType::U8, &shape, Any);
        s.typed("v", DType::U8, &shape, Any);
        s.typed("scales", DType::F32, &blocks(shape.iter().product()), Positive);
    }
}

const PACKED: &[&str] = &["optimizer_step_packed"];

pub(super) const ROWS: &[&[Kernel]] = &[
    &[
        k(
            "adam_bf16_step",
            "O32",
            "w, g, [m:bf16], [v:bf16], [inv_scale:f32], [found_inf:f32]",
            "lr=0.001, b1=0.9, b2=0.999, eps=1e-08, wd=0.0, decoupled=false, seed=null, stream=0, offset=0, steps=1, step=1, maximize=false",
            "w, m:bf16, v:bf16",
            PACKED,
            bf16_states,
        )
        .by(oracle::adam_bf16)
        .sample(|s| {
            draw_packed(s);
            let shape = s.shape_of("w");
            if s.coin() {
                s.typed("m", DType::Bf16, &shape, Any);
                s.typed("v", DType::Bf16, &shape, Positive);
            }
        }),
        k(
            "adam8bit_step",
            "O31",
            "w, g, [m:u8], [v:u8], [scales:f32], [inv_scale:f32], [found_inf:f32]",
            "lr=0.001, b1=0.9, b2=0.999, eps=1e-08, wd=0.0, decoupled=false, seed=null, stream=0, offset=0, step=1, maximize=false",
            "w, scales:f32",
            PACKED,
            codes,
        )
        .by(oracle::adam_codes)
        .sample(draw_codes),
        k(
            "adam8bit_codes",
            "O31",
            "w, g, [m:u8], [v:u8], [scales:f32], [inv_scale:f32], [found_inf:f32]",
            "lr=0.001, b1=0.9, b2=0.999, eps=1e-08, wd=0.0, decoupled=false, seed=null, stream=0, offset=0, step=1, maximize=false",
            "new_w, scales:f32, codes_m:bf16, codes_v:bf16",
            PACKED,
            code_numbers,
        )
        .by(oracle::adam_codes)
        .sample(draw_codes),
    ],
];
