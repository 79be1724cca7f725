//! Graphs of a driver.

use rustc_hash::FxHashMap;

use super::fusion::Item;
use super::lanes::Lane;
use crate::driver::{Driver, RawEvent, RawGraph, RawStream, StreamGraphs};
use crate::error::Result;

/// Streams and events of a recording under way.
struct Streams<'d> {
    driver: &'d dyn Driver,
    /// The first is the one that is recorded; the others join it.
    streams: Vec<RawStream>,
    events: Vec<RawEvent>,
}

impl Drop for Streams<'_> {
    fn drop(&mut self) {
        for &e in &self.events {
            // SAFETY: the event was made by this driver for this recording, which has ended.
            unsafe { self.driver.destroy_event(e) };
        }
        for &s in &self.streams {
            // SAFETY: the stream was made by this driver for this recording and ran nothing.
            unsafe { self.driver.destroy_stream(s) };
        }
    }
}

impl Streams<'_> {
    /// An event behind what stream number `s` has.
    fn event(&mut self, s: usize) -> Result<RawEvent> {
        // SAFETY: the stream is alive.
        let e = unsafe { self.driver.record(self.streams[s]) }?;
        self.events.push(e);
        Ok(e)
    }

    fn wait(&self, s: usize, e: RawEvent) -> Result<()> {
        // SAFETY: stream and event are alive.
        unsafe { self.driver.wait(self.streams[s], e) }
    }

    /// Queues the calls.
    fn queue(&mut self, items: &[Item], lanes: &[Lane]) -> Result<()> {
        let mut list = vec![];
        let mut behind = FxHashMap::default();
        let several = self.streams.len() > 1;
        let begin = if several { Some(self.event(0)?) } else { None };
        for (s, e) in (1..self.streams.len()).zip(begin.iter().cycle()) {
            self.wait(s, *e)?;
        }
        for (at, (item, lane)) in items.iter().zip(lanes).enumerate() {
            for e in lane.waits.iter().filter_map(|i| behind.get(i)) {
                self.wait(lane.stream, *e)?;
            }
            // SAFETY: the stream is alive; what the calls use is held by the recording.
            unsafe { item.call.make(self.driver, self.streams[lane.stream], &mut list)? };
            if lane.awaited {
                behind.insert(at, self.event(lane.stream)?);
            }
        }
        for s in 1..self.streams.len() {
            let e = self.event(s)?;
            self.wait(0, e)?;
        }
        Ok(())
    }
}

/// Records the calls on streams of their own.
pub(super) fn record(
    driver: &dyn Driver,
    graphs: &dyn StreamGraphs,
    items: &[Item],
    lanes: &[Lane],
) -> Result<RawGraph> {
    let mut s = Streams { driver, streams: vec![], events: vec![] };
    for _ in 0..=lanes.iter().map(|l| l.stream).max().unwrap_or(0) {
        s.streams.push(driver.new_stream()?);
    }
    let first = s.streams[0];
    // SAFETY: the streams are new; what the calls use is held by the recording.
    unsafe {
        graphs.begin_graph(first)?;
        let queued = s.queue(items, lanes);
        let graph = graphs.end_graph(first);
        if let (Err(_), Ok(graph)) = (&queued, &graph) {
            graphs.destroy_graph(first, *graph);
        }
        queued.and(graph)
    }
}
