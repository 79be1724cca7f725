//! In place of the live view, in a build without the feature `tui`.

use std::convert::Infallible;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use trefoil_nn::Device;
use trefoil_nn::trainer::{Callback, EpochStats};

/// What is trained, which nothing here shows.
#[allow(dead_code)]
pub(crate) struct Plan {
    pub(crate) title: String,
    pub(crate) epochs: u64,
    pub(crate) steps: u64,
    pub(crate) items: u64,
}

/// A view, of which there is none.
pub(crate) struct View(Infallible);

impl Callback for View {}

impl View {
    pub(crate) fn new(_plan: Plan) -> Option<Self> {
        None
    }

    pub(crate) fn events(&self, _device: &Device) -> View {
        match self.0 {}
    }

    pub(crate) fn open(&mut self, _past: Vec<EpochStats>, _stop: Arc<AtomicBool>) {
        match self.0 {}
    }

    pub(crate) fn flush(&self, _out: &mut dyn Write) -> io::Result<()> {
        match self.0 {}
    }
}
