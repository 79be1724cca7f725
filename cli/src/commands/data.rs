//! `trefoil data`: what a run's data holds, before it is trained on.

use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};

use trefoil_nn::DType;
use trefoil_nn::config::{Config, TargetKind};
use trefoil_nn::data::{Batch, Source};
use trefoil_nn::plot::escape;

use crate::backend::BackendArg;
use crate::error::{CliError, Result};

/// Arguments of `data`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  trefoil data examples/digits.json                          items, shapes, how often each class comes
  trefoil data examples/digits.json --picture batch.svg      the first items as the network gets them

Items of the picture are those of the first batch, after all transforms of training: images [C, H, W] or [H, W] in colours or grey, other items
as rows of cells, dark for small and bright for large values.")]
pub(crate) struct Args {
    /// A training run
    file: PathBuf,
    #[command(flatten)]
    backend: BackendArg,
    /// Draw the first items into this SVG file
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
}

/// Items that a picture has.
const SHOWN: usize = 16;
/// Most cells of an item in a picture.
const CELLS: usize = 1 << 14;

/// Classes that are counted.
const MOST: usize = 1 << 24;

/// Class ids and how often they come.
fn counts(source: &dyn Source) -> Result<Vec<u64>> {
    let mut all: Vec<u64> = vec![];
    for batch in source.epoch(None, 1024)? {
        for class in batch?.y.to_dtype(DType::I64)?.to_vec::<i64>()? {
            // Ids that no file of classes holds.
            let Ok(class @ 0..MOST) = usize::try_from(class) else { continue };
            if class >= all.len() {
                all.resize(class + 1, 0);
            }
            all[class] += 1;
        }
    }
    Ok(all)
}

/// Height, width and planes of an item as it is drawn.
fn grid(shape: &[usize]) -> (usize, usize, usize) {
    match *shape {
        [c, h, w] if c == 1 || c == 3 => (h, w, c),
        [h, w] => (h, w, 1),
        _ => (1, shape.iter().product(), 1),
    }
}

/// The first items of a batch as SVG, each with its target.
fn picture(batch: &Batch, name: &dyn Fn(i64) -> String) -> Result<String> {
    let shape = batch.x.shape().get(1..).unwrap_or_default().to_vec();
    let (h, w, c) = grid(&shape);
    if h * w == 0 || h * w > CELLS {
        return Err(CliError::Input(format!(
            "--picture: expected items of at most {CELLS} cells, got {shape:?}"
        )));
    }
    let values = batch.x.to_dtype(DType::F32)?.to_vec::<f32>()?;
    let (lo, hi) = values.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(a, b), &x| (a.min(x), b.max(x)));
    let grey = |x: f32| ((x - lo) / (hi - lo).max(f32::MIN_POSITIVE) * 255.0).clamp(0.0, 255.0) as u8;
    let targets: Vec<String> = match batch.y.dtype().is_float() {
        true => {
            let width = (batch.y.numel() / batch.len.max(1)).max(1);
            let all = batch.y.to_dtype(DType::F32)?.to_vec::<f32>()?;
            all.chunks(width).map(|v| v.first().map_or(String::new(), |x| format!("{x:.3}"))).collect()
        }
        false if batch.y.rank() == 1 => {
            batch.y.to_dtype(DType::I64)?.to_vec::<i64>()?.into_iter().map(name).collect()
        }
        false => vec![],
    };
    let n = batch.len.min(SHOWN);
    let columns = if h == 1 { 1 } else { 4 };
    let cell = if h == 1 { (640.0 / w as f64).min(12.0) } else { 128.0 / h.max(w) as f64 };
    let (box_w, box_h) = (cell * w as f64 + 16.0, cell.max(8.0) * h as f64 + 28.0);
    let (width, height) = (box_w * columns as f64 + 16.0, box_h * n.div_ceil(columns) as f64 + 16.0);
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0} {height:.0}" width="{width:.0}" height="{height:.0}" font-family="sans-serif" font-size="12" shape-rendering="crispEdges">
<rect width="100%" height="100%" fill="#ffffff"/>"##
    );
    for (i, item) in values.chunks_exact(h * w * c).take(n).enumerate() {
        let (x0, y0) = (8.0 + box_w * (i % columns) as f64, 8.0 + box_h * (i / columns) as f64);
        let text = escape(targets.get(i).map_or("", String::as_str));
        let _ = writeln!(out, r#"<text x="{x0:.1}" y="{:.1}">{text}</text>"#, y0 + 12.0);
        for p in 0..h * w {
            let plane = |k: usize| grey(item[k % c * h * w + p]);
            let (x, y) = (
                x0 + cell * (p % w) as f64,
                y0 + 16.0 + cell.max(8.0 * f64::from(u8::from(h == 1))) * (p / w) as f64,
            );
            let tall = if h == 1 { 8.0 } else { cell };
            let [r, g, b] = [0, 1, 2].map(plane);
            let _ = writeln!(
                out,
                r##"<rect x="{x:.2}" y="{y:.2}" width="{cell:.2}" height="{tall:.2}" fill="#{r:02x}{g:02x}{b:02x}"/>"##
            );
        }
    }
    out.push_str("</svg>\n");
    Ok(out)
}

pub(crate) fn run(a: &Args, out: &mut dyn Write) -> Result<()> {
    let config = Config::load(&a.file)?;
    let data = config.data.open()?;
    let device = a.backend.open()?;
    let sources = config.sources(&data, &device)?;
    let first = sources.first(config.train.seed, config.train.batch_size)?;
    let item = |t: &trefoil_nn::Tensor| format!("{} {:?}", t.dtype(), t.shape().get(1..).unwrap_or_default());
    writeln!(out, "{} training and {} test items", data.train_items(), data.test_items())?;
    writeln!(out, "an item: features {}, target {}", item(&first.x), item(&first.y))?;
    let mapping = data.mapping();
    if data.target() == TargetKind::Class && first.y.rank() == 1 {
        let train = counts(&*sources.train)?;
        let test = sources.test.as_deref().map(counts).transpose()?.unwrap_or_default();
        let total: u64 = train.iter().sum::<u64>().max(1);
        writeln!(out, "class          training           test")?;
        for i in 0..train.len().max(test.len()) {
            let (n, t) = (train.get(i).copied().unwrap_or(0), test.get(i).copied().unwrap_or(0));
            let share = 100.0 * n as f64 / total as f64;
            writeln!(out, "{:<12} {n:>8} ({share:>5.1} %) {t:>8}", mapping.class_name(i))?;
        }
    }
    data.skipped().iter().try_for_each(|s| writeln!(out, "left out: {s}"))?;
    let Some(path) = &a.picture else { return Ok(()) };
    let svg = picture(&first, &|i| usize::try_from(i).map_or("?".into(), |i| mapping.class_name(i)))?;
    write_picture(path, &svg)?;
    writeln!(out, "the first items are in {}", path.display())?;
    Ok(())
}

fn write_picture(path: &Path, svg: &str) -> Result<()> {
    std::fs::write(path, svg).map_err(CliError::file("write", path))
}
