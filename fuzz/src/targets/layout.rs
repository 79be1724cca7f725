//! Layouts and views.

use std::sync::Arc;

use arbitrary::Unstructured;
use trefoil::{BackendExt, CpuBackend, IGpuBackend, Layout, MAX_ELEMENTS};

use super::chain::{Meaning, Places, Step, number};
use super::{Generate, Run, Target, Verdict, devices};
use crate::input::Input;

pub(crate) const TARGET: Target = Target {
    name: "layout",
    about: "chains of layout transformations against places written down one by one; fills and copies through views between guards",
    generate: Generate::Random { most: 160 },
    open: || {
        let cpu: Arc<dyn IGpuBackend> = Arc::new(CpuBackend::new());
        let other = devices::opencl()?;
        Ok(Box::new(move |input: &Input| {
            // A launch costs what a hundred layouts do.
            let on = other.as_ref().filter(|_| input.one_in(128)).unwrap_or(&cpu);
            run(&input.bytes, &**on).unwrap_or_else(Verdict::Wrong)
        }) as Run)
    },
};

/// Elements of the buffer behind the views.
const LEN: usize = 64;

fn run(bytes: &[u8], gpu: &dyn IGpuBackend) -> Result<Verdict, String> {
    let mut u = Unstructured::new(bytes);
    let Ok(first) = start(&mut u) else { return Ok(Verdict::Rejected) };
    let Some(mut l) = first? else { return Ok(Verdict::Rejected) };
    let mut places = Places::of(&l);
    let mut verdict = Verdict::Rejected;
    while !u.is_empty() {
        let Ok(step) = Step::draw(&mut u, &l) else { break };
        let meaning = places.as_ref().map_or(Meaning::Large, |p| p.after(&step));
        match step.apply(&l) {
            Ok(new) => {
                inside_limits(&new).map_err(|e| format!("{step:?} of {l:?}: {e}"))?;
                match meaning {
                    Meaning::Wrong => return Err(format!("{step:?} of {l:?} gave {new:?}")),
                    Meaning::Places(p) if Places::of(&new).as_ref() != Some(&p) => {
                        return Err(format!("{step:?} of {l:?} gave {new:?}, not {p:?}"));
                    }
                    _ => {}
                }
                l = new;
                places = Places::of(&l);
                verdict = Verdict::Accepted;
            }
            Err(e) => {
                // Where a layout without elements begins has a limit, too.
                if let Meaning::Places(p) = meaning
                    && !p.at.is_empty()
                {
                    return Err(format!("{step:?} of {l:?} was refused ({e}), not {p:?}"));
                }
                continue;
            }
        }
        if let Some(p) = &places {
            views(gpu, &l, p)?;
        }
    }
    Ok(verdict)
}

/// The first layout: contiguous, or with any strides; `None` where its numbers are too large.
fn start(u: &mut Unstructured<'_>) -> arbitrary::Result<Result<Option<Layout>, String>> {
    let shape = (0..u.int_in_range(0..=4)?).map(|_| number(u)).collect::<arbitrary::Result<Vec<_>>>()?;
    let mut strides = vec![];
    let made = if u.ratio(3, 4)? {
        Layout::contiguous(&shape)
    } else {
        strides = shape.iter().map(|_| number(u)).collect::<arbitrary::Result<Vec<_>>>()?;
        strides.push(number(u)?);
        Layout::strided(&shape, &strides[..shape.len()], strides[shape.len()])
    };
    Ok(match made {
        Ok(l) => inside_limits(&l).map(|()| Some(l)),
        Err(e) if shape.iter().chain(&strides).all(|&n| n <= LEN) => {
            Err(format!("sizes {shape:?} with strides and offset {strides:?} were refused: {e}"))
        }
        Err(_) => Ok(None),
    })
}

/// Number and places of the elements keep to the stated limit, computed without overflow.
fn inside_limits(l: &Layout) -> Result<(), String> {
    let sizes = l.shape().iter().filter(|&&n| n != 0).try_fold(1u128, |a, &n| a.checked_mul(n as u128));
    let last = l.shape().iter().zip(l.strides()).try_fold(l.offset() as u128, |at, (&n, &s)| {
        at.checked_add((n.saturating_sub(1) as u128).checked_mul(s as u128)?)
    });
    let most = MAX_ELEMENTS as u128;
    if sizes.is_none_or(|n| n >= most) || last.is_none_or(|at| at >= most) {
        return Err(format!("{l:?} is beyond the limit"));
    }
    let end = if l.numel() == 0 { l.offset() } else { last.unwrap_or(0) as usize + 1 };
    if l.span() == (l.offset()..end) { Ok(()) } else { Err(format!("{l:?} has span {:?}", l.span())) }
}

/// A view of the layout is made exactly where its elements are in the buffer; a fill writes them and nothing else, a copy reads them in order.
fn views(gpu: &dyn IGpuBackend, l: &Layout, p: &Places) -> Result<(), String> {
    let values: Vec<f32> = (0..LEN).map(|i| i as f32).collect();
    let fail = |e: trefoil::GpuError| format!("{l:?}: {e}");
    let b = gpu.upload(&values).map_err(fail)?;
    let inside = if p.at.is_empty() { l.offset() <= LEN } else { p.at.iter().all(|&at| at < LEN as u128) };
    let view = match b.alias_mut().with_layout(*l) {
        Ok(_) if !inside => return Err(format!("a view of {l:?} over {LEN} elements")),
        Err(e) if inside => return Err(format!("a view of {l:?} over {LEN} elements was refused: {e}")),
        Err(_) => return Ok(()),
        Ok(view) => view,
    };
    let mut y = gpu.alloc(trefoil::DType::F32, p.at.len().max(1)).map_err(fail)?;
    let out = y.view_mut().range(0, p.at.len()).and_then(|v| v.reshape(l.shape())).map_err(fail)?;
    gpu.strided_copy(view.as_view(), out.into()).map_err(fail)?;
    let read = gpu.download::<f32>(y.view().range(0, p.at.len()).map_err(fail)?).map_err(fail)?;
    if read.iter().zip(&p.at).any(|(&x, &at)| x != at as f32) {
        return Err(format!("{l:?} reads {read:?}"));
    }
    let mut sorted = p.at.clone();
    sorted.sort_unstable();
    let distinct = sorted.windows(2).all(|w| w[0] != w[1]);
    match gpu.fill(-1.0, view) {
        Ok(()) if !distinct => return Err(format!("a fill of {l:?}, whose elements meet")),
        Ok(()) => {}
        Err(_) if l.may_overlap() => return Ok(()),
        Err(e) => return Err(fail(e)),
    }
    let after = gpu.download::<f32>(b.view()).map_err(fail)?;
    let want = |i: usize| if sorted.binary_search(&(i as u128)).is_ok() { -1.0 } else { i as f32 };
    match (0..LEN).find(|&i| after[i] != want(i)) {
        Some(i) => Err(format!("a fill of {l:?} left {} at {i}", after[i])),
        None => Ok(()),
    }
}
