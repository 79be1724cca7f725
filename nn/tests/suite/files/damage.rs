//! Damaged files and files of other formats.

use std::path::Path;

use super::{Folder, fixture};
use trefoil_nn::data::{read_idx, read_npy, read_npz};
use trefoil_nn::{At, NnError, Result, StateFile};

/// Every prefix of a file, and every byte of its head changed: `open` gives a value or an error.
fn damage(path: &Path, name: &str, head: usize, open: &dyn Fn(&Path) -> Result<()>) {
    let folder = Folder::new(name);
    let bytes = std::fs::read(path).unwrap();
    let at = folder.at(path.file_name().unwrap().to_str().unwrap());
    for len in 0..bytes.len() {
        std::fs::write(&at, &bytes[..len]).unwrap();
        match open(&at) {
            Err(NnError::Data { path, .. }) => assert_eq!(path, at),
            other => panic!("{name} cut to {len} bytes: {other:?}"),
        }
    }
    let mut refused = 0;
    for i in 0..head.min(bytes.len()) {
        for flip in [0x01, 0x80] {
            let mut b = bytes.clone();
            b[i] ^= flip;
            std::fs::write(&at, &b).unwrap();
            match open(&at) {
                Err(NnError::Data { .. }) => refused += 1,
                Ok(()) => {}
                other => panic!("{name} with byte {i} changed: {other:?}"),
            }
        }
    }
    assert!(refused > 0);
    std::fs::write(&at, [bytes.as_slice(), &[0]].concat()).unwrap();
    if name != "zip" {
        assert!(matches!(open(&at), Err(NnError::Data { .. })), "{name} with a byte more");
    }
}

#[test]
fn damaged_files_are_refused_with_their_name() {
    damage(&fixture("mlp.safetensors"), "st", 200, &|p| {
        let f = StateFile::open(p)?;
        f.names().try_for_each(|n| f.read(n).map(drop))
    });
    damage(&fixture("fortran.npy"), "npy", 128, &|p| read_npy(p).map(drop));
    damage(&fixture("images.idx"), "idx", 16, &|p| read_idx(p).map(drop));
    damage(&fixture("labels.idx.gz"), "gz", 42, &|p| read_idx(p).map(drop));
    damage(&fixture("stored.npz"), "zip", 600, &|p| read_npz(p, Some(&["x", "y"])).map(drop));
    assert!(matches!(StateFile::open("/no/such/file.safetensors"), Err(NnError::Io { .. })));
    assert!(matches!(read_npy("/no/such/file.npy"), Err(NnError::Io { .. })));

    // A length that no memory holds is refused before anything of that size is allocated.
    let folder = Folder::new("huge");
    let head = "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000, 1000000, 1000), }\n";
    let npy = [b"\x93NUMPY\x01\x00", &(head.len() as u16).to_le_bytes()[..], head.as_bytes()].concat();
    std::fs::write(folder.at("a.npy"), npy).unwrap();
    assert!(matches!(read_npy(folder.at("a.npy")), Err(NnError::Data { at: At::Byte(_), .. })));
}

#[test]
fn other_formats_are_named_with_the_way_to_safetensors() {
    let folder = Folder::new("foreign");
    let torch = "safetensors.torch.save_file(model.state_dict(), \"model.safetensors\")";
    for (path, format, way) in [
        (fixture("weights_pickled.pt"), "a pickle", torch),
        (fixture("stored.npz"), "a NumPy archive", "safetensors.numpy.save_file(dict("),
        (fixture("fortran.npy"), "a NumPy array", "safetensors.numpy.save_file({"),
    ] {
        match StateFile::open(&path) {
            Err(NnError::Format { expected, found, path: named }) => {
                assert_eq!((expected, &named), ("a safetensors file", &path));
                assert!(found.starts_with(format) && found.contains(way), "{}: {found}", path.display());
            }
            other => panic!("{}: {other:?}", path.display()),
        }
    }
    // What only begins like a zip file, or like none of them.
    for (bytes, words) in
        [(&b"PK\x03\x04????"[..], "an intact zip archive"), (&b"????????"[..], "a safetensors header")]
    {
        let at = folder.at("short");
        std::fs::write(&at, bytes).unwrap();
        let e = StateFile::open(&at).unwrap_err().to_string();
        assert!(e.contains(words), "{e}");
    }
}

#[test]
fn an_index_must_match_its_shards() {
    let folder = Folder::new("index");
    for i in 1..=2 {
        let name = format!("model-0000{i}-of-00002.safetensors");
        std::fs::copy(fixture("sharded").join(&name), folder.at(&name)).unwrap();
    }
    let at = folder.at("model.safetensors.index.json");
    let good = std::fs::read_to_string(fixture("sharded/model.safetensors.index.json")).unwrap();
    let open = |text: &str| {
        std::fs::write(&at, text).unwrap();
        StateFile::open(&folder.0)
    };
    assert!(open(&good).is_ok());
    // A tensor that its shard has not, a file elsewhere, no JSON.
    for bad in [
        good.replace("model.0.bias", "model.0.other"),
        good.replace("model-00001", "../model-00001"),
        "{".into(),
    ] {
        assert!(matches!(open(&bad), Err(NnError::Data { .. })), "{bad}");
    }
    assert!(matches!(open(&good.replace("00001-of", "00003-of")), Err(NnError::Io { .. })));
}
