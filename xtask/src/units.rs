//! Which units of the table a command compiles.

use std::collections::BTreeSet;

use trefoil::spec::{Unit, all_kernels, all_units};

/// The units whose name contains `filter`; the sample is the smallest list of first functions that has every kernel in every storage type.
pub(crate) fn units(filter: &str, sample: bool) -> Vec<Unit> {
    let sampled: BTreeSet<Unit> = all_kernels()
        .flat_map(|k| k.dtypes.iter().map(move |&dtype| (k, dtype)))
        .map(|(k, dtype)| Unit { file: k.file, dtype, op: k.ops.first().copied().unwrap_or("") })
        .collect();
    let wanted = |u: &Unit| u.to_string().contains(filter) && (!sample || sampled.contains(u));
    all_units().into_iter().filter(wanted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_has_every_kernel_in_every_type() {
        let (all, sample) = (units("", false), units("", true));
        assert!(sample.len() < all.len() && sample.iter().all(|u| all.contains(u)));
        for k in all_kernels() {
            for &dtype in k.dtypes {
                let serves = |u: &&Unit| {
                    u.file == k.file && u.dtype == dtype && (k.ops.contains(&u.op) || k.ops.is_empty())
                };
                assert!(sample.iter().any(|u| serves(&u)), "{} {dtype}", k.entry);
            }
        }
        assert!(units("random", true).iter().all(|u| u.file == "random.c"));
    }
}
