//! What every backend finds on this machine, and which device `TREFOIL_BACKEND` (or `auto`) takes.
//!
//!     cargo run --example devices
//!
//! Each backend lists its devices, or says why it has none: library not found (and what was tried), driver too old, no device, not compiled in.

use trefoil::{Registry, Result, Selector, ops::all_ops, ops::core::CoreOps};

fn main() -> Result<()> {
    let registry = Registry::default();
    for report in registry.probe_all() {
        println!("{report}");
        for caps in report.result.iter().flatten() {
            println!(
                "    {} compute units, {:.1} GiB, {} KiB local memory per block, warps of {}, f64: {}",
                caps.compute_units,
                caps.memory_bytes as f64 / f64::from(1u32 << 30),
                caps.shared_bytes / 1024,
                caps.warp_size,
                if caps.f64 { "yes" } else { "no" },
            );
        }
    }

    // An exact selector is opened or fails; `auto` falls through to the next device and, if allowed, to the CPU.
    let selector = Selector::from_env()?;
    let device = registry.open(&selector)?;
    println!("\n`{selector}` opens {} ({})", device.id(), device.caps().name);

    // Operations with several implementations say which one this device runs for a typical problem, and why not the others.
    for op in all_ops() {
        let choice = device.explain(op.name)?;
        if !choice.rejected.is_empty() {
            println!("    {}: {} ({})", op.name, choice.chosen, choice.source);
            for (variant, why) in &choice.rejected {
                println!("        not {variant}: {why}");
            }
        }
    }
    Ok(())
}
