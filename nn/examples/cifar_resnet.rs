//! A small ResNet on files in the format of CIFAR-10.
//!
//!     TREFOIL_BACKEND=cpu cargo run --release -p trefoil-nn --example cifar_resnet
//!     TREFOIL_BACKEND=cpu cargo run --release -p trefoil-nn --example cifar_resnet -- FOLDER
//!
//! FOLDER has the binary version of CIFAR-10, `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin`. Without it such files are made:
//! ten shapes and textures of random size, place and colours under noise, 2,000 images to learn from and 400 to test. Colours say nothing
//! about the class there, so that the network has to see forms; it gets all 400 right after six epochs.

mod common;

use std::path::{Path, PathBuf};

use common::{Folder, Outcome, Steady, device, learned, options, show};
use trefoil::DType;
use trefoil_nn::data::{CifarLabels, ResidentSource, read_cifar};
use trefoil_nn::models::{ResNet, ResNetConfig};
use trefoil_nn::optim::Schedule;
use trefoil_nn::trainer::{Objective, TrainOptions};
use trefoil_nn::{CrossEntropyLoss, InitContext, LayerExt, Optimizer, Trainer};

fn main() -> Outcome {
    let device = device()?;
    let folder = Folder::open("cifar", write)?;
    let train = read_cifar(&training_files(&folder.path), CifarLabels::Cifar10)?.dataset(1.0 / 255.0)?;
    let test = read_cifar(&[folder.path.join(TEST)], CifarLabels::Cifar10)?.dataset(1.0 / 255.0)?;
    println!("{} images, {} to test", train.len(), test.len());

    // One block in each of the four stages, an eighth of ResNet-18's channels.
    let config = ResNetConfig::basic([1; 4], 10).width(8).small_images();
    let model = ResNet::new(&InitContext::new(&device, 1), &config)?;
    println!("{} parameters", model.num_parameters());
    let (batch, epochs) = (50, 8);
    let steps = train.len().div_ceil(batch) as u64;
    let schedule = Schedule::Cosine { total: epochs * steps, min: 0.0 };
    let options = TrainOptions { schedule, ..options(epochs, batch) };
    let (optimizer, steady) = (Optimizer::adamw(&model, 3e-3, 0.01)?, Steady::of_epochs(&device, steps));
    let objective = Objective::Classify(CrossEntropyLoss::default());
    let mut trainer = Trainer::new(&model, optimizer, objective, &device, options)?.callback(&steady);
    let train = ResidentSource::new(&train, &device, DType::F32)?;
    let test = ResidentSource::new(&test, &device, DType::F32)?;
    let report = trainer.fit(&train, Some(&test), &mut show)?;
    steady.finish();

    let accuracy = report.history.last().and_then(|s| s.test_accuracy).unwrap_or(0.0);
    if !folder.temporary {
        println!("test accuracy {accuracy:.4}");
        return Ok(());
    }
    learned(format!("test accuracy {accuracy:.4}, at least 0.95 wanted"), accuracy >= 0.95)
}

const TEST: &str = "test_batch.bin";

fn training_files(folder: &Path) -> Vec<PathBuf> {
    (1..=5).map(|i| folder.join(format!("data_batch_{i}.bin"))).collect()
}

/// Writes five files to learn from and one to test, each of 400 records: the class, then planes of red, green and blue.
fn write(folder: &Path) -> std::io::Result<()> {
    let mut random = Random(1);
    for path in training_files(folder).into_iter().chain([folder.join(TEST)]) {
        let mut records = vec![];
        for i in 0..400 {
            let class = (i % 10) as u8;
            records.push(class);
            records.extend(image(class, &mut random));
        }
        std::fs::write(path, records)?;
    }
    Ok(())
}

/// xorshift64.
struct Random(u64);

impl Random {
    fn between(&mut self, lo: f32, hi: f32) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        lo + (hi - lo) * (self.0 >> 40) as f32 / (1u32 << 24) as f32
    }
}

/// Three planes of 32 by 32 pixels with a form of a class.
fn image(class: u8, random: &mut Random) -> Vec<u8> {
    let radius = random.between(8.0, 13.0);
    let [cx, cy] = [0; 2].map(|_| random.between(radius, 31.0 - radius));
    // In each plane form and ground differ, either may be the brighter one.
    let planes = [0; 3].map(|_| {
        let (dark, bright) = (random.between(20.0, 100.0), random.between(150.0, 235.0));
        if random.between(0.0, 1.0) < 0.5 { (dark, bright) } else { (bright, dark) }
    });
    let mut pixels = vec![];
    for (form, ground) in planes {
        for i in 0..32 * 32 {
            let (x, y) = ((i % 32) as f32, (i / 32) as f32);
            let on = covers(class, (x - cx) / radius, (y - cy) / radius);
            let value = if on { form } else { ground } + random.between(-40.0, 40.0);
            pixels.push(value.clamp(0.0, 255.0) as u8);
        }
    }
    pixels
}

/// Whether the form of a class, in the square from -1 to 1, covers a point.
fn covers(class: u8, x: f32, y: f32) -> bool {
    let (farther, nearer) = (x.abs().max(y.abs()), x.abs().min(y.abs()));
    let (radius, odd) = (x.hypot(y), |v: f32| (v * 2.5).floor() as i32 & 1 == 1);
    farther <= 1.0
        && match class {
            0 => radius <= 1.0,                    // disk
            1 => (0.6..=1.0).contains(&radius),    // ring
            2 => farther <= 0.9,                   // square
            3 => farther >= 0.6,                   // frame
            4 => x.abs() <= (y + 1.0) / 2.0,       // triangle
            5 => nearer <= 0.25,                   // plus
            6 => (x.abs() - y.abs()).abs() <= 0.3, // diagonal cross
            7 => odd(y),                           // horizontal stripes
            8 => odd(x),                           // vertical stripes
            _ => odd(x) != odd(y),                 // checkerboard
        }
}
