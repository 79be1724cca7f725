//! The safetensors format: dtypes, and writing a file in pieces.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use trefoil::DType;

use crate::core::error::{At, NnError, Result};
use crate::io::durable::write_atomic_with;

/// The format's name of a dtype.
pub(crate) fn to_format(d: DType) -> Option<Dtype> {
    Some(match d {
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::Bf16 => Dtype::BF16,
        DType::F64 => Dtype::F64,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::U8 => Dtype::U8,
        _ => return None,
    })
}

/// Writes a safetensors file so that it is there as a whole or not at all, with the tensors of a list (name, dtype, shape, and from what
/// `elements` gives their bytes to its second argument, in pieces of any size). Errors: [`NnError::Io`]; [`NnError::Data`] for a dtype that the
/// format has not; those of `elements`.
pub(crate) fn write_tensors<T>(
    path: &Path,
    metadata: Option<HashMap<String, String>>,
    mut list: Vec<(&str, DType, &[usize], T)>,
    elements: impl Fn(&T, &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>,
) -> Result<()> {
    // Wide elements first, as the reference implementation orders them, so that every tensor is aligned.
    list.sort_by(|(a, x, ..), (b, y, ..)| y.size().cmp(&x.size()).then(a.cmp(b)));
    let mut infos = vec![];
    let mut end = 0;
    for &(name, dtype, shape, _) in &list {
        let format = to_format(dtype).ok_or_else(|| {
            NnError::data(path, At::Entry(name.to_string()), "a dtype of the format", dtype.name())
        })?;
        let start = end;
        end += shape.iter().product::<usize>() * dtype.size();
        let info = TensorInfo { dtype: format, shape: shape.to_vec(), data_offsets: (start, end) };
        infos.push((name.to_string(), info));
    }
    let refused = |e: String| NnError::data(path, At::File, "tensors of a safetensors file", e);
    let metadata = metadata.map(|texts| texts.into_iter().collect());
    let header = Metadata::new(metadata, infos).map_err(|e| refused(e.to_string()))?;
    let mut header = serde_json::to_vec(&header).map_err(|e| refused(e.to_string()))?;
    header.resize(header.len().next_multiple_of(8), b' ');
    write_atomic_with(path, |f| {
        let mut write = |bytes: &[u8]| f.write_all(bytes).map_err(NnError::io("write", path));
        write(&(header.len() as u64).to_le_bytes())?;
        write(&header)?;
        list.iter().try_for_each(|(.., t)| elements(t, &mut write))
    })
}
