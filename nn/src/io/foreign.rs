//! Files of other formats where safetensors is expected.

/// Bytes from the beginning of a file that [`format_of`] looks at: the header of a zip file's first entry, with its name.
pub(super) const HEAD: u64 = 256;

/// What a file is by its first bytes, and how its tensors come into a safetensors file. `None` for formats that are not known.
pub(super) fn format_of(head: &[u8]) -> Option<&'static str> {
    Some(match head {
        [b'P', b'K', 3, 4, ..] if first_entry(head).ends_with(b".npy") => {
            "a NumPy archive (.npz); save it again in Python with `safetensors.numpy.save_file(dict(numpy.load(..)), \"model.safetensors\")`"
        }
        [b'P', b'K', 3, 4, ..] => {
            "a zip file without the `data.pkl` of `torch.save` (which builds with the feature `archives` read); save it again in Python with \
             `safetensors.torch.save_file(model.state_dict(), \"model.safetensors\")`"
        }
        [0x80, 2..=5, ..] => {
            "a pickle, as older versions of `torch.save` write; save it again in Python with \
             `safetensors.torch.save_file(model.state_dict(), \"model.safetensors\")`"
        }
        [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => {
            "a NumPy array (.npy); save it again in Python with `safetensors.numpy.save_file({\"NAME\": numpy.load(..)}, \
             \"model.safetensors\")`, under the name of its parameter"
        }
        _ => return None,
    })
}

/// The name of a zip file's first entry, as far as it is there.
fn first_entry(head: &[u8]) -> &[u8] {
    let Some((&[low, high], [_, _, name @ ..])) = head.get(26..).and_then(<[u8]>::split_first_chunk) else {
        return &[];
    };
    &name[..name.len().min(u16::from_le_bytes([low, high]).into())]
}
