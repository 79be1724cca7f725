//! Scans and segments: signatures and checks.

op_family! {
    /// Prefix sums and segment reductions.
    pub trait ScanOps : Scan => SCAN_OPS {
    }
}
