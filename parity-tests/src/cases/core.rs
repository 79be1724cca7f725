//! Copies between buffers.

use super::{ANY, Kernel, k};
use crate::device::{Cx, R};
use crate::sampler::Dom::Any;

/// A byte-exact copy of a flat range. Offsets are relative to the tensors, which start behind a guard band: a range that leaves a tensor
/// is refused here by its flat view, as it is by a buffer of exactly that size.
fn copy_buffer(cx: &Cx<'_>) -> R {
    let src = cx.x("src")?;
    let dst = cx.inout("dst", "dst")?;
    let (from, to, n) = (cx.n("src_offset")?, cx.n("dst_offset")?, cx.n("count")?);
    let src = src.map("src_offset", |l| l.narrow(0, from, n))?;
    let dst = dst.m().map("dst_offset", |l| l.narrow(0, to, n))?;
    Ok(cx.gpu.copy(src, dst)?)
}

pub(super) const ROWS: &[&[Kernel]] = &[&[k(
    "copy_buffer",
    "S11.4",
    "src, dst",
    "src_offset=0, dst_offset=0, count",
    "dst",
    &["copy", "alloc", "write_bytes", "read_bytes"],
    copy_buffer,
)
.dtypes(ANY)
.sample(|s| {
    let n = s.size() + 3;
    s.put("src", &[n], Any);
    s.put("dst", &[n + 2], Any);
    s.arg("src_offset", 3);
    s.arg("dst_offset", 1);
    s.arg("count", n - 3);
})]];
