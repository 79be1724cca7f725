//! `trefoil devices`: every backend with its devices, or the reason why it cannot be used.

use std::io::Write;

use trefoil::{Caps, Registry};

use crate::error::Result;

fn bytes(n: u64) -> String {
    match n {
        0 => "unknown".into(),
        n if n >= 1 << 30 => format!("{:.1} GiB", n as f64 / (1u64 << 30) as f64),
        n => format!("{} KiB", n / 1024),
    }
}

fn show(out: &mut dyn Write, c: &Caps) -> Result<()> {
    let yes = |b: bool| if b { "yes" } else { "no" };
    writeln!(out, "{}: {}", c.id, c.name)?;
    writeln!(out, "    architecture {}, driver {}", c.arch, c.driver_version)?;
    writeln!(
        out,
        "    memory {}, {} compute units, {} threads per block, {} local memory, warp {}, f64 {}{}",
        bytes(c.memory_bytes),
        c.compute_units,
        c.max_block,
        bytes(u64::from(c.shared_bytes)),
        c.warp_size,
        yes(c.f64),
        if c.is_cpu { ", a CPU" } else { "" },
    )?;
    Ok(())
}

pub(crate) fn run(out: &mut dyn Write) -> Result<()> {
    for report in Registry::default().probe_all() {
        match report.result {
            Ok(devices) if devices.is_empty() => writeln!(out, "{}: no device", report.kind)?,
            Ok(devices) => devices.iter().try_for_each(|c| show(out, c))?,
            Err(reason) => writeln!(out, "{}: not available: {reason}", report.kind)?,
        }
    }
    Ok(())
}
