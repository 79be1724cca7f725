//! The binary files of CIFAR-10 and CIFAR-100 (Krizhevsky, 2009): records of a label and a 32 x 32 image in three planes.

use std::fs::File;
use std::path::Path;

use serde::Deserialize;
use trefoil::DType;

use super::Arrays;
use super::npy::elements_of;
use crate::core::error::{At, NnError, Result, invalid};
use crate::core::host_tensor::HostTensor;
use crate::core::limits;

/// Bytes of an image: red, green and blue planes of 32 rows of 32.
const PIXELS: usize = 3 * 32 * 32;

/// Which labels the records of a file carry, and which of them are the targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CifarLabels {
    /// One label, of 10 classes: the files of CIFAR-10.
    Cifar10,
    /// The fine label, of 100 classes, behind the coarse one: the files of CIFAR-100.
    Cifar100,
    /// The coarse label, of 20 classes, before the fine one.
    Cifar100Coarse,
}

impl CifarLabels {
    /// Bytes of labels before an image, the place of the target among them, and the number of its classes.
    fn layout(self) -> (usize, usize, u8) {
        match self {
            CifarLabels::Cifar10 => (1, 0, 10),
            CifarLabels::Cifar100 => (2, 1, 100),
            CifarLabels::Cifar100Coarse => (2, 0, 20),
        }
    }
}

/// Reads the images `[n, 3, 32, 32]` (u8) and the class ids of files of CIFAR, `data_batch_1.bin` and so on, one after the other. Errors:
/// `Invalid` without files; [`NnError::Io`]; [`NnError::Data`] for a file that is no whole number of records and for a label that is no class,
/// with its offset.
pub fn read_cifar<P: AsRef<Path>>(files: &[P], labels: CifarLabels) -> Result<Arrays> {
    let [x, y] = images_and_classes(files, labels)?;
    Arrays::new(x, y)
}

/// The images and class ids of [`read_cifar`].
pub(crate) fn images_and_classes<P: AsRef<Path>>(
    files: &[P],
    labels: CifarLabels,
) -> Result<[HostTensor; 2]> {
    if files.is_empty() {
        return Err(invalid("read_cifar", "files", "at least one file", "none"));
    }
    let (before, at, classes) = labels.layout();
    let (mut images, mut ids) = (vec![], vec![]);
    for path in files {
        let path = path.as_ref();
        let record = before + PIXELS;
        let raw = whole(path, record)?;
        limits::reserve(&mut images, raw.len() / record * PIXELS)?;
        limits::reserve(&mut ids, raw.len() / record)?;
        for (i, r) in raw.chunks_exact(record).enumerate() {
            if r[at] >= classes {
                let byte = At::Byte((i * record + at) as u64);
                return Err(NnError::data(path, byte, format!("a class below {classes}"), r[at].to_string()));
            }
            ids.push(i64::from(r[at]));
            images.extend_from_slice(&r[before..]);
        }
    }
    let n = ids.len();
    Ok([HostTensor::new(DType::U8, &[n, 3, 32, 32], images)?, HostTensor::from_slice(&ids, &[n])?])
}

/// The bytes of a file of records.
fn whole(path: &Path, record: usize) -> Result<Vec<u8>> {
    let mut file = File::open(path).map_err(NnError::io("open", path))?;
    let size = file.metadata().map_err(NnError::io("read", path))?.len();
    let fail = |found: String| {
        NnError::data(path, At::File, format!("records of {record} bytes, at least one"), found)
    };
    let len = usize::try_from(size).ok().filter(|n| *n > 0 && n.is_multiple_of(record));
    let len = len.ok_or_else(|| fail(format!("{size} bytes")))?;
    elements_of(&mut file, len, size, NnError::io("read", path))?
        .map_err(|found| fail(format!("{found} bytes")))
}
