//! Recording and replay of calls: on the mock driver what the engine makes of a recording, on every device that is there that a replay gives the bits of
//! the calls themselves.

#[path = "../common/mod.rs"]
mod common;

mod cpu;
mod engine;
mod recording;
mod replay;
mod steps;

use std::sync::Arc;

use trefoil::ops::core::{Event, Graph};
use trefoil::prelude::*;
use trefoil::{BackendExt, BackendKind, Buffer, DType, GpuError, IGpuBackend};

fn refused_call(done: trefoil::Result<impl std::fmt::Debug>) -> &'static str {
    match done {
        Err(GpuError::Capture { op, .. }) => op,
        other => panic!("{other:?}"),
    }
}

fn is_cpu(g: &Arc<dyn IGpuBackend>) -> bool {
    g.id().kind == BackendKind::Cpu
}

fn bytes(g: &Arc<dyn IGpuBackend>, b: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; b.len() * b.dtype().size()];
    g.read_bytes(b.view(), &mut bytes).unwrap();
    bytes
}

/// A call by its name.
type Named<'a> = (&'static str, Box<dyn Fn() -> trefoil::Result<()> + 'a>);

/// What a recording refuses, because the host would wait for the device.
fn host_calls<'a>(
    g: &'a dyn IGpuBackend,
    x: &'a Buffer,
    event: &'a Event,
    graph: &'a Graph,
) -> Vec<Named<'a>> {
    vec![
        ("read_bytes", Box::new(|| g.download::<f32>(x.view()).map(drop))),
        ("write_bytes", Box::new(|| g.write(x.alias_mut(), &[0f32; 8]))),
        ("synchronize", Box::new(|| g.synchronize())),
        ("record", Box::new(|| g.record().map(drop))),
        ("wait", Box::new(|| g.wait(event))),
        ("trim", Box::new(|| g.trim())),
        ("adopt", Box::new(|| g.adopt(g.alloc(DType::F32, 1)?).map(drop))),
        ("profile_calls", Box::new(|| g.profile_calls(&mut || Ok(())).map(drop))),
        ("replay", Box::new(|| graph.replay())),
        ("capture_calls", Box::new(|| g.capture(|_| Ok(())).map(drop))),
    ]
}
