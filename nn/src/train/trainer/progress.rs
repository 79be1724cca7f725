//! The progress bar of an epoch, on standard error.

/// A bar that disappears when it is dropped. Without the feature `progress` it shows nothing.
pub(super) struct ProgressBar {
    #[cfg(feature = "progress")]
    bar: indicatif::ProgressBar,
}

impl ProgressBar {
    /// A bar of `batches` steps behind a title; not `visible`, it shows nothing.
    #[cfg(feature = "progress")]
    pub(super) fn new(visible: bool, batches: usize, title: String) -> Self {
        use indicatif::{ProgressDrawTarget, ProgressStyle};
        let target = if visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = indicatif::ProgressBar::with_draw_target(Some(batches as u64), target);
        if let Ok(style) = ProgressStyle::with_template("{prefix} {wide_bar} {pos}/{len} {per_sec}") {
            bar.set_style(style);
        }
        ProgressBar { bar: bar.with_prefix(title) }
    }

    /// No bar, and a warning once where one is expected.
    #[cfg(not(feature = "progress"))]
    pub(super) fn new(visible: bool, _batches: usize, _title: String) -> Self {
        static WARNED: std::sync::Once = std::sync::Once::new();
        if visible {
            WARNED.call_once(|| {
                log::warn!("there is no progress bar without the feature `progress` of trefoil-nn")
            });
        }
        ProgressBar {}
    }

    /// One batch more is done.
    pub(super) fn advance(&self) {
        #[cfg(feature = "progress")]
        self.bar.inc(1);
    }
}

impl Drop for ProgressBar {
    fn drop(&mut self) {
        #[cfg(feature = "progress")]
        self.bar.finish_and_clear();
    }
}
