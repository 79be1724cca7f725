//! Files of data: CSV, IDX, NPY, NPZ, images, meshes, text and tokenizers.

use trefoil_nn::data::text::{Characters, Encoding, Tokenizer, Windows, read_text};
use trefoil_nn::data::{
    Arrays, Channels, CifarLabels, CsvOptions, Dataset, ImageFolder, ItemSource, Label, MeshData,
    MeshOptions, read_cifar, read_csv, read_csv_skipping, read_idx, read_npy, read_npz,
};
use trefoil_nn::{HostTensor, Result};

use super::scratch::Scratch;
use super::{Generate, Run, Target, Verdict};
use crate::input::Input;

pub(crate) const TARGET: Target = Target {
    name: "data",
    about: "CSV, IDX, CIFAR, NPY, NPZ, PNG, JPEG, OBJ, OFF, text and tokenizer files: read, and served as items",
    generate: Generate::Mutations,
    open: || {
        let scratch = Scratch::new("data")?;
        std::fs::create_dir(scratch.path().join("class")).map_err(|e| e.to_string())?;
        Ok(Box::new(move |input: &Input| run(&scratch, input)) as Run)
    },
};

fn run(scratch: &Scratch, input: &Input) -> Verdict {
    let image = matches!(input.kind.as_str(), "png" | "jpg");
    let folder = if image { "class/" } else { "" };
    let path = scratch.write(&format!("{folder}input.{}", input.kind), &input.bytes);
    let done = match input.kind.as_str() {
        "csv" => csv(&path),
        "idx" | "gz" => read_idx(&path).and_then(arrays),
        "bin" => [CifarLabels::Cifar10, CifarLabels::Cifar100]
            .into_iter()
            .try_for_each(|labels| read_cifar(&[&path], labels).and_then(|set| items(&set))),
        "npy" => read_npy(&path).and_then(arrays),
        "npz" => read_npz(&path, None).and_then(|all| all.into_values().try_for_each(arrays)),
        "png" | "jpg" => images(scratch),
        "obj" | "off" => mesh(&path),
        "json" => Tokenizer::open(&path).and_then(|t| encoded(&t)),
        _ => text(&path),
    };
    if image {
        let _ = std::fs::remove_file(path);
    }
    Verdict::of(done)
}

fn csv(path: &std::path::Path) -> Result<()> {
    let classes = CsvOptions::default();
    let values = CsvOptions { label: Label::Value(1), separator: ';', scale: 0.5, ..CsvOptions::default() };
    let (read, skipped) = (read_csv(path, &classes), read_csv_skipping(path, &classes));
    let other = read_csv_skipping(path, &values);
    for data in read.into_iter().chain(skipped.into_iter().chain(other).map(|(d, _)| d)) {
        items(&data)?;
    }
    Ok(())
}

/// The array as features and as targets of data.
fn arrays(x: HostTensor) -> Result<()> {
    let n = x.shape.first().copied().unwrap_or(0);
    // What fits nothing is still a good file.
    if let Ok(y) = HostTensor::from_slice(&vec![0i64; n.min(1 << 20)], &[n]) {
        for data in [Arrays::new(x.clone(), y.clone()), Arrays::new(y, x)].into_iter().flatten() {
            items(&data)?;
            drop(data.dataset(0.5).map(|d: Dataset| items(&d)));
        }
    }
    Ok(())
}

/// First and last item, and one beyond, which is an error.
fn items(data: &dyn ItemSource) -> Result<()> {
    let n = data.len();
    data.item(0)?;
    data.item(n - 1)?;
    assert!(data.item(n).is_err(), "an item beyond the last");
    data.items(&[n / 2, 0])?;
    Ok(())
}

fn images(scratch: &Scratch) -> Result<()> {
    let folder = ImageFolder::open(scratch.path())?;
    let scaled = folder.clone().channels(Channels::Gray).resize(3, 2)?.item(0);
    let item = folder.item(0)?;
    assert_eq!(scaled?.x.shape, [1, 3, 2], "a scaled image");
    assert_eq!(item.x.shape.len(), 3, "an image has channels, rows and columns");
    Ok(())
}

/// What the layers of meshes take is there for every edge of a mesh that is read, with and without spirals.
fn mesh(path: &std::path::Path) -> Result<()> {
    let files = [path.to_path_buf()];
    for spiral_length in [Some(3), None] {
        let data = MeshData::read(&files, &MeshOptions { spiral_length, ..MeshOptions::default() })?;
        assert!(data.edges() >= 3 && data.vertices() >= 3, "a face has three edges and vertices");
    }
    Ok(())
}

fn encoded(encoding: &dyn Encoding) -> Result<()> {
    for sample in ["", "to be or not to be", "Größe \u{1f600}\0\u{fffd}  ab"] {
        let ids = encoding.encode(sample)?;
        encoding.decode(&ids)?;
    }
    // Ids that it need not have.
    drop(encoding.decode(&[0, 1, u32::MAX]));
    Ok(())
}

fn text(path: &std::path::Path) -> Result<()> {
    let text = read_text(path)?;
    let encoding = Characters::of(&text);
    let ids = encoding.encode(&text)?;
    assert_eq!(encoding.decode(&ids)?, text, "characters survive their ids");
    items(&Windows::new(ids, 3, encoding.size())?.step(2)?)
}
